package policytest

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

// Step is a step that an execution has recorded, and what was first decided of it.
type Step struct {
	ExecutionID string
	AgentID     string
	Session     string
	ForkedFrom  string
	// Seq is that of the event that proposed the step, at Time.
	Seq         int64
	Time        time.Time
	StepID      string
	Kind        string
	Target      string
	Args        json.RawMessage
	Idempotency string
	Resources   []string
	// Copied says that a fork has the step from its source, and ForkPolicy that a policy which the
	// fork has brought with it decided the step. Both are left out.
	Copied     bool
	ForkPolicy bool
	// Decision, RuleID and Reason are those of the first event that decided the step, so not
	// what an approval made of it. Without a decision, RuleID and Reason are the step's, and it is
	// left out.
	Decision string
	RuleID   string
	Reason   string
}

// Difference is a step that a policy would have decided otherwise.
type Difference struct {
	ExecutionID      string          `json:"execution_id"`
	Seq              int64           `json:"seq"`
	AgentID          string          `json:"agent_id"`
	StepID           string          `json:"step_id"`
	Kind             string          `json:"kind"`
	Target           string          `json:"target"`
	Args             json.RawMessage `json:"args"`
	RecordedDecision string          `json:"recorded_decision"`
	RecordedRuleID   string          `json:"recorded_rule_id"`
	Decision         string          `json:"decision"`
	RuleID           string          `json:"rule_id"`
	Reason           string          `json:"reason,omitempty"`
}

// Reason says why a step is left out of a comparison.
type Reason string

// The reasons. Copied steps are compared where they were decided, in the fork's source; the others
// were decided by something else than a policy that this one could take the place of.
const (
	Copied       Reason = "copied"
	ForkPolicy   Reason = "fork_policy"
	Undecided    Reason = "undecided"
	Guard        Reason = "guard"         // of a fork: its source has had the effect
	Limit        Reason = "limit"         // on calls or tokens, that was used up
	Retry        Reason = "retry"         // of an at_most_once step that ended indeterminate
	PolicyFailed Reason = "policy_failed" // to decide, in time or at all
)

// Comparison is a policy against the steps of past executions.
type Comparison struct {
	Compared int `json:"compared"`
	// Skipped steps were left out, for the reasons that SkippedBy counts.
	Skipped     int            `json:"skipped"`
	SkippedBy   map[Reason]int `json:"skipped_by"`
	Differences []Difference   `json:"differences"`
}

// Add adds another comparison's steps.
func (c *Comparison) Add(more Comparison) {
	c.Compared += more.Compared
	c.Skipped += more.Skipped
	for reason, n := range more.SkippedBy {
		if c.SkippedBy == nil {
			c.SkippedBy = map[Reason]int{}
		}
		c.SkippedBy[reason] += n
	}
	c.Differences = append(c.Differences, more.Differences...)
}

// Replay has an engine decide recorded steps, and lists those of which it decides otherwise.
// Another rule with the same decision is no difference. Rate limits and budgets are not
// applied: they depend on what else ran. The error is that of ctx.
func Replay(ctx context.Context, engine policy.Engine, steps []Step) (Comparison, error) {
	result := Comparison{SkippedBy: map[Reason]int{}, Differences: []Difference{}}
	for _, s := range steps {
		if reason := s.leftOut(); reason != "" {
			result.Skipped++
			result.SkippedBy[reason]++
			continue
		}
		decision, err := decide(ctx, engine, s.input())
		if err != nil {
			return Comparison{}, err
		}
		result.Compared++
		if decision.Decision != s.Decision {
			result.Differences = append(result.Differences, s.difference(decision))
		}
	}
	return result, nil
}

// leftOut is empty for a step that is to be compared.
func (s Step) leftOut() Reason {
	switch {
	case s.Copied:
		return Copied
	case s.ForkPolicy:
		return ForkPolicy
	}
	switch s.RuleID {
	case protocol.RuleForkEffect:
		return Guard
	case protocol.RuleIndeterminateRetry:
		return Retry
	case protocol.RuleBundleError:
		return PolicyFailed
	}
	switch s.Reason {
	case protocol.ReasonRateLimited, protocol.ReasonLimiterUnavailable, protocol.ReasonBudget:
		return Limit
	}
	if s.Decision == "" {
		return Undecided
	}
	return ""
}

func (s Step) input() policy.Input {
	return policy.Input{
		ExecutionID: s.ExecutionID, AgentID: s.AgentID, StepID: s.StepID, StepKind: s.Kind, Target: s.Target,
		Arguments: s.Args, Idempotency: s.Idempotency, Resources: s.Resources,
		Session: s.Session, ForkedFrom: s.ForkedFrom, Time: s.Time,
	}
}

func (s Step) difference(d policy.Decision) Difference {
	return Difference{
		ExecutionID: s.ExecutionID, Seq: s.Seq, AgentID: s.AgentID, StepID: s.StepID, Kind: s.Kind, Target: s.Target, Args: s.Args,
		RecordedDecision: s.Decision, RecordedRuleID: s.RuleID, Decision: d.Decision, RuleID: d.RuleID, Reason: d.Reason,
	}
}
