package eventlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// Project reads a whole history. The error names the history event that could
// not be read.
func Project(executionID, runID string, events []*historypb.HistoryEvent, dec Decoder) (*Log, error) {
	p := NewProjector(executionID, runID, dec)
	for _, ev := range events {
		if err := p.Add(ev); err != nil {
			return nil, err
		}
	}
	return p.Log(), nil
}

// Projector reads a history event by event. It is not safe for concurrent use.
type Projector struct {
	dec Decoder
	log *Log

	steps map[string]*Step
	// seeds has what the prefix says of its steps.
	seeds map[string]*protocol.PrefixStep
	// activities has the ones of Tine that are open, by the id of their scheduled event.
	activities map[int64]*activity
	coverage   coverage
	// pending has the approvals that nobody has decided yet, by step.
	pending map[string]*protocol.Approval
	updates updates
	loading bool            // a fork has yet to load pages of its prefix
	waiting bool            // an execution in a session has yet to be admitted
	joins   map[string]bool // the tokens with which it has joined the session
	started bool
}

// NewProjector starts an empty log. The ids are those that events carry.
func NewProjector(executionID, runID string, dec Decoder) *Projector {
	log := &Log{
		ExecutionID: executionID, RunID: runID, Runs: []string{runID}, Status: protocol.StatusPending,
		requests: map[*Step]requestOnBase{},
	}
	return &Projector{
		dec:        dec.withDefaults(),
		log:        log,
		steps:      map[string]*Step{},
		seeds:      map[string]*protocol.PrefixStep{},
		activities: map[int64]*activity{},
		coverage:   newCoverage(log),
		pending:    map[string]*protocol.Approval{},
		joins:      map[string]bool{},
		updates:    newUpdates(),
	}
}

// Log is the log so far. It is the projector's own: the next Add changes it.
func (p *Projector) Log() *Log { return p.log }

// Add reads the next event of the history. After an error the projector is of no
// further use.
func (p *Projector) Add(ev *historypb.HistoryEvent) error {
	err := error(nil)
	if p.dec.Resolve != nil {
		err = p.dec.Resolve(ev)
	}
	if err == nil {
		err = p.add(ev)
	}
	if err != nil {
		return fmt.Errorf("history event %d (%s) of execution %s: %w", ev.GetEventId(), ev.GetEventType(), p.log.ExecutionID, err)
	}
	p.log.HistoryEvents++
	return nil
}

func (p *Projector) add(ev *historypb.HistoryEvent) error {
	s := stamp{at: ev.GetEventTime().AsTime(), historyID: ev.GetEventId()}
	switch ev.GetEventType() {
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
		return p.created(s, ev.GetWorkflowExecutionStartedEventAttributes())
	case enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
		return p.begun(s)
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
		return p.signalled(s, ev.GetWorkflowExecutionSignaledEventAttributes())

	case enumspb.EVENT_TYPE_MARKER_RECORDED:
		return p.marker(s, ev.GetMarkerRecordedEventAttributes())
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
		return p.activityScheduled(s, ev.GetActivityTaskScheduledEventAttributes())
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED:
		p.activityStarted(ev.GetActivityTaskStartedEventAttributes())
		return nil
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
		a := ev.GetActivityTaskCompletedEventAttributes()
		return p.activityCompleted(s, a.GetScheduledEventId(), a.GetResult())
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_FAILED:
		a := ev.GetActivityTaskFailedEventAttributes()
		return p.activityFailed(s, a.GetScheduledEventId(), p.dec.failure(a.GetFailure()))
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
		a := ev.GetActivityTaskTimedOutEventAttributes()
		return p.activityFailed(s, a.GetScheduledEventId(), p.dec.failure(a.GetFailure()))
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
		a := ev.GetActivityTaskCanceledEventAttributes()
		return p.activityFailed(s, a.GetScheduledEventId(), temporal.NewCanceledError())

	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED:
		p.updates.admit(ev.GetWorkflowExecutionUpdateAdmittedEventAttributes())
		return nil
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
		p.updates.accept(ev)
		return nil
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
		return p.updateCompleted(s, ev.GetWorkflowExecutionUpdateCompletedEventAttributes())

	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
		p.log.Output = p.dec.value(first(ev.GetWorkflowExecutionCompletedEventAttributes().GetResult()))
		return p.close(s, protocol.StatusCompleted, ExecutionCompleted, "")
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
		err := p.dec.failure(ev.GetWorkflowExecutionFailedEventAttributes().GetFailure())
		return p.close(s, protocol.StatusFailed, ExecutionFailed, failureReason(err))
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
		return p.close(s, protocol.StatusFailed, ExecutionFailed, "execution timed out")
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
		return p.close(s, protocol.StatusCancelled, ExecutionCancelled, "")
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
		reason := label("terminated", ev.GetWorkflowExecutionTerminatedEventAttributes().GetReason())
		return p.close(s, protocol.StatusCancelled, ExecutionCancelled, reason)

	case enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
		enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED,
		enumspb.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
		enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED,
		enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
		enumspb.EVENT_TYPE_TIMER_STARTED,
		enumspb.EVENT_TYPE_TIMER_FIRED,
		enumspb.EVENT_TYPE_TIMER_CANCELED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED,
		enumspb.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
		enumspb.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED,
		enumspb.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
		enumspb.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
		enumspb.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED,
		enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED,
		enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED,
		enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED,
		enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED,
		enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT,
		enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED,
		enumspb.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
		enumspb.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED,
		enumspb.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_SIGNALED,
		enumspb.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_REJECTED,
		enumspb.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED_EXTERNALLY,
		enumspb.EVENT_TYPE_ACTIVITY_PROPERTIES_MODIFIED_EXTERNALLY,
		enumspb.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_STARTED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_COMPLETED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_FAILED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_CANCELED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_TIMED_OUT,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUESTED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUEST_COMPLETED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUEST_FAILED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_PAUSED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UNPAUSED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIME_SKIPPING_TRANSITIONED:
		return nil // Temporal's own business, or the agent's
	default:
		p.log.Ignored++
		return nil
	}
}

// stamp is where an event comes from.
type stamp struct {
	at        time.Time
	historyID int64
	copied    bool // from the prefix of a fork
}

// emit appends an event and returns its seq.
func (p *Projector) emit(s stamp, typ string, payload any, about subject) (int64, error) {
	raw, err := json.Marshal(payload)
	if err != nil {
		return 0, fmt.Errorf("payload of %s: %w", typ, err)
	}
	seq := p.log.LatestSeq() + 1
	p.log.Events = append(p.log.Events, Event{
		ExecutionID:    p.log.ExecutionID,
		Seq:            seq,
		Type:           typ,
		Payload:        raw,
		OccurredAt:     s.at,
		RunID:          p.log.RunID,
		HistoryEventID: s.historyID,
	})
	p.log.subjects = append(p.log.subjects, about)
	return seq, nil
}

func (p *Projector) created(s stamp, a *historypb.WorkflowExecutionStartedEventAttributes) error {
	var start protocol.Start
	if arg := nth(a.GetInput(), 1); arg != nil {
		if err := p.dec.Data.FromPayload(arg, &start); err != nil {
			return fmt.Errorf("start options: %w", err)
		}
	}
	log := p.log
	log.AgentID = a.GetWorkflowType().GetName()
	log.TaskQueue = a.GetTaskQueue().GetName()
	log.Input = p.dec.value(first(a.GetInput()))
	log.CreatedAt = s.at
	log.Session, log.Parent, log.Fork, log.Policy = start.Session, start.Parent, start.Fork, start.Policy

	if start.Roll != nil {
		log.Loading = start.Roll.RunID
		p.loading = true
		return nil
	}
	p.waiting = log.Session != ""

	created := createdPayload{AgentID: log.AgentID, Session: log.Session, Parent: log.Parent}
	if _, err := p.emit(s, ExecutionCreated, created, subject{}); err != nil {
		return err
	}
	if log.Fork == nil {
		return nil
	}
	p.loading = true
	return p.forked(s, log.Fork)
}

func (p *Projector) forked(s stamp, fork *protocol.Fork) error {
	restoration := fork.Restoration
	if restoration == nil {
		restoration = map[string]protocol.Restoration{}
	}
	_, err := p.emit(s, ExecutionForked, forkedPayload{
		ForkedFrom:  fork.ExecutionID,
		RunID:       fork.RunID,
		ForkSeq:     fork.AtSeq,
		Restoration: restoration,
	}, subject{})
	if err != nil || fork.Page == nil {
		return err
	}
	page := *fork.Page
	fork.Page = nil // its records are events now
	p.loading = page.Next != 0
	return p.page(s, page)
}

// begun starts the execution once a worker has it, its turn has come, and a fork has the last
// page of its prefix.
func (p *Projector) begun(s stamp) error {
	p.log.Waiting = p.waiting
	if p.loading || p.waiting {
		return nil
	}
	return p.start(s)
}

// start ends the time in which nothing of the handler has run. Only its first call
// does anything.
func (p *Projector) start(s stamp) error {
	if p.started {
		return nil
	}
	p.started = true
	p.setStatus()
	_, err := p.emit(s, ExecutionStarted, startedPayload{Parent: p.log.Parent}, subject{})
	return err
}

// setStatus sets the status of an execution that is open.
func (p *Projector) setStatus() {
	switch {
	case !p.started || !p.log.ClosedAt.IsZero():
	case len(p.pending) > 0:
		p.log.Status = protocol.StatusBlocked
	default:
		p.log.Status = protocol.StatusRunning
	}
}

// close ends the execution. Steps that it leaves open are ended first, so that the
// close is the last event.
func (p *Projector) close(s stamp, status, typ, reason string) error {
	for _, step := range p.log.Steps {
		if step.settled() || step.refused() {
			continue
		}
		if err := p.abandon(s, step, status); err != nil {
			return err
		}
	}
	p.log.Status = status
	p.log.Waiting = false
	p.log.ClosedAt = s.at
	if status == protocol.StatusFailed {
		p.log.FailureReason = reason
	}
	_, err := p.emit(s, typ, closedPayload{Reason: reason}, subject{})
	return err
}

// abandon ends a step that the end of its execution leaves open. One that waits for
// approval has not begun, so that nothing of it is cancelled.
func (p *Projector) abandon(s stamp, step *Step, status string) error {
	if a := p.pending[step.StepID]; a != nil {
		rationale := protocol.RationaleExecutionClosed
		if status == protocol.StatusCancelled {
			rationale = protocol.RationaleExecutionCancelled
		}
		return p.expire(s, a, rationale)
	}
	cancelled := protocol.StepError{Message: "the execution ended before the step did", Reason: protocol.ReasonCancelled}
	return p.settle(s, step, StepCancelled, protocol.Outcome{Error: &cancelled})
}

// failureReason says in one line why an execution failed.
func failureReason(err error) string {
	var app *temporal.ApplicationError
	var timeout *temporal.TimeoutError
	switch {
	case errors.As(err, &app):
		return label(errorType(app.Type()), app.Message())
	case errors.As(err, &timeout):
		return label(protocol.ReasonTimeout, timeout.Message())
	case failure.IsCancelled(err):
		return protocol.ReasonCancelled
	default:
		return err.Error()
	}
}

// errorType is the type of an error if it tells a reader anything: Tine's own
// messages say enough, and fmt.Errorf and errors.Join give no type of the user's.
func errorType(typ string) string {
	switch typ {
	case "wrapError", "wrapErrors", "joinError":
		return ""
	}
	if strings.HasPrefix(typ, protocol.Prefix) {
		return ""
	}
	return typ
}

// label joins two texts of which either may be empty.
func label(kind, text string) string {
	if kind == "" || text == "" {
		return kind + text
	}
	return kind + ": " + text
}
