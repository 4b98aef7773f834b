// Package resources defines what an agent execution may hold outside of
// Temporal's history: a working directory, a sandbox, a database. Such external
// state is a resource, and a [Driver] is its implementation.
//
// To write a driver, implement [Driver] and run it through
// [github.com/tinerun/tine/resources/resourcetest.Run]. The optional interfaces
// in this file ([CoverageReuser], [Placer], [Pauser], [Destroyer], [CheckpointDeleter],
// [Lister]) are found by type assertion.
package resources

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Errors that a driver wraps (with %w) to say that trying again cannot help. Any
// other error of a driver is retried by Temporal, unless it is a [RetryAdviser].
var (
	// ErrCheckpointUnavailable says that a checkpoint does not exist any more, or
	// that its contents are damaged. It fails a fork at once.
	ErrCheckpointUnavailable = errors.New("checkpoint unavailable")

	// ErrGone says that the resource a binding names does not exist any more.
	ErrGone = errors.New("resource is gone")

	// ErrInvalidConfig says that the driver cannot accept a configuration.
	ErrInvalidConfig = errors.New("invalid resource configuration")
)

// RetryAdviser is implemented by errors that know whether another attempt may help, such
// as those of a provider's API. It counts wherever the error comes out: of a driver, or of
// a tool that used a handle.
type RetryAdviser interface {
	error
	// RetryDelay reports whether to try again, and not before which delay. Zero means
	// Temporal's own.
	RetryDelay() (delay time.Duration, retry bool)
}

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

// Pauser is implemented by drivers whose resources can rest, at less cost, while nobody
// uses them.
type Pauser interface {
	// Pause puts the resource that binding names to rest, without opening it. Its state
	// stays. The next use resumes it, by Open, by Checkpoint, or by a handle that was open
	// before. Pausing a paused resource does nothing. One that does not exist is ErrGone.
	Pause(ctx context.Context, binding json.RawMessage) error
}

// Destroyer is implemented by drivers that can remove a resource.
type Destroyer interface {
	// Destroy removes the resource that binding names, paused or not. Its checkpoints stay.
	// One that does not exist any more is no error.
	Destroy(ctx context.Context, binding json.RawMessage) error
}

// CheckpointDeleter is implemented by drivers that can remove a checkpoint.
type CheckpointDeleter interface {
	// DeleteCheckpoint removes what the reference names. Resources and other checkpoints
	// stay. One that does not exist any more is no error.
	DeleteCheckpoint(ctx context.Context, ref string) error
}

// Lister is implemented by drivers that can tell which resources exist, so that those of
// executions that are gone can be destroyed.
type Lister interface {
	// List returns all resources that this driver's Create made, in any worker, and that
	// exist.
	List(ctx context.Context) ([]Listed, error)
}

// Listed is a resource that exists.
type Listed struct {
	Owner   Owner
	Binding json.RawMessage
}
