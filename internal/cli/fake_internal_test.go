package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"strings"
	"time"

	tine "github.com/tinerun/tine"
)

// fake is an executions of which a test gives the parts that it needs.
type fake struct {
	create  func(tine.CreateRequest) (*tine.Execution, error)
	fork    func(tine.ForkRequest) (*tine.Execution, error)
	get     func(ctx context.Context, id string) (*tine.Execution, error)
	list    func(tine.ListOptions) ([]*tine.Execution, error)
	log     func(id string) (executionLog, error)
	follow  func(ctx context.Context, id string, afterSeq int64) iter.Seq2[tine.Event, error]
	cancel  func(id string) error
	resolve func(prefix string) (string, error)

	sessions func(tine.SessionOptions) ([]*tine.Session, error)
	session  func(label string, opts tine.SessionOptions) (*tine.Session, error)

	approvals func(tine.ApprovalOptions) ([]*tine.Approval, error)
	approval  func(id string) (*tine.Approval, error)
	decide    func(status, id string, decision tine.ApprovalDecision) (*tine.Approval, error)
}

func (f *fake) Sessions(_ context.Context, opts tine.SessionOptions) ([]*tine.Session, error) {
	if f.sessions == nil {
		return nil, errUnexpected
	}
	return f.sessions(opts)
}

func (f *fake) Session(_ context.Context, label string, opts tine.SessionOptions) (*tine.Session, error) {
	if f.session == nil {
		return nil, errUnexpected
	}
	return f.session(label, opts)
}

func (f *fake) Approvals(_ context.Context, opts tine.ApprovalOptions) ([]*tine.Approval, error) {
	if f.approvals == nil {
		return nil, errUnexpected
	}
	return f.approvals(opts)
}

func (f *fake) Approval(_ context.Context, id string) (*tine.Approval, error) {
	if f.approval == nil {
		return nil, errUnexpected
	}
	return f.approval(id)
}

func (f *fake) Grant(_ context.Context, id string, decision tine.ApprovalDecision) (*tine.Approval, error) {
	if f.decide == nil {
		return nil, errUnexpected
	}
	return f.decide(tine.ApprovalGranted, id, decision)
}

func (f *fake) Deny(_ context.Context, id string, decision tine.ApprovalDecision) (*tine.Approval, error) {
	if f.decide == nil {
		return nil, errUnexpected
	}
	return f.decide(tine.ApprovalDenied, id, decision)
}

var errUnexpected = errors.New("the test did not expect this call")

func (f *fake) Create(_ context.Context, req tine.CreateRequest) (*tine.Execution, error) {
	if f.create == nil {
		return nil, errUnexpected
	}
	return f.create(req)
}

func (f *fake) Fork(_ context.Context, req tine.ForkRequest) (*tine.Execution, error) {
	if f.fork == nil {
		return nil, errUnexpected
	}
	return f.fork(req)
}

func (f *fake) Get(ctx context.Context, id string) (*tine.Execution, error) {
	if f.get == nil {
		return nil, errUnexpected
	}
	return f.get(ctx, id)
}

func (f *fake) List(_ context.Context, opts tine.ListOptions) ([]*tine.Execution, error) {
	if f.list == nil {
		return nil, errUnexpected
	}
	return f.list(opts)
}

func (f *fake) Log(_ context.Context, id string) (executionLog, error) {
	if f.log == nil {
		return nil, errUnexpected
	}
	return f.log(id)
}

func (f *fake) Follow(ctx context.Context, id string, afterSeq int64) iter.Seq2[tine.Event, error] {
	if f.follow == nil {
		return func(yield func(tine.Event, error) bool) { yield(tine.Event{}, errUnexpected) }
	}
	return f.follow(ctx, id, afterSeq)
}

func (f *fake) Cancel(_ context.Context, id string) error {
	if f.cancel == nil {
		return errUnexpected
	}
	return f.cancel(id)
}

// Resolve takes an id for what it is unless the test says otherwise.
func (f *fake) Resolve(_ context.Context, prefix string) (string, error) {
	if f.resolve == nil {
		return prefix, nil
	}
	return f.resolve(prefix)
}

// testNow is when all tests run.
var testNow = time.Date(2026, 5, 1, 14, 30, 0, 0, time.FixedZone("CEST", 2*60*60))

// harness runs commands against a fake, with a fixed clock and width.
type harness struct {
	f        *factory
	out, err bytes.Buffer
}

func newHarness(c executions, width int) *harness {
	h := &harness{}
	h.f = newFactory(strings.NewReader(""), &h.out, &h.err)
	h.f.now = func() time.Time { return testNow }
	h.f.screen = func() screen { return screen{width: width} }
	h.f.dial = func(context.Context) (executions, func(), error) {
		if c == nil {
			return nil, nil, errUnexpected
		}
		return c, func() {}, nil
	}
	h.f.build = func() (*debug.BuildInfo, bool) { return testBuild, true }
	return h
}

func (h *harness) run(ctx context.Context, args ...string) int {
	return execute(ctx, h.f, args)
}

var testBuild = &debug.BuildInfo{
	GoVersion: "go1.26.8",
	Main:      debug.Module{Path: "github.com/tinerun/tine", Version: "v0.1.0"},
	Deps: []*debug.Module{
		{Path: "go.temporal.io/api", Version: "v1.64.3"},
		{Path: "go.temporal.io/sdk", Version: "v1.50.0", Replace: &debug.Module{Path: "go.temporal.io/sdk", Version: "v1.51.0"}},
	},
	Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}, {Key: "vcs.modified", Value: "true"}},
}

// script writes an execution's log event by event, as an agent would have made it.
type script struct {
	execution *tine.Execution
	events    []tine.Event
	steps     []*tine.Step
	points    tine.ForkPoints
	at        time.Time
}

const (
	sourceID = "019dcdf2-3a40-7c11-9b2e-5a1f0c6d7e80"
	forkID   = "019dce01-7b5c-7f02-8d4a-b3c2d1e0f9a8"
	runID    = "0f8fad5b-d9cb-469f-a165-70867728950e"
)

func newScript(id string) *script {
	s := &script{
		at:     testNow.Add(-26 * time.Minute),
		points: tine.ForkPoints{Resources: map[string]int64{}, Checkpoints: []tine.Checkpoint{}},
	}
	s.execution = &tine.Execution{
		ID: id, RunID: runID, Runs: []string{runID}, AgentID: "coder", Status: tine.StatusPending,
		Input: json.RawMessage(`{"task":"make the tests pass"}`), CreatedAt: s.at, TaskQueue: "tine",
	}
	s.event("execution.created", map[string]any{"agent_id": "coder"})
	return s
}

func (s *script) Execution() *tine.Execution { return s.execution }

func (s *script) Events() []tine.Event { return s.events }

func (s *script) Steps() []*tine.Step { return s.steps }

func (s *script) ForkPoints() tine.ForkPoints {
	s.points.LatestSeq = s.latest()
	return s.points
}

func (s *script) latest() int64 { return int64(len(s.events)) }

func (s *script) event(typ string, payload any) int64 {
	raw, err := json.Marshal(payload)
	if err != nil {
		panic(err)
	}
	s.at = s.at.Add(12 * time.Millisecond)
	s.events = append(s.events, tine.Event{
		ExecutionID: s.execution.ID, Seq: s.latest() + 1, Type: typ, Payload: raw,
		OccurredAt: s.at.UTC(), RunID: runID, HistoryEventID: 3*s.latest() + 1,
	})
	s.execution.LatestSeq, s.execution.HistoryEvents = s.latest(), 3*s.latest()
	return s.latest()
}

func (s *script) start() {
	s.execution.Status = tine.StatusRunning
	s.event("execution.started", map[string]any{})
}

func (s *script) open(key string) {
	seq := s.event("resource.registered", map[string]any{"key": key, "driver": "directory", "every_steps": 1})
	s.points.Resources[key] = seq
	binding := fmt.Sprintf(`{"host":"worker-3","path":"/var/lib/tine/%s"}`, key)
	s.event("resource.bound", map[string]any{"key": key, "driver": "directory", "binding": json.RawMessage(binding)})
	s.execution.Resources = append(s.execution.Resources, &tine.Resource{
		Key: key, Driver: "directory", EverySteps: 1, OnCompletion: true, RegisteredSeq: seq,
		BoundSeq: seq + 1, Binding: json.RawMessage(binding), Covered: true,
	})
	s.checkpoint(key, "baseline")
}

func (s *script) checkpoint(key, cause string) {
	ref := fmt.Sprintf("sha256:%016x", 0x9e3779b97f4a7c15*uint64(s.latest()))
	s.points.Checkpoints = append(s.points.Checkpoints, tine.Checkpoint{Key: key, CheckpointRef: ref, CoveredSeq: s.latest()})
	s.event("resource.checkpointed", map[string]any{"key": key, "checkpoint_ref": ref, "covered_seq": s.latest(), "cause": cause})
}

// step proposes, allows and begins a step.
func (s *script) step(kind, target, args string) *tine.Step {
	step := &tine.Step{
		StepID: fmt.Sprintf("%032x", len(s.steps)+1), Kind: kind, Target: target, Args: json.RawMessage(args),
		Status: "executing", Idempotency: "safe_to_retry", Decision: "allow", RuleID: "permissive", Attempts: 1,
	}
	s.steps = append(s.steps, step)
	step.ProposedSeq = s.event("step.proposed", s.about(step, nil))
	s.event("step.allowed", s.about(step, map[string]any{"rule_id": "permissive"}))
	step.ExecutingSeq = s.event("step.executing", s.about(step, nil))
	for i := range s.points.Checkpoints {
		if c := &s.points.Checkpoints[i]; c.InvalidatedSeq == 0 {
			c.InvalidatedSeq = step.ExecutingSeq
		}
	}
	return step
}

func (s *script) about(step *tine.Step, more map[string]any) map[string]any {
	payload := map[string]any{"step_id": step.StepID, "step_type": step.Kind, "target": step.Target}
	for key, value := range more {
		payload[key] = value
	}
	return payload
}

func (s *script) succeed(step *tine.Step, result string, took time.Duration) {
	s.at = s.at.Add(took)
	step.Status, step.Result = "succeeded", json.RawMessage(result)
	step.SettledSeq = s.event("step.succeeded", s.about(step, nil))
}

func (s *script) fail(step *tine.Step, err tine.StepError, took time.Duration) {
	s.at = s.at.Add(took)
	step.Status, step.Error = "failed", &err
	step.SettledSeq = s.event("step.failed", s.about(step, map[string]any{"error": err}))
}

func (s *script) deny(kind, target, args, rule, reason string) {
	step := &tine.Step{
		StepID: fmt.Sprintf("%032x", len(s.steps)+1), Kind: kind, Target: target, Args: json.RawMessage(args),
		Status: "denied", Idempotency: "safe_to_retry", Decision: "deny", RuleID: rule, Reason: reason,
		Error: &tine.StepError{Message: reason, Reason: "policy_denied"},
	}
	s.steps = append(s.steps, step)
	step.ProposedSeq = s.event("step.proposed", s.about(step, nil))
	step.SettledSeq = s.event("step.denied", s.about(step, map[string]any{"rule_id": rule, "reason": reason}))
}

func (s *script) close(status, reason, output string) *script {
	s.event("execution."+status, map[string]any{"reason": reason})
	closed := s.at
	s.execution.Status, s.execution.FailureReason, s.execution.ClosedAt = status, reason, &closed
	if output != "" {
		s.execution.Output = json.RawMessage(output)
	}
	return s
}

// client is a fake that knows the script's execution only.
func (s *script) client() *fake {
	return &fake{
		get:    func(context.Context, string) (*tine.Execution, error) { return s.execution, nil },
		log:    func(string) (executionLog, error) { return s, nil },
		follow: s.follow,
	}
}

func (s *script) follow(_ context.Context, _ string, afterSeq int64) iter.Seq2[tine.Event, error] {
	return func(yield func(tine.Event, error) bool) {
		for _, e := range s.events[min(afterSeq, s.latest()):] {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// coder is an execution that works in a workspace and fails.
func coder() *script {
	s := newScript(sourceID)
	s.start()
	s.open("workspace")
	s.succeed(s.step("llm_call", "writer", `{"messages":[{"role":"user","content":"make the tests pass; think of <edge> cases & names"}]}`), `{}`, 2400*time.Millisecond)
	s.succeed(s.step("tool_call", "write_file", `{"content":"package main\n\nfunc main() {}\n","path":"main.go"}`), `{"bytes":30}`, 9*time.Millisecond)
	s.checkpoint("workspace", "step")
	s.deny("tool_call", "shell", `{"command":"rm -rf /"}`, "no-destruction", "destructive commands are never run")
	s.fail(s.step("tool_call", "shell", `{"command":"go test ./..."}`), tine.StepError{Message: "exit status 1\n--- FAIL: TestMain", Reason: "tool_error"}, 64*time.Second)
	s.checkpoint("workspace", "step")
	return s.close(tine.StatusFailed, "tests: they do not pass", "")
}

// long is an execution of 5,000 events with two resources.
func long() *script {
	s := newScript(sourceID)
	s.start()
	s.open("workspace")
	s.open("database")
	for i := 0; s.latest() < 4980; i++ {
		s.succeed(s.step("tool_call", "write_file", fmt.Sprintf(`{"path":"notes/%d.md"}`, i)), `{}`, time.Millisecond)
		if i < 300 || i > 500 {
			s.checkpoint("workspace", "step")
		}
		if i%7 == 0 {
			s.checkpoint("database", "step")
		}
	}
	for s.latest() < 4999 {
		s.succeed(s.step("local", "now", `null`), `{}`, time.Millisecond)
	}
	return s.close(tine.StatusCompleted, "", `{"files":1207}`)
}

// forked is a fork that has diverged and waits for a host.
func forked() *script {
	s := newScript(forkID)
	s.execution.ForkedFrom, s.execution.ForkSeq = sourceID, 13
	s.execution.Restoration = map[string]tine.Restoration{
		"workspace": {CheckpointRef: "sha256:08d12e6b76c84d11", CheckpointSeq: 13, Covered: true},
		"database":  {},
	}
	s.event("execution.forked", map[string]any{"forked_from": sourceID, "fork_seq": 13, "restoration": s.execution.Restoration})
	copied := s.step("tool_call", "write_file", `{"path":"日本語の長いファイル名.txt"}`)
	copied.Replayed = true
	s.succeed(copied, `{}`, time.Second)
	s.start()
	s.open("workspace")
	s.event("execution.diverged", map[string]any{
		"expected": map[string]any{"kind": "tool_call", "target": "read_file"},
		"got":      map[string]any{"kind": "tool_call", "target": "deploy_to_production"}, "unused": 2,
	})
	s.step("tool_call", "deploy_to_production", `{"region":"eu-central-1"}`).Attempts = 3

	e := s.execution
	e.Session, e.ParentExecutionID = "nightly", "order-42"
	e.Input = json.RawMessage(`{"task":"make the tests pass, and this time do not touch the fixtures","files":["main.go","main_test.go"]}`)
	e.Resources[0].Covered, e.Resources[0].Count = false, 2
	e.Divergence = &tine.Divergence{Unused: 2}
	e.Divergence.Expected.Kind, e.Divergence.Expected.Target = "tool_call", "read_file"
	began, retry := testNow.Add(-25*time.Minute), testNow.Add(4*time.Second)
	e.Pending = []tine.PendingActivity{{
		StepID: s.steps[1].StepID, Type: "deploy_to_production", State: "scheduled", Attempt: 3,
		LastFailure: "dial tcp 10.0.0.7:443: connection refused", ScheduledAt: &began, NextAttempt: &retry,
	}}
	e.Notes = []string{
		"deploy_to_production is at attempt 3; the last one ended with: dial tcp 10.0.0.7:443: connection refused",
		`resource "workspace" is on a host that no worker serves right now (task queue tine-host-7f); start a worker there`,
	}
	return s
}

// openPR is the approval that blocked waits for.
func openPR() *tine.Approval {
	return &tine.Approval{
		ID: sourceID + "/0123456789ab", ExecutionID: sourceID, AgentID: "coder",
		StepID: "0123456789abcdef0123456789abcdef", StepKind: "tool_call", Target: "open_pr",
		Args: json.RawMessage(`{"title":"Make the tests pass","body":"They did not, since <T> was not handled."}`), ArgsHash: "5f3a",
		PolicyDigest: "sha256:77aa", Status: tine.ApprovalPending, RuleID: "open-pr", Reason: "a pull request reaches other people",
		Message: "Please look at the diff first.", Approvers: []string{"ann", "bob"},
		RequestedAt: testNow.Add(-3 * time.Minute), ExpiresAt: testNow.Add(12 * time.Minute),
	}
}

// blocked is an execution that waits for approval.
func blocked() *script {
	s := newScript(sourceID)
	s.start()
	a := openPR()
	step := map[string]any{"step_id": a.StepID, "step_type": a.StepKind, "target": a.Target, "rule_id": a.RuleID, "reason": a.Reason}
	s.event("step.proposed", step)
	s.event("step.awaiting_approval", step)
	s.event("approval.requested", map[string]any{
		"approval_id": a.ID, "step_id": a.StepID, "target": a.Target, "approvers": a.Approvers, "message": a.Message,
		"expires_at": s.at.Add(15 * time.Minute),
	})
	s.event("execution.blocked", map[string]any{})
	s.event("step.rate_limited", map[string]any{"step_id": "f", "step_type": "tool_call", "target": "search", "rule_id": "few", "reason": "rate_limit_exceeded", "until": s.at.Add(20 * time.Second)})
	s.event("step.rate_limited", map[string]any{"step_id": "f", "step_type": "tool_call", "target": "search", "rule_id": "few", "reason": "rate_limit_exceeded"})
	s.execution.Status, s.execution.Approvals = tine.StatusBlocked, []*tine.Approval{a}
	s.execution.Policy = &tine.PolicyInfo{Digest: "sha256:77aa", Source: "worker"}
	return s
}

// asks is a client that has two approvals, and takes decisions.
func asks() *fake {
	other := openPR()
	other.ID, other.ExecutionID, other.AgentID, other.Target, other.Approvers = "order-42/fedcba987654", "order-42", "accountant", "pay", nil
	other.Args, other.ExpiresAt = json.RawMessage(`{"cents":1299}`), testNow.Add(-time.Second)
	return &fake{
		approvals: func(tine.ApprovalOptions) ([]*tine.Approval, error) { return []*tine.Approval{other, openPR()}, nil },
		approval:  func(string) (*tine.Approval, error) { return openPR(), nil },
		decide: func(status, _ string, decision tine.ApprovalDecision) (*tine.Approval, error) {
			a, at := openPR(), testNow
			a.Status, a.DecidedBy, a.Rationale, a.DecidedAt = status, decision.By, decision.Reason, &at
			return a, nil
		},
	}
}

// short is an execution of ten events that has completed.
func short() *script {
	s := newScript(sourceID)
	s.start()
	s.open("workspace")
	s.succeed(s.step("tool_call", "write_file", `{"path":"a.txt"}`), `{}`, 15*time.Millisecond)
	return s.close(tine.StatusCompleted, "", `{"files":["a.txt"],"summary":"wrote one file"}`)
}
