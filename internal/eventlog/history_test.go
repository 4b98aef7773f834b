package eventlog_test

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	updatepb "go.temporal.io/api/update/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// testingT is what *testing.T and *rapid.T have in common.
type testingT interface {
	require.TestingT
	Helper()
}

var epoch = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)

// history builds a Temporal history as the server and the SDK write it.
type history struct {
	t      testingT
	dc     converter.DataConverter
	events []*historypb.HistoryEvent

	occurrences map[string]int
	local       int // local activities so far
}

// emptyHistory has no events at all.
func emptyHistory(t testingT) *history {
	return &history{t: t, dc: converter.GetDefaultDataConverter(), occurrences: map[string]int{}}
}

// newHistory is an execution without start options after its first workflow task.
func newHistory(t testingT) *history {
	h := emptyHistory(t)
	h.started(map[string]string{"task": "test"})
	h.workflowTask()
	return h
}

// forkOf is a fork that has loaded its prefix in pages of at most maxBytes.
func forkOf(t testingT, source *eventlog.Log, atSeq int64, maxBytes int) *history {
	t.Helper()
	plan, err := source.PlanFork(atSeq)
	require.NoError(t, err)
	records, err := source.Prefix(atSeq)
	require.NoError(t, err)
	h := emptyHistory(t)
	h.started(source.Input, &protocol.Start{Fork: &protocol.Fork{
		ExecutionID: source.ExecutionID, RunID: source.RunID, AtSeq: atSeq, Restoration: plan.Restoration,
		Effects: protocol.EffectsGuard, Guarded: plan.Effects,
	}})
	h.workflowTask()
	for offset, more := 0, true; more; {
		page := eventlog.Pages(records, offset, maxBytes)
		load := h.schedule(protocol.ActivityLoadPrefix, "", protocol.LoadPrefix{AtSeq: atSeq, Offset: offset})
		h.complete(load, page)
		offset, more = page.Next, page.Next != 0
	}
	for _, r := range records {
		if r.Step != nil {
			identity := r.Step.Kind + r.Step.Target + string(r.Step.Args)
			h.occurrences[identity] = max(h.occurrences[identity], r.Step.Occurrence+1)
		}
	}
	return h
}

func (h *history) log() *eventlog.Log {
	h.t.Helper()
	log, err := eventlog.Project("exec", "run", h.events, eventlog.Decoder{})
	require.NoError(h.t, err)
	return log
}

// add appends an event and returns its id.
func (h *history) add(typ enumspb.EventType, set func(*historypb.HistoryEvent)) int64 {
	id := int64(len(h.events) + 1)
	ev := &historypb.HistoryEvent{
		EventId:   id,
		EventType: typ,
		EventTime: timestamppb.New(epoch.Add(time.Duration(id) * time.Millisecond)),
	}
	set(ev)
	h.events = append(h.events, ev)
	return id
}

func (h *history) payloads(values ...any) *commonpb.Payloads {
	h.t.Helper()
	p, err := h.dc.ToPayloads(values...)
	require.NoError(h.t, err)
	return p
}

func (h *history) started(args ...any) {
	h.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
			WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{
				WorkflowType: &commonpb.WorkflowType{Name: "coder"},
				TaskQueue:    &taskqueuepb.TaskQueue{Name: "tine"},
				Input:        h.payloads(args...),
			},
		}
	})
}

func (h *history) workflowTask() {
	h.bare(enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED)
	started := h.bare(enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED)
	h.add(enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowTaskCompletedEventAttributes{
			WorkflowTaskCompletedEventAttributes: &historypb.WorkflowTaskCompletedEventAttributes{StartedEventId: started},
		}
	})
}

// bare adds an event whose attributes do not matter.
func (h *history) bare(typ enumspb.EventType) int64 {
	return h.add(typ, func(*historypb.HistoryEvent) {})
}

// marker adds a local activity's marker, as the SDK's ProcessLocalActivityResult does.
func (h *history) marker(activityType string, result any, failure *failurepb.Failure) int64 {
	h.local++
	details := map[string]*commonpb.Payloads{"data": h.payloads(struct {
		ActivityID   string
		ActivityType string
		ReplayTime   time.Time
		Attempt      int32
		Backoff      time.Duration
	}{fmt.Sprint(h.local), activityType, epoch, 1, 0})}
	if result != nil {
		details["result"] = h.payloads(result)
	}
	return h.add(enumspb.EVENT_TYPE_MARKER_RECORDED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_MarkerRecordedEventAttributes{
			MarkerRecordedEventAttributes: &historypb.MarkerRecordedEventAttributes{
				MarkerName: "LocalActivity", Details: details, Failure: failure,
			},
		}
	})
}

// schedule adds an activity; its id defaults to the SDK's, which is a number.
func (h *history) schedule(activityType, id string, args ...any) int64 {
	if id == "" {
		id = fmt.Sprint(len(h.events) + 1)
	}
	return h.add(enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_ActivityTaskScheduledEventAttributes{
			ActivityTaskScheduledEventAttributes: &historypb.ActivityTaskScheduledEventAttributes{
				ActivityId:   id,
				ActivityType: &commonpb.ActivityType{Name: activityType},
				Input:        h.payloads(args...),
			},
		}
	})
}

func (h *history) attempt(scheduled int64, attempt int32) {
	h.add(enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_ActivityTaskStartedEventAttributes{
			ActivityTaskStartedEventAttributes: &historypb.ActivityTaskStartedEventAttributes{
				ScheduledEventId: scheduled, Attempt: attempt,
			},
		}
	})
}

func (h *history) complete(scheduled int64, result ...any) {
	h.attempt(scheduled, 1)
	h.add(enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_ActivityTaskCompletedEventAttributes{
			ActivityTaskCompletedEventAttributes: &historypb.ActivityTaskCompletedEventAttributes{
				ScheduledEventId: scheduled, Result: h.payloads(result...),
			},
		}
	})
}

func (h *history) fail(scheduled int64, err error) {
	h.attempt(scheduled, 1)
	h.add(enumspb.EVENT_TYPE_ACTIVITY_TASK_FAILED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_ActivityTaskFailedEventAttributes{
			ActivityTaskFailedEventAttributes: &historypb.ActivityTaskFailedEventAttributes{
				ScheduledEventId: scheduled, Failure: failureOf(err),
			},
		}
	})
}

func (h *history) timeOut(scheduled int64, typ enumspb.TimeoutType) {
	h.add(enumspb.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_ActivityTaskTimedOutEventAttributes{
			ActivityTaskTimedOutEventAttributes: &historypb.ActivityTaskTimedOutEventAttributes{
				ScheduledEventId: scheduled, Failure: failureOf(temporal.NewTimeoutError(typ, nil)),
			},
		}
	})
}

func (h *history) cancel(scheduled int64) {
	h.bare(enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED)
	h.add(enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCELED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_ActivityTaskCanceledEventAttributes{
			ActivityTaskCanceledEventAttributes: &historypb.ActivityTaskCanceledEventAttributes{ScheduledEventId: scheduled},
		}
	})
}

func failureOf(err error) *failurepb.Failure {
	return temporal.GetDefaultFailureConverter().ErrorToFailure(err)
}

// accept adds an accepted update. Without a request, an earlier event has it.
func (h *history) accept(updateID string, request *updatepb.Request) int64 {
	return h.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionUpdateAcceptedEventAttributes{
			WorkflowExecutionUpdateAcceptedEventAttributes: &historypb.WorkflowExecutionUpdateAcceptedEventAttributes{
				ProtocolInstanceId: updateID, AcceptedRequest: request,
			},
		}
	})
}

func (h *history) request(updateID, name string, args ...any) *updatepb.Request {
	return &updatepb.Request{
		Meta:  &updatepb.Meta{UpdateId: updateID, Identity: "ada@desk"},
		Input: &updatepb.Input{Name: name, Args: h.payloads(args...)},
	}
}

// endUpdate adds the end of an update.
func (h *history) endUpdate(accepted int64, o *updatepb.Outcome) {
	h.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionUpdateCompletedEventAttributes{
			WorkflowExecutionUpdateCompletedEventAttributes: &historypb.WorkflowExecutionUpdateCompletedEventAttributes{
				AcceptedEventId: accepted, Outcome: o,
			},
		}
	})
}

func (h *history) success(result any) *updatepb.Outcome {
	return &updatepb.Outcome{Value: &updatepb.Outcome_Success{Success: h.payloads(result)}}
}

func refusal(err error) *updatepb.Outcome {
	return &updatepb.Outcome{Value: &updatepb.Outcome_Failure{Failure: failureOf(err)}}
}

func (h *history) completed(result any) {
	h.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionCompletedEventAttributes{
			WorkflowExecutionCompletedEventAttributes: &historypb.WorkflowExecutionCompletedEventAttributes{Result: h.payloads(result)},
		}
	})
}

func (h *history) failed(f *failurepb.Failure) {
	h.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionFailedEventAttributes{
			WorkflowExecutionFailedEventAttributes: &historypb.WorkflowExecutionFailedEventAttributes{Failure: f},
		}
	})
}

func (h *history) terminated(reason string) {
	h.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionTerminatedEventAttributes{
			WorkflowExecutionTerminatedEventAttributes: &historypb.WorkflowExecutionTerminatedEventAttributes{Reason: reason},
		}
	})
}

// What follows plays the runtime.

var (
	allow    = protocol.Decision{Decision: protocol.Allow, RuleID: "r1", Reason: "fine", PolicyDigest: "d1"}
	deny     = protocol.Decision{Decision: protocol.Deny, RuleID: "r2", Reason: "no", PolicyDigest: "d1"}
	approval = protocol.Decision{Decision: protocol.RequireApproval, RuleID: "r3", Reason: "ask", PolicyDigest: "d1"}
)

// window is that of all approvals here.
var window = protocol.ApprovalWindow{RequestedAt: epoch, ExpiresAt: epoch.Add(protocol.DefaultApprovalTimeout)}

// call is a step with the arguments that its activity gets.
type call struct {
	protocol.Step
	args json.RawMessage
}

// call declares a step, whose identity is that of the runtime.
func (h *history) call(kind, target string, args any, resources ...string) call {
	h.t.Helper()
	raw, err := json.Marshal(args)
	require.NoError(h.t, err)
	hash, err := protocol.ArgsHash(raw)
	require.NoError(h.t, err)
	identity := kind + target + string(raw)
	occurrence := h.occurrences[identity]
	h.occurrences[identity]++
	return call{protocol.Step{
		ID:   protocol.StepID(kind, target, hash, occurrence),
		Kind: kind, Target: target, Occurrence: occurrence, Resources: resources,
	}, raw}
}

func (h *history) tool(resources ...string) call {
	return h.call(protocol.KindTool, "write", nil, resources...)
}

func (h *history) llm() call { return h.call(protocol.KindLLM, "gpt", nil) }

// kept is the step with its arguments, for records that no activity follows.
func (c call) kept() protocol.Step {
	c.Step.Args = c.args
	return c.Step
}

// decide records a decision; no activity follows one that is not allowed.
func (h *history) decide(c call, d protocol.Decision) {
	h.marker(protocol.ActivityDecide, record(c, d), nil)
}

// record is the record of a final decision.
func record(c call, d protocol.Decision) protocol.StepRecord {
	rec := protocol.StepRecord{Step: c.Step, Decision: &d}
	if d.Decision != protocol.Allow {
		rec.Step = c.kept()
	}
	if d.Decision == protocol.RequireApproval {
		rec.Approval = &window
	}
	return rec
}

// settle adds a record that follows the one which decided a step.
func (h *history) settle(rec protocol.StepRecord) {
	h.marker(protocol.ActivitySettle, rec, nil)
}

// answer is an update that decides the approval of a step.
func (h *history) answer(c call, name, status, by, rationale string) {
	id := fmt.Sprint("update-", len(h.events))
	h.endUpdate(h.accept(id, h.request(id, name, protocol.ApprovalVerdict{})), h.success(decided(c, status, by, rationale)))
}

func decided(c call, status, by, rationale string) protocol.ApprovalDecided {
	return protocol.ApprovalDecided{
		ApprovalID: protocol.ApprovalID("exec", c.ID), StepID: c.ID,
		Status: status, DecidedBy: by, Rationale: rationale, DecidedAt: window.RequestedAt.Add(time.Minute),
	}
}

func (h *history) grant(c call) {
	h.answer(c, protocol.UpdateGrant, protocol.ApprovalGranted, "ada", "")
}

func (h *history) refuse(c call) {
	h.answer(c, protocol.UpdateDeny, protocol.ApprovalDenied, "ada", "")
}

// expire ends an approval that nobody decides.
func (h *history) expire(c call, rationale string) {
	h.settle(protocol.StepRecord{Step: c.Step, Closed: &protocol.ApprovalClosed{Rationale: rationale}})
}

// propose records a step to whose decision limits have yet to be applied.
func (h *history) propose(c call, d protocol.Decision) {
	h.marker(protocol.ActivityDecide, protocol.StepRecord{Step: c.Step, Decision: &d, Undecided: true}, nil)
}

// limit holds a step up, or refuses it.
func (h *history) limit(c call, until *time.Time) {
	h.settle(protocol.StepRecord{Step: c.kept(), Limited: &protocol.Limited{
		RuleID: "r4", Reason: protocol.ReasonRateLimited, PolicyDigest: "d1", Until: until,
	}})
}

// execute schedules the activity of a step that has been allowed.
func (h *history) execute(c call) int64 {
	activityType := c.Target
	if c.Kind == protocol.KindLLM {
		activityType = protocol.ActivityGenerate
	}
	return h.schedule(activityType, c.ID, c.args, protocol.Call{Idempotency: c.Idempotency})
}

// begin decides a step and schedules its activity.
func (h *history) begin(c call) int64 {
	h.decide(c, allow)
	return h.execute(c)
}

// run is a step from its decision to its success.
func (h *history) run(c call) call {
	h.complete(h.begin(c), "ok")
	return c
}

// runLocal is a local step that runs in its local activity.
func (h *history) runLocal(c call, o protocol.Outcome) {
	h.marker(protocol.ActivityStep, protocol.StepRecord{Step: c.kept(), Decision: &allow, Outcome: &o}, nil)
}

func (h *history) create(key string, reuse bool) {
	h.created(h.scheduleCreate(key), key, reuse)
}

func (h *history) scheduleCreate(key string) int64 {
	return h.schedule(protocol.ActivityCreateResource, "", protocol.CreateResource{ResourceSpec: protocol.ResourceSpec{
		Key: key, Driver: "dir", Config: json.RawMessage(`{"size":1}`), EverySteps: 1, OnCompletion: true,
	}})
}

func (h *history) created(scheduled int64, key string, reuse bool) {
	h.complete(scheduled, protocol.ResourceCreated{
		Binding: json.RawMessage(`{"id":"` + key + `"}`), CoverageReuse: reuse, Host: "host-" + key,
	})
}

func (h *history) scheduleCheckpoint(key, cause, stepID string) int64 {
	return h.schedule(protocol.ActivityCheckpoint, "", protocol.Checkpoint{
		Key: key, Cause: cause, StepID: stepID, Bound: protocol.Bound{Driver: "dir", Binding: json.RawMessage(`{}`)},
	})
}

func (h *history) checkpoint(key, cause, stepID, ref string) {
	h.complete(h.scheduleCheckpoint(key, cause, stepID), protocol.CheckpointTaken{Ref: ref})
}

// open creates a resource and takes its baseline.
func (h *history) open(key string, reuse bool, ref string) {
	h.create(key, reuse)
	h.checkpoint(key, protocol.CauseBaseline, "", ref)
}
