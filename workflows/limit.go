package workflows

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// limit applies the rate limits of a decision and then its budgets, and records the decision that
// comes of it. A step that is refused for its rate has a *PolicyError and no decision: it counts
// as not asked for.
func (p *pending) limit(ctx workflow.Context, decision protocol.Decision) (protocol.Decision, *protocol.ApprovalWindow, error) {
	parts := decision.Split()
	skipped, err := p.throttle(ctx, parts)
	if err != nil {
		return decision, nil, err
	}
	for i, part := range parts {
		parts[i] = p.x.spend(part)
	}
	decision = protocol.Combine(parts)
	if skipped != "" {
		decision.Reason = strings.TrimPrefix(decision.Reason+"; "+skipped, "; ")
	}
	if p.guarded() {
		decision = decision.Guarded(p.x.start.Fork.ExecutionID)
	}

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

// throttle takes a token of each part's bucket, and waits until all are there. What was taken
// before one refuses stays taken. Skipped says that a limit could not be applied.
func (p *pending) throttle(ctx workflow.Context, parts []protocol.Decision) (skipped string, err error) {
	var longest time.Duration
	var by protocol.Decision
	for i, part := range parts {
		if part.RateLimit.Unlimited() {
			continue
		}
		wait, reason, err := p.token(ctx, part, bucketName(parts, i))
		switch {
		case err != nil:
			return "", err
		case reason == limitSkipped:
			skipped = limitSkipped
		case reason != "":
			return "", p.refuse(ctx, part, reason)
		}
		if wait > longest {
			longest, by = wait, part
		}
	}
	if longest <= 0 {
		return skipped, nil
	}
	until := workflow.Now(ctx).Add(longest)
	limited := protocol.Limited{
		RuleID: by.RuleID, Reason: protocol.ReasonRateLimited, PolicyDigest: by.PolicyDigest, Until: &until,
	}
	if err := p.note(ctx, protocol.StepRecord{Limited: &limited}); err != nil {
		return "", err
	}
	err = p.outside(ctx, func() (resume bool, err error) {
		summary := "rate limit of " + p.step.Target
		return true, workflow.NewTimerWithOptions(ctx, longest, workflow.TimerOptions{Summary: summary}).Get(ctx, nil)
	})
	if err != nil {
		return "", p.cancelled(ctx, "cancelled while a rate limit held it up")
	}
	return skipped, nil
}

// limitSkipped is the reason of a step that ran because its limiter could not be reached.
const limitSkipped = "rate limit not applied: " + protocol.ReasonLimiterUnavailable

// bucketName names the bucket of a part: by its rule, and by its place if a rule of another half has
// the same id. A step takes one token of each.
func bucketName(parts []protocol.Decision, i int) string {
	rule := parts[i].RuleID
	for _, earlier := range parts[:i] {
		if earlier.RuleID == rule {
			return fmt.Sprintf("%s#%d", rule, i+1)
		}
	}
	return rule
}

// refuse ends a step for its rate, and gives its place among identical ones back.
func (p *pending) refuse(ctx workflow.Context, part protocol.Decision, reason string) error {
	limited := protocol.Limited{RuleID: part.RuleID, Reason: reason, PolicyDigest: part.PolicyDigest}
	if err := p.note(ctx, protocol.StepRecord{Limited: &limited}); err != nil {
		return err
	}
	return p.limited(limited)
}

// limited is what the handler gets of a refusal.
func (p *pending) limited(l protocol.Limited) error {
	free := append(p.x.refused[p.same], p.step.Occurrence)
	if p.x.since(protocol.RevisionCoalesced) {
		slices.Sort(free) // in a fork refusals come in the order of the calls
	}
	p.x.refused[p.same] = free
	return policyError(p.step, protocol.Decision{RuleID: l.RuleID, Reason: l.Reason})
}

// token takes a token and says how long to wait for it, or why there is none.
func (p *pending) token(ctx workflow.Context, part protocol.Decision, name string) (wait time.Duration, refused string, err error) {
	limit := *part.RateLimit
	id := p.x.limiter(name, limit.PerWhat)
	if id == "" {
		b := p.x.buckets[name]
		if b == nil {
			b = &bucket{}
			p.x.buckets[name] = b
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
	case err != nil && (limit.OnLimiterError == protocol.Deny || failure.Is(err, failure.TypeLimiter)):
		return 0, protocol.ReasonLimiterUnavailable, nil
	case err != nil:
		return 0, limitSkipped, nil
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
		return protocol.LimiterID(perWhat, rule)
	case perWhat == protocol.PerAgent:
		return protocol.LimiterID(perWhat, x.agent, rule)
	case perWhat == protocol.PerSession && x.start.Session != "":
		return protocol.LimiterID(perWhat, x.start.Session, rule)
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
		decision.Approval = decision.Approval.Saying(
			fmt.Sprintf("model calls have used %d tokens; the rule allows %d", x.tokens, budget.MaxTokens))
	}
	return decision
}
