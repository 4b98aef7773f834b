//go:build linux

package directory_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources/directory"
)

func TestWorkspaceFiles(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	w, _ := create(t, d, request("a", ""))

	require.NoError(t, w.WriteFile("a/b/file", []byte("one"), 0o640))
	require.NoError(t, w.AppendFile("a/b/file", []byte(" two"), 0o600))
	data, err := w.ReadFile("./a//b/../b/file")
	require.NoError(t, err)
	require.Equal(t, "one two", string(data))
	require.NoError(t, w.WriteFile("a/b/file", []byte("new"), 0o600))
	require.NoError(t, w.AppendFile("log/made-by-append", []byte("x"), 0o644))
	require.NoError(t, os.Symlink("a/b/file", filepath.Join(w.Path(), "link")))
	data, err = w.ReadFile("link")
	require.NoError(t, err)
	require.Equal(t, "new", string(data))

	entries, err := w.List()
	require.NoError(t, err)
	sum := func(text string) string {
		digest := sha256.Sum256([]byte(text))
		return hex.EncodeToString(digest[:])
	}
	require.Equal(t, []directory.Entry{
		{Path: "a/b/file", Mode: "-rw-r-----", Size: 3, SHA256: sum("new")},
		{Path: "link", Mode: "Lrwxrwxrwx", Size: 8, Link: "a/b/file"},
		{Path: "log/made-by-append", Mode: "-rw-r--r--", Size: 1, SHA256: sum("x")},
	}, entries)
	text, err := json.Marshal(entries[1])
	require.NoError(t, err)
	require.JSONEq(t, `{"path":"link","mode":"Lrwxrwxrwx","size":8,"link":"a/b/file"}`, string(text))

	require.NoError(t, w.Remove("link"))
	require.NoError(t, w.Remove("a"))
	require.NoDirExists(t, filepath.Join(w.Path(), "a"))
	require.ErrorIs(t, w.Remove("a"), fs.ErrNotExist)
	_, err = w.ReadFile("missing")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.EqualError(t, err, `read "missing": no such file or directory`)
}

func TestWorkspaceEscapes(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	w, _ := create(t, d, request("a", ""))
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), "secret")
	for name, target := range map[string]string{
		"absolute": outside, "relative": "../..", "file": filepath.Join(outside, "secret"), "dangling": filepath.Join(outside, "new"),
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(w.Path(), name)))
	}
	require.NoError(t, w.WriteFile("inside", []byte("x"), 0o644))

	for _, path := range []string{
		"", "..", "../x", "a/../../x", "/etc/passwd", filepath.Join(w.Path(), "inside"),
		"absolute/secret", "absolute/new", "relative/owner.json", "file", "dangling",
	} {
		_, err := w.ReadFile(path)
		requireRefused(t, err, path, root, outside)
		requireRefused(t, w.WriteFile(path, []byte("pwned"), 0o644), path, root, outside)
		requireRefused(t, w.AppendFile(path, []byte("pwned"), 0o644), path, root, outside)
	}
	for _, path := range []string{"", ".", "..", "../x", "/etc", "absolute/secret"} {
		requireRefused(t, w.Remove(path), path, root, outside)
	}
	data, err := os.ReadFile(filepath.Join(outside, "secret"))
	require.NoError(t, err)
	require.Equal(t, "secret", string(data))
	require.NoFileExists(t, filepath.Join(outside, "new"))
	require.Len(t, list(t, w), 5)

	// A symlink itself is inside.
	require.NoError(t, w.Remove("absolute"))
	require.FileExists(t, filepath.Join(outside, "secret"))
}

// requireRefused also checks that the error tells the path and not where the host
// keeps things, unless the path does.
func requireRefused(t *testing.T, err error, path string, hostPaths ...string) {
	t.Helper()
	require.Error(t, err, "%q", path)
	require.Contains(t, err.Error(), path)
	if filepath.IsAbs(path) {
		return
	}
	for _, hostPath := range hostPaths {
		require.NotContains(t, err.Error(), hostPath)
	}
}

func TestWorkspaceReplacedBySymlink(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	w, binding := create(t, d, request("a", ""))
	outside := t.TempDir()
	require.NoError(t, os.Remove(w.Path()))
	require.NoError(t, os.Symlink(outside, w.Path()))
	_, err := d.Open(t.Context(), binding)
	require.ErrorContains(t, err, "no directory")
	require.ErrorContains(t, w.WriteFile("x", nil, 0o644), "no directory")
	_, err = d.Checkpoint(t.Context(), w)
	require.ErrorContains(t, err, "no directory")
	_, _, err = d.Create(t.Context(), request("a", ""))
	require.ErrorContains(t, err, "no directory")
}

func TestWorkspaceSpecialFiles(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	w, _ := create(t, d, request("a", ""))
	require.NoError(t, syscall.Mkfifo(filepath.Join(w.Path(), "pipe"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(w.Path(), "dir"), 0o755))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := w.ReadFile("pipe")
		require.Error(t, err)
		require.Error(t, w.WriteFile("pipe", []byte("x"), 0o644))
		_, err = w.ReadFile("dir")
		require.ErrorIs(t, err, syscall.EISDIR)
		require.Error(t, w.WriteFile("dir", nil, 0o644))
		require.Error(t, w.WriteFile("pipe/below", nil, 0o644))
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("a file operation waits for a FIFO")
	}
	require.Equal(t, directory.Entry{Path: "pipe", Mode: "prw-------"}, list(t, w)["pipe"])
}

func TestListNamesOfAnyBytes(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	w, _ := create(t, d, request("a", ""))
	for _, name := range []string{"\xff/\xfe", "new\nline", "z", "A"} {
		require.NoError(t, w.WriteFile(name, []byte(name), 0o644))
	}
	entries, err := w.List()
	require.NoError(t, err)
	var paths []string
	for _, entry := range entries {
		paths = append(paths, entry.Path)
	}
	require.Equal(t, []string{"A", "new\nline", "z", "\xff/\xfe"}, paths)
	data, err := w.ReadFile("\xff/\xfe")
	require.NoError(t, err)
	require.Equal(t, "\xff/\xfe", string(data))
}
