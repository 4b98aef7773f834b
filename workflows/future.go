package workflows

import (
	"encoding/json"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// Future is a step that has been started.
type Future[R any] struct {
	future workflow.Future
	step   *pending
}

// Get waits for the step's outcome.
func (f Future[R]) Get(ctx workflow.Context) (R, error) {
	var result R
	var raw json.RawMessage
	if err := f.future.Get(ctx, &raw); err != nil {
		return result, err
	}
	return decode[R](f.step, raw)
}

// IsReady reports whether Get would not wait.
func (f Future[R]) IsReady() bool { return f.future.IsReady() }

// start fixes the step's identity now, and runs it in a coroutine of its own.
func start[R any](ctx workflow.Context, c call) Future[R] {
	future, settable := workflow.NewFuture(ctx)
	p, err := executionFrom(ctx).identify(c)
	if err != nil {
		settable.SetError(err)
		return Future[R]{future: future}
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		raw, err := p.perform(ctx)
		settable.Set(raw, err)
	})
	return Future[R]{future: future, step: p}
}

// run is start for a caller that waits.
func run[R any](ctx workflow.Context, c call) (R, error) {
	p, err := executionFrom(ctx).identify(c)
	if err != nil {
		var none R
		return none, err
	}
	raw, err := p.perform(ctx)
	if err != nil {
		var none R
		return none, err
	}
	return decode[R](p, raw)
}

func failed[R any](ctx workflow.Context, err error) Future[R] {
	future, settable := workflow.NewFuture(ctx)
	settable.SetError(err)
	return Future[R]{future: future}
}

func decode[R any](p *pending, raw json.RawMessage) (R, error) {
	var result R
	if same, ok := any(&result).(*json.RawMessage); ok {
		*same = raw
		return result, nil
	}
	if len(raw) == 0 {
		return result, nil
	}
	if err := protocol.Decode(raw, &result); err != nil {
		return result, &StepError{
			StepID: p.step.ID, Kind: p.step.Kind, Target: p.step.Target,
			Reason: ReasonInvalidResult, Message: "the result does not fit its type: " + err.Error(),
		}
	}
	return result, nil
}
