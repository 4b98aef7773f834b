// Package failure turns Temporal's errors into step errors. The runtime uses it
// on the errors it gets, and the event log on the failures it reads, so that a
// fork's handler sees what its source's handler saw.
package failure

import (
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/protocol"
)

// reasons maps the error types that Tine's own activities give to reasons.
var reasons = map[string]string{
	TypePanic:            protocol.ReasonPanic,
	TypeIndeterminate:    protocol.ReasonIndeterminate,
	TypeInvalidArguments: protocol.ReasonInvalidArguments,
	TypeInvalidResult:    protocol.ReasonInvalidResult,
	TypeResource:         protocol.ReasonResource,
	TypeUnavailable:      protocol.ReasonUnavailable,
	TypeLLM:              protocol.ReasonLLM,
	TypeTimeout:          protocol.ReasonTimeout,
}

// Error types of Tine's own application errors. They stand in histories.
const (
	TypePanic            = "tine.Panic"
	TypeIndeterminate    = "tine.Indeterminate"
	TypeInvalidArguments = "tine.InvalidArguments"
	TypeInvalidResult    = "tine.InvalidResult"
	TypeResource         = "tine.Resource"
	TypeUnavailable      = "tine.CheckpointUnavailable"
	TypeLLM              = "tine.LLM"
	TypeTimeout          = "tine.Timeout"
	TypeInterrupted      = "tine.Interrupted" // a worker stopped while the step ran; retried
	TypeStep             = "tine.Step"        // a step's error that ends the execution
	TypePolicy           = "tine.Policy"      // a denied step that ends the execution
	TypeInput            = "tine.Input"       // the input does not fit the agent
	TypeUnknownAgent     = "tine.UnknownAgent"
	TypeConfiguration    = "tine.Configuration" // the agent uses Tine wrongly
	TypeParent           = "tine.Parent"        // the execution that this one was to continue can't be continued

	// What is wrong with the verdict on an approval.
	TypeApprovalNotFound   = "tine.ApprovalNotFound"
	TypeApprovalDecided    = "tine.ApprovalDecided"    // somebody has decided already, or it has expired
	TypeApproverNotAllowed = "tine.ApproverNotAllowed" // the rule lists others
	TypeApprovalChanged    = "tine.ApprovalChanged"    // the decider has seen something else
	TypeVerdictVoid        = "tine.VerdictVoid"        // the decider has given up by now

	TypeLimiter = "tine.Limiter" // a shared rate limit that can never be applied
)

// Is reports whether err has one of the types above.
func Is(err error, kind string) bool {
	var app *temporal.ApplicationError
	return errors.As(err, &app) && app.Type() == kind
}

// IsCancelled reports whether err says that a step was cancelled.
func IsCancelled(err error) bool {
	var canceled *temporal.CanceledError
	return errors.As(err, &canceled)
}

// StepError describes err, the error of a step's activity. Whether a time-out leaves the
// outcome unknown depends on the step's idempotency.
func StepError(err error, idempotency string) protocol.StepError {
	var canceled *temporal.CanceledError
	var timeout *temporal.TimeoutError
	var app *temporal.ApplicationError
	switch {
	case errors.As(err, &canceled):
		return protocol.StepError{Message: "cancelled", Reason: protocol.ReasonCancelled}
	case errors.As(err, &timeout):
		return timedOut(timeout, idempotency)
	case errors.As(err, &app):
		reason, ours := reasons[app.Type()]
		if !ours {
			reason = protocol.ReasonToolError
		}
		return protocol.StepError{Message: app.Message(), Reason: reason, Type: app.Type()}
	default:
		return protocol.StepError{Message: err.Error(), Reason: protocol.ReasonToolError}
	}
}

func timedOut(err *temporal.TimeoutError, idempotency string) protocol.StepError {
	if err.TimeoutType() == enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START {
		return protocol.StepError{
			Message: "the host that holds the execution's resources did not take the task in time; start a worker there, or fork the execution",
			Reason:  protocol.ReasonHostUnavailable,
			Type:    TypeTimeout,
		}
	}
	if idempotency == protocol.AtMostOnce {
		return protocol.StepError{
			Message: "nobody saw how the step ended; it is at_most_once, so it was not run again",
			Reason:  protocol.ReasonIndeterminate,
			Type:    TypeIndeterminate,
		}
	}
	return protocol.StepError{
		Message: "the step ran longer than it may",
		Reason:  protocol.ReasonTimeout,
		Type:    TypeTimeout,
	}
}
