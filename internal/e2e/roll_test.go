package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/worker"
)

// rolling has executions continue as new after few events.
func rolling(events int) benchOption {
	return withOptions(func(o *worker.Options) { o.RolloverEvents = events })
}

// TestRollover has a long execution roll over several times, which nothing but the log shows.
func TestRollover(t *testing.T) {
	t.Parallel()
	b := setup(t, rolling(100))
	log := b.run(t, open(5, nil), repeat(100, b.ledger("{i}")), write("end", "x"), step("uuid"))
	e := log.Execution()
	require.Equal(t, tine.StatusCompleted, e.Status)
	require.Greater(t, len(e.Runs), 3)
	require.Len(t, b.lines(t), 100)
	for i, line := range b.lines(t) {
		require.Equal(t, fmt.Sprint(i), line)
	}
	continued := 0
	for i, event := range log.Events() {
		require.EqualValues(t, i+1, event.Seq)
		require.Contains(t, e.Runs, event.RunID)
		if event.Type == "execution.continued" {
			continued++
		}
	}
	require.Equal(t, len(e.Runs)-1, continued)
	require.Equal(t, "execution.created", log.Events()[0].Type)
	require.Len(t, log.Steps(), 102)
	for _, s := range log.Steps() {
		require.Equal(t, "succeeded", s.Status)
		require.False(t, s.Replayed)
	}
	require.Equal(t, map[string]string{"end": "x"}, b.files(t, log))
}

// waitForRuns waits until the execution has had so many runs.
func (b *bench) waitForRuns(t *testing.T, id string, runs int) {
	t.Helper()
	require.Eventually(t, func() bool {
		e, err := b.Get(t.Context(), id)
		return err == nil && len(e.Runs) >= runs
	}, patience, 50*time.Millisecond)
}

const askForAppend = `
default_action: allow
rules:
  - id: ask
    when: {target: append_file}
    then: {decision: require_approval, approval_config: {approvers: [bob], message: look at it}}
`

// TestRolloverCarries has an approval, a timer and signals wait while other steps roll the
// execution over, and checks that each ends once and as it would have.
func TestRolloverCarries(t *testing.T) {
	t.Parallel()
	b := setup(t, rolling(80), withPolicy(t, askForAppend))
	began := time.Now()
	e := b.create(t, open(1000, nil), parallel(
		appendTo("a", "A"),
		op{"op": "wait", "ms": 6000},
		op{"op": "signal", "name": "late"},
		repeat(40, b.tally("{i}")),
		op{"op": "signal", "name": "early"},
	), op{"op": "signal", "name": "early"}, write("b", "B"))
	pending := b.waiting(t, e, 1)[0]
	for i := range 3 { // more than the script has received when it rolls over
		require.NoError(t, b.temporal.SignalWorkflow(t.Context(), e, "", "early", i))
	}
	b.waitForRuns(t, e, 3)
	require.Equal(t, tine.StatusBlocked, b.status(t, e))
	require.Equal(t, pending, b.waiting(t, e, 1)[0])
	b.grant(t, pending.ID, "bob")
	require.NoError(t, b.temporal.SignalWorkflow(t.Context(), e, "", "late", "x"))
	log := b.end(t, e)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status)
	require.GreaterOrEqual(t, time.Since(began), 6*time.Second)
	require.Less(t, time.Since(began), 30*time.Second)
	require.Equal(t, map[string]string{"a": "A", "b": "B"}, b.files(t, log))
	require.Len(t, b.lines(t), 40)
	var out struct{ Results []json.RawMessage }
	require.NoError(t, json.Unmarshal(log.Execution().Output, &out))
	require.JSONEq(t, `{"ok":1}`, string(out.Results[2]))
	counts := map[string]int{}
	for i, event := range log.Events() {
		require.EqualValues(t, i+1, event.Seq)
		counts[event.Type]++
	}
	require.Equal(t, 1, counts["approval.requested"])
	require.Equal(t, 1, counts["approval.granted"])
	require.Equal(t, 1, counts["execution.blocked"])
	require.Equal(t, 1, counts["execution.resumed"])
	require.Equal(t, 1, counts["resource.bound"])
	require.Equal(t, counts["step.proposed"], counts["step.succeeded"])
	require.Equal(t, len(log.Steps()), counts["step.succeeded"])
	require.Zero(t, counts["execution.diverged"])
}

// TestRolloverForks forks a rolled execution in each of its runs, and the fork rolls over as well.
func TestRolloverForks(t *testing.T) {
	t.Parallel()
	b := setup(t, rolling(100))
	source := b.run(t, open(1, nil), repeat(60, tool("append_file", op{"path": "f", "content": "{i},"}), b.tally("{i}")))
	require.Greater(t, len(source.Execution().Runs), 2)
	whole := source.Events()
	for range 4 {
		at := 7 + rand.Int64N(int64(len(whole))-7)
		want := ""
		for _, s := range source.Steps() {
			if s.SettledSeq != 0 && s.SettledSeq <= at && s.Target == "append_file" {
				var args struct{ Content string }
				require.NoError(t, json.Unmarshal(s.Args, &args))
				want += args.Content
			}
		}
		input, err := json.Marshal(op{"ops": []op{open(1, nil), tool("read_file", op{"path": "f"})}})
		require.NoError(t, err)
		if want == "" {
			continue
		}
		log := b.fork(t, tine.ForkRequest{ExecutionID: id(source), AtSeq: at, Input: input})
		var out struct {
			Results []struct{ OK json.RawMessage }
		}
		require.NoError(t, json.Unmarshal(log.Execution().Output, &out))
		if source.Covered(at) {
			require.Contains(t, string(out.Results[1].OK), want, "fork at %d", at)
		}
		same := b.fork(t, tine.ForkRequest{ExecutionID: id(source), AtSeq: at})
		require.Equal(t, tine.StatusCompleted, same.Execution().Status, "fork at %d", at)
		require.Empty(t, same.Execution().Divergence)
		require.Len(t, same.Steps(), len(source.Steps()))
	}
}

// TestRolloverFollow follows an execution across its runs: each event comes once, in order.
func TestRolloverFollow(t *testing.T) {
	t.Parallel()
	b := setup(t, rolling(60))
	e := b.create(t, repeat(60, b.tally("{i}")))
	var followed []tine.Event
	for event, err := range b.Follow(t.Context(), e, 0) {
		require.NoError(t, err)
		followed = append(followed, event)
	}
	require.Equal(t, b.end(t, e).Events(), followed)
}

var long = flag.Bool("long", false, "kill an execution of 10,000 steps twenty times, instead of a short one")

// TestRolloverKill kills workers while an execution rolls over, and forks it all over afterwards.
func TestRolloverKill(t *testing.T) {
	t.Parallel()
	rounds, kills, forks, every := 80, 4, 3, 10
	b := setupIdle(t)
	spec := b.spec()
	spec.RolloverEvents = 80
	between := func() time.Duration { return time.Duration(500+rand.IntN(1500)) * time.Millisecond }
	if *long {
		rounds, kills, forks, every, spec.RolloverEvents = 3333, 20, 20, 50, 0
		between = func() time.Duration { return time.Duration(3+rand.IntN(10)) * time.Second }
	}
	e := b.create(t, open(every, nil), repeat(rounds, b.ledger("{i}"), b.tally("t{i}"), write("f{i}", "{i}")))
	for range kills {
		p := b.process(t, spec)
		time.Sleep(between())
		p.kill()
	}
	b.process(t, spec)
	require.Eventually(t, func() bool { return b.status(t, e) != tine.StatusRunning }, 20*time.Minute, time.Second)
	log := b.end(t, e)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status)
	require.Greater(t, len(log.Execution().Runs), 2)
	seen := map[string]int{}
	for _, line := range b.lines(t) {
		seen[line]++
	}
	indeterminate := 0
	for _, s := range log.Steps() {
		if s.Error != nil {
			require.Equal(t, protocol.ReasonIndeterminate, s.Error.Reason)
			indeterminate++
		}
	}
	for i := range rounds {
		require.LessOrEqual(t, seen[fmt.Sprint(i)], 1)
		require.GreaterOrEqual(t, seen[fmt.Sprintf("t%d", i)], 1)
	}
	require.LessOrEqual(t, indeterminate, kills)
	for i, event := range log.Events() {
		require.EqualValues(t, i+1, event.Seq)
	}
	b.forkEverywhere(t, log, forks)
}

// forkEverywhere forks an execution that writes one file after another at random events, and checks that
// the fork has the steps of the event, and the files of its newest checkpoint.
func (b *bench) forkEverywhere(t *testing.T, source *tine.Log, forks int) {
	t.Helper()
	input, err := json.Marshal(op{"ops": []op{open(1, nil), tool("list_files", op{})}})
	require.NoError(t, err)
	for range forks {
		at := 7 + rand.Int64N(source.Execution().LatestSeq-7)
		var covered int64
		for _, c := range source.ForkPoints().Checkpoints {
			if c.CoveredSeq <= at {
				covered = c.CoveredSeq
			}
		}
		var files []string
		steps := 0
		for _, s := range source.Steps() {
			if s.SettledSeq <= at {
				steps++
			}
			if s.Target == "write_file" && s.SettledSeq <= covered {
				var args struct{ Path string }
				require.NoError(t, json.Unmarshal(s.Args, &args))
				files = append(files, args.Path)
			}
		}
		log := b.fork(t, tine.ForkRequest{ExecutionID: id(source), AtSeq: at, Input: input})
		copied := 0
		for _, s := range log.Steps() {
			if s.Replayed {
				copied++
			}
		}
		require.Equal(t, steps, copied, "fork at %d", at)
		var listed []struct{ Path string }
		require.NoError(t, json.Unmarshal(log.Steps()[len(log.Steps())-1].Result, &listed))
		var found []string
		for _, f := range listed {
			found = append(found, f.Path)
		}
		require.ElementsMatch(t, files, found, "fork at %d", at)
	}
}

// rolled runs a script that continues as new while an approval, a timer and a signal are waited for.
func (b *bench) rolled(t *testing.T) *tine.Log {
	t.Helper()
	b.opts.RolloverEvents = 60
	b.restart(t, askForAppend)
	e := b.create(t, open(4, nil), parallel(
		appendTo("a", "A"), op{"op": "wait", "ms": 3000}, op{"op": "signal", "name": "go"}, repeat(9, write("{i}", "x"), llm("{i}")),
	), write("b", "B"))
	pending := b.waiting(t, e, 1)[0]
	b.waitForRuns(t, e, 2)
	b.grant(t, pending.ID, "bob")
	require.NoError(t, b.temporal.SignalWorkflow(t.Context(), e, "", "go", "now"))
	return b.end(t, e)
}

// TestRolloverRace has approvals granted and signals sent all the time, so that some come in the very
// moment in which the execution rolls over. None is lost, and none counts twice.
func TestRolloverRace(t *testing.T) {
	t.Parallel()
	const rounds, signals = 12, 150
	b := setup(t, rolling(60), withPolicy(t, askForAppend))
	e := b.create(t, open(1000, nil), parallel(
		repeat(rounds, appendTo("a", "{i},")),
		repeat(signals, op{"op": "signal", "name": "s"}),
		repeat(60, b.ledger("{i}")),
	))
	go func() {
		for i := range signals {
			_ = b.temporal.SignalWorkflow(context.Background(), e, "", "s", i)
		}
	}()
	refused := map[string]bool{}
	for granted := 0; granted < rounds; {
		found, err := b.Get(t.Context(), e)
		require.NoError(t, err)
		for _, a := range found.Approvals {
			if _, err := b.Grant(t.Context(), a.ID, tine.ApprovalDecision{By: "bob"}); err == nil {
				granted++
			} else if !refused[err.Error()] {
				refused[err.Error()] = true
				t.Logf("granting again after: %v", err)
			}
		}
	}
	log := b.end(t, e)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status)
	require.Greater(t, len(log.Execution().Runs), 2)
	require.Equal(t, map[string]string{"a": "0,1,2,3,4,5,6,7,8,9,10,11,"}, b.files(t, log))
	require.Len(t, b.lines(t), 60)
	var received []string
	for _, s := range log.Steps() {
		require.Equal(t, "succeeded", s.Status)
		if s.Target == protocol.StepReceive {
			received = append(received, string(s.Result))
		}
	}
	require.Len(t, received, signals)
	for i, payload := range received {
		require.Equal(t, fmt.Sprint(i), payload)
	}
}

// TestRolloverCancel cancels executions while they roll over again and again.
func TestRolloverCancel(t *testing.T) {
	t.Parallel()
	b := setup(t, rolling(60))
	for range 5 {
		e := b.create(t, repeat(1000, b.tally("{i}")))
		b.waitForRuns(t, e, 2)
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		require.NoError(t, b.Cancel(t.Context(), e))
		log := b.end(t, e)
		require.Equal(t, tine.StatusCancelled, log.Execution().Status)
		require.Equal(t, "execution.cancelled", log.Events()[log.Execution().LatestSeq-1].Type)
	}
}

// TestRolloverWide has more calls at once than a run may have events.
func TestRolloverWide(t *testing.T) {
	const wide = 250
	t.Parallel()
	b := setup(t, rolling(300))
	var calls []op
	for i := range wide {
		calls = append(calls, b.tally(fmt.Sprint(i)))
	}
	log := b.run(t, parallel(calls...), step("uuid"))
	require.Equal(t, tine.StatusCompleted, log.Execution().Status)
	require.Len(t, log.Steps(), wide+1)
	require.Len(t, b.lines(t), wide)
}

// TestRolloverRetention deletes all runs but the last. The log stays whole, and events of deleted runs
// can still be forked.
func TestRolloverRetention(t *testing.T) {
	t.Parallel()
	b := setup(t, rolling(80))
	log := b.run(t, open(1, nil), repeat(40, write("f{i}", "x")))
	runs := log.Execution().Runs
	require.Greater(t, len(runs), 2)
	for _, run := range runs[:len(runs)-1] {
		_, err := b.temporal.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
			Namespace: "default", WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: id(log), RunId: run},
		})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		_, err := b.temporal.DescribeWorkflow(t.Context(), id(log), runs[0])
		return err != nil
	}, patience, 50*time.Millisecond)
	again, err := b.Log(t.Context(), id(log))
	require.NoError(t, err)
	require.Equal(t, log.Events(), again.Events())
	b.forkEverywhere(t, again, 3)
}

// TestRolloverSession has turns of a session continue as new: the next one waits for the end, and goes on
// with the workspace.
func TestRolloverSession(t *testing.T) {
	t.Parallel()
	b := setup(t, rolling(80))
	label := "rolling-" + b.queue
	var turns []string
	for _, name := range []string{"a", "b"} {
		input, err := json.Marshal(op{"ops": []op{open(1, nil), repeat(25, write(name+"{i}", "x"))}})
		require.NoError(t, err)
		e, err := b.Create(t.Context(), tine.CreateRequest{Agent: script.Name, Input: input, Session: label})
		require.NoError(t, err)
		turns = append(turns, e.ID)
	}
	first, second := b.end(t, turns[0]), b.end(t, turns[1])
	for _, log := range []*tine.Log{first, second} {
		require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
		require.Greater(t, len(log.Execution().Runs), 1)
	}
	require.Equal(t, turns[0], second.Execution().ParentExecutionID)
	require.False(t, second.Execution().CreatedAt.IsZero())
	require.Len(t, b.files(t, second), 50)
}
