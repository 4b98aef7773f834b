package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

func TestRego(t *testing.T) {
	t.Parallel()
	bundle := compile(t, file("policy.rego", `package tine

import data.tools

default decision := {"decision": "deny", "reason": "not listed", "rule_id": "nothing"}

decision := {"decision": "allow"} if input.target in tools.harmless

decision := {
	"decision": "require_approval",
	"rule_id": "pr",
	"reason": sprintf("%s by %s", [input.target, input.agent_id]),
	"approval": {"approvers": ["ann"], "timeout": "1h", "message": "ok?"},
	"rate_limit": {"max_calls": 2, "window": "1m", "per_what": "agent", "max_wait": "5s", "on_limiter_error": "deny"},
	"budget": {"max_tokens": 100, "scope": "execution", "on_exceed": "deny"},
} if input.target == "open_pr"
`), file("tools.rego", "package tools\n\nharmless := {\"ls\", \"cat\"}\n"))
	require.Empty(t, bundle.Rules())

	for target, want := range map[string]policy.Decision{
		"ls": {Decision: policy.Allow, RuleID: "rego"},
		"rm": {Decision: policy.Deny, RuleID: "nothing", Reason: "not listed"},
		"open_pr": {
			Decision: policy.RequireApproval, RuleID: "pr", Reason: "open_pr by coder",
			Approval: &policy.ApprovalConfig{Approvers: []string{"ann"}, Timeout: policy.Duration(time.Hour), Message: "ok?"},
			RateLimit: &policy.RateLimit{
				MaxCalls: 2, Window: policy.Duration(time.Minute), PerWhat: "agent",
				MaxWait: policy.Duration(5 * time.Second), OnLimiterError: policy.Deny,
			},
			Budget: &policy.Budget{MaxTokens: 100, Scope: "execution", OnExceed: policy.Deny},
		},
	} {
		d, err := bundle.Decide(t.Context(), tool(target, ""))
		require.NoError(t, err)
		want.PolicyDigest = bundle.Digest()
		require.Equal(t, want, d)
	}
}

func TestRegoInput(t *testing.T) {
	t.Parallel()
	bundle := compile(t, file("policy.rego", "package tine\n\ndecision := {\"decision\": \"allow\", \"reason\": json.marshal(input)}"))
	d, err := bundle.Decide(t.Context(), policy.Input{
		ExecutionID: "e", AgentID: "a", StepID: "s", StepKind: protocol.KindTool, Target: "t",
		Arguments:   json.RawMessage(`{"big":12345678901234567890,"small":1.10,"html":"<&>"}`),
		Idempotency: protocol.AtMostOnce, Resources: []string{"r"}, Session: "x", ForkedFrom: "f",
		Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	})
	require.NoError(t, err)
	require.JSONEq(t, `{
		"execution_id": "e", "agent_id": "a", "step_id": "s", "step_kind": "tool_call", "target": "t",
		"arguments": {"big": 12345678901234567890, "small": 1.10, "html": "<&>"},
		"idempotency": "at_most_once", "resources": ["r"], "session": "x", "forked_from": "f",
		"time": "2026-01-02T03:04:05.000000006Z"
	}`, d.Reason)
	require.Contains(t, d.Reason, "12345678901234567890")

	d, err = bundle.Decide(t.Context(), policy.Input{})
	require.NoError(t, err)
	require.JSONEq(t, `{
		"execution_id": "", "agent_id": "", "step_id": "", "step_kind": "", "target": "", "idempotency": "",
		"time": "0001-01-01T00:00:00Z"
	}`, d.Reason)

	d, err = bundle.Decide(t.Context(), tool("t", "{"))
	require.ErrorContains(t, err, "the input of the policy")
	require.Equal(t, policy.Deny, d.Decision)
}

func TestRegoDecisionOfTheWrongShape(t *testing.T) {
	t.Parallel()
	const wrong = "data.tine.decision is not a decision: "
	for document, want := range map[string]string{
		`"allow"`:   wrong + "data.tine.decision must be a mapping",
		`true`:      wrong + "data.tine.decision must be a mapping",
		`null`:      wrong + "data.tine.decision must be a mapping",
		`["allow"]`: wrong + "data.tine.decision must be a mapping",
		`{}`:        wrong + "there is no decision; allowed: allow, deny, require_approval",
		`{"decision": "yes"}`: wrong +
			`unknown decision "yes"; allowed: allow, deny, require_approval`,
		`{"decision": true}`: wrong + "decision must be a text",
		`{"decision": "allow", "Reason": ""}`: wrong +
			`unknown key "Reason" in data.tine.decision; allowed: decision, rule_id, reason, approval, rate_limit, budget`,
		`{"decision": "allow", "reason": 5}`:                                    wrong + "reason must be a text",
		`{"decision": "allow", "rule_id": ""}`:                                  wrong + "rule_id is empty",
		`{"decision": "allow", "rule_id": "permissive"}`:                        wrong + "the rule_id permissive is reserved",
		`{"decision": "allow", "approval": null}`:                               wrong + "approval must be a mapping",
		`{"decision": "allow", "approval": {"approvers": 1}}`:                   wrong + "approvers must be a list",
		`{"decision": "allow", "approval": {"timeout": 60}}`:                    wrong + "timeout must be a text",
		`{"decision": "allow", "approval": {"timeout": "0s"}}`:                  wrong + "timeout is 0s; it must be more than 0: leave it out for 15m",
		`{"decision": "allow", "rate_limit": {"max_calls": 1, "window": "0s"}}`: wrong + "window is 0s; it must be more than 0",
		`{"decision": "allow", "rate_limit": {}}`:                               wrong + "rate_limit has no max_calls",
		`{"decision": "allow", "budget": {"max_tokens": 1.5}}`:                  wrong + "max_tokens must be a whole number",
		`{"decision": "allow", "budget": {"max_tokens": -1}}`:                   wrong + "max_tokens is -1; it must be at least 1",
		`{"decision": "allow", "budget": {"max_tokens": 5, "on_exceed": "ask"}}`: wrong +
			`unknown on_exceed "ask"; allowed: deny, require_approval`,
	} {
		bundle := compile(t, file("p.rego", "package tine\n\ndecision := "+document))
		d, err := bundle.Decide(t.Context(), tool("t", ""))
		require.ErrorContains(t, err, want, document)
		require.Equal(t, policy.Decision{
			Decision: policy.Deny, RuleID: protocol.RuleBundleError, Reason: err.Error(), PolicyDigest: bundle.Digest(),
		}, d)
	}
}

func TestRegoThatDoesNotDecide(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`decision := {"decision": "allow"} if input.target == "other"`: "data.tine.decision is undefined for this step; give decision a default",
		// Undefined, it would only leave a rule out.
		`decision := {"decision": "allow"} if not contains(input.arguments.n, "x")`:              "p.rego:3: eval_type_error: contains: operand 1 must be string but got number",
		`decision := {"decision": "allow", "reason": sprintf("%d", [1 / input.arguments.zero])}`: "divide by zero",
		"decision := {\"decision\": \"allow\"}\ndecision := {\"decision\": \"deny\"} if true":    "rule data.tine.decision produced conflicting values",
	} {
		bundle := compile(t, file("p.rego", "package tine\n\n"+body))
		d, err := bundle.Decide(t.Context(), tool("t", `{"n":5,"zero":0}`))
		require.ErrorContains(t, err, want, body)
		require.Equal(t, protocol.RuleBundleError, d.RuleID)
	}
}

func TestRegoThatLoops(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`some i in numbers.range(1, 3000); some j in numbers.range(1, 3000); some k in numbers.range(1, 3000); i + j + k < 0`,
		`some i in numbers.range(1, 1000000000); i < 0`,
	} {
		bundle := compile(t, file("p.rego", "package tine\n\ndecision := {\"decision\": \"allow\"} if {"+body+"}"))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		d, err := bundle.Decide(ctx, tool("t", ""))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no decision in time")
		require.Equal(t, policy.Deny, d.Decision)
		require.Less(t, time.Since(start), 10*time.Second)
	}
}

func TestRegoProblems(t *testing.T) {
	t.Parallel()
	const refused = " is not allowed: it may give something else for the same step; not allowed: " +
		"crypto.x509.parse_and_verify_certificates, http.send, "
	const nothing = "p.rego: no rule defines data.tine.decision; write package tine and in it a rule named decision"
	for module, want := range map[string][]string{
		"":                               {"p.rego: empty module"},
		"# nothing":                      {"p.rego: empty module"},
		"package tine":                   {nothing},
		"package tine\n\ndecisions := 1": {nothing},
		"package other\n\ndecision := 1": {nothing},
		"package tine\n\ndecision := input.x.y(1)":                                            {"p.rego:3: undefined function input.x.y"},
		"package tine\n\ndecision := x":                                                       {"p.rego:3: var x is unsafe"},
		"package tine\n\ndecision = 1 { true }":                                               {"p.rego:3: `if` keyword is required before rule body"},
		"package tine\n\ndecision := http.send({\"method\": \"get\", \"url\": input.target})": {"p.rego:3: http.send" + refused},
		"package tine\n\ndecision := x if {\n\tx := time.now_ns()\n\tnet.lookup_ip_addr(\"a\") == {y | y := opa.runtime()}\n}": {
			"p.rego:4: time.now_ns" + refused, "p.rego:5: net.lookup_ip_addr" + refused, "p.rego:5: opa.runtime" + refused,
		},
		"package tine\n\ndecision := rand.intn(\"a\", 5)":                                           {"p.rego:3: rand.intn" + refused},
		"package tine\n\ndecision := uuid.rfc4122(\"a\")":                                           {"p.rego:3: uuid.rfc4122" + refused},
		"package tine\n\ndecision := json.match_schema(input, {\"$ref\": \"http://127.0.0.1:1/\"})": {"p.rego:3: json.match_schema" + refused},
		"package tine\n\ndecision := crypto.x509.parse_and_verify_certificates(input.target)":       {"p.rego:3: crypto.x509.parse_and_verify_certificates" + refused},
		"package tine\n\ndecision := " + strings.Repeat("[", 100_000):                               {"p.rego:3: max parsing recursion depth exceeded"},
		"package tine\n\ndecision := 0 if false\n" + strings.Repeat("else := 1 if input.x\n", 501): {
			"p.rego:3: decision has 501 else branches, which takes too long to compile; at most 500 are allowed",
		},
	} {
		got := problems(t, policy.Options{}, file("p.rego", module))
		require.NotEmpty(t, got, module)
		for i, text := range want {
			require.Less(t, i, len(got), "%s: %v", module, got)
			require.Contains(t, got[i], text)
		}
	}
	big := file("big.rego", "package big\n\n"+strings.Repeat("# nothing\n", 110_000))
	require.Equal(t, []string{"big.rego: the Rego of the policy has more than 1048576 bytes, which is the most allowed"},
		problems(t, policy.Options{}, file("p.rego", regoAllow), big))
}

func TestRegoMayPrint(t *testing.T) {
	t.Parallel()
	bundle := compile(t, file("p.rego", "package tine\n\ndecision := {\"decision\": \"allow\"} if print(\"x\")"))
	d, err := bundle.Decide(t.Context(), tool("t", ""))
	require.NoError(t, err)
	require.Equal(t, policy.Allow, d.Decision)
}

func TestTwoFilesOfOneName(t *testing.T) {
	t.Parallel()
	bundle := compile(t, file("p.rego", "package tine\n\ndecision := {\"decision\": data.lib.word}"), file("p.rego", "package lib\n\nword := \"allow\""))
	d, err := bundle.Decide(t.Context(), tool("t", ""))
	require.NoError(t, err)
	require.Equal(t, policy.Allow, d.Decision)
}

func TestRulesBesideRego(t *testing.T) {
	t.Parallel()
	rule := func(then string) string { return "{rules: [{id: yaml, then: {" + then + "}}]}" }
	const disjoint = "two policies require approval, and nobody is an approver of both"
	for _, test := range []struct {
		name, then, rego string
		want             string // the decision as JSON, without the digest
	}{
		{"both allow", "decision: allow, reason: fine", `{"decision": "allow"}`, `{"decision":"allow","rule_id":"yaml","reason":"fine"}`},
		{"rules deny", "decision: deny", `{"decision": "allow"}`, `{"decision":"deny","rule_id":"yaml","reason":"policy_denied"}`},
		{"Rego denies", "decision: allow", `{"decision": "deny"}`, `{"decision":"deny","rule_id":"rego","reason":"policy_denied"}`},
		{"both deny", "decision: deny, reason: a", `{"decision": "deny", "reason": "b"}`, `{"decision":"deny","rule_id":"yaml","reason":"a"}`},
		{"Rego denies what rules ask about", "decision: require_approval", `{"decision": "deny"}`, `{"decision":"deny","rule_id":"rego","reason":"policy_denied"}`},
		{"rules deny what Rego asks about", "decision: deny", `{"decision": "require_approval"}`, `{"decision":"deny","rule_id":"yaml","reason":"policy_denied"}`},
		{
			"Rego asks", "decision: allow", `{"decision": "require_approval", "reason": "r", "approval": {"approvers": ["a"]}}`,
			`{"decision":"require_approval","rule_id":"rego","reason":"r","approval":{"approvers":["a"]}}`,
		},
		{
			"rules ask", "decision: require_approval, approval_config: {approvers: [a]}", `{"decision": "allow", "reason": "r"}`,
			`{"decision":"require_approval","rule_id":"yaml","approval":{"approvers":["a"]}}`,
		},
		{
			"both ask", "decision: require_approval, approval_config: {approvers: [a, b, c], timeout: 1h, message: x}",
			`{"decision": "require_approval", "approval": {"approvers": ["c", "d", "b"], "timeout": "10m", "message": "y"}}`,
			`{"decision":"require_approval","rule_id":"yaml","approval":{"approvers":["b","c"],"timeout":"10m0s","message":"x\ny"}}`,
		},
		{
			"anyone for the rules", "decision: require_approval, approval_config: {timeout: 1m, message: x}",
			`{"decision": "require_approval", "approval": {"approvers": ["a"], "timeout": "10m", "message": "x"}}`,
			`{"decision":"require_approval","rule_id":"yaml","approval":{"approvers":["a"],"timeout":"1m0s","message":"x"}}`,
		},
		{
			"anyone for the Rego, and the usual timeout", "decision: require_approval, approval_config: {approvers: [a], timeout: 1h}",
			`{"decision": "require_approval"}`,
			`{"decision":"require_approval","rule_id":"yaml","approval":{"approvers":["a"]}}`,
		},
		{
			"the usual timeout of the rules", "decision: require_approval",
			`{"decision": "require_approval", "approval": {"timeout": "1h", "message": "y"}}`,
			`{"decision":"require_approval","rule_id":"yaml","approval":{"message":"y"}}`,
		},
		{"both ask, and say nothing", "decision: require_approval", `{"decision": "require_approval"}`, `{"decision":"require_approval","rule_id":"yaml"}`},
		{
			"nobody may approve both", "decision: require_approval, approval_config: {approvers: [a]}",
			`{"decision": "require_approval", "approval": {"approvers": ["b"]}}`,
			`{"decision":"deny","rule_id":"yaml","reason":"` + disjoint + `"}`,
		},
		{
			"limits of one stay its own", "decision: allow, reason: r",
			`{"decision": "allow", "rate_limit": {"max_calls": 1, "window": "1s"}, "budget": {"max_tokens": 5}}`,
			`{"decision":"allow","rule_id":"yaml","reason":"r","parts":[{"decision":"allow","rule_id":"yaml","reason":"r"},
			  {"decision":"allow","rule_id":"rego","rate_limit":{"max_calls":1,"window":"1s"},"budget":{"max_tokens":5}}]}`,
		},
		{
			"limits of both apply, each as its rule has it",
			"decision: allow, rate_limit: {max_calls: 90, window: 1m, per_what: global}, budget: {max_tokens: 5}",
			`{"decision": "require_approval", "rule_id": "ask", "rate_limit": {"max_calls": 2, "window": "1s"}}`,
			`{"decision":"require_approval","rule_id":"ask","parts":[
			  {"decision":"allow","rule_id":"yaml","rate_limit":{"max_calls":90,"window":"1m0s","per_what":"global"},"budget":{"max_tokens":5}},
			  {"decision":"require_approval","rule_id":"ask","rate_limit":{"max_calls":2,"window":"1s"}}]}`,
		},
		{
			"a limit that limits nothing", "decision: allow, rate_limit: {max_calls: 0, window: 1m}", `{"decision": "allow"}`,
			`{"decision":"allow","rule_id":"yaml"}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			bundle := compile(t, file("p.yaml", rule(test.then)), file("p.rego", "package tine\n\ndecision := "+test.rego))
			for range 2 { // combining must not change what it combines
				d, err := bundle.Decide(t.Context(), tool("t", ""))
				require.NoError(t, err)
				require.Equal(t, bundle.Digest(), d.PolicyDigest)
				d.PolicyDigest = ""
				for i := range d.Parts {
					require.Equal(t, bundle.Digest(), d.Parts[i].PolicyDigest)
					d.Parts[i].PolicyDigest = ""
				}
				got, err := json.Marshal(d)
				require.NoError(t, err)
				require.JSONEq(t, test.want, string(got))
			}
		})
	}
}

func TestLocalStepsBesideRego(t *testing.T) {
	t.Parallel()
	step := policy.Input{StepKind: protocol.KindLocal, Target: "now"}
	for rego, want := range map[string]string{"allow": "allow local", "deny": "deny rego"} {
		bundle := compile(t, file("p.yaml", "default_action: deny"), file("p.rego", fmt.Sprintf("package tine\n\ndecision := {\"decision\": %q}", rego)))
		d, err := bundle.Decide(t.Context(), step)
		require.NoError(t, err)
		require.Equal(t, want, d.Decision+" "+d.RuleID)
	}
}

func TestRegoThatFailsBesideRulesDenies(t *testing.T) {
	t.Parallel()
	bundle := compile(t, file("p.yaml", "default_action: allow"), file("p.rego", "package tine\n\ndecision := 5"))
	d, err := bundle.Decide(t.Context(), tool("t", ""))
	require.Error(t, err)
	require.Equal(t, protocol.RuleBundleError, d.RuleID)
}
