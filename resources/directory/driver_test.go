//go:build linux

package directory_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/resources/resourcetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	roots := sync.Map{}
	newDriver := func(t *testing.T) resources.Driver[*directory.Workspace] {
		d, root := setup(t)
		roots.Store(d, root)
		return d
	}
	resourcetest.Run(t, newDriver, resourcetest.Hooks[*directory.Workspace]{
		Write: func(_ context.Context, w *directory.Workspace, name, value string) error {
			return w.WriteFile(name, []byte(value), 0o644)
		},
		Read: func(_ context.Context, w *directory.Workspace, name string) (string, bool, error) {
			value, err := w.ReadFile(name)
			if errors.Is(err, fs.ErrNotExist) {
				return "", false, nil
			}
			return string(value), err == nil, err
		},
		UnknownBinding:    json.RawMessage(`{"workspace":"00112233445566778899aabbccddeeff"}`),
		MissingCheckpoint: "v1-" + strings.Repeat("0", 64),
		Reopen: func(t *testing.T, d resources.Driver[*directory.Workspace]) resources.Driver[*directory.Workspace] {
			root, _ := roots.Load(d)
			return open(t, root.(string))
		},
	})
}

func TestNew(t *testing.T) {
	t.Parallel()
	_, err := directory.New(directory.Options{})
	require.ErrorContains(t, err, "Options.Root")

	root := filepath.Join(t.TempDir(), "a/b/root")
	d := open(t, root)
	info, err := os.Stat(root)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
	require.Equal(t, "directory", d.ID())
	require.Regexp(t, regexp.MustCompile("^tine-host-[0-9a-f]{32}$"), d.Host())
	require.Equal(t, d.Host(), open(t, root).Host(), "the name belongs to the root, not to the worker")

	shared, err := directory.New(directory.Options{Root: root, Shared: true})
	require.NoError(t, err)
	require.Empty(t, shared.Host())
	other, _ := setup(t)
	require.NotEqual(t, d.Host(), other.Host())

	write(t, filepath.Join(root, "file"), "x")
	_, err = directory.New(directory.Options{Root: filepath.Join(root, "file")})
	require.Error(t, err)
	write(t, filepath.Join(root, "id"), "not an ID")
	_, err = directory.New(directory.Options{Root: root})
	require.ErrorContains(t, err, "restore it")
}

func TestNewAtOnce(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	var queues [16]string
	var workers sync.WaitGroup
	for i := range queues {
		workers.Go(func() {
			if d, err := directory.New(directory.Options{Root: root}); err == nil {
				queues[i] = d.Host()
			}
		})
	}
	workers.Wait()
	require.NotEmpty(t, queues[0])
	for _, queue := range queues {
		require.Equal(t, queues[0], queue)
	}
}

func TestInvalidConfig(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "x")
	inRoot := filepath.Dir(root)
	tests := []struct{ name, config, want string }{
		{"not JSON", `{`, "JSON object"},
		{"array", `[]`, "JSON object"},
		{"string", `"/srv"`, "JSON object"},
		{"unknown field", `{"tmplate":"/srv"}`, `unknown field "tmplate"`},
		{"fields are case sensitive", `{"Template":"/srv"}`, `unknown field "Template"`},
		{"template of wrong type", `{"template":1}`, "template must be a string"},
		{"template is null", `{"template":null}`, "template must be a string"},
		{"coverage_reuse of wrong type", `{"coverage_reuse":"yes"}`, "coverage_reuse must be true or false"},
		{"coverage_reuse is null", `{"coverage_reuse":null}`, "coverage_reuse must be true or false"},
		{"relative template", `{"template":"templates/go"}`, "not an absolute path"},
		{"empty template", `{"template":""}`, "not an absolute path"},
		{"missing template", `{"template":"/does/not/exist"}`, "template \"/does/not/exist\" does not exist"},
		{"template is a file", `{"template":"` + file + `"}`, "is not a directory"},
		{"template below a file", `{"template":"` + file + `/x"}`, "template"},
		{"template around the root", `{"template":"` + inRoot + `"}`, "contains the driver's root"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := d.Create(t.Context(), request(tt.name, tt.config))
			require.ErrorIs(t, err, resources.ErrInvalidConfig)
			require.ErrorContains(t, err, tt.want)
			require.Empty(t, unfinished(t, root))
		})
	}
}

func TestCoverageReuse(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	require.False(t, d.CoverageReuse(nil))
	require.False(t, d.CoverageReuse(json.RawMessage(`null`)))
	require.False(t, d.CoverageReuse(json.RawMessage(`{"coverage_reuse":false}`)))
	require.True(t, d.CoverageReuse(json.RawMessage(`{"coverage_reuse":true,"template":"/srv"}`)))
	require.False(t, d.CoverageReuse(json.RawMessage(`{"coverage_reuse":1}`)))
}

func TestCreateEmpty(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	for _, config := range []string{"", "null", "{}"} {
		w, _ := create(t, d, request("e"+config, config))
		require.Empty(t, list(t, w))
		require.True(t, filepath.IsAbs(w.Path()))
		require.DirExists(t, w.Path())
	}
	_, _, err := d.Create(t.Context(), resources.CreateRequest{})
	require.ErrorContains(t, err, "no owner")
}

func TestCreateFromTemplate(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	template := t.TempDir()
	write(t, filepath.Join(template, "sub/file"), "from the template")
	require.NoError(t, os.Chmod(filepath.Join(template, "sub/file"), 0o751))
	require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(template, "absolute")))
	require.NoError(t, os.Symlink("sub/file", filepath.Join(template, "relative")))
	require.NoError(t, os.Mkdir(filepath.Join(template, "empty"), 0o711))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(template, link))

	for name, path := range map[string]string{"directly": template, "through a symlink": link} {
		w, _ := create(t, d, request(name, `{"template":"`+path+`"}`))
		files := list(t, w)
		require.Len(t, files, 3)
		require.Equal(t, "/etc/hostname", files["absolute"].Link)
		require.Equal(t, "sub/file", files["relative"].Link)
		require.Equal(t, "-rwxr-x--x", files["sub/file"].Mode)
		require.DirExists(t, filepath.Join(w.Path(), "empty"))

		require.NoError(t, w.WriteFile("sub/file", []byte("changed"), 0o644))
		require.NoError(t, w.Remove("empty"))
		original, err := os.ReadFile(filepath.Join(template, "sub/file"))
		require.NoError(t, err)
		require.Equal(t, "from the template", string(original))
		require.DirExists(t, filepath.Join(template, "empty"))
	}

	// The template as it is now, not as it was.
	write(t, filepath.Join(template, "sub/file"), "from the TEMPLATE")
	w, _ := create(t, d, request("later", `{"template":"`+template+`"}`))
	data, err := w.ReadFile("sub/file")
	require.NoError(t, err)
	require.Equal(t, "from the TEMPLATE", string(data))
	require.Empty(t, unfinished(t, root))
}

func TestTemplateIsNeededOnlyWhenItIsUsed(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	template := filepath.Join(t.TempDir(), "template")
	write(t, filepath.Join(template, "file"), "x")
	config := `{"template":"` + template + `"}`
	w, binding := create(t, d, request("a", config))
	ref := checkpoint(t, d, w)
	require.NoError(t, os.RemoveAll(template))

	_, again := create(t, d, request("a", config))
	require.JSONEq(t, string(binding), string(again))
	req := request("b", config)
	req.Checkpoint = ref
	restored, _ := create(t, d, req)
	require.Contains(t, list(t, restored), "file")
}

func TestBinding(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	_, binding := create(t, d, request("a", ""))
	require.Regexp(t, regexp.MustCompile(`^\{"workspace":"[0-9a-f]{32}"\}$`), string(binding))
	require.NotContains(t, string(binding), root)

	write(t, filepath.Join(filepath.Dir(root), "outside/files/x"), "x")
	for _, binding := range []string{
		``, `null`, `{}`, `[]`, `{"workspace":""}`, `{"workspace":".."}`, `{"workspace":"../../outside"}`,
		`{"workspace":"/etc"}`, `{"workspace":"00112233445566778899AABBCCDDEEFF"}`, `{"workspace":"00"}`,
		`{"workspace":"00112233445566778899aabbccddeeff","more":1}`, `{"workspace":1}`,
		`{"workspace":"00112233445566778899aabbccddeeff"}`,
	} {
		_, err := d.Open(t.Context(), json.RawMessage(binding))
		require.ErrorIs(t, err, resources.ErrGone, "%s", binding)
		require.NotContains(t, err.Error(), root)
	}
}

func TestGone(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	w, binding := create(t, d, request("a", ""))
	require.NoError(t, os.RemoveAll(w.Path()))
	_, err := d.Open(t.Context(), binding)
	require.ErrorIs(t, err, resources.ErrGone)
	_, err = d.Checkpoint(t.Context(), w)
	require.ErrorIs(t, err, resources.ErrGone)
	_, err = w.ReadFile("file")
	require.ErrorIs(t, err, resources.ErrGone)
	require.NotContains(t, err.Error(), root)
}

// TestCreateReplacesUnfinished leaves what an attempt leaves that was killed while it
// restored.
func TestCreateReplacesUnfinished(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	source, _ := create(t, d, request("source", ""))
	require.NoError(t, source.WriteFile("sub/file", []byte("x"), 0o400))
	require.NoError(t, os.Chmod(filepath.Join(source.Path(), "sub"), 0o500))
	ref := checkpoint(t, d, source)

	w, binding := create(t, d, request("probe", ""))
	partial := w.Path() + ".partial"
	require.NoError(t, os.Rename(w.Path(), partial))
	write(t, filepath.Join(partial, "locked/half"), "half")
	require.NoError(t, os.Chmod(filepath.Join(partial, "locked"), 0))

	_, err := d.Open(t.Context(), binding)
	require.ErrorIs(t, err, resources.ErrGone, "what is not finished does not exist")
	restored := fork(t, d, "probe", ref)
	require.Equal(t, list(t, source), list(t, restored))
	require.Empty(t, unfinished(t, root))
}

func TestNewSweepsUnfinished(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	w, _ := create(t, d, request("a", ""))
	require.NoError(t, os.Rename(w.Path(), w.Path()+".partial"))
	write(t, filepath.Join(root, "workspaces/stray-file"), "x")
	open(t, root)
	require.Empty(t, unfinished(t, root))
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	source, _ := create(t, d, request("source", ""))
	require.NoError(t, source.WriteFile("a", []byte("first file"), 0o644))
	require.NoError(t, source.WriteFile("sub/b", []byte("second file"), 0o644))
	ref := checkpoint(t, d, source)
	packs, err := filepath.Glob(filepath.Join(root, "store/v1/packs/*.pack"))
	require.NoError(t, err)
	require.Len(t, packs, 1)
	data, err := os.ReadFile(packs[0])
	require.NoError(t, err)
	damaged := strings.Replace(string(data), "second file", "SECOND file", 1)
	require.NoError(t, os.WriteFile(packs[0], []byte(damaged), 0o600))

	req := request("fork", "")
	req.Checkpoint = ref
	_, _, err = d.Create(t.Context(), req)
	require.ErrorIs(t, err, resources.ErrCheckpointUnavailable)
	require.ErrorContains(t, err, `"sub/b"`)
	require.Empty(t, unfinished(t, root))

	require.NoError(t, os.WriteFile(packs[0], data, 0o600))
	require.Equal(t, list(t, source), list(t, fork(t, d, "fork", ref)))
}

func TestCheckpointsAreEqualForEqualContent(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	w, _ := create(t, d, request("a", ""))
	require.NoError(t, w.WriteFile("file", []byte("x"), 0o644))
	ref := checkpoint(t, d, w)
	require.Equal(t, ref, checkpoint(t, d, w))
	restored := fork(t, d, "b", ref)
	require.Equal(t, ref, checkpoint(t, d, restored))
	require.NoError(t, os.Chmod(filepath.Join(restored.Path(), "file"), 0o600))
	require.NotEqual(t, ref, checkpoint(t, d, restored), "metadata counts")
}

func TestConcurrentCheckpointsOfOneWorkspace(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	w, _ := create(t, d, request("a", ""))
	for i := range 50 {
		require.NoError(t, w.WriteFile(strings.Repeat("d/", i%7)+"file", []byte{byte(i)}, 0o644))
	}
	var refs [8]string
	var captures sync.WaitGroup
	for i := range refs {
		d := d
		if i%2 == 1 {
			d = open(t, root)
		}
		captures.Go(func() { refs[i], _ = d.Checkpoint(t.Context(), w) })
	}
	captures.Wait()
	require.NotEmpty(t, refs[0])
	for _, ref := range refs {
		require.Equal(t, refs[0], ref)
	}
}
