package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/testserver"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

// The benchmarks do the same work with Tine and with plain Temporal code, in turn, and report
// the ratio. Run one with: go test ./internal/e2e -run '^$' -bench Tools -benchtime 10x

type count struct {
	N int `json:"n"`
}

var (
	trivialTool = workflows.NewTool[count, int]("trivial_tool")
	trivialStep = workflows.NewStep[count, int]("trivial_step")
)

func trivial(_ context.Context, in count) (int, error) { return in.N, nil }

func toolLoop(ctx workflow.Context, in count) (int, error) {
	for i := range in.N {
		if _, err := trivialTool.Call(ctx, count{i}); err != nil {
			return 0, err
		}
	}
	return in.N, nil
}

func stepLoop(ctx workflow.Context, in count) (int, error) {
	for i := range in.N {
		if _, err := trivialStep.Run(ctx, count{i}); err != nil {
			return 0, err
		}
	}
	return in.N, nil
}

func plainLoop(ctx workflow.Context, in count) (int, error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute, HeartbeatTimeout: 30 * time.Second})
	for i := range in.N {
		if err := workflow.ExecuteActivity(ctx, "trivial", count{i}).Get(ctx, nil); err != nil {
			return 0, err
		}
	}
	return in.N, nil
}

func plainLocalLoop(ctx workflow.Context, in count) (int, error) {
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	for i := range in.N {
		if err := workflow.ExecuteLocalActivity(ctx, "trivial", count{i}).Get(ctx, nil); err != nil {
			return 0, err
		}
	}
	return in.N, nil
}

// contest runs executions of Tine and of plain Temporal code on one server.
type contest struct {
	temporal client.Client
	tine     *tine.Client
	queue    string
	plain    string
}

func newContest(b *testing.B) *contest { return newContestUnder(b, nil) }

// newContestUnder has Tine's steps decided by an engine.
func newContestUnder(b *testing.B, engine policy.Engine) *contest {
	b.Helper()
	c := &contest{temporal: testserver.Client(b), queue: "bench-" + uuid.NewString(), plain: "plain-" + uuid.NewString()}
	c.tine = tine.NewClient(c.temporal, tine.Options{TaskQueue: c.queue})
	ours, err := worker.New(c.temporal, worker.Options{TaskQueue: c.queue, DrainTimeout: time.Second, Policy: engine},
		worker.Agent("tool_loop", toolLoop), worker.Agent("step_loop", stepLoop),
		worker.Tool(trivialTool, trivial), worker.Step(trivialStep, trivial))
	require.NoError(b, err)
	theirs := sdkworker.New(c.temporal, c.plain, sdkworker.Options{})
	theirs.RegisterWorkflowWithOptions(plainLoop, workflow.RegisterOptions{Name: "plain_loop"})
	theirs.RegisterWorkflowWithOptions(plainLocalLoop, workflow.RegisterOptions{Name: "plain_local_loop"})
	theirs.RegisterActivityWithOptions(trivial, activity.RegisterOptions{Name: "trivial"})
	for _, w := range []sdkworker.Worker{ours, theirs} {
		require.NoError(b, w.Start())
		b.Cleanup(w.Stop)
	}
	return c
}

func (c *contest) ours(b *testing.B, agent string, n int) time.Duration {
	b.Helper()
	input, err := json.Marshal(count{n})
	require.NoError(b, err)
	began := time.Now()
	e, err := c.tine.Create(b.Context(), tine.CreateRequest{Agent: agent, Input: input})
	require.NoError(b, err)
	require.NoError(b, c.temporal.GetWorkflow(b.Context(), e.ID, e.RunID).Get(b.Context(), nil))
	return time.Since(began)
}

func (c *contest) theirs(b *testing.B, name string, n int) time.Duration {
	b.Helper()
	began := time.Now()
	run, err := c.temporal.ExecuteWorkflow(b.Context(), client.StartWorkflowOptions{TaskQueue: c.plain}, name, count{n})
	require.NoError(b, err)
	require.NoError(b, run.Get(b.Context(), nil))
	return time.Since(began)
}

// compare runs both in turn and reports the median ratio, after a round that does not count.
func compare(b *testing.B, ours, theirs func() time.Duration) {
	b.Helper()
	ours()
	theirs()
	var ratios []float64
	var took, plain time.Duration
	for b.Loop() {
		t, p := theirs(), ours()
		plain, took = plain+t, took+p
		ratios = append(ratios, float64(p)/float64(t))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(float64(took.Milliseconds())/float64(len(ratios)), "tine-ms")
	b.ReportMetric(float64(plain.Milliseconds())/float64(len(ratios)), "plain-ms")
}

const loopSteps = 200

// BenchmarkTools compares 200 trivial tools with 200 activities, one after another.
func BenchmarkTools(b *testing.B) {
	c := newContest(b)
	compare(b,
		func() time.Duration { return c.ours(b, "tool_loop", loopSteps) },
		func() time.Duration { return c.theirs(b, "plain_loop", loopSteps) })
}

// BenchmarkSteps compares 200 local steps with 200 local activities, one after another.
func BenchmarkSteps(b *testing.B) {
	c := newContest(b)
	compare(b,
		func() time.Duration { return c.ours(b, "step_loop", loopSteps) },
		func() time.Duration { return c.theirs(b, "plain_local_loop", loopSteps) })
}

// BenchmarkFork compares a fork that replays 400 steps with a workflow of one activity, each from
// its start to its end by the server's clock. What the client needs to read the source's history
// and plan is plan-ms.
func BenchmarkFork(b *testing.B) {
	c := newContest(b)
	input, err := json.Marshal(count{400})
	require.NoError(b, err)
	source, err := c.tine.Create(b.Context(), tine.CreateRequest{Agent: "tool_loop", Input: input})
	require.NoError(b, err)
	ended, err := c.tine.Wait(b.Context(), source.ID)
	require.NoError(b, err)
	var planning time.Duration
	forks := 0
	compare(b,
		func() time.Duration {
			began := time.Now()
			fork, err := c.tine.Fork(b.Context(), tine.ForkRequest{ExecutionID: source.ID, AtSeq: ended.LatestSeq - 1})
			require.NoError(b, err)
			planning += time.Since(began)
			forks++
			return c.lifetime(b, fork.ID, fork.RunID)
		},
		func() time.Duration {
			run, err := c.temporal.ExecuteWorkflow(b.Context(), client.StartWorkflowOptions{TaskQueue: c.plain}, "plain_loop", count{1})
			require.NoError(b, err)
			return c.lifetime(b, run.GetID(), run.GetRunID())
		})
	b.ReportMetric(float64(planning.Milliseconds())/float64(forks), "plan-ms")
}

// lifetime waits for a workflow's end and gives the time it took.
func (c *contest) lifetime(b *testing.B, id, runID string) time.Duration {
	b.Helper()
	require.NoError(b, c.temporal.GetWorkflow(b.Context(), id, runID).Get(b.Context(), nil))
	described, err := c.temporal.DescribeWorkflow(b.Context(), id, runID)
	require.NoError(b, err)
	return described.WorkflowCloseTime.Sub(described.WorkflowStartTime)
}

// BenchmarkMemory runs rounds of 50 executions of 20 tools and reports how the worker's heap
// grows from the second round to the last.
func BenchmarkMemory(b *testing.B) {
	const rounds, executions, tools = 10, 50, 20
	c := newContest(b)
	input, err := json.Marshal(count{tools})
	require.NoError(b, err)
	for b.Loop() {
		var heaps []uint64
		for range rounds {
			var runs []client.WorkflowRun
			for range executions {
				e, err := c.tine.Create(b.Context(), tine.CreateRequest{Agent: "tool_loop", Input: input})
				require.NoError(b, err)
				runs = append(runs, c.temporal.GetWorkflow(b.Context(), e.ID, e.RunID))
			}
			for _, run := range runs {
				require.NoError(b, run.Get(b.Context(), nil))
			}
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			heaps = append(heaps, m.HeapAlloc)
		}
		b.ReportMetric(float64(heaps[rounds-1])/float64(heaps[1]), "growth")
		b.ReportMetric(float64(heaps[rounds-1])/(1<<20), "heap-MiB")
	}
}

// BenchmarkPolicy has 100 rules decide each step of a tool loop, beside a worker that allows all.
func BenchmarkPolicy(b *testing.B) {
	var rules strings.Builder
	rules.WriteString("rules:\n")
	for i := range 99 {
		fmt.Fprintf(&rules, "  - {id: r%d, when: {target: other_%d}, then: {decision: deny}}\n", i, i)
	}
	rules.WriteString("  - {id: last, when: {target: trivial_tool}, then: {decision: allow}}\n")
	compareWith(b, rules.String())
}

// BenchmarkSharedLimit has each step take a token of a limit that executions share.
func BenchmarkSharedLimit(b *testing.B) {
	compareWith(b, `
rules:
  - id: shared
    when: {target: trivial_tool}
    then: {decision: allow, rate_limit: {max_calls: 1000000, window: 1s, per_what: global}}
`)
}

// compareWith compares a tool loop under rules with one of which all steps are allowed. There
// plain means the latter.
func compareWith(b *testing.B, rules string) {
	b.Helper()
	bundle, err := policy.Compile(b.Context(), []policy.Source{{Name: "bench.yaml", Data: []byte(rules)}}, policy.Options{})
	require.NoError(b, err)
	ruled, free := newContestUnder(b, bundle), newContest(b)
	compare(b,
		func() time.Duration { return ruled.ours(b, "tool_loop", loopSteps) },
		func() time.Duration { return free.ours(b, "tool_loop", loopSteps) })
}
