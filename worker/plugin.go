package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/worker/storage"
	"github.com/tinerun/tine/workflows"
)

// Plugin adds Tine to a Temporal worker:
//
//	plugin, err := worker.NewPlugin(c, worker.Options{}, items...)
//	w := sdkworker.New(c, "queue", sdkworker.Options{Plugins: []sdkworker.Plugin{plugin}})
//
// It serves the items on the worker's task queue, and on a queue of this host for each driver
// whose resources live here.
type Plugin struct {
	sdkworker.PluginBase

	client     client.Client
	opts       Options
	agents     []workflows.Agent
	activities *activities.Activities
	resources  *resources.Set

	mu       sync.Mutex
	queues   map[string]string             // task queues of workers, by instance key
	hosts    map[string][]sdkworker.Worker // by the instance key of the worker they go with
	replayed map[string]bool               // replayers that know the agents
}

var _ sdkworker.Plugin = (*Plugin)(nil)

// NewPlugin checks the items and reports all mistakes in one error.
func NewPlugin(c client.Client, opts Options, serve ...Item) (*Plugin, error) {
	if opts.PolicyPath != "" || opts.RequirePolicy { // it must not get a worker that allows more
		return nil, errPolicyPath
	}
	i, err := collect(serve)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	set, err := resources.NewSet(i.drivers...)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	acts, err := activities.New(activities.Options{
		Policy: opts.Policy, ForkPolicy: opts.ForkPolicy, PolicyOptions: opts.PolicyOptions, Resources: set,
		Tools: i.tools, Steps: i.steps, Descriptions: i.descriptions, Models: i.models, MCPServers: i.mcpServers,
		HeartbeatTimeout: opts.HeartbeatTimeout, HostTimeout: opts.HostTimeout, SessionSweep: opts.SessionSweep,
		RolloverEvents: opts.RolloverEvents, PayloadLimit: storage.Limit(opts.ExternalStorage),
		Decoder: eventlog.Decoder{
			Data: opts.DataConverter, Failure: opts.FailureConverter, Resolve: storage.Resolver(opts.ExternalStorage),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if opts.DrainTimeout == 0 {
		opts.DrainTimeout = DefaultDrainTimeout
	}
	warnUnrestricted(opts, i.agents)
	if opts.Namespace == "" {
		opts.Namespace = client.DefaultNamespace
	}
	return &Plugin{
		client: c, opts: opts, agents: i.agents, activities: acts, resources: set,
		queues: map[string]string{}, hosts: map[string][]sdkworker.Worker{}, replayed: map[string]bool{},
	}, nil
}

// warnUnrestricted names the agents that a policy was meant for, perhaps, and that have none.
func warnUnrestricted(opts Options, agents []workflows.Agent) {
	described, ok := opts.Policy.(policy.Describer)
	if !ok || opts.Policy == (policy.AllowAll{}) {
		return
	}
	for _, agent := range agents {
		if _, unrestricted := described.Describe(agent.Name()); unrestricted {
			opts.slog().Warn("agent has no policy, so every step of it is allowed", "agent", agent.Name())
		}
	}
}

// Name is the plugin's name.
func (p *Plugin) Name() string { return "tine" }

// ConfigureWorker sets what Tine's activities rely on, where the worker says nothing itself.
func (p *Plugin) ConfigureWorker(_ context.Context, options sdkworker.PluginConfigureWorkerOptions) error {
	p.mu.Lock()
	p.queues[options.WorkerInstanceKey] = options.TaskQueue
	p.mu.Unlock()
	p.configure(options.WorkerOptions)
	return nil
}

func (p *Plugin) configure(o *sdkworker.Options) {
	if o.MaxHeartbeatThrottleInterval == 0 {
		o.MaxHeartbeatThrottleInterval = activities.HeartbeatThrottle
	}
	if o.DefaultHeartbeatThrottleInterval == 0 {
		o.DefaultHeartbeatThrottleInterval = activities.HeartbeatThrottle
	}
	if o.WorkerStopTimeout == 0 {
		o.WorkerStopTimeout = p.opts.DrainTimeout
	}
}

// StartWorker registers the items and starts serving the queues of this host.
func (p *Plugin) StartWorker(ctx context.Context, options sdkworker.PluginStartWorkerOptions, next func(context.Context, sdkworker.PluginStartWorkerOptions) error) error {
	p.activities.Register(options.WorkerRegistry)
	registerAgents(options.WorkerRegistry, p.agents)
	p.ensureSearchAttributes(ctx)
	if err := p.startHosts(options.WorkerInstanceKey); err != nil {
		return err
	}
	if err := next(ctx, options); err != nil {
		p.stopHosts(options.WorkerInstanceKey)
		return err
	}
	return nil
}

// StopWorker drains the worker and the workers of this host's queues.
func (p *Plugin) StopWorker(ctx context.Context, options sdkworker.PluginStopWorkerOptions, next func(context.Context, sdkworker.PluginStopWorkerOptions)) {
	var wg sync.WaitGroup
	wg.Go(func() { p.stopHosts(options.WorkerInstanceKey) })
	next(ctx, options)
	wg.Wait()
	p.activities.Close()
}

func (p *Plugin) startHosts(instance string) error {
	p.mu.Lock()
	served := p.queues[instance]
	p.mu.Unlock()
	for _, name := range p.resources.Hosts() {
		queue := protocol.HostQueue(name, served)
		o := sdkworker.Options{DisableWorkflowWorker: true}
		p.configure(&o)
		host := sdkworker.New(p.client, queue, o)
		p.activities.Register(host)
		if err := host.Start(); err != nil {
			p.stopHosts(instance)
			return fmt.Errorf("worker: serve task queue %s: %w", queue, err)
		}
		p.mu.Lock()
		p.hosts[instance] = append(p.hosts[instance], host)
		p.mu.Unlock()
	}
	return nil
}

func (p *Plugin) stopHosts(instance string) {
	p.mu.Lock()
	hosts := p.hosts[instance]
	delete(p.hosts, instance)
	delete(p.queues, instance)
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, host := range hosts {
		wg.Go(host.Stop)
	}
	wg.Wait()
}

// ConfigureWorkflowReplayer has nothing to set.
func (p *Plugin) ConfigureWorkflowReplayer(context.Context, sdkworker.PluginConfigureWorkflowReplayerOptions) error {
	return nil
}

// ReplayWorkflow registers the agents with the replayer.
func (p *Plugin) ReplayWorkflow(ctx context.Context, options sdkworker.PluginReplayWorkflowOptions, next func(context.Context, sdkworker.PluginReplayWorkflowOptions) error) error {
	p.mu.Lock()
	known := p.replayed[options.WorkflowReplayerInstanceKey]
	p.replayed[options.WorkflowReplayerInstanceKey] = true
	p.mu.Unlock()
	if !known {
		registerAgents(options.WorkflowReplayRegistry, p.agents)
	}
	return next(ctx, options)
}

// WorkflowRegistry is what agents are registered with: a worker, a replayer or
// a test environment.
type WorkflowRegistry interface {
	RegisterWorkflowWithOptions(w any, options workflow.RegisterOptions)
}

// RegisterWorkflows registers the agents among the items, and nothing else. It is for
// replaying histories, which needs no activities.
func RegisterWorkflows(r WorkflowRegistry, serve ...Item) error {
	i, err := collect(serve)
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	registerAgents(r, i.agents)
	return nil
}

// Registry is a worker or a test environment.
type Registry interface {
	WorkflowRegistry
	activities.Registry
}

// Register registers the items with r, for tests in Temporal's test environment. A
// worker also needs what New and NewPlugin do.
func Register(r Registry, opts Options, serve ...Item) error {
	p, err := NewPlugin(nil, opts, serve...)
	if err != nil {
		return err
	}
	p.activities.Register(r)
	registerAgents(r, p.agents)
	return nil
}

func registerAgents(r WorkflowRegistry, agents []workflows.Agent) {
	r.RegisterWorkflowWithOptions(workflows.Limiter, workflow.RegisterOptions{Name: protocol.WorkflowLimiter})
	r.RegisterWorkflowWithOptions(workflows.Session, workflow.RegisterOptions{Name: protocol.WorkflowSession})
	for _, agent := range agents {
		r.RegisterWorkflowWithOptions(agent.Run, workflow.RegisterOptions{Name: agent.Name()})
	}
}

// refuseUnknown fails executions of agents that the worker does not have. Temporal would
// try their workflow task for ever. It is not for a worker that others register
// workflows with.
func (p *Plugin) refuseUnknown(w sdkworker.Worker) {
	names := make([]string, 0, len(p.agents))
	for _, agent := range p.agents {
		names = append(names, agent.Name())
	}
	slices.Sort(names)
	known := strings.Join(names, ", ")
	w.RegisterDynamicWorkflow(func(ctx workflow.Context, _ converter.EncodedValues) (any, error) {
		return nil, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("no agent %q is registered with the worker of task queue %s; registered: %s",
				workflow.GetInfo(ctx).WorkflowType.Name, workflow.GetInfo(ctx).TaskQueueName, known),
			failure.TypeUnknownAgent, nil)
	}, workflow.DynamicRegisterOptions{})
}
