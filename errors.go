package tine

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/api/serviceerror"

	"github.com/tinerun/tine/internal/eventlog"
)

// SeqError says that an execution has no event with the seq to fork at.
type SeqError = eventlog.SeqError

// NotFoundError says that there is no such execution, or that its history is gone.
type NotFoundError struct {
	ExecutionID string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("no execution %q: it never existed, was deleted, or its retention has passed", e.ExecutionID)
}

// AmbiguousError says that several executions, or approvals, begin with a prefix.
type AmbiguousError struct {
	Prefix string
	// Matches are the first of them, and More counts the others.
	Matches   []string
	More      int
	Approvals bool
}

func (e *AmbiguousError) Error() string {
	what := "executions'"
	if e.Approvals {
		what = "approvals'"
	}
	more := ""
	if e.More > 0 {
		more = fmt.Sprintf(" and %d more", e.More)
	}
	return fmt.Sprintf("%q is the beginning of several %s ids: %s%s", e.Prefix, what, strings.Join(e.Matches, ", "), more)
}

// ExistsError says that an execution with the wanted id exists. Ids are never used again,
// so that a log can't be mistaken for another.
type ExistsError struct {
	ExecutionID string
}

func (e *ExistsError) Error() string {
	return fmt.Sprintf("an execution %q exists already", e.ExecutionID)
}

// ClosedError says that an execution has ended, so it can't be cancelled.
type ClosedError struct {
	ExecutionID string
	Status      string
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("execution %s has ended already: %s", e.ExecutionID, e.Status)
}

// SessionLabelError says what is wrong with a session's label.
type SessionLabelError struct {
	Message string
}

func (e *SessionLabelError) Error() string { return e.Message }

// SessionNotFoundError says that there is no such session.
type SessionNotFoundError struct {
	Session string
}

func (e *SessionNotFoundError) Error() string {
	return fmt.Sprintf("no session %q: it has no executions, or their retention has passed", e.Session)
}

// SessionExistsError says that a session exists, which a fork was to begin.
type SessionExistsError struct {
	Session string
}

func (e *SessionExistsError) Error() string {
	return fmt.Sprintf("a session %q exists already; a fork begins a new one", e.Session)
}

// ParentError says why an execution cannot be continued.
type ParentError struct {
	ExecutionID string
	Message     string
}

func (e *ParentError) Error() string { return e.Message }

// ApprovalNotFoundError says that there is no such approval.
type ApprovalNotFoundError struct {
	ID string
}

func (e *ApprovalNotFoundError) Error() string {
	return fmt.Sprintf("no approval %q: none with this id was asked for, or its execution's history is gone", e.ID)
}

// ApprovalDecidedError says that an approval is not pending any more.
type ApprovalDecidedError struct {
	Approval *Approval
}

func (e *ApprovalDecidedError) Error() string {
	a := e.Approval
	switch {
	case a.Status == ApprovalPending: // it has, but its execution has yet to take note
		return fmt.Sprintf("approval %s expired at %s", a.ID, a.ExpiresAt.Format(time.RFC3339))
	case a.DecidedBy != "":
		return fmt.Sprintf("approval %s was %s already, by %s", a.ID, a.Status, a.DecidedBy)
	case a.Status == ApprovalExpired && a.Rationale != "":
		return fmt.Sprintf("approval %s has expired already: %s", a.ID, a.Rationale)
	default:
		return fmt.Sprintf("approval %s was %s already", a.ID, a.Status)
	}
}

// NotAllowedError says that the rule lists others than the one who decided.
type NotAllowedError struct {
	Approval *Approval
	Message  string
}

func (e *NotAllowedError) Error() string { return e.Message }

// ApprovalChangedError says that the approval is for something else than was read before.
type ApprovalChangedError struct {
	ID string
}

func (e *ApprovalChangedError) Error() string {
	return fmt.Sprintf("approval %s is for another step, other arguments or another policy than was shown", e.ID)
}

// NoWorkerError says that no worker took up a decision, so that it is not recorded.
type NoWorkerError struct {
	ID        string
	TaskQueue string
}

func (e *NoWorkerError) Error() string {
	return fmt.Sprintf("no worker serves task queue %q, which a decision on approval %s needs; nothing was decided", e.TaskQueue, e.ID)
}

// UnknownOutcomeError says that a decision was sent, and that nobody knows whether it was
// taken. The approval itself tells.
type UnknownOutcomeError struct {
	ID  string
	Err error
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("it is not known whether the decision on approval %s was taken: %v", e.ID, e.Err)
}

func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// named replaces Temporal's not-found error by one that names the execution.
func named(id string, err error) error {
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return &NotFoundError{ExecutionID: id}
	}
	return err
}
