package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

// decideTimeout bounds one decision. A workflow task waits for it.
const decideTimeout = 2 * time.Second

// tineBegin tells an execution what this worker offers.
func (a *Activities) tineBegin(ctx context.Context) (protocol.Begin, error) {
	begin := protocol.Begin{
		SearchAttributes: a.hasSearchAttributes(ctx),
		HeartbeatTimeout: a.opts.HeartbeatTimeout,
		HostTimeout:      a.opts.HostTimeout,
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
	case limited(decision):
		record.Undecided = true
	case decision.Decision == protocol.Allow:
		record.Executing = in.Inline
	case decision.Decision == protocol.RequireApproval:
		record.Approval = decision.Window(time.Now().UTC())
	}
	if in.Inline || decision.Decision != protocol.Allow {
		record.Step.Args = in.Args
	}
	return record, nil
}

// limited reports whether limits have yet to be applied to a decision. That is the workflow's
// part: it knows what came before.
func limited(d protocol.Decision) bool {
	return !d.RateLimit.Unlimited() || d.Budget != nil && d.Decision != protocol.Deny
}

// decide is the decision on a step before limits.
func (a *Activities) decide(ctx context.Context, in protocol.DecideRequest) protocol.Decision {
	switch {
	case in.Decided != nil:
		return *in.Decided
	case in.Indeterminate:
		return protocol.Decision{
			Decision: protocol.Deny, RuleID: protocol.RuleIndeterminateRetry, Reason: protocol.ReasonIndeterminateRetry,
		}
	}
	decision := a.ask(ctx, in)
	if in.Guarded && !limited(decision) {
		decision = decision.Guarded()
	}
	return decision
}

func (a *Activities) ask(ctx context.Context, in protocol.DecideRequest) (decision protocol.Decision) {
	defer func() {
		if p := recover(); p != nil {
			decision = broken(fmt.Errorf("policy panicked: %v", p))
		}
	}()
	engine := a.policy
	if in.Policy != nil {
		own, err := a.overrides.get(*in.Policy)
		if err != nil {
			return broken(err)
		}
		engine = own
	}
	ctx, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	idempotency := in.Step.Idempotency
	if idempotency == "" {
		idempotency = protocol.SafeToRetry
	}
	decision, err := engine.Decide(ctx, policy.Input{
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
		Time:        time.Now().UTC(),
	})
	if err != nil {
		return broken(err)
	}
	return checked(decision)
}

// checked completes a decision, or denies if it is none.
func checked(d protocol.Decision) protocol.Decision {
	switch d.Decision {
	case protocol.Allow, protocol.RequireApproval:
		return d
	case protocol.Deny:
		if d.Reason == "" {
			d.Reason = protocol.ReasonPolicyDenied
		}
		return d
	default:
		return broken(fmt.Errorf("the policy decided %q; it may decide allow, deny or require_approval", d.Decision))
	}
}

func broken(err error) protocol.Decision {
	return protocol.Decision{Decision: protocol.Deny, RuleID: protocol.RuleBundleError, Reason: err.Error()}
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
	result, err := h.run(ctx, in.Args, false)
	if err != nil && ctx.Err() != nil {
		return nil, timeoutError(err)
	}
	if err != nil {
		return nil, classify(err, in.Step.Idempotency)
	}
	return result, nil
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
