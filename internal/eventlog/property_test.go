package eventlog_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"pgregory.net/rapid"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// world plays a runtime that does anything it may do, in any order.
type world struct {
	*history
	t *rapid.T

	decided   []call         // allowed, not yet begun
	undecided []call         // limits have yet to be applied
	refused   []call         // by a limit
	waiting   []call         // for approval
	inline    []call         // executing in the workflow
	running   map[int64]call // executing, by scheduled event
	creating  map[int64]string
	known     []string // registered, so that steps may declare them
	bound     []string
	capturing map[int64]bool
	finished  []call // settled
	refs      int
}

var (
	keys   = []string{"a", "b", "c"}
	reuses = map[string]bool{"b": true, "c": true} // a driver does not change its mind
)

// grow adds up to n random actions to a history.
func grow(t *rapid.T, h *history, n int) {
	w := &world{
		history: h, t: t,
		running: map[int64]call{}, creating: map[int64]string{}, capturing: map[int64]bool{},
	}
	for _, r := range h.log().Resources {
		w.known = append(w.known, r.Key)
	}
	for range rapid.IntRange(0, n).Draw(t, "actions") {
		w.act()
	}
	if rapid.Bool().Draw(t, "closes") {
		w.end()
	}
}

func (w *world) act() {
	actions := map[string]func(){"propose": w.propose, "create": w.create, "local": w.localStep, "other": w.other}
	if len(w.decided) > 0 {
		actions["begin"] = w.beginOne
	}
	if len(w.undecided) > 0 {
		actions["limit"] = w.limitOne
	}
	if len(w.refused) > 0 {
		actions["again"] = w.again
	}
	if len(w.waiting) > 0 {
		actions["answer"] = w.answerOne
	}
	if len(w.inline) > 0 {
		actions["settle"] = w.settleOne
	}
	if len(w.running) > 0 {
		actions["end"] = w.endOne
	}
	if len(w.creating) > 0 {
		actions["created"] = w.createdOne
	}
	if len(w.bound) > 0 {
		actions["capture"] = w.capture
	}
	if len(w.capturing) > 0 {
		actions["captured"] = w.captured
	}
	actions[w.pick("action", sorted(actions))]()
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (w *world) pick(label string, from []string) string {
	return rapid.SampledFrom(from).Draw(w.t, label)
}

// take removes one of list.
func take(w *world, list *[]call) call {
	i := rapid.IntRange(0, len(*list)-1).Draw(w.t, "which")
	c := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return c
}

// takeID removes one of the ids in m.
func takeID[V any](w *world, m map[int64]V) (int64, V) {
	ids := make([]int64, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	id := rapid.SampledFrom(ids).Draw(w.t, "which")
	v := m[id]
	delete(m, id)
	return id, v
}

func (w *world) anyCall(kinds ...string) call {
	var resources []string
	for _, key := range w.known {
		if rapid.Bool().Draw(w.t, "affects "+key) {
			resources = append(resources, key)
		}
	}
	args := map[string]any{"n": rapid.IntRange(0, 2).Draw(w.t, "n"), "<": "é"}
	c := w.call(w.pick("kind", kinds), w.pick("target", []string{"x", "y"}), args, resources...)
	c.Idempotency = w.pick("idempotency", []string{"", protocol.AtMostOnce})
	return c
}

func (w *world) propose() {
	c := w.anyCall(protocol.KindTool, protocol.KindLLM, protocol.KindLocal)
	if rapid.IntRange(0, 3).Draw(w.t, "limited") == 0 {
		w.history.propose(c, allow)
		w.undecided = append(w.undecided, c)
		return
	}
	w.decideOne(c, protocol.ActivityDecide)
}

// decideOne takes the final decision on a step.
func (w *world) decideOne(c call, activityType string) {
	switch w.pick("decision", []string{"allow", "allow", "allow", "inline", "deny", "ask", "ask"}) {
	case "allow":
		w.marker(activityType, record(c, allow), nil)
		w.decided = append(w.decided, c)
	case "inline":
		w.marker(activityType, protocol.StepRecord{Step: c.kept(), Decision: &allow, Executing: true}, nil)
		w.inline = append(w.inline, c)
	case "deny":
		w.marker(activityType, record(c, deny), nil)
	case "ask":
		w.marker(activityType, record(c, approval), nil)
		w.waiting = append(w.waiting, c)
	}
}

func (w *world) limitOne() {
	c := take(w, &w.undecided)
	switch w.pick("limit", []string{"none", "none", "parked", "refused"}) {
	case "none":
		w.decideOne(c, protocol.ActivitySettle)
	case "parked":
		w.limit(c, &window.ExpiresAt)
		w.undecided = append(w.undecided, c)
	case "refused":
		w.limit(c, nil)
		w.refused = append(w.refused, c)
	}
}

func (w *world) again() {
	c := take(w, &w.refused)
	w.history.propose(c, approval)
	w.undecided = append(w.undecided, c)
}

func (w *world) answerOne() {
	c := take(w, &w.waiting)
	switch w.pick("answer", []string{"grant", "grant", "deny", "expire", "cancel", "not allowed"}) {
	case "grant":
		w.grant(c)
		w.decided = append(w.decided, c)
	case "deny":
		w.refuse(c)
	case "expire":
		w.expire(c, protocol.RationaleTimeout)
	case "cancel":
		w.expire(c, protocol.RationaleStepCancelled)
	case "not allowed":
		w.endUpdate(w.accept("u", w.request("u", protocol.UpdateGrant)), refusal(errors.New("not an approver")))
		w.waiting = append(w.waiting, c)
	}
}

func (w *world) localStep() {
	c := w.anyCall(protocol.KindLocal)
	w.runLocal(c, w.outcome())
	w.finished = append(w.finished, c)
}

func (w *world) outcome() protocol.Outcome {
	switch w.pick("outcome", []string{"ok", "ok", "failed", "cancelled"}) {
	case "failed":
		return protocol.Outcome{Error: &protocol.StepError{Message: "no", Reason: protocol.ReasonToolError}}
	case "cancelled":
		return protocol.Outcome{Error: &protocol.StepError{Message: "cancelled", Reason: protocol.ReasonCancelled}}
	default:
		return protocol.Outcome{Result: json.RawMessage(`{"usage":{"input_tokens":3,"output_tokens":4}}`)}
	}
}

func (w *world) beginOne() {
	c := take(w, &w.decided)
	w.running[w.execute(c)] = c
}

func (w *world) settleOne() {
	c := take(w, &w.inline)
	o := w.outcome()
	w.marker(protocol.ActivitySettle, protocol.StepRecord{Step: c.Step, Outcome: &o}, nil)
	w.finished = append(w.finished, c)
}

func (w *world) endOne() {
	id, c := takeID(w, w.running)
	switch w.pick("end", []string{"ok", "ok", "failed", "timed out", "cancelled"}) {
	case "ok":
		w.complete(id, map[string]string{"r": "<ok>"})
	case "failed":
		w.fail(id, errors.New("no"))
	case "timed out":
		w.timeOut(id, enumspb.TIMEOUT_TYPE_HEARTBEAT)
	case "cancelled":
		w.cancel(id)
	}
	w.finished = append(w.finished, c)
}

func (w *world) create() {
	key := w.pick("key", keys)
	w.creating[w.scheduleCreate(key)] = key
	if !slices.Contains(w.known, key) {
		w.known = append(w.known, key)
	}
}

func (w *world) createdOne() {
	id, key := takeID(w, w.creating)
	if rapid.IntRange(0, 4).Draw(w.t, "create fails") == 0 {
		w.fail(id, errors.New("no room"))
		return
	}
	w.created(id, key, reuses[key])
	w.bound = append(w.bound, key)
}

func (w *world) capture() {
	key := w.pick("key", w.bound)
	cause, stepID := protocol.CauseCompletion, ""
	if len(w.finished) > 0 && rapid.Bool().Draw(w.t, "of a step") {
		cause, stepID = protocol.CauseStep, w.finished[len(w.finished)-1].ID
	}
	w.capturing[w.scheduleCheckpoint(key, cause, stepID)] = true
}

func (w *world) captured() {
	id, _ := takeID(w, w.capturing)
	if rapid.IntRange(0, 4).Draw(w.t, "capture fails") == 0 {
		w.fail(id, errors.New("no room"))
		return
	}
	w.refs++
	w.complete(id, protocol.CheckpointTaken{Ref: fmt.Sprintf("c%d-%d", len(w.events), w.refs)})
}

func (w *world) other() {
	switch w.pick("other", []string{"task", "signal", "activity", "limiter", "update", "note"}) {
	case "task":
		w.workflowTask()
	case "signal":
		w.bare(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
	case "activity":
		w.complete(w.schedule("mail", "", 1), "sent")
	case "limiter":
		w.complete(w.schedule(protocol.ActivityLimit, "", protocol.LimitRequest{}), protocol.LimitGrant{})
	case "update":
		w.endUpdate(w.accept("u", w.request("u", "say", 1)), w.success("said"))
	case "note":
		w.marker(protocol.ActivityNote, protocol.Divergence{Unused: 1}, nil)
	}
}

func (w *world) end() {
	switch w.pick("close", []string{"completed", "failed", "terminated", "cancelled"}) {
	case "completed":
		w.completed("done")
	case "failed":
		w.failed(failureOf(errors.New("no")))
	case "terminated":
		w.terminated("bye")
	case "cancelled":
		w.bare(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED)
	}
}

// anyHistory is a random history: of an execution, or of a fork, or of its fork.
func anyHistory(t *rapid.T) *history {
	h := newHistory(t)
	grow(t, h, 40)
	for range rapid.IntRange(0, 2).Draw(t, "forks") {
		h = anyFork(t, h.log(), "cut")
		grow(t, h, 20)
	}
	return h
}

func anySeq(t *rapid.T, log *eventlog.Log, label string) int64 {
	return rapid.Int64Range(1, log.LatestSeq()).Draw(t, label)
}

func anyFork(t *rapid.T, source *eventlog.Log, label string) *history {
	return forkOf(t, source, anySeq(t, source, label), rapid.IntRange(0, 3000).Draw(t, "page size"))
}

func requireSame(t testingT, want, got any, what string) {
	t.Helper()
	if reflect.DeepEqual(want, got) {
		return // cmp is slow
	}
	if diff := cmp.Diff(want, got); diff != "" {
		require.FailNow(t, what+" (-want +got):\n"+diff)
	}
}

// asJSON is what a seed looks like on the wire.
func asJSON(t testingT, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

func TestPropertyDeterministic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := anyHistory(t)
		a, b := h.log(), h.log()
		requireSame(t, a.Events, b.Events, "events")
		requireSame(t, a.Steps, b.Steps, "steps")
		requireSame(t, a.Resources, b.Resources, "resources")
		requireSame(t, a.ForkPoints(), b.ForkPoints(), "fork points")
	})
}

func TestPropertyPrefixOfHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := anyHistory(t)
		whole := h.log()
		p := eventlog.NewProjector("exec", "run", eventlog.Decoder{})
		for _, ev := range h.events {
			before := p.Log().LatestSeq()
			require.NoError(t, p.Add(ev))
			after := p.Log().LatestSeq()
			requireSame(t, whole.Events[before:after], p.Log().Events[before:], "new events")
			requireCovered(t, p.Log())
			requireBlocked(t, p.Log())
		}
		requireSame(t, whole.Events, p.Log().Events, "events")
	})
}

// requireBlocked checks that an execution is blocked while steps wait, and that its events
// say so.
func requireBlocked(t testingT, log *eventlog.Log) {
	t.Helper()
	awaiting := []string{}
	for _, s := range log.Steps {
		if s.Status == eventlog.StepStatusAwaiting {
			awaiting = append(awaiting, s.ApprovalID)
		}
	}
	pending := []string{}
	for _, a := range log.PendingApprovals() {
		pending = append(pending, a.ID)
	}
	require.ElementsMatch(t, awaiting, pending)
	if !log.ClosedAt.IsZero() {
		require.Empty(t, pending)
		return
	}
	require.Equal(t, len(pending) > 0, log.Status == protocol.StatusBlocked)
	blocked := false
	for _, ev := range log.Events {
		switch ev.Type {
		case eventlog.ExecutionBlocked:
			require.False(t, blocked, "blocked at %d", ev.Seq)
			blocked = true
		case eventlog.ExecutionResumed:
			require.True(t, blocked, "resumed at %d", ev.Seq)
			blocked = false
		}
	}
	require.Equal(t, len(pending) > 0, blocked)
}

// requireCovered checks what is known of the latest event against the definition.
func requireCovered(t testingT, log *eventlog.Log) {
	t.Helper()
	for _, r := range log.Resources {
		require.Equal(t, log.CoveredResource(r.Key, log.LatestSeq()), r.Covered, "coverage of %s", r.Key)
	}
}

// TestPropertyCoverage checks intervals against their definition, event by event.
func TestPropertyCoverage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		grow(t, h, 60)
		log := h.log()
		for _, c := range log.Checkpoints {
			want := int64(0)
			for _, ev := range log.Events {
				if want == 0 && ev.Seq > c.CoveredSeq && ev.Type == eventlog.StepExecuting && ends(t, log, c.Key, ev) {
					want = ev.Seq
				}
			}
			require.Equal(t, want, c.InvalidatedSeq, "end of %+v", c)
		}
	})
}

func ends(t testingT, log *eventlog.Log, key string, executing eventlog.Event) bool {
	var p struct {
		Kind      string   `json:"step_type"`
		Resources []string `json:"resources"`
	}
	require.NoError(t, json.Unmarshal(executing.Payload, &p))
	return !log.Resource(key).CoverageReuse || p.Kind != protocol.KindLLM && slices.Contains(p.Resources, key)
}

func TestPropertyPages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		log := anyHistory(t).log()
		records := prefix(t, log, anySeq(t, log, "cut"))
		limit := rapid.IntRange(-1, 4000).Draw(t, "page size")
		paged := []protocol.PrefixRecord{}
		for offset, more := 0, true; more; {
			page := eventlog.Pages(records, offset, limit)
			if size := len(asJSON(t, page.Records)); len(page.Records) > 1 {
				require.LessOrEqual(t, size, limit)
			}
			paged = append(paged, page.Records...)
			offset, more = page.Next, page.Next != 0
		}
		require.Equal(t, len(records), len(paged))
		requireSame(t, asJSON(t, append([]protocol.PrefixRecord{}, records...)), asJSON(t, paged), "records")
	})
}

func TestPropertyFork(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		source := anyHistory(t).log()
		at := anySeq(t, source, "fork")
		plan, err := source.PlanFork(at)
		require.NoError(t, err)
		log := forkOf(t, source, at, rapid.IntRange(0, 3000).Draw(t, "fork page size")).log()

		require.Equal(t, protocol.StatusRunning, log.Status)
		require.Equal(t, eventlog.ExecutionStarted, log.Events[log.LatestSeq()-1].Type)
		requireSame(t, forkSteps(source, at), seqless(log.Steps), "steps of the fork")
		requireResources(t, source, at, plan, log)
		requireSame(t, source.Covered(at), log.Covered(log.LatestSeq()), "covered")
		require.Empty(t, log.Approvals)
		requireGuarded(t, source, at, plan)
		requireSame(t, plan.Effects, log.EffectsSince(log.LatestSeq()), "effects that a fork of the fork could repeat")
		for _, c := range log.Checkpoints {
			require.LessOrEqual(t, c.CoveredSeq, log.LatestSeq())
			if c.InvalidatedSeq != 0 {
				require.LessOrEqual(t, c.CoveredSeq, c.InvalidatedSeq)
			}
		}
	})
}

// requireGuarded checks that no effect of the source can be repeated unnoticed.
func requireGuarded(t testingT, source *eventlog.Log, at int64, plan eventlog.Plan) {
	t.Helper()
	copied := map[string]bool{}
	for _, s := range copiedSteps(source, at) {
		copied[s.StepID] = true
	}
	for _, s := range source.Steps {
		effect := protocol.Effect{Kind: s.Kind, Target: s.Target}
		if s.Idempotency == protocol.AtMostOnce && s.ExecutingSeq != 0 && !copied[s.StepID] {
			require.Contains(t, plan.Effects, effect)
		}
	}
}

// copiedSteps are the steps that a fork at a seq has.
func copiedSteps(source *eventlog.Log, at int64) []eventlog.Step {
	copied := slices.DeleteFunc(slices.Clone(source.Steps), func(s *eventlog.Step) bool {
		return s.SettledSeq == 0 || s.SettledSeq > at || s.Status == eventlog.StepStatusCancelled
	})
	return seqless(copied)
}

// forkSteps are the steps in the log of a fork at a seq: the copied ones, and those that a rate
// limit had refused, as it left them.
func forkSteps(source *eventlog.Log, at int64) []eventlog.Step {
	refusals := map[string]protocol.Limited{}
	for _, ev := range source.Events[:at] {
		if p := limitOf(ev); p.refusal {
			refusals[p.StepID] = p.Limited
		}
	}
	var steps []*eventlog.Step
	for _, s := range source.Steps {
		refusal, refused := refusals[s.StepID]
		switch {
		case s.SettledSeq != 0 && s.SettledSeq <= at && s.Status != eventlog.StepStatusCancelled:
			steps = append(steps, s)
		case refused:
			steps = append(steps, &eventlog.Step{
				StepID: s.StepID, Kind: s.Kind, Target: s.Target, Occurrence: s.Occurrence,
				Args: s.Args, ArgsHash: s.ArgsHash, Idempotency: s.Idempotency, Resources: s.Resources,
				Status: eventlog.StepStatusLimited,
				RuleID: refusal.RuleID, Reason: refusal.Reason, PolicyDigest: refusal.PolicyDigest,
			})
		}
	}
	return seqless(steps)
}

// seqless are steps as they are in any log: without their seqs.
func seqless(steps []*eventlog.Step) []eventlog.Step {
	out := []eventlog.Step{}
	for _, s := range steps {
		step := *s
		step.ProposedSeq, step.ExecutingSeq, step.SettledSeq = 0, 0, 0
		step.Replayed = true
		step.ApprovalID = "" // the approval is the source's
		// The wire writes some characters in another way.
		step.Args, step.Result = canonical(step.Args), canonical(step.Result)
		out = append(out, step)
	}
	return out
}

func canonical(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	out, err := protocol.CanonicalJSON(raw)
	if err != nil {
		return json.RawMessage(err.Error())
	}
	return out
}

func requireResources(t *rapid.T, source *eventlog.Log, at int64, plan eventlog.Plan, fork *eventlog.Log) {
	t.Helper()
	n := 0
	for _, r := range source.Resources {
		if r.RegisteredSeq > at {
			continue
		}
		got := fork.Resources[n]
		n++
		restoration := plan.Restoration[r.Key]
		require.Equal(t, r.Key, got.Key)
		require.Equal(t, r.CoverageReuse, got.CoverageReuse)
		require.Equal(t, restoration.CheckpointRef, got.CheckpointRef)
		require.Equal(t, restoration.Host, got.Host)
		require.Equal(t, restoration.Covered, got.Covered, "coverage of %s at its start", r.Key)
		require.Equal(t, affected(source, r.Key, at), got.Count)
		require.Zero(t, got.BoundSeq, "a fork never has its source's binding")
	}
	require.Len(t, fork.Resources, n)
	require.Len(t, plan.Restoration, n)
}

// affected counts the copied steps that have run and affect the resource.
func affected(source *eventlog.Log, key string, at int64) int {
	n := 0
	for _, s := range copiedSteps(source, at) {
		if s.Status != eventlog.StepStatusDenied && s.Kind != protocol.KindLLM && slices.Contains(s.Resources, key) {
			n++
		}
	}
	return n
}

// TestPropertyForkOfFork forks a source and a fork of it at the same event.
//
// That event is the fork point itself, or one before an event that both have:
// between such events lie uncopied ones, which a fork of the fork cannot tell apart.
func TestPropertyForkOfFork(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		source := anyHistory(t).log()
		at := anySeq(t, source, "fork")
		f := forkOf(t, source, at, 1<<20)
		grow(t, f, 20)
		fork := f.log()

		seqs := copiedSeqs(source, at)
		cuts := []int64{at}
		for _, seq := range seqs {
			if seq > 1 {
				cuts = append(cuts, seq-1)
			}
		}
		cut := rapid.SampledFrom(cuts).Draw(t, "cut")
		mapped := int64(2)
		for _, seq := range seqs {
			if seq <= cut {
				mapped++
			}
		}
		requireSame(t, asJSON(t, seed(t, source, cut)), asJSON(t, seed(t, fork, mapped)), "seed")

		a, err := source.PlanFork(cut)
		require.NoError(t, err)
		b, err := fork.PlanFork(mapped)
		require.NoError(t, err)
		require.Equal(t, len(a.Restoration), len(b.Restoration))
		for key, want := range a.Restoration {
			require.Equal(t, want.CheckpointRef, b.Restoration[key].CheckpointRef)
			require.Equal(t, want.Covered, b.Restoration[key].Covered)
		}
	})
}

// seed is a prefix without what a source only learns from its driver: it may have
// been cut before it was told, and has no checkpoints for which it would matter.
func seed(t testingT, log *eventlog.Log, atSeq int64) []protocol.PrefixRecord {
	t.Helper()
	records := prefix(t, log, atSeq)
	for _, r := range records {
		if r.Resource != nil {
			r.Resource.CoverageReuse = false
		}
	}
	return records
}

// copiedSeqs are the events of a source that a fork repeats.
func copiedSeqs(source *eventlog.Log, at int64) []int64 {
	copied := map[string]bool{}
	for _, s := range copiedSteps(source, at) {
		copied[s.StepID] = true
	}
	refused := map[string]bool{}
	for _, ev := range source.Events[:at] {
		if p := limitOf(ev); p.refusal {
			refused[p.StepID] = true
		}
	}
	var seqs []int64
	for _, ev := range source.Events[:at] {
		p := limitOf(ev)
		switch {
		case copied[p.StepID] && strings.HasPrefix(ev.Type, "step.") && ev.Type != eventlog.StepRateLimited,
			p.refusal, refused[p.StepID] && ev.Type == eventlog.StepProposed,
			ev.Type == eventlog.ResourceRegistered, ev.Type == eventlog.ResourceInitialized:
			seqs = append(seqs, ev.Seq)
		}
	}
	return seqs
}

// limitedEvent is the step of an event, and what a rate limit did to it.
type limitedEvent struct {
	StepID string `json:"step_id"`
	protocol.Limited
	refusal bool
}

func limitOf(ev eventlog.Event) limitedEvent {
	var p limitedEvent
	_ = json.Unmarshal(ev.Payload, &p) // other events have no step
	p.refusal = ev.Type == eventlog.StepRateLimited && p.Until == nil
	return p
}
