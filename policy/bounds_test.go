package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

// long is a text of n bytes, in characters of two.
func long(n int) string { return strings.Repeat("é", n/2) + strings.Repeat("e", n%2) }

// people are n approvers, all with the name given.
func people(n int, name string) string {
	return `"` + strings.Join(strings.Split(strings.Repeat(name+"|", n-1)+name, "|"), `", "`) + `"`
}

func TestTextsOfRulesAreBounded(t *testing.T) {
	t.Parallel()
	const rule = "rules: [{id: %s, then: {decision: require_approval, reason: %s, approval_config: {message: %s, approvers: [%s]}}}]"
	most := fmt.Sprintf(rule, long(128), long(1000), long(1000), people(50, long(256)))
	compile(t, file("p.yaml", most))

	for text, want := range map[string]string{
		fmt.Sprintf(rule, "a", long(1001), "m", "ann"):         "p.yaml:1: rule a: reason has 1001 bytes; at most 1000 are allowed",
		fmt.Sprintf(rule, "a", "r", long(1001), "ann"):         "p.yaml:1: rule a: message has 1001 bytes; at most 1000 are allowed",
		fmt.Sprintf(rule, "a", "r", "m", people(51, "ann")):    "p.yaml:1: rule a: approvers has 51 names; at most 50 are allowed",
		fmt.Sprintf(rule, "a", "r", "m", people(1, long(257))): "p.yaml:1: rule a: an item of approvers has 257 bytes; at most 256 are allowed",
		fmt.Sprintf(rule, long(129), "r", "m", "ann"):          "p.yaml:1: id has 129 bytes; at most 128 are allowed",
		fmt.Sprintf(rule, `"a\nb"`, "r", "m", "ann"):           `p.yaml:1: the id "a\nb" has line breaks or control characters; neither is allowed`,
		fmt.Sprintf(rule, `"a\x1b[2J"`, "r", "m", "ann"):       `p.yaml:1: the id "a\x1b[2J" has line breaks or control characters; neither is allowed`,
		fmt.Sprintf(rule, `"a\u2028b"`, "r", "m", "ann"):       `p.yaml:1: the id "a\u2028b" has line breaks or control characters; neither is allowed`,
		fmt.Sprintf(rule, "rego", "r", "m", "ann"):             "p.yaml:1: rule rego: the id rego is reserved; not allowed: default, local, permissive, bundle-error, fork-effect, indeterminate-retry, rego",
	} {
		require.Equal(t, []string{want}, problems(t, policy.Options{}, file("p.yaml", text)))
	}
}

func TestTextsOfRegoAreBounded(t *testing.T) {
	t.Parallel()
	decide := func(fields string) (policy.Decision, error) {
		bundle := compile(t, file("p.rego", "package tine\n\ndecision := {\"decision\": \"require_approval\", "+fields+"}"))
		return bundle.Decide(t.Context(), tool("t", ""))
	}
	fill := func(id, reason, message, approvers string) string {
		return fmt.Sprintf(`"rule_id": "%s", "reason": "%s", "approval": {"message": "%s", "approvers": [%s]}`, id, reason, message, approvers)
	}

	d, err := decide(fill(long(128), long(1000), long(1000), people(50, long(256))))
	require.NoError(t, err)
	require.Equal(t, long(1000), d.Reason)
	require.Equal(t, long(1000), d.Approval.Message)
	require.Len(t, d.Approval.Approvers, 50)

	d, err = decide(fill("rego", long(100_000), long(1001), `"ann"`))
	require.NoError(t, err)
	require.Equal(t, long(1000)+"…", d.Reason)
	require.Equal(t, long(1000)+"…", d.Approval.Message)
	require.Equal(t, "rego", d.RuleID, "its own name for itself")

	for fields, want := range map[string]string{
		fill(long(129), "r", "m", `"ann"`):        "rule_id has 129 bytes; at most 128 are allowed",
		fill(`a\nb`, "r", "m", `"ann"`):           `the rule_id "a\nb" has line breaks or control characters; neither is allowed`,
		fill("a", "r", "m", people(51, "ann")):    "approvers has 51 names; at most 50 are allowed",
		fill("a", "r", "m", people(1, long(257))): "an item of approvers has 257 bytes; at most 256 are allowed",
	} {
		d, err := decide(fields)
		require.ErrorContains(t, err, "data.tine.decision is not a decision: "+want)
		require.Equal(t, protocol.RuleBundleError, d.RuleID)
		require.Equal(t, policy.Deny, d.Decision)
	}
}

// TestErrorsOfRegoAreBounded is about documents and functions that quote what they are given.
func TestErrorsOfRegoAreBounded(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`decision := {sprintf("%d-%s", [i, input.arguments.x]): 1 | some i in numbers.range(1, 500)}`,
		`decision := {"decision": "allow", "reason": regex.replace("x", sprintf("(%s", [input.arguments.x]), "y")}`,
		`decision := {"decision": "allow", "rule_id": [i | some i in numbers.range(1, 500)]}`,
		`decision := {k: 1 | some i in numbers.range(1, 2000); k := sprintf("k%d", [i])}`,
	} {
		bundle := compile(t, file("p.rego", "package tine\n\n"+body))
		d, err := bundle.Decide(t.Context(), tool("t", `{"x":"`+long(50_000)+`"}`))
		require.Error(t, err, body)
		require.LessOrEqual(t, len(d.Reason), 1000+len("…"), body)
	}
}
