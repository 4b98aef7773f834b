package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// limit applies a rule's rate limit and then its budget, and records the decision that comes
// of it. A step that is refused for its rate has a *PolicyError and no decision: it counts as
// not asked for.
func (p *pending) limit(ctx workflow.Context, decision protocol.Decision) (protocol.Decision, *protocol.ApprovalWindow, error) {
	if !decision.RateLimit.Unlimited() {
		if err := p.throttle(ctx, decision); err != nil {
			return decision, nil, err
		}
	}
	decision = p.x.spend(decision)
	if p.guarded() {
		decision = decision.Guarded()
	}
	decision.RateLimit, decision.Budget = nil, nil

	record := protocol.StepRecord{Decision: &decision}
	if decision.Decision == protocol.Allow {
		record.Executing = p.call.wait != nil
	} else { // no activity has them as its input
		record.Step.Args = p.call.args
	}
	if decision.Decision == protocol.RequireApproval {
		record.Approval = decision.Window(workflow.Now(ctx))
	}
	return decision, record.Approval, p.note(ctx, record)
}

// throttle takes a token of the rule's bucket, and waits until it is there.
func (p *pending) throttle(ctx workflow.Context, decision protocol.Decision) error {
	wait, reason, err := p.token(ctx, decision)
	if err != nil {
		return err
	}
	limited := protocol.Limited{RuleID: decision.RuleID, Reason: reason, PolicyDigest: decision.PolicyDigest}
	if reason != "" {
		if err := p.note(ctx, protocol.StepRecord{Limited: &limited}); err != nil {
			return err
		}
		p.x.refused[p.same] = append(p.x.refused[p.same], p.step.Occurrence)
		refusal := decision
		refusal.Reason = reason
		return policyError(p.step, refusal)
	}
	if wait <= 0 {
		return nil
	}
	until := workflow.Now(ctx).Add(wait)
	limited.Reason, limited.Until = protocol.ReasonRateLimited, &until
	if err := p.note(ctx, protocol.StepRecord{Limited: &limited}); err != nil {
		return err
	}
	err = p.outside(ctx, func() error {
		summary := "rate limit of " + p.step.Target
		return workflow.NewTimerWithOptions(ctx, wait, workflow.TimerOptions{Summary: summary}).Get(ctx, nil)
	})
	if err != nil {
		return p.cancelled(ctx, "cancelled while a rate limit held it up")
	}
	return nil
}

// token takes a token and says how long to wait for it, or why there is none.
func (p *pending) token(ctx workflow.Context, decision protocol.Decision) (wait time.Duration, refused string, err error) {
	limit := *decision.RateLimit
	id := p.x.limiter(decision.RuleID, limit.PerWhat)
	if id == "" {
		b := p.x.buckets[decision.RuleID]
		if b == nil {
			b = &bucket{}
			p.x.buckets[decision.RuleID] = b
		}
		wait, ok := b.take(workflow.Now(ctx), limit)
		if !ok {
			return 0, protocol.ReasonRateLimited, nil
		}
		return wait, "", nil
	}
	grant, err := p.x.shared(ctx, id, limit)
	switch {
	case ctx.Err() != nil:
		return 0, "", p.cancelled(ctx, "cancelled while it asked for its turn")
	case err != nil && limit.OnLimiterError == protocol.Deny:
		return 0, protocol.ReasonLimiterUnavailable, nil
	case err != nil:
		workflow.GetLogger(ctx).Warn("rate limit not applied", "rule", decision.RuleID, "error", err)
		return 0, "", nil
	case grant.Refused:
		return 0, protocol.ReasonRateLimited, nil
	default:
		return time.Duration(grant.Wait), "", nil
	}
}

// limiter is the id of the workflow that keeps the bucket, or empty if the bucket is the
// execution's own.
func (x *execution) limiter(rule, perWhat string) string {
	switch {
	case perWhat == protocol.PerGlobal:
		return "tine-limiter/global/" + rule
	case perWhat == protocol.PerAgent:
		return "tine-limiter/agent/" + x.agent + "/" + rule
	case perWhat == protocol.PerSession && x.start.Session != "":
		return "tine-limiter/session/" + x.start.Session + "/" + rule
	default:
		return ""
	}
}

// shared takes a token of a bucket that other executions use as well.
func (x *execution) shared(ctx workflow.Context, id string, limit protocol.RateLimit) (protocol.LimitGrant, error) {
	info := workflow.GetInfo(ctx)
	x.taken++
	request := protocol.LimitRequest{
		Bucket: id, Limit: limit,
		Request: fmt.Sprintf("%s/%d", info.WorkflowExecution.RunID, x.taken),
	}
	var grant protocol.LimitGrant
	asking := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout:    limitTimeout,
		ScheduleToCloseTimeout: limiterPatience,
		RetryPolicy:            retryPolicy(limitAttempts),
		Summary:                protocol.OneLine(id),
	})
	err := workflow.ExecuteActivity(asking, protocol.ActivityLimit, request).Get(ctx, &grant)
	return grant, err
}

// spend applies a budget. It counts what model calls have used that have ended, copied ones
// too, so that a fork does not begin with a full purse.
func (x *execution) spend(decision protocol.Decision) protocol.Decision {
	budget := decision.Budget
	if budget == nil || decision.Decision == protocol.Deny || x.tokens < budget.MaxTokens {
		return decision
	}
	decision.Decision, decision.Reason = protocol.Deny, protocol.ReasonBudget
	if budget.OnExceed == protocol.RequireApproval {
		decision.Decision = protocol.RequireApproval
	}
	return decision
}
