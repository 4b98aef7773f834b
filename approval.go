package tine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// Approval is a person's decision that a step waits, or has waited, for.
type Approval = protocol.Approval

// Statuses of an approval.
const (
	ApprovalPending = protocol.ApprovalPending
	ApprovalGranted = protocol.ApprovalGranted
	ApprovalDenied  = protocol.ApprovalDenied
	ApprovalExpired = protocol.ApprovalExpired
)

// ApprovalOptions select approvals. Empty fields select all.
type ApprovalOptions struct {
	// Execution is the id of the execution whose approvals are wanted. Empty means the pending
	// ones of all executions.
	Execution string
	Agent     string
	// Status is one of the Approval constants. Any but ApprovalPending needs an Execution.
	Status string
	// Limit bounds the answer. Zero means no bound.
	Limit int
}

// Approvals lists approvals, those that expire first before the others. No worker need run.
//
// The pending ones of all executions come from Temporal's visibility store, which may lag
// behind by a second or so. Those of one execution come from its log, with those that are
// decided.
func (c *Client) Approvals(ctx context.Context, opts ApprovalOptions) ([]*Approval, error) {
	var all []*Approval
	var err error
	switch {
	case opts.Execution != "":
		var log *eventlog.Log
		if log, err = c.read(ctx, opts.Execution); err == nil {
			all = log.Approvals
		}
	case opts.Status == "" || opts.Status == ApprovalPending:
		all, err = c.pendingApprovals(ctx, opts.Agent)
	default:
		err = fmt.Errorf("list approvals: approvals that are %s are in the logs of their executions: name an execution", opts.Status)
	}
	if err != nil {
		return nil, err
	}
	found := []*Approval{}
	for _, a := range all {
		if (opts.Agent == "" || a.AgentID == opts.Agent) && (opts.Status == "" || a.Status == opts.Status) {
			found = append(found, a)
		}
	}
	slices.SortStableFunc(found, func(a, b *Approval) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.ID, b.ID))
	})
	if opts.Limit > 0 {
		found = found[:min(len(found), opts.Limit)]
	}
	return found, nil
}

// pendingApprovals reads those of all open executions from what the visibility store has of
// them.
func (c *Client) pendingApprovals(ctx context.Context, agent string) ([]*Approval, error) {
	open := query(ListOptions{Agent: agent, Status: StatusBlocked}, false)
	// An execution has no status there if its worker could not make sure of the attributes.
	blocked := fmt.Sprintf("%s AND (%s = %s OR %s IS NULL)", open,
		protocol.AttributeStatus, quote(StatusBlocked), protocol.AttributeStatus)
	found, err := c.waiting(ctx, blocked)
	if lacksAttributes(err) {
		found, err = c.waiting(ctx, open)
	}
	if err != nil {
		return nil, fmt.Errorf("list approvals: %w", err)
	}
	return found, nil
}

func (c *Client) waiting(ctx context.Context, query string) ([]*Approval, error) {
	var found []*Approval
	err := c.eachListed(ctx, query, memoPage, func(info *workflowpb.WorkflowExecutionInfo) (bool, error) {
		listed, err := c.listedApprovals(ctx, info)
		found = append(found, listed...)
		return true, err
	})
	return found, err
}

// memoPage is how many executions are read at once with their memos, each of some kilobytes.
const memoPage = 200

// listedApprovals are an execution's pending approvals as its memo has them, or as its log
// does if the memo had no room for all there is to say.
func (c *Client) listedApprovals(ctx context.Context, info *workflowpb.WorkflowExecutionInfo) ([]*Approval, error) {
	payload := info.GetMemo().GetFields()[protocol.MemoApprovals]
	if payload == nil {
		return nil, nil
	}
	var memo protocol.PendingApprovals
	err := c.rawJSON(payload, &memo)
	if err == nil && complete(memo) {
		listed := make([]*Approval, len(memo.Approvals))
		for i := range memo.Approvals {
			listed[i] = &memo.Approvals[i]
		}
		return listed, nil
	}
	log, err := c.read(ctx, info.GetExecution().GetWorkflowId())
	var missing *NotFoundError
	if errors.As(err, &missing) {
		return nil, nil // it has been deleted since
	}
	if err != nil {
		return nil, err
	}
	return log.PendingApprovals(), nil
}

func complete(memo protocol.PendingApprovals) bool {
	return memo.More == 0 && !slices.ContainsFunc(memo.Approvals, func(a Approval) bool { return a.Args == nil })
}

// Approval reads an approval, whatever its status, from its execution's log. The id is its
// own or a part of it that names no other: the beginning of a pending one's, the beginnings
// of the execution's id and of the step's with a slash between them, or that of an execution
// with one approval, or with one that is pending. None is an *ApprovalNotFoundError, several are
// an *AmbiguousError.
func (c *Client) Approval(ctx context.Context, id string) (*Approval, error) {
	a, _, err := c.findApproval(ctx, id, lenient)
	return a, err
}

// matching says what else counts where several approvals begin with a part of an id.
type matching bool

const (
	// lenient takes the one that is pending before those that are decided.
	lenient matching = false
	// strict wants the only one of all. Who decides has looked at one, and by now another may be
	// the one that is pending.
	strict matching = true
)

// findApproval finds an approval and the log that it stands in.
func (c *Client) findApproval(ctx context.Context, id string, how matching) (*Approval, *eventlog.Log, error) {
	if id == "" {
		return nil, nil, errors.New("an approval's id is required")
	}
	for _, name := range []string{protocol.ApprovalExecution(id), id} { // a Workflow ID may have slashes of its own
		if name == "" {
			continue
		}
		execution, err := c.Resolve(ctx, name)
		var missing *NotFoundError
		var several *AmbiguousError
		if errors.As(err, &missing) || errors.As(err, &several) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		step := strings.TrimPrefix(id[len(name):], "/")
		a, log, err := c.approvalOf(ctx, execution, id, execution+"/"+step, how)
		if a != nil || err != nil {
			return a, log, err
		}
	}
	pending, err := c.pendingApprovals(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	a, err := choose(pending, id, id, how)
	if err != nil {
		return nil, nil, err
	}
	if a == nil {
		return nil, nil, &ApprovalNotFoundError{ID: id}
	}
	return c.approvalOf(ctx, a.ExecutionID, id, id, how)
}

// approvalOf finds an approval in the log of its execution. There may be none.
func (c *Client) approvalOf(ctx context.Context, execution, asked, prefix string, how matching) (*Approval, *eventlog.Log, error) {
	log, err := c.read(ctx, execution)
	if err != nil {
		return nil, nil, err
	}
	a, err := choose(log.Approvals, asked, prefix, how)
	return a, log, err
}

// choose gives the approval that begins with prefix: the very one, else the only one. There may be
// none.
func choose(approvals []*Approval, asked, prefix string, how matching) (*Approval, error) {
	var matches, pending []*Approval
	for _, a := range approvals {
		switch {
		case a.ID == prefix:
			return a, nil
		case !strings.HasPrefix(a.ID, prefix):
			continue
		case a.Status == ApprovalPending:
			pending = append(pending, a)
		}
		matches = append(matches, a)
	}
	// A prefix that names no step is for what waits, if anything does.
	if how == lenient && (len(pending) == 1 || len(pending) > 0 && strings.HasSuffix(prefix, "/")) {
		matches = pending
	}
	switch len(matches) {
	case 0:
		return nil, nil
	case 1:
		return matches[0], nil
	default:
		several := &AmbiguousError{Prefix: asked, Approvals: true, More: max(len(matches)-maxMatches, 0)}
		for _, a := range matches[:min(len(matches), maxMatches)] {
			several.Matches = append(several.Matches, a.ID)
		}
		return nil, several
	}
}

// ApprovalDecision says who decides an approval, and why.
type ApprovalDecision struct {
	// By is the name of who decides, which the rule's approvers must list if there are any. Empty
	// means Options.Identity.
	By string
	// Reason is recorded. The agent gets that of a denial.
	Reason string
}

// Grant lets the step that waits for the approval run. The id is as for Approval, and names no
// other approval of the execution, decided or not, so that nobody grants another than they have
// looked at. A step whose arguments or policy differ from what is read here is an
// *ApprovalChangedError.
//
// It needs a worker, and waits some seconds for one. Without any it is a *NoWorkerError, and the
// approval stays pending: the decision is void by then. Other errors are an *ApprovalNotFoundError, an *AmbiguousError, an
// *ApprovalDecidedError, a *NotAllowedError, and an *UnknownOutcomeError.
func (c *Client) Grant(ctx context.Context, id string, decision ApprovalDecision) (*Approval, error) {
	return c.decide(ctx, protocol.UpdateGrant, id, decision)
}

// Deny refuses the step that waits for the approval. The agent gets a PolicyError and goes
// on. All else is as with Grant.
func (c *Client) Deny(ctx context.Context, id string, decision ApprovalDecision) (*Approval, error) {
	return c.decide(ctx, protocol.UpdateDeny, id, decision)
}

const (
	// answerTimeout is how long a worker may take to answer. The server offers a task first to the
	// worker that had the last one, for five seconds, also if that has gone.
	answerTimeout = 10 * time.Second
	// maxReason bounds what a decision puts into the history.
	maxReason = 16 << 10
)

func (c *Client) decide(ctx context.Context, update, id string, decision ApprovalDecision) (*Approval, error) {
	by := cmp.Or(decision.By, c.opts.Identity)
	if size := len(by) + len(decision.Reason); size > maxReason {
		return nil, fmt.Errorf("decide approval: name and reason have %d bytes; at most %d fit", size, maxReason)
	}
	a, log, err := c.findApproval(ctx, id, strict)
	if err != nil {
		return nil, err
	}
	if a.Status != ApprovalPending {
		return nil, &ApprovalDecidedError{Approval: a}
	}
	if c.polled(ctx, log.TaskQueue, enumspb.TASK_QUEUE_TYPE_WORKFLOW) == nobody {
		return nil, &NoWorkerError{ID: a.ID, TaskQueue: log.TaskQueue}
	}
	until := time.Now().Add(answerTimeout).UTC()
	verdict := protocol.ApprovalVerdict{
		ApprovalID: a.ID, By: by, Reason: decision.Reason, ValidUntil: &until,
		StepID: a.StepID, ArgsHash: a.ArgsHash, PolicyDigest: a.PolicyDigest,
	}
	decided, err := c.send(ctx, update, a.ExecutionID, verdict)
	var timeout *client.WorkflowUpdateServiceTimeoutOrCanceledError
	switch {
	case errors.As(err, &timeout):
		return c.unanswered(ctx, update, verdict, log.TaskQueue, err)
	case err != nil:
		return nil, c.refused(ctx, a, err)
	}
	a.Status, a.DecidedAt, a.DecidedBy, a.Rationale = decided.Status, &decided.DecidedAt, decided.DecidedBy, decided.Rationale
	a.Identity = c.opts.Identity
	return a, nil
}

// send asks the execution's worker to decide.
func (c *Client) send(ctx context.Context, update, execution string, verdict protocol.ApprovalVerdict) (protocol.ApprovalDecided, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var decided protocol.ApprovalDecided
	handle, err := c.temporal.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		UpdateID: uuid.NewString(), WorkflowID: execution, UpdateName: update, Args: []any{verdict},
		WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err == nil {
		err = handle.Get(ctx, &decided)
	}
	return decided, err
}

// unanswered says what has become of a verdict that nobody has answered in time.
func (c *Client) unanswered(ctx context.Context, update string, v protocol.ApprovalVerdict, taskQueue string, err error) (*Approval, error) {
	if ctx.Err() != nil {
		return nil, &UnknownOutcomeError{ID: v.ApprovalID, Err: ctx.Err()}
	}
	busy := c.taskUnderWay(ctx, protocol.ApprovalExecution(v.ApprovalID))
	a, readErr := c.Approval(ctx, v.ApprovalID)
	switch {
	case readErr != nil:
		return nil, &UnknownOutcomeError{ID: v.ApprovalID, Err: err}
	case a.Status == ApprovalPending && busy:
		return nil, &UnknownOutcomeError{ID: v.ApprovalID, Err: errors.New("a worker is busy with the execution, and may yet take it")}
	case a.Status == ApprovalPending:
		return nil, &NoWorkerError{ID: v.ApprovalID, TaskQueue: taskQueue}
	case a.Status == statusAfter[update] && a.DecidedBy == v.By && a.Rationale == v.Reason:
		return a, nil // it was taken, and the answer was lost
	default:
		return nil, &ApprovalDecidedError{Approval: a}
	}
}

// taskUnderWay reports whether a worker has a workflow task of the execution. It may have begun it
// before the verdict was void. A task that begins later refuses the verdict.
func (c *Client) taskUnderWay(ctx context.Context, execution string) bool {
	described, err := c.temporal.DescribeWorkflow(ctx, execution, "")
	if err != nil {
		return true // nobody can tell
	}
	return described.RawResponse.GetPendingWorkflowTask().GetState() == enumspb.PENDING_WORKFLOW_TASK_STATE_STARTED
}

// statusAfter is what the updates make of an approval.
var statusAfter = map[string]string{
	protocol.UpdateGrant: ApprovalGranted,
	protocol.UpdateDeny:  ApprovalDenied,
}

// refused says why the execution did not take a decision.
func (c *Client) refused(ctx context.Context, a *Approval, err error) error {
	var gone *serviceerror.NotFound
	var app *temporal.ApplicationError
	kind := ""
	switch {
	case errors.As(err, &gone): // the execution ended in between, and closed its approvals
		kind = failure.TypeApprovalDecided
	case errors.As(err, &app):
		kind = app.Type()
	}
	switch kind {
	case failure.TypeApprovalNotFound:
		return &ApprovalNotFoundError{ID: a.ID}
	case failure.TypeApprovalDecided:
		if now, err := c.Approval(ctx, a.ID); err == nil {
			a = now // which says by whom
		}
		return &ApprovalDecidedError{Approval: a}
	case failure.TypeApproverNotAllowed:
		return &NotAllowedError{Approval: a, Message: app.Message()}
	case failure.TypeApprovalChanged:
		return &ApprovalChangedError{ID: a.ID}
	default:
		return fmt.Errorf("decide approval %s: %w", a.ID, err)
	}
}
