package eventlog_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

func TestCoverageEnds(t *testing.T) {
	t.Parallel()
	// The baseline of "ws" covers from event 4, and is event 5.
	tests := map[string]struct {
		step  func(*history)
		plain int64 // when coverage ends
		reuse int64 // and when it does with coverage_reuse
	}{
		"nothing happens":   {func(*history) {}, 0, 0},
		"an affecting tool": {func(h *history) { h.begin(h.tool("ws")) }, 8, 8},
		"an affecting local step": {func(h *history) {
			h.runLocal(h.call(protocol.KindLocal, "x", 1, "ws"), protocol.Outcome{})
		}, 8, 8},
		"another tool":         {func(h *history) { h.begin(h.tool("other")) }, 8, 0},
		"a tool of no effect":  {func(h *history) { h.begin(h.tool()) }, 8, 0},
		"a model call":         {func(h *history) { h.begin(h.llm()) }, 8, 0},
		"a declared model":     {func(h *history) { h.begin(h.call(protocol.KindLLM, "gpt", 1, "ws")) }, 8, 0},
		"a step only allowed":  {func(h *history) { h.decide(h.tool("ws"), allow) }, 0, 0},
		"a denied step":        {func(h *history) { h.decide(h.tool("ws"), deny) }, 0, 0},
		"only the first, both": {func(h *history) { h.begin(h.tool("ws")); h.begin(h.tool("ws")) }, 8, 8},
		"the first that matters": {func(h *history) {
			h.run(h.llm())        // 6 to 9
			h.begin(h.tool("ws")) // 12
		}, 8, 12},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, reuse := range []bool{false, true} {
				h := newHistory(t)
				h.open("ws", reuse, "c0")
				tt.step(h)
				want := tt.plain
				if reuse {
					want = tt.reuse
				}
				log := h.log()
				require.Equal(t, []eventlog.Checkpoint{{Key: "ws", CheckpointRef: "c0", CoveredSeq: 4, InvalidatedSeq: want, Cause: "baseline"}}, log.Checkpoints)
				require.Equal(t, want == 0, log.Resource("ws").Covered)
				require.Equal(t, want == 0, log.Covered(log.LatestSeq()))
			}
		})
	}
}

// TestLateCheckpoint has a capture that ends after a model call began: the model's
// step.executing lies between the state and the event that records it.
func TestLateCheckpoint(t *testing.T) {
	t.Parallel()
	for _, reuse := range []bool{false, true} {
		h := newHistory(t)
		h.create("ws", reuse)
		c := h.run(h.tool("ws")) // 5 to 8
		scheduled := h.scheduleCheckpoint("ws", protocol.CauseStep, c.ID)
		h.begin(h.llm()) // 9 to 11
		h.complete(scheduled, protocol.CheckpointTaken{Ref: "c"})
		log := h.log()
		want := eventlog.Checkpoint{Key: "ws", CheckpointRef: "c", CoveredSeq: 8, InvalidatedSeq: 11, Cause: "step"}
		if reuse {
			want.InvalidatedSeq = 0
		}
		require.Equal(t, []eventlog.Checkpoint{want}, log.Checkpoints)
		require.Equal(t, reuse, log.Resource("ws").Covered)
		require.True(t, log.Covered(8))
		require.True(t, log.Covered(10))
		require.Equal(t, reuse, log.Covered(11))
	}
}

func TestCovered(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.open("a", false, "a0")                           // 3 to 5
	c := h.run(h.tool("a"))                            // 6 to 9
	h.checkpoint("a", protocol.CauseStep, c.ID, "a1")  // 10
	h.create("b", true)                                // 11, 12
	h.checkpoint("b", protocol.CauseBaseline, "", "b") // 13, covers 12
	log := h.log()

	covered := map[int64]bool{}
	for seq := int64(1); seq <= log.LatestSeq(); seq++ {
		covered[seq] = log.Covered(seq)
	}
	require.Equal(t, map[int64]bool{
		1: true, 2: true, // no resources yet
		3: false, 4: true, 5: true, 6: true, 7: true,
		8: false, 9: true, 10: true,
		11: false, // b is registered
		12: true, 13: true,
	}, covered)
	require.True(t, log.CoveredResource("a", 11))
	require.False(t, log.CoveredResource("b", 11))

	require.Equal(t, eventlog.ForkPoints{
		LatestSeq: 13,
		Resources: map[string]int64{"a": 3, "b": 11},
		Checkpoints: []eventlog.Checkpoint{
			{Key: "a", CheckpointRef: "a0", CoveredSeq: 4, InvalidatedSeq: 8, Cause: "baseline"},
			{Key: "a", CheckpointRef: "a1", CoveredSeq: 9, Cause: "step"},
			{Key: "b", CheckpointRef: "b", CoveredSeq: 12, Cause: "baseline"},
		},
	}, log.ForkPoints())
}

func TestForkPointsOfNothing(t *testing.T) {
	t.Parallel()
	points := newHistory(t).log().ForkPoints()
	require.Equal(t, eventlog.ForkPoints{LatestSeq: 2, Resources: map[string]int64{}, Checkpoints: []eventlog.Checkpoint{}}, points)
}

// TestCoverageInFork has what copied checkpoints cover in the fork.
func TestCoverageInFork(t *testing.T) {
	t.Parallel()
	for _, reuse := range []bool{false, true} {
		h := newHistory(t)
		h.open("ws", reuse, "c0")                          // 3 to 5
		c := h.run(h.tool("ws"))                           // 6 to 9
		h.checkpoint("ws", protocol.CauseStep, c.ID, "c1") // 10, covers 9
		source := h.log()

		// created, forked, registered, proposed, allowed, executing, succeeded (7),
		// initialized, checkpointed c0 [3,6), checkpointed c1 [7,), started (11)
		f := forkOf(t, source, 10, 1<<20)
		log := f.log()
		require.Equal(t, []eventlog.Checkpoint{
			{Key: "ws", CheckpointRef: "c0", CoveredSeq: 3, InvalidatedSeq: 6, Cause: "baseline"},
			{Key: "ws", CheckpointRef: "c1", CoveredSeq: 7, Cause: "step"},
		}, log.Checkpoints)
		require.Equal(t, int64(11), log.LatestSeq())
		require.True(t, log.Covered(11))
		require.True(t, log.Resource("ws").Covered, "copied steps end no coverage")

		f.run(f.llm()) // 12 to 15
		f.begin(f.tool("ws"))
		log = f.log()
		ended := int64(14)
		if reuse {
			ended = 18
		}
		require.Equal(t, ended, log.Checkpoints[1].InvalidatedSeq)
		require.Equal(t, int64(6), log.Checkpoints[0].InvalidatedSeq)
	}
}
