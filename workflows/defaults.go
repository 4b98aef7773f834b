package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
)

const (
	// localTimeout bounds the local activities that decide a step and record an
	// outcome. They do no I/O of their own, so only an overloaded worker gets near it.
	localTimeout = time.Minute

	// stepTimeout is how long a local step may run. It occupies a workflow task,
	// which the SDK keeps alive meanwhile.
	stepTimeout = 10 * time.Second

	// startToCloseTimeout is how long one attempt of a tool or model call may take
	// unless it is declared otherwise. A dead worker is noticed by missing heartbeats
	// long before, so this only ends bodies that hang.
	startToCloseTimeout = time.Hour

	// maximumAttempts bounds the attempts of a safe_to_retry step, so that a body
	// that kills its worker each time does not do so for ever.
	maximumAttempts = 10

	// captureAttempts bounds the attempts at a checkpoint. An execution goes on
	// uncovered without one, so waiting long for it helps nobody.
	captureAttempts = 3

	// listingsAtOnce is how often one workflow task lists the pending approvals. Each listing is
	// part of the task's answer, which has a limit. Later changes are listed after publishEvery.
	listingsAtOnce = 8
	publishEvery   = time.Second

	// cancelGrace is how long a cancelled execution waits for the body of its
	// running step. A body that ignores its context must not hold it for ever.
	cancelGrace = 10 * time.Second

	// prefixTimeout is how long reading one page of a fork's prefix may take.
	prefixTimeout = 5 * time.Minute

	// limiterPatience is how long a step waits for the limiter of a shared rate limit, and
	// limitTimeout and limitAttempts bound the single question. A limiter that can't be
	// reached must not hold an agent up for long.
	limiterPatience = 30 * time.Second
	limitTimeout    = 10 * time.Second
	limitAttempts   = 5

	// prefixAttempts bounds the attempts to read a page of a fork's prefix.
	prefixAttempts = 10
)

// retryPolicy is that of activities whose errors Tine has classified: an error
// that another attempt cannot mend is marked as such.
func retryPolicy(attempts int) *temporal.RetryPolicy {
	return &temporal.RetryPolicy{
		InitialInterval:    time.Second,
		BackoffCoefficient: 2,
		MaximumInterval:    time.Minute,
		MaximumAttempts:    int32(attempts),
	}
}
