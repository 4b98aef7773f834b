package workflows

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// Resource refers to external state by its key: a workspace, a sandbox. Handles to it
// live in workers; a tool's handler gets one with activities.Resource.
type Resource struct {
	key string
}

// NewResource declares the resource called key.
func NewResource(key string) Resource {
	return Resource{key: key}
}

// Key is the resource's key.
func (r Resource) Key() string { return r.key }

// ResourceOptions say what a resource is and when it is checkpointed.
type ResourceOptions struct {
	// Driver is the ID of the driver, which a worker must have. Required.
	Driver string
	// Config is the driver's configuration, encoded as JSON. It is recorded, so it
	// must not hold credentials. Nil is no configuration.
	Config any
	// EverySteps is N for a checkpoint after every Nth live tool call or local
	// step that affects the resource. Zero means 1.
	EverySteps int
	// SkipCompletion leaves out the checkpoint that is otherwise taken when the handler
	// returns normally and none covers the resource.
	SkipCompletion bool
	// Pause says when the resource rests, if its driver can pause it. Empty means PauseBlocked.
	Pause PauseMode
}

const maxKey = 128

func validKey(key string) bool {
	for _, c := range key {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '.', c == '-':
		default:
			return false
		}
	}
	return key != "" && len(key) <= maxKey
}

// Open makes the resource available to the execution's steps. The first call
// creates it: in a fork from the checkpoint that the fork point selects, otherwise from
// the driver's initial environment. An execution that continues another one of its session
// goes on with that one's resource instead, as it is now. If no checkpoint covers that state, one
// is taken at once. Further calls with the same options do nothing; other options are
// an error. A resource that cannot be created is a *StepError with ReasonResource. If
// the checkpoint of a fork is missing, the execution fails at once.
func (r Resource) Open(ctx workflow.Context, opts ResourceOptions) error {
	x := executionFrom(ctx)
	spec, err := r.spec(opts)
	if err != nil {
		return err
	}
	if known, ok := x.resources.specs[r.key]; ok {
		if err := sameSpec(known, spec); err != nil {
			return err
		}
	}
	if x.resources.opened[r.key] == nil {
		if err := x.hold(ctx); err != nil {
			return err
		}
	}
	x.opening++
	defer func() { x.opening-- }()
	leave, err := x.gate.close(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if x.resources.opened[r.key] != nil {
		return nil
	}
	return x.open(ctx, spec)
}

func (r Resource) spec(opts ResourceOptions) (protocol.ResourceSpec, error) {
	spec := protocol.ResourceSpec{
		Key: r.key, Driver: opts.Driver, EverySteps: opts.EverySteps, OnCompletion: !opts.SkipCompletion,
		Pause: string(opts.Pause),
	}
	switch opts.Pause {
	case "", PauseBlocked, PauseCompleted, PauseNever:
	default:
		return spec, configurationError("resource %q: Pause is %q; it may be %s, %s or %s", r.key, opts.Pause, PauseBlocked, PauseCompleted, PauseNever)
	}
	switch {
	case !validKey(r.key):
		return spec, configurationError("resource %q: a key is 1 to 128 letters, digits, '_', '.' and '-'", r.key)
	case opts.Driver == "":
		return spec, configurationError("resource %q: ResourceOptions.Driver is required", r.key)
	case opts.EverySteps < 0:
		return spec, configurationError("resource %q: EverySteps is %d; it must be 1 or more", r.key, opts.EverySteps)
	case opts.EverySteps == 0:
		spec.EverySteps = 1
	}
	if opts.Config == nil {
		return spec, nil
	}
	raw, err := protocol.Encode(opts.Config)
	if err != nil {
		return spec, configurationError("resource %q: Config cannot be encoded: %v", r.key, err)
	}
	if !bytes.Equal(raw, []byte("null")) {
		spec.Config = raw
	}
	return spec, nil
}

// sameSpec refuses to change a resource's driver or configuration. Its cadence may change
// in a fork, when the agent's code has.
func sameSpec(known, asked protocol.ResourceSpec) error {
	if known.Driver != asked.Driver {
		return configurationError("resource %q is one of driver %q and cannot become one of driver %q; use another key",
			known.Key, known.Driver, asked.Driver)
	}
	before, err := protocol.CanonicalJSON(known.Config)
	if err != nil {
		return fmt.Errorf("resource %q: recorded configuration: %w", known.Key, err)
	}
	now, err := protocol.CanonicalJSON(asked.Config)
	if err != nil {
		return fmt.Errorf("resource %q: configuration: %w", known.Key, err)
	}
	if !bytes.Equal(before, now) {
		return configurationError("resource %q has configuration %s and cannot change it to %s; use another key",
			known.Key, before, now)
	}
	return nil
}

// resourceSet holds the resources of an execution.
type resourceSet struct {
	// specs are all that are registered: opened ones, those of a fork's prefix, and inherited ones.
	specs  map[string]protocol.ResourceSpec
	seeded map[string]*seededResource
	// inherited are those that the parent in the session has left.
	inherited map[string]protocol.PreviousResource
	opened    map[string]*openResource
	keys      []string // of opened ones, in order
	// host names the one host that holds them, if only one does.
	host string
}

// openResource is a resource that has been created.
type openResource struct {
	protocol.ResourceSpec
	bound         protocol.Bound
	coverageReuse bool
	// count is how many settled steps have affected it.
	count int
	// covered says that a checkpoint holds the current state. touches counts
	// what ended coverage, to notice that during a capture.
	covered bool
	touches int
	// canPause says that the driver can, resting that pausing has been tried since the resource
	// was used, and paused that it worked.
	canPause, resting, paused bool
}

func newResourceSet() *resourceSet {
	return &resourceSet{
		specs:     map[string]protocol.ResourceSpec{},
		seeded:    map[string]*seededResource{},
		inherited: map[string]protocol.PreviousResource{},
		opened:    map[string]*openResource{},
	}
}

func (s *resourceSet) adopt(seed *seed) {
	s.seeded = seed.resources
	for _, key := range workflow.DeterministicKeys(seed.resources) {
		s.specs[key] = seed.resources[key].ResourceSpec
	}
}

// inherit takes over the parent's resources, which the execution goes on with.
func (s *resourceSet) inherit(previous []protocol.PreviousResource) {
	for _, r := range previous {
		s.inherited[r.Key] = r
		s.specs[r.Key] = r.ResourceSpec
	}
}

// bound gives what a step's activity needs to open the resources.
func (s *resourceSet) bound() map[string]protocol.Bound {
	if len(s.keys) == 0 {
		return nil
	}
	bound := make(map[string]protocol.Bound, len(s.keys))
	for _, key := range s.keys {
		bound[key] = s.opened[key].bound
	}
	return bound
}

// touch ends coverage: a live step starts executing. Whatever runs may change a resource,
// unless the driver says that only declared changes happen. What a fork starts from is
// covered no longer either, even if it has not been opened yet.
func (s *resourceSet) touch(step protocol.Step) {
	for _, key := range s.keys {
		r := s.opened[key]
		if changes(step, key) || !r.coverageReuse {
			r.covered = false
			r.touches++
		}
	}
	for _, key := range workflow.DeterministicKeys(s.seeded) {
		r := s.seeded[key]
		if s.opened[key] == nil && (changes(step, key) || !r.CoverageReuse) {
			r.restoration.Covered = false
		}
	}
}

// changes reports whether a step may change the resource called key. Model calls change
// nothing, whatever they declare.
func changes(step protocol.Step, key string) bool {
	return step.Kind != protocol.KindLLM && slices.Contains(step.Resources, key)
}

func (s *resourceSet) describe(b *strings.Builder) {
	if len(s.keys) == 0 {
		return
	}
	b.WriteString("\n**Resources:**\n\n")
	for _, key := range s.keys {
		r := s.opened[key]
		coverage := "its current state is not captured"
		if r.covered {
			coverage = "its current state is captured"
		}
		if r.paused {
			coverage += "; paused"
		}
		b.WriteString("- `" + key + "` (" + r.Driver + "): " + coverage + "\n")
	}
}

// route sends an activity to the host that holds the execution's resources.
func (x *execution) route(opts *workflow.ActivityOptions) {
	if x.resources.host == "" {
		return
	}
	opts.TaskQueue = protocol.HostQueue(x.resources.host, x.taskQueue)
	opts.ScheduleToStartTimeout = x.begin.HostTimeout
}

// open creates the resource, or opens what the parent has left, and captures its starting state
// unless that is covered.
func (x *execution) open(ctx workflow.Context, spec protocol.ResourceSpec) error {
	r := &openResource{ResourceSpec: spec}
	host := x.resources.inherited[spec.Key].Host
	if seeded := x.resources.seeded[spec.Key]; seeded != nil {
		host = seeded.restoration.Host
		r.count = seeded.count
		r.covered = seeded.restoration.Covered
	}
	if err := x.place(host, spec.Key); err != nil {
		return err
	}
	x.resources.specs[spec.Key] = spec

	created, err := x.obtain(ctx, spec)
	if err != nil {
		return err
	}
	if err := x.place(created.Host, spec.Key); err != nil {
		return err
	}
	r.bound = protocol.Bound{Driver: spec.Driver, Binding: created.Binding}
	r.coverageReuse, r.canPause = created.CoverageReuse, created.CanPause
	x.resources.opened[spec.Key] = r
	x.resources.keys = append(x.resources.keys, spec.Key)
	if !r.covered {
		x.capture(ctx, r, protocol.CauseBaseline, "")
	}
	if len(x.approvals.pending) > 0 {
		x.pauseWhileBlocked(ctx)
	}
	x.describe(ctx)
	return nil
}

// place ties the execution to the host that holds its resources.
func (x *execution) place(host, key string) error {
	if host == "" || host == x.resources.host {
		return nil
	}
	if x.resources.host != "" {
		return configurationError("resource %q is on another host (%s) than the execution's other resources (%s)",
			key, host, x.resources.host)
	}
	x.resources.host = host
	return nil
}

// obtain opens the resource if the parent has left it, and creates it otherwise.
func (x *execution) obtain(ctx workflow.Context, spec protocol.ResourceSpec) (protocol.ResourceCreated, error) {
	inherited, known := x.resources.inherited[spec.Key]
	if known && inherited.Binding != nil {
		return x.acquire(ctx, spec, protocol.ActivityOpenResource, protocol.OpenResource{ResourceSpec: spec, Binding: inherited.Binding})
	}
	request := protocol.CreateResource{ResourceSpec: spec, Registered: known}
	if seeded := x.resources.seeded[spec.Key]; seeded != nil {
		request.Registered = true
		request.Checkpoint = seeded.restoration.CheckpointRef
	}
	return x.acquire(ctx, spec, protocol.ActivityCreateResource, request)
}

func (x *execution) acquire(ctx workflow.Context, spec protocol.ResourceSpec, activity string, request any) (protocol.ResourceCreated, error) {
	opts := workflow.ActivityOptions{
		StartToCloseTimeout: startToCloseTimeout,
		HeartbeatTimeout:    x.begin.HeartbeatTimeout,
		WaitForCancellation: true,
		RetryPolicy:         retryPolicy(maximumAttempts),
		Summary:             protocol.OneLine(spec.Key + " (" + spec.Driver + ")"),
	}
	x.route(&opts)
	var created protocol.ResourceCreated
	err := x.await(ctx, workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, opts), activity, request), &created)
	switch {
	case err == nil || temporal.IsCanceledError(err):
		return created, err
	case errors.Is(err, errAbandoned):
		return created, workflow.ErrCanceled
	}
	described := failure.StepError(err, protocol.SafeToRetry)
	if described.Reason == protocol.ReasonToolError {
		described.Reason = protocol.ReasonResource
	}
	failed := stepError(protocol.Step{Target: spec.Key}, described)
	if described.Reason == protocol.ReasonUnavailable {
		// Nothing good comes of a fork that goes on without the files it was to start from.
		x.fatal = temporal.NewNonRetryableApplicationError(failed.Error(), failure.TypeUnavailable, nil)
	}
	return created, failed
}
