package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/policy"
)

func warnings(t *testing.T, files ...policy.Source) []string {
	t.Helper()
	var texts []string
	for _, p := range compile(t, files...).Warnings() {
		texts = append(texts, p.String())
	}
	return texts
}

func TestWarningsOfRules(t *testing.T) {
	t.Parallel()
	const then = ", then: {decision: allow}}"
	for when, want := range map[string]string{
		"{step_kind: tool_call}":                         "",
		"{step_kind: tool}":                              `unknown step_kind "tool", so the rule never matches; known: tool_call, llm_call, local`,
		"{target: 'git_{push,pull}'}":                    `braces in target "git_{push,pull}" stand for themselves; name each in targets, or write \{ and \} for the characters`,
		"{targets: [x, '}']}":                            `braces in an item of targets "}" stand for themselves; name each in targets, or write \{ and \} for the characters`,
		`{target: '\{x\}[{}]'}`:                          "",
		"{target: shell, targets: [sh*]}":                "",
		"{target: shell, targets: [bash, zsh]}":          `no target matches both target and targets, so the rule never matches`,
		"{target: shell, targets: ['b*', 'she[a-k]l']}":  `no target matches both target and targets, so the rule never matches`,
		"{target: 'read_*', targets: [write_file]}":      `no target matches both target and targets, so the rule never matches`,
		"{target: 'read_*', targets: ['write_*', 'x*']}": `no target matches both target and targets, so the rule never matches`,
		"{target: 'read_*', targets: ['re*', 'x*']}":     "",
		"{target: '*_a', targets: ['*_b']}":              "", // nobody looks that deep
		"{agent_id: a, agent_ids: [b, c]}":               "agent_ids does not have the agent of agent_id, so the rule never matches",
		"{agent_id: a, agent_ids: [b, a]}":               "",
	} {
		got := warnings(t, file("p.yaml", "rules:\n  - {id: other"+then+"\n"))
		require.Empty(t, got)
		got = warnings(t, file("p.yaml", "rules:\n  - id: r\n    when: "+when+"\n    then: {decision: deny}\n  - {id: other"+then+"\n"))
		if want == "" {
			require.Empty(t, got, when)
			continue
		}
		require.Equal(t, []string{"p.yaml:3: rule r: " + want}, got, when)
	}
}

func TestWarningsOfRulesThatAreNeverReached(t *testing.T) {
	t.Parallel()
	rules := func(whens ...string) policy.Source {
		var b strings.Builder
		b.WriteString("rules:\n")
		for i, when := range whens {
			fmt.Fprintf(&b, "  - {id: r%d, when: %s, then: {decision: allow}}\n", i, when)
		}
		return file("p.yaml", b.String())
	}
	require.Empty(t, warnings(t, rules("{target: x}", "{step_kind: tool_call}", "{agent_id: a}", "{arguments: {x: {equals: 1}}}", "{target: '?*'}", "{}")))
	for _, all := range []string{"{}", "", "{target: '*'}", "{targets: [x, '**'], target: '*'}"} {
		require.Equal(t, []string{"p.yaml:3: rule r1: the rule is never reached: rule r0 on line 2 matches every step"},
			warnings(t, rules(all, "{target: x}")), all)
		require.Equal(t, []string{"p.yaml:4: rule r2: this rule and the 2 behind it are never reached: rule r1 on line 3 matches every step"},
			warnings(t, rules("{target: x}", all, "{target: y}", "{}", "{target: z}")), all)
	}
}

func TestWarningsOfRego(t *testing.T) {
	t.Parallel()
	const object = `; it must be an object such as {"decision": "deny"}, or the step is denied under bundle-error`
	for body, want := range map[string][]string{
		`decision := {"decision": "allow"}`:                   nil,
		`decision := x if { x := {"decision": "allow"} }`:     nil,
		`decision := input.target`:                            nil,
		`decision := object.union({}, {"decision": "allow"})`: nil,
		`decision.decision := "allow"`:                        nil,
		`decision := "allow"`:                                 {"p.rego:3: decision is a string" + object},
		`decision if input.target == "x"`:                     {"p.rego:3: decision is a boolean" + object},
		`decision contains "allow" if input.target == "x"`:    {"p.rego:3: decision is a set" + object},
		"default decision := \"deny\"\ndecision := {\"decision\": \"allow\"} if input.target == \"x\"":      {"p.rego:3: decision is a string" + object},
		"decision := {\"decision\": \"allow\"} if input.target == \"x\"\nelse := \"deny\" if input.session": {"p.rego:4: decision is a string" + object},
		`decision := ["allow"]`: {"p.rego:3: decision is an array" + object},
	} {
		require.Equal(t, want, warnings(t, file("p.rego", "package tine\n\n"+body)), body)
	}
	require.Equal(t, []string{"a.yaml:1: rule a: unknown step_kind \"x\", so the rule never matches; known: tool_call, llm_call, local", "p.rego:3: decision is a string" + object},
		warnings(t, file("p.rego", "package tine\n\ndecision := \"allow\""), file("a.yaml", "rules: [{id: a, when: {step_kind: x}, then: {decision: deny}}]")))
}
