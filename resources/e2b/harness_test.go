package e2b_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/e2b"
	"github.com/tinerun/tine/resources/e2b/e2btest"
	"github.com/tinerun/tine/resources/resourcetest"
)

// setup returns a driver and the emulator that it talks to.
func setup(t *testing.T) (*e2b.Driver, *e2btest.Server) {
	t.Helper()
	server, err := e2btest.New(e2btest.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return open(t, server), server
}

// open returns a driver as another worker has it.
func open(t *testing.T, server *e2btest.Server, more ...func(*e2b.Options)) *e2b.Driver {
	t.Helper()
	options := e2b.Options{APIKey: server.APIKey(), APIURL: server.URL(), SandboxURL: server.URL()}
	for _, change := range more {
		change(&options)
	}
	d, err := e2b.New(options)
	require.NoError(t, err)
	return d
}

func create(t *testing.T, d *e2b.Driver, req resources.CreateRequest) (*e2b.Sandbox, json.RawMessage) {
	t.Helper()
	if req.Owner == (resources.Owner{}) {
		req.Owner = anOwner
	}
	s, binding, err := d.Create(t.Context(), req)
	require.NoError(t, err)
	return s, binding
}

func run(t *testing.T, s *e2b.Sandbox, line string) e2b.Result {
	t.Helper()
	result, err := s.Run(t.Context(), e2b.Command{Line: line})
	require.NoError(t, err)
	return result
}

// requests are the methods and paths of what was asked, without the query.
func requests(server *e2btest.Server) []string {
	var all []string
	for _, r := range server.Requests() {
		all = append(all, r.Method+" "+r.Path)
	}
	return all
}

// count is how many of the requests are the one given.
func count(server *e2btest.Server, request string) int {
	n := 0
	for _, r := range requests(server) {
		if r == request {
			n++
		}
	}
	return n
}

func TestConformance(t *testing.T) {
	t.Parallel()
	servers := map[resources.Driver[*e2b.Sandbox]]*e2btest.Server{}
	resourcetest.Run(t, func(t *testing.T) resources.Driver[*e2b.Sandbox] {
		d, server := setup(t)
		servers[d] = server
		return d
	}, resourcetest.Hooks[*e2b.Sandbox]{
		Write: func(ctx context.Context, s *e2b.Sandbox, name, value string) error {
			return s.WriteFile(ctx, name, []byte(value))
		},
		Read: func(ctx context.Context, s *e2b.Sandbox, name string) (string, bool, error) {
			value, err := s.ReadFile(ctx, name)
			if errors.Is(err, fs.ErrNotExist) {
				return "", false, nil
			}
			return string(value), err == nil, err
		},
		UnknownBinding:    json.RawMessage(`{"sandbox_id":"i0000000000000000none"}`),
		MissingCheckpoint: "0000000000000000none:default",
		Secrets:           []string{"e2b_", "token"},
		Reopen: func(t *testing.T, d resources.Driver[*e2b.Sandbox]) resources.Driver[*e2b.Sandbox] {
			return open(t, servers[d])
		},
	})
}

// scenario is what an agent does with a sandbox, as a program with E2B's own SDK would. It
// runs against any service that the driver is for.
func scenario(t *testing.T, d *e2b.Driver) {
	ctx := t.Context()
	owner := resources.Owner{ExecutionID: "é& = + %/" + t.Name(), RunID: "run", Key: "work space"}
	config := json.RawMessage(`{"template":"base","timeout":120,"env":{"GREETING":"from the config"},"metadata":{"purpose":"tine test & more"}}`)
	var ref string
	t.Cleanup(func() { // last, since E2B keeps a snapshot that sandboxes use
		if ref != "" {
			require.NoError(t, d.DeleteCheckpoint(context.WithoutCancel(ctx), ref))
		}
	})
	s, binding, err := d.Create(ctx, resources.CreateRequest{Owner: owner, Config: config})
	require.NoError(t, err)
	cleanUp := func(binding json.RawMessage) {
		t.Cleanup(func() { require.NoError(t, d.Destroy(context.WithoutCancel(ctx), binding)) })
	}
	cleanUp(binding)
	require.JSONEq(t, `{"sandbox_id":"`+s.ID()+`"}`, string(binding))

	// Commands.
	result := run(t, s, `echo "hello $GREETING"; echo problem >&2; exit 3`)
	require.Equal(t, e2b.Result{
		ExitCode: 3, Stdout: "hello from the config\n", Stderr: "problem\n", Status: "exit status 3",
	}, result)
	var pieces bytes.Buffer
	result, err = s.Run(ctx, e2b.Command{
		Cmd: "cat", Args: []string{"-", "/dev/null"}, Stdin: []byte("from stdin ü"),
		OnStdout: func(piece []byte) { pieces.Write(piece) },
	})
	require.NoError(t, err)
	require.Equal(t, "from stdin ü", result.Stdout)
	require.Equal(t, "from stdin ü", pieces.String())
	_, err = s.Run(ctx, e2b.Command{Line: "true", Dir: "/does/not/exist"})
	require.ErrorContains(t, err, "does not exist")
	requireRetry(t, err, 0, false)
	result, err = s.Run(ctx, e2b.Command{Line: "echo $A; kill -9 $$", Env: map[string]string{"A": "b c"}})
	require.NoError(t, err)
	require.Equal(t, "b c\n", result.Stdout)
	require.Equal(t, -1, result.ExitCode)
	require.Equal(t, "signal: killed", result.Status)

	// Files.
	binary := make([]byte, 0, 1<<16)
	for i := range 1 << 16 {
		binary = append(binary, byte(i), byte(i>>8))
	}
	for _, path := range []string{"plain", "dir/with spaces & ümläuts+%.txt", `quo"te'\`, "empty"} {
		content := binary
		if path == "empty" {
			content = nil
		}
		require.NoError(t, s.WriteFile(ctx, path, content))
		read, err := s.ReadFile(ctx, path)
		require.NoError(t, err, path)
		require.True(t, bytes.Equal(content, read), path)
		info, err := s.Stat(ctx, path)
		require.NoError(t, err)
		require.EqualValues(t, len(content), info.Size)
		require.Equal(t, "file", info.Type)
	}
	require.NoError(t, s.WriteFrom(ctx, "streamed", bytes.NewReader(binary)))
	var streamed bytes.Buffer
	n, err := s.ReadTo(ctx, "streamed", &streamed)
	require.NoError(t, err)
	require.EqualValues(t, len(binary), n)
	require.True(t, bytes.Equal(binary, streamed.Bytes()))
	entries, err := s.List(ctx, "dir", 1)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "with spaces & ümläuts+%.txt", entries[0].Name)
	require.False(t, entries[0].IsDir())
	require.NoError(t, s.Remove(ctx, "dir"))
	exists, err := s.Exists(ctx, "dir")
	require.NoError(t, err)
	require.False(t, exists)
	require.NoError(t, s.Remove(ctx, "dir"))
	for _, missing := range []func() error{
		func() error { _, err := s.ReadFile(ctx, "missing"); return err },
		func() error { _, err := s.Stat(ctx, "missing"); return err },
		func() error { _, err := s.List(ctx, "missing", 1); return err },
	} {
		err := missing()
		require.ErrorIs(t, err, fs.ErrNotExist)
		requireRetry(t, err, 0, false)
	}

	// Pausing, and going on with the same handle.
	require.NoError(t, d.Pause(ctx, binding))
	require.NoError(t, d.Pause(ctx, binding))
	require.NoError(t, s.WriteFile(ctx, "after pause", []byte("1")))
	require.NoError(t, d.Pause(ctx, binding))
	require.Equal(t, "1", run(t, s, `cat "after pause"`).Stdout)

	// Snapshots, and forks from them.
	ref, err = d.Checkpoint(ctx, s)
	require.NoError(t, err)
	require.NoError(t, s.WriteFile(ctx, "after snapshot", nil))
	forkOwner := owner
	forkOwner.ExecutionID += " fork"
	fork, forkBinding, err := d.Create(ctx, resources.CreateRequest{Owner: forkOwner, Config: config, Checkpoint: ref})
	require.NoError(t, err)
	cleanUp(forkBinding)
	require.NotEqual(t, s.ID(), fork.ID())
	require.Equal(t, "1from the config", run(t, fork, `cat "after pause"; echo -n $GREETING`).Stdout)
	exists, err = fork.Exists(ctx, "after snapshot")
	require.NoError(t, err)
	require.False(t, exists)

	// Finding it again.
	again, againBinding, err := d.Create(ctx, resources.CreateRequest{Owner: owner, Config: config})
	require.NoError(t, err)
	require.JSONEq(t, string(binding), string(againBinding))
	require.Equal(t, "1", run(t, again, `cat "after pause"`).Stdout)
	listed, err := d.List(ctx)
	require.NoError(t, err)
	require.Contains(t, listed, resources.Listed{Owner: owner, Binding: binding})
	require.Contains(t, listed, resources.Listed{Owner: forkOwner, Binding: forkBinding})

	// The end.
	require.NoError(t, d.Destroy(ctx, forkBinding))
	require.NoError(t, d.Destroy(ctx, forkBinding))
	_, err = fork.Run(ctx, e2b.Command{Line: "true"})
	require.ErrorIs(t, err, resources.ErrGone)
	_, err = d.Open(ctx, forkBinding)
	require.ErrorIs(t, err, resources.ErrGone)
	_, _, err = d.Create(ctx, resources.CreateRequest{
		Owner: resources.Owner{ExecutionID: "none"}, Checkpoint: strings.Repeat("0", 20) + ":default",
	})
	require.ErrorIs(t, err, resources.ErrCheckpointUnavailable)
	_, _, err = d.Create(ctx, resources.CreateRequest{
		Owner: resources.Owner{ExecutionID: "none"}, Config: json.RawMessage(`{"template":"tine-has-no-such-template"}`),
	})
	require.ErrorIs(t, err, resources.ErrInvalidConfig)
}

func TestScenario(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	t.Cleanup(func() {
		require.Empty(t, server.Sandboxes())
		require.Empty(t, server.Snapshots())
	})
	scenario(t, d)
}

// TestService runs the scenario against E2B itself, where it makes two small sandboxes for a
// minute.
func TestService(t *testing.T) {
	t.Parallel()
	if os.Getenv("E2B_API_KEY") == "" || os.Getenv("E2B_API_URL") != "" {
		t.Skip("E2B_API_KEY is not set, or E2B_API_URL is: there is no service to test against")
	}
	d, err := e2b.FromEnv()
	require.NoError(t, err)
	scenario(t, d)
}
