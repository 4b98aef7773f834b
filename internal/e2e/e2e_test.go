// Package e2e tests Tine as a whole: the script agent on a real Temporal server, with real
// workspaces, through the public API.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/internal/testserver"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerEnv); spec != "" {
		if err := serve(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(mcpEnv) != "" {
		if err := serveMCP(); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(testserver.Main(m))
}

// patience is how long an execution may take on a busy machine.
const patience = 3 * time.Minute

// bench is a task queue with a worker of the script agent, and a client.
type bench struct {
	*tine.Client
	temporal client.Client
	queue    string
	root     string // of the directory driver
	scratch  string // for ledgers
	driver   *directory.Driver
	opts     worker.Options
	items    []worker.Item
	worker   sdkworker.Worker
}

type benchOption func(*bench)

// withItems replaces what the worker serves.
func withItems(items func(*directory.Driver) []worker.Item) benchOption {
	return func(b *bench) { b.items = items(b.driver) }
}

func withOptions(change func(*worker.Options)) benchOption {
	return func(b *bench) { change(&b.opts) }
}

// setup makes a bench whose worker runs until the test ends.
func setup(t *testing.T, options ...benchOption) *bench {
	t.Helper()
	b := setupIdle(t, options...)
	b.start(t)
	return b
}

// setupIdle makes a bench without a running worker.
func setupIdle(t *testing.T, options ...benchOption) *bench {
	t.Helper()
	return setupOn(t, testserver.Client(t), options...)
}

// setupOn makes a bench on a server of the test's own.
func setupOn(t *testing.T, c client.Client, options ...benchOption) *bench {
	t.Helper()
	b := &bench{
		temporal: c,
		queue:    "e2e-" + uuid.NewString(),
		root:     t.TempDir(),
		scratch:  t.TempDir(),
	}
	b.Client = tine.NewClient(b.temporal, tine.Options{TaskQueue: b.queue})
	driver, err := directory.New(directory.Options{Root: b.root, Shared: true})
	require.NoError(t, err)
	b.driver = driver
	b.items = script.Items(driver, script.Echo{})
	b.opts = worker.Options{
		TaskQueue: b.queue, DrainTimeout: time.Second,
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	for _, option := range options {
		option(b)
	}
	return b
}

func (b *bench) start(t *testing.T) {
	t.Helper()
	w, err := worker.New(b.temporal, b.opts, b.items...)
	require.NoError(t, err)
	require.NoError(t, w.Start())
	b.worker = w
	t.Cleanup(b.stop)
}

func (b *bench) stop() {
	if b.worker != nil {
		b.worker.Stop()
		b.worker = nil
	}
}

// create starts a script without waiting for it.
func (b *bench) create(t *testing.T, ops ...op) string {
	t.Helper()
	input, err := json.Marshal(map[string]any{"ops": ops})
	require.NoError(t, err)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: script.Name, Input: input})
	require.NoError(t, err)
	return e.ID
}

// run runs a script to its end.
func (b *bench) run(t *testing.T, ops ...op) *tine.Log {
	t.Helper()
	return b.end(t, b.create(t, ops...))
}

// end waits until an execution has ended and reads its log.
func (b *bench) end(t *testing.T, id string) *tine.Log {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := b.Wait(ctx, id)
	require.NoError(t, err)
	log, err := b.Log(ctx, id)
	require.NoError(t, err)
	return log
}

// fork forks and waits for the fork's end. Effects are had again unasked, unless the request
// says otherwise: nobody is there to approve them.
func (b *bench) fork(t *testing.T, req tine.ForkRequest) *tine.Log {
	t.Helper()
	if req.Effects == "" {
		req.Effects = tine.EffectsPolicy
	}
	e, err := b.Fork(t.Context(), req)
	require.NoError(t, err)
	return b.end(t, e.ID)
}

// op is one operation of a script.
type op map[string]any

func open(everySteps int, config op) op {
	o := op{"op": "open", "key": script.WorkspaceKey, "driver": "directory", "every_steps": everySteps}
	if config != nil {
		o["config"] = config
	}
	return o
}

func tool(name string, args op) op     { return op{"op": "tool", "name": name, "args": args} }
func write(path, content string) op    { return tool("write_file", op{"path": path, "content": content}) }
func llm(prompt string) op             { return op{"op": "llm", "model": "m", "prompt": prompt} }
func step(name string) op              { return op{"op": "step", "name": name} }
func parallel(ops ...op) op            { return op{"op": "parallel", "ops": ops} }
func repeat(times int, ops ...op) op   { return op{"op": "repeat", "times": times, "ops": ops} }
func (b *bench) ledger(line string) op { return tool("ledger", op{"file": b.file(), "line": line}) }
func (b *bench) tally(line string) op  { return tool("tally", op{"file": b.file(), "line": line}) }

func (b *bench) file() string { return filepath.Join(b.scratch, "ledger") }

// lines are those of the ledger.
func (b *bench) lines(t *testing.T) []string {
	t.Helper()
	raw, err := os.ReadFile(b.file())
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
}

// files are those of an execution's workspace, by path.
func (b *bench) files(t *testing.T, log *tine.Log) map[string]string {
	t.Helper()
	for _, r := range log.Execution().Resources {
		if r.Key == script.WorkspaceKey {
			ws, err := b.driver.Open(t.Context(), r.Binding)
			require.NoError(t, err)
			return contents(t, ws)
		}
	}
	return nil
}

func contents(t *testing.T, ws *directory.Workspace) map[string]string {
	t.Helper()
	entries, err := ws.List()
	require.NoError(t, err)
	files := map[string]string{}
	for _, e := range entries {
		raw, err := ws.ReadFile(e.Path)
		require.NoError(t, err)
		files[e.Path] = string(raw)
	}
	return files
}

// types are the events' types, by seq from 1.
func types(log *tine.Log) []string {
	var all []string
	for _, e := range log.Events() {
		all = append(all, e.Type)
	}
	return all
}

func output(t *testing.T, log *tine.Log) script.Output {
	t.Helper()
	e := log.Execution()
	require.Equal(t, tine.StatusCompleted, e.Status, e.FailureReason)
	var out script.Output
	require.NoError(t, json.Unmarshal(e.Output, &out))
	return out
}

// settled gives the steps that had ended at seq.
func settled(log *tine.Log, seq int64) []*tine.Step {
	var ended []*tine.Step
	for _, s := range log.Steps() {
		if s.SettledSeq > 0 && s.SettledSeq <= seq {
			ended = append(ended, s)
		}
	}
	return ended
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(bytes.TrimSpace(p)))
	return len(p), nil
}
