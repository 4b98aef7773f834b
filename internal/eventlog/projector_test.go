package eventlog_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// types lists the types of a log's events.
func types(log *eventlog.Log) []string {
	out := []string{}
	for _, ev := range log.Events {
		out = append(out, ev.Type)
	}
	return out
}

func requireTypes(t *testing.T, log *eventlog.Log, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, types(log)); diff != "" {
		t.Fatalf("types of events (-want +got):\n%s", diff)
	}
	for i, ev := range log.Events {
		require.Equal(t, int64(i+1), ev.Seq)
		require.Equal(t, "exec", ev.ExecutionID)
		require.Equal(t, "run", ev.RunID)
	}
}

// payload is the payload of the event with a seq, which must have this type.
func payload(t *testing.T, log *eventlog.Log, seq int64, typ string) string {
	t.Helper()
	require.LessOrEqual(t, seq, log.LatestSeq())
	ev := log.Events[seq-1]
	require.Equal(t, typ, ev.Type)
	return string(ev.Payload)
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	boom := temporal.NewApplicationError("it broke", "Boom")
	tests := map[string]struct {
		close   func(*history)
		typ     string
		payload string
		status  string
		reason  string
		output  string
	}{
		"completed": {
			close: func(h *history) { h.completed(map[string]int{"n": 1}) },
			typ:   eventlog.ExecutionCompleted, payload: `{}`, status: protocol.StatusCompleted, output: `{"n":1}`,
		},
		"completed with nothing": {
			close: func(h *history) { h.completed(nil) },
			typ:   eventlog.ExecutionCompleted, payload: `{}`, status: protocol.StatusCompleted, output: `null`,
		},
		"failed": {
			close: func(h *history) { h.failed(failureOf(boom)) },
			typ:   eventlog.ExecutionFailed, payload: `{"reason":"Boom: it broke"}`, status: protocol.StatusFailed, reason: "Boom: it broke",
		},
		"failed by a step": {
			close: func(h *history) { h.failed(failureOf(temporal.NewApplicationError("write: disk full", "tine.Step"))) },
			typ:   eventlog.ExecutionFailed, payload: `{"reason":"write: disk full"}`, status: protocol.StatusFailed, reason: "write: disk full",
		},
		"failed by a plain error": {
			close: func(h *history) { h.failed(failureOf(fmt.Errorf("outer: %w", errors.New("inner")))) },
			typ:   eventlog.ExecutionFailed, payload: `{"reason":"outer: inner"}`, status: protocol.StatusFailed, reason: "outer: inner",
		},
		"failed by an activity of the agent": {
			close: func(h *history) {
				h.failed(&failurepb.Failure{
					Message:     "activity error",
					FailureInfo: &failurepb.Failure_ActivityFailureInfo{ActivityFailureInfo: &failurepb.ActivityFailureInfo{ActivityId: "5"}},
					Cause:       failureOf(boom),
				})
			},
			typ: eventlog.ExecutionFailed, payload: `{"reason":"Boom: it broke"}`, status: protocol.StatusFailed, reason: "Boom: it broke",
		},
		"failed by a timeout": {
			close: func(h *history) {
				h.failed(failureOf(temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_START_TO_CLOSE, nil)))
			},
			typ: eventlog.ExecutionFailed, payload: `{"reason":"timeout: Test timeout"}`, status: protocol.StatusFailed, reason: "timeout: Test timeout",
		},
		"failed by a cancelled activity": {
			close: func(h *history) { h.failed(failureOf(temporal.NewCanceledError())) },
			typ:   eventlog.ExecutionFailed, payload: `{"reason":"cancelled"}`, status: protocol.StatusFailed, reason: "cancelled",
		},
		"failed for no reason": {
			close: func(h *history) { h.failed(nil) },
			typ:   eventlog.ExecutionFailed, payload: `{"reason":"unknown failure"}`, status: protocol.StatusFailed, reason: "unknown failure",
		},
		"timed out": {
			close: func(h *history) { h.bare(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT) },
			typ:   eventlog.ExecutionFailed, payload: `{"reason":"execution timed out"}`, status: protocol.StatusFailed, reason: "execution timed out",
		},
		"cancelled": {
			close: func(h *history) { h.bare(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED) },
			typ:   eventlog.ExecutionCancelled, payload: `{}`, status: protocol.StatusCancelled,
		},
		"terminated": {
			close: func(h *history) { h.terminated("too slow") },
			typ:   eventlog.ExecutionCancelled, payload: `{"reason":"terminated: too slow"}`, status: protocol.StatusCancelled,
		},
		"terminated without a reason": {
			close: func(h *history) { h.terminated("") },
			typ:   eventlog.ExecutionCancelled, payload: `{"reason":"terminated"}`, status: protocol.StatusCancelled,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			open := h.log()
			require.Equal(t, protocol.StatusRunning, open.Status)
			require.True(t, open.ClosedAt.IsZero())
			tt.close(h)
			log := h.log()
			requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionStarted, tt.typ)
			require.Equal(t, tt.payload, payload(t, log, 3, tt.typ))
			require.Equal(t, tt.status, log.Status)
			require.Equal(t, tt.reason, log.FailureReason)
			require.Equal(t, tt.output, string(log.Output))
			require.Equal(t, log.Events[2].OccurredAt, log.ClosedAt)
			require.Equal(t, int64(len(h.events)), log.HistoryEvents)
		})
	}
}

func TestCreated(t *testing.T) {
	t.Parallel()

	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		h := emptyHistory(t)
		h.started(map[string]string{"task": "x"})
		log := h.log()
		require.Equal(t, `{"agent_id":"coder"}`, payload(t, log, 1, eventlog.ExecutionCreated))
		require.Equal(t, `{"task":"x"}`, string(log.Input))
		require.Equal(t, protocol.StatusPending, log.Status)
		require.Equal(t, "coder", log.AgentID)
		require.Equal(t, "tine", log.TaskQueue)
		require.Equal(t, log.Events[0].OccurredAt, log.CreatedAt)
		require.Equal(t, int64(1), log.Events[0].HistoryEventID)
	})

	t.Run("no input", func(t *testing.T) {
		t.Parallel()
		h := emptyHistory(t)
		h.started()
		require.Equal(t, `null`, string(h.log().Input))
	})

	t.Run("parent without a session", func(t *testing.T) {
		t.Parallel()
		h := emptyHistory(t)
		h.started("x", &protocol.Start{Parent: "p"})
		h.workflowTask()
		h.workflowTask() // only the first one starts it
		log := h.log()
		requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionStarted)
		require.Equal(t, `{"agent_id":"coder","parent_execution_id":"p"}`, payload(t, log, 1, eventlog.ExecutionCreated))
		require.Equal(t, `{"parent_execution_id":"p"}`, payload(t, log, 2, eventlog.ExecutionStarted))
		require.Equal(t, "p", log.Parent)
	})

	t.Run("fork", func(t *testing.T) {
		t.Parallel()
		h := emptyHistory(t)
		h.started("x", &protocol.Start{Fork: &protocol.Fork{ExecutionID: "src", RunID: "r", AtSeq: 7, Restoration: map[string]protocol.Restoration{
			"b": {}, "a": {CheckpointRef: "c1", CheckpointSeq: 5, Covered: true},
		}}})
		h.workflowTask() // does not start a fork
		log := h.log()
		requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionForked)
		require.Equal(t,
			`{"forked_from":"src","run_id":"r","fork_seq":7,"restoration":{"a":{"checkpoint_ref":"c1","checkpoint_seq":5,"covered":true},"b":{"covered":false}}}`,
			payload(t, log, 2, eventlog.ExecutionForked))
		require.Equal(t, protocol.StatusPending, log.Status)
		require.Equal(t, int64(7), log.Fork.AtSeq)

		h.terminated("")
		require.Equal(t, protocol.StatusCancelled, h.log().Status)
	})

	t.Run("bad start options", func(t *testing.T) {
		t.Parallel()
		h := emptyHistory(t)
		h.started("x", 5)
		_, err := eventlog.Project("exec", "run", h.events, eventlog.Decoder{})
		require.ErrorContains(t, err, "history event 1 (WorkflowExecutionStarted) of execution exec: start options")
	})
}

func TestOtherEventsYieldNothing(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	before := types(h.log())
	h.schedule("mail", "", "hello") // an activity of the agent, with an id that no step has
	h.complete(h.schedule("mail", "", "hello"))
	h.fail(h.schedule("mail", ""), errors.New("x"))
	h.marker("agentsOwn", map[string]int{"id": 1}, nil)
	h.marker(protocol.ActivityBegin, protocol.Begin{SearchAttributes: true}, nil)
	h.add(enumspb.EVENT_TYPE_MARKER_RECORDED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_MarkerRecordedEventAttributes{
			MarkerRecordedEventAttributes: &historypb.MarkerRecordedEventAttributes{MarkerName: "Version"},
		}
	})
	for n := range enumspb.EventType_name {
		switch typ := enumspb.EventType(n); typ {
		case enumspb.EVENT_TYPE_UNSPECIFIED,
			enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, enumspb.EVENT_TYPE_MARKER_RECORDED,
			enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
			enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
			enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
		default:
			h.bare(typ)
		}
	}
	log := h.log()
	require.Equal(t, before, types(log))
	require.Zero(t, log.Ignored, "each event type of this version of the API is known")

	h.bare(9999)                                                                          // from the future
	h.marker("tine.Future", map[string]int{"id": 1}, nil)                                 // the same
	h.marker(protocol.ActivityDecide, nil, failureOf(errors.New("policy engine broken"))) // without a result
	log = h.log()
	require.Equal(t, before, types(log))
	require.Equal(t, int64(3), log.Ignored)
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	require.False(t, h.log().Unrestricted, "that is not known before the worker has said so")
	h.marker(protocol.ActivityBegin, protocol.Begin{PolicyDigest: "d1"}, nil)
	log := h.log()
	require.Equal(t, "d1", log.PolicyDigest)
	require.False(t, log.Unrestricted)
	require.Nil(t, log.Policy)

	h = emptyHistory(t)
	brought := protocol.PolicyBundle{Digest: "d2", Files: []protocol.PolicyFile{{Name: "p.yaml", Data: []byte("rules: []")}}}
	h.started(nil, &protocol.Start{Policy: &brought})
	h.workflowTask()
	h.marker(protocol.ActivityBegin, protocol.Begin{Unrestricted: true}, nil)
	log = h.log()
	require.Equal(t, &brought, log.Policy)
	require.Empty(t, log.PolicyDigest)
	require.True(t, log.Unrestricted)
}

func TestDiverged(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	note := protocol.Divergence{Expected: protocol.DivergentStep{StepID: "a", Kind: protocol.KindTool, Target: "write"}, Unused: 2}
	h.marker(protocol.ActivityNote, note, nil)
	log := h.log()
	require.Equal(t, `{"expected":{"step_id":"a","kind":"tool_call","target":"write"},"unused":2}`, payload(t, log, 3, eventlog.ExecutionDiverged))
	require.Equal(t, &note, log.Divergence)
}

func TestUndecodableRecords(t *testing.T) {
	t.Parallel()
	garbage := []byte{0xff}
	tests := map[string]struct {
		build func(*history)
		want  string
	}{
		"record":                  {func(h *history) { h.marker(protocol.ActivityDecide, "text", nil) }, "(MarkerRecorded) of execution exec: result of tine.Decide"},
		"record without a step":   {func(h *history) { h.marker(protocol.ActivityDecide, protocol.StepRecord{}, nil) }, "names no step"},
		"record without a result": {func(h *history) { h.marker(protocol.ActivityDecide, nil, nil) }, "the payload is missing"},
		"decision":                {func(h *history) { h.decide(h.tool(), protocol.Decision{Decision: "maybe"}) }, `unknown decision "maybe"`},
		"note":                    {func(h *history) { h.marker(protocol.ActivityNote, "text", nil) }, "result of tine.Note"},
		"begin":                   {func(h *history) { h.marker(protocol.ActivityBegin, "text", nil) }, "result of tine.Begin"},
		"resource":                {func(h *history) { h.schedule(protocol.ActivityCreateResource, "", garbage) }, "(ActivityTaskScheduled) of execution exec: input"},
		"binding":                 {func(h *history) { h.complete(h.scheduleCreate("a"), garbage) }, "(ActivityTaskCompleted) of execution exec: result"},
		"checkpoint":              {func(h *history) { h.schedule(protocol.ActivityCheckpoint, "", garbage) }, "input"},
		"checkpoint reference":    {func(h *history) { h.complete(h.scheduleCheckpoint("a", "", "")) }, "the payload is missing"},
		"prefix":                  {func(h *history) { h.complete(h.schedule(protocol.ActivityLoadPrefix, ""), garbage) }, "result"},
		"prefix record": {func(h *history) {
			h.complete(h.schedule(protocol.ActivityLoadPrefix, ""), protocol.PrefixPage{Records: []protocol.PrefixRecord{{Type: "step.danced"}}})
		}, "record 0 (step.danced)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			tt.build(h)
			_, err := eventlog.Project("exec", "run", h.events, eventlog.Decoder{})
			require.ErrorContains(t, err, tt.want)
			require.ErrorContains(t, err, fmt.Sprintf("history event %d ", len(h.events)))
		})
	}
}

// reverser is a codec that every reader of its payloads needs.
type reverser struct{}

func (reverser) Encode(ps []*commonpb.Payload) ([]*commonpb.Payload, error) {
	out := make([]*commonpb.Payload, len(ps))
	for i, p := range ps {
		out[i] = &commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("binary/reversed"), "was": p.Metadata["encoding"]}, Data: reversed(p.Data)}
	}
	return out, nil
}

func (reverser) Decode(ps []*commonpb.Payload) ([]*commonpb.Payload, error) {
	out := make([]*commonpb.Payload, len(ps))
	for i, p := range ps {
		out[i] = &commonpb.Payload{Metadata: map[string][]byte{"encoding": p.Metadata["was"]}, Data: reversed(p.Data)}
	}
	return out, nil
}

func reversed(in []byte) []byte {
	out := make([]byte, len(in))
	for i, b := range in {
		out[len(in)-1-i] = b
	}
	return out
}

func TestEncodedHistory(t *testing.T) {
	t.Parallel()
	dc := converter.NewCodecDataConverter(converter.GetDefaultDataConverter(), reverser{})
	fc := temporal.NewDefaultFailureConverter(temporal.DefaultFailureConverterOptions{DataConverter: dc, EncodeCommonAttributes: true})
	h := newHistory(t)
	h.events = nil
	h.dc = dc
	h.started(map[string]string{"task": "secret"})
	h.workflowTask()
	h.run(h.tool())
	h.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionFailedEventAttributes{
			WorkflowExecutionFailedEventAttributes: &historypb.WorkflowExecutionFailedEventAttributes{
				Failure: fc.ErrorToFailure(temporal.NewApplicationError("secret", "Boom")),
			},
		}
	})
	for range 2 { // decoding leaves the history as it was
		log, err := eventlog.Project("exec", "run", h.events, eventlog.Decoder{Data: dc, Failure: fc})
		require.NoError(t, err)
		require.Equal(t, `{"task":"secret"}`, string(log.Input))
		require.Equal(t, `"ok"`, string(log.Steps[0].Result))
		require.Equal(t, "Boom: secret", log.FailureReason)
	}

	_, err := eventlog.Project("exec", "run", h.events, eventlog.Decoder{})
	require.ErrorContains(t, err, "(MarkerRecorded)", "our records cannot be guessed")
	log, err := eventlog.Project("exec", "run", h.events[:4], eventlog.Decoder{})
	require.NoError(t, err)
	require.Contains(t, string(log.Input), "not supported", "but a user's value may be unreadable")
}

func TestValues(t *testing.T) {
	t.Parallel()
	plain := func(data string) *commonpb.Payload {
		return &commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(data)}
	}
	tests := map[string]struct {
		payload *commonpb.Payload
		want    string
	}{
		"json as it is":    {plain(`{"b": 1.0, "a":"<x>"}`), `{"b": 1.0, "a":"<x>"}`},
		"json null":        {plain(`null`), `null`},
		"nil":              {nil, `null`},
		"binary/null":      {&commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("binary/null")}}, `null`},
		"bytes":            {&commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("binary/plain")}, Data: []byte("hi")}, `"aGk"`},
		"broken json":      {plain(`{"a":`), `"{\"a\":"`},
		"empty json":       {plain(``), `""`},
		"unknown encoding": {&commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("x/y")}}, `"encoding x/y: payload encoding is not supported"`},
		"no metadata":      {&commonpb.Payload{}, `"metadata is not set"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			h.events[0].GetWorkflowExecutionStartedEventAttributes().Input = &commonpb.Payloads{Payloads: []*commonpb.Payload{tt.payload}}
			log := h.log()
			require.Equal(t, tt.want, string(log.Input))
			require.True(t, json.Valid(log.Input))
		})
	}
}

func TestProjectorFollows(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.open("a", false, "c0")
	h.run(h.tool("a"))
	h.completed("done")

	p := eventlog.NewProjector("exec", "run", eventlog.Decoder{})
	require.Equal(t, protocol.StatusPending, p.Log().Status)
	require.Zero(t, p.Log().LatestSeq())
	var followed []eventlog.Event
	for _, ev := range h.events {
		require.NoError(t, p.Add(ev))
		followed = append(followed, p.Log().Events[len(followed):]...)
	}
	require.Equal(t, h.log().Events, followed)
}
