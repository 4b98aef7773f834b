package policytest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/policy/policytest"
)

// byTarget decides a target by the decision with its name. It has no policy for others.
type byTarget map[string]policy.Decision

func (b byTarget) Decide(_ context.Context, in policy.Input) (policy.Decision, error) {
	decision, ok := b[in.Target]
	if !ok {
		return policy.Decision{}, errors.New("it loops")
	}
	return decision, nil
}

func (byTarget) Rules() []policy.Rule {
	return []policy.Rule{{ID: "reads"}, {ID: "writes"}, {ID: "never"}}
}

var engine = byTarget{
	"read":  {Decision: "allow", RuleID: "reads"},
	"write": {Decision: "require_approval", RuleID: "writes", Reason: "ask first"},
}

func TestRun(t *testing.T) {
	t.Parallel()
	report, err := policytest.Run(t.Context(), engine, []policytest.Case{
		{Name: "good", Target: "read", Expect: "allow", ExpectRule: "reads"},
		{Name: "decision", Target: "write", Expect: "deny", ExpectRule: "never"},
		{Name: "rule", Target: "read", Expect: "allow", ExpectRule: "never"},
		{Name: "rule only", Target: "write", ExpectRule: "writes"},
		{Name: "failing", Target: "loop", Expect: "deny", ExpectRule: "bundle-error"},
	})
	require.NoError(t, err)
	got, err := json.Marshal(report)
	require.NoError(t, err)
	require.JSONEq(t, `{"passed": 3, "failed": 2, "cases": [
		{"name":"good","decision":"allow","rule_id":"reads","expect":"allow","expect_rule":"reads","ok":true,"message":""},
		{"name":"decision","decision":"require_approval","rule_id":"writes","reason":"ask first","expect":"deny","expect_rule":"never","ok":false,"message":"require_approval, want deny"},
		{"name":"rule","decision":"allow","rule_id":"reads","expect":"allow","expect_rule":"never","ok":false,"message":"rule reads, want never"},
		{"name":"rule only","decision":"require_approval","rule_id":"writes","reason":"ask first","expect":"","expect_rule":"writes","ok":true,"message":""},
		{"name":"failing","decision":"deny","rule_id":"bundle-error","reason":"it loops","expect":"deny","expect_rule":"bundle-error","ok":true,"message":""}
	], "unreached_rules": ["never"]}`, string(got))
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := policytest.Run(ctx, engine, []policytest.Case{{Target: "read", Expect: "allow"}})
	require.ErrorIs(t, err, context.Canceled)
}

func TestWriteJUnit(t *testing.T) {
	t.Parallel()
	report, err := policytest.Run(t.Context(), engine, []policytest.Case{
		{Name: `a "good" <one>`, Target: "read", Expect: "allow"},
		{Name: "a bell \a rings", Target: "write", Expect: "deny"},
	})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, policytest.WriteJUnit(&out, policytest.Suite{Name: "shell.yaml", Report: report}, policytest.Suite{Name: "none"}))
	require.Equal(t, `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="2" failures="1">
  <testsuite name="shell.yaml" tests="2" failures="1" errors="0" skipped="0">
    <testcase name="a &#34;good&#34; &lt;one&gt;" classname="shell.yaml"></testcase>
    <testcase name="a bell � rings" classname="shell.yaml">
      <failure message="require_approval, want deny" type="policy">decided require_approval by rule writes ask first</failure>
    </testcase>
    <system-out>rules that no case reached: never</system-out>
  </testsuite>
  <testsuite name="none" tests="0" failures="0" errors="0" skipped="0"></testsuite>
</testsuites>
`, out.String())
	require.NoError(t, xml.Unmarshal(out.Bytes(), new(struct{})))
}

func TestReplay(t *testing.T) {
	t.Parallel()
	step := func(target, decision, rule, reason string) policytest.Step {
		return policytest.Step{
			ExecutionID: "x", AgentID: "coder", Seq: 7, StepID: "s", Kind: "tool_call", Target: target,
			Args: json.RawMessage(`{"a":1.0}`), Decision: decision, RuleID: rule, Reason: reason, Time: time.Unix(1, 0),
		}
	}
	got, err := policytest.Replay(t.Context(), engine, []policytest.Step{
		step("read", "allow", "permissive", ""),     // another rule, the same decision
		step("write", "allow", "permissive", ""),    // it would have been asked for
		step("loop", "allow", "permissive", ""),     // the policy cannot decide it
		step("read", "require_approval", "ask", ""), // an approval is no longer needed
		step("read", "", "", ""),
		step("read", "require_approval", "fork-effect", ""),
		step("read", "deny", "indeterminate-retry", ""),
		step("read", "deny", "bundle-error", "timed out"),
		step("read", "deny", "reads", "rate_limit_exceeded"),
		step("read", "deny", "reads", "execution_token_budget_exceeded"),
		step("read", "", "reads", "rate_limit_exceeded"), // it counts as not asked for
		{Target: "write", Decision: "allow", Copied: true},
		{Target: "write", Decision: "allow", Copied: true, ForkPolicy: true},
		{Target: "write", Decision: "allow", ForkPolicy: true},
	})
	require.NoError(t, err)
	require.Equal(t, 4, got.Compared)
	require.Equal(t, 10, got.Skipped)
	require.Equal(t, map[policytest.Reason]int{
		policytest.Copied: 2, policytest.ForkPolicy: 1, policytest.Undecided: 1, policytest.Guard: 1,
		policytest.Retry: 1, policytest.PolicyFailed: 1, policytest.Limit: 3,
	}, got.SkippedBy)
	var differ [][4]string
	for _, d := range got.Differences {
		differ = append(differ, [4]string{d.RecordedDecision, d.RecordedRuleID, d.Decision, d.RuleID})
	}
	require.Equal(t, [][4]string{
		{"allow", "permissive", "require_approval", "writes"},
		{"allow", "permissive", "deny", "bundle-error"},
		{"require_approval", "ask", "allow", "reads"},
	}, differ)
	first, err := json.Marshal(got.Differences[0])
	require.NoError(t, err)
	require.JSONEq(t, `{"execution_id":"x","seq":7,"agent_id":"coder","step_id":"s","kind":"tool_call","target":"write","args":{"a":1.0},
		"recorded_decision":"allow","recorded_rule_id":"permissive","decision":"require_approval","rule_id":"writes","reason":"ask first"}`, string(first))
}

func TestAddComparisons(t *testing.T) {
	t.Parallel()
	sum := policytest.Comparison{}
	for range 2 {
		sum.Add(policytest.Comparison{
			Compared: 1, Skipped: 3, SkippedBy: map[policytest.Reason]int{policytest.Copied: 2, policytest.Limit: 1},
			Differences: []policytest.Difference{{Seq: 7}},
		})
	}
	require.Equal(t, policytest.Comparison{
		Compared: 2, Skipped: 6, SkippedBy: map[policytest.Reason]int{policytest.Copied: 4, policytest.Limit: 2},
		Differences: []policytest.Difference{{Seq: 7}, {Seq: 7}},
	}, sum)
}
