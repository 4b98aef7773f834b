package workflows

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// call is what workflow code asks for.
type call struct {
	kind, target string
	args         json.RawMessage
	options      options
	// model names the model reference of an llm_call.
	model string
	// mcp names the MCP server of a step that one runs, and activity is Tine's for it.
	mcp      *protocol.MCPTarget
	activity string
	// wait makes a step that waits in the workflow instead of in an activity.
	wait func(ctx workflow.Context, began time.Time) (json.RawMessage, error)
	// value is the result of a local step that the workflow knows already.
	value json.RawMessage
}

// pending is a call with its identity.
type pending struct {
	x        *execution
	call     call
	step     protocol.Step
	same     string // what identical calls have in common
	argsHash string
	// leave ends the step's turn.
	leave func()
	// began is when a step that waits in the workflow began to, if that was in an earlier run.
	began time.Time
}

// identify fixes the call's identity. From here on the call counts among identical ones.
func (x *execution) identify(c call) (*pending, error) {
	for _, key := range c.options.resources {
		if c.kind != protocol.KindLLM && x.resources.opened[key] == nil {
			return nil, &StepError{
				Kind: c.kind, Target: c.target, Reason: ReasonResource,
				Message: fmt.Sprintf("it affects resource %q, which the execution has not opened", key),
			}
		}
	}
	if limit := x.payloadLimit(); len(c.args) > limit {
		return nil, &StepError{
			Kind: c.kind, Target: c.target, Reason: ReasonInvalidArguments,
			Message: fmt.Sprintf("the arguments have %d bytes; at most %d fit%s", len(c.args), limit, protocol.StorageHint(limit)),
		}
	}
	hash, err := protocol.ArgsHash(c.args)
	if err != nil {
		return nil, &StepError{Kind: c.kind, Target: c.target, Reason: ReasonInvalidArguments, Message: err.Error()}
	}
	same := strings.Join([]string{c.kind, c.target, hash}, "\x00")
	occurrence := x.occurrence(same)
	return &pending{x: x, call: c, same: same, argsHash: hash, step: protocol.Step{
		ID:          protocol.StepID(c.kind, c.target, hash, occurrence),
		Kind:        c.kind,
		Target:      c.target,
		Occurrence:  occurrence,
		Idempotency: c.options.idempotency,
		Resources:   c.options.resources,
	}}, nil
}

// occurrence is the place of a call among identical ones: one that a rate limit has refused is
// free again.
func (x *execution) occurrence(same string) int {
	if refused := x.refused[same]; len(refused) > 0 {
		x.refused[same] = refused[1:]
		return refused[0]
	}
	x.seen[same]++
	return x.seen[same] - 1
}

// perform takes a step from its identity to its outcome: replay, wait for a turn,
// decide, execute, capture. The error is a *StepError, a *PolicyError or, for a
// cancelled step, Temporal's CanceledError.
func (p *pending) perform(ctx workflow.Context) (json.RawMessage, error) {
	if refusal := p.x.seed.refusal(p.step); refusal != nil {
		return nil, p.limited(*refusal)
	}
	if recorded := p.x.seed.take(p.step, p.call); recorded != nil {
		return p.replay(recorded)
	}
	open := p.x.seed.opened(p.step.ID)
	if open == nil {
		if err := p.x.hold(ctx); err != nil {
			return nil, err
		}
	}
	p.x.active++
	defer func() { p.x.active--; p.x.lived++ }()
	if open != nil {
		return p.resume(ctx, open)
	}
	if err := p.enter(ctx); err != nil {
		return nil, err
	}
	defer func() { p.leave() }()

	result, err := p.live(ctx)
	p.x.noteDivergence(ctx)
	return result, err
}

// replay gives what is recorded of the step.
func (p *pending) replay(recorded *recordedStep) (json.RawMessage, error) {
	if p.step.Kind == protocol.KindLLM && p.x.since(protocol.RevisionMessages) {
		p.x.conversation.remember(p.step.ID, protocol.Messages(p.call.args))
	}
	if e := recorded.outcome.Error; e != nil && e.Reason == protocol.ReasonCancelled { // in an earlier run
		if recorded.began {
			p.x.indeterminate[p.same] = true
		}
		return nil, workflow.ErrCanceled
	}
	return p.settle(recorded.Decision, recorded.outcome)
}

// enter waits until it is the step's turn. Model calls and steps that wait in the workflow
// run no code that could touch a resource, so they need none.
func (p *pending) enter(ctx workflow.Context) error {
	p.leave = func() {}
	if p.call.kind == protocol.KindLLM || p.call.wait != nil {
		return ctx.Err()
	}
	leave, err := p.x.gate.enter(ctx)
	if err != nil {
		return err
	}
	if ctx.Err() != nil && p.x.since(protocol.RevisionCoalesced) { // its turn came with the cancellation
		leave()
		return ctx.Err()
	}
	p.leave = leave
	return nil
}

// outside runs wait without the step's turn, so that others go on meanwhile. A step that does not
// resume needs no other turn. It returns the error of wait, or that of coming back.
func (p *pending) outside(ctx workflow.Context, wait func() (resume bool, err error)) error {
	p.leave()
	p.leave = func() {}
	if resume, err := wait(); err != nil || !resume {
		return err
	}
	return p.enter(ctx)
}

func (p *pending) live(ctx workflow.Context) (json.RawMessage, error) {
	if p.local() {
		return p.runLocal(ctx)
	}
	verdict, err := p.record(ctx, protocol.ActivityDecide, nil)
	if err != nil {
		return nil, err
	}
	decision, err := p.clear(ctx, verdict)
	if err != nil {
		return nil, err
	}
	return p.carryOut(ctx, decision)
}

// carryOut runs a step that is allowed.
func (p *pending) carryOut(ctx workflow.Context, decision *protocol.Decision) (json.RawMessage, error) {
	if p.local() {
		return p.runDecided(ctx, decision)
	}
	p.x.resources.touch(p.step)
	defer p.x.started(ctx, p.call.target)()
	if p.call.wait != nil {
		return p.waitFor(ctx)
	}
	outcome, err := p.execute(ctx)
	p.x.captureDue(ctx, p.step)
	if err != nil {
		return nil, err
	}
	return p.settle(decision, outcome)
}

// local reports whether a local activity does: the step may run again after a crash,
// and nothing that a checkpoint holds depends on it.
func (p *pending) local() bool {
	return p.call.kind == protocol.KindLocal && p.call.wait == nil && p.call.activity == "" &&
		p.step.Idempotency != protocol.AtMostOnce && len(p.step.Resources) == 0
}

// runLocal decides and runs the step in one local activity, so that it costs one
// marker in history. Where the decision takes longer, a second one runs it.
func (p *pending) runLocal(ctx workflow.Context) (json.RawMessage, error) {
	verdict, err := p.record(ctx, protocol.ActivityStep, nil)
	if err != nil {
		return nil, err
	}
	if verdict.Outcome == nil {
		decision, err := p.clear(ctx, verdict)
		if err != nil {
			return nil, err
		}
		return p.runDecided(ctx, decision)
	}
	p.x.resources.touch(p.step)
	return p.settle(verdict.Decision, *verdict.Outcome)
}

// runDecided runs a local step that is allowed.
func (p *pending) runDecided(ctx workflow.Context, decision *protocol.Decision) (json.RawMessage, error) {
	verdict, err := p.record(ctx, protocol.ActivityStep, decision)
	if err != nil {
		return nil, err
	}
	p.x.resources.touch(p.step)
	return p.settle(verdict.Decision, *verdict.Outcome)
}

// record asks a local activity for the step's decision and, for a local step, its outcome.
// With decided the step is to run.
func (p *pending) record(ctx workflow.Context, activity string, decided *protocol.Decision) (protocol.StepVerdict, error) {
	timeout := localTimeout
	request := protocol.DecideRequest{
		Step:    p.step,
		AgentID: p.x.agent,
		Args:    p.call.args,
		Inline:  p.call.wait != nil,
		Result:  p.call.value,
		Policy:  p.x.start.Policy,
		Now:     workflow.Now(ctx),
		Session: p.x.start.Session,
		Decided: decided,
		Guarded: p.guarded(),
		// Whether the effect happened is not known, so the same call could have it twice.
		Indeterminate: p.step.Idempotency == protocol.AtMostOnce && p.x.indeterminate[p.same],
	}
	if fork := p.x.start.Fork; fork != nil {
		request.ForkedFrom = fork.ExecutionID
	}
	if activity == protocol.ActivityStep {
		request.Timeout = stepTimeout
		if p.call.options.startToClose > 0 {
			request.Timeout = p.call.options.startToClose
		}
		timeout += request.Timeout
	}
	var verdict protocol.StepVerdict
	err := workflow.ExecuteLocalActivity(localOptions(ctx, timeout), activity, request).Get(ctx, &verdict)
	switch {
	case err == nil || failure.IsCancelled(err) || !p.x.since(protocol.RevisionCoalesced):
		return verdict, err
	case decided != nil:
		return p.lost(ctx, decided, err)
	default:
		return p.undecided(ctx, err)
	}
}

// lost fails a local step that was to run, and of which nothing was heard.
func (p *pending) lost(ctx workflow.Context, decided *protocol.Decision, err error) (protocol.StepVerdict, error) {
	outcome := protocol.Outcome{Error: &protocol.StepError{
		Message: "nobody saw how the step ended: " + protocol.OneLine(err.Error()), Reason: protocol.ReasonIndeterminate,
	}}
	return protocol.StepVerdict{Decision: decided, Outcome: &outcome}, p.note(ctx, protocol.StepRecord{Executing: true, Outcome: &outcome})
}

// undecided denies a step whose decision did not come.
func (p *pending) undecided(ctx workflow.Context, err error) (protocol.StepVerdict, error) {
	decision := protocol.Decision{
		Decision: protocol.Deny, RuleID: protocol.RuleBundleError, Reason: "no decision: " + protocol.OneLine(err.Error()),
	}
	record := protocol.StepRecord{Step: p.step, Decision: &decision}
	record.Step.Args = p.call.args
	return protocol.StepVerdict{Decision: &decision}, p.note(ctx, record)
}

// note records what workflow code has found out of the step, also if it is cancelled.
func (p *pending) note(ctx workflow.Context, record protocol.StepRecord) error {
	record.Step.ID, record.Step.Kind, record.Step.Target = p.step.ID, p.step.Kind, p.step.Target
	ctx = disconnected(ctx)
	return workflow.ExecuteLocalActivity(localOptions(ctx, localTimeout), protocol.ActivitySettle, record).Get(ctx, nil)
}

func localOptions(ctx workflow.Context, timeout time.Duration) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: timeout})
}

// waitFor lets the step wait in the workflow and records how that ended.
func (p *pending) waitFor(ctx workflow.Context) (json.RawMessage, error) {
	began := p.began
	if began.IsZero() {
		began = workflow.Now(ctx)
	}
	var result json.RawMessage
	var waitErr error
	p.x.rest(func() { result, waitErr = p.call.wait(ctx, began) })
	outcome := protocol.Outcome{Result: result}
	if waitErr != nil {
		described := failure.StepError(waitErr, p.step.Idempotency)
		outcome = protocol.Outcome{Error: &described}
	}
	if err := p.note(ctx, protocol.StepRecord{Outcome: &outcome}); err != nil {
		return nil, err
	}
	return result, waitErr
}

// execute runs the step's activity. The error is a cancellation; how the body
// itself ended is in the outcome.
func (p *pending) execute(ctx workflow.Context) (protocol.Outcome, error) {
	var result json.RawMessage
	activity := cmp.Or(p.call.activity, p.step.Target)
	if p.step.Kind == protocol.KindLLM {
		activity = protocol.ActivityGenerate
	}
	envelope := protocol.Call{Idempotency: p.step.Idempotency, Model: p.call.model, MCP: p.call.mcp}
	if p.step.Kind != protocol.KindLLM {
		envelope.Resources = p.x.resources.bound()
		p.x.resources.wake()
	}
	args := p.call.args
	if p.step.Kind == protocol.KindLLM && p.x.since(protocol.RevisionMessages) {
		messages := protocol.Messages(args)
		args, envelope.Base = p.x.conversation.shorten(args, messages)
		p.x.conversation.remember(p.step.ID, messages)
	}
	future := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, p.activityOptions()), activity, args, envelope)
	err := p.x.await(ctx, future, &result)
	if failure.IsCancelled(err) || errors.Is(err, errAbandoned) { // its body may have had its effect
		p.x.indeterminate[p.same] = true
	}
	switch {
	case errors.Is(err, errAbandoned):
		// Its body may yet end in any way; the handler has been told that it was cancelled.
		return protocol.Outcome{}, p.cancelled(ctx, err.Error())
	case err == nil:
		if p.step.Kind == protocol.KindLLM {
			p.x.tokens += protocol.Tokens(result)
		}
		return protocol.Outcome{Result: result}, nil
	case failure.IsCancelled(err):
		return protocol.Outcome{}, err
	default:
		described := failure.StepError(err, p.step.Idempotency)
		return protocol.Outcome{Error: &described}, nil
	}
}

// cancelled records that the step was cancelled before it ended, and returns what says so.
func (p *pending) cancelled(ctx workflow.Context, message string) error {
	outcome := protocol.Outcome{Error: &protocol.StepError{Message: message, Reason: protocol.ReasonCancelled}}
	if err := p.note(ctx, protocol.StepRecord{Outcome: &outcome}); err != nil {
		return err
	}
	return workflow.ErrCanceled
}

func (p *pending) activityOptions() workflow.ActivityOptions {
	declared := p.call.options
	attempts := maximumAttempts
	switch {
	case p.step.Idempotency == protocol.AtMostOnce:
		attempts = 1
	case declared.attempts > 0:
		attempts = declared.attempts
	}
	opts := workflow.ActivityOptions{
		ActivityID:          p.step.ID,
		StartToCloseTimeout: startToCloseTimeout,
		HeartbeatTimeout:    p.x.begin.HeartbeatTimeout,
		WaitForCancellation: true,
		RetryPolicy:         retryPolicy(attempts),
		Summary:             p.summary(),
	}
	if declared.startToClose > 0 {
		opts.StartToCloseTimeout = declared.startToClose
	}
	if declared.heartbeat > 0 {
		opts.HeartbeatTimeout = declared.heartbeat
	}
	if p.step.Kind != protocol.KindLLM {
		p.x.route(&opts)
	}
	return opts
}

// errAbandoned says that a cancelled activity did not end in time.
var errAbandoned = fmt.Errorf("cancelled, and not ended within %s", cancelGrace)

// await waits for an activity. Once ctx is cancelled it waits only a while longer: a body may
// ignore its context. The error is then errAbandoned.
func (x *execution) await(ctx workflow.Context, future workflow.Future, result any) error {
	ready := false
	selector := workflow.NewSelector(ctx).
		AddFuture(future, func(workflow.Future) { ready = true }).
		AddReceive(ctx.Done(), func(workflow.ReceiveChannel, bool) {})
	selector.Select(ctx)
	if !ready {
		patient, cancelTimer := workflow.WithCancel(disconnected(ctx))
		workflow.NewSelector(patient).
			AddFuture(future, func(workflow.Future) { ready = true }).
			AddFuture(workflow.NewTimer(patient, cancelGrace), func(workflow.Future) {}).
			Select(patient)
		cancelTimer()
	}
	if !ready {
		return errAbandoned
	}
	return future.Get(ctx, result)
}

func disconnected(ctx workflow.Context) workflow.Context {
	detached, _ := workflow.NewDisconnectedContext(ctx)
	return detached
}

// settle turns a decision and an outcome into what the handler gets. Recorded and live
// steps both end here, so that a fork's handler sees the same.
func (p *pending) settle(decision *protocol.Decision, outcome protocol.Outcome) (json.RawMessage, error) {
	if decision != nil && decision.Decision != protocol.Allow {
		return nil, policyError(p.step, *decision)
	}
	if outcome.Error != nil {
		if outcome.Error.Reason == protocol.ReasonIndeterminate {
			p.x.indeterminate[p.same] = true
		}
		return nil, stepError(p.step, *outcome.Error)
	}
	return outcome.Result, nil
}

// summary is the declared one, or else the first text among the arguments.
func (p *pending) summary() string {
	switch {
	case p.call.options.summary != "":
		return protocol.OneLine(p.call.options.summary)
	case p.step.Kind == protocol.KindLLM:
		return protocol.OneLine(p.step.Target)
	default:
		return protocol.OneLine(protocol.FirstText(p.call.args))
	}
}
