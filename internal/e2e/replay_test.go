package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"
	"google.golang.org/protobuf/proto"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/resources/resourcetest"
	"github.com/tinerun/tine/worker"
)

var record = flag.Bool("record", false, "run the cases that have no stored history, and store it")

// historiesDir is shared with the golden files of the event log.
const historiesDir = "../eventlog/testdata"

// recordCases are the paths of which histories are stored. A file, once stored, is never
// changed: it stands for executions that run somewhere. Each case gives an execution that has
// ended, and after an "@" its run if that is not the last.
var recordCases = map[string]func(*testing.T, *bench) string{
	"plain": func(t *testing.T, b *bench) string { return id(b.run(t, example(b, nil)...)) },
	"reuse": func(t *testing.T, b *bench) string { return id(b.run(t, example(b, op{"coverage_reuse": true})...)) },
	"fork-covered": func(t *testing.T, b *bench) string {
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(b.run(t, example(b, nil)...)), AtSeq: 14}))
	},
	"fork-uncovered": func(t *testing.T, b *bench) string {
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(b.run(t, example(b, nil)...)), AtSeq: 20}))
	},
	"fork-at-end": func(t *testing.T, b *bench) string {
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(b.run(t, example(b, nil)...)), AtSeq: 37}))
	},
	"fork-of-fork": func(t *testing.T, b *bench) string {
		first := b.fork(t, tine.ForkRequest{ExecutionID: id(b.run(t, example(b, nil)...)), AtSeq: 26})
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(first), AtSeq: first.Steps()[1].SettledSeq}))
	},
	"fork-diverged": func(t *testing.T, b *bench) string {
		source := b.run(t, b.tally("1"), b.tally("2"), b.tally("3"))
		input, err := json.Marshal(op{"ops": []op{b.tally("1"), b.tally("two")}})
		require.NoError(t, err)
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(source), AtSeq: source.Execution().LatestSeq, Input: input}))
	},
	"recorded": func(t *testing.T, b *bench) string {
		e := b.create(t, step("now"), step("uuid"), step("random"), op{"op": "wait", "ms": 50}, op{"op": "signal", "name": "go"})
		b.awaitStep(t, e, "receive")
		require.NoError(t, b.temporal.SignalWorkflow(t.Context(), e, "", "go", op{"sent": true}))
		return id(b.end(t, e))
	},
	"parallel": func(t *testing.T, b *bench) string {
		return id(b.run(t, parallel(b.tally("a"), b.tally("b"), b.tally("b"), llm("x"), step("now"))))
	},
	"parallel-with-resource": func(t *testing.T, b *bench) string {
		return id(b.run(t, open(1, nil), parallel(write("a", "A"), write("b", "B"), llm("x"), op{"op": "wait", "ms": 20})))
	},
	"bad-resources": func(t *testing.T, b *bench) string {
		return id(b.run(t, op{"op": "open", "key": "w", "driver": "nosuch"}, open(2, nil), open(2, op{"coverage_reuse": true}), write("../out", ""), tool("nosuch", op{})))
	},
	"failed": func(t *testing.T, b *bench) string {
		return id(b.run(t, open(1, nil), write("a", "A"), op{"op": "fail", "message": "on purpose"}))
	},
	"cancelled": func(t *testing.T, b *bench) string {
		e := b.create(t, open(1, nil), write("a", "A"), tool("shell", op{"command": "sleep 600"}))
		b.awaitStep(t, e, "shell")
		require.NoError(t, b.Cancel(t.Context(), e))
		return id(b.end(t, e))
	},
	"cancelled-receive": func(t *testing.T, b *bench) string {
		e := b.create(t, op{"op": "signal", "name": "never"})
		b.awaitStep(t, e, "receive")
		require.NoError(t, b.Cancel(t.Context(), e))
		return id(b.end(t, e))
	},
	"denied": func(t *testing.T, b *bench) string {
		b.stop()
		b.opts.Policy = denyAppends{}
		b.start(t)
		return id(b.run(t, open(1, nil), tool("append_file", op{"path": "a", "content": "A"}), step("uuid"), write("b", "B")))
	},
	"panics": func(t *testing.T, b *bench) string {
		e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "call", Input: json.RawMessage(`{"tool":"panics","args":{}}`)})
		require.NoError(t, err)
		return id(b.end(t, e.ID))
	},
	"checkpoint-failed": func(t *testing.T, b *bench) string {
		// A socket cannot be captured.
		return id(b.run(t, open(1, nil), tool("shell", op{"command": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'"}), tool("remove_file", op{"path": "s"})))
	},
	"checkpoint-missing": func(t *testing.T, b *bench) string {
		source := b.run(t, open(1, nil), write("a", "A"))
		damageStore(t, b.root)
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(source), AtSeq: 9}))
	},
	"indeterminate": func(t *testing.T, b *bench) string {
		b.stop()
		p := b.process(t, b.spec())
		input, err := json.Marshal(script.LineArgs{File: b.file(), Line: "once"})
		require.NoError(t, err)
		e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "slow_once", Input: input})
		require.NoError(t, err)
		b.waitForLine(t)
		p.kill()
		b.process(t, b.spec())
		return id(b.end(t, e.ID))
	},
	"indeterminate-retry": func(t *testing.T, b *bench) string {
		b.stop()
		return id(b.retriedEffect(t))
	},
	"approved": func(t *testing.T, b *bench) string {
		b.restart(t, askForAppends)
		return id(b.approvedRun(t))
	},
	"rolled-away": func(t *testing.T, b *bench) string {
		log := b.rolled(t)
		return id(log) + "@" + log.Execution().Runs[0]
	},
	"rolled": func(t *testing.T, b *bench) string { return id(b.rolled(t)) },
	"rolled-fork": func(t *testing.T, b *bench) string {
		b.opts.RolloverEvents = 0
		source := b.rolled(t)
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(source), AtSeq: source.Execution().LatestSeq - 20}))
	},
	"approval-denied": func(t *testing.T, b *bench) string {
		b.restart(t, askForAppends)
		e := b.create(t, open(1, nil), appendTo("a", "A"), write("b", "B"))
		_, err := b.Deny(t.Context(), b.waiting(t, e, 1)[0].ID, tine.ApprovalDecision{By: "alice", Reason: "no"})
		require.NoError(t, err)
		return id(b.end(t, e))
	},
	"approval-expired": func(t *testing.T, b *bench) string {
		b.restart(t, askForAppends)
		return id(b.run(t, b.tally("a")))
	},
	"approvals-side-by-side": func(t *testing.T, b *bench) string {
		b.restart(t, askForAppends)
		e := b.create(t, open(1, nil), parallel(appendTo("a", "A"), write("c", "C"), b.ledger("b"), step("uuid"), op{"op": "wait", "ms": 10}))
		for _, a := range b.waiting(t, e, 4) {
			b.grant(t, a.ID, "alice")
		}
		return id(b.end(t, e))
	},
	"approval-cancelled": func(t *testing.T, b *bench) string {
		b.restart(t, askForAppends)
		e := b.create(t, parallel(b.ledger("a"), b.ledger("b")))
		b.waiting(t, e, 2)
		require.NoError(t, b.Cancel(t.Context(), e))
		return id(b.end(t, e))
	},
	"fork-approved": func(t *testing.T, b *bench) string {
		b.restart(t, askForAppends)
		log := b.approvedRun(t)
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: log.Execution().LatestSeq}))
	},
	"fork-guarded": func(t *testing.T, b *bench) string {
		log := b.run(t, b.tally("first"), b.ledger("effect"))
		e, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: id(log), AtSeq: log.Steps()[0].SettledSeq})
		require.NoError(t, err)
		b.grant(t, b.waiting(t, e.ID, 1)[0].ID, "anybody")
		return id(b.end(t, e.ID))
	},
	"fork-with-policy": func(t *testing.T, b *bench) string {
		log := b.run(t, b.tally("1"), b.tally("2"))
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: log.Steps()[0].SettledSeq, Policy: brought(t, `
default_action: allow
rules: [{id: no-tally, when: {target: tally}, then: {decision: deny}}]
`)}))
	},
	"limited": func(t *testing.T, b *bench) string {
		b.restart(t, limits)
		return id(b.run(t, b.tally("a"), b.tally("b"), b.tally("c"), b.tally("c"), b.ledger("d"), b.ledger("e"), llm("one two three four"), llm("five")))
	},
	"approvals-at-once": func(t *testing.T, b *bench) string { // listed once a workflow task
		b.restart(t, askForAppends)
		e := b.create(t, parallel(b.ledger("a"), b.ledger("b"), b.ledger("c")))
		pending := b.waiting(t, e, 3)
		b.grant(t, pending[0].ID, "alice")
		_, err := b.Deny(t.Context(), pending[1].ID, tine.ApprovalDecision{By: "bob"})
		require.NoError(t, err)
		b.grant(t, pending[2].ID, "alice")
		return id(b.end(t, e))
	},
	"fork-refused": func(t *testing.T, b *bench) string {
		b.restart(t, limits)
		log := b.run(t, b.tally("a"), b.tally("b"), b.tally("c"), b.tally("c"), step("uuid"))
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: log.Execution().LatestSeq - 1}))
	},
	"paused": func(t *testing.T, b *bench) string {
		b.restart(t, "default_action: allow\nrules: [{id: ask, when: {target: ask}, then: {decision: require_approval}}]")
		e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "pausing", Input: json.RawMessage(`"blocked"`)})
		require.NoError(t, err)
		a := b.waiting(t, e.ID, 1)[0]
		b.awaitEvent(t, e.ID, "resource.paused")
		b.grant(t, a.ID, "alice")
		return id(b.end(t, e.ID))
	},
	"loop": func(t *testing.T, b *bench) string {
		b.serve(t, modelItems(t, &modelServer{answers: loopAnswers()})...)
		log, _ := b.converse(t)
		return id(log)
	},
	"conversation": func(t *testing.T, b *bench) string { // as the loop, with requests by what is new
		b.serve(t, modelItems(t, &modelServer{answers: loopAnswers()})...)
		log, _ := b.converse(t)
		return id(log)
	},
	"conversation-rolled": func(t *testing.T, b *bench) string {
		b.opts.RolloverEvents = 30
		b.serve(t, modelItems(t, &modelServer{answers: loopAnswers()})...)
		log, _ := b.converse(t)
		return id(log)
	},
	"mcp": func(t *testing.T, b *bench) string {
		b.serve(t, libraryItems(t, newLibrary(t), nil)...)
		return id(b.patronRun(t))
	},
	"mcp-fork": func(t *testing.T, b *bench) string {
		site := newLibrary(t)
		b.serve(t, libraryItems(t, site, nil)...)
		source := b.patronRun(t)
		site.restart("lend", "new.tool")
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(source), AtSeq: source.Steps()[2].SettledSeq}))
	},
	"session-turn": func(t *testing.T, b *bench) string {
		p := &parley{bench: b, session: "turn"}
		p.hear(t, p.say(t, remark{Say: "1", Note: "a"}))
		return p.say(t, remark{Say: "2", Note: "b"})
	},
	"session-waited": func(t *testing.T, b *bench) string { // by a token, and up to ten minutes
		p := &parley{bench: b, session: "waited"}
		first := p.say(t, remark{Say: "1", Wait: true})
		p.reach(t, first, tine.StatusRunning)
		second := p.say(t, remark{Say: "2", Note: "b"})
		p.waits(t, second)
		p.goOn(t, first)
		p.hear(t, second)
		return second
	},
	"session-cancelled": func(t *testing.T, b *bench) string {
		p := &parley{bench: b, session: "cancelled"}
		first := p.say(t, remark{Say: "1", Wait: true})
		p.reach(t, first, tine.StatusRunning)
		second := p.say(t, remark{Say: "2"})
		p.waits(t, second)
		require.NoError(t, b.Cancel(t.Context(), second))
		p.end(t, second)
		p.goOn(t, first)
		p.end(t, first)
		return second
	},
	"session-fork": func(t *testing.T, b *bench) string {
		p := &parley{bench: b, session: "source"}
		p.hear(t, p.say(t, remark{Say: "1", Note: "a"}))
		_, second := p.hear(t, p.say(t, remark{Say: "2", Note: "b"}))
		return id(b.fork(t, tine.ForkRequest{ExecutionID: id(second), AtSeq: second.Steps()[0].SettledSeq, Session: "fork"}))
	},
	"session-parent": func(t *testing.T, b *bench) string {
		p := &parley{bench: b}
		first := p.say(t, remark{Say: "1", Note: "a"})
		p.hear(t, first)
		return p.say(t, remark{Say: "2", Note: "b"}, func(r *tine.CreateRequest) { r.Parent = first })
	},
	"session-gone": func(t *testing.T, b *bench) string {
		p := &parley{bench: b, session: "gone"}
		_, first := p.hear(t, p.say(t, remark{Say: "1", Note: "a"}))
		require.NoError(t, os.RemoveAll(p.workspace(t, first).Path()))
		return p.say(t, remark{Say: "2", Note: "b"})
	},
	// The workflow that keeps the session, while it goes on.
	"session": func(t *testing.T, b *bench) string {
		p := &parley{bench: b, session: "kept"}
		first := p.say(t, remark{Say: "1", Wait: true})
		p.reach(t, first, tine.StatusRunning)
		second, third := p.say(t, remark{Say: "2", Fail: true}), p.say(t, remark{Say: "3"})
		p.waits(t, second)
		p.goOn(t, first)
		p.hear(t, third)
		// Nothing is left to do once the next one has its turn.
		fourth := p.say(t, remark{Say: "4", Wait: true})
		p.reach(t, fourth, tine.StatusRunning)
		return protocol.SessionWorkflowID(p.session)
	},
	"host-bound": func(t *testing.T, b *bench) string {
		b.stop()
		spec := b.spec()
		spec.Shared = false
		b.process(t, spec)
		return id(b.run(t, example(b, nil)...))
	},
}

func id(log *tine.Log) string { return log.Execution().ID }

// replayItems are the agents whose histories are stored.
func replayItems(driver *directory.Driver) []worker.Item {
	items := append(brokenItems(driver), pausingItems(worker.Driver(resourcetest.NewMemory()))...)
	return append(items,
		worker.Agent("slow_once", slowOnce), worker.Agent("slow_twice", slowTwice), worker.Tool(slowEffect, runSlowEffect),
		worker.Agent("chat", chat), worker.Agent("converse", converse), worker.Agent("patron", patron))
}

func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("run with -record to store histories of new cases")
	}
	for name, run := range recordCases {
		file := filepath.Join(historiesDir, name, "history.json")
		if _, err := os.Stat(file); err == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			b := setup(t, withItems(replayItems))
			// Arguments are part of a step's identity, so the ledger's path must name no machine.
			b.scratch = filepath.Join(os.TempDir(), "tine-record")
			require.NoError(t, os.MkdirAll(b.scratch, 0o700))
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(b.scratch)) })
			execution, runID, _ := strings.Cut(run(t, b), "@")
			if name != "session" {
				b.end(t, execution)
			}
			history := &historypb.History{}
			events := b.temporal.GetWorkflowHistory(t.Context(), execution, runID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
			for events.HasNext() {
				event, err := events.Next()
				require.NoError(t, err)
				history.Events = append(history.Events, event)
			}
			raw, err := temporalproto.CustomJSONMarshalOptions{Indent: "  "}.Marshal(scrub(history, b))
			require.NoError(t, err)
			text := strings.ReplaceAll(string(raw), b.queue, "queue")
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o644))
		})
	}
}

// scrub removes what names the machine that recorded.
func scrub(history *historypb.History, b *bench) *historypb.History {
	for _, event := range history.Events {
		event.WorkerMayIgnore = false
		switch a := event.Attributes.(type) {
		case *historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes:
			a.WorkflowExecutionStartedEventAttributes.Identity = ""
		case *historypb.HistoryEvent_WorkflowTaskScheduledEventAttributes:
			a.WorkflowTaskScheduledEventAttributes.TaskQueue.NormalName = ""
			a.WorkflowTaskScheduledEventAttributes.TaskQueue.Name = b.queue
			a.WorkflowTaskScheduledEventAttributes.TaskQueue.Kind = enumspb.TASK_QUEUE_KIND_NORMAL
		case *historypb.HistoryEvent_WorkflowTaskStartedEventAttributes:
			a.WorkflowTaskStartedEventAttributes.Identity = ""
		case *historypb.HistoryEvent_WorkflowTaskCompletedEventAttributes:
			a.WorkflowTaskCompletedEventAttributes.Identity = ""
		case *historypb.HistoryEvent_WorkflowTaskFailedEventAttributes:
			a.WorkflowTaskFailedEventAttributes.Identity = ""
		case *historypb.HistoryEvent_ActivityTaskStartedEventAttributes:
			a.ActivityTaskStartedEventAttributes.Identity = ""
		case *historypb.HistoryEvent_ActivityTaskCompletedEventAttributes:
			a.ActivityTaskCompletedEventAttributes.Identity = ""
		case *historypb.HistoryEvent_ActivityTaskFailedEventAttributes:
			a.ActivityTaskFailedEventAttributes.Identity = ""
		case *historypb.HistoryEvent_ActivityTaskCanceledEventAttributes:
			a.ActivityTaskCanceledEventAttributes.Identity = ""
		case *historypb.HistoryEvent_WorkflowExecutionSignaledEventAttributes:
			a.WorkflowExecutionSignaledEventAttributes.Identity = ""
		case *historypb.HistoryEvent_WorkflowExecutionCancelRequestedEventAttributes:
			a.WorkflowExecutionCancelRequestedEventAttributes.Identity = ""
		}
	}
	return history
}

// TestReplay replays the stored histories, whole and as a worker gets them with each task: a change of the
// runtime that breaks executions fails here.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, name := range storedCases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			history := stored(t, name)
			require.NoError(t, replay(t, history))
			for i, event := range history.Events {
				if event.EventType != enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED {
					continue
				}
				require.NoError(t, replay(t, &historypb.History{Events: history.Events[:i+1]}), "up to event %d", i+1)
			}
		})
	}
}

// TestReplayNoticesChanges changes what the runtime seems to have asked for, as a change of its
// command order would, and expects the replay to fail.
func TestReplayNoticesChanges(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*historypb.History) bool{
		"two activities change places": func(h *historypb.History) bool {
			scheduled := find(h, enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)
			if len(scheduled) < 2 {
				return false
			}
			a, b := scheduled[0].GetActivityTaskScheduledEventAttributes(), scheduled[1].GetActivityTaskScheduledEventAttributes()
			if proto.Equal(a.ActivityType, b.ActivityType) {
				return false
			}
			a.ActivityType, b.ActivityType = b.ActivityType, a.ActivityType
			return true
		},
		"an activity has another name": func(h *historypb.History) bool {
			scheduled := find(h, enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)
			if len(scheduled) == 0 {
				return false
			}
			scheduled[len(scheduled)-1].GetActivityTaskScheduledEventAttributes().ActivityType = &commonpb.ActivityType{Name: "other"}
			return true
		},
		"a local activity has another name": func(h *historypb.History) bool {
			for _, m := range find(h, enumspb.EVENT_TYPE_MARKER_RECORDED) {
				data := m.GetMarkerRecordedEventAttributes().GetDetails()["data"]
				if data == nil || len(data.Payloads) == 0 {
					continue
				}
				data.Payloads[0].Data = []byte(strings.Replace(string(data.Payloads[0].Data), "tine.", "other.", 1))
				return true
			}
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := 0
			for _, stored := range storedHistories(t) {
				if !change(stored) {
					continue
				}
				changed++
				require.Error(t, replay(t, stored))
			}
			require.Positive(t, changed)
		})
	}
}

func find(h *historypb.History, kind enumspb.EventType) []*historypb.HistoryEvent {
	var found []*historypb.HistoryEvent
	for _, event := range h.Events {
		if event.EventType == kind {
			found = append(found, event)
		}
	}
	return found
}

func replay(t *testing.T, history *historypb.History) error {
	t.Helper()
	replayer, err := sdkworker.NewWorkflowReplayerWithOptions(sdkworker.WorkflowReplayerOptions{})
	require.NoError(t, err)
	driver, err := directory.New(directory.Options{Root: t.TempDir(), Shared: true})
	require.NoError(t, err)
	require.NoError(t, worker.RegisterWorkflows(replayer, replayItems(driver)...))
	return replayer.ReplayWorkflowHistory(nil, history)
}

func storedCases(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(historiesDir, "*", "history.json"))
	require.NoError(t, err)
	var names []string
	for _, file := range files {
		names = append(names, filepath.Base(filepath.Dir(file)))
	}
	require.NotEmpty(t, names)
	slices.Sort(names)
	return names
}

func storedHistories(t *testing.T) []*historypb.History {
	t.Helper()
	var all []*historypb.History
	for _, name := range storedCases(t) {
		all = append(all, stored(t, name))
	}
	return all
}

func stored(t *testing.T, name string) *historypb.History {
	t.Helper()
	f, err := os.Open(filepath.Join(historiesDir, name, "history.json"))
	require.NoError(t, err)
	defer f.Close()
	history, err := client.HistoryFromJSON(f, client.HistoryJSONOptions{})
	require.NoError(t, err)
	return history
}

// TestEveryCaseIsStored keeps the stored histories and the cases together.
func TestEveryCaseIsStored(t *testing.T) {
	t.Parallel()
	names := storedCases(t)
	for name := range recordCases {
		require.Contains(t, names, name, "run: go test ./internal/e2e -run TestRecord -record")
	}
}
