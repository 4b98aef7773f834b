package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tinerun/tine/internal/protocol"
)

// TestFirstMatchWhateverTheIndexDoes compares OPA with a loop over the rules.
func TestFirstMatchWhateverTheIndexDoes(t *testing.T) {
	t.Parallel()
	words := []string{"a", "b", "ab", "a/b"}
	patterns := append([]string{"*", "a*", "?", "[^a]", "*/b"}, words...)
	some := func(t *rapid.T, label string, from []string) []string {
		return rapid.SliceOfN(rapid.SampledFrom(from), 1, 3).Draw(t, label)
	}
	rapid.Check(t, func(t *rapid.T) {
		var file strings.Builder
		file.WriteString("default_action: allow\nrules:\n")
		write := func(format string, args ...any) {
			if rapid.IntRange(0, 2).Draw(t, "there") == 0 {
				fmt.Fprintf(&file, format, args...)
			}
		}
		list := func(words []string) string {
			text, err := json.Marshal(words)
			require.NoError(t, err)
			return string(text)
		}
		for i := range rapid.IntRange(1, 12).Draw(t, "rules") {
			fmt.Fprintf(&file, "- {id: r%d, then: {decision: allow}, when: {", i)
			write("target: %q, ", rapid.SampledFrom(patterns).Draw(t, "target"))
			write("targets: %s, ", list(some(t, "targets", patterns)))
			write("agent_id: %s, ", rapid.SampledFrom(words).Draw(t, "agent"))
			write("agent_ids: %s, ", list(some(t, "agents", words)))
			write("step_kind: %s, ", rapid.SampledFrom([]string{protocol.KindTool, protocol.KindLLM}).Draw(t, "kind"))
			predicates := rapid.SampledFrom([]string{
				"equals: a", "one_of: [a, b]", "contains: a", "regex: '^a'", "equals: a, contains: b", "one_of: [a, ab], regex: b",
			})
			write("arguments: {%s: {%s}}, ", rapid.SampledFrom([]string{"x", "y.z"}).Draw(t, "path"), predicates.Draw(t, "predicates"))
			file.WriteString("}}\n")
		}
		source := Source{Name: "p.yaml", Data: []byte(file.String())}
		bundle, err := Compile(t.Context(), []Source{source}, Options{})
		require.NoError(t, err, file.String())
		for range 8 {
			in := Input{
				Target:   rapid.SampledFrom(words).Draw(t, "in target"),
				AgentID:  rapid.SampledFrom(words).Draw(t, "in agent"),
				StepKind: rapid.SampledFrom([]string{protocol.KindTool, protocol.KindLLM}).Draw(t, "in kind"),
				Arguments: json.RawMessage(rapid.SampledFrom([]string{
					`{}`, `null`, `{"x":"a"}`, `{"x":"ab"}`, `{"x":["b"]}`, `{"y":{"z":"a"}}`, `{"x":"b","y":{"z":"ab"}}`, `{"y.z":"b"}`,
				}).Draw(t, "in arguments")),
			}
			d, err := bundle.Decide(t.Context(), in)
			require.NoError(t, err)
			require.Equal(t, naiveRule(t, bundle.rules.set, in), d.RuleID, "%s\n%+v", file.String(), in)
		}
	})
}

func naiveRule(t require.TestingT, set ruleset, in Input) string {
	arguments, err := readObject(in.Arguments)
	require.NoError(t, err)
	for _, rule := range set.rules {
		if naiveMatch(t, rule.when, in, arguments) {
			return rule.ID
		}
	}
	return protocol.RuleDefault
}

func naiveMatch(t require.TestingT, when conditions, in Input, arguments object) bool {
	if when.kind != "" && when.kind != in.StepKind {
		return false
	}
	for _, targets := range when.targets {
		if !slices.ContainsFunc(targets, func(one target) bool { return one.glob.matches(in.Target) }) {
			return false
		}
	}
	for _, agents := range when.agents {
		if !slices.Contains(agents, in.AgentID) {
			return false
		}
	}
	for _, a := range when.arguments {
		value, ok := arguments.find(a.path)
		if !ok {
			return false
		}
		text, err := argumentText(value)
		require.NoError(t, err)
		if a.equals != nil && text != *a.equals || a.oneOf != nil && !slices.Contains(a.oneOf, text) ||
			!strings.Contains(text, a.contains) || a.regex != nil && !a.regex.MatchString(text) {
			return false
		}
	}
	return true
}
