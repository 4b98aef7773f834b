package eventlog_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

func TestPlanForkRefuses(t *testing.T) {
	t.Parallel()
	log := newHistory(t).log()
	for _, seq := range []int64{-1, 0, 3} {
		_, err := log.PlanFork(seq)
		var seqErr *eventlog.SeqError
		require.ErrorAs(t, err, &seqErr)
		require.Equal(t, &eventlog.SeqError{AtSeq: seq, Latest: 2}, seqErr)
		_, err = log.Prefix(seq)
		require.ErrorAs(t, err, &seqErr)
	}
	_, err := log.PlanFork(3)
	require.EqualError(t, err, "cannot fork at event 3: the execution has events 1 to 2")
	_, err = emptyHistory(t).log().PlanFork(1)
	require.EqualError(t, err, "cannot fork at event 1: the execution has no events yet")
}

func TestSelection(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.create("ws", false)                                // 3, 4
	h.run(h.tool("ws"))                                  // 5 to 8
	h.checkpoint("ws", protocol.CauseBaseline, "", "c0") // 9, covers 8
	a := h.run(h.tool("ws"))                             // 10 to 13; ends c0 at 12
	h.checkpoint("ws", protocol.CauseStep, a.ID, "c1")   // 14, covers 13
	h.run(h.llm())                                       // 15 to 18; ends c1 at 17
	h.create("late", true)                               // 19, 20
	log := h.log()

	tests := map[string]struct {
		at   int64
		want map[string]protocol.Restoration
	}{
		"no resource yet":                  {2, map[string]protocol.Restoration{}},
		"registered, not bound":            {3, map[string]protocol.Restoration{"ws": {}}},
		"no checkpoint yet":                {7, map[string]protocol.Restoration{"ws": {}}},
		"its event lies after":             {8, map[string]protocol.Restoration{"ws": {CheckpointRef: "c0", CheckpointSeq: 8, Covered: true, Host: "host-ws"}}},
		"covered":                          {11, map[string]protocol.Restoration{"ws": {CheckpointRef: "c0", CheckpointSeq: 8, Covered: true, Host: "host-ws"}}},
		"the writer executes":              {12, map[string]protocol.Restoration{"ws": {CheckpointRef: "c0", CheckpointSeq: 8, Host: "host-ws"}}},
		"the writer's outcome":             {13, map[string]protocol.Restoration{"ws": {CheckpointRef: "c1", CheckpointSeq: 13, Covered: true, Host: "host-ws"}}},
		"a later step executes":            {17, map[string]protocol.Restoration{"ws": {CheckpointRef: "c1", CheckpointSeq: 13, Host: "host-ws"}}},
		"one registered later, uncaptured": {20, map[string]protocol.Restoration{"ws": {CheckpointRef: "c1", CheckpointSeq: 13, Host: "host-ws"}, "late": {}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := log.PlanFork(tt.at)
			require.NoError(t, err)
			require.Equal(t, eventlog.Plan{AtSeq: tt.at, HistoryEvents: int64(len(h.events)), Restoration: tt.want}, plan)
		})
	}
}

// TestSelectionPrefersCovering has an older checkpoint that covers and a newer one
// that does not. No driver makes that, but the rule does not depend on it.
func TestSelectionPrefersCovering(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.open("ws", true, "older") // 3 to 5, covers 4
	h.checkpoint("ws", protocol.CauseCompletion, "", "newer")
	h.run(h.llm())
	log := h.log()
	log.Checkpoints[1].InvalidatedSeq = 6
	plan, err := log.PlanFork(8)
	require.NoError(t, err)
	require.Equal(t, protocol.Restoration{CheckpointRef: "older", CheckpointSeq: 4, Covered: true, Host: "host-ws"}, plan.Restoration["ws"])
}

func TestSelectionOfTwoOnOneSeq(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.create("ws", false)
	c := h.run(h.tool("ws")) // 5 to 8
	h.checkpoint("ws", protocol.CauseStep, c.ID, "first")
	h.checkpoint("ws", protocol.CauseStep, c.ID, "second")
	plan, err := h.log().PlanFork(8)
	require.NoError(t, err)
	require.Equal(t, "second", plan.Restoration["ws"].CheckpointRef)
}

// TestSelectionInFork cuts a fork where its resource has not been bound again.
func TestSelectionInFork(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.open("ws", false, "c0")                          // 3 to 5
	a := h.run(h.tool("ws"))                           // 6 to 9
	h.checkpoint("ws", protocol.CauseStep, a.ID, "c1") // 10
	h.begin(h.tool("ws"))                              // 11 to 13; ends c1
	source := h.log()

	f := forkOf(t, source, 13, 1<<20)
	log := f.log()
	requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionForked,
		eventlog.ResourceRegistered, eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded,
		eventlog.ResourceInitialized, eventlog.ResourceCheckpointed, eventlog.ResourceCheckpointed, eventlog.ExecutionStarted)
	require.Equal(t, `{"key":"ws","checkpoint_ref":"c1"}`, payload(t, log, 8, eventlog.ResourceInitialized))
	require.Equal(t, "c1", log.Resource("ws").CheckpointRef)
	require.Equal(t, "host-ws", log.Resource("ws").Host, "the host that holds the checkpoint")
	require.Equal(t, []eventlog.Checkpoint{
		{Key: "ws", CheckpointRef: "c0", CoveredSeq: 3, InvalidatedSeq: 6, Cause: "baseline"},
		{Key: "ws", CheckpointRef: "c1", CoveredSeq: 7, InvalidatedSeq: 7, Cause: "step"}, // its writer is not copied
	}, log.Checkpoints)

	for seq, want := range map[int64]protocol.Restoration{
		4:  {CheckpointRef: "c0", CheckpointSeq: 3, Covered: true, Host: "host-ws"},
		7:  {CheckpointRef: "c1", CheckpointSeq: 7, Host: "host-ws"},
		11: {CheckpointRef: "c1", CheckpointSeq: 7, Host: "host-ws"},
	} {
		plan, err := log.PlanFork(seq)
		require.NoError(t, err)
		require.Equal(t, want, plan.Restoration["ws"], "at %d", seq)
	}

	f.create("ws", false)                                  // 12: bound
	f.checkpoint("ws", protocol.CauseBaseline, "", "base") // 13, covers 12
	plan, err := f.log().PlanFork(13)
	require.NoError(t, err)
	require.Equal(t, protocol.Restoration{CheckpointRef: "base", CheckpointSeq: 12, Covered: true, Host: "host-ws"}, plan.Restoration["ws"])
}

// TestSelectionOfStart has a resource whose starting checkpoint is not among the
// copied ones.
func TestSelectionOfStart(t *testing.T) {
	t.Parallel()
	h := emptyHistory(t)
	h.started(nil, &protocol.Start{Fork: &protocol.Fork{ExecutionID: "src", Restoration: map[string]protocol.Restoration{
		"ws": {CheckpointRef: "c9", Host: "host"},
	}}})
	h.workflowTask()
	h.complete(h.schedule(protocol.ActivityLoadPrefix, ""), protocol.PrefixPage{Records: []protocol.PrefixRecord{
		{Type: eventlog.ResourceRegistered, Key: "ws", Resource: &protocol.PrefixResource{ResourceSpec: protocol.ResourceSpec{Key: "ws", Driver: "dir"}}},
		{Type: eventlog.ResourceInitialized, Key: "ws", Checkpoint: &protocol.PrefixCheckpoint{Ref: "c9"}},
	}})
	log := h.log()
	for seq, want := range map[int64]protocol.Restoration{
		3: {}, // it had not started then
		4: {CheckpointRef: "c9", Host: "host"},
		5: {CheckpointRef: "c9", Host: "host"},
	} {
		plan, err := log.PlanFork(seq)
		require.NoError(t, err)
		require.Equal(t, want, plan.Restoration["ws"], "at %d", seq)
	}
}
