package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// limiterQuiet is how long a limiter outlives its last call. Its bucket is full by then, so
// the next call may as well start a new one.
const limiterQuiet = time.Minute

// Limiter is the workflow that keeps the bucket of a rate limit which several executions
// share. Full is when the bucket is full again. Executions take tokens by an update; package
// worker registers it.
func Limiter(ctx workflow.Context, full time.Time) error {
	b := bucket{full: full}
	calls := 0
	err := workflow.SetUpdateHandler(ctx, protocol.UpdateTake, func(ctx workflow.Context, request protocol.LimitRequest) (protocol.LimitGrant, error) {
		calls++
		if request.Limit.Unlimited() {
			return protocol.LimitGrant{}, nil
		}
		wait, ok := b.take(workflow.Now(ctx), request.Limit)
		return protocol.LimitGrant{Wait: protocol.Duration(wait), Refused: !ok}, nil
	})
	if err != nil {
		return err
	}
	for {
		seen := calls
		rest := max(b.full.Sub(workflow.Now(ctx)), 0) + limiterQuiet
		busy, err := workflow.AwaitWithTimeout(ctx, rest, func() bool {
			return calls != seen && workflow.GetInfo(ctx).GetContinueAsNewSuggested()
		})
		switch {
		case err != nil:
			return err
		case busy:
			return workflow.NewContinueAsNewError(ctx, protocol.WorkflowLimiter, b.full)
		case calls == seen:
			return nil
		}
	}
}
