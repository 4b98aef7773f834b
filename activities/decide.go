package activities

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

const (
	// decideTimeout bounds one decision. A workflow task waits for it.
	decideTimeout = 2 * time.Second
	// grace is how long what heeds its context has to say what took so long.
	grace = 100 * time.Millisecond
)

// tineBegin tells an execution what this worker offers.
func (a *Activities) tineBegin(ctx context.Context) (protocol.Begin, error) {
	begin := protocol.Begin{
		SearchAttributes: a.hasSearchAttributes(ctx),
		HeartbeatTimeout: a.opts.HeartbeatTimeout,
		HostTimeout:      a.opts.HostTimeout,
		Revision:         protocol.Revision,
		RolloverEvents:   a.opts.RolloverEvents,
		PayloadLimit:     a.opts.PayloadLimit,
	}
	if described, ok := a.policy.(policy.Describer); ok {
		begin.PolicyDigest, begin.Unrestricted = described.Describe(activity.GetInfo(ctx).WorkflowType.Name)
	}
	return begin, nil
}

// tineDecide records the decision on a step. Whatever goes wrong is a denial, so that nothing
// runs because something broke.
func (a *Activities) tineDecide(ctx context.Context, in protocol.DecideRequest) (protocol.StepRecord, error) {
	decision := a.decide(ctx, in)
	record := protocol.StepRecord{Step: in.Step, Decision: &decision}
	switch {
	case decision.Limited():
		record.Undecided = true
	case decision.Decision == protocol.Allow:
		record.Executing = in.Inline
	case decision.Decision == protocol.RequireApproval:
		record.Approval = decision.Window(at(in))
	}
	if in.Inline || record.Undecided || decision.Decision != protocol.Allow {
		record.Step.Args = in.Args
	}
	return record, nil
}

// at is the time of a decision: the workflow's, which is the server's. Workflow code of before
// did not tell it.
func at(in protocol.DecideRequest) time.Time {
	if in.Now.IsZero() {
		return time.Now().UTC()
	}
	return in.Now.UTC()
}

// decide is the decision on a step before limits.
func (a *Activities) decide(ctx context.Context, in protocol.DecideRequest) protocol.Decision {
	if in.Decided != nil {
		return *in.Decided
	}
	own, err := a.overrides.get(in.Policy)
	decision := protocol.Decision{
		Decision: protocol.Deny, RuleID: protocol.RuleIndeterminateRetry, Reason: protocol.ReasonIndeterminateRetry,
	}
	switch {
	case err != nil:
		decision = broken(err)
	case !in.Indeterminate:
		decision = checked(a.ask(ctx, own, in))
	}
	if decision.PolicyDigest == "" {
		decision.PolicyDigest = a.digest(in)
	}
	for i := range decision.Parts {
		decision.Parts[i].PolicyDigest = cmp.Or(decision.Parts[i].PolicyDigest, decision.PolicyDigest)
	}
	if in.Guarded && !decision.Limited() {
		decision = decision.Guarded(in.ForkedFrom)
	}
	return decision
}

// digest names the policy that decides for the execution.
func (a *Activities) digest(in protocol.DecideRequest) string {
	if in.Policy != nil {
		return in.Policy.Digest
	}
	if described, ok := a.policy.(policy.Describer); ok {
		digest, _ := described.Describe(in.AgentID)
		return digest
	}
	return ""
}

// ask has the step decided in the time that there is, also if the engine does not heed its context.
func (a *Activities) ask(ctx context.Context, own policy.Engine, in protocol.DecideRequest) protocol.Decision {
	ctx, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	input := policyInput(ctx, in)
	decision, ok := within(ctx, func() protocol.Decision { return evaluate(ctx, a.engine(own), input) })
	if !ok {
		return broken(fmt.Errorf("no decision within %v", decideTimeout))
	}
	return decision
}

// within runs fn until the end of ctx, and a moment longer for what heeds it. It is not ok if fn
// goes on all the same: what comes of it then comes too late.
func within[T any](ctx context.Context, fn func() T) (result T, ok bool) {
	ended := make(chan T, 1)
	go func() { ended <- fn() }()
	select {
	case result = <-ended:
		return result, true
	case <-ctx.Done():
	}
	select {
	case result = <-ended:
		return result, true
	case <-time.After(grace):
		return result, false
	}
}

func policyInput(ctx context.Context, in protocol.DecideRequest) policy.Input {
	idempotency := in.Step.Idempotency
	if idempotency == "" {
		idempotency = protocol.SafeToRetry
	}
	return policy.Input{
		ExecutionID: activity.GetInfo(ctx).WorkflowExecution.ID,
		AgentID:     in.AgentID,
		StepID:      in.Step.ID,
		StepKind:    in.Step.Kind,
		Target:      in.Step.Target,
		Arguments:   in.Args,
		Idempotency: idempotency,
		Resources:   in.Step.Resources,
		Session:     in.Session,
		ForkedFrom:  in.ForkedFrom,
		Time:        at(in),
	}
}

// evaluate asks an engine. One that fails or panics denies.
func evaluate(ctx context.Context, engine policy.Engine, in policy.Input) (decision protocol.Decision) {
	defer func() {
		if p := recover(); p != nil {
			decision = broken(fmt.Errorf("policy panicked: %v", p))
		}
	}()
	decision, err := engine.Decide(ctx, in)
	if err != nil {
		digest := decision.PolicyDigest
		decision = broken(err)
		decision.PolicyDigest = digest
	}
	return decision
}

// checked completes a decision, or denies if it is none.
func checked(d protocol.Decision) protocol.Decision {
	d.Parts = slices.Clone(d.Parts)
	for i, part := range d.Parts {
		if d.Parts[i] = checked(part); d.Parts[i].RuleID == protocol.RuleBundleError {
			return d.Parts[i]
		}
	}
	if own, ok := overruling(d); ok {
		d.Parts = append(d.Parts, own)
	}
	if err := allowed(d); err != nil {
		denial := broken(err)
		denial.PolicyDigest = d.PolicyDigest
		return denial
	}
	if d.Decision == protocol.Deny && d.Reason == "" {
		d.Reason = protocol.ReasonPolicyDenied
	}
	d.Reason = protocol.Cut(d.Reason, protocol.MaxReason)
	if d.Approval != nil && len(d.Approval.Message) > protocol.MaxReason {
		shown := *d.Approval
		shown.Message = protocol.Cut(shown.Message, protocol.MaxReason)
		d.Approval = &shown
	}
	return d
}

// overruling is what a decision says beside its parts: an engine that asks another may have changed
// what that decided. Once limits are applied only the parts count.
func overruling(d protocol.Decision) (own protocol.Decision, ok bool) {
	if len(d.Parts) == 0 || d.RateLimit == nil && d.Budget == nil && protocol.Combine(d.Parts).Decision == d.Decision {
		return own, false
	}
	own = d
	own.Parts = nil
	return own, true
}

// allowed says what is wrong with a decision that cannot be cut to fit.
func allowed(d protocol.Decision) error {
	switch d.Decision {
	case protocol.Allow, protocol.RequireApproval, protocol.Deny:
	default:
		return fmt.Errorf("the policy decided %q; it may decide allow, deny or require_approval", protocol.Cut(d.Decision, protocol.MaxRuleID))
	}
	if len(d.RuleID) > protocol.MaxRuleID {
		return fmt.Errorf("the policy gave a rule id of %d bytes; at most %d are allowed", len(d.RuleID), protocol.MaxRuleID)
	}
	if d.Approval == nil {
		return nil
	}
	if n := len(d.Approval.Approvers); n > protocol.MaxApprovers {
		return fmt.Errorf("the policy lists %d approvers; at most %d are allowed", n, protocol.MaxApprovers)
	}
	for _, name := range d.Approval.Approvers {
		if len(name) > protocol.MaxApprover {
			return fmt.Errorf("the policy lists an approver of %d bytes; at most %d are allowed", len(name), protocol.MaxApprover)
		}
	}
	return nil
}

func broken(err error) protocol.Decision {
	return protocol.Decision{
		Decision: protocol.Deny, RuleID: protocol.RuleBundleError, Reason: protocol.Cut(err.Error(), protocol.MaxReason),
	}
}

// tineStep decides a local step and, if it is allowed, runs it. Its error is in the record, so
// the local activity itself never fails.
func (a *Activities) tineStep(ctx context.Context, in protocol.DecideRequest) (protocol.StepRecord, error) {
	record, err := a.tineDecide(ctx, in)
	record.Step.Args = in.Args
	if err != nil || record.Undecided || record.Decision.Decision != protocol.Allow {
		return record, err
	}
	result, err := a.runLocal(ctx, in)
	record.Outcome = &protocol.Outcome{Result: result}
	if err != nil {
		described := failure.StepError(err, in.Step.Idempotency)
		record.Outcome = &protocol.Outcome{Error: &described}
	}
	return record, nil
}

func (a *Activities) runLocal(ctx context.Context, in protocol.DecideRequest) (json.RawMessage, error) {
	if in.Result != nil {
		return in.Result, nil
	}
	h, ok := a.steps[in.Step.Target]
	if !ok {
		return nil, errUnknownStep("local step", in.Step.Target)
	}
	ctx, cancel := context.WithTimeout(ctx, in.Timeout)
	defer cancel()
	type outcome struct {
		result json.RawMessage
		err    error
	}
	// A body that does not heed its context must not fail the workflow task that waits for it, which
	// would say nothing of the step.
	ended, ok := within(ctx, func() outcome {
		result, err := a.fits(h.run(ctx, in.Args, false))
		return outcome{result, err}
	})
	if !ok {
		ended.err = ctx.Err()
	}
	if ended.err != nil && ctx.Err() != nil {
		return nil, timeoutError(ended.err)
	}
	if ended.err != nil {
		return nil, classify(ended.err, in.Step.Idempotency)
	}
	return ended.result, nil
}

// tineSettle and tineNote record what workflow code has found out.
func (a *Activities) tineSettle(_ context.Context, record protocol.StepRecord) (protocol.StepRecord, error) {
	return record, nil
}

func (a *Activities) tineNote(_ context.Context, divergence protocol.Divergence) (protocol.Divergence, error) {
	return divergence, nil
}

// now and newUUID are the bodies of the local steps that workflows.Now and
// workflows.NewUUID ask for.
func now(context.Context, *struct{}) (time.Time, error) { return time.Now().UTC(), nil }

func newUUID(context.Context, *struct{}) (string, error) {
	id, err := uuid.NewRandom()
	return id.String(), err
}
