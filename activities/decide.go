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
	return protocol.Begin{
		SearchAttributes: a.hasSearchAttributes(ctx),
		HeartbeatTimeout: a.opts.HeartbeatTimeout,
		HostTimeout:      a.opts.HostTimeout,
	}, nil
}

// tineDecide records the decision on a step. Whatever goes wrong is a denial, so that nothing
// runs because something broke.
func (a *Activities) tineDecide(ctx context.Context, in protocol.DecideRequest) (protocol.StepRecord, error) {
	decision := a.ask(ctx, in)
	allowed := decision.Decision == protocol.Allow
	record := protocol.StepRecord{Step: in.Step, Decision: &decision, Executing: in.Inline && allowed}
	if in.Inline || !allowed {
		record.Step.Args = in.Args
	}
	return record, nil
}

func (a *Activities) ask(ctx context.Context, in protocol.DecideRequest) (decision protocol.Decision) {
	defer func() {
		if p := recover(); p != nil {
			decision = broken(fmt.Errorf("policy panicked: %v", p))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	idempotency := in.Step.Idempotency
	if idempotency == "" {
		idempotency = protocol.SafeToRetry
	}
	decision, err := a.policy.Decide(ctx, policy.Input{
		ExecutionID: activity.GetInfo(ctx).WorkflowExecution.ID,
		AgentID:     in.AgentID,
		StepID:      in.Step.ID,
		StepKind:    in.Step.Kind,
		Target:      in.Step.Target,
		Arguments:   in.Args,
		Idempotency: idempotency,
		Resources:   in.Step.Resources,
	})
	switch {
	case err != nil:
		return broken(err)
	case decision.Decision == protocol.Deny && decision.Reason == "":
		decision.Reason = protocol.ReasonPolicyDenied
	case decision.Decision != protocol.Allow && decision.Decision != protocol.Deny:
		return broken(fmt.Errorf("the policy decided %q; it may decide allow or deny", decision.Decision))
	}
	return decision
}

func broken(err error) protocol.Decision {
	return protocol.Decision{Decision: protocol.Deny, RuleID: protocol.RuleBundleError, Reason: err.Error()}
}

// tineStep decides a local step and, if it is allowed, runs it. Its error is in the record, so
// the local activity itself never fails.
func (a *Activities) tineStep(ctx context.Context, in protocol.DecideRequest) (protocol.StepRecord, error) {
	record, err := a.tineDecide(ctx, in)
	record.Step.Args = in.Args
	if err != nil || record.Decision.Decision != protocol.Allow {
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
		return nil, classify(err)
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
