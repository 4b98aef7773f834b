package activities

import (
	"errors"
	"time"

	"github.com/tinerun/tine/resources"
)

type retryable struct {
	err   error
	delay time.Duration
	// unknown says that the effect may have happened.
	unknown bool
}

func (r *retryable) Error() string { return r.err.Error() }
func (r *retryable) Unwrap() error { return r.err }

// Retryable marks err as one that another attempt may mend: Temporal runs the
// step again, with growing delays, until its attempts are used up. An unmarked error is
// the step's outcome at once. It has no effect on an at_most_once step.
func Retryable(err error) error {
	return RetryableAfter(err, 0)
}

// RetryableAfter is Retryable with the delay before the next attempt, such as a
// server's Retry-After. Zero means Temporal's own.
func RetryableAfter(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryable{err: err, delay: delay}
}

// Indeterminate is Retryable for an error after which nobody knows whether the step's effect has
// happened: a connection that broke before the answer came. An at_most_once step ends with it as
// indeterminate, and so is not run again unasked.
func Indeterminate(err error) error {
	if err == nil {
		return nil
	}
	return &retryable{err: err, unknown: true}
}

// RetryDelay reports whether err is marked as retryable, and its delay. An error without a
// mark may know it itself: a [resources.RetryAdviser].
func RetryDelay(err error) (time.Duration, bool) {
	if r, ok := errors.AsType[*retryable](err); ok {
		return r.delay, true
	}
	if adviser, ok := errors.AsType[resources.RetryAdviser](err); ok {
		return adviser.RetryDelay()
	}
	return 0, false
}
