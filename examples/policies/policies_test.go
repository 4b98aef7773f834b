package policies_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/policy/policytest"
)

// test compiles a policy, changed by the replacements, and runs the cases beside it.
func test(t *testing.T, file string, replacements ...string) policytest.Report {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	changed := strings.NewReplacer(replacements...).Replace(string(data))
	require.Equal(t, len(replacements) > 0, changed != string(data), "the replacements change nothing")
	bundle, err := policy.Compile(t.Context(), []policy.Source{{Name: file, Data: []byte(changed)}}, policy.Options{})
	require.NoError(t, err)
	cases, err := policytest.ReadFile(policytest.Beside(file))
	require.NoError(t, err)
	report, err := policytest.Run(t.Context(), bundle, cases)
	require.NoError(t, err)
	return report
}

func TestExamples(t *testing.T) {
	t.Parallel()
	found, err := filepath.Glob("*.yaml")
	require.NoError(t, err)
	tested := 0
	for _, file := range found {
		if strings.HasSuffix(file, ".policytest.yaml") {
			continue
		}
		tested++
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			report := test(t, file)
			for _, r := range report.Cases {
				require.True(t, r.OK, "%s: %s", r.Name, r.Message)
			}
			require.Empty(t, report.UnreachedRules)
		})
	}
	require.Equal(t, 3, tested)
}

func TestABrokenRuleFailsItsCase(t *testing.T) {
	t.Parallel()
	report := test(t, "shell.yaml", `\b(rm|`, `\b(`)
	require.Positive(t, report.Failed)
	var failed policytest.Result
	for _, r := range report.Cases {
		if r.Name == "deleting is denied" {
			failed = r
		}
	}
	require.Equal(t, "require_approval, want deny", failed.Message)
	require.Equal(t, "ask-for-the-rest", failed.RuleID)
}
