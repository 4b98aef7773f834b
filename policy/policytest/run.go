package policytest

import (
	"context"
	"fmt"
	"time"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

// Report is what came of the cases of a file.
type Report struct {
	Passed int      `json:"passed"`
	Failed int      `json:"failed"`
	Cases  []Result `json:"cases"`
	// UnreachedRules are the rules that decided no case, in their order. A policy in Rego has
	// no rules that could be listed.
	UnreachedRules []string `json:"unreached_rules"`
}

// Result is what came of one case.
type Result struct {
	Name       string `json:"name"`
	Decision   string `json:"decision"`
	RuleID     string `json:"rule_id"`
	Reason     string `json:"reason,omitempty"`
	Expect     string `json:"expect"`
	ExpectRule string `json:"expect_rule"`
	OK         bool   `json:"ok"`
	// Message says what is not as expected.
	Message string `json:"message"`
}

// Run has an engine decide the cases. The error is that of ctx; an engine's own errors deny,
// as they do in a worker. If the engine lists its Rules, as a *policy.Bundle does, the report
// says which of them decided no case.
func Run(ctx context.Context, engine policy.Engine, cases []Case) (Report, error) {
	report := Report{Cases: []Result{}, UnreachedRules: []string{}}
	reached := map[string]bool{}
	for _, c := range cases {
		decision, err := decide(ctx, engine, policy.Input{
			AgentID: c.AgentID, StepKind: c.Kind, Target: c.Target, Arguments: c.Args,
			Idempotency: protocol.SafeToRetry, Time: time.Now().UTC(),
		})
		if err != nil {
			return Report{}, err
		}
		reached[decision.RuleID] = true
		result := c.judge(decision)
		if result.OK {
			report.Passed++
		} else {
			report.Failed++
		}
		report.Cases = append(report.Cases, result)
	}
	if listing, ok := engine.(interface{ Rules() []policy.Rule }); ok {
		for _, rule := range listing.Rules() {
			if !reached[rule.ID] {
				report.UnreachedRules = append(report.UnreachedRules, rule.ID)
			}
		}
	}
	return report, nil
}

// decide asks the engine as a worker does.
func decide(ctx context.Context, engine policy.Engine, in policy.Input) (policy.Decision, error) {
	decision, err := engine.Decide(ctx, in)
	if ctx.Err() != nil {
		return policy.Decision{}, ctx.Err()
	}
	if err != nil {
		return policy.Decision{Decision: policy.Deny, RuleID: protocol.RuleBundleError, Reason: err.Error()}, nil
	}
	return decision, nil
}

func (c Case) judge(d policy.Decision) Result {
	result := Result{
		Name: c.Name, Decision: d.Decision, RuleID: d.RuleID, Reason: d.Reason,
		Expect: c.Expect, ExpectRule: c.ExpectRule,
	}
	switch {
	case c.Expect != "" && d.Decision != c.Expect:
		result.Message = fmt.Sprintf("%s, want %s", d.Decision, c.Expect)
	case c.ExpectRule != "" && d.RuleID != c.ExpectRule:
		result.Message = fmt.Sprintf("rule %s, want %s", d.RuleID, c.ExpectRule)
	default:
		result.OK = true
	}
	return result
}
