package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.temporal.io/api/serviceerror"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/connect"
)

// Exit codes. Scripts rely on them; exitCodes is the same table for people.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitDenied      = 3
	exitNotFound    = 4
	exitUnreachable = 5
)

const exitCodes = `Exit codes:
  0  done
  1  it failed, or the execution watched or awaited failed or was cancelled
  2  wrong usage: flags, arguments, invalid JSON, an ambiguous ID, no such event
  3  denied by policy, or not allowed to decide
  4  not found
  5  cannot reach the server, or it does not let you in`

// failure is an error as people and scripts see it.
type failure struct {
	exit int
	// code is finer than the exit code, and as stable.
	code    string
	message string
	// hint says what to do next.
	hint string
	// told says that text output has said it already.
	told bool
}

func (f failure) write(w io.Writer, asJSON bool) {
	switch {
	case asJSON && f.code != "":
		_ = writeJSON(w, struct {
			Error errorDocument `json:"error"`
		}{errorDocument{f.code, f.message, f.hint}})
	case f.told:
	default:
		fmt.Fprintf(w, "error: %s\n", printable(f.message))
		if f.hint != "" {
			fmt.Fprintf(w, "hint: %s\n", f.hint)
		}
	}
}

type errorDocument struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// usageError says that a command was not used rightly.
type usageError struct {
	code    string // empty means "usage"
	message string
	hint    string // empty means the command's help
}

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// outcomeError says that an execution followed to its end did not complete.
type outcomeError struct {
	execution *tine.Execution
}

func (e *outcomeError) Error() string {
	message := fmt.Sprintf("execution %s %s", e.execution.ID, e.execution.Status)
	if e.execution.FailureReason != "" {
		message += ": " + e.execution.FailureReason
	}
	return message
}

// interruptedError says that an execution goes on though nobody watches it any more.
type interruptedError struct {
	id string
}

func (e *interruptedError) Error() string {
	return fmt.Sprintf("interrupted; execution %s goes on", e.id)
}

// childError is the exit code of a program that tine ran for the user. The program has
// said itself what there is to say.
type childError struct {
	code int
}

func (e *childError) Error() string { return fmt.Sprintf("the command exited with code %d", e.code) }

// classify says how an error is told. Those from before the command began are all about
// its flags and arguments.
func classify(ctx context.Context, err error, began bool, command string) failure {
	help := fmt.Sprintf("see %q", command+" --help")
	var usage *usageError
	if errors.As(err, &usage) {
		return failure{exit: exitUsage, code: cmp.Or(usage.code, "usage"), message: usage.message, hint: cmp.Or(usage.hint, help)}
	}
	if !began {
		return failure{exit: exitUsage, code: "usage", message: err.Error(), hint: help}
	}
	if f, ok := endFailure(err); ok {
		return f
	}
	if f, ok := executionFailure(err); ok {
		return f
	}
	if f, ok := sessionFailure(err); ok {
		return f
	}
	if f, ok := approvalFailure(err); ok {
		return f
	}
	if ctx.Err() != nil { // whatever it was that noticed first
		return failure{exit: exitFailed, code: "interrupted", message: "interrupted"}
	}
	if f, ok := serverFailure(err); ok {
		return f
	}
	return failure{exit: exitFailed, code: "failed", message: err.Error()}
}

// endFailure describes how something that ran came to its end.
func endFailure(err error) (failure, bool) {
	var (
		child       *childError
		ended       *outcomeError
		interrupted *interruptedError
	)
	switch {
	case errors.As(err, &child):
		return failure{exit: child.code, told: true}, true
	case errors.As(err, &ended):
		return failure{
			exit: exitFailed, code: "execution_" + ended.execution.Status, message: ended.Error(),
			hint: strings.Join(next(ended.execution, ended.execution.ID), "; "), told: true,
		}, true
	case errors.As(err, &interrupted):
		return failure{
			exit: exitFailed, code: "interrupted", message: interrupted.Error(),
			hint: fmt.Sprintf("%q follows it again", "tine exec watch "+interrupted.id),
		}, true
	default:
		return failure{}, false
	}
}

// executionFailure describes what the client says of executions.
func executionFailure(err error) (failure, bool) {
	var (
		missing   *tine.NotFoundError
		ambiguous *tine.AmbiguousError
		seq       *tine.SeqError
		exists    *tine.ExistsError
		closed    *tine.ClosedError
	)
	f := failure{message: err.Error()}
	switch {
	case errors.As(err, &missing):
		f.exit, f.code = exitNotFound, "not_found"
		f.hint = `"tine exec ls" lists the executions there are`
	case errors.As(err, &ambiguous):
		f.exit, f.code = exitUsage, "ambiguous_id"
		f.hint = "give more of the id"
	case errors.As(err, &seq):
		f.exit, f.code = exitUsage, "no_such_event"
		f.hint = `"tine exec events" lists an execution's events, "tine exec fork-points" what is covered`
	case errors.As(err, &exists):
		f.exit, f.code = exitFailed, "exists"
		f.hint = fmt.Sprintf("choose another --id; %q shows the one there is", "tine exec get "+exists.ExecutionID)
	case errors.As(err, &closed):
		f.exit, f.code = exitFailed, "closed"
		f.hint = fmt.Sprintf("%q shows how it ended", "tine exec get "+closed.ExecutionID)
	default:
		return failure{}, false
	}
	return f, true
}

// sessionFailure describes what is wrong with a session, or with what was to be continued.
func sessionFailure(err error) (failure, bool) {
	var (
		label   *tine.SessionLabelError
		missing *tine.SessionNotFoundError
		exists  *tine.SessionExistsError
		parent  *tine.ParentError
	)
	f := failure{message: err.Error()}
	switch {
	case errors.As(err, &label):
		f.exit, f.code = exitUsage, "session_label"
		f.hint = "choose another label"
	case errors.As(err, &missing):
		f.exit, f.code = exitNotFound, "session_not_found"
		f.hint = `"tine session ls" lists the sessions there are`
	case errors.As(err, &exists):
		f.exit, f.code = exitFailed, "session_exists"
		f.hint = "choose a new --session, or leave it out"
	case errors.As(err, &parent):
		f.exit, f.code = exitFailed, "parent"
		f.hint = fmt.Sprintf("%q shows it", "tine exec get "+parent.ExecutionID)
	default:
		return failure{}, false
	}
	return f, true
}

// approvalFailure describes why an approval could not be decided.
func approvalFailure(err error) (failure, bool) {
	var (
		missing    *tine.ApprovalNotFoundError
		decided    *tine.ApprovalDecidedError
		notAllowed *tine.NotAllowedError
		changed    *tine.ApprovalChangedError
		noWorker   *tine.NoWorkerError
		unknown    *tine.UnknownOutcomeError
	)
	f := failure{message: err.Error()}
	switch {
	case errors.As(err, &missing):
		f.exit, f.code = exitNotFound, "approval_not_found"
		f.hint = `"tine approval ls" lists the pending ones, and with --execution all those of one execution`
	case errors.As(err, &decided):
		f.exit, f.code = exitFailed, "approval_decided"
		f.hint = fmt.Sprintf("%q shows it", "tine approval get "+decided.Approval.ID)
	case errors.As(err, &notAllowed):
		f.exit, f.code = exitDenied, "not_allowed"
		f.hint = "one of those listed has to decide, with their own connection or --by"
	case errors.As(err, &changed):
		f.exit, f.code = exitFailed, "approval_changed"
		f.hint = fmt.Sprintf("look again: %q", "tine approval get "+changed.ID)
	case errors.As(err, &noWorker):
		f.exit, f.code = exitFailed, "no_worker"
		f.hint = fmt.Sprintf("start a worker of task queue %q and try again; %q shows where it stands", noWorker.TaskQueue, "tine approval get "+noWorker.ID)
	case errors.As(err, &unknown):
		f.exit, f.code = exitFailed, "outcome_unknown"
		f.hint = fmt.Sprintf("%q shows whether it was", "tine approval get "+unknown.ID)
	default:
		return failure{}, false
	}
	return f, true
}

// serverFailure describes what says more of the server than of an execution.
func serverFailure(err error) (failure, bool) {
	var (
		down      *connect.ServerError
		away      *serviceerror.Unavailable
		late      *serviceerror.DeadlineExceeded
		forbidden *serviceerror.PermissionDenied
		namespace *serviceerror.NamespaceNotFound
	)
	f := failure{message: err.Error()}
	switch {
	case errors.As(err, &down):
		f.exit, f.code = exitUnreachable, "unreachable"
		f.hint = `start a server with "tine dev", or name one with --address or TEMPORAL_ADDRESS`
	case errors.As(err, &away), errors.As(err, &late), errors.Is(err, context.DeadlineExceeded):
		f.exit, f.code = exitUnreachable, "unreachable"
		f.message = "the server does not answer: " + f.message
		f.hint = "it was there before: try again, or look at its log"
	case errors.As(err, &forbidden):
		f.exit, f.code = exitUnreachable, "not_authorized"
		f.hint = "check TEMPORAL_API_KEY or the TLS settings, and --namespace"
	case errors.As(err, &namespace):
		f.exit, f.code = exitNotFound, "namespace_not_found"
		f.hint = "check --namespace and TEMPORAL_NAMESPACE"
	default:
		return failure{}, false
	}
	return f, true
}
