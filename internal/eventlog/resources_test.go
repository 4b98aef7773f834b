package eventlog_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

func TestResource(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.open("ws", true, "c0")
	c := h.run(h.tool("ws"))
	h.checkpoint("ws", protocol.CauseStep, c.ID, "c1")
	h.completed(nil)
	log := h.log()
	requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionStarted,
		eventlog.ResourceRegistered, eventlog.ResourceBound, eventlog.ResourceCheckpointed,
		eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded,
		eventlog.ResourceCheckpointed, eventlog.ExecutionCompleted)
	require.Equal(t, `{"key":"ws","driver":"dir","config":{"size":1},"every_steps":1,"on_completion":true}`, payload(t, log, 3, eventlog.ResourceRegistered))
	require.Equal(t, `{"key":"ws","driver":"dir","binding":{"id":"ws"}}`, payload(t, log, 4, eventlog.ResourceBound))
	require.Equal(t, `{"key":"ws","checkpoint_ref":"c0","covered_seq":4,"cause":"baseline"}`, payload(t, log, 5, eventlog.ResourceCheckpointed))
	require.Equal(t, `{"key":"ws","checkpoint_ref":"c1","covered_seq":9,"cause":"step"}`, payload(t, log, 10, eventlog.ResourceCheckpointed))

	ws := log.Resource("ws")
	require.Equal(t, int64(3), ws.RegisteredSeq)
	require.Equal(t, int64(4), ws.BoundSeq)
	require.Equal(t, "host-ws", ws.Host)
	require.Equal(t, `{"id":"ws"}`, string(ws.Binding))
	require.True(t, ws.CoverageReuse)
	require.True(t, ws.Covered)
	require.Equal(t, 1, ws.Count)
	require.Nil(t, log.Resource("other"))
}

func TestCreateRetried(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.fail(h.scheduleCreate("ws"), errors.New("no room"))
	h.timeOut(h.scheduleCreate("ws"), enumspb.TIMEOUT_TYPE_START_TO_CLOSE)
	h.create("ws", false)
	requireTypes(t, h.log(), eventlog.ExecutionCreated, eventlog.ExecutionStarted, eventlog.ResourceRegistered, eventlog.ResourceBound)
}

func TestCheckpointCauses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		build func(*history)
		want  int64
	}{
		"baseline is as of the event before": {
			func(h *history) { h.checkpoint("ws", protocol.CauseBaseline, "", "c") }, 4,
		},
		"completion is as of the event before": {
			func(h *history) {
				h.run(h.tool("ws")) // 5 to 8
				h.checkpoint("ws", protocol.CauseCompletion, "", "c")
			}, 8,
		},
		"step is as of its outcome": {
			func(h *history) {
				c := h.run(h.tool("ws")) // 5 to 8
				scheduled := h.scheduleCheckpoint("ws", protocol.CauseStep, c.ID)
				h.run(h.llm()) // 9 to 12
				h.complete(scheduled, protocol.CheckpointTaken{Ref: "c"})
			}, 8,
		},
		"an unknown step is as of the event before": {
			func(h *history) { h.checkpoint("ws", protocol.CauseStep, "nobody", "c") }, 4,
		},
		"an open step is as of the event before": {
			func(h *history) {
				c := h.tool("ws")
				h.begin(c) // 5 to 7
				h.checkpoint("ws", protocol.CauseStep, c.ID, "c")
			}, 7,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			h.create("ws", false)
			tt.build(h)
			log := h.log()
			require.Len(t, log.Checkpoints, 1)
			require.Equal(t, tt.want, log.Checkpoints[0].CoveredSeq)
		})
	}
}

func TestCheckpointFailed(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		end  func(h *history, scheduled int64)
		want string
	}{
		"driver": {
			func(h *history, id int64) {
				h.fail(id, temporal.NewApplicationError("host is full", failure.TypeResource))
			},
			`{"key":"ws","cause":"completion","error":{"message":"host is full","reason":"resource_error","type":"tine.Resource"}}`,
		},
		"any error": {
			func(h *history, id int64) { h.fail(id, errors.New("host is full")) },
			`{"key":"ws","cause":"completion","error":{"message":"host is full","reason":"resource_error"}}`,
		},
		"time-out": {
			func(h *history, id int64) { h.timeOut(id, enumspb.TIMEOUT_TYPE_START_TO_CLOSE) },
			`{"key":"ws","cause":"completion","error":{"message":"the step ran longer than it may","reason":"timeout","type":"tine.Timeout"}}`,
		},
		"cancelled": {
			func(h *history, id int64) { h.cancel(id) },
			`{"key":"ws","cause":"completion","error":{"message":"cancelled","reason":"cancelled"}}`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			h.create("ws", false)
			tt.end(h, h.scheduleCheckpoint("ws", protocol.CauseCompletion, ""))
			log := h.log()
			require.Equal(t, tt.want, payload(t, log, 5, eventlog.ResourceCheckpointFailed))
			require.Empty(t, log.Checkpoints)
			require.False(t, log.Resource("ws").Covered)
		})
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		build func(*history)
		want  int
	}{
		"succeeded":              {func(h *history) { h.run(h.tool("ws")) }, 1},
		"failed":                 {func(h *history) { h.fail(h.begin(h.tool("ws")), errors.New("x")) }, 1},
		"cancelled while it ran": {func(h *history) { h.cancel(h.begin(h.tool("ws"))) }, 1},
		"cut off while it ran": {func(h *history) {
			h.begin(h.tool("ws"))
			h.terminated("")
		}, 1},
		"declared twice": {func(h *history) { h.run(h.tool("ws", "ws")) }, 1},
		"local":          {func(h *history) { h.runLocal(h.call(protocol.KindLocal, "x", 1, "ws"), protocol.Outcome{}) }, 1},
		"executing":      {func(h *history) { h.begin(h.tool("ws")) }, 0},
		"denied":         {func(h *history) { h.decide(h.tool("ws"), deny) }, 0},
		"another's":      {func(h *history) { h.run(h.tool("other")) }, 0},
		"model call":     {func(h *history) { h.run(h.call(protocol.KindLLM, "gpt", 1, "ws")) }, 0},
		"cut off before it ran": {func(h *history) {
			h.decide(h.tool("ws"), allow)
			h.terminated("")
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			h.create("ws", false)
			tt.build(h)
			require.Equal(t, tt.want, h.log().Resource("ws").Count)
		})
	}
}
