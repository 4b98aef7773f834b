package tine

import (
	"errors"
	"fmt"
	"strings"

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

// AmbiguousError says that several executions begin with a prefix.
type AmbiguousError struct {
	Prefix  string
	Matches []string
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%q is the beginning of several executions' ids: %s", e.Prefix, strings.Join(e.Matches, ", "))
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

// named replaces Temporal's not-found error by one that names the execution.
func named(id string, err error) error {
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return &NotFoundError{ExecutionID: id}
	}
	return err
}
