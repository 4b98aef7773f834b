package policy_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/policy"
)

func TestReadFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	rules := write("policies/a.yaml", "default_action: deny")
	write("policies/b.rego", "package tine")
	for _, name := range []string{
		"a.policytest.yaml", "a.policytest.yml", "b_test.rego", "notes.md", ".hidden.yaml", "sub/c.yaml",
	} {
		write("policies/"+name, "x")
	}
	more := write("c.tar.gz", "archive")

	files, err := policy.ReadFiles(filepath.Join(dir, "policies"), more)
	require.NoError(t, err)
	require.Equal(t, []policy.Source{
		file("a.yaml", "default_action: deny"), file("b.rego", "package tine"), file("c.tar.gz", "archive"),
	}, files)

	empty, other, none := write("empty.yml", "\n"), write("x.json", "{}"), filepath.Join(dir, "none.yaml")
	nothing := filepath.Join(dir, "nothing")
	require.NoError(t, os.Mkdir(nothing, 0o700))
	big := filepath.Join(dir, "big.yaml")
	require.NoError(t, os.WriteFile(big, nil, 0o600))
	require.NoError(t, os.Truncate(big, 1<<30))
	for path, want := range map[string]string{
		none:    "policy " + none + ": no such file or directory",
		empty:   "policy " + empty + ": the file is empty",
		nothing: "policy " + nothing + ": the directory has no policy: no file that ends in .yaml, .yml, .rego or .tar.gz",
		other:   "policy " + other + ": the name must end in .yaml or .yml for rules, .rego for Rego, or .tar.gz for an OPA bundle",
		big:     "policy " + big + ": the file has 1073741824 bytes; at most",
	} {
		_, err := policy.ReadFiles(rules, path)
		require.ErrorContains(t, err, want)
	}
	_, err = policy.ReadFiles()
	require.EqualError(t, err, "policy: no files are named")
}
