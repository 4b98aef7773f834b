package workflows

import (
	"encoding/json"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// How long the history of a run may become, whatever it has done so far. Temporal ends at 51,200
// events and 50 MB what goes beyond.
const (
	rollEvents = 40_000
	rollBytes  = 35 << 20
)

// maxRolledSignals is how many bytes of signals that nobody has received go with the execution.
const maxRolledSignals = 512 << 10

// due reports whether the history is so long that the execution should continue as new. The next
// run asks for all recorded steps again, so this one does at least half as many new ones first, unless
// there is no room for them: then all runs together take a time that grows with the steps, and not with
// their square.
func (x *execution) due(ctx workflow.Context) bool {
	if !x.since(protocol.RevisionRollover) || x.lived == 0 || x.cancelled() {
		return false
	}
	info := workflow.GetInfo(ctx)
	length := info.GetCurrentHistoryLength()
	if length < x.rollAfter {
		return false
	}
	if length >= rollEvents || info.GetCurrentHistorySize() >= rollBytes {
		return true
	}
	asked := info.GetContinueAsNewSuggested() || x.begin.RolloverEvents > 0 && length >= x.begin.RolloverEvents
	return asked && 2*x.lived >= len(x.seed.steps)
}

// hold keeps what is about to begin from it while the execution is to continue as new. It
// returns if that does not come to pass.
func (x *execution) hold(ctx workflow.Context) error {
	if !x.rolling && !x.due(ctx) {
		return nil
	}
	x.rolling = true
	return workflow.Await(ctx, func() bool { return !x.rolling })
}

// quiet reports whether nothing is under way but what can wait on in the next run: steps that sleep,
// receive, or wait for a person.
func (x *execution) quiet() bool {
	waiting := x.resting
	for _, a := range x.approvals.pending {
		if a.waiting && a.Status == protocol.ApprovalPending {
			waiting++
		}
	}
	return x.active == waiting && x.opening == 0 && !x.underPause
}

// rest runs wait, which may go on in the next run.
func (x *execution) rest(wait func()) {
	x.resting++
	wait()
	x.resting--
}

// roll ends the run with the error that continues the execution as new, or is nil if that has to wait.
func (x *execution) roll(ctx workflow.Context, input json.RawMessage) error {
	if !x.keepSignals(ctx) {
		x.rollAfter = workflow.GetInfo(ctx).GetCurrentHistoryLength() + rollEvents/40
		return nil
	}
	if x.approvals.stale {
		x.listApprovals(ctx)
	}
	next := x.start
	if next.Fork != nil {
		fork := *next.Fork
		fork.Page = nil // its steps are among the recorded ones now
		next.Fork = &fork
	}
	next.Roll = &protocol.Roll{
		RunID: workflow.GetInfo(ctx).WorkflowExecution.RunID, Status: x.status,
		Resources: x.resources.rolled(), Buckets: map[string]time.Time{},
		Signals: x.signals, Diverged: x.seed.noted,
	}
	for _, name := range workflow.DeterministicKeys(x.buckets) {
		next.Roll.Buckets[name] = x.buckets[name].full
	}
	return workflow.NewContinueAsNewError(ctx, x.agent, input, next)
}

// keepSignals takes over what nobody has received, and reports whether it fits.
func (x *execution) keepSignals(ctx workflow.Context) bool {
	for _, name := range workflow.GetUnhandledSignalNames(ctx) {
		if strings.HasPrefix(name, protocol.Prefix) {
			continue
		}
		channel := workflow.GetSignalChannel(ctx, name)
		for payload := json.RawMessage(nil); channel.ReceiveAsync(&payload); payload = nil {
			x.signals[name] = append(x.signals[name], payload)
		}
	}
	size := 0
	for _, name := range workflow.DeterministicKeys(x.signals) {
		for _, payload := range x.signals[name] {
			size += len(payload)
		}
	}
	return size <= maxRolledSignals
}

// kept gives the next signal of the name that came before the run began.
func (x *execution) kept(name string) (payload json.RawMessage, ok bool) {
	waiting := x.signals[name]
	if len(waiting) == 0 {
		return nil, false
	}
	x.signals[name] = waiting[1:]
	if len(waiting) == 1 {
		delete(x.signals, name)
	}
	return waiting[0], true
}

func (s *resourceSet) rolled() []protocol.RolledResource {
	var rolled []protocol.RolledResource
	for _, key := range s.keys {
		r := s.opened[key]
		rolled = append(rolled, protocol.RolledResource{
			ResourceSpec: r.ResourceSpec, Bound: r.bound, CoverageReuse: r.coverageReuse, Host: s.host,
			Count: r.count, Covered: r.covered, CanPause: r.canPause, Resting: r.resting, Paused: r.paused,
		})
	}
	return rolled
}

// unroll opens the resources that the run before has left open.
func (s *resourceSet) unroll(rolled []protocol.RolledResource) {
	for _, r := range rolled {
		s.keys = append(s.keys, r.Key)
		s.specs[r.Key] = r.ResourceSpec
		s.host = r.Host
		s.opened[r.Key] = &openResource{
			ResourceSpec: r.ResourceSpec, bound: r.Bound, coverageReuse: r.CoverageReuse,
			count: r.Count, covered: r.Covered, canPause: r.CanPause, resting: r.Resting, paused: r.Paused,
		}
	}
}

// unroll takes up what the run before has left.
func (x *execution) unroll(ctx workflow.Context, roll *protocol.Roll) error {
	x.signals = roll.Signals
	if x.signals == nil {
		x.signals = map[string][]json.RawMessage{}
	}
	for _, name := range workflow.DeterministicKeys(roll.Buckets) {
		x.buckets[name] = &bucket{full: roll.Buckets[name]}
	}
	if err := x.loadRun(ctx, roll.RunID); err != nil {
		return err
	}
	x.seed.noted = roll.Diverged
	x.resources.unroll(roll.Resources)
	x.gate.serial = len(roll.Resources) > 0
	x.approvals.loading = false
	if len(x.approvals.pending) > 0 {
		x.listApprovals(ctx)
	}
	return nil
}

// loadRun reads the log so far into the run's own history, so that the history of the run before may
// be deleted afterwards.
func (x *execution) loadRun(ctx workflow.Context, runID string) error {
	loading := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: prefixTimeout,
		RetryPolicy:         retryPolicy(prefixAttempts),
		Summary:             "recorded steps of the run before",
	})
	request := protocol.LoadRun{ExecutionID: workflow.GetInfo(ctx).WorkflowExecution.ID, RunID: runID}
	for {
		var page protocol.RolledPage
		if err := workflow.ExecuteActivity(loading, protocol.ActivityLoadRun, request).Get(ctx, &page); err != nil {
			return err
		}
		for i := range page.Records {
			if err := x.recall(ctx, &page.Records[i]); err != nil {
				return err
			}
		}
		if page.Next == 0 {
			return nil
		}
		request.Offset = page.Next
	}
}

// recall takes up one record. What only the log needs is passed over.
func (x *execution) recall(ctx workflow.Context, rec *protocol.RolledRecord) error {
	switch {
	case rec.Head != nil && rec.Head.Previous != nil:
		x.previous = rec.Head.Previous
		x.resources.inherit(x.previous.Resources)
	case rec.Resource != nil && !rec.Resource.Bound && x.start.Fork != nil:
		r := rec.Resource
		restoration, ok := x.start.Fork.Restoration[r.Key]
		if !ok {
			return nil
		}
		restoration.Covered = restoration.Covered && r.Covered
		x.seed.resources[r.Key] = &seededResource{
			PrefixResource: protocol.PrefixResource{ResourceSpec: r.ResourceSpec, CoverageReuse: r.CoverageReuse},
			restoration:    restoration, // its count is that of the steps to come
		}
	case rec.Step != nil:
		return x.seed.recall(rec.Step)
	case rec.Approval != nil && rec.Approval.Status == protocol.ApprovalPending:
		decided, settable := workflow.NewFuture(ctx)
		a := &approval{Approval: *rec.Approval, decided: settable, future: decided, resumed: true}
		x.approvals.byStep[protocol.ApprovalStep(a.ID)] = a
		x.approvals.pending = append(x.approvals.pending, a)
	}
	return nil
}

// openStep is a step that the run before has left waiting.
type openStep struct {
	decision protocol.Decision
	// began is when a step that waits in the workflow began to. One that waits for approval has not.
	began *time.Time
}

// recall takes up a step of the run before.
func (s *seed) recall(rec *protocol.RolledStep) error {
	var logged protocol.LoggedStep
	if err := protocol.Decode(rec.Log, &logged); err != nil {
		return err
	}
	decision := protocol.Decision{
		Decision: logged.Decision, RuleID: logged.RuleID, Reason: logged.Reason, PolicyDigest: logged.PolicyDigest,
	}
	step := &recordedStep{
		PrefixStep: protocol.PrefixStep{
			Step: protocol.Step{
				ID: logged.StepID, Kind: logged.Kind, Target: logged.Target, Args: logged.Args,
				Occurrence: logged.Occurrence, Idempotency: logged.Idempotency, Resources: logged.Resources,
			},
			Decision: &decision,
		},
		refusals: rec.Refusals,
		began:    logged.ExecutingSeq != 0,
	}
	s.described[logged.StepID] = step
	s.order = append(s.order, logged.StepID)
	if logged.SettledSeq == 0 {
		if rec.Began != nil || decision.Decision == protocol.RequireApproval {
			s.open[logged.StepID] = &openStep{decision: decision, began: rec.Began}
		}
		return nil
	}
	s.steps[logged.StepID] = step
	s.left++
	s.settle(step, protocol.Outcome{Result: logged.Result, Error: logged.Error})
	return nil
}

// resume goes on with a step that the run before has left waiting.
func (p *pending) resume(ctx workflow.Context, open *openStep) (json.RawMessage, error) {
	p.leave = func() {}
	defer func() { p.leave() }()
	if open.began != nil {
		p.began = *open.began
		defer p.x.started(ctx, p.call.target)()
		return p.waitFor(ctx)
	}
	a := p.x.approvals.byStep[protocol.ApprovalStep(protocol.ApprovalID("", p.step.ID))]
	window := &protocol.ApprovalWindow{RequestedAt: a.RequestedAt, ExpiresAt: a.ExpiresAt}
	decision, err := p.approve(ctx, open.decision, window)
	if err != nil {
		return nil, err
	}
	if decision.Decision != protocol.Allow {
		return nil, policyError(p.step, *decision)
	}
	return p.carryOut(ctx, decision)
}

// opened gives what the run before has left of the step, once.
func (s *seed) opened(id string) *openStep {
	open := s.open[id]
	delete(s.open, id)
	return open
}
