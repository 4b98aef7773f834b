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
	// Decision, RuleID and Reason are those of the first event that decided the step, so not
	// what an approval made of it. Without a decision the step is left out.
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

// Comparison is a policy against the steps of past executions.
type Comparison struct {
	// Compared steps had been decided by a policy, or freely without one. Skipped ones had
	// been decided by what no policy knows: a fork's guard, a limit that was used up, a
	// policy that failed.
	Compared    int          `json:"compared"`
	Skipped     int          `json:"skipped"`
	Differences []Difference `json:"differences"`
}

// Add adds another comparison's steps.
func (c *Comparison) Add(more Comparison) {
	c.Compared += more.Compared
	c.Skipped += more.Skipped
	c.Differences = append(c.Differences, more.Differences...)
}

// Replay has an engine decide recorded steps, and lists those of which it decides otherwise.
// Another rule with the same decision is no difference. Rate limits and budgets are not
// applied: they depend on what else ran. The error is that of ctx.
func Replay(ctx context.Context, engine policy.Engine, steps []Step) (Comparison, error) {
	result := Comparison{Differences: []Difference{}}
	for _, s := range steps {
		if !s.decidedByPolicy() {
			result.Skipped++
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

func (s Step) decidedByPolicy() bool {
	switch s.RuleID {
	case protocol.RuleForkEffect, protocol.RuleIndeterminateRetry, protocol.RuleBundleError:
		return false
	}
	switch s.Reason {
	case protocol.ReasonRateLimited, protocol.ReasonLimiterUnavailable, protocol.ReasonBudget:
		return false
	}
	return s.Decision != ""
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
