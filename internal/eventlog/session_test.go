package eventlog_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

func (h *history) signal(name string, arg any) {
	h.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionSignaledEventAttributes{
			WorkflowExecutionSignaledEventAttributes: &historypb.WorkflowExecutionSignaledEventAttributes{
				SignalName: name, Input: h.payloads(arg),
			},
		}
	})
}

// turn is an execution of a session that waits for its turn.
func turn(t *testing.T, start protocol.Start) *history {
	t.Helper()
	h := emptyHistory(t)
	h.started("x", &start)
	h.workflowTask()
	h.marker(protocol.ActivityJoin, nil, nil)
	h.workflowTask()
	return h
}

func TestSessionTurn(t *testing.T) {
	t.Parallel()

	t.Run("waits", func(t *testing.T) {
		t.Parallel()
		h := turn(t, protocol.Start{Session: "s"})
		h.signal("go", true) // the agent's
		log := h.log()
		requireTypes(t, log, eventlog.ExecutionCreated)
		require.Equal(t, protocol.StatusPending, log.Status)
		require.True(t, log.Waiting)
		require.Equal(t, "s", log.Session)
		h.signal(protocol.SignalAdmit, protocol.Admission{})
		log = h.log()
		requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionStarted)
		require.Equal(t, protocol.StatusRunning, log.Status)
		require.False(t, log.Waiting)
	})

	t.Run("has no worker", func(t *testing.T) {
		t.Parallel()
		h := emptyHistory(t)
		h.started("x", &protocol.Start{Session: "s"})
		require.False(t, h.log().Waiting)
	})

	t.Run("is cancelled before it runs", func(t *testing.T) {
		t.Parallel()
		h := turn(t, protocol.Start{Session: "s"})
		h.terminated("test")
		log := h.log()
		requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionCancelled)
		require.False(t, log.Waiting)
	})

	t.Run("continues its parent", func(t *testing.T) {
		t.Parallel()
		h := turn(t, protocol.Start{Session: "s"})
		h.signal(protocol.SignalAdmit, protocol.Admission{Parent: "p", ParentRunID: "r"})
		h.signal(protocol.SignalAdmit, protocol.Admission{Parent: "q"}) // only the first one counts
		load := h.schedule(protocol.ActivityLoadParent, "", protocol.LoadParent{ExecutionID: "p"})
		h.complete(load, protocol.Previous{ExecutionID: "p", State: json.RawMessage(`[1]`), Resources: []protocol.PreviousResource{
			{
				ResourceSpec: protocol.ResourceSpec{Key: "b", Driver: "d", Config: json.RawMessage(`{"c":1}`), EverySteps: 2},
				Binding:      json.RawMessage(`{"id":1}`), CoverageReuse: true, Host: "h",
			},
			{ResourceSpec: protocol.ResourceSpec{Key: "a", Driver: "d", EverySteps: 1}},
		}})
		log := h.log()
		requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionStarted,
			eventlog.ResourceRegistered, eventlog.ResourceBound, eventlog.ResourceRegistered)
		require.JSONEq(t, `{"agent_id":"coder","session":"s"}`, payload(t, log, 1, eventlog.ExecutionCreated))
		require.JSONEq(t, `{"parent_execution_id":"p"}`, payload(t, log, 2, eventlog.ExecutionStarted))
		require.JSONEq(t, `{"key":"b","driver":"d","config":{"c":1},"every_steps":2,"on_completion":false}`, payload(t, log, 3, eventlog.ResourceRegistered))
		require.JSONEq(t, `{"key":"b","driver":"d","binding":{"id":1}}`, payload(t, log, 4, eventlog.ResourceBound))
		require.Equal(t, "p", log.Parent)
		require.JSONEq(t, `[1]`, string(log.Previous.State))
		bound, unbound := log.Resources[0], log.Resources[1]
		require.Equal(t, "h", bound.Host)
		require.True(t, bound.CoverageReuse)
		require.Zero(t, bound.Count)
		require.False(t, bound.Covered)
		require.Nil(t, unbound.Binding)

		h.schedule(protocol.ActivityOpenResource, "", protocol.OpenResource{ResourceSpec: protocol.ResourceSpec{Key: "b", Driver: "d", EverySteps: 5, OnCompletion: true}})
		h.checkpoint("b", protocol.CauseBaseline, "", "c1")
		h.marker(protocol.ActivityState, protocol.State{State: json.RawMessage(`[1,2]`)}, nil)
		log = h.log()
		requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionStarted,
			eventlog.ResourceRegistered, eventlog.ResourceBound, eventlog.ResourceRegistered, eventlog.ResourceCheckpointed)
		require.Equal(t, 5, log.Resources[0].EverySteps)
		require.EqualValues(t, 5, log.Checkpoints[0].CoveredSeq)
		require.True(t, log.Resources[0].Covered)
		require.JSONEq(t, `[1,2]`, string(log.State))
		require.Zero(t, log.Ignored)
	})

	t.Run("a fork keeps the parent of its source", func(t *testing.T) {
		t.Parallel()
		h := turn(t, protocol.Start{Session: "new", Parent: "p", Fork: &protocol.Fork{
			ExecutionID: "src", RunID: "r", AtSeq: 2, Page: &protocol.PrefixPage{},
		}})
		requireTypes(t, h.log(), eventlog.ExecutionCreated, eventlog.ExecutionForked)
		h.signal(protocol.SignalAdmit, protocol.Admission{Parent: "other"})
		log := h.log()
		requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionForked, eventlog.ExecutionStarted)
		require.JSONEq(t, `{"parent_execution_id":"p"}`, payload(t, log, 3, eventlog.ExecutionStarted))
	})

	t.Run("a fork that loads its prefix starts after it", func(t *testing.T) {
		t.Parallel()
		h := emptyHistory(t)
		h.started("x", &protocol.Start{Session: "new", Fork: &protocol.Fork{ExecutionID: "src", RunID: "r", AtSeq: 2}})
		h.workflowTask()
		load := h.schedule(protocol.ActivityLoadPrefix, "", protocol.LoadPrefix{AtSeq: 2})
		h.signal(protocol.SignalAdmit, protocol.Admission{})
		requireTypes(t, h.log(), eventlog.ExecutionCreated, eventlog.ExecutionForked)
		h.complete(load, protocol.PrefixPage{Records: []protocol.PrefixRecord{
			{Type: eventlog.ResourceRegistered, Key: "w", Resource: &protocol.PrefixResource{}},
		}})
		requireTypes(t, h.log(), eventlog.ExecutionCreated, eventlog.ExecutionForked, eventlog.ResourceRegistered, eventlog.ExecutionStarted)
	})

	t.Run("what is not an admission does not count", func(t *testing.T) {
		t.Parallel()
		h := turn(t, protocol.Start{Session: "s"})
		h.signal(protocol.SignalAdmit, "come in")
		require.Equal(t, protocol.StatusPending, h.log().Status)
	})
}
