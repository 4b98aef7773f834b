package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

// exactRules allows n tools by name.
func exactRules(n int) string {
	var b strings.Builder
	b.WriteString("rules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {id: r%d, when: {target: tool-%d}, then: {decision: allow}}\n", i, i)
	}
	return b.String()
}

// globRules allows n families of tools.
func globRules(n int) string {
	var b strings.Builder
	b.WriteString("rules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {id: r%d, when: {target: 'tool-%d/*'}, then: {decision: allow}}\n", i, i)
	}
	return b.String()
}

// argumentRules look at what a shell is to run.
func argumentRules(n int) string {
	var b strings.Builder
	b.WriteString("rules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {id: r%d, when: {target: shell, arguments: {command: {regex: '^tool-%d\\b'}}}, then: {decision: allow}}\n", i, i)
	}
	return b.String()
}

const regoAllow = `package tine

default decision := {"decision": "deny"}

decision := {"decision": "allow", "rule_id": "tools"} if startswith(input.target, "tool-")
`

// BenchmarkDecide takes decisions under policies of all kinds in turn, so that whatever else the
// machine does weighs on all of them. It reports the median of each in microseconds, and the
// ratios that matter.
func BenchmarkDecide(b *testing.B) {
	medians := map[string]time.Duration{}
	samples := map[string][]time.Duration{}
	type subject struct {
		name   string
		bundle *policy.Bundle
		input  policy.Input
	}
	var subjects []subject
	add := func(name, file, text, target, arguments string) {
		bundle, err := policy.Compile(b.Context(), []policy.Source{{Name: file, Data: []byte(text)}}, policy.Options{})
		require.NoError(b, err)
		input := policy.Input{StepKind: protocol.KindTool, Target: target, Arguments: []byte(arguments)}
		decision, err := bundle.Decide(b.Context(), input)
		require.NoError(b, err)
		require.Equal(b, policy.Allow, decision.Decision)
		subjects = append(subjects, subject{name, bundle, input})
	}
	arguments := `{"command":"tool-99 --all","dir":"/srv"}`
	for _, n := range []int{10, 100, 1000} {
		add(fmt.Sprintf("exact%d", n), "p.yaml", exactRules(n), fmt.Sprintf("tool-%d", n/2), arguments)
	}
	for _, n := range []int{10, 100} {
		add(fmt.Sprintf("glob%d", n), "p.yaml", globRules(n), fmt.Sprintf("tool-%d/run", n/2), arguments)
	}
	add("regex100", "p.yaml", argumentRules(100), "shell", arguments)
	add("rego", "p.rego", regoAllow, "tool-1", arguments)

	for b.Loop() {
		for _, s := range subjects {
			start := time.Now()
			if _, err := s.bundle.Decide(b.Context(), s.input); err != nil {
				b.Fatal(err)
			}
			samples[s.name] = append(samples[s.name], time.Since(start))
		}
	}
	for _, s := range subjects {
		slices.Sort(samples[s.name])
		medians[s.name] = samples[s.name][len(samples[s.name])/2]
		b.ReportMetric(float64(medians[s.name].Nanoseconds())/1000, s.name+"-µs")
	}
	b.ReportMetric(float64(medians["exact1000"])/float64(medians["exact10"]), "exact1000/exact10")
	b.ReportMetric(float64(medians["glob100"])/float64(medians["exact10"]), "glob100/exact10")
	b.ReportMetric(0, "ns/op") // a round over all policies says nothing
}

// BenchmarkCompile compiles rules of growing number.
func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		files := []policy.Source{{Name: "p.yaml", Data: []byte(exactRules(n))}}
		b.Run(fmt.Sprintf("exact%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := policy.Compile(b.Context(), files, policy.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
