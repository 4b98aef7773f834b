//go:build linux

package directory_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/directory"
)

// setup returns a driver with a root of its own.
func setup(t testing.TB) (d *directory.Driver, root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "root")
	makeRemovable(t, root)
	return open(t, root), root
}

// open returns a driver as another worker on the same host has it.
func open(t testing.TB, root string) *directory.Driver {
	t.Helper()
	d, err := directory.New(directory.Options{Root: root})
	require.NoError(t, err)
	return d
}

// makeRemovable lets TempDir remove directories that forbid it, as another user than
// root.
func makeRemovable(t testing.TB, root string) {
	t.Cleanup(func() {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				_ = os.Chmod(path, 0o700)
			}
			return nil
		})
	})
}

func owner(execution string) resources.Owner {
	return resources.Owner{ExecutionID: execution, RunID: "run", Key: "workspace"}
}

// request asks for a workspace of the execution, with a configuration or "".
func request(execution, config string) resources.CreateRequest {
	return resources.CreateRequest{Owner: owner(execution), Config: json.RawMessage(config)}
}

func create(t testing.TB, d *directory.Driver, req resources.CreateRequest) (*directory.Workspace, json.RawMessage) {
	t.Helper()
	w, binding, err := d.Create(t.Context(), req)
	require.NoError(t, err)
	return w, binding
}

func checkpoint(t testing.TB, d *directory.Driver, w *directory.Workspace) string {
	t.Helper()
	ref, err := d.Checkpoint(t.Context(), w)
	require.NoError(t, err)
	return ref
}

func fork(t testing.TB, d *directory.Driver, execution, ref string) *directory.Workspace {
	t.Helper()
	req := request(execution, "")
	req.Checkpoint = ref
	w, _ := create(t, d, req)
	return w
}

func write(t testing.TB, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

// list returns the workspace's files by path.
func list(t testing.TB, w *directory.Workspace) map[string]directory.Entry {
	t.Helper()
	entries, err := w.List()
	require.NoError(t, err)
	byPath := map[string]directory.Entry{}
	for _, entry := range entries {
		byPath[entry.Path] = entry
	}
	return byPath
}

// unfinished returns what builds that did not end left in a root.
func unfinished(t testing.TB, root string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "workspaces", "*", "*.partial"))
	require.NoError(t, err)
	temporary, err := filepath.Glob(filepath.Join(root, "store", "*", "tmp", "*"))
	require.NoError(t, err)
	return append(paths, temporary...)
}
