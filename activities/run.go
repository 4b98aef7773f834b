package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

const (
	// A body's context ends this long before its attempt times out, or a tenth of the attempt if
	// that is less, so that the worker can still say that it did.
	timeoutMargin = time.Second

	// Heartbeats are what tells a body that it is cancelled, so they come more often than a
	// dead worker's discovery asks for.
	heartbeatsPerTimeout = 10
	minHeartbeat         = time.Second
	maxHeartbeat         = 5 * time.Second
)

// runStep is the activity of tools and of local steps that affect resources.
func (a *Activities) runStep(ctx context.Context, h Handler, args json.RawMessage, envelope protocol.Call) (json.RawMessage, error) {
	ctx, release := a.withResources(ctx, envelope.Resources)
	defer release()
	var result json.RawMessage
	err := supervise(ctx, envelope.Idempotency, func(ctx context.Context) (err error) {
		result, err = a.fits(h.run(ctx, args, true))
		return err
	})
	return result, err
}

// supervise runs the body of an activity: it heartbeats meanwhile, ends the body in time, and
// says of its error whether another attempt may mend it.
func supervise(ctx context.Context, idempotency string, body func(context.Context) error) error {
	stop := heartbeat(ctx)
	defer stop()
	bodyCtx, cancel := withMargin(ctx)
	defer cancel()
	err := body(bodyCtx)
	if err == nil {
		return nil
	}
	switch {
	case stopping(ctx) && bodyCtx.Err() != nil:
		return interrupted(idempotency)
	case ctx.Err() == nil && errors.Is(bodyCtx.Err(), context.DeadlineExceeded):
		return timeoutError(err)
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return classify(err, idempotency)
	}
}

// heartbeat keeps the attempt alive, and its context informed, until stop.
func heartbeat(ctx context.Context) (stop func()) {
	timeout := activity.GetInfo(ctx).HeartbeatTimeout
	if timeout <= 0 {
		return func() {}
	}
	interval := min(max(timeout/heartbeatsPerTimeout, minHeartbeat), maxHeartbeat, timeout/2)
	ticker := time.NewTicker(interval)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ticker.C:
				activity.RecordHeartbeat(ctx)
			case <-done:
				return
			}
		}
	})
	return func() {
		ticker.Stop()
		close(done)
		wg.Wait()
	}
}

// HeartbeatThrottle is the MaxHeartbeatThrottleInterval for workers that run Tine's
// activities: with the SDK's own, a step would learn of its cancellation up to a
// minute late.
const HeartbeatThrottle = maxHeartbeat

func withMargin(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	margin := min(timeoutMargin, time.Until(deadline)/10)
	return context.WithDeadline(ctx, deadline.Add(-margin))
}

// stopping reports whether the worker is shutting down.
func stopping(ctx context.Context) bool {
	select {
	case <-activity.GetWorkerStopChannel(ctx):
		return true
	default:
		return false
	}
}

// interrupted is the error of a body that its own worker stopped. Another worker may run
// the step again, unless it must not run twice.
func interrupted(idempotency string) error {
	if idempotency == protocol.AtMostOnce {
		return temporal.NewNonRetryableApplicationError(
			"the worker stopped while the step ran; it is at_most_once, so it was not run again", failure.TypeIndeterminate, nil)
	}
	return temporal.NewApplicationError("the worker stopped while the step ran", failure.TypeInterrupted)
}

func timeoutError(err error) error {
	return temporal.NewNonRetryableApplicationError("the step ran longer than it may: "+err.Error(), failure.TypeTimeout, nil)
}

// classify makes an error that Temporal retries only if the body asked for that.
func classify(err error, idempotency string) error {
	var marked *retryable
	if idempotency == protocol.AtMostOnce && errors.As(err, &marked) && marked.unknown {
		return temporal.NewNonRetryableApplicationError(
			"nobody saw how the step ended: "+err.Error(), failure.TypeIndeterminate, nil)
	}
	delay, retry := RetryDelay(err)
	message, kind := err.Error(), ""
	var app *temporal.ApplicationError
	if errors.As(err, &app) {
		message, kind = app.Message(), app.Type()
	}
	return temporal.NewApplicationErrorWithOptions(message, kind, temporal.ApplicationErrorOptions{
		NonRetryable:   !retry,
		NextRetryDelay: delay,
	})
}

// logger gives the activity's logger, also where a body runs outside of one, as in
// a user's unit test.
func logger(ctx context.Context) log.Logger {
	if activity.IsActivity(ctx) {
		return activity.GetLogger(ctx)
	}
	return log.NewStructuredLogger(nil)
}

func errUnknownStep(kind, name string) error {
	return temporal.NewNonRetryableApplicationError(
		fmt.Sprintf("no %s %q is registered with this worker", kind, name), failure.TypeConfiguration, nil)
}
