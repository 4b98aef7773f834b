package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/internal/devserver"
	"github.com/tinerun/tine/internal/testserver"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

// workerEnv makes the test binary a worker, so that it can be killed.
const workerEnv = "TINE_E2E_WORKER"

// workerSpec is what such a worker needs to know.
type workerSpec struct {
	Queue   string `json:"queue"`
	Root    string `json:"root"`
	Scratch string `json:"scratch"`
	Shared  bool   `json:"shared"`
	// HostTimeout is how long steps wait for a host that is away.
	HostTimeout    time.Duration `json:"host_timeout"`
	RolloverEvents int           `json:"rollover_events"`
	// Policy is YAML, or empty.
	Policy string `json:"policy"`
}

// faultHeartbeat is how soon a killed worker is noticed.
const faultHeartbeat = 2 * time.Second

func serve(raw string) error {
	var spec workerSpec
	if err := json.Unmarshal([]byte(raw), &spec); err != nil {
		return err
	}
	driver, err := directory.New(directory.Options{Root: spec.Root, Shared: spec.Shared})
	if err != nil {
		return err
	}
	hooked := &hookedDriver{Driver: driver, scratch: spec.Scratch}
	items := script.Items(driver, script.Echo{})
	items[len(items)-1] = worker.Driver(hooked)
	items = append(items, worker.Agent("slow_once", slowOnce), worker.Agent("slow_twice", slowTwice), worker.Tool(slowEffect, runSlowEffect), worker.Agent("converse", converse))
	opts := worker.Options{TaskQueue: spec.Queue, HeartbeatTimeout: faultHeartbeat, HostTimeout: spec.HostTimeout, RolloverEvents: spec.RolloverEvents}
	if spec.Policy != "" {
		bundle, err := policy.Compile(context.Background(), []policy.Source{{Name: "test.yaml", Data: []byte(spec.Policy)}}, policy.Options{})
		if err != nil {
			return err
		}
		opts.Policy = bundle
	}
	return worker.Run(context.Background(), opts, items...)
}

// hookedDriver stops where a file tells it to, so that a test can kill the worker there.
type hookedDriver struct {
	*directory.Driver
	scratch string
}

func (d *hookedDriver) Create(ctx context.Context, req resources.CreateRequest) (*directory.Workspace, json.RawMessage, error) {
	ws, binding, err := d.Driver.Create(ctx, req)
	d.stopAt("create")
	return ws, binding, err
}

func (d *hookedDriver) Checkpoint(ctx context.Context, ws *directory.Workspace) (string, error) {
	ref, err := d.Driver.Checkpoint(ctx, ws)
	d.stopAt("checkpoint")
	return ref, err
}

// stopAt hangs, ignoring everything, if the test wants that here.
func (d *hookedDriver) stopAt(point string) {
	if _, err := os.Stat(filepath.Join(d.scratch, "stop-at-"+point)); err != nil {
		return
	}
	if err := os.WriteFile(filepath.Join(d.scratch, "stopped"), nil, 0o600); err != nil {
		panic(err)
	}
	select {}
}

var slowEffect = workflows.NewTool[script.LineArgs, string]("slow_effect", workflows.WithAtMostOnce())

func runSlowEffect(_ context.Context, in script.LineArgs) (string, error) {
	f, err := os.OpenFile(in.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	fmt.Fprintln(f, in.Line)
	f.Close()
	time.Sleep(3 * time.Second)
	return in.Line, nil
}

func slowOnce(ctx workflow.Context, in script.LineArgs) (string, error) {
	_, err := slowEffect.Call(ctx, in)
	if workflows.IsIndeterminate(err) {
		return "indeterminate", nil
	}
	return "", err
}

// slowTwice asks for the effect again when nobody knows whether it happened, and then for
// another one.
func slowTwice(ctx workflow.Context, in script.LineArgs) ([]string, error) {
	var reasons []string
	for _, line := range []string{in.Line, in.Line, "other"} {
		_, err := slowEffect.Call(ctx, script.LineArgs{File: in.File, Line: line})
		if temporal.IsCanceledError(err) {
			return nil, err
		}
		reasons = append(reasons, workflows.Reason(err))
	}
	return reasons, nil
}

// process is a worker in a process of its own.
type process struct {
	cmd *exec.Cmd
}

func (b *bench) process(t *testing.T, spec workerSpec) *process {
	t.Helper()
	raw, err := json.Marshal(spec)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(raw), "TEMPORAL_ADDRESS="+testserver.Address(t), "TEMPORAL_NAMESPACE=default")
	log, err := os.CreateTemp(t.TempDir(), "worker-*.log")
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	p := &process{cmd}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("worker %d: %.2000s", cmd.Process.Pid, text)
		}
		log.Close()
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (b *bench) spec() workerSpec {
	return workerSpec{Queue: b.queue, Root: b.root, Scratch: b.scratch, Shared: true}
}

func (b *bench) waitForFile(t *testing.T, name string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(b.scratch, name))
		return err == nil
	}, patience, 10*time.Millisecond)
}

// waitForLine waits until a line is in the ledger, whole.
func (b *bench) waitForLine(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(b.file())
		return err == nil && strings.HasSuffix(string(raw), "\n")
	}, patience, 10*time.Millisecond)
}

func TestKillDuringTool(t *testing.T) {
	t.Parallel()
	b := setupIdle(t)
	p := b.process(t, b.spec())
	command := fmt.Sprintf("echo run >> %s; echo x >> file; sleep 2", b.file())
	id := b.create(t, open(1, nil), write("a", "A"), tool("shell", op{"command": command}), write("b", "B"))
	b.waitForLine(t)
	p.kill()
	b.process(t, b.spec())
	log := b.end(t, id)
	out := output(t, log)
	require.Nil(t, out.Results[2].Error)
	require.GreaterOrEqual(t, len(b.lines(t)), 2, "the step ran again")
	require.Equal(t, 2, log.Steps()[1].Attempts)
	require.Equal(t, "B", b.files(t, log)["b"])
}

func TestKillDuringEffect(t *testing.T) {
	t.Parallel()
	b := setupIdle(t)
	p := b.process(t, b.spec())
	input, err := json.Marshal(script.LineArgs{File: b.file(), Line: "once"})
	require.NoError(t, err)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "slow_once", Input: input})
	require.NoError(t, err)
	b.waitForLine(t)
	p.kill()
	b.process(t, b.spec())
	log := b.end(t, e.ID)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
	require.JSONEq(t, `"indeterminate"`, string(log.Execution().Output))
	require.Equal(t, "indeterminate", log.Steps()[0].Error.Reason)
	require.Equal(t, []string{"once"}, b.lines(t))
}

func TestKillDuringDriver(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"create", "checkpoint"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			b := setupIdle(t)
			stop := filepath.Join(b.scratch, "stop-at-"+point)
			require.NoError(t, os.WriteFile(stop, nil, 0o600))
			p := b.process(t, b.spec())
			id := b.create(t, open(1, nil), write("a", "A"), write("b", "B"))
			b.waitForFile(t, "stopped")
			p.kill()
			require.NoError(t, os.Remove(stop))
			b.process(t, b.spec())
			log := b.end(t, id)
			output(t, log)
			require.Equal(t, map[string]string{"a": "A", "b": "B"}, b.files(t, log))
			require.Len(t, log.ForkPoints().Checkpoints, 3)
			require.Equal(t, 1, b.workspaces(t), "no workspace is leaked")
		})
	}
}

// workspaces counts the directories that the driver holds.
func (b *bench) workspaces(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(b.root, "workspaces"))
	require.NoError(t, err)
	return len(entries)
}

// TestKillAtRandom kills the worker again and again, and compares with an undisturbed run.
func TestKillAtRandom(t *testing.T) {
	t.Parallel()
	b := setupIdle(t)
	ops := []op{open(2, nil)}
	for i := range 12 {
		ops = append(ops,
			write(fmt.Sprintf("f%d", i), fmt.Sprint(i)),
			tool("read_file", op{"path": fmt.Sprintf("f%d", i)}),
			b.tally(fmt.Sprint(i)),
			llm(fmt.Sprint(i)))
	}
	id := b.create(t, ops...)
	done := make(chan *tine.Log, 1)
	go func() { done <- b.end(t, id) }()
	p := b.process(t, b.spec())
	for range 4 {
		select {
		case <-time.After(time.Duration(1000+rand.IntN(3000)) * time.Millisecond):
		case log := <-done:
			done <- log
		}
		p.kill()
		p = b.process(t, b.spec())
	}
	log := <-done
	output(t, log)
	undisturbed := b.run(t, ops...)
	require.JSONEq(t, string(undisturbed.Execution().Output), string(log.Execution().Output))
	require.Equal(t, b.files(t, undisturbed), b.files(t, log))
	for i, e := range log.Events() {
		require.EqualValues(t, i+1, e.Seq)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, open(1, nil), tool("shell", op{"command": "echo x > file; sleep 600"}), write("never", ""))
	b.awaitStep(t, id, "shell")
	began := time.Now()
	require.NoError(t, b.Cancel(t.Context(), id))
	log := b.end(t, id)
	require.Less(t, time.Since(began), time.Minute)
	require.Equal(t, tine.StatusCancelled, log.Execution().Status)
	require.Equal(t, "cancelled", log.Steps()[0].Status)
	require.Len(t, log.Steps(), 1)
	require.Contains(t, types(log), "step.cancelled")
	got, err := b.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, tine.StatusCancelled, got.Status)

	waiting := b.create(t, op{"op": "signal", "name": "never"})
	b.awaitStep(t, waiting, "receive")
	require.NoError(t, b.Cancel(t.Context(), waiting))
	ended := b.end(t, waiting)
	require.Equal(t, tine.StatusCancelled, ended.Execution().Status)
	require.Equal(t, "cancelled", ended.Steps()[0].Status)
}

func TestNoWorker(t *testing.T) {
	t.Parallel()
	b := setupIdle(t)
	id := b.create(t, step("now"))
	got, err := b.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, tine.StatusPending, got.Status)
	require.Contains(t, got.Notes[0], "no worker has picked it up yet")
	require.Contains(t, got.Notes[0], "which no worker serves")
	require.NoError(t, b.Cancel(t.Context(), id))
	b.start(t)
	require.Equal(t, tine.StatusCancelled, b.end(t, id).Execution().Status)
}

// TestHostBound has two hosts, each with a store of its own.
func TestHostBound(t *testing.T) {
	t.Parallel()
	b := setupIdle(t)
	one, two := b.spec(), b.spec()
	one.Shared, two.Shared = false, false
	two.Root = t.TempDir()
	first := b.process(t, one)
	id := b.create(t, open(1, nil), write("a", "A"), op{"op": "signal", "name": "go"}, write("b", "B"), tool("list_files", op{}))
	b.awaitStep(t, id, "receive")
	b.process(t, two)
	first.kill()
	require.NoError(t, b.temporal.SignalWorkflow(t.Context(), id, "", "go", 1))
	require.Eventually(t, func() bool {
		got, err := b.Get(t.Context(), id)
		return err == nil && len(got.Notes) > 0
	}, patience, 200*time.Millisecond, "get says that the host is away")

	b.process(t, one) // the host is back, in another process
	log := b.end(t, id)
	require.Nil(t, output(t, log).Results[3].Error)
	require.Equal(t, map[string]string{"a": "A", "b": "B"}, b.files(t, log))
	fork := b.fork(t, tine.ForkRequest{ExecutionID: id, AtSeq: log.Steps()[0].SettledSeq, Input: json.RawMessage(`{"ops":[{"op":"open","key":"workspace","driver":"directory","every_steps":1},{"op":"tool","name":"write_file","args":{"content":"A","path":"a"}},{"op":"tool","name":"list_files"}]}`)})
	require.Equal(t, map[string]string{"a": "A"}, b.files(t, fork), "a fork runs on the host that has the checkpoint")
}

func TestHostGone(t *testing.T) {
	t.Parallel()
	b := setupIdle(t)
	one, two := b.spec(), b.spec()
	one.Shared, two.Shared = false, false
	one.HostTimeout, two.HostTimeout = 5*time.Second, 5*time.Second
	two.Root = t.TempDir()
	first := b.process(t, one)
	id := b.create(t, open(1, nil), write("a", "A"), op{"op": "signal", "name": "go"}, write("b", "B"))
	b.awaitStep(t, id, "receive")
	b.process(t, two)
	first.kill()
	require.NoError(t, b.temporal.SignalWorkflow(t.Context(), id, "", "go", 1))
	out := output(t, b.end(t, id))
	require.Equal(t, "host_unavailable", out.Results[3].Error.Reason)
}

// TestServerRestart kills the server while an execution waits, and starts it again on its
// database.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	opts := devserver.Options{DBFilename: filepath.Join(t.TempDir(), "temporal.db"), Headless: true}
	first, err := devserver.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(first.Stop)
	c, err := client.Dial(client.Options{HostPort: first.Address(), Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler))})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	b := setupOn(t, c)
	b.start(t)
	id := b.create(t, open(1, nil), b.tally("before"), op{"op": "signal", "name": "go"}, write("a", "A"), b.tally("after"))
	b.awaitStep(t, id, "receive")

	first.Stop()
	_, port, err := net.SplitHostPort(first.Address())
	require.NoError(t, err)
	opts.Port, err = strconv.Atoi(port)
	require.NoError(t, err)
	second, err := devserver.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(second.Stop)

	require.NoError(t, c.SignalWorkflow(t.Context(), id, "", "go", 1))
	log := b.end(t, id)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
	require.Equal(t, []string{"before", "after"}, b.lines(t))
	require.Equal(t, map[string]string{"a": "A"}, b.files(t, log))
}
