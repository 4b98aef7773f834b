package tine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/tinerun/tine/internal/protocol"
)

// ListOptions select executions. Empty fields select all.
type ListOptions struct {
	Agent      string
	Status     string
	Session    string
	ForkedFrom string
	// Limit bounds the answer. Zero means 50.
	Limit int
}

const defaultLimit = 50

// List describes executions, newest first, by what Temporal's visibility store has: id, run,
// agent, status, lineage and times. That store may lag behind by a second or so. In a
// namespace without Tine's search attributes it lists all workflows, and cannot select by Session or
// ForkedFrom.
func (c *Client) List(ctx context.Context, opts ListOptions) ([]*Execution, error) {
	if opts.Limit <= 0 {
		opts.Limit = defaultLimit
	}
	found, err := c.list(ctx, query(opts, true), opts)
	if lacksAttributes(err) {
		if opts.Session != "" || opts.ForkedFrom != "" {
			return nil, errors.New("list executions: the namespace has no Tine search attributes, so executions cannot be selected by session or source; a worker that may registers them")
		}
		found, err = c.list(ctx, query(opts, false), opts)
	}
	if err != nil {
		return nil, fmt.Errorf("list executions: %w", err)
	}
	return found, nil
}

// query writes what the visibility store can select by. Status is left to matches, since
// one of ours may be several of Temporal's.
func query(opts ListOptions, attributes bool) string {
	var conditions []string
	equal := func(name, value string) {
		if value != "" {
			conditions = append(conditions, fmt.Sprintf("%s = %s", name, quote(value)))
		}
	}
	equal("WorkflowType", opts.Agent)
	if attributes {
		conditions = append(conditions, protocol.AttributeAgent+" IS NOT NULL")
		if opts.Session != "" {
			conditions = append(conditions, sessionCondition(opts.Session))
		}
		equal(protocol.AttributeForkedFrom, opts.ForkedFrom)
	}
	switch opts.Status {
	case StatusPending, StatusRunning, StatusBlocked:
		equal("ExecutionStatus", "Running")
	case StatusCompleted:
		equal("ExecutionStatus", "Completed")
	case StatusFailed:
		conditions = append(conditions, "ExecutionStatus IN ('Failed', 'TimedOut')")
	case StatusCancelled:
		conditions = append(conditions, "ExecutionStatus IN ('Canceled', 'Terminated')")
	}
	return strings.Join(conditions, " AND ")
}

// escaped are the characters that the visibility store does not find: the server compares with the
// escape sequence that it reads.
const escaped = "'\"\\\b\n\r\t\x1a"

// sessionCondition selects the executions of a session, or a few more: what comes of it has to
// be compared with the label.
func sessionCondition(label string) string {
	at := strings.IndexAny(label, escaped)
	switch at {
	case -1:
		return protocol.AttributeSession + " = " + quote(label)
	case 0:
		return protocol.AttributeSession + " IS NOT NULL"
	default:
		return protocol.AttributeSession + " STARTS_WITH " + quote(label[:at])
	}
}

func quote(s string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", `\'`) + "'"
}

// matches checks what the visibility store could not. Tine's own workflows are no executions.
func (o ListOptions) matches(e *Execution) bool {
	return !protocol.Reserved(e.AgentID) &&
		(o.Status == "" || e.Status == o.Status) && (o.Session == "" || e.Session == o.Session)
}

// list gives the newest executions. The visibility store has open ones first, by their start, and
// then closed ones, by their end; it sorts by nothing else everywhere.
func (c *Client) list(ctx context.Context, query string, opts ListOptions) ([]*Execution, error) {
	newest := newestExecutions{limit: opts.Limit, listed: []*Execution{}}
	for _, part := range []string{"ExecutionStatus = 'Running'", "ExecutionStatus NOT IN ('Running', 'ContinuedAsNew')"} {
		if query != "" {
			part = query + " AND " + part
		}
		err := c.eachListed(ctx, part, min(opts.Limit, 1000), func(info *workflowpb.WorkflowExecutionInfo) (bool, error) {
			e := c.fromVisibility(info)
			if newest.complete(e) {
				return false, nil
			}
			if opts.matches(e) {
				newest.add(e)
			}
			return true, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return newest.listed, nil
}

// newestExecutions are those that were created last, newest first.
type newestExecutions struct {
	limit  int
	listed []*Execution
}

// complete reports whether e, and all that the store has after it, are too old to be listed.
func (n *newestExecutions) complete(e *Execution) bool {
	if len(n.listed) < n.limit {
		return false
	}
	last := e.CreatedAt // and what follows was created before
	if e.ClosedAt != nil {
		last = *e.ClosedAt // what follows ended before, so it was created before
	}
	return last.Before(n.listed[n.limit-1].CreatedAt)
}

func (n *newestExecutions) add(e *Execution) {
	n.listed = slices.DeleteFunc(n.listed, func(other *Execution) bool { return other.RunID == e.RunID }) // it has closed meanwhile
	at, _ := slices.BinarySearchFunc(n.listed, e, func(a, b *Execution) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	n.listed = slices.Insert(n.listed, at, e)
	n.listed = n.listed[:min(len(n.listed), n.limit)]
}

// eachListed calls fn with each execution that the visibility store finds, until fn returns
// false or an error.
func (c *Client) eachListed(ctx context.Context, query string, pageSize int, fn func(*workflowpb.WorkflowExecutionInfo) (bool, error)) error {
	var token []byte
	for {
		page, err := c.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Namespace: c.opts.Namespace, Query: query, PageSize: int32(pageSize), NextPageToken: token,
		})
		if err != nil {
			return err
		}
		for _, info := range page.GetExecutions() {
			if more, err := fn(info); err != nil || !more {
				return err
			}
		}
		if token = page.GetNextPageToken(); len(token) == 0 {
			return nil
		}
	}
}

func (c *Client) fromVisibility(info *workflowpb.WorkflowExecutionInfo) *Execution {
	e := &Execution{
		ID: info.GetExecution().GetWorkflowId(), RunID: info.GetExecution().GetRunId(),
		AgentID: info.GetType().GetName(), TaskQueue: info.GetTaskQueue(),
		Status:        closedStatus(info.GetStatus()),
		Session:       c.attribute(info, protocol.AttributeSession),
		ForkedFrom:    c.attribute(info, protocol.AttributeForkedFrom),
		CreatedAt:     info.GetStartTime().AsTime(),
		HistoryEvents: info.GetHistoryLength(),
	}
	if payload := info.GetSearchAttributes().GetIndexedFields()[protocol.AttributeForkSeq]; payload != nil {
		_ = c.rawJSON(payload, &e.ForkSeq) // the server has checked its type
	}
	if closed := info.GetCloseTime(); closed != nil {
		at := closed.AsTime()
		e.ClosedAt = &at
	}
	if info.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		if status := c.attribute(info, protocol.AttributeStatus); status != "" {
			e.Status = status
		}
	}
	return e
}

func (c *Client) attribute(info *workflowpb.WorkflowExecutionInfo, name string) string {
	var value string
	if payload := info.GetSearchAttributes().GetIndexedFields()[name]; payload != nil {
		_ = c.rawJSON(payload, &value) // the server has checked its type
	}
	return value
}

// maxMatches bounds what an AmbiguousError lists.
const maxMatches = 10

// Resolve gives the execution id that begins with prefix: the very id if there is one, else
// the only one. None is a *NotFoundError, several an *AmbiguousError.
func (c *Client) Resolve(ctx context.Context, prefix string) (string, error) {
	if prefix == "" {
		return "", errors.New("an execution id is required")
	}
	_, err := c.temporal.DescribeWorkflow(ctx, prefix, "")
	var missing *serviceerror.NotFound
	if err == nil || !errors.As(err, &missing) {
		return prefix, err
	}
	page, err := c.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
		Namespace: c.opts.Namespace, Query: "WorkflowId STARTS_WITH " + quote(prefix), PageSize: maxMatches,
	})
	if err != nil {
		return "", fmt.Errorf("look for execution %q: %w", prefix, err)
	}
	var ids []string
	for _, info := range page.GetExecutions() {
		ids = append(ids, info.GetExecution().GetWorkflowId())
	}
	switch len(ids) {
	case 0:
		return "", &NotFoundError{ExecutionID: prefix}
	case 1:
		return ids[0], nil
	default:
		return "", &AmbiguousError{Prefix: prefix, Matches: ids}
	}
}

func containsAttribute(message string) bool {
	for _, name := range []string{
		protocol.AttributeAgent, protocol.AttributeStatus, protocol.AttributeSession,
		protocol.AttributeForkedFrom, protocol.AttributeForkSeq,
	} {
		if strings.Contains(message, name) {
			return true
		}
	}
	return false
}
