package tine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	updatepb "go.temporal.io/api/update/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// server is a Temporal client that has a few executions in memory.
type server struct {
	client.Client
	executions []*stored
	// lacksAttributes says that the namespace has no search attributes of Tine's.
	lacksAttributes bool
	noPollers       bool
	// update answers updates.
	update func(context.Context, *stored, string, protocol.ApprovalVerdict) (protocol.ApprovalDecided, error)

	queries []string
	read    []string // the executions whose histories were read
	sent    []protocol.ApprovalVerdict
}

// stored is an execution of a server: its history, and what the visibility store has of it.
type stored struct {
	id     string
	events []*historypb.HistoryEvent
	memo   *protocol.PendingApprovals
	// busy says that a worker has a workflow task of it.
	busy bool
}

func (s *server) find(id string) (*stored, error) {
	for _, e := range s.executions {
		if e.id == id {
			return e, nil
		}
	}
	return nil, serviceerror.NewNotFound("no such workflow")
}

func (s *server) DescribeWorkflow(_ context.Context, id, _ string) (*client.WorkflowExecutionDescription, error) {
	e, err := s.find(id)
	if err != nil {
		return nil, err
	}
	d := &client.WorkflowExecutionDescription{}
	d.WorkflowExecution.RunID = "run"
	d.RawResponse = &workflowservice.DescribeWorkflowExecutionResponse{}
	if e.busy {
		d.RawResponse.PendingWorkflowTask = &workflowpb.PendingWorkflowTaskInfo{State: enumspb.PENDING_WORKFLOW_TASK_STATE_STARTED}
	}
	return d, nil
}

func (s *server) ListWorkflow(_ context.Context, req *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	s.queries = append(s.queries, req.GetQuery())
	if s.lacksAttributes && strings.Contains(req.GetQuery(), "TineStatus") {
		return nil, serviceerror.NewInvalidArgument("invalid query: TineStatus is not a valid search attribute")
	}
	prefix, byPrefix := strings.CutPrefix(req.GetQuery(), "WorkflowId STARTS_WITH '")
	prefix = strings.TrimSuffix(prefix, "'")
	var found []*workflowpb.WorkflowExecutionInfo
	for _, e := range s.executions {
		if byPrefix && !strings.HasPrefix(e.id, prefix) {
			continue
		}
		info := &workflowpb.WorkflowExecutionInfo{Execution: &commonpb.WorkflowExecution{WorkflowId: e.id, RunId: "run"}}
		if e.memo != nil {
			info.Memo = &commonpb.Memo{Fields: map[string]*commonpb.Payload{protocol.MemoApprovals: payloads(e.memo).GetPayloads()[0]}}
		}
		found = append(found, info)
	}
	// A page each, so that pages matter.
	at := len(req.GetNextPageToken())
	page := &workflowservice.ListWorkflowExecutionsResponse{}
	if at < len(found) {
		page.Executions = found[at : at+1]
	}
	if byPrefix {
		page.Executions = found
	} else if at+1 < len(found) {
		page.NextPageToken = make([]byte, at+1)
	}
	return page, nil
}

func (s *server) GetWorkflowHistory(_ context.Context, id, _ string, _ bool, _ enumspb.HistoryEventFilterType) client.HistoryEventIterator {
	s.read = append(s.read, id)
	e, err := s.find(id)
	if err != nil {
		return &events{err: err}
	}
	return &events{left: e.events}
}

type events struct {
	left []*historypb.HistoryEvent
	err  error
}

func (e *events) HasNext() bool { return e.err != nil || len(e.left) > 0 }

func (e *events) Next() (*historypb.HistoryEvent, error) {
	if e.err != nil {
		return nil, e.err
	}
	next := e.left[0]
	e.left = e.left[1:]
	return next, nil
}

func (s *server) DescribeTaskQueue(context.Context, string, enumspb.TaskQueueType) (*workflowservice.DescribeTaskQueueResponse, error) {
	described := &workflowservice.DescribeTaskQueueResponse{}
	if !s.noPollers {
		described.Pollers = []*taskqueuepb.PollerInfo{{LastAccessTime: timestamppb.Now()}}
	}
	return described, nil
}

func (s *server) UpdateWorkflow(ctx context.Context, opts client.UpdateWorkflowOptions) (client.WorkflowUpdateHandle, error) {
	verdict := opts.Args[0].(protocol.ApprovalVerdict)
	s.sent = append(s.sent, verdict)
	e, err := s.find(opts.WorkflowID)
	if err != nil {
		return nil, err
	}
	decided, err := s.update(ctx, e, opts.UpdateName, verdict)
	var app *temporal.ApplicationError
	if err != nil && !errors.As(err, &app) {
		return nil, err
	}
	return &handle{decided: decided, err: err}, nil
}

// handle is an update that has completed: a rejection comes with its result.
type handle struct {
	client.WorkflowUpdateHandle
	decided protocol.ApprovalDecided
	err     error
}

func (h *handle) Get(_ context.Context, into any) error {
	if h.err == nil {
		*into.(*protocol.ApprovalDecided) = h.decided
	}
	return h.err
}

func payloads(values ...any) *commonpb.Payloads {
	encoded, err := converter.GetDefaultDataConverter().ToPayloads(values...)
	if err != nil {
		panic(err)
	}
	return encoded
}

var began = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// started is an execution whose first workflow task has ended.
func started(id string) *stored {
	e := &stored{id: id}
	e.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
			WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{
				WorkflowType: &commonpb.WorkflowType{Name: "coder"}, TaskQueue: &taskqueuepb.TaskQueue{Name: "agents"}, Input: payloads(nil),
			},
		}
	})
	e.add(enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED, func(*historypb.HistoryEvent) {})
	return e
}

func (e *stored) add(typ enumspb.EventType, set func(*historypb.HistoryEvent)) int64 {
	ev := &historypb.HistoryEvent{EventId: int64(len(e.events) + 1), EventType: typ, EventTime: timestamppb.New(began)}
	set(ev)
	e.events = append(e.events, ev)
	return ev.GetEventId()
}

func (e *stored) marker(activity string, result any) {
	e.add(enumspb.EVENT_TYPE_MARKER_RECORDED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_MarkerRecordedEventAttributes{
			MarkerRecordedEventAttributes: &historypb.MarkerRecordedEventAttributes{
				MarkerName: "LocalActivity",
				Details: map[string]*commonpb.Payloads{
					"data": payloads(map[string]any{"ActivityType": activity, "Attempt": 1}), "result": payloads(result),
				},
			},
		}
	})
}

// asks adds a step that waits for approval, and gives the approval as its memo lists it.
func (e *stored) asks(stepID string, expires time.Duration) protocol.Approval {
	args := json.RawMessage(fmt.Sprintf(`{"title":%q}`, stepID))
	hash, err := protocol.ArgsHash(args)
	if err != nil {
		panic(err)
	}
	stepID = stepID + strings.Repeat("0", 32-len(stepID))
	window := protocol.ApprovalWindow{RequestedAt: began, ExpiresAt: began.Add(expires)}
	e.marker(protocol.ActivityDecide, protocol.StepRecord{
		Step: protocol.Step{ID: stepID, Kind: protocol.KindTool, Target: "open_pr", Args: args},
		Decision: &protocol.Decision{
			Decision: protocol.RequireApproval, RuleID: "ask", Reason: "it is public", PolicyDigest: "d1",
			Approval: &protocol.ApprovalConfig{Approvers: []string{"ann"}, Message: "look"},
		},
		Approval: &window,
	})
	a := protocol.Approval{
		ID: protocol.ApprovalID(e.id, stepID), ExecutionID: e.id, AgentID: "coder", StepID: stepID, StepKind: protocol.KindTool,
		Target: "open_pr", Args: args, ArgsHash: hash, PolicyDigest: "d1", Status: protocol.ApprovalPending, RuleID: "ask",
		Reason: "it is public", Message: "look", Approvers: []string{"ann"},
		RequestedAt: window.RequestedAt, ExpiresAt: window.ExpiresAt,
	}
	if e.memo == nil {
		e.memo = &protocol.PendingApprovals{}
	}
	e.memo.Approvals = append(e.memo.Approvals, a)
	return a
}

// decided records that somebody has decided an approval. The visibility store does not know yet.
func (e *stored) decided(a protocol.Approval, status, by, reason string) protocol.ApprovalDecided {
	accepted := e.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionUpdateAcceptedEventAttributes{
			WorkflowExecutionUpdateAcceptedEventAttributes: &historypb.WorkflowExecutionUpdateAcceptedEventAttributes{
				AcceptedRequest: &updatepb.Request{
					Meta: &updatepb.Meta{Identity: "bob@host"}, Input: &updatepb.Input{Name: protocol.UpdateGrant},
				},
			},
		}
	})
	result := protocol.ApprovalDecided{
		ApprovalID: a.ID, StepID: a.StepID, Status: status, DecidedBy: by, Rationale: reason, DecidedAt: began.Add(time.Minute),
	}
	e.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionUpdateCompletedEventAttributes{
			WorkflowExecutionUpdateCompletedEventAttributes: &historypb.WorkflowExecutionUpdateCompletedEventAttributes{
				AcceptedEventId: accepted,
				Outcome:         &updatepb.Outcome{Value: &updatepb.Outcome_Success{Success: payloads(result)}},
			},
		}
	})
	return result
}

func (e *stored) expired(a protocol.Approval) {
	e.marker(protocol.ActivitySettle, protocol.StepRecord{
		Step: protocol.Step{ID: a.StepID}, Closed: &protocol.ApprovalClosed{Rationale: protocol.RationaleTimeout},
	})
}

func (e *stored) ended() {
	e.add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED, func(ev *historypb.HistoryEvent) {
		ev.Attributes = &historypb.HistoryEvent_WorkflowExecutionTerminatedEventAttributes{
			WorkflowExecutionTerminatedEventAttributes: &historypb.WorkflowExecutionTerminatedEventAttributes{},
		}
	})
}

func ids(approvals []*tine.Approval) []string {
	listed := []string{}
	for _, a := range approvals {
		listed = append(listed, a.ID)
	}
	return listed
}

func TestPendingApprovalsComeFromMemos(t *testing.T) {
	t.Parallel()
	late, soon, none := started("late"), started("soon"), started("none")
	a, b := late.asks("a", time.Hour), soon.asks("b", time.Minute)
	s := &server{executions: []*stored{late, none, soon}}
	c := tine.NewClient(s, tine.Options{})

	found, err := c.Approvals(t.Context(), tine.ApprovalOptions{})
	require.NoError(t, err)
	require.Equal(t, []*tine.Approval{&b, &a}, found, "the one that expires first comes first")
	require.Empty(t, s.read, "no history is read")
	require.Equal(t, "ExecutionStatus = 'Running' AND (TineStatus = 'blocked' OR TineStatus IS NULL)", s.queries[0])

	found, err = c.Approvals(t.Context(), tine.ApprovalOptions{Agent: "coder", Status: tine.ApprovalPending, Limit: 1})
	require.NoError(t, err)
	require.Equal(t, []string{b.ID}, ids(found))
	require.Contains(t, s.queries[len(s.queries)-1], "WorkflowType = 'coder'")

	found, err = tine.NewClient(&server{}, tine.Options{}).Approvals(t.Context(), tine.ApprovalOptions{})
	require.NoError(t, err)
	require.Equal(t, []*tine.Approval{}, found, "an empty list is one in JSON too")
}

func TestPendingApprovalsWithoutSearchAttributes(t *testing.T) {
	t.Parallel()
	e := started("e")
	a := e.asks("a", time.Hour)
	s := &server{executions: []*stored{e}, lacksAttributes: true}
	found, err := tine.NewClient(s, tine.Options{}).Approvals(t.Context(), tine.ApprovalOptions{})
	require.NoError(t, err)
	require.Equal(t, []*tine.Approval{&a}, found)
	require.Equal(t, "ExecutionStatus = 'Running'", s.queries[len(s.queries)-1])
}

// TestMemosThatSayTooLittle: what has no room in a memo is in the log.
func TestMemosThatSayTooLittle(t *testing.T) {
	t.Parallel()
	for name, shorten := range map[string]func(*protocol.PendingApprovals){
		"more of them":    func(m *protocol.PendingApprovals) { m.Approvals, m.More = m.Approvals[:1], 1 },
		"large arguments": func(m *protocol.PendingApprovals) { m.Approvals[0].Args = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := started("e")
			a, b := e.asks("a", time.Minute), e.asks("b", time.Hour)
			shorten(e.memo)
			s := &server{executions: []*stored{e}}
			found, err := tine.NewClient(s, tine.Options{}).Approvals(t.Context(), tine.ApprovalOptions{})
			require.NoError(t, err)
			require.Equal(t, []*tine.Approval{&a, &b}, found)
			require.Equal(t, []string{"e"}, s.read)
		})
	}
}

func TestApprovalsOfAnExecution(t *testing.T) {
	t.Parallel()
	e := started("e")
	a, b, d := e.asks("a", time.Minute), e.asks("b", time.Hour), e.asks("d", 2*time.Minute)
	e.decided(a, tine.ApprovalGranted, "ann", "fine")
	e.expired(d)
	c := tine.NewClient(&server{executions: []*stored{e}}, tine.Options{})
	for status, want := range map[string][]string{
		"":                   {a.ID, d.ID, b.ID},
		tine.ApprovalPending: {b.ID},
		tine.ApprovalGranted: {a.ID},
		tine.ApprovalExpired: {d.ID},
		tine.ApprovalDenied:  {},
	} {
		found, err := c.Approvals(t.Context(), tine.ApprovalOptions{Execution: "e", Status: status})
		require.NoError(t, err)
		require.Equal(t, want, ids(found), status)
	}
	_, err := c.Approvals(t.Context(), tine.ApprovalOptions{Status: tine.ApprovalDenied})
	require.ErrorContains(t, err, "name an execution")
	var missing *tine.NotFoundError
	_, err = c.Approvals(t.Context(), tine.ApprovalOptions{Execution: "nosuch"})
	require.ErrorAs(t, err, &missing)
}

func TestApprovalIsFound(t *testing.T) {
	t.Parallel()
	one, two, done := started("exec-one"), started("exec-two"), started("team/exec-done")
	a, b, d := one.asks("a1", time.Hour), two.asks("b1", time.Hour), two.asks("b2", time.Hour)
	gone := done.asks("c1", time.Hour)
	again := done.asks("c2", time.Hour)
	done.decided(gone, tine.ApprovalGranted, "ann", "fine")
	done.memo = &protocol.PendingApprovals{Approvals: []protocol.Approval{again}}
	c := tine.NewClient(&server{executions: []*stored{one, two, done}}, tine.Options{})
	for asked, want := range map[string]string{
		a.ID:               a.ID,
		gone.ID:            gone.ID,
		"exec-one":         a.ID, // its only one
		"exec-o":           a.ID,
		"exec-o/a":         a.ID,
		"exec-two/b2":      d.ID,
		"exec-two/b10000":  b.ID,
		"team/exec-done":   again.ID, // the only pending one
		"team/exec-done/":  again.ID,
		"team/exec-done/c": again.ID,
		"team/exec-d/c1":   gone.ID,
		"team/":            again.ID,
	} {
		found, err := c.Approval(t.Context(), asked)
		require.NoError(t, err, asked)
		require.Equal(t, want, found.ID, asked)
	}
	whole, err := c.Approval(t.Context(), gone.ID)
	require.NoError(t, err)
	require.Equal(t, "ann", whole.DecidedBy)
	require.Equal(t, "bob@host", whole.Identity)

	var missing *tine.ApprovalNotFoundError
	for _, asked := range []string{"nosuch", "nosuch/a1", "exec-one/ff", "/", "/a1"} {
		_, err := c.Approval(t.Context(), asked)
		require.ErrorAs(t, err, &missing, asked)
	}
	var several *tine.AmbiguousError
	for asked, matches := range map[string][]string{
		"exec-two":   {b.ID, d.ID},
		"exec-two/b": {b.ID, d.ID},
		"exec-":      {a.ID, b.ID, d.ID},
	} {
		_, err := c.Approval(t.Context(), asked)
		require.ErrorAs(t, err, &several, asked)
		require.Equal(t, matches, several.Matches, asked)
		require.ErrorContains(t, err, "several approvals' ids")
	}
	_, err = c.Approval(t.Context(), "")
	require.ErrorContains(t, err, "required")
}

// TestDecisionNamesOne: who names an execution has looked at one approval of it, and another may
// be pending by now.
func TestDecisionNamesOne(t *testing.T) {
	t.Parallel()
	one, two, old := started("exec-one"), started("exec-two"), started("old")
	only, first, second := one.asks("a1", time.Hour), two.asks("b1", time.Hour), two.asks("b2", time.Hour)
	two.decided(first, tine.ApprovalGranted, "ann", "")
	settled := old.asks("c1", time.Hour)
	old.decided(settled, tine.ApprovalDenied, "ann", "")
	s := &server{executions: []*stored{one, two, old}}
	s.update = func(_ context.Context, _ *stored, _ string, v protocol.ApprovalVerdict) (protocol.ApprovalDecided, error) {
		return protocol.ApprovalDecided{ApprovalID: v.ApprovalID, Status: tine.ApprovalGranted}, nil
	}
	c := tine.NewClient(s, tine.Options{})
	var several *tine.AmbiguousError
	for _, id := range []string{"exec-two", "exec-two/", "exec-two/b", "exec-"} {
		_, err := c.Grant(t.Context(), id, tine.ApprovalDecision{})
		require.ErrorAs(t, err, &several, id)
	}
	require.Empty(t, s.sent)
	for _, id := range []string{"exec-one", "exec-o/a", "exec-two/b2", second.ID} {
		_, err := c.Grant(t.Context(), id, tine.ApprovalDecision{})
		require.NoError(t, err, id)
	}
	sent := []string{}
	for _, v := range s.sent {
		sent = append(sent, v.ApprovalID)
	}
	require.Equal(t, []string{only.ID, only.ID, second.ID, second.ID}, sent)

	found, err := c.Approval(t.Context(), "old")
	require.NoError(t, err, "the only one, though it is decided")
	require.Equal(t, settled.ID, found.ID)
	var decided *tine.ApprovalDecidedError
	_, err = c.Grant(t.Context(), "old", tine.ApprovalDecision{})
	require.ErrorAs(t, err, &decided)
}

func TestGrantAndDeny(t *testing.T) {
	t.Parallel()
	for update, status := range map[string]string{protocol.UpdateGrant: tine.ApprovalGranted, protocol.UpdateDeny: tine.ApprovalDenied} {
		e := started("e")
		a := e.asks("a", time.Hour)
		s := &server{executions: []*stored{e}}
		s.update = func(_ context.Context, e *stored, name string, v protocol.ApprovalVerdict) (protocol.ApprovalDecided, error) {
			require.Equal(t, update, name)
			return e.decided(a, status, v.By, v.Reason), nil
		}
		c := tine.NewClient(s, tine.Options{Identity: "ann"})
		decide := map[string]func(context.Context, string, tine.ApprovalDecision) (*tine.Approval, error){
			tine.ApprovalGranted: c.Grant, tine.ApprovalDenied: c.Deny,
		}[status]

		got, err := decide(t.Context(), "e/a", tine.ApprovalDecision{Reason: "I looked"})
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(10*time.Second), *s.sent[0].ValidUntil, 5*time.Second)
		s.sent[0].ValidUntil = nil
		require.Equal(t, protocol.ApprovalVerdict{
			ApprovalID: a.ID, By: "ann", Reason: "I looked", StepID: a.StepID, ArgsHash: a.ArgsHash, PolicyDigest: "d1",
		}, s.sent[0])
		require.Equal(t, status, got.Status)
		require.Equal(t, "ann", got.DecidedBy)
		require.Equal(t, "I looked", got.Rationale)
		require.Equal(t, began.Add(time.Minute), *got.DecidedAt)
		require.Equal(t, a.Target, got.Target)

		// A second decision is not even sent.
		var decided *tine.ApprovalDecidedError
		_, err = decide(t.Context(), a.ID, tine.ApprovalDecision{By: "bob"})
		require.ErrorAs(t, err, &decided)
		require.ErrorContains(t, err, "was "+status+" already, by ann")
		require.Len(t, s.sent, 1)
	}
}

func TestDecisionsThatAreRefused(t *testing.T) {
	t.Parallel()
	refuse := func(kind string) error { return temporal.NewNonRetryableApplicationError("said so", kind, nil) }
	for name, tc := range map[string]struct {
		err   error
		check func(*testing.T, error)
	}{
		"not found": {refuse(failure.TypeApprovalNotFound), func(t *testing.T, err error) {
			var target *tine.ApprovalNotFoundError
			require.ErrorAs(t, err, &target)
		}},
		"decided": {refuse(failure.TypeApprovalDecided), func(t *testing.T, err error) {
			var target *tine.ApprovalDecidedError
			require.ErrorAs(t, err, &target)
			require.ErrorContains(t, err, "was denied already, by bob")
		}},
		"not allowed": {refuse(failure.TypeApproverNotAllowed), func(t *testing.T, err error) {
			var target *tine.NotAllowedError
			require.ErrorAs(t, err, &target)
			require.EqualError(t, err, "said so")
			require.Equal(t, []string{"ann"}, target.Approval.Approvers)
		}},
		"changed": {refuse(failure.TypeApprovalChanged), func(t *testing.T, err error) {
			var target *tine.ApprovalChangedError
			require.ErrorAs(t, err, &target)
		}},
		"closed": {serviceerror.NewNotFound("workflow execution already completed"), func(t *testing.T, err error) {
			var target *tine.ApprovalDecidedError
			require.ErrorAs(t, err, &target)
		}},
		"something else": {refuse("errorString"), func(t *testing.T, err error) {
			require.ErrorContains(t, err, "decide approval e/a00000000000: said so")
		}},
		"the server": {serviceerror.NewUnavailable("restarting"), func(t *testing.T, err error) {
			var target *serviceerror.Unavailable
			require.ErrorAs(t, err, &target)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := started("e")
			a := e.asks("a", time.Hour)
			s := &server{executions: []*stored{e}}
			s.update = func(context.Context, *stored, string, protocol.ApprovalVerdict) (protocol.ApprovalDecided, error) {
				switch name {
				case "decided": // by somebody who was quicker
					e.decided(a, tine.ApprovalDenied, "bob", "")
				case "closed":
					e.ended()
				}
				return protocol.ApprovalDecided{}, tc.err
			}
			_, err := tine.NewClient(s, tine.Options{}).Grant(t.Context(), a.ID, tine.ApprovalDecision{By: "mallory"})
			tc.check(t, err)
		})
	}
}

func TestDecisionsOnClosedApprovals(t *testing.T) {
	t.Parallel()
	expired, ended := started("expired"), started("ended")
	late, left := expired.asks("a", time.Minute), ended.asks("a", time.Minute)
	expired.expired(late)
	ended.ended()
	s := &server{executions: []*stored{expired, ended}}
	c := tine.NewClient(s, tine.Options{})
	var decided *tine.ApprovalDecidedError
	_, err := c.Grant(t.Context(), late.ID, tine.ApprovalDecision{})
	require.ErrorAs(t, err, &decided)
	require.ErrorContains(t, err, "expired")
	_, err = c.Grant(t.Context(), left.ID, tine.ApprovalDecision{})
	require.ErrorAs(t, err, &decided)
	require.ErrorContains(t, err, "execution_cancelled")
	_, err = c.Deny(t.Context(), left.ID, tine.ApprovalDecision{Reason: strings.Repeat("x", 1<<20)})
	require.ErrorContains(t, err, "at most")
	require.Empty(t, s.sent)
}

func TestNoWorkerServesTheQueue(t *testing.T) {
	t.Parallel()
	e := started("e")
	a := e.asks("a", time.Hour)
	s := &server{executions: []*stored{e}, noPollers: true}
	_, err := tine.NewClient(s, tine.Options{}).Grant(t.Context(), a.ID, tine.ApprovalDecision{})
	var none *tine.NoWorkerError
	require.ErrorAs(t, err, &none)
	require.Equal(t, &tine.NoWorkerError{ID: a.ID, TaskQueue: "agents"}, none)
	require.Empty(t, s.sent, "it is certain that nothing was decided")
}

// hang is an update that no worker takes.
func hang(ctx context.Context) (protocol.ApprovalDecided, error) {
	<-ctx.Done()
	return protocol.ApprovalDecided{}, client.NewWorkflowUpdateServiceTimeoutOrCanceledError(ctx.Err())
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meanwhile func(*stored, protocol.Approval)
		check     func(*testing.T, *tine.Approval, error)
	}{
		"nothing happens": {func(*stored, protocol.Approval) {}, func(t *testing.T, _ *tine.Approval, err error) {
			var none *tine.NoWorkerError
			require.ErrorAs(t, err, &none)
		}},
		"a worker is busy": {func(e *stored, _ protocol.Approval) { e.busy = true }, func(t *testing.T, _ *tine.Approval, err error) {
			var unknown *tine.UnknownOutcomeError
			require.ErrorAs(t, err, &unknown)
		}},
		"it was taken": {func(e *stored, a protocol.Approval) { e.decided(a, tine.ApprovalGranted, "ann", "") }, func(t *testing.T, a *tine.Approval, err error) {
			require.NoError(t, err)
			require.Equal(t, tine.ApprovalGranted, a.Status)
		}},
		"another was": {func(e *stored, a protocol.Approval) { e.decided(a, tine.ApprovalDenied, "bob", "") }, func(t *testing.T, _ *tine.Approval, err error) {
			var decided *tine.ApprovalDecidedError
			require.ErrorAs(t, err, &decided)
		}},
		"the history is gone": {func(e *stored, _ protocol.Approval) { e.id = "gone" }, func(t *testing.T, _ *tine.Approval, err error) {
			var unknown *tine.UnknownOutcomeError
			require.ErrorAs(t, err, &unknown)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := started("e")
				a := e.asks("a", time.Hour)
				s := &server{executions: []*stored{e}}
				s.update = func(ctx context.Context, e *stored, _ string, _ protocol.ApprovalVerdict) (protocol.ApprovalDecided, error) {
					tc.meanwhile(e, a)
					return hang(ctx)
				}
				from := time.Now()
				got, err := tine.NewClient(s, tine.Options{}).Grant(t.Context(), a.ID, tine.ApprovalDecision{By: "ann"})
				require.Equal(t, 10*time.Second, time.Since(from))
				tc.check(t, got, err)
			})
		})
	}
}

func TestInterruptedDecision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := started("e")
		a := e.asks("a", time.Hour)
		s := &server{executions: []*stored{e}}
		s.update = func(ctx context.Context, _ *stored, _ string, _ protocol.ApprovalVerdict) (protocol.ApprovalDecided, error) {
			return hang(ctx)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := tine.NewClient(s, tine.Options{}).Grant(ctx, a.ID, tine.ApprovalDecision{})
		var unknown *tine.UnknownOutcomeError
		require.ErrorAs(t, err, &unknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
