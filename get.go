package tine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workflowpb "go.temporal.io/api/workflow/v1"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/history"
	"github.com/tinerun/tine/internal/protocol"
)

// Get describes an execution: what its log says, what runs right now, and what keeps it
// from going on.
func (c *Client) Get(ctx context.Context, id string) (*Execution, error) {
	described, err := c.temporal.DescribeWorkflow(ctx, id, "")
	if err != nil {
		return nil, named(id, err)
	}
	runID := described.WorkflowExecution.RunID
	var taskFailure *failurepb.Failure
	cancelRequested := false
	log, err := history.ReadEach(ctx, c.temporal, id, runID, 0, c.decoder, func(event *historypb.HistoryEvent) {
		taskFailure = lastTaskFailure(taskFailure, event)
		cancelRequested = cancelRequested || event.GetEventType() == enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
	})
	if err != nil {
		return nil, named(id, err)
	}
	e := describeLog(log)
	if e.Closed() {
		return e, nil
	}
	c.addPending(e, described.RawResponse.GetPendingActivities())
	if cancelRequested {
		e.Notes = append(e.Notes, "it has been asked to stop, and has not ended yet")
	}
	if log.Waiting {
		e.Notes = append(e.Notes, fmt.Sprintf("it waits for its turn; %q shows what comes before it", "tine session get "+e.Session))
	}
	c.addNotes(ctx, e, taskFailure)
	e.Notes = append(e.Notes, limitNotes(log)...)
	return e, nil
}

// lastTaskFailure is why the execution's workflow task fails, if it does.
func lastTaskFailure(last *failurepb.Failure, event *historypb.HistoryEvent) *failurepb.Failure {
	switch event.GetEventType() {
	case enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED:
		return event.GetWorkflowTaskFailedEventAttributes().GetFailure()
	case enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
		return nil
	default:
		return last
	}
}

func (c *Client) addPending(e *Execution, activities []*workflowpb.PendingActivityInfo) {
	for _, activity := range activities {
		e.Pending = append(e.Pending, c.pending(e, activity))
	}
}

func (c *Client) pending(e *Execution, activity *workflowpb.PendingActivityInfo) PendingActivity {
	p := PendingActivity{
		Type:    activity.GetActivityType().GetName(),
		State:   strings.ToLower(activity.GetState().String()),
		Attempt: activity.GetAttempt(),
	}
	if !strings.HasPrefix(p.Type, "tine.") || p.Type == "tine.Generate" {
		p.StepID = activity.GetActivityId()
	}
	if failure := activity.GetLastFailure(); failure != nil {
		p.LastFailure = failure.GetMessage()
	}
	if at := activity.GetScheduledTime(); at != nil {
		scheduled := at.AsTime()
		p.ScheduledAt = &scheduled
	}
	if next := activity.GetNextAttemptScheduleTime(); next != nil && p.Attempt > 1 {
		at := next.AsTime()
		p.NextAttempt = &at
	}
	return p
}

// addNotes says in words what keeps an open execution from going on.
func (c *Client) addNotes(ctx context.Context, e *Execution, taskFailure *failurepb.Failure) {
	if taskFailure != nil {
		e.Notes = append(e.Notes, "its workflow task fails and is tried again: "+taskFailure.GetMessage())
	}
	if e.Status == StatusPending && taskFailure == nil && len(e.Notes) == 0 {
		note := fmt.Sprintf("no worker has picked it up yet; it waits on task queue %q", e.TaskQueue)
		if c.polled(ctx, e.TaskQueue, enumspb.TASK_QUEUE_TYPE_WORKFLOW) == nobody {
			note += ", which no worker serves"
		}
		e.Notes = append(e.Notes, note)
		return
	}
	if len(e.Approvals) > 0 {
		e.Notes = append(e.Notes, approvalNotes(e, time.Now())...)
		if c.polled(ctx, e.TaskQueue, enumspb.TASK_QUEUE_TYPE_WORKFLOW) == nobody {
			e.Notes = append(e.Notes, fmt.Sprintf("no worker serves task queue %q, which deciding an approval needs: start one", e.TaskQueue))
		}
	}
	for _, p := range e.Pending {
		switch {
		case p.Attempt > 1 && p.LastFailure != "":
			e.Notes = append(e.Notes, fmt.Sprintf("%s is at attempt %d; the last one ended with: %s", p.Type, p.Attempt, p.LastFailure))
		case p.State == "scheduled" && p.ScheduledAt != nil && time.Since(*p.ScheduledAt) > slowStart:
			e.Notes = append(e.Notes, c.waitingNote(ctx, e, p))
		}
	}
}

// approvalNotes say what waits for a person. An approval that is over has not been closed yet, since
// that takes a worker; nobody can grant it any more.
func approvalNotes(e *Execution, now time.Time) []string {
	var notes []string
	for _, a := range e.Approvals {
		if !now.Before(a.ExpiresAt) {
			notes = append(notes, fmt.Sprintf("the approval of %s expired at %s; its step is denied once a worker takes that up", a.Target, a.ExpiresAt.Format(time.RFC3339)))
			continue
		}
		notes = append(notes, fmt.Sprintf("%s waits for approval until %s; %q lets it run", a.Target, a.ExpiresAt.Format(time.RFC3339), "tine approval grant "+a.ID))
	}
	return notes
}

// limitNotes name the steps that a rate limit holds up.
func limitNotes(log *eventlog.Log) []string {
	var notes []string
	for _, s := range log.Steps {
		if s.ParkedUntil != nil {
			notes = append(notes, fmt.Sprintf("%s is held up by the rate limit of rule %s until %s", s.Target, s.RuleID, s.ParkedUntil.Format(time.RFC3339)))
		}
	}
	return notes
}

// slowStart is how long an activity may wait for a worker before that is worth a note.
const slowStart = 5 * time.Second

// waitingNote says which worker an activity waits for.
func (c *Client) waitingNote(ctx context.Context, e *Execution, p PendingActivity) string {
	queue, where := e.TaskQueue, ""
	for _, r := range e.Resources {
		if r.Host != "" {
			queue, where = protocol.HostQueue(r.Host, e.TaskQueue), fmt.Sprintf(", on the host that holds resource %q", r.Key)
		}
	}
	note := fmt.Sprintf("%s has waited %s for a worker of task queue %q%s", p.Type, time.Since(*p.ScheduledAt).Round(time.Second), queue, where)
	if c.polled(ctx, queue, enumspb.TASK_QUEUE_TYPE_ACTIVITY) == nobody {
		note += "; none serves it: start one there"
	}
	return note
}

// pollTimeout is how long a poll lasts, and a little more. The server remembers pollers for
// minutes after they have gone.
const pollTimeout = 70 * time.Second

// polling says whether a task queue is served.
type polling int

const (
	unknown polling = iota // the server did not say
	nobody
	somebody
)

func (c *Client) polled(ctx context.Context, queue string, kind enumspb.TaskQueueType) polling {
	described, err := c.temporal.DescribeTaskQueue(ctx, queue, kind)
	switch {
	case err != nil:
		return unknown
	case slices.ContainsFunc(described.GetPollers(), func(p *taskqueuepb.PollerInfo) bool {
		return time.Since(p.GetLastAccessTime().AsTime()) < pollTimeout
	}):
		return somebody
	default:
		return nobody
	}
}
