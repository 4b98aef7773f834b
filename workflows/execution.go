package workflows

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

type executionKey struct{}

// execution is the runtime of one execution. Temporal runs one coroutine of a
// workflow at a time, so nothing in it is locked against concurrent use.
type execution struct {
	agent     string
	taskQueue string
	start     protocol.Start
	begin     protocol.Begin
	// seen counts the calls so far by what they ask for, and refused has the places among
	// them that a rate limit has given back.
	seen    map[string]int
	refused map[string][]int
	// indeterminate has what at_most_once steps asked for whose end nobody saw.
	indeterminate map[string]bool
	// buckets are the execution's own rate limits, by rule; taken counts the tokens asked of
	// shared ones.
	buckets map[string]*bucket
	taken   int
	// tokens is what model calls have used.
	tokens       int64
	approvals    approvals
	conversation conversation
	// status is what the status attribute says.
	status string
	seed   *seed
	// previous is what the execution continues, and state what it leaves itself.
	previous  *protocol.Previous
	state     json.RawMessage
	gate      *gate
	resources *resourceSet
	// mcpTools has the lists of MCP servers' tools, by server.
	mcpTools   map[string][]protocol.MCPTool
	mcpListing workflow.Mutex
	// cancelled reports whether the execution as a whole is.
	cancelled func() bool
	// fatal ends the execution, whatever its handler does about it.
	fatal error
	// opening counts the resources that are being created.
	opening int
	// pausing says that resources are paused while approvals are pending, and underPause that one
	// is being paused.
	pausing, underPause bool
	// lived counts the live steps of this run, active those under way, and resting those of them
	// that only wait.
	lived, active, resting int
	// rolling says that the execution is to continue as new, and rollAfter that it may not
	// before its history is so long.
	rolling   bool
	rollAfter int
	// signals are those that have come before this run, by name.
	signals map[string][]json.RawMessage
	// running are the targets of the steps under way, in order, for the UI.
	running []string
}

// executionFrom gives the runtime that ctx belongs to. A context without one is a mistake
// in the program, like the use of an activity's context in a workflow.
func executionFrom(ctx workflow.Context) *execution {
	x, ok := ctx.Value(executionKey{}).(*execution)
	if !ok {
		panic("workflows: this context is not a Tine agent's; register the agent with worker.Agent, and pass on the context that its handler gets")
	}
	return x
}

// since reports whether the execution began with workflow code of the revision or a later one.
func (x *execution) since(revision int) bool { return x.begin.Revision >= revision }

// payloadLimit is the most bytes of JSON that fit a payload.
func (x *execution) payloadLimit() int { return cmp.Or(x.begin.PayloadLimit, protocol.PayloadLimit) }

// newExecution reads what the worker offers and, in a fork, the recorded prefix.
func newExecution(ctx workflow.Context, agent string, start *protocol.Start) (*execution, error) {
	x := &execution{
		agent:         agent,
		taskQueue:     workflow.GetInfo(ctx).TaskQueueName,
		seen:          map[string]int{},
		refused:       map[string][]int{},
		indeterminate: map[string]bool{},
		buckets:       map[string]*bucket{},
		approvals:     approvals{byStep: map[string]*approval{}},
		gate:          newGate(ctx),
		resources:     newResourceSet(),
		mcpTools:      map[string][]protocol.MCPTool{},
		mcpListing:    workflow.NewMutex(ctx),
		signals:       map[string][]json.RawMessage{},
		cancelled:     func() bool { return ctx.Err() != nil },
	}
	if start != nil {
		x.start = *start
	}
	x.approvals.loading = x.start.Roll != nil
	if err := x.serveApprovals(ctx); err != nil {
		return nil, err
	}
	err := workflow.ExecuteLocalActivity(localOptions(ctx, localTimeout), protocol.ActivityBegin).Get(ctx, &x.begin)
	if err != nil {
		return nil, err
	}
	x.publishStart(ctx)
	if roll := x.start.Roll; roll != nil {
		x.seed = newSeed()
		err = x.unroll(ctx, roll)
	} else {
		x.seed, err = loadSeed(ctx, x.start.Fork)
	}
	if err != nil {
		return nil, err
	}
	x.resources.adopt(x.seed)
	x.tokens = x.seed.tokens
	return x, nil
}

var (
	statusAttribute     = temporal.NewSearchAttributeKeyKeyword(protocol.AttributeStatus)
	agentAttribute      = temporal.NewSearchAttributeKeyKeyword(protocol.AttributeAgent)
	sessionAttribute    = temporal.NewSearchAttributeKeyKeyword(protocol.AttributeSession)
	forkedFromAttribute = temporal.NewSearchAttributeKeyKeyword(protocol.AttributeForkedFrom)
	forkSeqAttribute    = temporal.NewSearchAttributeKeyInt64(protocol.AttributeForkSeq)
)

func (x *execution) publishStart(ctx workflow.Context) {
	x.status = protocol.StatusRunning
	if x.start.Session != "" {
		x.status = protocol.StatusPending
	}
	if x.start.Roll != nil {
		x.status = x.start.Roll.Status
	}
	updates := []temporal.SearchAttributeUpdate{
		statusAttribute.ValueSet(x.status),
		agentAttribute.ValueSet(x.agent),
	}
	if x.start.Session != "" {
		updates = append(updates, sessionAttribute.ValueSet(x.start.Session))
	}
	if fork := x.start.Fork; fork != nil {
		updates = append(updates, forkedFromAttribute.ValueSet(fork.ExecutionID), forkSeqAttribute.ValueSet(fork.AtSeq))
	}
	x.upsert(ctx, updates...)
	x.describe(ctx)
}

func (x *execution) publishEnd(ctx workflow.Context, err error) {
	if len(x.approvals.pending) > 0 || x.approvals.stale { // of steps that the handler did not wait for
		x.approvals.pending = nil
		x.listApprovals(ctx)
	}
	x.status = protocol.StatusCompleted
	switch {
	case temporal.IsCanceledError(err):
		x.status = protocol.StatusCancelled
	case err != nil:
		x.status = protocol.StatusFailed
	}
	x.upsert(ctx, statusAttribute.ValueSet(x.status))
	x.describe(ctx)
}

func (x *execution) upsert(ctx workflow.Context, updates ...temporal.SearchAttributeUpdate) {
	if !x.begin.SearchAttributes {
		return
	}
	if err := workflow.UpsertTypedSearchAttributes(ctx, updates...); err != nil {
		workflow.GetLogger(ctx).Error("search attributes not updated", "error", err)
	}
}

// started notes that target runs, for the UI, and returns how to end that.
func (x *execution) started(ctx workflow.Context, target string) (ended func()) {
	x.running = append(x.running, target)
	x.describe(ctx)
	return func() {
		i := slices.Index(x.running, target)
		x.running = slices.Delete(x.running, i, i+1)
		x.describe(ctx)
	}
}

// lastLine is for Temporal's UI to cut off: its frame is a line too short. It looks empty, and
// is not so for markdown.
const lastLine = "\n\u00a0\n"

// describe sets the details that Temporal's UI shows for the workflow.
func (x *execution) describe(ctx workflow.Context) {
	var b strings.Builder
	if fork := x.start.Fork; fork != nil {
		b.WriteString(fmt.Sprintf("**Forked from** `%s` at event %d\n\n", fork.ExecutionID, fork.AtSeq))
	}
	if x.seed != nil && x.seed.left > 0 {
		b.WriteString(fmt.Sprintf("**Recorded steps left to replay:** %d\n\n", x.seed.left))
	}
	if roll := x.start.Roll; roll != nil {
		b.WriteString(fmt.Sprintf("**Goes on with run** `%s`\n\n", roll.RunID))
	}
	if x.previous != nil {
		b.WriteString(fmt.Sprintf("**Continues** `%s`\n\n", x.previous.ExecutionID))
	}
	doing := "nothing right now"
	switch {
	case x.status == protocol.StatusPending:
		doing = "waits for its turn in its session"
	case len(x.running) > 0:
		doing = "`" + strings.Join(x.running, "`, `") + "`"
	}
	b.WriteString("**Doing:** " + doing + "\n")
	x.approvals.describe(&b)
	x.resources.describe(&b)
	b.WriteString(lastLine)
	workflow.SetCurrentDetails(ctx, b.String())
}
