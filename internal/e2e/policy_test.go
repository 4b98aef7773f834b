package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/worker"
)

// withPolicy makes the worker decide by rules in YAML.
func withPolicy(t *testing.T, rules string) benchOption {
	t.Helper()
	bundle := compile(t, rules)
	return withOptions(func(o *worker.Options) { o.Policy = bundle })
}

func compile(t *testing.T, rules string) *policy.Bundle {
	t.Helper()
	bundle, err := policy.Compile(t.Context(), []policy.Source{{Name: "test.yaml", Data: []byte(rules)}}, policy.Options{})
	require.NoError(t, err)
	return bundle
}

// brought is a policy for a fork to bring.
func brought(t *testing.T, rules string) *tine.PolicyBundle {
	t.Helper()
	return &tine.PolicyBundle{
		Digest: compile(t, rules).Digest(),
		Files:  []policy.Source{{Name: "test.yaml", Data: []byte(rules)}},
	}
}

const askForAppends = `
default_action: allow
rules:
  - id: no-removal
    when: {target: remove_file}
    then: {decision: deny, reason: files stay}
  - id: ask
    when: {targets: ["append_*", "ledger"]}
    then:
      decision: require_approval
      reason: appends are final
      approval_config: {approvers: [alice, bob], timeout: 10m, message: look at it}
  - id: ask-all
    when: {target: tally}
    then:
      decision: require_approval
      approval_config: {timeout: 3s}
  - id: ask-local
    when: {step_kind: local, target: uuid}
    then: {decision: require_approval}
  - id: ask-sleep
    when: {step_kind: local, target: sleep}
    then: {decision: require_approval}
`

const limits = `
default_action: allow
rules:
  - id: few
    when: {target: tally}
    then: {decision: allow, rate_limit: {max_calls: 2, window: 1h}}
  - id: patient
    when: {target: ledger}
    then: {decision: allow, rate_limit: {max_calls: 1, window: 1s, max_wait: 5s}}
  - id: cap
    when: {step_kind: llm_call, target: m}
    then: {decision: allow, budget: {max_tokens: 8}}
  - id: soft
    when: {step_kind: llm_call, target: big}
    then: {decision: allow, budget: {max_tokens: 8, on_exceed: require_approval}, approval_config: {approvers: [cfo]}}
`

// restart makes the worker decide by other rules.
func (b *bench) restart(t *testing.T, rules string) {
	t.Helper()
	b.stop()
	b.opts.Policy = compile(t, rules)
	b.start(t)
}

// approvedRun has one approved step between others.
func (b *bench) approvedRun(t *testing.T) *tine.Log {
	t.Helper()
	e := b.create(t, open(1, nil), write("a", "A"), appendTo("a", "B"), tool("list_files", op{}))
	b.grant(t, b.waiting(t, e, 1)[0].ID, "alice")
	return b.end(t, e)
}

// retriedEffect kills the worker in the middle of an effect, which the agent asks for again.
func (b *bench) retriedEffect(t *testing.T) *tine.Log {
	t.Helper()
	p := b.process(t, b.spec())
	input, err := json.Marshal(script.LineArgs{File: b.file(), Line: "once"})
	require.NoError(t, err)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "slow_twice", Input: input})
	require.NoError(t, err)
	b.waitForLine(t)
	p.kill()
	b.process(t, b.spec())
	return b.end(t, e.ID)
}

func appendTo(path, content string) op {
	return tool("append_file", op{"path": path, "content": content})
}

// waiting waits until as many approvals of the execution are pending, and gives them.
func (b *bench) waiting(t *testing.T, id string, count int) []*tine.Approval {
	t.Helper()
	var pending []*tine.Approval
	require.Eventually(t, func() bool {
		e, err := b.Get(t.Context(), id)
		if err != nil {
			return false
		}
		pending = e.Approvals
		return len(pending) == count
	}, patience, 20*time.Millisecond)
	return pending
}

// listed gives the pending approvals of the execution as the list of all executions has them.
func (b *bench) listed(t *testing.T, id string) []*tine.Approval {
	t.Helper()
	all, err := b.Approvals(t.Context(), tine.ApprovalOptions{})
	require.NoError(t, err)
	return slices.DeleteFunc(all, func(a *tine.Approval) bool { return a.ExecutionID != id })
}

// eventuallyListed allows for the visibility store's lag.
func (b *bench) eventuallyListed(t *testing.T, id string, count int) []*tine.Approval {
	t.Helper()
	var listed []*tine.Approval
	require.Eventually(t, func() bool {
		listed = b.listed(t, id)
		return len(listed) == count
	}, patience, 50*time.Millisecond)
	return listed
}

func (b *bench) grant(t *testing.T, id, by string) *tine.Approval {
	t.Helper()
	a, err := b.Grant(t.Context(), id, tine.ApprovalDecision{By: by})
	require.NoError(t, err)
	require.Equal(t, tine.ApprovalGranted, a.Status)
	return a
}

func (b *bench) status(t *testing.T, id string) string {
	t.Helper()
	e, err := b.Get(t.Context(), id)
	require.NoError(t, err)
	return e.Status
}

// since gives the types of the events from seq on, those of one step only if it is named.
func since(log *tine.Log, seq int64) []string { return types(log)[seq-1:] }

func payload(t *testing.T, log *tine.Log, typ string) map[string]any {
	t.Helper()
	for _, e := range log.Events() {
		if e.Type == typ {
			var p map[string]any
			require.NoError(t, json.Unmarshal(e.Payload, &p))
			return p
		}
	}
	t.Fatalf("no event %s", typ)
	return nil
}

func TestDeny(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	log := b.run(t, open(1, nil), write("a", "A"), tool("remove_file", op{"path": "a"}), tool("list_files", op{}))
	denied := output(t, log).Results[2].Error
	require.Equal(t, "files stay", denied.Reason)
	require.Equal(t, "PolicyError", denied.Type)
	require.Equal(t, "no-removal", payload(t, log, "step.denied")["rule_id"])
	require.Equal(t, compile(t, askForAppends).Digest(), payload(t, log, "step.denied")["policy_digest"])
	require.Equal(t, "default", payload(t, log, "step.allowed")["rule_id"])
	require.Equal(t, map[string]string{"a": "A"}, b.files(t, log))

	// A fork has the denial as it was, also under a policy that would allow the step.
	fork := b.fork(t, tine.ForkRequest{
		ExecutionID: id(log), AtSeq: log.Steps()[1].SettledSeq, Policy: brought(t, "default_action: allow\nrules: []\n"),
	})
	require.Equal(t, "files stay", output(t, fork).Results[2].Error.Reason)
	require.True(t, fork.Steps()[1].Replayed)
	require.Equal(t, "default", fork.Steps()[2].RuleID)
	require.NotEqual(t, log.Steps()[2].PolicyDigest, fork.Steps()[2].PolicyDigest)
}

func TestApprovalGranted(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	e := b.create(t, open(1, nil), appendTo("a", "A"), write("b", "B"))
	pending := b.waiting(t, e, 1)[0]
	require.Equal(t, tine.StatusBlocked, b.status(t, e))
	listed := b.eventuallyListed(t, e, 1)[0]
	require.Equal(t, pending.ID, listed.ID)
	require.Equal(t, []string{"alice", "bob"}, listed.Approvers)
	require.Equal(t, "look at it", listed.Message)
	require.Equal(t, "append_file", listed.Target)
	require.JSONEq(t, `{"path":"a","content":"A"}`, string(listed.Args))
	require.Equal(t, pending.ArgsHash, listed.ArgsHash)
	require.WithinDuration(t, time.Now().Add(10*time.Minute), listed.ExpiresAt, time.Minute)

	found, err := b.List(t.Context(), tine.ListOptions{Status: tine.StatusBlocked})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(found, func(x *tine.Execution) bool { return x.ID == e }))

	granted := b.grant(t, pending.ID, "bob")
	require.Equal(t, "bob", granted.DecidedBy)
	log := b.end(t, e)
	require.Equal(t, map[string]string{"a": "A", "b": "B"}, b.files(t, log))
	require.Equal(t, []string{
		"step.proposed", "step.awaiting_approval", "approval.requested", "execution.blocked",
		"approval.granted", "step.allowed", "execution.resumed",
		"step.executing", "step.succeeded", "resource.checkpointed",
		"step.proposed", "step.allowed", "step.executing", "step.succeeded", "resource.checkpointed", "execution.completed",
	}, since(log, 6))
	require.Equal(t, "ask", payload(t, log, "step.awaiting_approval")["rule_id"])
	require.Equal(t, "bob", payload(t, log, "approval.granted")["decided_by"])
	require.Equal(t, "allow", log.Steps()[0].Decision)
	require.Empty(t, b.eventuallyListed(t, e, 0))
	require.Empty(t, log.Execution().Approvals)

	// A fork after the step has it without asking again; one before asks.
	after := b.fork(t, tine.ForkRequest{ExecutionID: e, AtSeq: log.Steps()[0].SettledSeq, Effects: tine.EffectsGuard})
	require.Equal(t, map[string]string{"a": "A", "b": "B"}, b.files(t, after))
	require.NotContains(t, types(after), "execution.blocked")
	before, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: e, AtSeq: log.Steps()[0].ProposedSeq + 2})
	require.NoError(t, err)
	again := b.waiting(t, before.ID, 1)[0]
	require.NotEqual(t, pending.ID, again.ID)
	b.grant(t, again.ID, "alice")
	require.Equal(t, map[string]string{"a": "A", "b": "B"}, b.files(t, b.end(t, before.ID)))
}

func TestApprovalDenied(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	e := b.create(t, open(1, nil), appendTo("a", "A"), appendTo("b", "B"), write("c", "C"))
	a, err := b.Deny(t.Context(), b.waiting(t, e, 1)[0].ID, tine.ApprovalDecision{By: "alice", Reason: "not today"})
	require.NoError(t, err)
	require.Equal(t, tine.ApprovalDenied, a.Status)
	require.Equal(t, "not today", a.Rationale)
	second := b.waiting(t, e, 1)[0]
	require.NotEqual(t, a.ID, second.ID)
	_, err = b.Deny(t.Context(), second.ID, tine.ApprovalDecision{By: "alice"})
	require.NoError(t, err)
	log := b.end(t, e)
	results := output(t, log).Results
	require.Equal(t, "not today", results[1].Error.Reason)
	require.Equal(t, "approval_denied", results[2].Error.Reason)
	require.Equal(t, map[string]string{"c": "C"}, b.files(t, log))
	require.Equal(t, []string{
		"step.proposed", "step.awaiting_approval", "approval.requested", "execution.blocked",
		"approval.denied", "step.denied", "execution.resumed",
	}, since(log, 6)[:7])
	require.Equal(t, "denied", log.Steps()[0].Status)
	require.Equal(t, "ask", log.Steps()[0].RuleID)

	got, err := b.Approval(t.Context(), a.ID)
	require.NoError(t, err)
	require.Equal(t, tine.ApprovalDenied, got.Status)
	require.Equal(t, "alice", got.DecidedBy)

	// The denial is copied into a fork.
	fork := b.fork(t, tine.ForkRequest{ExecutionID: e, AtSeq: log.Steps()[1].SettledSeq})
	require.Equal(t, "not today", output(t, fork).Results[1].Error.Reason)
}

func TestApprovalExpires(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	e := b.create(t, b.tally("a"), b.tally("b"))
	first := b.waiting(t, e, 1)[0]
	log := b.end(t, e)
	for _, result := range output(t, log).Results {
		require.Equal(t, "approval_timeout", result.Error.Reason)
	}
	require.Empty(t, b.lines(t))
	require.Equal(t, []string{
		"execution.created", "execution.started",
		"step.proposed", "step.awaiting_approval", "approval.requested", "execution.blocked",
		"approval.expired", "step.denied", "execution.resumed",
		"step.proposed", "step.awaiting_approval", "approval.requested", "execution.blocked",
		"approval.expired", "step.denied", "execution.resumed", "execution.completed",
	}, types(log))
	var decided *tine.ApprovalDecidedError
	_, err := b.Grant(t.Context(), first.ID, tine.ApprovalDecision{})
	require.ErrorAs(t, err, &decided)
}

// TestExpiryWithoutWorker lets an approval expire while no worker runs. It counts as expired
// once one does, also for somebody who decides at that moment.
func TestExpiryWithoutWorker(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	e := b.create(t, b.tally("a"))
	a := b.waiting(t, e, 1)[0]
	b.stop()
	time.Sleep(time.Until(a.ExpiresAt) + time.Second)
	require.Equal(t, []string{a.ID}, ids(b.eventuallyListed(t, e, 1)), "nobody has noticed yet")
	b.start(t)
	_, err := b.Grant(t.Context(), a.ID, tine.ApprovalDecision{})
	var decided *tine.ApprovalDecidedError
	require.ErrorAs(t, err, &decided)
	require.Equal(t, "approval_timeout", output(t, b.end(t, e)).Results[0].Error.Reason)
	require.Empty(t, b.lines(t))
}

func ids(approvals []*tine.Approval) []string {
	var all []string
	for _, a := range approvals {
		all = append(all, a.ID)
	}
	return all
}

// TestTwoWait has two steps wait at once while a third runs beside them.
func TestTwoWait(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	e := b.create(t, open(1, nil), parallel(appendTo("a", "A"), write("c", "C"), b.ledger("b"), step("uuid")))
	pending := b.waiting(t, e, 3)
	require.Eventually(t, func() bool {
		log, err := b.Log(t.Context(), e)
		return err == nil && slices.ContainsFunc(log.Steps(), func(s *tine.Step) bool {
			return s.Target == "write_file" && s.Status == "succeeded"
		})
	}, patience, 20*time.Millisecond, "a step beside them goes on")
	require.Equal(t, tine.StatusBlocked, b.status(t, e))
	byTarget := map[string]*tine.Approval{}
	for _, a := range pending {
		byTarget[a.Target] = a
	}
	b.grant(t, byTarget["ledger"].ID, "alice")
	b.waiting(t, e, 2)
	require.Equal(t, tine.StatusBlocked, b.status(t, e))
	require.Len(t, b.eventuallyListed(t, e, 2), 2)
	_, err := b.Deny(t.Context(), byTarget["append_file"].ID, tine.ApprovalDecision{By: "bob"})
	require.NoError(t, err)
	b.grant(t, byTarget["uuid"].ID, "")
	log := b.end(t, e)
	var results []map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(output(t, log).Results[1].OK, &results))
	require.Contains(t, string(results[0]["error"]), "approval_denied")
	require.Contains(t, results[1], "ok")
	require.Contains(t, results[2], "ok")
	require.Contains(t, results[3], "ok", "a local step runs after it was approved")
	require.Equal(t, []string{"b"}, b.lines(t))
	require.Equal(t, map[string]string{"c": "C"}, b.files(t, log))
	require.Equal(t, 1, strings.Count(strings.Join(types(log), " "), "execution.blocked"))
	require.Equal(t, 1, strings.Count(strings.Join(types(log), " "), "execution.resumed"))
}

func TestApprovalOfSleep(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	e := b.create(t, op{"op": "wait", "ms": 10})
	b.grant(t, b.waiting(t, e, 1)[0].ID, "")
	log := b.end(t, e)
	require.Nil(t, output(t, log).Results[0].Error)
	require.Equal(t, []string{
		"execution.created", "execution.started",
		"step.proposed", "step.awaiting_approval", "approval.requested", "execution.blocked",
		"approval.granted", "step.allowed", "execution.resumed", "step.executing", "step.succeeded", "execution.completed",
	}, types(log))
}

func TestWrongDeciders(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	e := b.create(t, open(1, nil), appendTo("a", "A"))
	a := b.waiting(t, e, 1)[0]
	before := b.historyLength(t, e)

	var notAllowed *tine.NotAllowedError
	_, err := b.Grant(t.Context(), a.ID, tine.ApprovalDecision{By: "mallory"})
	require.ErrorAs(t, err, &notAllowed)
	_, err = b.Deny(t.Context(), a.ID, tine.ApprovalDecision{By: "Alice"})
	require.ErrorAs(t, err, &notAllowed, "names are exact")
	var missing *tine.ApprovalNotFoundError
	_, err = b.Grant(t.Context(), e+"/0123456789ab", tine.ApprovalDecision{By: "alice"})
	require.ErrorAs(t, err, &missing)
	_, err = b.Grant(t.Context(), "nosuch/0123456789ab", tine.ApprovalDecision{By: "alice"})
	require.ErrorAs(t, err, &missing)
	for name, verdict := range map[string]protocol.ApprovalVerdict{
		"other arguments": {ApprovalID: a.ID, By: "alice", ArgsHash: "0"},
		"another policy":  {ApprovalID: a.ID, By: "alice", PolicyDigest: "0"},
		"another step":    {ApprovalID: a.ID, By: "alice", StepID: "0"},
	} {
		err := b.send(t, e, protocol.UpdateGrant, verdict)
		require.ErrorContains(t, err, "than was seen", name)
	}
	require.Equal(t, before, b.historyLength(t, e), "what is refused leaves no trace")
	require.Equal(t, tine.StatusBlocked, b.status(t, e))

	// Two at once: one wins.
	errs := make([]error, 8)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			decide := b.Grant
			if i%2 == 1 {
				decide = b.Deny
			}
			_, errs[i] = decide(t.Context(), a.ID, tine.ApprovalDecision{By: "alice"})
		})
	}
	group.Wait()
	won := 0
	for _, err := range errs {
		var decided *tine.ApprovalDecidedError
		if err == nil {
			won++
		} else {
			require.ErrorAs(t, err, &decided)
		}
	}
	require.Equal(t, 1, won)
	log := b.end(t, e)
	joined := strings.Join(types(log), " ")
	require.Equal(t, 1, strings.Count(joined, "approval.granted")+strings.Count(joined, "approval.denied"))
	var decided *tine.ApprovalDecidedError
	_, err = b.Grant(t.Context(), a.ID, tine.ApprovalDecision{By: "alice"})
	require.ErrorAs(t, err, &decided)
}

func (b *bench) historyLength(t *testing.T, id string) int64 {
	t.Helper()
	log, err := b.Log(t.Context(), id)
	require.NoError(t, err)
	return log.Execution().HistoryEvents
}

// TestKillWhileWaiting kills the worker while an approval waits.
func TestKillWhileWaiting(t *testing.T) {
	t.Parallel()
	b := setupIdle(t)
	spec := b.spec()
	spec.Policy = askForAppends
	p := b.process(t, spec)
	e := b.create(t, open(1, nil), write("b", "B"), b.ledger("once"))
	a := b.waiting(t, e, 1)[0]
	p.kill()
	require.Equal(t, []string{a.ID}, ids(b.eventuallyListed(t, e, 1)), "the list needs no worker")
	b.process(t, spec)
	b.grant(t, a.ID, "alice")
	log := b.end(t, e)
	require.Nil(t, output(t, log).Results[2].Error)
	require.Equal(t, []string{"once"}, b.lines(t))
}

func TestDecideWithoutWorker(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	e := b.create(t, b.ledger("a"))
	a := b.waiting(t, e, 1)[0]
	b.stop()
	_, err := b.Grant(t.Context(), a.ID, tine.ApprovalDecision{By: "alice"})
	var none *tine.NoWorkerError
	require.ErrorAs(t, err, &none)
	require.Len(t, b.waiting(t, e, 1), 1)
	b.start(t)
	// The server may still have the decision, and gives it to the worker that comes up.
	b.waiting(t, e, 1)
	time.Sleep(time.Second)
	require.Len(t, b.waiting(t, e, 1), 1, "what was said not to be decided is not")
	_, err = b.Deny(t.Context(), a.ID, tine.ApprovalDecision{By: "alice"})
	require.NoError(t, err)
	b.end(t, e)
	require.Empty(t, b.lines(t))
}

// TestManyWait: what one workflow task asks for must fit into its answer.
func TestManyWait(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1000)
	b := setup(t, withPolicy(t, `
default_action: allow
rules:
  - id: ask
    when: {target: tally}
    then: {decision: require_approval, reason: `+long+`, approval_config: {message: `+long+`}}
`))
	const count = 300
	ops := make([]op, count)
	for i := range ops {
		ops[i] = b.tally(fmt.Sprint(i))
	}
	e := b.create(t, parallel(ops...))
	pending := b.waiting(t, e, count)
	require.Len(t, b.eventuallyListed(t, e, count), count)
	b.grant(t, pending[count-1].ID, "")
	require.NoError(t, b.Cancel(t.Context(), e))
	log := b.end(t, e)
	require.Equal(t, tine.StatusCancelled, log.Execution().Status)
	require.Empty(t, b.eventuallyListed(t, e, 0))
}

// TestForkOfRefusals: a fork's handler gets the refusals that its source's got.
func TestForkOfRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, limits))
	log := b.run(t, b.tally("a"), b.tally("b"), b.tally("c"), b.tally("c"), step("uuid"))
	fork := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: int64(len(log.Events())) - 1})
	require.JSONEq(t, string(log.Execution().Output), string(fork.Execution().Output))
	require.Nil(t, fork.Execution().Divergence)
	require.Equal(t, "rate_limited", fork.Steps()[2].Status)
	again := b.fork(t, tine.ForkRequest{ExecutionID: id(fork), AtSeq: int64(len(fork.Events())) - 1})
	require.JSONEq(t, string(log.Execution().Output), string(again.Execution().Output))
	require.Equal(t, []string{"a", "b"}, b.lines(t))
}

// TestPoliciesOfForks has workers that allow forks no policy, or none that allows more.
func TestPoliciesOfForks(t *testing.T) {
	t.Parallel()
	const own = "default_action: allow"
	for _, test := range []struct {
		mode       worker.ForkPolicy
		rule, more string // that decide a tally, and a ledger
	}{
		{worker.ForkPolicyReplaces, "default", "default"},
		{worker.ForkPolicyBoth, "no-tally", "default"},
		{worker.ForkPolicyRefused, "bundle-error", "bundle-error"},
	} {
		t.Run("mode "+string(test.mode), func(t *testing.T) {
			t.Parallel()
			b := setup(t, withPolicy(t, `
default_action: allow
rules: [{id: no-tally, when: {target: tally}, then: {decision: deny}}]
`), withOptions(func(o *worker.Options) { o.ForkPolicy = test.mode }))
			log := b.run(t, b.tally("a"), b.ledger("b"))
			fork := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: 1, Policy: brought(t, own)})
			require.Equal(t, test.rule, fork.Steps()[0].RuleID)
			require.Equal(t, test.more, fork.Steps()[1].RuleID)
			require.NotEmpty(t, fork.Steps()[0].PolicyDigest)
		})
	}
}

// TestPolicyThatIsNoOtherOnes: a fork that names another policy's digest must not get that one.
func TestPolicyThatIsNoOtherOnes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	log := b.run(t, b.tally("a"))
	claimed := brought(t, "default_action: deny")
	forged := &tine.PolicyBundle{Digest: claimed.Digest, Files: brought(t, "default_action: allow").Files}
	fork := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: 1, Policy: forged})
	require.Equal(t, protocol.RuleBundleError, fork.Steps()[0].RuleID)
	fork = b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: 1, Policy: claimed})
	require.Equal(t, protocol.RuleDefault, fork.Steps()[0].RuleID)
	require.Equal(t, "denied", fork.Steps()[0].Status)
}

func TestCancelWhileWaiting(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, askForAppends))
	e := b.create(t, parallel(b.ledger("a"), b.ledger("b")), write("never", ""))
	pending := b.waiting(t, e, 2)
	require.NoError(t, b.Cancel(t.Context(), e))
	log := b.end(t, e)
	require.Equal(t, tine.StatusCancelled, log.Execution().Status)
	require.Equal(t, "execution_cancelled", payload(t, log, "approval.expired")["rationale"])
	require.Equal(t, 2, strings.Count(strings.Join(types(log), " "), "approval.expired"))
	for _, s := range log.Steps() {
		require.Equal(t, "denied", s.Status)
	}
	require.Empty(t, b.lines(t))
	require.Empty(t, b.eventuallyListed(t, e, 0))
	var decided *tine.ApprovalDecidedError
	_, err := b.Grant(t.Context(), pending[0].ID, tine.ApprovalDecision{By: "alice"})
	require.ErrorAs(t, err, &decided)
}

// TestGuard forks before an at_most_once effect of the source.
func TestGuard(t *testing.T) {
	t.Parallel()
	b := setup(t)
	log := b.run(t, b.tally("first"), b.ledger("effect"), step("uuid"))
	before := log.Steps()[0].SettledSeq
	source := id(log)

	e, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: source, AtSeq: before})
	require.NoError(t, err)
	a := b.waiting(t, e.ID, 1)[0]
	require.Equal(t, protocol.RuleForkEffect, a.RuleID)
	require.Equal(t, tine.StatusBlocked, b.status(t, e.ID))
	require.Equal(t, []string{"first", "effect"}, b.lines(t))
	b.grant(t, a.ID, "anybody")
	granted := b.end(t, e.ID)
	require.Equal(t, []string{"first", "effect", "effect"}, b.lines(t))
	require.Equal(t, protocol.RuleForkEffect, granted.Steps()[1].RuleID)

	// Its fork inherits the guard: the source of the source has had the effect all the same.
	second, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: e.ID, AtSeq: granted.Steps()[0].SettledSeq})
	require.NoError(t, err)
	_, err = b.Deny(t.Context(), b.waiting(t, second.ID, 1)[0].ID, tine.ApprovalDecision{})
	require.NoError(t, err)
	require.Equal(t, "approval_denied", output(t, b.end(t, second.ID)).Results[1].Error.Reason)

	free := b.fork(t, tine.ForkRequest{ExecutionID: source, AtSeq: before, Effects: protocol.EffectsPolicy})
	require.NotContains(t, types(free), "execution.blocked")
	require.Equal(t, []string{"first", "effect", "effect", "effect"}, b.lines(t))

	// After the effect there is nothing to guard, and it is not had again.
	after := b.fork(t, tine.ForkRequest{ExecutionID: source, AtSeq: log.Steps()[1].SettledSeq, Effects: tine.EffectsGuard})
	require.NotContains(t, types(after), "execution.blocked")
	require.Len(t, b.lines(t), 4)

	// A source that has not had the effect guards nothing.
	other := b.run(t, step("uuid"), b.tally("x"))
	input, err := json.Marshal(op{"ops": []op{step("uuid"), b.ledger("new")}})
	require.NoError(t, err)
	unguarded := b.fork(t, tine.ForkRequest{ExecutionID: id(other), AtSeq: other.Steps()[0].SettledSeq, Input: input, Effects: tine.EffectsGuard})
	require.NotContains(t, types(unguarded), "execution.blocked")
	require.Contains(t, b.lines(t), "new")
}

// TestGuardAndPolicy: a rule's own denial or approval stands, whatever the guard says.
func TestGuardAndPolicy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	log := b.run(t, step("uuid"), b.ledger("effect"))
	at := log.Steps()[0].SettledSeq
	denied := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: at, Policy: brought(t, `
default_action: allow
rules: [{id: never, when: {target: ledger}, then: {decision: deny}}]
`)})
	require.Equal(t, "never", denied.Steps()[1].RuleID)
	require.Equal(t, "policy_denied", output(t, denied).Results[1].Error.Reason)
	e, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: id(log), AtSeq: at, Policy: brought(t, askForAppends)})
	require.NoError(t, err)
	a := b.waiting(t, e.ID, 1)[0]
	require.Equal(t, "ask", a.RuleID)
	require.Equal(t, []string{"alice", "bob"}, a.Approvers)
	limited, err := b.Fork(t.Context(), tine.ForkRequest{ExecutionID: id(log), AtSeq: at, Policy: brought(t, `
default_action: allow
rules: [{id: some, when: {target: ledger}, then: {decision: allow, rate_limit: {max_calls: 5, window: 1m}}}]
`)})
	require.NoError(t, err)
	require.Equal(t, protocol.RuleForkEffect, b.waiting(t, limited.ID, 1)[0].RuleID, "the guard comes after limits")
	for _, open := range []string{e.ID, limited.ID} {
		require.NoError(t, b.Cancel(t.Context(), open))
		b.end(t, open)
	}
	require.Equal(t, []string{"effect"}, b.lines(t))
}

func TestForkPolicyIsInherited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	log := b.run(t, b.tally("1"), b.tally("2"), b.tally("3"))
	own := brought(t, `
default_action: allow
rules: [{id: no-tally, when: {target: tally}, then: {decision: deny}}]
`)
	first := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: log.Steps()[1].SettledSeq, Policy: own})
	require.Equal(t, "permissive", first.Steps()[1].RuleID)
	require.Equal(t, "no-tally", first.Steps()[2].RuleID)
	require.Equal(t, own.Digest, first.Steps()[2].PolicyDigest)
	second := b.fork(t, tine.ForkRequest{ExecutionID: id(first), AtSeq: first.Steps()[0].SettledSeq})
	require.Equal(t, "permissive", second.Steps()[0].RuleID)
	require.Equal(t, "no-tally", second.Steps()[1].RuleID)
	require.Equal(t, []string{"1", "2", "3"}, b.lines(t))
	got, err := b.Get(t.Context(), id(second))
	require.NoError(t, err)
	require.Equal(t, own.Digest, got.Policy.Digest)
	source, err := b.Get(t.Context(), id(log))
	require.NoError(t, err)
	require.True(t, source.Policy.Unrestricted)
}

func TestIndeterminateRetry(t *testing.T) {
	t.Parallel()
	b := setupIdle(t)
	log := b.retriedEffect(t)
	require.JSONEq(t, `["indeterminate","prior attempt outcome unknown; retry refused",""]`, string(log.Execution().Output))
	require.Equal(t, protocol.RuleIndeterminateRetry, log.Steps()[1].RuleID)
	require.Equal(t, "denied", log.Steps()[1].Status)
	require.Equal(t, []string{"once", "other"}, b.lines(t))

	// A fork knows it too.
	fork := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: log.Steps()[0].SettledSeq, Effects: protocol.EffectsPolicy})
	require.Equal(t, protocol.RuleIndeterminateRetry, fork.Steps()[1].RuleID)
	require.False(t, fork.Steps()[1].Replayed)
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, limits))
	log := b.run(t, b.tally("a"), b.tally("b"), b.tally("c"), b.tally("c"), b.ledger("d"), b.ledger("e"))
	results := output(t, log).Results
	require.Nil(t, results[1].Error)
	require.Equal(t, "rate_limit_exceeded", results[2].Error.Reason)
	require.Equal(t, "rate_limit_exceeded", results[3].Error.Reason)
	require.Nil(t, results[4].Error)
	require.Nil(t, results[5].Error)
	require.Equal(t, []string{"a", "b", "d", "e"}, b.lines(t))
	steps := log.Steps()
	require.Equal(t, "rate_limited", steps[2].Status)
	require.Len(t, steps, 5, "a refused call counts as not asked for, so the same one again is the same step")
	require.Equal(t, []string{"step.proposed", "step.rate_limited", "step.rate_limited", "step.proposed", "step.allowed"}, since(log, steps[2].ProposedSeq)[:5])
	parked := steps[4]
	require.Equal(t, "succeeded", parked.Status)
	require.Equal(t, []string{"step.proposed", "step.rate_limited", "step.allowed", "step.executing", "step.succeeded"}, since(log, parked.ProposedSeq)[:5])
	events := log.Events()
	require.GreaterOrEqual(t, events[parked.ExecutingSeq-1].OccurredAt.Sub(events[parked.ProposedSeq-1].OccurredAt), 700*time.Millisecond)
}

func TestSharedRateLimit(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"agent", "global"} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			rule := "few-" + t.Name() + time.Now().Format("150405.000") // limiters outlive a test
			b := setup(t, withPolicy(t, `
default_action: allow
rules:
  - id: "`+rule+`"
    when: {target: tally}
    then: {decision: allow, rate_limit: {max_calls: 3, window: 1h, per_what: `+scope+`}}
`))
			first := b.create(t, b.tally("a"), b.tally("b"))
			second := b.create(t, b.tally("c"), b.tally("d"))
			refused := 0
			for _, e := range []string{first, second} {
				for _, result := range output(t, b.end(t, e)).Results {
					if result.Error != nil {
						require.Equal(t, "rate_limit_exceeded", result.Error.Reason)
						refused++
					}
				}
			}
			require.Equal(t, 1, refused)
			require.Len(t, b.lines(t), 3)
		})
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	b := setup(t, withPolicy(t, limits))
	big := op{"op": "llm", "model": "big", "prompt": "more"}
	e := b.create(t, llm("one two three four"), llm("five"), big)
	a := b.waiting(t, e, 1)[0]
	require.Equal(t, "soft", a.RuleID)
	require.Equal(t, []string{"cfo"}, a.Approvers)
	require.Equal(t, "execution_token_budget_exceeded", a.Reason)
	b.grant(t, a.ID, "cfo")
	log := b.end(t, e)
	results := output(t, log).Results
	require.Nil(t, results[0].Error)
	require.Equal(t, "execution_token_budget_exceeded", results[1].Error.Reason)
	require.Equal(t, "cap", log.Steps()[1].RuleID)
	require.Nil(t, results[2].Error)

	// Copied steps count.
	input, err := json.Marshal(op{"ops": []op{llm("one two three four"), llm("other")}})
	require.NoError(t, err)
	fork := b.fork(t, tine.ForkRequest{ExecutionID: e, AtSeq: log.Steps()[0].SettledSeq, Input: input})
	require.Equal(t, "execution_token_budget_exceeded", output(t, fork).Results[1].Error.Reason)
}

// send sends an update past the client.
func (b *bench) send(t *testing.T, id, name string, verdict protocol.ApprovalVerdict) error {
	t.Helper()
	handle, err := b.temporal.UpdateWorkflow(t.Context(), client.UpdateWorkflowOptions{
		WorkflowID: id, UpdateName: name, Args: []any{verdict}, WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err != nil {
		return err
	}
	return handle.Get(t.Context(), nil)
}
