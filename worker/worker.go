package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/internal/connect"
	"github.com/tinerun/tine/policy"
)

// DefaultTaskQueue is where agents are served unless Options say otherwise.
const DefaultTaskQueue = "tine"

// DefaultDrainTimeout is how long steps may take to end when a worker stops.
const DefaultDrainTimeout = 30 * time.Second

// Options configure a worker.
type Options struct {
	// TaskQueue is the queue to serve. Empty means "tine". NewPlugin ignores it: there
	// the worker has one.
	TaskQueue string
	// Policy decides every step. Nil allows all. A policy.Store follows files.
	Policy policy.Engine
	// PolicyPath is a file or a directory of policies that Run opens with policy.Open. With
	// RequirePolicy agents that have none there may do nothing. Both are for Run without a Policy
	// only, and an error otherwise: a store that somebody else opens has its own options.
	PolicyPath    string
	RequirePolicy bool
	// ForkPolicy says what becomes of the policies that forks bring with them. By default a fork's
	// own policy decides instead of the worker's.
	ForkPolicy ForkPolicy
	// PolicyOptions are how Run's policies, and those that forks bring, are compiled.
	PolicyOptions policy.Options
	// HeartbeatTimeout is how long a worker may be silent before a step of it counts as
	// lost. Zero means 30 seconds.
	HeartbeatTimeout time.Duration
	// HostTimeout is how long a step waits for the one host that holds its resources.
	// Zero means 10 minutes.
	HostTimeout time.Duration
	// SessionSweep is how soon a session notices that a turn was terminated or has timed out.
	// The longer a turn runs the less often it looks, down to a thirtieth of that. Zero means
	// 10 seconds.
	SessionSweep time.Duration
	// RolloverEvents is how many events the history of a run may have before the execution
	// continues as new by itself. Zero leaves that to Temporal, which suggests it at some 4,000 events
	// or 4 MB. An execution first does half as many new steps as the next run has to replay.
	RolloverEvents int
	// DrainTimeout is how long steps may take to end when the worker stops. Those that
	// are safe to retry then run again elsewhere. Zero means 30 seconds.
	DrainTimeout time.Duration
	// Namespace is the client's. Empty means "default". Run takes it from the
	// connection settings.
	Namespace string
	// DataConverter and FailureConverter are the client's. Nil means Temporal's own.
	DataConverter    converter.DataConverter
	FailureConverter converter.FailureConverter
	// ExternalStorage is the client's, for payloads that are too large for a history. Without one
	// arguments and results have at most close to 2 MiB of JSON.
	ExternalStorage converter.ExternalStorage
	// Logger is for Run, and for what the worker itself has to say. Nil means slog.Default.
	Logger *slog.Logger
}

// ForkPolicy says what becomes of the policies that forks bring with them.
type ForkPolicy = activities.ForkPolicy

// Values of Options.ForkPolicy.
const (
	ForkPolicyReplaces = activities.ForkPolicyReplaces // decides instead of the worker's
	ForkPolicyBoth     = activities.ForkPolicyBoth     // both must allow a step
	ForkPolicyRefused  = activities.ForkPolicyRefused  // denies all steps of such a fork
)

func (o Options) slog() *slog.Logger {
	if o.Logger != nil {
		return o.Logger
	}
	return slog.Default()
}

// New makes a worker that serves the items. Start it with Run or Start.
func New(c client.Client, opts Options, serve ...Item) (sdkworker.Worker, error) {
	plugin, err := NewPlugin(c, opts, serve...)
	if err != nil {
		return nil, err
	}
	queue := opts.TaskQueue
	if queue == "" {
		queue = DefaultTaskQueue
	}
	w := sdkworker.New(c, queue, sdkworker.Options{Plugins: []sdkworker.Plugin{plugin}})
	plugin.refuseUnknown(w)
	return w, nil
}

// Run connects to Temporal as its environment variables and profile file say, and
// serves the items until ctx ends or the process gets SIGINT or SIGTERM. Then it takes no new
// work, lets running steps end, and returns.
func Run(ctx context.Context, opts Options, serve ...Item) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	logger := opts.slog()
	if opts.Policy != nil && (opts.PolicyPath != "" || opts.RequirePolicy) {
		return errPolicyPath
	}
	if opts.Policy == nil && (opts.PolicyPath != "" || opts.RequirePolicy) {
		store, err := openPolicies(ctx, opts)
		if err != nil {
			return err
		}
		defer store.Close()
		opts.Policy, opts.PolicyPath, opts.RequirePolicy = store, "", false
	}
	settings, err := connect.Options(connect.Flags{Namespace: opts.Namespace})
	if err != nil {
		return err
	}
	c, err := connect.Dial(ctx, settings, log.NewStructuredLogger(logger))
	if err != nil {
		var unreachable *connect.ServerError
		if errors.As(err, &unreachable) {
			return fmt.Errorf("%w; start a server with \"tine dev\" or \"temporal server start-dev\", or set TEMPORAL_ADDRESS", err)
		}
		return err
	}
	defer c.Close()
	opts.Namespace = settings.Namespace
	opts.ExternalStorage = settings.ExternalStorage
	opts.DataConverter, opts.FailureConverter = settings.DataConverter, settings.FailureConverter
	w, err := New(c, opts, serve...)
	if err != nil {
		return err
	}
	if err := w.Start(); err != nil {
		return err
	}
	logger.Info("worker serves", "address", settings.HostPort, "namespace", settings.Namespace)
	<-ctx.Done()
	logger.Info("worker drains")
	w.Stop()
	return nil
}

var errPolicyPath = errors.New("worker: PolicyPath and RequirePolicy are for Run without a Policy; open the policies with policy.Open and give them as Policy")

// openPolicies opens what PolicyPath names.
func openPolicies(ctx context.Context, opts Options) (*policy.Store, error) {
	if opts.PolicyPath == "" {
		return nil, errors.New("worker: a policy is required, and none is named")
	}
	store, err := policy.Open(ctx, opts.PolicyPath, policy.StoreOptions{
		Require: opts.RequirePolicy, Compile: opts.PolicyOptions, Logger: opts.slog(),
	})
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	return store, nil
}
