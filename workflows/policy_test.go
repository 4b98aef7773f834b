package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

// Calls asks for the same tool with each of the texts, and gives what became of them.
func Calls(ctx workflow.Context, texts []string) ([]string, error) {
	outcomes := []string{}
	for _, text := range texts {
		_, err := Search.Call(ctx, Query{Text: text})
		switch {
		case temporal.IsCanceledError(err):
			return outcomes, err
		case err != nil:
			outcomes = append(outcomes, workflows.Reason(err))
		default:
			outcomes = append(outcomes, "ok")
		}
	}
	return outcomes, nil
}

// Rules is an engine that decides by a function.
type Rules func(policy.Input) (policy.Decision, error)

func (r Rules) Decide(_ context.Context, in policy.Input) (policy.Decision, error) { return r(in) }

func deciding(d policy.Decision) Rules {
	d.RuleID = "rule"
	return func(policy.Input) (policy.Decision, error) { return d, nil }
}

type environment struct {
	*testsuite.TestWorkflowEnvironment
	begin time.Time
}

func newEnvironment(t *testing.T, engine policy.Engine) *environment {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(sdkworker.Options{DeadlockDetectionTimeout: time.Minute}) // the machine may be busy
	require.NoError(t, worker.Register(env, worker.Options{Policy: engine},
		worker.Agent("calls", Calls), worker.Agent("parallel", Parallel), worker.Agent("twice", Twice), worker.Agent("clock", Clock),
		worker.Tool(Search, search), worker.Tool(Send, send)))
	return &environment{env, env.Now()}
}

func (e *environment) calls(t *testing.T, texts ...string) (outcomes []string, took time.Duration) {
	t.Helper()
	input, err := json.Marshal(texts)
	require.NoError(t, err)
	e.ExecuteWorkflow("calls", json.RawMessage(input), nil)
	require.NoError(t, e.GetWorkflowError())
	require.NoError(t, e.GetWorkflowResult(&outcomes))
	return outcomes, e.Now().Sub(e.begin)
}

func TestApprovalExpiresByDefault(t *testing.T) {
	env := newEnvironment(t, deciding(policy.Decision{Decision: policy.RequireApproval}))
	outcomes, took := env.calls(t, "a")
	require.Equal(t, []string{protocol.ReasonApprovalTimeout}, outcomes)
	require.InDelta(t, protocol.DefaultApprovalTimeout, took, float64(time.Second))
}

// approvalOf is the id of the approval of a search for text.
func approvalOf(t *testing.T, text string) string {
	t.Helper()
	hash, err := protocol.ArgsHash(json.RawMessage(`{"text":"` + text + `"}`))
	require.NoError(t, err)
	return protocol.ApprovalID("default-test-workflow-id", protocol.StepID(protocol.KindTool, Search.Name(), hash, 0))
}

func TestApprovalUpdates(t *testing.T) {
	env := newEnvironment(t, deciding(policy.Decision{Decision: policy.RequireApproval, Approval: &policy.ApprovalConfig{
		Approvers: []string{"ann"}, Timeout: policy.Duration(time.Hour),
	}}))
	var results []string
	update := func(after time.Duration, name string, verdict protocol.ApprovalVerdict) {
		note := func(err error) {
			var app *temporal.ApplicationError
			if errors.As(err, &app) {
				results = append(results, app.Type())
			} else {
				require.NoError(t, err)
				results = append(results, "done")
			}
		}
		env.RegisterDelayedCallback(func() {
			env.UpdateWorkflow(name, "", &testsuite.TestUpdateCallback{
				OnReject: note, OnAccept: func() {}, OnComplete: func(_ any, err error) { note(err) },
			}, verdict)
		}, after)
	}
	a, b := approvalOf(t, "a"), approvalOf(t, "b")
	update(time.Minute, protocol.UpdateGrant, protocol.ApprovalVerdict{ApprovalID: a, By: "bob"})
	update(2*time.Minute, protocol.UpdateGrant, protocol.ApprovalVerdict{ApprovalID: a})
	update(3*time.Minute, protocol.UpdateGrant, protocol.ApprovalVerdict{ApprovalID: "x", By: "ann"})
	update(4*time.Minute, protocol.UpdateDeny, protocol.ApprovalVerdict{ApprovalID: a, By: "ann", ArgsHash: "x"})
	late := env.begin.Add(4 * time.Minute)
	update(5*time.Minute-time.Second, protocol.UpdateGrant, protocol.ApprovalVerdict{ApprovalID: a, By: "ann", ValidUntil: &late})
	update(5*time.Minute, protocol.UpdateGrant, protocol.ApprovalVerdict{ApprovalID: a, By: "ann"})
	update(6*time.Minute, protocol.UpdateGrant, protocol.ApprovalVerdict{ApprovalID: a, By: "ann"})
	update(7*time.Minute, protocol.UpdateDeny, protocol.ApprovalVerdict{ApprovalID: b, By: "ann", Reason: "no"})
	outcomes, took := env.calls(t, "a", "b", "c")
	require.Equal(t, []string{"ok", "no", protocol.ReasonApprovalTimeout}, outcomes)
	require.Equal(t, []string{
		"tine.ApproverNotAllowed", "tine.ApproverNotAllowed", "tine.ApprovalNotFound", "tine.ApprovalChanged",
		"tine.VerdictVoid", "done", "tine.ApprovalDecided", "done",
	}, results)
	require.InDelta(t, 67*time.Minute, took, float64(time.Second))
}

func TestRateLimitRefuses(t *testing.T) {
	env := newEnvironment(t, deciding(policy.Decision{Decision: policy.Allow, RateLimit: &policy.RateLimit{
		MaxCalls: 2, Window: policy.Duration(time.Hour),
	}}))
	outcomes, took := env.calls(t, "a", "a", "a", "b", "a")
	limited := protocol.ReasonRateLimited
	require.Equal(t, []string{"ok", "ok", limited, limited, limited}, outcomes)
	require.Less(t, took, time.Minute)
}

func TestRateLimitParks(t *testing.T) {
	env := newEnvironment(t, deciding(policy.Decision{Decision: policy.Allow, RateLimit: &policy.RateLimit{
		MaxCalls: 1, Window: policy.Duration(time.Hour), MaxWait: policy.Duration(90 * time.Minute),
	}}))
	outcomes, took := env.calls(t, "a", "a", "b")
	require.Equal(t, []string{"ok", "ok", "ok"}, outcomes)
	require.InDelta(t, 2*time.Hour, took, float64(time.Minute))
}

// TestRateLimitOfDenials: the limit comes before the decision, whatever that is.
func TestRateLimitOfDenials(t *testing.T) {
	env := newEnvironment(t, deciding(policy.Decision{Decision: policy.Deny, Reason: "no", RateLimit: &policy.RateLimit{
		MaxCalls: 1, Window: policy.Duration(time.Hour),
	}}))
	outcomes, _ := env.calls(t, "a", "b")
	require.Equal(t, []string{"no", protocol.ReasonRateLimited}, outcomes)
}

func TestNoLimit(t *testing.T) {
	for _, limit := range []policy.RateLimit{{}, {MaxCalls: 1}, {Window: policy.Duration(time.Hour)}} {
		env := newEnvironment(t, deciding(policy.Decision{Decision: policy.Allow, RateLimit: &limit}))
		outcomes, _ := env.calls(t, "a", "b")
		require.Equal(t, []string{"ok", "ok"}, outcomes)
	}
}

func TestSharedLimiter(t *testing.T) {
	for name, test := range map[string]struct {
		onError string
		grant   protocol.LimitGrant
		err     error
		want    []string
		waits   time.Duration
	}{
		"granted":                 {want: []string{"ok"}},
		"granted later":           {grant: protocol.LimitGrant{Wait: protocol.Duration(time.Hour)}, want: []string{"ok"}, waits: time.Hour},
		"refused":                 {grant: protocol.LimitGrant{Refused: true}, want: []string{protocol.ReasonRateLimited}},
		"down, and that is fine":  {err: errors.New("down"), want: []string{"ok"}},
		"down, and that is a bar": {err: errors.New("down"), onError: policy.Deny, want: []string{protocol.ReasonLimiterUnavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			env := newEnvironment(t, deciding(policy.Decision{Decision: policy.Allow, RateLimit: &policy.RateLimit{
				MaxCalls: 1, Window: policy.Duration(time.Hour), PerWhat: protocol.PerGlobal, OnLimiterError: test.onError,
			}}))
			env.OnActivity(protocol.ActivityLimit, mock.Anything, mock.Anything).Return(test.grant, test.err)
			outcomes, took := env.calls(t, "a")
			require.Equal(t, test.want, outcomes)
			require.InDelta(t, test.waits, took, float64(2*time.Minute))
		})
	}
}

// TestBrokenPolicies denies whatever goes wrong.
func TestBrokenPolicies(t *testing.T) {
	for name, engine := range map[string]Rules{
		"error":   func(policy.Input) (policy.Decision, error) { return policy.Decision{}, errors.New("broken") },
		"panic":   func(policy.Input) (policy.Decision, error) { panic("broken") },
		"nothing": func(policy.Input) (policy.Decision, error) { return policy.Decision{}, nil },
		"unknown": func(policy.Input) (policy.Decision, error) { return policy.Decision{Decision: "maybe"}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			env := newEnvironment(t, engine)
			outcomes, _ := env.calls(t, "a")
			require.NotEqual(t, []string{"ok"}, outcomes)
			require.NotEmpty(t, outcomes[0])
		})
	}
}

// take asks the limiter in the environment for a token after a while, and gives the answer to
// what the function returns.
func take(env *testsuite.TestWorkflowEnvironment, after time.Duration, limit protocol.RateLimit) func() protocol.LimitGrant {
	var grant protocol.LimitGrant
	env.RegisterDelayedCallback(func() {
		env.UpdateWorkflow(protocol.UpdateTake, "", &testsuite.TestUpdateCallback{
			OnReject: func(error) {}, OnAccept: func() {},
			OnComplete: func(result any, _ error) { grant, _ = result.(protocol.LimitGrant) },
		}, protocol.LimitRequest{Limit: limit})
	}, after)
	return func() protocol.LimitGrant { return grant }
}

func TestLimiter(t *testing.T) {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterWorkflow(workflows.Limiter)
	begin := env.Now()
	limit := protocol.RateLimit{MaxCalls: 1, Window: protocol.Duration(time.Hour)}
	patient := limit
	patient.MaxWait = protocol.Duration(time.Hour)
	first := take(env, time.Second, limit)
	second := take(env, time.Second, limit)
	third := take(env, 30*time.Minute+time.Second, patient)
	env.ExecuteWorkflow(workflows.Limiter, time.Time{})
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, protocol.LimitGrant{}, first())
	require.True(t, second().Refused)
	require.Equal(t, protocol.LimitGrant{Wait: protocol.Duration(30 * time.Minute)}, third())
	require.GreaterOrEqual(t, env.Now().Sub(begin), 2*time.Hour, "it lives until its bucket is full")
	require.Less(t, env.Now().Sub(begin), 3*time.Hour)
}

// Parallel asks for the same tool with all of the texts at once.
func Parallel(ctx workflow.Context, texts []string) ([]string, error) {
	var futures []workflows.Future[[]string]
	for _, text := range texts {
		futures = append(futures, Search.Start(ctx, Query{Text: text}))
	}
	outcomes := []string{}
	for _, future := range futures {
		_, err := future.Get(ctx)
		outcomes = append(outcomes, workflows.Reason(err))
	}
	return outcomes, nil
}

// TestManyApprovals: what one workflow task lists goes to the server in one message.
func TestManyApprovals(t *testing.T) {
	long := strings.Repeat("x", protocol.MaxReason)
	env := newEnvironment(t, deciding(policy.Decision{
		Decision: policy.RequireApproval, Reason: long, Approval: &policy.ApprovalConfig{Message: long},
	}))
	upserts, bytes, last := 0, 0, protocol.PendingApprovals{}
	env.OnUpsertMemo(mock.Anything).Run(func(args mock.Arguments) {
		last = args.Get(0).(map[string]any)[protocol.MemoApprovals].(protocol.PendingApprovals)
		raw, err := json.Marshal(last)
		require.NoError(t, err)
		upserts++
		bytes += len(raw)
	}).Return(nil)
	texts := make([]string, 100)
	for i := range texts {
		texts[i] = strings.Repeat("y", i)
	}
	input, err := json.Marshal(texts)
	require.NoError(t, err)
	env.ExecuteWorkflow("parallel", json.RawMessage(input), nil)
	require.NoError(t, env.GetWorkflowError())
	var outcomes []string
	require.NoError(t, env.GetWorkflowResult(&outcomes))
	require.Equal(t, slices.Repeat([]string{protocol.ReasonApprovalTimeout}, len(texts)), outcomes)
	require.Less(t, upserts, 20)
	require.Less(t, bytes, 200<<10)
	require.Empty(t, last.Approvals)
	require.Zero(t, last.More)
}

// TestApprovalByTheServersClock has a worker whose clock is days behind.
func TestApprovalByTheServersClock(t *testing.T) {
	env := newEnvironment(t, deciding(policy.Decision{Decision: policy.RequireApproval}))
	env.SetStartTime(time.Now().Add(48 * time.Hour))
	id := approvalOf(t, "a")
	env.RegisterDelayedCallback(func() {
		env.UpdateWorkflow(protocol.UpdateGrant, "", &testsuite.TestUpdateCallback{
			OnReject: func(err error) { require.NoError(t, err) }, OnAccept: func() {}, OnComplete: func(any, error) {},
		}, protocol.ApprovalVerdict{ApprovalID: id})
	}, time.Minute)
	outcomes, _ := env.calls(t, "a")
	require.Equal(t, []string{"ok"}, outcomes)
}

// TestTwoLimits: what both halves of a policy limit is limited by both.
func TestTwoLimits(t *testing.T) {
	limit := func(rule string, calls int64, window time.Duration) policy.Decision {
		return policy.Decision{Decision: policy.Allow, RuleID: rule, RateLimit: &policy.RateLimit{
			MaxCalls: calls, Window: policy.Duration(window),
		}}
	}
	env := newEnvironment(t, deciding(protocol.Both(limit("often", 100, time.Minute), limit("seldom", 2, time.Hour))))
	outcomes, _ := env.calls(t, "a", "b", "c")
	require.Equal(t, []string{"ok", "ok", protocol.ReasonRateLimited}, outcomes)

	// Rules of one name in two policies have a bucket each.
	env = newEnvironment(t, deciding(protocol.Both(limit("same", 1, time.Hour), limit("same", 1, time.Hour))))
	outcomes, _ = env.calls(t, "a", "b")
	require.Equal(t, []string{"ok", protocol.ReasonRateLimited}, outcomes)

	env = newEnvironment(t, deciding(protocol.Both(limit("few", 1, time.Hour),
		policy.Decision{Decision: policy.Deny, RuleID: "no", Reason: "no"})))
	outcomes, _ = env.calls(t, "a", "b")
	require.Equal(t, []string{"no", "no"}, outcomes)
}

// TestLimiterThatCannotWork is no outage, which would allow the step.
func TestLimiterThatCannotWork(t *testing.T) {
	env := newEnvironment(t, deciding(policy.Decision{Decision: policy.Allow, RateLimit: &policy.RateLimit{
		MaxCalls: 1, Window: policy.Duration(time.Hour), PerWhat: protocol.PerGlobal,
	}}))
	env.OnActivity(protocol.ActivityLimit, mock.Anything, mock.Anything).
		Return(protocol.LimitGrant{}, temporal.NewNonRetryableApplicationError("no such name", "tine.Limiter", nil))
	outcomes, _ := env.calls(t, "a")
	require.Equal(t, []string{protocol.ReasonLimiterUnavailable}, outcomes)
}

// TestTextsOfPolicies: a policy may quote the arguments of a step.
func TestTextsOfPolicies(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	env := newEnvironment(t, deciding(policy.Decision{Decision: policy.Deny, Reason: long}))
	outcomes, _ := env.calls(t, "a")
	require.LessOrEqual(t, len(outcomes[0]), protocol.MaxReason+len("…"))
	require.True(t, utf8.ValidString(outcomes[0]))

	for name, d := range map[string]policy.Decision{
		"rule id":        {Decision: policy.Allow, RuleID: long},
		"decision":       {Decision: long},
		"approver":       {Decision: policy.RequireApproval, Approval: &policy.ApprovalConfig{Approvers: []string{long}}},
		"many approvers": {Decision: policy.RequireApproval, Approval: &policy.ApprovalConfig{Approvers: make([]string, 1000)}},
		"a part's":       {Decision: policy.Allow, Parts: []policy.Decision{{Decision: policy.Allow, RuleID: long}}},
	} {
		env := newEnvironment(t, Rules(func(policy.Input) (policy.Decision, error) { return d, nil }))
		outcomes, _ := env.calls(t, "a")
		require.NotEqual(t, "ok", outcomes[0], name)
		require.LessOrEqual(t, len(outcomes[0]), protocol.MaxReason+len("…"), name)
	}
}

// TestEngineThatHangs does not heed its context.
func TestEngineThatHangs(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	env := newEnvironment(t, Rules(func(policy.Input) (policy.Decision, error) {
		<-release
		return policy.Decision{Decision: policy.Allow}, nil
	}))
	env.SetTestTimeout(10 * time.Second)
	outcomes, _ := env.calls(t, "a")
	require.Equal(t, []string{"no decision within 2s"}, outcomes)
}

// Twice asks for the same at_most_once tool again once it was cancelled.
func Twice(ctx workflow.Context, _ None) ([]string, error) {
	outcomes := []string{}
	for range 2 {
		_, err := Send.Call(ctx, Line{Text: "a"})
		if temporal.IsCanceledError(err) {
			outcomes = append(outcomes, "cancelled")
			continue
		}
		outcomes = append(outcomes, workflows.Reason(err))
	}
	return outcomes, nil
}

func TestCancelledEffectIsNotRepeated(t *testing.T) {
	env := newEnvironment(t, nil)
	env.OnActivity(Send.Name(), mock.Anything, mock.Anything, mock.Anything).Return(nil, temporal.NewCanceledError()).Once()
	env.ExecuteWorkflow("twice", json.RawMessage(`{}`), nil)
	require.NoError(t, env.GetWorkflowError())
	var outcomes []string
	require.NoError(t, env.GetWorkflowResult(&outcomes))
	require.Equal(t, []string{"cancelled", protocol.ReasonIndeterminateRetry}, outcomes)
}

// TestEngineThatOverrules has asked a policy with limits, and decides otherwise.
func TestEngineThatOverrules(t *testing.T) {
	for _, decision := range []string{policy.Deny, policy.RequireApproval} {
		limited := policy.Decision{Decision: policy.Allow, RuleID: "l", RateLimit: &policy.RateLimit{
			MaxCalls: 9, Window: policy.Duration(time.Hour),
		}}
		d := protocol.Both(limited, policy.Decision{Decision: policy.Allow, RuleID: "a"})
		d.Decision, d.Reason = decision, "overruled"
		env := newEnvironment(t, deciding(d))
		outcomes, _ := env.calls(t, "a")
		want := "overruled"
		if decision == policy.RequireApproval {
			want = protocol.ReasonApprovalTimeout
		}
		require.Equal(t, []string{want}, outcomes)
	}
}

// TestLimiterOfOneHalf says what was not applied, whichever half gives the reason.
func TestLimiterOfOneHalf(t *testing.T) {
	env := newEnvironment(t, Rules(func(policy.Input) (policy.Decision, error) {
		return protocol.Both(policy.Decision{Decision: policy.Allow, RuleID: "yaml", Reason: "fine"},
			policy.Decision{Decision: policy.Allow, RuleID: "rego", RateLimit: &policy.RateLimit{
				MaxCalls: 1, Window: policy.Duration(time.Hour), PerWhat: protocol.PerGlobal,
			}}), nil
	}))
	env.OnActivity(protocol.ActivityLimit, mock.Anything, mock.Anything).Return(protocol.LimitGrant{}, errors.New("down"))
	var reasons []string
	env.OnActivity(protocol.ActivitySettle, mock.Anything, mock.Anything).Return(
		func(_ context.Context, record protocol.StepRecord) (protocol.StepRecord, error) {
			reasons = append(reasons, record.Decision.Reason)
			return record, nil
		})
	outcomes, _ := env.calls(t, "a")
	require.Equal(t, []string{"ok"}, outcomes)
	require.Equal(t, []string{"fine; rate limit not applied: rate_limiter_unavailable"}, reasons)
}

// TestLocalStepThatIsLost: nothing was heard of a local step that a limit had let through.
func TestLocalStepThatIsLost(t *testing.T) {
	env := newEnvironment(t, deciding(policy.Decision{Decision: policy.Allow, RateLimit: &policy.RateLimit{
		MaxCalls: 9, Window: policy.Duration(time.Hour),
	}}))
	decision := protocol.Decision{Decision: policy.Allow, RuleID: "rule", RateLimit: &policy.RateLimit{MaxCalls: 9, Window: policy.Duration(time.Hour)}}
	env.OnActivity(protocol.ActivityStep, mock.Anything, mock.Anything).
		Return(protocol.StepRecord{Undecided: true, Decision: &decision}, nil).Once()
	env.OnActivity(protocol.ActivityStep, mock.Anything, mock.Anything).
		Return(protocol.StepRecord{}, temporal.NewNonRetryableApplicationError("no codec", "", nil))
	env.ExecuteWorkflow("clock", json.RawMessage(`{}`), nil)
	require.NoError(t, env.GetWorkflowError())
	var reason string
	require.NoError(t, env.GetWorkflowResult(&reason))
	require.Equal(t, protocol.ReasonIndeterminate, reason)
}

// Clock reads the time, and gives the reason why it could not.
func Clock(ctx workflow.Context, _ None) (string, error) {
	_, err := workflows.Now(ctx)
	return workflows.Reason(err), nil
}
