package eventlog_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// askFor is a rule's decision that says all it can of an approval.
var askFor = protocol.Decision{
	Decision: protocol.RequireApproval, RuleID: "r3", Reason: "ask", PolicyDigest: "d1",
	Approval: &protocol.ApprovalConfig{Approvers: []string{"ada", "bob"}, Message: "really?"},
}

// waiting is a history of one step that waits for approval.
func waiting(t *testing.T) (*history, call) {
	t.Helper()
	h := newHistory(t)
	c := h.call(protocol.KindTool, "open_pr", map[string]int{"n": 1})
	h.decide(c, askFor) // 3 to 6
	return h, c
}

func TestApprovalRequested(t *testing.T) {
	t.Parallel()
	h, c := waiting(t)
	log := h.log()
	step := log.Steps[0]
	id := "exec/" + c.ID[:12]
	about := `{"step_id":"` + c.ID + `","step_type":"tool_call","target":"open_pr",`
	require.Equal(t, about+`"rule_id":"r3","reason":"ask","policy_digest":"d1","approval_id":"`+id+`"}`,
		payload(t, log, 4, eventlog.StepAwaitingApproval))
	require.Equal(t, `{"approval_id":"`+id+`",`+about[1:]+`"args_hash":"`+step.ArgsHash+`","policy_digest":"d1","rule_id":"r3","reason":"ask",`+
		`"message":"really?","approvers":["ada","bob"],"expires_at":"2025-06-01T12:15:00Z"}`,
		payload(t, log, 5, eventlog.ApprovalRequested))
	require.Equal(t, `{}`, payload(t, log, 6, eventlog.ExecutionBlocked))

	want := protocol.Approval{
		ID: id, ExecutionID: "exec", AgentID: "coder", StepID: c.ID, StepKind: protocol.KindTool, Target: "open_pr",
		Args: json.RawMessage(`{"n":1}`), ArgsHash: step.ArgsHash, PolicyDigest: "d1", Status: protocol.ApprovalPending,
		RuleID: "r3", Reason: "ask", Message: "really?", Approvers: []string{"ada", "bob"},
		RequestedAt: window.RequestedAt, ExpiresAt: window.ExpiresAt,
	}
	require.Equal(t, []*protocol.Approval{&want}, log.Approvals)
	require.Equal(t, log.Approvals, log.PendingApprovals())
	require.Equal(t, id, step.ApprovalID)
	require.Equal(t, protocol.RequireApproval, step.Decision)
	require.Equal(t, protocol.StatusBlocked, log.Status)
}

func TestApprovalWithoutWindow(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.marker(protocol.ActivityDecide, protocol.StepRecord{Step: h.tool().kept(), Decision: &approval}, nil)
	log := h.log()
	require.Equal(t, log.Events[2].OccurredAt, log.Approvals[0].RequestedAt)
	require.Equal(t, log.Events[2].OccurredAt.Add(15*time.Minute), log.Approvals[0].ExpiresAt)
}

func TestApprovalResolved(t *testing.T) {
	t.Parallel()
	decidedAt := window.RequestedAt.Add(time.Minute)
	tests := map[string]struct {
		resolve  func(*history, call)
		typ      string
		payload  string
		want     protocol.Approval // only how it ended
		decision protocol.Decision // of the step
	}{
		"granted": {
			func(h *history, c call) {
				h.answer(c, protocol.UpdateGrant, protocol.ApprovalGranted, "ada", "looks good")
			},
			eventlog.ApprovalGranted, `,"decided_by":"ada","identity":"ada@desk","rationale":"looks good"}`,
			protocol.Approval{Status: protocol.ApprovalGranted, DecidedAt: &decidedAt, DecidedBy: "ada", Identity: "ada@desk", Rationale: "looks good"},
			protocol.Decision{Decision: protocol.Allow, RuleID: "r3", Reason: "looks good", PolicyDigest: "d1"},
		},
		"granted for no reason by nobody": {
			func(h *history, c call) {
				h.answer(c, protocol.UpdateGrant, protocol.ApprovalGranted, "", "")
			},
			eventlog.ApprovalGranted, `,"identity":"ada@desk"}`,
			protocol.Approval{Status: protocol.ApprovalGranted, DecidedAt: &decidedAt, Identity: "ada@desk"},
			protocol.Decision{Decision: protocol.Allow, RuleID: "r3", Reason: protocol.ReasonApprovalGranted, PolicyDigest: "d1"},
		},
		"granted by a caller that the server knows": {
			func(h *history, c call) {
				h.grant(c)
				h.events[len(h.events)-2].Principal = &commonpb.Principal{Type: "jwt", Name: "ada@corp"}
			},
			eventlog.ApprovalGranted, `,"decided_by":"ada","identity":"ada@desk","principal":"jwt:ada@corp"}`,
			protocol.Approval{Status: protocol.ApprovalGranted, DecidedAt: &decidedAt, DecidedBy: "ada", Identity: "ada@desk", Principal: "jwt:ada@corp"},
			protocol.Decision{Decision: protocol.Allow, RuleID: "r3", Reason: protocol.ReasonApprovalGranted, PolicyDigest: "d1"},
		},
		"granted after a reset": {
			func(h *history, c call) {
				h.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED, func(ev *historypb.HistoryEvent) {
					ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionUpdateAdmittedEventAttributes{
						WorkflowExecutionUpdateAdmittedEventAttributes: &historypb.WorkflowExecutionUpdateAdmittedEventAttributes{
							Request: h.request("u1", protocol.UpdateGrant),
						},
					}
				})
				h.endUpdate(h.accept("u1", nil), h.success(decided(c, protocol.ApprovalGranted, "", "")))
			},
			eventlog.ApprovalGranted, `,"identity":"ada@desk"}`,
			protocol.Approval{Status: protocol.ApprovalGranted, DecidedAt: &decidedAt, Identity: "ada@desk"},
			protocol.Decision{Decision: protocol.Allow, RuleID: "r3", Reason: protocol.ReasonApprovalGranted, PolicyDigest: "d1"},
		},
		"denied": {
			func(h *history, c call) {
				h.answer(c, protocol.UpdateDeny, protocol.ApprovalDenied, "bob", "too large")
			},
			eventlog.ApprovalDenied, `,"decided_by":"bob","identity":"ada@desk","rationale":"too large"}`,
			protocol.Approval{Status: protocol.ApprovalDenied, DecidedAt: &decidedAt, DecidedBy: "bob", Identity: "ada@desk", Rationale: "too large"},
			protocol.Decision{Decision: protocol.Deny, RuleID: "r3", Reason: "too large", PolicyDigest: "d1"},
		},
		"timed out": {
			func(h *history, c call) { h.expire(c, protocol.RationaleTimeout) },
			eventlog.ApprovalExpired, `,"rationale":"timeout"}`,
			protocol.Approval{Status: protocol.ApprovalExpired, Rationale: protocol.RationaleTimeout},
			protocol.Decision{Decision: protocol.Deny, RuleID: "r3", Reason: protocol.ReasonApprovalTimeout, PolicyDigest: "d1"},
		},
		"cancelled with its step": {
			func(h *history, c call) { h.expire(c, protocol.RationaleStepCancelled) },
			eventlog.ApprovalExpired, `,"rationale":"step_cancelled"}`,
			protocol.Approval{Status: protocol.ApprovalExpired, Rationale: protocol.RationaleStepCancelled},
			protocol.Decision{Decision: protocol.Deny, RuleID: "r3", Reason: protocol.RationaleStepCancelled, PolicyDigest: "d1"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, c := waiting(t)
			tt.resolve(h, c)
			log := h.log()
			step, got := log.Steps[0], *log.Approvals[0]
			require.Equal(t, `{"approval_id":"exec/`+c.ID[:12]+`","step_id":"`+c.ID+`"`+tt.payload, payload(t, log, 7, tt.typ))
			settled := eventlog.StepAllowed
			if tt.decision.Decision == protocol.Deny {
				settled = eventlog.StepDenied
				require.Equal(t, &protocol.StepError{Message: tt.decision.Reason, Reason: protocol.ReasonPolicyDenied}, step.Error)
				require.Equal(t, int64(8), step.SettledSeq)
			}
			require.Contains(t, payload(t, log, 8, settled), `"rule_id":"r3","reason":"`+tt.decision.Reason+`","policy_digest":"d1"}`)
			require.Equal(t, `{}`, payload(t, log, 9, eventlog.ExecutionResumed))
			require.Equal(t, int64(9), log.LatestSeq())

			require.Equal(t, tt.want, protocol.Approval{
				Status: got.Status, DecidedAt: got.DecidedAt, DecidedBy: got.DecidedBy,
				Identity: got.Identity, Principal: got.Principal, Rationale: got.Rationale,
			})
			require.Equal(t, tt.decision, protocol.Decision{
				Decision: step.Decision, RuleID: step.RuleID, Reason: step.Reason, PolicyDigest: step.PolicyDigest,
			})
			require.Equal(t, "exec/"+c.ID[:12], step.ApprovalID)
			require.Empty(t, log.PendingApprovals())
			require.Equal(t, protocol.StatusRunning, log.Status)
		})
	}
}

// TestUpdatesThatDecideNothing leaves a step waiting.
func TestUpdatesThatDecideNothing(t *testing.T) {
	t.Parallel()
	tests := map[string]func(h *history, c call){
		"accepted, not ended": func(h *history, _ call) { h.accept("u", h.request("u", protocol.UpdateGrant)) },
		"failed": func(h *history, _ call) {
			h.endUpdate(h.accept("u", h.request("u", protocol.UpdateGrant)), refusal(errors.New("not an approver")))
		},
		"without an outcome": func(h *history, _ call) {
			h.endUpdate(h.accept("u", h.request("u", protocol.UpdateGrant)), nil)
		},
		"of the agent": func(h *history, c call) {
			h.endUpdate(h.accept("u", h.request("u", "grant")), h.success(decided(c, protocol.ApprovalGranted, "", "")))
		},
		"never accepted": func(h *history, c call) {
			h.endUpdate(999, h.success(decided(c, protocol.ApprovalGranted, "", "")))
		},
		"of another step": func(h *history, _ call) { h.grant(h.tool()) },
		"of a step that nobody asks about": func(h *history, _ call) {
			other := h.run(h.tool())
			h.refuse(other)
		},
	}
	for name, build := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, c := waiting(t)
			build(h, c)
			log := h.log()
			require.Equal(t, protocol.StatusBlocked, log.Status)
			require.Len(t, log.PendingApprovals(), 1)
			require.NotContains(t, types(log), eventlog.ApprovalGranted)
			require.NotContains(t, types(log), eventlog.ApprovalDenied)
		})
	}
}

func TestTwoApprovals(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	a, b := h.tool(), h.tool()
	h.decide(a, approval)
	h.decide(b, approval)
	require.Len(t, h.log().PendingApprovals(), 2)
	h.run(h.llm()) // others go on
	h.grant(a)
	log := h.log()
	require.Equal(t, protocol.StatusBlocked, log.Status)
	require.Len(t, log.PendingApprovals(), 1)
	require.Equal(t, b.ID, log.PendingApprovals()[0].StepID)
	h.refuse(b)
	h.decide(h.tool(), approval) // blocked once more
	log = h.log()
	requireTypes(t, log, eventlog.ExecutionCreated, eventlog.ExecutionStarted,
		eventlog.StepProposed, eventlog.StepAwaitingApproval, eventlog.ApprovalRequested, eventlog.ExecutionBlocked,
		eventlog.StepProposed, eventlog.StepAwaitingApproval, eventlog.ApprovalRequested,
		eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded,
		eventlog.ApprovalGranted, eventlog.StepAllowed,
		eventlog.ApprovalDenied, eventlog.StepDenied, eventlog.ExecutionResumed,
		eventlog.StepProposed, eventlog.StepAwaitingApproval, eventlog.ApprovalRequested, eventlog.ExecutionBlocked)
	require.Len(t, log.Approvals, 3, "they are kept when they are decided")
}

func TestApprovalsOfClosedExecutions(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		close     func(*history)
		rationale string
	}{
		"completed":  {func(h *history) { h.completed(nil) }, protocol.RationaleExecutionClosed},
		"failed":     {func(h *history) { h.failed(failureOf(errors.New("no"))) }, protocol.RationaleExecutionClosed},
		"cancelled":  {func(h *history) { h.bare(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED) }, protocol.RationaleExecutionCancelled},
		"terminated": {func(h *history) { h.terminated("") }, protocol.RationaleExecutionCancelled},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, c := waiting(t)
			h.begin(h.tool()) // 7 to 9
			h.decide(h.tool(), approval)
			tt.close(h)
			log := h.log()
			require.Equal(t, []string{
				eventlog.StepProposed, eventlog.StepAwaitingApproval, eventlog.ApprovalRequested,
				eventlog.ApprovalExpired, eventlog.StepDenied,
				eventlog.StepCancelled,
				eventlog.ApprovalExpired, eventlog.StepDenied,
				log.Events[log.LatestSeq()-1].Type,
			}, types(log)[9:], "the execution does not resume")
			require.Equal(t, `{"approval_id":"exec/`+c.ID[:12]+`","step_id":"`+c.ID+`","rationale":"`+tt.rationale+`"}`,
				payload(t, log, 13, eventlog.ApprovalExpired))
			require.Empty(t, log.PendingApprovals())
			require.Equal(t, tt.rationale, log.Approvals[1].Rationale)
			require.Equal(t, tt.rationale, log.Steps[0].Reason)
			require.NotEqual(t, protocol.StatusBlocked, log.Status)
		})
	}
}

func TestUndecodableApprovals(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		result func(call) any
		want   string
	}{
		"garbage":        {func(call) any { return "text" }, "result of tine.Grant"},
		"unknown status": {func(c call) any { return decided(c, "maybe", "", "") }, `has the unknown status "maybe"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, c := waiting(t)
			h.endUpdate(h.accept("u", h.request("u", protocol.UpdateGrant)), h.success(tt.result(c)))
			_, err := eventlog.Project("exec", "run", h.events, eventlog.Decoder{})
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// TestApprovalsInForks has copied steps that waited for approval in the source.
func TestApprovalsInForks(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	granted, denied, open := h.tool(), h.tool(), h.tool()
	h.decide(granted, askFor)
	h.grant(granted)
	h.complete(h.execute(granted), "ok")
	h.decide(denied, askFor)
	h.decide(open, askFor)
	h.refuse(denied)
	source := h.log()
	requirePrefix(t, source, source.LatestSeq(), append(
		steps(granted, eventlog.StepProposed, eventlog.StepAwaitingApproval, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded),
		steps(denied, eventlog.StepProposed, eventlog.StepAwaitingApproval, eventlog.StepDenied)...)...)
	records := prefix(t, source, source.LatestSeq())
	require.Equal(t, &protocol.Decision{Decision: protocol.Allow, RuleID: "r3", Reason: protocol.ReasonApprovalGranted, PolicyDigest: "d1"}, records[0].Step.Decision)
	require.Equal(t, &protocol.Decision{Decision: protocol.RequireApproval, RuleID: "r3", Reason: "ask", PolicyDigest: "d1"}, records[1].Decision)
	require.Nil(t, records[2].Decision)

	f := forkOf(t, source, source.LatestSeq(), 0)
	log := f.log()
	require.Equal(t, protocol.StatusRunning, log.Status)
	require.Empty(t, log.Approvals)
	require.Equal(t, records, prefix(t, log, log.LatestSeq()), "a fork of the fork has the same")
	require.Contains(t, payload(t, log, 4, eventlog.StepAwaitingApproval), `"rule_id":"r3","reason":"ask","policy_digest":"d1"}`)
	require.Contains(t, payload(t, log, 5, eventlog.StepAllowed), `"reason":"approval_granted"`)
	require.Empty(t, log.Steps[0].ApprovalID)

	f.decide(open, askFor) // the fork asks for itself
	log = f.log()
	require.Len(t, log.PendingApprovals(), 1)
	require.Equal(t, eventlog.ExecutionBlocked, log.Events[log.LatestSeq()-1].Type)
}

// TestForkClosedWhileItLoads ends a fork whose page breaks off within a step.
func TestForkClosedWhileItLoads(t *testing.T) {
	t.Parallel()
	h, c := waiting(t)
	h.grant(c)
	h.complete(h.execute(c), "ok")
	page := protocol.PrefixPage{Records: prefix(t, h.log(), h.log().LatestSeq())[:2], Next: 2}

	f := emptyHistory(t)
	f.started(nil, &protocol.Start{Fork: &protocol.Fork{ExecutionID: "src", Page: &page}})
	f.workflowTask()
	require.Equal(t, protocol.StatusPending, f.log().Status)
	f.terminated("")
	requireTypes(t, f.log(), eventlog.ExecutionCreated, eventlog.ExecutionForked,
		eventlog.StepProposed, eventlog.StepAwaitingApproval, eventlog.StepCancelled, eventlog.ExecutionCancelled)
}
