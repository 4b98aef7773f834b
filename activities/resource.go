package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/resources"
)

type resourcesKey struct{}

// stepResources are the resources of a running step's execution, and the handles the step
// has asked for.
type stepResources struct {
	set   *resources.Set
	bound map[string]protocol.Bound

	mu       sync.Mutex
	handles  map[string]any
	releases []func()
}

// Resource gives a step's body the handle of the resource called key, which the
// execution must have opened and whose driver must have handles of type H. The
// handle may be used until the body returns.
func Resource[H any](ctx context.Context, key string) (H, error) {
	var none H
	r, ok := ctx.Value(resourcesKey{}).(*stepResources)
	if !ok {
		return none, fmt.Errorf("resource %q: this context is not that of a tool, nor of a local step that declares a resource", key)
	}
	handle, err := r.acquire(ctx, key)
	if err != nil {
		return none, err
	}
	typed, ok := handle.(H)
	if !ok {
		return none, resourceError(fmt.Errorf("resource %q has handles of type %T, not %T", key, handle, none))
	}
	return typed, nil
}

func (r *stepResources) acquire(ctx context.Context, key string) (any, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if handle, ok := r.handles[key]; ok {
		return handle, nil
	}
	bound, ok := r.bound[key]
	if !ok {
		return nil, resourceError(fmt.Errorf("the execution has not opened resource %q; it has: %s", key, r.keys()))
	}
	handle, release, err := r.set.Acquire(ctx, bound.Driver, bound.Binding)
	if err != nil {
		return nil, driverError(fmt.Errorf("resource %q: %w", key, err))
	}
	r.handles[key] = handle
	r.releases = append(r.releases, release)
	return handle, nil
}

func (r *stepResources) keys() string {
	if len(r.bound) == 0 {
		return "none"
	}
	keys := make([]string, 0, len(r.bound))
	for key := range r.bound {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}

func (a *Activities) withResources(ctx context.Context, bound map[string]protocol.Bound) (context.Context, func()) {
	r := &stepResources{set: a.resources, bound: bound, handles: map[string]any{}}
	release := func() {
		for _, release := range r.releases {
			release()
		}
	}
	return context.WithValue(ctx, resourcesKey{}, r), release
}

// tineCreateResource is the activity that makes a resource.
func (a *Activities) tineCreateResource(ctx context.Context, in protocol.CreateResource) (protocol.ResourceCreated, error) {
	info := activity.GetInfo(ctx)
	var created resources.Created
	err := supervise(ctx, protocol.SafeToRetry, func(ctx context.Context) (err error) {
		created, err = a.resources.Create(ctx, in.Driver, resources.CreateRequest{
			Owner:      resources.Owner{ExecutionID: info.WorkflowExecution.ID, RunID: info.WorkflowExecution.RunID, Key: in.Key},
			Config:     in.Config,
			Checkpoint: in.Checkpoint,
		})
		return driverError(err)
	})
	return resourceCreated(created), err
}

func resourceCreated(c resources.Created) protocol.ResourceCreated {
	return protocol.ResourceCreated{
		Binding: c.Binding, CoverageReuse: c.CoverageReuse, Host: c.Host, CanPause: c.CanPause,
	}
}

// tineCheckpoint is the activity that captures a resource.
func (a *Activities) tineCheckpoint(ctx context.Context, in protocol.Checkpoint) (protocol.CheckpointTaken, error) {
	var ref string
	err := supervise(ctx, protocol.SafeToRetry, func(ctx context.Context) (err error) {
		ref, err = a.resources.Checkpoint(ctx, in.Driver, in.Binding)
		return driverError(err)
	})
	return protocol.CheckpointTaken{Ref: ref}, err
}

// tinePauseResource is the activity that puts a resource to rest.
func (a *Activities) tinePauseResource(ctx context.Context, in protocol.Pause) error {
	return supervise(ctx, protocol.SafeToRetry, func(ctx context.Context) error {
		return driverError(a.resources.Pause(ctx, in.Driver, in.Binding))
	})
}

// driverError says of a driver's error whether another attempt may mend it. Unlike a tool's
// error, which the agent can handle, a driver's is retried unless it is final.
func driverError(err error) error {
	var unknown *resources.UnknownDriverError
	var adviser resources.RetryAdviser
	switch {
	case err == nil:
		return nil
	case errors.Is(err, resources.ErrCheckpointUnavailable):
		return temporal.NewNonRetryableApplicationError(err.Error(), failure.TypeUnavailable, nil)
	case errors.Is(err, resources.ErrGone), errors.Is(err, resources.ErrInvalidConfig), errors.As(err, &unknown):
		return resourceError(err)
	case errors.As(err, &adviser):
		delay, retry := adviser.RetryDelay()
		if !retry {
			return resourceError(err)
		}
		return RetryableAfter(temporal.NewApplicationError(err.Error(), failure.TypeResource), delay)
	default:
		return Retryable(temporal.NewApplicationError(err.Error(), failure.TypeResource))
	}
}

func resourceError(err error) error {
	return temporal.NewNonRetryableApplicationError(err.Error(), failure.TypeResource, nil)
}
