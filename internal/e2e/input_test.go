package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

// ownNames are tools called like Tine's own activities in Go.
var ownNames = []workflows.Tool[script.NoArgs, string]{
	workflows.NewTool[script.NoArgs, string]("note"), workflows.NewTool[script.NoArgs, string]("settle"),
	workflows.NewTool[script.NoArgs, string]("checkpoint"), workflows.NewTool[script.NoArgs, string]("loadPrefix"),
	workflows.NewTool[script.NoArgs, string]("run"), workflows.NewTool[script.NoArgs, string]("func1"),
}

func callOwnNames(ctx workflow.Context, _ script.NoArgs) ([]string, error) {
	var called []string
	for _, tool := range ownNames {
		name, err := tool.Call(ctx, script.NoArgs{})
		if err != nil {
			return called, err
		}
		called = append(called, name)
	}
	return called, nil
}

// TestToolNames has tools under names that the SDK could take for Tine's own activities.
func TestToolNames(t *testing.T) {
	t.Parallel()
	b := setup(t, withItems(func(*directory.Driver) []worker.Item {
		items := []worker.Item{worker.Agent("own_names", callOwnNames)}
		for _, tool := range ownNames {
			items = append(items, worker.Tool(tool, func(context.Context, script.NoArgs) (string, error) { return tool.Name(), nil }))
		}
		return items
	}))
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "own_names"})
	require.NoError(t, err)
	log := b.end(t, e.ID)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
	require.JSONEq(t, `["note","settle","checkpoint","loadPrefix","run","func1"]`, string(log.Execution().Output))
	for _, reserved := range []string{"tine", "tine.Note", "tineNote"} {
		require.Panics(t, func() { workflows.NewTool[script.NoArgs, string](reserved) }, reserved)
	}
	require.Panics(t, func() { workflows.NewStep[script.NoArgs, string]("now") })
	workflows.NewTool[script.NoArgs, string]("tiner")
}

// TestLargeSteps forks executions whose steps nearly fill a payload each.
func TestLargeSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	noise := func(bytes int) string {
		raw := make([]byte, bytes*3/4)
		for i := range raw {
			raw[i] = byte(rand.Uint32())
		}
		return base64.StdEncoding.EncodeToString(raw)
	}
	line := noise(1_200_000)
	source := b.run(t, b.tally("small"), llm(line), b.tally("end"))
	require.Nil(t, output(t, source).Results[1].Error)
	for _, s := range source.Steps() {
		fork := b.fork(t, tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: s.SettledSeq})
		require.Equal(t, tine.StatusCompleted, fork.Execution().Status, fork.Execution().FailureReason)
		require.JSONEq(t, string(source.Execution().Output), string(fork.Execution().Output))
	}
	_, err := b.Create(t.Context(), tine.CreateRequest{Agent: script.Name, Input: json.RawMessage(`"` + noise(2_100_000) + `"`)})
	require.ErrorContains(t, err, "at most")
}

var (
	panics    = workflows.NewTool[script.NoArgs, int]("panics")
	unencoded = workflows.NewTool[script.NoArgs, func()]("unencoded")
	strict    = workflows.NewTool[strictArgs, int]("strict")
	localFail = workflows.NewStep[script.NoArgs, int]("local_fail")
	broken    = workflows.Tools(panics, unencoded, strict)
)

type strictArgs struct {
	N int `json:"n"`
}

// callByName calls one of the broken tools and returns the step's error.
func callByName(ctx workflow.Context, in struct {
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args"`
}) (*script.Error, error) {
	var err error
	if in.Tool == localFail.Name() {
		_, err = localFail.Run(ctx, script.NoArgs{})
	} else {
		_, err = broken.Call(ctx, in.Tool, in.Args)
	}
	if step, ok := err.(*workflows.StepError); ok {
		return &script.Error{Message: step.Message, Reason: step.Reason, Type: step.Type}, nil
	}
	return nil, err
}

func brokenItems(driver *directory.Driver) []worker.Item {
	return append(script.Items(driver, script.Echo{}),
		worker.Agent("call", callByName),
		worker.Tool(panics, func(context.Context, script.NoArgs) (int, error) { panic("at the disco") }),
		worker.Tool(unencoded, func(context.Context, script.NoArgs) (func(), error) { return func() {}, nil }),
		worker.Tool(strict, func(_ context.Context, in strictArgs) (int, error) { return in.N, nil }),
		worker.Step(localFail, func(context.Context, script.NoArgs) (int, error) { panic("in a local step") }),
	)
}

func TestBrokenTools(t *testing.T) {
	t.Parallel()
	b := setup(t, withItems(brokenItems))
	for name, tc := range map[string]struct {
		input, reason, message string
		recorded               bool
	}{
		"a panic":                   {`{"tool":"panics","args":{}}`, "panic", "at the disco", true},
		"a panic of a local step":   {`{"tool":"local_fail"}`, "panic", "in a local step", true},
		"an unencodable result":     {`{"tool":"unencoded","args":{}}`, "invalid_result", "func()", true},
		"arguments of another type": {`{"tool":"strict","args":{"n":"one"}}`, "invalid_arguments", "n", true},
		"a missing argument":        {`{"tool":"strict","args":{}}`, "invalid_arguments", "n", true},
		"an unknown argument":       {`{"tool":"strict","args":{"n":1,"m":2}}`, "invalid_arguments", "m", true},
		"an unknown tool":           {`{"tool":"nosuch","args":{}}`, "unknown_tool", "panics, unencoded, strict", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "call", Input: json.RawMessage(tc.input)})
			require.NoError(t, err)
			log := b.end(t, e.ID)
			require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
			var got script.Error
			require.NoError(t, json.Unmarshal(log.Execution().Output, &got))
			require.Equal(t, tc.reason, got.Reason)
			require.Contains(t, got.Message, tc.message)
			if !tc.recorded {
				require.Empty(t, log.Steps())
				return
			}
			require.Len(t, log.Steps(), 1)
			require.Equal(t, "failed", log.Steps()[0].Status)
			require.Equal(t, tc.reason, log.Steps()[0].Error.Reason)

			fork := b.fork(t, tine.ForkRequest{ExecutionID: e.ID, AtSeq: log.Execution().LatestSeq})
			require.JSONEq(t, string(log.Execution().Output), string(fork.Execution().Output), "a failure is replayed as it was")
		})
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, tc := range map[string]struct{ agent, input, reason string }{
		"an unknown agent":     {"nosuch", `{}`, `no agent "nosuch" is registered with the worker of task queue ` + b.queue + `; registered: script`},
		"input of other shape": {script.Name, `{"ops":"none"}`, "the input does not fit agent script"},
		"a failing handler":    {script.Name, `{"ops":[{"op":"fail","message":"on purpose"}]}`, "on purpose"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := b.Create(t.Context(), tine.CreateRequest{Agent: tc.agent, Input: json.RawMessage(tc.input)})
			require.NoError(t, err)
			ended := b.end(t, e.ID).Execution()
			require.Equal(t, tine.StatusFailed, ended.Status)
			require.Contains(t, ended.FailureReason, tc.reason)
		})
	}
	_, err := b.Create(t.Context(), tine.CreateRequest{Agent: script.Name, Input: json.RawMessage(`{`)})
	require.ErrorContains(t, err, "not valid JSON")
}

func TestBadResources(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, tc := range map[string]struct {
		ops     []op
		message string
	}{
		"a driver nobody has":         {[]op{{"op": "open", "key": "w", "driver": "nosuch"}}, `no resource driver "nosuch" is registered with this worker; registered: directory`},
		"a bad key":                   {[]op{{"op": "open", "key": "w w", "driver": "directory"}}, "a key is 1 to 128"},
		"no driver":                   {[]op{{"op": "open", "key": "w"}}, "Driver is required"},
		"a bad cadence":               {[]op{{"op": "open", "key": "w", "driver": "directory", "every_steps": 0}}, "1 or more"},
		"a template that is missing":  {[]op{{"op": "open", "key": "w", "driver": "directory", "config": op{"template": "/no/such/template"}}}, "template"},
		"a key with another config":   {[]op{open(1, nil), open(1, op{"coverage_reuse": true})}, "cannot change it"},
		"a key with another driver":   {[]op{open(1, nil), {"op": "open", "key": script.WorkspaceKey, "driver": "other"}}, "use another key"},
		"a resource that is not open": {[]op{write("a", "A")}, `affects resource "workspace", which the execution has not opened`},
		"reading what is not open":    {[]op{tool("read_file", op{"path": "a"})}, `the execution has not opened resource "workspace"; it has: none`},
		"a path out of the workspace": {[]op{open(1, nil), write("../escape", "A")}, "../escape"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := output(t, b.run(t, tc.ops...))
			last := out.Results[len(out.Results)-1]
			require.NotNil(t, last.Error)
			require.Contains(t, last.Error.Message, tc.message)
		})
	}
	again := b.run(t, open(1, nil), open(1, nil), write("a", "A"))
	require.Equal(t, tine.StatusCompleted, again.Execution().Status)
	require.Len(t, again.Execution().Resources, 1, "opening again with the same settings does nothing")
}

// denyAppends is a policy that refuses one tool.
type denyAppends struct{}

func (denyAppends) Decide(_ context.Context, in policy.Input) (policy.Decision, error) {
	if in.Target == "append_file" || in.Target == "uuid" {
		return policy.Decision{Decision: policy.Deny, RuleID: "no-appends", Reason: "append only in a fork"}, nil
	}
	return policy.Decision{Decision: policy.Allow, RuleID: "rest"}, nil
}

func TestDeniedSteps(t *testing.T) {
	t.Parallel()
	b := setup(t, withOptions(func(o *worker.Options) { o.Policy = denyAppends{} }))
	source := b.run(t, open(1, nil), write("a", "A"), tool("append_file", op{"path": "a", "content": "A"}), step("uuid"), write("b", "B"))
	out := output(t, source)
	require.Equal(t, "append only in a fork", out.Results[2].Error.Reason)
	require.Equal(t, "append only in a fork", out.Results[3].Error.Reason)
	denied := source.Steps()[1]
	require.Equal(t, "denied", denied.Status)
	require.Equal(t, "no-appends", denied.RuleID)
	require.JSONEq(t, `{"path":"a","content":"A"}`, string(denied.Args))
	require.Equal(t, 2, source.Execution().Resources[0].Count, "a denied step does not count")

	b.stop()
	b.opts.Policy = nil
	b.start(t)
	fork := b.fork(t, tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: denied.SettledSeq})
	forked := output(t, fork)
	require.Equal(t, out.Results[2], forked.Results[2], "a recorded denial stays one under any policy")
	require.Nil(t, forked.Results[3].Error, "live steps are decided anew")
}

// brokenPolicy cannot decide anything.
type brokenPolicy struct{ panics bool }

func (p brokenPolicy) Decide(context.Context, policy.Input) (policy.Decision, error) {
	if p.panics {
		panic("no bundle")
	}
	return policy.Decision{Decision: "perhaps"}, nil
}

func TestBrokenPolicyDenies(t *testing.T) {
	t.Parallel()
	for name, engine := range map[string]policy.Engine{"panics": brokenPolicy{panics: true}, "decides nonsense": brokenPolicy{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, withOptions(func(o *worker.Options) { o.Policy = engine }))
			log := b.run(t, b.tally("never"))
			require.Equal(t, "bundle-error", log.Steps()[0].RuleID)
			require.Empty(t, b.lines(t))
		})
	}
}

func TestParallelSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	free := b.run(t, parallel(tool("sleep", op{"ms": 1500}), tool("sleep", op{"ms": 1500}), step("now"), llm("x")))
	require.Less(t, overlap(free), int64(0), "without resources steps run side by side")

	serial := b.run(t, open(1, nil), parallel(write("a", "A"), write("b", "B"), write("c", "C"), llm("x")))
	settledAt := int64(0)
	for _, s := range serial.Steps() {
		if s.Kind == "llm_call" {
			continue
		}
		require.Greater(t, s.ExecutingSeq, settledAt, "with a resource steps run one at a time")
		settledAt = s.SettledSeq
	}
	require.Len(t, serial.ForkPoints().Checkpoints, 4, "the baseline and one for each write")

	same := b.run(t, parallel(b.tally("same"), b.tally("same"), b.tally("same")))
	var occurrences []int
	ids := map[string]bool{}
	for _, s := range same.Steps() {
		occurrences = append(occurrences, s.Occurrence)
		ids[s.StepID] = true
	}
	require.ElementsMatch(t, []int{0, 1, 2}, occurrences)
	require.Len(t, ids, 3)
}

// overlap is negative if the second sleep began before the first had ended.
func overlap(log *tine.Log) int64 {
	var sleeps []*tine.Step
	for _, s := range log.Steps() {
		if s.Target == "sleep" {
			sleeps = append(sleeps, s)
		}
	}
	return sleeps[1].ExecutingSeq - sleeps[0].SettledSeq
}

func TestRecordedSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.run(t, step("now"), step("uuid"), step("random"), op{"op": "wait", "ms": 300}, repeat(2, b.tally("{i}")))
	require.Equal(t, []string{"0", "1"}, b.lines(t))
	fork := b.fork(t, tine.ForkRequest{ExecutionID: source.Execution().ID, AtSeq: source.Execution().LatestSeq})
	require.JSONEq(t, string(source.Execution().Output), string(fork.Execution().Output))
	require.Equal(t, []string{"0", "1"}, b.lines(t))
	for _, s := range fork.Steps() {
		require.True(t, s.Replayed, s.Target)
	}
}

func TestExistingID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.run(t, step("now")).Execution().ID
	_, err := b.Create(t.Context(), tine.CreateRequest{Agent: script.Name, ID: id})
	var exists *tine.ExistsError
	require.ErrorAs(t, err, &exists)
	require.ErrorAs(t, b.Cancel(t.Context(), id), new(*tine.ClosedError))

	got, err := b.Resolve(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, id, got)
	require.Eventually(t, func() bool {
		got, err := b.Resolve(t.Context(), id[:len(id)-3])
		return err == nil && got == id
	}, patience, 100_000_000)
	_, err = b.Resolve(t.Context(), "no-such-execution")
	require.ErrorAs(t, err, new(*tine.NotFoundError))
}

// TestListIsNewestFirst mixes open executions with closed ones, which Temporal lists apart.
func TestListIsNewestFirst(t *testing.T) {
	t.Parallel()
	agent := "listed-" + uuid.NewString()
	b := setup(t, withItems(func(driver *directory.Driver) []worker.Item {
		return append(script.Items(driver, script.Echo{}), worker.Agent(agent, script.Script))
	}))
	create := func(op string) string {
		input := json.RawMessage(`{"ops":[` + op + `]}`)
		e, err := b.Create(t.Context(), tine.CreateRequest{Agent: agent, Input: input})
		require.NoError(t, err)
		return e.ID
	}
	var want []string
	for range 3 {
		open := create(`{"op":"signal","name":"go"}`)
		done := create(`{"op":"step","name":"uuid"}`)
		b.end(t, done)
		want = append([]string{done, open}, want...)
	}
	for limit := 1; limit <= len(want); limit++ {
		require.Eventually(t, func() bool {
			found, err := b.List(t.Context(), tine.ListOptions{Agent: agent, Limit: limit})
			require.NoError(t, err)
			got := []string{}
			for _, e := range found {
				got = append(got, e.ID)
			}
			return slices.Equal(want[:limit], got)
		}, patience, 100*time.Millisecond)
	}
}
