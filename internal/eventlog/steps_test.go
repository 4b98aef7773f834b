package eventlog_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// TestStepEvents has the events of one step, after execution.created and started.
func TestStepEvents(t *testing.T) {
	t.Parallel()
	ok := protocol.Outcome{Result: json.RawMessage(`"ok"`)}
	bad := protocol.Outcome{Error: &protocol.StepError{Message: "no", Reason: protocol.ReasonToolError}}
	cancelled := protocol.Outcome{Error: &protocol.StepError{Message: "cancelled", Reason: protocol.ReasonCancelled}}
	tests := map[string]struct {
		build  func(*history)
		types  []string
		status string
	}{
		"allowed, not begun": {
			func(h *history) { h.decide(h.tool(), allow) },
			[]string{eventlog.StepProposed, eventlog.StepAllowed}, eventlog.StepStatusProposed,
		},
		"denied": {
			func(h *history) { h.decide(h.tool(), deny) },
			[]string{eventlog.StepProposed, eventlog.StepDenied}, eventlog.StepStatusDenied,
		},
		"denied with its error": {
			func(h *history) {
				h.marker(protocol.ActivityStep, protocol.StepRecord{Step: h.tool().kept(), Decision: &deny, Outcome: &bad}, nil)
			},
			[]string{eventlog.StepProposed, eventlog.StepDenied}, eventlog.StepStatusDenied,
		},
		"a denied step is not run": {
			func(h *history) {
				c := h.tool()
				h.decide(c, deny)
				h.complete(h.execute(c), "ok")
			},
			[]string{eventlog.StepProposed, eventlog.StepDenied}, eventlog.StepStatusDenied,
		},
		"awaiting": {
			func(h *history) { h.decide(h.tool(), approval) },
			asked(), eventlog.StepStatusAwaiting,
		},
		"awaiting, and nothing else decides it": {
			func(h *history) {
				c := h.tool()
				h.decide(c, approval)
				h.decide(c, allow)
				h.complete(h.execute(c), "ok")
				h.settle(protocol.StepRecord{Step: c.Step, Executing: true})
				h.settle(protocol.StepRecord{Step: c.Step, Outcome: &cancelled})
				h.limit(c, nil)
			},
			asked(), eventlog.StepStatusAwaiting,
		},
		"awaiting with an outcome": {
			func(h *history) {
				rec := record(h.tool(), approval)
				rec.Outcome = &ok
				h.marker(protocol.ActivityStep, rec, nil)
			},
			asked(), eventlog.StepStatusAwaiting,
		},
		"granted": {
			func(h *history) {
				c := h.tool()
				h.decide(c, approval)
				h.grant(c)
			},
			asked(eventlog.ApprovalGranted, eventlog.StepAllowed, eventlog.ExecutionResumed), eventlog.StepStatusProposed,
		},
		"granted and run": {
			func(h *history) {
				c := h.tool()
				h.decide(c, approval)
				h.grant(c)
				h.complete(h.execute(c), "ok")
			},
			asked(eventlog.ApprovalGranted, eventlog.StepAllowed, eventlog.ExecutionResumed, eventlog.StepExecuting, eventlog.StepSucceeded),
			eventlog.StepStatusSucceeded,
		},
		"granted local step": {
			func(h *history) {
				c := h.call(protocol.KindLocal, "now", 1)
				h.decide(c, approval)
				h.grant(c)
				h.runLocal(c, ok)
			},
			asked(eventlog.ApprovalGranted, eventlog.StepAllowed, eventlog.ExecutionResumed, eventlog.StepExecuting, eventlog.StepSucceeded),
			eventlog.StepStatusSucceeded,
		},
		"granted wait in the workflow": {
			func(h *history) {
				c := h.call(protocol.KindLocal, "sleep", 1)
				h.decide(c, approval)
				h.grant(c)
				h.settle(protocol.StepRecord{Step: c.Step, Executing: true})
				h.settle(protocol.StepRecord{Step: c.Step, Outcome: &ok})
			},
			asked(eventlog.ApprovalGranted, eventlog.StepAllowed, eventlog.ExecutionResumed, eventlog.StepExecuting, eventlog.StepSucceeded),
			eventlog.StepStatusSucceeded,
		},
		"granted, and asked for once more": {
			func(h *history) {
				c := h.tool()
				h.decide(c, approval)
				h.grant(c)
				h.decide(c, approval)
			},
			asked(eventlog.ApprovalGranted, eventlog.StepAllowed, eventlog.ExecutionResumed), eventlog.StepStatusProposed,
		},
		"refused": {
			func(h *history) {
				c := h.tool()
				h.decide(c, approval)
				h.refuse(c)
				h.complete(h.execute(c), "ok")
			},
			asked(eventlog.ApprovalDenied, eventlog.StepDenied, eventlog.ExecutionResumed), eventlog.StepStatusDenied,
		},
		"nobody decided": {
			func(h *history) {
				c := h.tool()
				h.decide(c, approval)
				h.expire(c, protocol.RationaleTimeout)
				h.grant(c)
			},
			asked(eventlog.ApprovalExpired, eventlog.StepDenied, eventlog.ExecutionResumed), eventlog.StepStatusDenied,
		},
		"cancelled while it waits": {
			func(h *history) {
				c := h.tool()
				h.decide(c, approval)
				h.expire(c, protocol.RationaleStepCancelled)
			},
			asked(eventlog.ApprovalExpired, eventlog.StepDenied, eventlog.ExecutionResumed), eventlog.StepStatusDenied,
		},
		"decided twice": {
			func(h *history) {
				c := h.tool()
				h.decide(c, allow)
				h.decide(c, allow)
				h.decide(c, deny)
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed}, eventlog.StepStatusProposed,
		},
		"executing": {
			func(h *history) { h.begin(h.tool()) },
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting}, eventlog.StepStatusExecuting,
		},
		"succeeded": {
			func(h *history) { h.run(h.tool()) },
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded}, eventlog.StepStatusSucceeded,
		},
		"failed": {
			func(h *history) { h.fail(h.begin(h.tool()), errors.New("no")) },
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepFailed}, eventlog.StepStatusFailed,
		},
		"timed out": {
			func(h *history) { h.timeOut(h.begin(h.tool()), enumspb.TIMEOUT_TYPE_HEARTBEAT) },
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepFailed}, eventlog.StepStatusFailed,
		},
		"cancelled": {
			func(h *history) { h.cancel(h.begin(h.tool())) },
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepCancelled}, eventlog.StepStatusCancelled,
		},
		"an activity that is not decided": {
			func(h *history) { h.execute(h.tool()) },
			[]string{}, "",
		},
		"local step in one record": {
			func(h *history) { h.runLocal(h.call(protocol.KindLocal, "now", 1), ok) },
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded}, eventlog.StepStatusSucceeded,
		},
		"local step that fails": {
			func(h *history) { h.runLocal(h.call(protocol.KindLocal, "now", 1), bad) },
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepFailed}, eventlog.StepStatusFailed,
		},
		"local step that is cancelled": {
			func(h *history) { h.runLocal(h.call(protocol.KindLocal, "now", 1), cancelled) },
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepCancelled}, eventlog.StepStatusCancelled,
		},
		"local step, allowed before": {
			func(h *history) {
				c := h.call(protocol.KindLocal, "now", 1)
				h.decide(c, allow)
				h.runLocal(c, ok)
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded}, eventlog.StepStatusSucceeded,
		},
		"waits in the workflow": {
			func(h *history) {
				h.marker(protocol.ActivityDecide, protocol.StepRecord{Step: h.tool().kept(), Decision: &allow, Executing: true}, nil)
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting}, eventlog.StepStatusExecuting,
		},
		"waited in the workflow": {
			func(h *history) {
				c := h.tool()
				h.marker(protocol.ActivityDecide, protocol.StepRecord{Step: c.kept(), Decision: &allow, Executing: true}, nil)
				h.settle(protocol.StepRecord{Step: c.Step, Decision: &allow, Outcome: &ok})
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded}, eventlog.StepStatusSucceeded,
		},
		"decided otherwise once it has begun": {
			func(h *history) {
				c := h.tool()
				scheduled := h.begin(c)
				h.decide(c, deny)
				h.complete(scheduled, "ok")
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded}, eventlog.StepStatusSucceeded,
		},
		"settled once": {
			func(h *history) {
				c := h.run(h.tool())
				h.settle(protocol.StepRecord{Step: c.Step, Decision: &deny, Outcome: &bad})
				h.complete(h.execute(c), "again")
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded}, eventlog.StepStatusSucceeded,
		},
		"settled by a record before its activity ends": {
			func(h *history) {
				c := h.tool()
				scheduled := h.begin(c)
				h.settle(protocol.StepRecord{Step: c.Step, Outcome: &cancelled})
				h.complete(scheduled, "late")
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepCancelled}, eventlog.StepStatusCancelled,
		},
		"open when the execution ends": {
			func(h *history) {
				h.begin(h.tool())
				h.completed(nil)
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepCancelled, eventlog.ExecutionCompleted},
			eventlog.StepStatusCancelled,
		},
		"awaiting when the execution ends": {
			func(h *history) {
				h.decide(h.tool(), approval)
				h.terminated("")
			},
			asked(eventlog.ApprovalExpired, eventlog.StepDenied, eventlog.ExecutionCancelled), eventlog.StepStatusDenied,
		},
		"proposed when the execution ends": {
			func(h *history) {
				h.decide(h.tool(), allow)
				h.terminated("")
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepCancelled, eventlog.ExecutionCancelled},
			eventlog.StepStatusCancelled,
		},
		"settled when the execution ends": {
			func(h *history) {
				h.run(h.tool())
				h.completed(nil)
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded, eventlog.ExecutionCompleted},
			eventlog.StepStatusSucceeded,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			tt.build(h)
			log := h.log()
			requireTypes(t, log, append([]string{eventlog.ExecutionCreated, eventlog.ExecutionStarted}, tt.types...)...)
			if tt.status == "" {
				require.Empty(t, log.Steps)
				return
			}
			require.Len(t, log.Steps, 1)
			requireConsistent(t, log, log.Steps[0], tt.status)
		})
	}
}

// asked are the events of a step that needs approval, and what follows them.
func asked(then ...string) []string {
	return append([]string{
		eventlog.StepProposed, eventlog.StepAwaitingApproval, eventlog.ApprovalRequested, eventlog.ExecutionBlocked,
	}, then...)
}

// requireConsistent checks that a step's seqs point at its events.
func requireConsistent(t *testing.T, log *eventlog.Log, step *eventlog.Step, status string) {
	t.Helper()
	require.Equal(t, status, step.Status)
	require.Equal(t, eventlog.StepProposed, log.Events[step.ProposedSeq-1].Type)
	if step.ExecutingSeq != 0 {
		require.Equal(t, eventlog.StepExecuting, log.Events[step.ExecutingSeq-1].Type)
	}
	switch status {
	case eventlog.StepStatusProposed, eventlog.StepStatusAwaiting, eventlog.StepStatusExecuting, eventlog.StepStatusLimited:
		require.Zero(t, step.SettledSeq)
	default:
		require.Equal(t, "step."+status, log.Events[step.SettledSeq-1].Type)
		require.NotNil(t, step.Args)
		require.Len(t, step.ArgsHash, 64)
	}
}

func TestStepPayloads(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	c := h.call(protocol.KindTool, "write", map[string]string{"path": "<a>"}, "ws")
	h.fail(h.begin(c), temporal.NewApplicationError("disk full", "DiskFull"))
	h.decide(h.tool(), deny)
	h.decide(h.tool(), allow)
	log := h.log()

	id := `{"step_id":"` + c.ID + `","step_type":"tool_call","target":"write"`
	require.Equal(t, id+`}`, payload(t, log, 3, eventlog.StepProposed))
	require.Equal(t, id+`,"rule_id":"r1","reason":"fine","policy_digest":"d1"}`, payload(t, log, 4, eventlog.StepAllowed))
	require.Equal(t, id+`,"resources":["ws"]}`, payload(t, log, 5, eventlog.StepExecuting))
	require.Equal(t, id+`,"error":{"message":"disk full","reason":"tool_error","type":"DiskFull"}}`, payload(t, log, 6, eventlog.StepFailed))
	require.Contains(t, payload(t, log, 8, eventlog.StepDenied), `"rule_id":"r2","reason":"no","policy_digest":"d1"}`)

	require.Equal(t, &eventlog.Step{
		StepID: c.ID, Kind: protocol.KindTool, Target: "write", Args: c.args, ArgsHash: log.Steps[0].ArgsHash,
		Status: eventlog.StepStatusFailed, Idempotency: protocol.SafeToRetry, Resources: []string{"ws"},
		Decision: protocol.Allow, RuleID: "r1", Reason: "fine", PolicyDigest: "d1",
		Error: &protocol.StepError{Message: "disk full", Reason: protocol.ReasonToolError, Type: "DiskFull"}, Attempts: 1,
		ProposedSeq: 3, ExecutingSeq: 5, SettledSeq: 6,
	}, log.Steps[0])
	hash, err := protocol.ArgsHash(c.args)
	require.NoError(t, err)
	require.Equal(t, hash, log.Steps[0].ArgsHash)
	require.Equal(t, &protocol.StepError{Message: "no", Reason: protocol.ReasonPolicyDenied}, log.Steps[1].Error)
	require.Equal(t, 1, log.Steps[2].Occurrence)
}

func TestStepArgs(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	c := h.call(protocol.KindTool, "write", []int{1})
	h.decide(c, allow)
	step := h.log().Steps[0]
	require.Nil(t, step.Args, "they stand in the activity to come")
	require.Empty(t, step.ArgsHash)
	h.execute(c)
	step = h.log().Steps[0]
	require.Equal(t, `[1]`, string(step.Args))
	require.NotEmpty(t, step.ArgsHash)

	none := protocol.Step{ID: "x", Kind: protocol.KindLocal, Target: "now"}
	h.marker(protocol.ActivityStep, protocol.StepRecord{Step: none, Decision: &allow, Outcome: &protocol.Outcome{}}, nil)
	step = h.log().Steps[1]
	require.Equal(t, `null`, string(step.Args))
	require.Equal(t, `null`, string(step.Result))
	require.Equal(t, 1, step.Attempts)
	hash, err := protocol.ArgsHash(nil)
	require.NoError(t, err)
	require.Equal(t, hash, step.ArgsHash)
}

func TestStepErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		idempotency string
		end         func(h *history, scheduled int64)
		want        protocol.StepError
	}{
		"panic": {
			end:  func(h *history, id int64) { h.fail(id, temporal.NewApplicationError("nil map", failure.TypePanic)) },
			want: protocol.StepError{Message: "nil map", Reason: protocol.ReasonPanic, Type: failure.TypePanic},
		},
		"time-out": {
			end:  func(h *history, id int64) { h.timeOut(id, enumspb.TIMEOUT_TYPE_START_TO_CLOSE) },
			want: protocol.StepError{Message: "the step ran longer than it may", Reason: protocol.ReasonTimeout, Type: failure.TypeTimeout},
		},
		"time-out of at_most_once": {
			idempotency: protocol.AtMostOnce,
			end:         func(h *history, id int64) { h.timeOut(id, enumspb.TIMEOUT_TYPE_HEARTBEAT) },
			want: protocol.StepError{
				Message: "nobody saw how the step ended; it is at_most_once, so it was not run again",
				Reason:  protocol.ReasonIndeterminate, Type: failure.TypeIndeterminate,
			},
		},
		"cancelled": {
			end:  func(h *history, id int64) { h.cancel(id) },
			want: protocol.StepError{Message: "cancelled", Reason: protocol.ReasonCancelled},
		},
		"cancelled by itself": {
			end:  func(h *history, id int64) { h.fail(id, temporal.NewCanceledError()) },
			want: protocol.StepError{Message: "cancelled", Reason: protocol.ReasonCancelled},
		},
		"the end": {
			end: func(h *history, _ int64) { h.terminated("") },
			want: protocol.StepError{
				Message: "the execution ended before the step did", Reason: protocol.ReasonCancelled,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			c := h.tool()
			c.Idempotency = tt.idempotency
			tt.end(h, h.begin(c))
			step := h.log().Steps[0]
			require.Equal(t, &tt.want, step.Error)
			require.Equal(t, tt.want.Reason == protocol.ReasonCancelled, step.Status == eventlog.StepStatusCancelled)
		})
	}
}

func TestAttempts(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	scheduled := h.begin(h.tool())
	h.attempt(scheduled, 4)
	h.timeOut(scheduled, enumspb.TIMEOUT_TYPE_HEARTBEAT)
	h.timeOut(h.begin(h.tool()), enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START)
	log := h.log()
	require.Equal(t, 4, log.Steps[0].Attempts)
	require.Zero(t, log.Steps[1].Attempts, "no worker took it")
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		kind   string
		result string
		want   *protocol.Usage
	}{
		"usage":       {protocol.KindLLM, `{"text":"hi","usage":{"input_tokens":7,"output_tokens":2,"other":1}}`, &protocol.Usage{InputTokens: 7, OutputTokens: 2}},
		"of a tool":   {protocol.KindTool, `{"usage":{"input_tokens":7,"output_tokens":2}}`, nil},
		"none":        {protocol.KindLLM, `{"text":"hi"}`, nil},
		"null":        {protocol.KindLLM, `{"usage":null}`, nil},
		"half":        {protocol.KindLLM, `{"usage":{"input_tokens":7}}`, nil},
		"negative":    {protocol.KindLLM, `{"usage":{"input_tokens":-7,"output_tokens":2}}`, nil},
		"a fraction":  {protocol.KindLLM, `{"usage":{"input_tokens":7.5,"output_tokens":2}}`, nil},
		"text":        {protocol.KindLLM, `{"usage":"lots"}`, nil},
		"not objects": {protocol.KindLLM, `["usage"]`, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			h.complete(h.begin(h.call(tt.kind, "x", nil)), json.RawMessage(tt.result))
			require.Equal(t, tt.want, h.log().Steps[0].Usage)
		})
	}
}

func TestParallelSteps(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	a, b := h.tool(), h.llm()
	h.decide(a, allow)
	h.decide(b, allow)
	first := h.execute(a)
	second := h.execute(b)
	h.complete(second, "b")
	h.complete(first, "a")
	log := h.log()
	requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionStarted,
		eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepProposed, eventlog.StepAllowed,
		eventlog.StepExecuting, eventlog.StepExecuting, eventlog.StepSucceeded, eventlog.StepSucceeded)
	require.Equal(t, int64(10), log.Steps[0].SettledSeq)
	require.Equal(t, int64(9), log.Steps[1].SettledSeq)
}
