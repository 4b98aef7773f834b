package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/e2b/agent"
	"github.com/tinerun/tine/internal/testserver"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/worker"
)

// workerEnv makes the test binary a worker of the queue it names, so that it can be killed.
const workerEnv = "TINE_E2B_WORKER"

// seedEnv has TestKillAtRandom kill at the same points as a run that has printed it.
const seedEnv = "TINE_E2B_SEED"

// faultHeartbeat is how soon a killed worker is noticed.
const faultHeartbeat = time.Second

func work(queue string) error {
	// A server offers a workflow's next task first to the worker that has it cached, for some
	// seconds. Those are not what the tests are about.
	sdkworker.SetStickyWorkflowCacheSize(0)
	bundle, err := policy.Compile(context.Background(), []policy.Source{{Name: "policy.yaml", Data: policyYAML}}, policy.Options{})
	if err != nil {
		return err
	}
	settings, err := agent.NewSettings(os.Getenv)
	if err != nil {
		return err
	}
	return worker.Run(context.Background(), worker.Options{
		TaskQueue: queue, Policy: bundle, HeartbeatTimeout: faultHeartbeat, SessionSweep: faultHeartbeat,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, agent.Items(settings, agent.Scripted{})...)
}

// process runs workers in processes of their own, one after another.
type process struct {
	p   *place
	env []string
	log *os.File

	mu  sync.Mutex
	cmd *exec.Cmd
}

// spawn starts the first one. What is in env counts more than what the world says.
func spawn(t *testing.T, p *place, env ...string) *process {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "worker-*.log")
	require.NoError(t, err)
	w := &process{p: p, log: log}
	w.env = append(os.Environ(), workerEnv+"="+p.queue, "TEMPORAL_ADDRESS="+testserver.Address(t), "TEMPORAL_NAMESPACE=default")
	for variable, value := range p.world.environment() {
		w.env = append(w.env, variable+"="+value)
	}
	w.env = append(w.env, env...)
	t.Cleanup(func() {
		w.kill()
		text, _ := os.ReadFile(log.Name())
		if t.Failed() {
			t.Logf("workers: %s", text[max(0, len(text)-20000):])
		}
		require.NotContains(t, string(text), p.world.token)
		log.Close()
	})
	require.NoError(t, w.start())
	return w
}

func (w *process) start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cmd = exec.Command(os.Args[0])
	w.cmd.Env = w.env
	w.cmd.Stdout, w.cmd.Stderr = w.log, w.log
	return w.cmd.Start()
}

// kill ends the worker as a machine that fails does.
func (w *process) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cmd == nil || w.cmd.ProcessState != nil {
		return
	}
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

// approve grants whatever waits for a person, until the execution has ended. A worker that is not
// there or dies is asked again.
func approve(ctx context.Context, p *place, id string) {
	for ctx.Err() == nil {
		pending, err := p.Approvals(ctx, tine.ApprovalOptions{Execution: id, Status: tine.ApprovalPending})
		if err == nil {
			for _, a := range pending {
				_, _ = p.Grant(ctx, a.ID, tine.ApprovalDecision{})
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// patiently runs a turn to its end.
func patiently(t *testing.T, p *place, session, task string) *tine.Log {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	run, err := p.temporal.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		TaskQueue: p.queue,
		// How soon a worker is noticed that was killed while it ran workflow code. Ten seconds are
		// usual, and too long for ten kills.
		WorkflowTaskTimeout: 2 * faultHeartbeat,
	}, agent.Name, agent.Input{Task: task}, map[string]string{"session": session})
	require.NoError(t, err)
	id := run.GetID()
	approving, stop := context.WithCancel(ctx)
	var helper sync.WaitGroup
	helper.Go(func() { approve(approving, p, id) })
	_, err = p.Wait(ctx, id)
	stop()
	helper.Wait()
	require.NoError(t, err)
	log, err := p.Log(ctx, id)
	require.NoError(t, err)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
	for i, event := range log.Events() {
		require.EqualValues(t, i+1, event.Seq)
	}
	return log
}

// outcomes are the steps as they ended, for a comparison.
func outcomes(log *tine.Log) []string {
	var all []string
	for _, step := range log.Steps() {
		all = append(all, step.Target+" "+step.Status)
	}
	return all
}

// settled are outcomes without how a pull request was looked for when nobody saw it opened.
func settled(outcomes []string) []string {
	var all []string
	for i := 0; i < len(outcomes); i++ {
		if outcomes[i] != "open_pr failed" {
			all = append(all, outcomes[i])
			continue
		}
		i++ // find_pr
		if i+1 == len(outcomes) || !strings.HasPrefix(outcomes[i+1], "open_pr") {
			all = append(all, "open_pr succeeded") // it was found
		}
	}
	return all
}

// tripwire counts the requests that workers send to the emulator, and says when the next kill is due.
type tripwire struct {
	*httptest.Server
	mu    sync.Mutex
	count int
	at    int // count at which to say so; 0 is never
	due   chan struct{}
}

func newTripwire(t *testing.T, p *place) *tripwire {
	t.Helper()
	target, err := url.Parse(p.world.emulator.URL())
	require.NoError(t, err)
	w := &tripwire{due: make(chan struct{}, 1)}
	forward := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.step()
		forward.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.Close)
	return w
}

func (w *tripwire) step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	if w.count == w.at {
		w.due <- struct{}{}
	}
}

// arm asks for a word after some more requests, and returns how many there are then.
func (w *tripwire) arm(more int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = w.count + more
	return w.at
}

// TestKillAtRandom kills the worker ten times during two turns. What comes of them is what comes of
// two turns that nobody disturbs.
func TestKillAtRandom(t *testing.T) {
	t.Parallel()
	const kills = 10
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("%s=%d", seedEnv, seed)
	random := rand.New(rand.NewPCG(seed, 0))

	p := setup(t)
	trip := newTripwire(t, p)
	w := spawn(t, p, "E2B_API_URL="+trip.URL, "E2B_SANDBOX_URL="+trip.URL)
	done := make(chan struct{})
	killed := make(chan int)
	go func() {
		n := 0
		defer func() { killed <- n }()
		for n < kills {
			at := trip.arm(1 + random.IntN(8))
			select {
			case <-trip.due:
			case <-done:
				return
			}
			delay := time.Duration(random.IntN(150)) * time.Millisecond
			time.Sleep(delay)
			w.kill()
			n++
			t.Logf("kill %d after %d requests and %s", n, at, delay)
			if err := w.start(); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	session := "kill-" + uuid.NewString()
	first := patiently(t, p, session, agent.FixTask)
	second := patiently(t, p, session, agent.MoreTask)
	close(done)
	require.Equal(t, kills, <-killed)
	calm := setupServed(t)
	calmFirst := patiently(t, calm, session+"-calm", agent.FixTask)
	calmSecond := patiently(t, calm, session+"-calm", agent.MoreTask)
	require.Equal(t, outcomes(calmFirst), settled(outcomes(first)), "no step is lost")
	require.Equal(t, outcomes(calmSecond), settled(outcomes(second)))
	require.Len(t, p.world.hub.Pulls(), 1)
	require.Len(t, p.world.emulator.Sandboxes(), 1, "no sandbox is left over")
	require.Equal(t, "paused", p.world.emulator.Sandboxes()[0].State)
	branch := agent.BranchOf(session)
	commits, err := p.world.hub.Log(branch)
	require.NoError(t, err)
	require.Equal(t, []string{"Test a title of punctuation only", "Join words with single hyphens"}, commits)
	for _, file := range []string{"slug.sh", "test.sh"} {
		got, err := p.world.hub.File(branch, file)
		require.NoError(t, err)
		want, err := calm.world.hub.File(agent.BranchOf(session+"-calm"), file)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestPullRequestOpenedUnseen kills the worker when GitHub has opened the pull request and not yet
// said so.
func TestPullRequestOpenedUnseen(t *testing.T) {
	t.Parallel()
	p := setup(t)
	w := spawn(t, p)
	p.world.hub.OnCreate(nil, sync.OnceFunc(w.kill))
	go func() {
		for len(p.world.hub.Pulls()) == 0 { // it answers when the worker is dead
			time.Sleep(10 * time.Millisecond)
			if t.Context().Err() != nil {
				return
			}
		}
		_ = w.start()
	}()
	log := patiently(t, p, "", agent.FixTask)
	require.Len(t, p.world.hub.Pulls(), 1)
	require.Equal(t, []string{"open_pr failed", "find_pr succeeded"}, prSteps(log)[:2])
	require.Equal(t, 1, count(log, "approval.requested"))
	require.Contains(t, string(log.Execution().Output), "/pull/1")
}

// TestPullRequestNotOpened cuts the connection before GitHub has opened the pull request.
func TestPullRequestNotOpened(t *testing.T) {
	t.Parallel()
	p := setupServed(t)
	cut := false
	p.world.hub.OnCreate(func() {
		if !cut {
			cut = true
			panic(http.ErrAbortHandler)
		}
	}, nil)
	log := patiently(t, p, "", agent.FixTask)
	require.Len(t, p.world.hub.Pulls(), 1)
	require.Equal(t, []string{"open_pr failed", "find_pr succeeded", "open_pr succeeded"}, prSteps(log)[:3])
	require.Equal(t, 2, count(log, "approval.requested"), "a person is asked again")
	require.Contains(t, string(log.Execution().Output), "/pull/1")
}

// prSteps are the outcomes of steps about pull requests.
func prSteps(log *tine.Log) []string {
	var found []string
	for _, o := range outcomes(log) {
		if strings.Contains(o, "_pr ") {
			found = append(found, o)
		}
	}
	return found
}

func count(log *tine.Log, kind string) int {
	n := 0
	for _, of := range typesOf(log) {
		if of == kind {
			n++
		}
	}
	return n
}
