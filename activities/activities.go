package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/resources"
)

// Options configure Activities. Package worker fills them in.
type Options struct {
	// Policy decides the steps. Nil allows all.
	Policy policy.Engine
	// ForkPolicy says what becomes of the policies that forks bring, and PolicyOptions how those
	// are compiled.
	ForkPolicy    ForkPolicy
	PolicyOptions policy.Options
	// Resources are the worker's drivers. Nil means none.
	Resources *resources.Set
	// Tools and Steps are the bodies of tools and local steps.
	Tools, Steps []Handler
	// Descriptions tell models what tools do, by name.
	Descriptions map[string]string
	// Models answer llm_calls, by the name of their reference.
	Models map[string]Model
	// MCPServers run the tools of MCP servers, by the name of their reference.
	MCPServers map[string]MCPServer
	// HeartbeatTimeout is the default for activities. Zero means 30 seconds.
	HeartbeatTimeout time.Duration
	// HostTimeout is how long a task waits for the one host that can run it. Zero
	// means 10 minutes.
	HostTimeout time.Duration
	// SessionSweep is how soon a session looks after a turn that does not end, and then ever
	// less often. Zero means 10 seconds.
	SessionSweep time.Duration
	// RolloverEvents is how long the history of a run may become before the execution continues
	// as new. Zero leaves that to Temporal's suggestion.
	RolloverEvents int
	// PayloadLimit is the most bytes of JSON that fit a payload. Zero means what fits a history.
	PayloadLimit int
	// Decoder reads histories of other executions.
	Decoder eventlog.Decoder
}

// Defaults of Options.
const (
	DefaultHeartbeatTimeout = 30 * time.Second
	// A host that reboots, or a server that was down, should not end executions.
	DefaultHostTimeout = 10 * time.Minute
)

// Activities is everything that a worker runs outside of workflow code.
type Activities struct {
	opts             Options
	policy           policy.Engine
	overrides        overrides
	prefixes         prefixes
	conversations    conversations
	resources        *resources.Set
	tools, steps     map[string]Handler
	descriptions     map[string]string
	models           map[string]Model
	searchAttributes atomic.Pointer[string]
}

// New checks the options. Two bodies under one name are an error, also if one is a
// tool and the other a local step, since both may be activity types.
func New(opts Options) (*Activities, error) {
	if opts.Policy == nil {
		opts.Policy = policy.AllowAll{}
	}
	if opts.Resources == nil {
		empty, err := resources.NewSet()
		if err != nil {
			return nil, err
		}
		opts.Resources = empty
	}
	if opts.HeartbeatTimeout == 0 {
		opts.HeartbeatTimeout = DefaultHeartbeatTimeout
	}
	if opts.HostTimeout == 0 {
		opts.HostTimeout = DefaultHostTimeout
	}
	if opts.PayloadLimit == 0 {
		opts.PayloadLimit = protocol.PayloadLimit
	}
	a := &Activities{
		opts: opts, policy: opts.Policy, resources: opts.Resources,
		tools: map[string]Handler{}, steps: map[string]Handler{},
		descriptions: opts.Descriptions, models: opts.Models,
		overrides: overrides{mode: opts.ForkPolicy, opts: opts.PolicyOptions},
	}
	switch opts.ForkPolicy {
	case ForkPolicyReplaces, ForkPolicyBoth, ForkPolicyRefused:
	default:
		return nil, fmt.Errorf("the fork policy is %q; it may be %q, %q, or empty", opts.ForkPolicy, ForkPolicyBoth, ForkPolicyRefused)
	}
	if err := a.index(opts.Tools, opts.Steps); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Activities) index(tools, steps []Handler) error {
	own, err := ownSteps()
	if err != nil {
		return err
	}
	taken := map[string]bool{}
	add := func(into map[string]Handler, handlers []Handler) error {
		for _, h := range handlers {
			if taken[h.name] {
				return fmt.Errorf("two tools or local steps are called %q", h.name)
			}
			taken[h.name] = true
			into[h.name] = h
		}
		return nil
	}
	if err := add(a.steps, own); err != nil {
		return err
	}
	if err := add(a.tools, tools); err != nil {
		return err
	}
	return add(a.steps, steps)
}

// ownSteps are the local steps with a body that package workflows offers itself.
func ownSteps() ([]Handler, error) {
	nowHandler, err := NewHandler(protocol.StepNow, now)
	if err != nil {
		return nil, err
	}
	uuidHandler, err := NewHandler(protocol.StepUUID, newUUID)
	if err != nil {
		return nil, err
	}
	return []Handler{nowHandler, uuidHandler}, nil
}

// SetSearchAttributes says that namespace has Tine's search attributes. Without them
// executions do not set any: Temporal would refuse the workflow task.
func (a *Activities) SetSearchAttributes(namespace string) { a.searchAttributes.Store(&namespace) }

func (a *Activities) hasSearchAttributes(ctx context.Context) bool {
	namespace := a.searchAttributes.Load()
	return namespace != nil && *namespace == activity.GetInfo(ctx).Namespace
}

// Close closes the handles of resources and the connections to MCP servers.
func (a *Activities) Close() {
	a.resources.Close()
	var wg sync.WaitGroup
	for _, server := range a.opts.MCPServers {
		wg.Go(server.Close)
	}
	wg.Wait()
}

// Registry is the part of Temporal's worker.Registry that Register needs.
type Registry interface {
	RegisterActivityWithOptions(a any, options activity.RegisterOptions)
}

// body is a handler as an activity.
type body struct {
	activities *Activities
	handler    Handler
}

func (b body) tineRun(ctx context.Context, args json.RawMessage, envelope protocol.Call) (json.RawMessage, error) {
	return b.activities.runStep(ctx, b.handler, args, envelope)
}

// Register registers the activities and local activities under their recorded names. The SDK
// takes the names of the Go functions for further names of them, so those begin with
// "tine", which the names of tools and steps may not.
func (a *Activities) Register(r Registry) {
	for name, fn := range map[string]any{
		protocol.ActivityBegin:          a.tineBegin,
		protocol.ActivityDecide:         a.tineDecide,
		protocol.ActivityStep:           a.tineStep,
		protocol.ActivitySettle:         a.tineSettle,
		protocol.ActivityNote:           a.tineNote,
		protocol.ActivityGenerate:       a.tineGenerate,
		protocol.ActivityLoadPrefix:     a.tineLoadPrefix,
		protocol.ActivityLoadRun:        a.tineLoadRun,
		protocol.ActivityCreateResource: a.tineCreateResource,
		protocol.ActivityCheckpoint:     a.tineCheckpoint,
		protocol.ActivityPause:          a.tinePauseResource,
		protocol.ActivityLimit:          a.tineLimit,
		protocol.ActivityListMCPTools:   a.tineListMCPTools,
		protocol.ActivityCallMCPTool:    a.tineCallMCPTool,
		protocol.ActivityJoin:           a.tineJoin,
		protocol.ActivityTurn:           a.tineTurn,
		protocol.ActivityLoadParent:     a.tineLoadParent,
		protocol.ActivityState:          a.tineState,
		protocol.ActivityOpenResource:   a.tineOpenResource,
	} {
		r.RegisterActivityWithOptions(fn, activity.RegisterOptions{Name: name})
	}
	for _, handlers := range []map[string]Handler{a.tools, a.steps} {
		for name, h := range handlers {
			r.RegisterActivityWithOptions(body{a, h}.tineRun, activity.RegisterOptions{Name: name})
		}
	}
}
