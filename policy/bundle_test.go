package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

func file(name, text string) policy.Source { return policy.Source{Name: name, Data: []byte(text)} }

func compile(t testing.TB, files ...policy.Source) *policy.Bundle {
	t.Helper()
	bundle, err := policy.Compile(t.Context(), files, policy.Options{})
	require.NoError(t, err)
	return bundle
}

// problems are those that keep files from compiling.
func problems(t testing.TB, opts policy.Options, files ...policy.Source) []string {
	t.Helper()
	_, err := policy.Compile(t.Context(), files, opts)
	var load *policy.LoadError
	require.ErrorAs(t, err, &load)
	texts := make([]string, len(load.Problems))
	for i, p := range load.Problems {
		texts[i] = p.String()
	}
	return texts
}

func tool(target, arguments string) policy.Input {
	return policy.Input{AgentID: "coder", StepKind: protocol.KindTool, Target: target, Arguments: json.RawMessage(arguments)}
}

func readCases(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, into))
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	var cases []struct {
		Name   string
		Policy string
		Steps  []struct{ Kind, Agent, Target, Args, Want string }
	}
	readCases(t, "decisions.yaml", &cases)
	steps := 0
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			bundle := compile(t, file("p.yaml", c.Policy))
			for _, step := range c.Steps {
				steps++
				in := tool(step.Target, step.Args)
				in.AgentID = step.Agent
				if step.Kind != "" {
					in.StepKind = step.Kind
				}
				d, err := bundle.Decide(t.Context(), in)
				require.NoError(t, err)
				got := strings.TrimSpace(d.Decision + " " + d.RuleID + " " + d.Reason)
				require.Equal(t, step.Want, got, "%+v", step)
				require.Equal(t, bundle.Digest(), d.PolicyDigest)
			}
		})
	}
	require.Greater(t, steps, 100)
}

func TestProblems(t *testing.T) {
	t.Parallel()
	var cases []struct {
		Name     string
		Policy   string
		Problems []string
	}
	readCases(t, "problems.yaml", &cases)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			require.Equal(t, c.Problems, problems(t, policy.Options{}, file("p.yaml", c.Policy)))
		})
	}
}

func TestEveryFieldOfARule(t *testing.T) {
	t.Parallel()
	bundle := compile(t, file("p.yml", `
rules:
  - id: ask
    when: {target: open_pr}
    then:
      decision: require_approval
      reason: people look at it
      approval_config: {approvers: [ann, bob], timeout: 1h30m, message: "Open it?"}
      rate_limit: {max_calls: 3, window: 1m, per_what: global, max_wait: 10s, on_limiter_error: deny}
  - id: spend
    when: {step_kind: llm_call}
    then:
      decision: allow
      approval_config: {approvers: []}
      budget: {max_tokens: 5000, scope: execution, on_exceed: require_approval}
  - id: none
    then: {decision: allow, rate_limit: {max_calls: 0, window: 1m}}
`))
	require.Equal(t, []policy.Rule{
		{ID: "ask", File: "p.yml", Line: 3}, {ID: "spend", File: "p.yml", Line: 10}, {ID: "none", File: "p.yml", Line: 16},
	}, bundle.Rules())

	d, err := bundle.Decide(t.Context(), tool("open_pr", ""))
	require.NoError(t, err)
	require.Equal(t, policy.Decision{
		Decision: policy.RequireApproval, RuleID: "ask", Reason: "people look at it", PolicyDigest: bundle.Digest(),
		Approval: &policy.ApprovalConfig{
			Approvers: []string{"ann", "bob"}, Timeout: policy.Duration(90 * time.Minute), Message: "Open it?",
		},
		RateLimit: &policy.RateLimit{
			MaxCalls: 3, Window: policy.Duration(time.Minute), PerWhat: "global",
			MaxWait: policy.Duration(10 * time.Second), OnLimiterError: policy.Deny,
		},
	}, d)

	d, err = bundle.Decide(t.Context(), policy.Input{StepKind: protocol.KindLLM})
	require.NoError(t, err)
	require.Equal(t, policy.Decision{
		Decision: policy.Allow, RuleID: "spend", PolicyDigest: bundle.Digest(),
		Approval: &policy.ApprovalConfig{},
		Budget:   &policy.Budget{MaxTokens: 5000, Scope: "execution", OnExceed: policy.RequireApproval},
	}, d)

	d, err = bundle.Decide(t.Context(), tool("x", ""))
	require.NoError(t, err)
	require.True(t, d.RateLimit.Unlimited())
}

func TestArgumentsThatAreNotJSON(t *testing.T) {
	t.Parallel()
	bundle := compile(t, file("p.yaml", `rules: [{id: a, when: {arguments: {x: {equals: 1}}}, then: {decision: allow}}]`))
	for _, arguments := range []string{"{", "[1", "x", `{"x":}`, strings.Repeat(`{"x":`, 20_000)} {
		d, err := bundle.Decide(t.Context(), tool("t", arguments))
		require.ErrorContains(t, err, "the arguments are not JSON")
		require.Equal(t, policy.Decision{
			Decision: policy.Deny, RuleID: protocol.RuleBundleError, Reason: err.Error(), PolicyDigest: bundle.Digest(),
		}, d)
	}
}

func TestNoDecisionAfterTheDeadline(t *testing.T) {
	t.Parallel()
	bundle := compile(t, file("p.yaml", "default_action: allow"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d, err := bundle.Decide(ctx, tool("t", ""))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, policy.Deny, d.Decision)
}

func TestABundleThatWasNotCompiledDenies(t *testing.T) {
	t.Parallel()
	d, err := new(policy.Bundle).Decide(t.Context(), tool("t", ""))
	require.Error(t, err)
	require.Equal(t, policy.Deny, d.Decision)
}

func TestCompileWithoutTime(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, f := range []policy.Source{file("p.yaml", "default_action: allow"), file("p.rego", regoAllow)} {
		_, err := policy.Compile(ctx, []policy.Source{f}, policy.Options{})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorAs(t, err, new(*policy.LoadError))
	}
}

func TestWhichFilesMakeAPolicy(t *testing.T) {
	t.Parallel()
	rules, rego := "default_action: deny", regoAllow
	for _, test := range []struct {
		files []policy.Source
		want  []string
	}{
		{nil, []string{"policy: there are no files"}},
		{
			[]policy.Source{file("a.yaml", rules), file("b.yml", rules)},
			[]string{"b.yml: a policy has one YAML file, and a.yaml is that; put all rules into one, since their order matters"},
		},
		{
			[]policy.Source{file("a.json", "{}"), file("a.rego", rego)},
			[]string{"a.json: the name must end in .yaml or .yml for rules, .rego for Rego, or .tar.gz for an OPA bundle"},
		},
		{
			[]policy.Source{file("a.policytest.yaml", rules), file("a_test.rego", rego)},
			[]string{
				"a.policytest.yaml: the file tests a policy; it is not part of one",
				"a_test.rego: the file tests a policy; it is not part of one",
			},
		},
		{
			[]policy.Source{file("a.tar.gz", ""), file("b.tar.gz", ""), file("a.rego", rego)},
			[]string{
				"b.tar.gz: a policy has one OPA bundle, and a.tar.gz is that",
				"a.rego: Rego goes into the OPA bundle a.tar.gz, not beside it",
			},
		},
		{
			[]policy.Source{file("a.rego", "package tine\nx := "), file("b.yaml", "rules: 5")},
			[]string{
				"b.yaml:1: rules must be a list",
				"a.rego:2: unexpected eof token",
				"a.rego:2: unexpected eof token: expected rule value term (e.g., x := <VALUE> { ... })",
			},
		},
	} {
		require.Equal(t, test.want, problems(t, policy.Options{}, test.files...))
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	rules, rego := file("a.yaml", "default_action: deny"), file("a.rego", regoAllow)
	digest := compile(t, rules, rego).Digest()
	require.Regexp(t, "^sha256:[0-9a-f]{64}$", digest)
	require.Equal(t, digest, compile(t, rego, rules).Digest(), "the order does not matter")
	rules.Name, rego.Name = "b.yml", "c.rego"
	require.Equal(t, digest, compile(t, rules, rego).Digest(), "names do not matter")
	require.NotEqual(t, digest, compile(t, rules).Digest())
	require.NotEqual(t, digest, compile(t, rego).Digest())
	rules.Data = append(rules.Data, '\n')
	require.NotEqual(t, digest, compile(t, rules, rego).Digest())

	named, unrestricted := compile(t, rules).Describe("anyone")
	require.Equal(t, compile(t, rules).Digest(), named)
	require.False(t, unrestricted)
}

func TestRulesTooBigToCompile(t *testing.T) {
	t.Parallel()
	five := exactRules(70_000)
	require.Greater(t, len(five), 4_500_000)
	require.Equal(t,
		[]string{fmt.Sprintf("p.yaml: the file has %d bytes; at most 1048576 are allowed", len(five))},
		problems(t, policy.Options{}, file("p.yaml", five)))

	// Ten lists of ten aliases each, and so on, would have 10^8 items.
	var bomb strings.Builder
	bomb.WriteString("x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n")
	for i := range 7 {
		fmt.Fprintf(&bomb, "x%d: &x%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i), 10), ", "))
	}
	bomb.WriteString("rules: *x7\n")
	require.NotEmpty(t, problems(t, policy.Options{}, file("p.yaml", bomb.String())))

	targets := "[" + strings.Repeat("a, ", 5000) + "a]"
	rule := "{id: r, when: {targets: &t " + targets + "}, then: {decision: allow}}"
	blown := "rules:\n  - &r " + rule + "\n" + strings.Repeat("  - *r\n", 5000)
	got := problems(t, policy.Options{}, file("p.yaml", blown))
	require.Contains(t, strings.Join(got, "\n"), "with its aliases written out the file has more than 1048576 values")

	var errors strings.Builder
	errors.WriteString("rules:\n")
	for i := range 5000 {
		fmt.Fprintf(&errors, "  - {id: r%d}\n", i)
	}
	got = problems(t, policy.Options{}, file("p.yaml", errors.String()))
	require.Len(t, got, 1001)
	require.Contains(t, got[1000], "from here on there are more problems than 1000")

	var regexes strings.Builder
	regexes.WriteString("rules:\n")
	for i := range 2000 {
		fmt.Fprintf(&regexes, "  - {id: r%d, when: {arguments: {x: {regex: '.{1000}%d'}}}, then: {decision: allow}}\n", i, i)
	}
	got = problems(t, policy.Options{}, file("p.yaml", regexes.String()))
	require.Len(t, got, 1)
	require.Contains(t, got[0], "the regular expressions up to here are too big together")
}

func TestLoadErrorShowsTheFirstProblems(t *testing.T) {
	t.Parallel()
	text := "rules:\n" + strings.Repeat("  - {id: '', then: {decision: allow}}\n", 30)
	_, err := policy.Compile(t.Context(), []policy.Source{file("p.yaml", text)}, policy.Options{})
	require.ErrorContains(t, err, "the policy cannot be used:\n  p.yaml:2: id is empty\n  p.yaml:3: id is empty\n")
	require.ErrorContains(t, err, "\n  p.yaml:21: id is empty\n  and 10 more")
}

func TestDecideConcurrently(t *testing.T) {
	t.Parallel()
	bundle := compile(t, file("p.yaml", argumentRules(50)+"  - {id: g, when: {target: 'g*'}, then: {decision: allow}}\n"),
		file("p.rego", "package tine\n\ndecision := {\"decision\": \"allow\"}"))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 100 {
				n := (i + j) % 50
				d, err := bundle.Decide(t.Context(), tool("shell", fmt.Sprintf(`{"command":"tool-%d x"}`, n)))
				if err != nil || d.RuleID != fmt.Sprintf("r%d", n) {
					t.Errorf("%v %v", d, err)
					return
				}
			}
		})
	}
	group.Wait()
}

func FuzzRules(f *testing.F) {
	f.Add("rules: [{id: a, when: {target: 'x*', arguments: {x.y: {regex: a, one_of: [1]}}}, then: {decision: allow}}]", `{"x":{"y":1}}`)
	f.Add("<<: &x {rules: *x}", `[]`)
	f.Add("rules: &r [{id: *r}]", `"\u0061"`)
	f.Add("default_action: deny\n---\n", `{"x":["\ud800"]}`)
	f.Fuzz(func(t *testing.T, text, arguments string) {
		bundle, err := policy.Compile(t.Context(), []policy.Source{file("p.yaml", text)}, policy.Options{})
		if err != nil {
			require.ErrorAs(t, err, new(*policy.LoadError))
			return
		}
		if _, err := bundle.Decide(t.Context(), tool("xyz", arguments)); err != nil {
			require.False(t, json.Valid([]byte(arguments)), "%v", err)
		}
	})
}
