package workflows

import (
	"errors"
	"fmt"

	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// Reasons of a StepError that callers branch on.
const (
	ReasonToolError        = protocol.ReasonToolError
	ReasonPolicyDenied     = protocol.ReasonPolicyDenied
	ReasonIndeterminate    = protocol.ReasonIndeterminate
	ReasonTimeout          = protocol.ReasonTimeout
	ReasonPanic            = protocol.ReasonPanic
	ReasonInvalidArguments = protocol.ReasonInvalidArguments
	ReasonInvalidResult    = protocol.ReasonInvalidResult
	ReasonUnknownTool      = protocol.ReasonUnknownTool
	ReasonResource         = protocol.ReasonResource
	ReasonHostUnavailable  = protocol.ReasonHostUnavailable
	ReasonUnavailable      = protocol.ReasonUnavailable
	ReasonLLM              = protocol.ReasonLLM
)

// StepError is the outcome of a step that failed.
type StepError struct {
	StepID string
	Kind   string
	Target string
	// Message is the handler's own text.
	Message string
	// Reason says in one of the Reason constants how the step failed.
	Reason string
	// Type is the error type the handler gave, as a temporal.ApplicationError has.
	Type string
}

func (e *StepError) Error() string {
	if e.Reason == ReasonToolError || e.Reason == "" {
		return fmt.Sprintf("%s: %s", e.Target, e.Message)
	}
	return fmt.Sprintf("%s: %s: %s", e.Target, e.Reason, e.Message)
}

// PolicyError is the outcome of a step that the policy refused.
type PolicyError struct {
	StepID string
	Kind   string
	Target string
	RuleID string
	Reason string
}

func (e *PolicyError) Error() string {
	return fmt.Sprintf("%s not allowed by rule %s: %s", e.Target, e.RuleID, e.Reason)
}

// IsDenied reports whether err says that the policy refused a step.
func IsDenied(err error) bool {
	var policy *PolicyError
	return errors.As(err, &policy)
}

// IsIndeterminate reports whether err is that of an at_most_once step whose end
// nobody saw. Whether its effect happened is not known.
func IsIndeterminate(err error) bool {
	return Reason(err) == ReasonIndeterminate
}

// Reason gives the reason of a step's error: a Reason constant, the policy's
// words for a PolicyError, and the empty string for errors that are not a step's.
func Reason(err error) string {
	var step *StepError
	var policy *PolicyError
	switch {
	case errors.As(err, &step):
		return step.Reason
	case errors.As(err, &policy):
		return policy.Reason
	default:
		return ""
	}
}

func stepError(step protocol.Step, e protocol.StepError) *StepError {
	return &StepError{
		StepID: step.ID, Kind: step.Kind, Target: step.Target,
		Message: e.Message, Reason: e.Reason, Type: e.Type,
	}
}

func policyError(step protocol.Step, d protocol.Decision) *PolicyError {
	return &PolicyError{
		StepID: step.ID, Kind: step.Kind, Target: step.Target,
		RuleID: d.RuleID, Reason: d.Reason,
	}
}

// configurationError says that the agent uses this package wrongly. Another
// attempt would find the same.
func configurationError(format string, args ...any) error {
	return temporal.NewNonRetryableApplicationError(
		fmt.Sprintf(format, args...), failure.TypeConfiguration, nil)
}

// executionError turns the error a handler returned into what the execution
// fails with. Temporal must not see a bare Go error here: its type would be a Go name.
func executionError(err error) error {
	var step *StepError
	var policy *PolicyError
	switch {
	case err == nil, temporal.IsCanceledError(err):
		return err
	case errors.As(err, &step):
		return temporal.NewNonRetryableApplicationError(err.Error(), failure.TypeStep, nil,
			protocol.StepError{Message: step.Message, Reason: step.Reason, Type: step.Type})
	case errors.As(err, &policy):
		return temporal.NewNonRetryableApplicationError(err.Error(), failure.TypePolicy, nil,
			protocol.StepError{Message: policy.Error(), Reason: policy.Reason})
	default:
		return err
	}
}
