// Package resources defines what an agent execution may hold outside of
// Temporal's history: a working directory, a sandbox, a database. Such external
// state is a resource, and a [Driver] is its implementation.
//
// To write a driver, implement [Driver] and run it through
// [github.com/tinerun/tine/resources/resourcetest.Run]. The optional interfaces
// in this file ([CoverageReuser], [Placer]) are found by type assertion.
package resources

import (
	"context"
	"encoding/json"
	"errors"
)

// Errors that a driver wraps (with %w) to say that trying again cannot help. Any
// other error of a driver is retried by Temporal.
var (
	// ErrCheckpointUnavailable says that a checkpoint does not exist any more, or
	// that its contents are damaged. It fails a fork at once.
	ErrCheckpointUnavailable = errors.New("checkpoint unavailable")

	// ErrGone says that the resource a binding names does not exist any more.
	ErrGone = errors.New("resource is gone")

	// ErrInvalidConfig says that the driver cannot accept a configuration.
	ErrInvalidConfig = errors.New("invalid resource configuration")
)

// Owner names the execution a resource belongs to. A driver labels what it
// creates with it, so that a retried Create finds what its first attempt made,
// and so that orphans can be found.
type Owner struct {
	// ExecutionID is the execution's workflow ID.
	ExecutionID string `json:"execution_id"`
	// RunID is the first run ID of the execution. Workflow IDs may be used again
	// after an execution has closed; this pair is unique for ever.
	RunID string `json:"run_id"`
	// Key is the resource's name within the execution.
	Key string `json:"key"`
}

// CreateRequest asks a driver for a new resource.
type CreateRequest struct {
	Owner Owner
	// Config is the driver's configuration as the agent gave it: JSON, or nil. It
	// never holds credentials; those belong to the driver's own construction.
	Config json.RawMessage
	// Checkpoint is a reference that the same driver returned from Checkpoint, or
	// empty for the initial environment.
	Checkpoint string
}

// Driver implements one kind of external state, with handles of type H.
//
// Methods are called from activities, so from several goroutines and several
// processes at once, and any call may be the retry of one whose worker died at
// any point. Implementations must be safe for concurrent use.
type Driver[H any] interface {
	// ID names the implementation. It is recorded in history, so it never changes.
	ID() string

	// Create makes an isolated resource from the request's checkpoint or from the
	// initial environment, and returns a handle together with the binding: JSON
	// that Open accepts in any worker that may hold the resource. A retry with the same
	// Owner must return or replace what the first attempt left, never leak it. A
	// missing checkpoint is ErrCheckpointUnavailable.
	Create(ctx context.Context, req CreateRequest) (handle H, binding json.RawMessage, err error)

	// Open connects to the resource that binding names. One that no longer exists
	// is ErrGone; it never continues in an empty one. A handle that is an
	// io.Closer is closed when the worker drops it.
	Open(ctx context.Context, binding json.RawMessage) (H, error)

	// Checkpoint captures the resource's state and returns an immutable reference.
	// It leaves the handle usable, and returns only once the state is durable. No
	// step of the execution runs meanwhile.
	Checkpoint(ctx context.Context, handle H) (ref string, err error)
}

// CoverageReuser is implemented by drivers for which a checkpoint stays valid
// while steps run that do not declare that they affect the resource. Without it
// any live step ends a checkpoint's coverage.
type CoverageReuser interface {
	CoverageReuse(config json.RawMessage) bool
}

// Placer is implemented by drivers whose resources live on one host.
type Placer interface {
	// Host names the host that holds this driver's resources, or is empty when all workers have
	// access to them. The name is kept with the resources, so it survives the worker. It becomes
	// part of a task queue's name.
	Host() string
}
