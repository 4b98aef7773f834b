package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// captureDue counts an executed step for the resources it affects, and captures those that
// every_steps makes due. It runs before the outcome reaches the handler and
// before any other step may start.
func (x *execution) captureDue(ctx workflow.Context, step protocol.Step) {
	if step.Kind == protocol.KindLLM {
		return
	}
	if x.cancelled() {
		return // it is to stop, and what it holds is not worth waiting for
	}
	if ctx.Err() != nil {
		ctx = disconnected(ctx) // only this step was cancelled, after it had started
	}
	for _, key := range step.Resources {
		r := x.resources.opened[key]
		r.count++
		if r.count%r.EverySteps == 0 {
			x.capture(ctx, r, protocol.CauseStep, step.ID)
		}
	}
}

// captureUncovered captures what on_completion asks for when the handler has returned.
func (x *execution) captureUncovered(ctx workflow.Context) {
	if len(x.resources.keys) == 0 {
		return
	}
	leave, err := x.gate.enter(ctx)
	if err != nil {
		return // cancelled meanwhile: nothing is owed
	}
	defer leave()
	for _, key := range x.resources.keys {
		if r := x.resources.opened[key]; r.OnCompletion && !r.covered {
			x.capture(ctx, r, protocol.CauseCompletion, "")
		}
	}
}

// capture takes a checkpoint. That it failed is recorded in history by the activity itself,
// and leaves the resource uncovered; the execution goes on.
func (x *execution) capture(ctx workflow.Context, r *openResource, cause, stepID string) {
	opts := workflow.ActivityOptions{
		StartToCloseTimeout: startToCloseTimeout,
		HeartbeatTimeout:    x.begin.HeartbeatTimeout,
		WaitForCancellation: true,
		RetryPolicy:         retryPolicy(captureAttempts),
		Summary:             protocol.OneLine(r.Key + " (" + cause + ")"),
	}
	x.route(&opts)
	r.wake()
	touches := r.touches
	err := x.await(ctx, workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, opts), protocol.ActivityCheckpoint, protocol.Checkpoint{
		Key: r.Key, Cause: cause, StepID: stepID, Bound: r.bound,
	}), nil)
	if err != nil {
		workflow.GetLogger(ctx).Warn("checkpoint failed", "resource", r.Key, "cause", cause, "error", err)
		return
	}
	// A checkpoint after a step holds the state at its outcome, so a model call that began
	// since has ended its coverage. Any other one covers from its own event on.
	r.covered = cause != protocol.CauseStep || touches == r.touches
}
