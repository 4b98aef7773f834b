package workflows

import (
	"slices"
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// Option declares how a step behaves. It is given where a tool, step or model is
// declared, and may be given again for one call.
type Option func(*options)

type options struct {
	description  string
	resources    []string
	idempotency  string
	startToClose time.Duration
	heartbeat    time.Duration
	attempts     int
	summary      string
}

// WithDescription tells a model what a tool does.
func WithDescription(text string) Option {
	return func(o *options) { o.description = text }
}

// WithResources names the resources that a step may change. Reading one needs no
// declaration. The execution must have opened each of them.
func WithResources(keys ...string) Option {
	return func(o *options) { o.resources = append(slices.Clone(o.resources), keys...) }
}

// WithAtMostOnce says that a step must not run again if nobody saw how it ended:
// it then fails with ReasonIndeterminate. Without it a step is safe to retry, unless it is a tool of
// an MCP server.
func WithAtMostOnce() Option {
	return func(o *options) { o.idempotency = protocol.AtMostOnce }
}

// WithSafeToRetry says that a step may run again if nobody saw how it ended. It is the default but
// for tools of MCP servers.
func WithSafeToRetry() Option {
	return func(o *options) { o.idempotency = protocol.SafeToRetry }
}

// WithStartToCloseTimeout bounds one attempt. The default is an hour for tools and
// models, and ten seconds for local steps.
func WithStartToCloseTimeout(d time.Duration) Option {
	return func(o *options) { o.startToClose = d }
}

// WithHeartbeatTimeout is how long a worker may be silent before it counts as dead.
// Bodies need not heartbeat; Tine does. The default is the worker's, 30 seconds.
func WithHeartbeatTimeout(d time.Duration) Option {
	return func(o *options) { o.heartbeat = d }
}

// WithMaximumAttempts bounds the attempts of a step that is safe to retry. The
// default is 10.
func WithMaximumAttempts(n int) Option {
	return func(o *options) { o.attempts = n }
}

// WithSummary is the one line that Temporal's UI shows beside the step. The
// default is the first text among the arguments.
func WithSummary(text string) Option {
	return func(o *options) { o.summary = text }
}

func newOptions(base options, opts []Option) options {
	for _, opt := range opts {
		opt(&base)
	}
	base.resources = slices.Compact(slices.Sorted(slices.Values(base.resources)))
	return base
}
