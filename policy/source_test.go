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
	more := write("c.tar.gz", "archive")

	files, err := policy.ReadFiles(rules, more)
	require.NoError(t, err)
	require.Equal(t, []policy.Source{file("a.yaml", "default_action: deny"), file("c.tar.gz", "archive")}, files)

	empty, other, none := write("empty.yml", "\n"), write("x.json", "{}"), filepath.Join(dir, "none.yaml")
	directory := filepath.Join(dir, "policies")
	big := filepath.Join(dir, "big.yaml")
	require.NoError(t, os.WriteFile(big, nil, 0o600))
	require.NoError(t, os.Truncate(big, 1<<30))
	for path, want := range map[string]string{
		none:      "policy " + none + ": no such file or directory",
		empty:     "policy " + empty + ": the file is empty",
		directory: "policy " + directory + ": a directory has the policies of several agents; read the files of one",
		other:     "policy " + other + ": the name must end in .yaml or .yml for rules, .rego for Rego, or .tar.gz for an OPA bundle",
		big:       "policy " + big + ": the file has 1073741824 bytes; at most",
	} {
		_, err := policy.ReadFiles(rules, path)
		require.ErrorContains(t, err, want)
	}
	_, err = policy.ReadFiles()
	require.EqualError(t, err, "policy: no files are named")
}

func TestFilesOfAnAgentInADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{
		"coder.yaml", "coder.rego", "coder_test.rego", "coder.policytest.yaml", "team%2Fcoder.yml", ".writer.yaml", "notes.md",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "writer.yaml"), 0o700))
	of := func(agent string) (names []string) {
		files, err := policy.FilesOf(dir, agent)
		require.NoError(t, err)
		for _, file := range files {
			require.Equal(t, dir, filepath.Dir(file))
			names = append(names, filepath.Base(file))
		}
		return names
	}
	require.Equal(t, []string{"coder.rego", "coder.yaml"}, of("coder"))
	require.Equal(t, []string{"team%2Fcoder.yml"}, of("team/coder"))
	require.Empty(t, of("writer"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "default.yaml"), []byte("x"), 0o600))
	require.Equal(t, []string{"default.yaml"}, of("writer"))
	require.Equal(t, []string{"coder.rego", "coder.yaml"}, of("coder"))

	_, err := policy.FilesOf(filepath.Join(dir, "nowhere"), "coder")
	require.ErrorIs(t, err, os.ErrNotExist)
}
