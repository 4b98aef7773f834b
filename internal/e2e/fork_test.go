package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

var allowed = []string{"step.proposed", "step.allowed", "step.executing"}

func succeeded() []string { return append(allowed[:3:3], "step.succeeded") }

// example is a script with a workspace, a read, a model call, a failure and an effect.
func example(b *bench, config op) []op {
	return []op{
		open(2, config),
		write("a", "A"),
		write("b", "B"),
		tool("read_file", op{"path": "a"}),
		llm("hello"),
		tool("fail_write", op{"path": "c", "content": "C", "message": "boom"}),
		write("d", "D"),
		b.ledger("once"),
	}
}

// exampleEvents are the events of example up to its last step.
func exampleEvents() []string {
	events := []string{
		"execution.created", "execution.started",
		"resource.registered", "resource.bound", "resource.checkpointed",
	}
	events = append(events, succeeded()...) // a: 6 to 9
	events = append(events, succeeded()...) // b: 10 to 13
	events = append(events, "resource.checkpointed")
	events = append(events, succeeded()...)                    // read: 15 to 18
	events = append(events, succeeded()...)                    // llm: 19 to 22
	events = append(append(events, allowed...), "step.failed") // fail_write: 23 to 26
	events = append(events, succeeded()...)                    // d: 27 to 30
	events = append(events, "resource.checkpointed")
	return append(events, succeeded()...) // ledger: 32 to 35
}

func TestEventsAndCoverage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type interval struct{ Covered, Invalidated int64 }
	for name, tc := range map[string]struct {
		config op
		events []string
		covers []interval
	}{
		"any step ends coverage": {
			events: append(exampleEvents(), "resource.checkpointed", "execution.completed"),
			covers: []interval{{4, 8}, {13, 17}, {30, 34}, {35, 0}},
		},
		"only affecting steps end coverage": {
			config: op{"coverage_reuse": true},
			events: append(exampleEvents(), "execution.completed"),
			covers: []interval{{4, 8}, {13, 25}, {30, 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := b.run(t, example(b, tc.config)...)
			require.Empty(t, cmp.Diff(tc.events, types(log)))
			var covers []interval
			for _, c := range log.ForkPoints().Checkpoints {
				covers = append(covers, interval{c.CoveredSeq, c.InvalidatedSeq})
			}
			require.Equal(t, tc.covers, covers)
			out := output(t, log)
			require.JSONEq(t, `"A"`, string(out.Results[3].OK))
			require.JSONEq(t, `"echo: hello"`, string(out.Results[4].OK))
			require.Equal(t, &script.Error{Message: "boom", Reason: "tool_error"}, out.Results[5].Error)
			require.Equal(t, map[string]string{"a": "A", "b": "B", "c": "C", "d": "D"}, b.files(t, log))
			require.EqualValues(t, 2, log.Steps()[3].Usage.OutputTokens)
		})
	}
}

// TestForkEverywhere forks at every event, and compares each fork with what the source's
// log says it must be.
func TestForkEverywhere(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]op{"plain": nil, "coverage reuse": {"coverage_reuse": true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ops := example(b, config)
			source := b.run(t, ops...)
			forks := make([]*tine.Log, source.Execution().LatestSeq)
			var g errgroup.Group
			g.SetLimit(4)
			for i := range forks {
				g.Go(func() error {
					e, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: int64(i + 1), Effects: tine.EffectsPolicy})
					if err != nil {
						return err
					}
					if _, err := b.Wait(t.Context(), e.ID); err != nil {
						return err
					}
					forks[i], err = b.Log(t.Context(), e.ID)
					return err
				})
			}
			require.NoError(t, g.Wait())
			lines := 1
			for i, fork := range forks {
				checkFork(t, b, source, int64(i+1), fork, ops)
				if len(settled(source, int64(i+1))) < len(ops)-1 {
					lines++ // the ledger step ran live
				}
			}
			require.Len(t, b.lines(t), lines)
			again, err := b.Log(t.Context(), source.Execution().ID)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(source.Events(), again.Events()), "forks leave their source alone")
			require.Equal(t, map[string]string{"a": "A", "b": "B", "c": "C", "d": "D"}, b.files(t, source))
		})
	}
}

func checkFork(t *testing.T, b *bench, source *tine.Log, at int64, fork *tine.Log, ops []op) {
	t.Helper()
	where := fmt.Sprintf("fork at %d", at)
	e := fork.Execution()
	require.Equal(t, tine.StatusCompleted, e.Status, where+": "+e.FailureReason)
	require.Equal(t, source.Execution().ID, e.ForkedFrom, where)
	require.Equal(t, at, e.ForkSeq, where)

	copied := settled(source, at)
	for i, step := range fork.Steps() {
		require.Equal(t, i < len(copied), step.Replayed, where)
		if !step.Replayed {
			continue
		}
		want := *copied[i]
		want.ProposedSeq, want.ExecutingSeq, want.SettledSeq = step.ProposedSeq, step.ExecutingSeq, step.SettledSeq
		want.Replayed = true
		require.Empty(t, cmp.Diff(&want, step), where)
	}
	require.Len(t, fork.Steps(), len(source.Steps()), where)
	checkRestoration(t, b, source, at, fork, ops, len(copied), where)
}

// checkRestoration compares the fork's workspace with the checkpoint that semantics select and what the
// fork itself did.
func checkRestoration(t *testing.T, b *bench, source *tine.Log, at int64, fork *tine.Log, ops []op, copied int, where string) {
	t.Helper()
	registered, ok := source.ForkPoints().Resources[script.WorkspaceKey]
	if !ok || registered > at {
		require.NotContains(t, fork.Execution().Restoration, script.WorkspaceKey, where)
		require.Equal(t, map[string]string{"a": "A", "b": "B", "c": "C", "d": "D"}, b.files(t, fork), where)
		return
	}
	restoration := fork.Execution().Restoration[script.WorkspaceKey]
	var best *tine.Checkpoint
	for _, c := range source.ForkPoints().Checkpoints {
		if c.CoveredSeq <= at {
			best = &c
		}
	}
	files := map[string]string{} // at the first live step
	if best == nil {
		require.Equal(t, tine.Restoration{}, restoration, where)
	} else {
		covers := best.InvalidatedSeq == 0 || at < best.InvalidatedSeq
		require.Equal(t, tine.Restoration{CheckpointRef: best.CheckpointRef, CheckpointSeq: best.CoveredSeq, Covered: covers}, restoration, where)
		ws, _, err := b.driver.Create(t.Context(), resources.CreateRequest{
			Owner: resources.Owner{ExecutionID: t.Name(), RunID: where, Key: "look"}, Checkpoint: best.CheckpointRef,
		})
		require.NoError(t, err)
		files = contents(t, ws)
	}
	if _, ok := files["a"]; ok || copied >= 3 || copied == 0 {
		// Else a copied write is not in the files, and the live read says so.
		require.JSONEq(t, string(source.Execution().Output), string(fork.Execution().Output), where)
	}
	for _, o := range ops[copied+1:] {
		if args, ok := o["args"].(op); ok && (o["name"] == "write_file" || o["name"] == "fail_write") {
			files[args["path"].(string)] = args["content"].(string)
		}
	}
	require.Equal(t, files, b.files(t, fork), where)
}

// longerScript is the script agent of a later release: it takes one more step at the end.
func longerScript(ctx workflow.Context, in script.Input) (script.Output, error) {
	out, err := script.Script(ctx, in)
	if err != nil {
		return out, err
	}
	_, err = workflows.Now(ctx)
	return out, err
}

// changedItems serve longerScript under the script agent's name.
func changedItems(driver *directory.Driver) []worker.Item {
	items := script.Items(driver, script.Echo{})
	items[0] = worker.Agent(script.Name, longerScript)
	return items
}

func TestForkOfChangedCode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.run(t, example(b, nil)...)
	b.stop()

	// No worker runs: the forks are made all the same, and wait.
	var waiting []string
	for _, at := range []int64{1, 14, source.Execution().LatestSeq} {
		e, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: at, Effects: tine.EffectsPolicy})
		require.NoError(t, err)
		require.Equal(t, tine.StatusPending, e.Status)
		waiting = append(waiting, e.ID)
	}
	events, err := b.Log(t.Context(), source.Execution().ID)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(source.Events(), events.Events()), "a closed execution's log needs no worker")

	b.items = changedItems(b.driver)
	b.start(t)
	for _, id := range waiting {
		log := b.end(t, id)
		steps := log.Steps()
		require.Len(t, steps, len(source.Steps())+1)
		require.Equal(t, "now", steps[len(steps)-1].Target)
		require.Nil(t, log.Execution().Divergence)
		require.JSONEq(t, string(source.Execution().Output), string(log.Execution().Output))
	}
}

func TestForkWithOtherInput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.run(t, open(1, nil), write("a", "A"), write("b", "B"), write("c", "C"))
	input, err := json.Marshal(op{"ops": []op{open(1, nil), write("a", "A"), write("b", "other"), tool("list_files", op{})}})
	require.NoError(t, err)
	at := source.Steps()[0].SettledSeq + 1 // its checkpoint
	fork := b.fork(t, tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: at, Input: input})
	require.Equal(t, map[string]string{"a": "A", "b": "other"}, b.files(t, fork))
	require.JSONEq(t, string(input), string(fork.Execution().Input))
	require.Nil(t, fork.Execution().Divergence, "what comes after the fork point is free to differ")
}

func TestDivergence(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.run(t, b.tally("1"), b.tally("2"), b.tally("3"))
	input, err := json.Marshal(op{"ops": []op{b.tally("1"), b.tally("two"), b.tally("3")}})
	require.NoError(t, err)
	last := source.Execution().LatestSeq
	fork := b.fork(t, tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: last, Input: input})
	d := fork.Execution().Divergence
	require.NotNil(t, d)
	require.Contains(t, string(d.Expected.Args), `"2"`)
	require.Contains(t, string(d.Got.Args), `"two"`)
	require.Equal(t, 2, d.Unused)
	require.Contains(t, types(fork), "execution.diverged")

	shorter, err := json.Marshal(op{"ops": []op{b.tally("1")}})
	require.NoError(t, err)
	ended := b.fork(t, tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: last, Input: shorter})
	require.NotNil(t, ended.Execution().Divergence)
	require.Nil(t, ended.Execution().Divergence.Got, "the handler just ended")
}

func TestForkOfForkOfFork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ops := example(b, nil)
	log := b.run(t, ops...)
	for generation, settledSteps := range []int{5, 3, 2} {
		at := log.Steps()[settledSteps-1].SettledSeq
		log = b.fork(t, tine.ForkRequest{ExecutionID: log.Execution().ID, AtSeq: at})
		require.Equal(t, tine.StatusCompleted, log.Execution().Status)
		replayed := 0
		for _, s := range log.Steps() {
			if s.Replayed {
				replayed++
			}
		}
		require.Equal(t, settledSteps, replayed, "generation %d", generation+1)
	}
	require.Len(t, b.lines(t), 4)
	require.Equal(t, map[string]string{"a": "A", "b": "B", "c": "C", "d": "D"}, b.files(t, log))
}

func TestTwoForksAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.run(t, open(1, nil), write("a", "A"), write("b", "B"))
	at := source.Steps()[0].SettledSeq
	fork := func(content string) string {
		input, err := json.Marshal(op{"ops": []op{open(1, nil), write("a", "A"), write("b", content), write("own", content)}})
		require.NoError(t, err)
		e, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: at, Input: input, Effects: tine.EffectsPolicy})
		require.NoError(t, err)
		return e.ID
	}
	left, right := fork("left"), fork("right")
	require.Equal(t, map[string]string{"a": "A", "b": "left", "own": "left"}, b.files(t, b.end(t, left)))
	require.Equal(t, map[string]string{"a": "A", "b": "right", "own": "right"}, b.files(t, b.end(t, right)))
	require.Equal(t, map[string]string{"a": "A", "b": "B"}, b.files(t, source))
}

func TestForkOfRunning(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, open(1, nil), write("a", "A"), op{"op": "signal", "name": "go"}, write("b", "B"))
	seq := b.awaitStep(t, id, "receive")
	e, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: id, AtSeq: seq, Effects: tine.EffectsPolicy})
	require.NoError(t, err)
	fork := e.ID
	require.NoError(t, b.temporal.SignalWorkflow(t.Context(), fork, "", "go", "fork"))
	forked := b.end(t, fork)
	require.JSONEq(t, `"fork"`, string(output(t, forked).Results[2].OK))
	require.NoError(t, b.temporal.SignalWorkflow(t.Context(), id, "", "go", "source"))
	source := b.end(t, id)
	require.JSONEq(t, `"source"`, string(output(t, source).Results[2].OK))

	again := b.fork(t, tine.ForkRequest{ExecutionID: id, AtSeq: source.Execution().LatestSeq})
	require.JSONEq(t, `"source"`, string(output(t, again).Results[2].OK), "a received signal is replayed")
}

func TestForkOutsideOfLog(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.run(t, step("now"))
	latest := source.Execution().LatestSeq
	for _, at := range []int64{-1, 0, latest + 1} {
		_, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: at})
		var seq *tine.SeqError
		require.ErrorAs(t, err, &seq)
		require.Equal(t, latest, seq.Latest)
	}
	_, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: "nobody", AtSeq: 1})
	var missing *tine.NotFoundError
	require.ErrorAs(t, err, &missing)
}

func TestMissingCheckpointFailsFork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.run(t, open(1, nil), write("a", "A"))
	damageStore(t, b.root)
	fork := b.fork(t, tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: source.Steps()[0].SettledSeq})
	e := fork.Execution()
	require.Equal(t, tine.StatusFailed, e.Status)
	require.Contains(t, e.FailureReason, "checkpoint unavailable")
	require.Empty(t, settledLive(fork), "nothing ran without its files")
}

func settledLive(log *tine.Log) []*tine.Step {
	var live []*tine.Step
	for _, s := range log.Steps() {
		if !s.Replayed {
			live = append(live, s)
		}
	}
	return live
}

// damageStore removes the records of all checkpoints.
func damageStore(t *testing.T, root string) {
	t.Helper()
	records, err := filepath.Glob(filepath.Join(root, "store", "*", "records", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, records)
	for _, record := range records {
		require.NoError(t, os.Remove(record))
	}
}

// awaitStep waits until a step of a target executes, and gives the latest seq then.
func (b *bench) awaitStep(t *testing.T, id, target string) int64 {
	t.Helper()
	for event, err := range b.Follow(t.Context(), id, 0) {
		require.NoError(t, err)
		if event.Type == "step.executing" && strings.Contains(string(event.Payload), `"target":"`+target+`"`) {
			return event.Seq
		}
	}
	require.FailNow(t, "the execution ended without step "+target)
	return 0
}
