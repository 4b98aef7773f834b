package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/resources/resourcetest"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
	"github.com/tinerun/tine/workflows/loop"
)

type Text struct {
	Text string `json:"text"`
}

type Sum struct {
	A int `json:"a"`
	B int `json:"b"`
}

var (
	Writer = workflows.NewModel("writer")
	Shout  = workflows.NewTool[Text, string]("shout")
	Add    = workflows.NewTool[Sum, int]("add")
	Fail   = workflows.NewTool[Text, string]("fail")
	Submit = workflows.NewTool[Text, Text]("submit")
	Meet   = workflows.NewTool[Text, string]("meet")
	Store  = workflows.NewResource("store")
	tools  = workflows.Tools(Shout, Add, Fail, Submit, Meet)
)

// Request is what a test sets of the options.
type Request struct {
	MaxSteps  int                 `json:"max_steps"`
	MaxTokens int                 `json:"max_tokens"`
	System    string              `json:"system"`
	Messages  []workflows.Message `json:"messages"`
	Final     []string            `json:"final"`
	Remind    string              `json:"remind"`
	Raw       bool                `json:"raw"`
	Open      bool                `json:"open"`
	NoTools   bool                `json:"no_tools"`
	// Amend sets OnError.
	Amend bool `json:"amend"`
}

// Outcome has the error as text: the test environment gives no output beside one.
type Outcome struct {
	Result loop.Result `json:"result"`
	Error  string      `json:"error"`
}

func Chat(ctx workflow.Context, in Request) (Outcome, error) {
	if in.Open {
		if err := Store.Open(ctx, workflows.ResourceOptions{Driver: "memory"}); err != nil {
			return Outcome{}, err
		}
	}
	opts := loop.Options{
		Model: Writer, Tools: tools, System: in.System, Messages: in.Messages,
		MaxSteps: in.MaxSteps, MaxTokens: in.MaxTokens, Final: in.Final,
	}
	if in.NoTools {
		opts.Tools = workflows.Toolset{}
	}
	if in.Raw {
		opts.ResultText = raw
	}
	if in.Amend {
		opts.OnError = amend
	}
	if in.Remind != "" {
		opts.Before = reminder(in.Remind).remind
	}
	result, err := loop.Run(ctx, opts)
	if temporal.IsCanceledError(err) {
		return Outcome{}, err
	}
	out := Outcome{Result: result}
	if err != nil {
		out.Error = err.Error()
	}
	return out, nil
}

func raw(result json.RawMessage) string { return string(result) }

// amend shouts where another tool has failed, and says no to what is no tool.
func amend(ctx workflow.Context, call workflows.ToolCall, err error) (json.RawMessage, error) {
	switch call.Name {
	case Fail.Name():
		return tools.Call(ctx, Shout.Name(), json.RawMessage(call.Arguments))
	case Submit.Name():
		return nil, workflow.ErrCanceled
	default:
		return nil, err
	}
}

type reminder string

func (r reminder) remind(ctx workflow.Context) ([]workflows.Message, error) {
	if r == "broken" {
		return nil, errors.New("broken")
	}
	at, err := workflows.Record(ctx, "reminder", string(r))
	return []workflows.Message{user(at)}, err
}

// script is a model that gives its answers one after another, and keeps what it was asked.
type script struct {
	mu      sync.Mutex
	answers []activities.GenerateResponse
	asked   []activities.GenerateRequest
}

func (s *script) Generate(_ context.Context, req activities.GenerateRequest, _ []activities.ToolSpec) (activities.GenerateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, req)
	if len(s.asked) > len(s.answers) {
		return activities.GenerateResponse{}, errors.New("no more answers")
	}
	return s.answers[len(s.asked)-1], nil
}

func says(text, finish string) activities.GenerateResponse {
	return activities.GenerateResponse{
		Message:      activities.Message{Role: "assistant", Content: text},
		FinishReason: finish, Usage: &activities.Usage{InputTokens: 10, OutputTokens: 1},
	}
}

// asks gives calls with the ids 0, 1, ….
func asks(calls ...string) activities.GenerateResponse {
	r := says("", workflows.FinishToolCalls)
	for i, call := range calls {
		name, arguments, _ := strings.Cut(call, " ")
		r.Message.ToolCalls = append(r.Message.ToolCalls, activities.ToolCall{ID: fmt.Sprint(i), Name: name, Arguments: arguments})
	}
	return r
}

func user(text string) workflows.Message { return workflows.Message{Role: "user", Content: text} }

func told(id int, text string) workflows.Message {
	return workflows.Message{Role: "tool", ToolCallID: fmt.Sprint(id), Content: text}
}

// bodies are what the tools do. Meet returns when as many of it run as there are seats.
type bodies struct {
	seats   chan struct{}
	mu      sync.Mutex
	running int
	most    int
}

func (b *bodies) meet(ctx context.Context, in Text) (string, error) {
	b.mu.Lock()
	b.running++
	b.most = max(b.most, b.running)
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.running--
		b.mu.Unlock()
	}()
	if b.seats == nil {
		return in.Text, nil
	}
	b.seats <- struct{}{}
	for len(b.seats) < cap(b.seats) {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return in.Text, nil
}

func environment(t *testing.T, model activities.Model, engine policy.Engine, b *bodies) *testsuite.TestWorkflowEnvironment {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	require.NoError(t, worker.Register(env, worker.Options{Policy: engine},
		worker.Agent("chat", Chat),
		worker.Model(Writer, model),
		worker.Driver(resourcetest.NewMemory()),
		worker.Tool(Shout, func(_ context.Context, in Text) (string, error) { return strings.ToUpper(in.Text) + "!\n", nil }),
		worker.Tool(Add, func(_ context.Context, in Sum) (int, error) { return in.A + in.B, nil }),
		worker.Tool(Fail, func(_ context.Context, in Text) (string, error) { return "", errors.New(in.Text) }),
		worker.Tool(Submit, func(_ context.Context, in Text) (Text, error) {
			if in.Text == "" {
				return in, errors.New("say something")
			}
			return in, nil
		}),
		worker.Tool(Meet, b.meet)))
	return env
}

func chat(t *testing.T, env *testsuite.TestWorkflowEnvironment, in Request) Outcome {
	t.Helper()
	env.ExecuteWorkflow("chat", in)
	require.NoError(t, env.GetWorkflowError())
	var out Outcome
	require.NoError(t, env.GetWorkflowResult(&out))
	return out
}

func run(t *testing.T, in Request, answers ...activities.GenerateResponse) (Outcome, *script) {
	t.Helper()
	model := &script{answers: answers}
	return chat(t, environment(t, model, nil, &bodies{}), in), model
}

func TestRun(t *testing.T) {
	t.Parallel()
	hi := []workflows.Message{user("hi")}
	for name, tc := range map[string]struct {
		in      Request
		answers []activities.GenerateResponse
		// added is what comes after hi.
		added  []workflows.Message
		output string
		stop   loop.StopReason
	}{
		"an answer": {
			answers: []activities.GenerateResponse{says("hello", workflows.FinishStop)},
			added:   []workflows.Message{says("hello", "").Message},
			output:  "hello", stop: loop.StopDone,
		},
		"no tools": {
			in:      Request{NoTools: true},
			answers: []activities.GenerateResponse{asks("add {}"), says("", "")},
			added:   []workflows.Message{asks("add {}").Message, told(0, `error: add: unknown_tool: there is no tool "add"; there are: `), says("", "").Message},
			stop:    loop.StopDone,
		},
		"a tool, and its text": {
			answers: []activities.GenerateResponse{asks(`shout {"text":"a\"b"}`), says("done", workflows.FinishStop)},
			added:   []workflows.Message{asks(`shout {"text":"a\"b"}`).Message, told(0, "A\"B!\n"), says("done", "").Message},
			output:  "done", stop: loop.StopDone,
		},
		"texts as JSON": {
			in:      Request{Raw: true},
			answers: []activities.GenerateResponse{asks(`shout {"text":"a"}`), says("done", workflows.FinishStop)},
			added:   []workflows.Message{asks(`shout {"text":"a"}`).Message, told(0, `"A!\n"`), says("done", "").Message},
			output:  "done", stop: loop.StopDone,
		},
		"what goes wrong is told": {
			answers: []activities.GenerateResponse{
				asks(`add {"a":1,"b":2}`, `fail {"text":"boom"}`, `nosuch {}`, `add {"a":`, `add {"a":1}`),
				says("sorry", workflows.FinishStop),
			},
			added: []workflows.Message{
				asks(`add {"a":1,"b":2}`, `fail {"text":"boom"}`, `nosuch {}`, `add {"a":`, `add {"a":1}`).Message,
				told(0, "3"),
				told(1, "error: fail: boom"),
				told(2, `error: nosuch: unknown_tool: there is no tool "nosuch"; there are: shout, add, fail, submit, meet`),
				told(3, "error: add: invalid_arguments: the arguments are not valid JSON"),
				told(4, "error: add: invalid_arguments: the arguments do not fit the schema: validating root: required: missing properties: [\"b\"]"),
				says("sorry", "").Message,
			},
			output: "sorry", stop: loop.StopDone,
		},
		"what goes wrong is put right": {
			in:      Request{Amend: true, Final: []string{"fail"}},
			answers: []activities.GenerateResponse{asks(`nosuch {}`, `add {"a":1,"b":2}`, `fail {"text":"boom"}`)},
			added: []workflows.Message{
				asks(`nosuch {}`, `add {"a":1,"b":2}`, `fail {"text":"boom"}`).Message,
				told(0, `error: nosuch: unknown_tool: there is no tool "nosuch"; there are: shout, add, fail, submit, meet`),
				told(1, "3"), told(2, "BOOM!\n"),
			},
			output: "BOOM!\n", stop: loop.StopFinal,
		},
		"the last step's tools run": {
			in:      Request{MaxSteps: 2},
			answers: []activities.GenerateResponse{asks(`add {"a":1,"b":2}`), asks(`add {"a":3,"b":4}`)},
			added:   []workflows.Message{asks(`add {"a":1,"b":2}`).Message, told(0, "3"), asks(`add {"a":3,"b":4}`).Message, told(0, "7")},
			stop:    loop.StopMaxSteps,
		},
		"the last step may be the answer": {
			in:      Request{MaxSteps: 1},
			answers: []activities.GenerateResponse{says("hello", workflows.FinishStop)},
			added:   []workflows.Message{says("hello", "").Message},
			output:  "hello", stop: loop.StopDone,
		},
		"cut off": {
			answers: []activities.GenerateResponse{says("hel", workflows.FinishLength)},
			added:   []workflows.Message{says("hel", "").Message},
			output:  "hel", stop: loop.StopLength,
		},
		"cut off among tool calls": {
			answers: []activities.GenerateResponse{cut(asks(`fail {"text":"ran"}`, `add {"a"`), workflows.FinishLength)},
			added: []workflows.Message{
				asks(`fail {"text":"ran"}`, `add {"a"`).Message,
				told(0, "error: not run: the answer that asks for it is not complete"),
				told(1, "error: not run: the answer that asks for it is not complete"),
			},
			stop: loop.StopLength,
		},
		"refused": {
			answers: []activities.GenerateResponse{says("I can't help with that.", workflows.FinishRefusal)},
			added:   []workflows.Message{says("I can't help with that.", "").Message},
			output:  "I can't help with that.", stop: loop.StopRefusal,
		},
		"a tool that ends it": {
			in:      Request{Final: []string{"submit"}},
			answers: []activities.GenerateResponse{asks(`submit {"text":""}`), asks(`submit {"text":"42"}`, `add {"a":1,"b":2}`, `submit {"text":"43"}`)},
			added: []workflows.Message{
				asks(`submit {"text":""}`).Message, told(0, "error: submit: say something"),
				asks(`submit {"text":"42"}`, `add {"a":1,"b":2}`, `submit {"text":"43"}`).Message,
				told(0, `{"text":"42"}`), told(1, "3"), told(2, `{"text":"43"}`),
			},
			output: `{"text":"42"}`, stop: loop.StopFinal,
		},
		"added before each answer": {
			in:      Request{Remind: "be brief"},
			answers: []activities.GenerateResponse{asks(`add {"a":1,"b":2}`), says("3", workflows.FinishStop)},
			added: []workflows.Message{
				user("be brief"), asks(`add {"a":1,"b":2}`).Message, told(0, "3"), user("be brief"), says("3", "").Message,
			},
			output: "3", stop: loop.StopDone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.in.Messages = hi
			out, model := run(t, tc.in, tc.answers...)
			require.Empty(t, out.Error)
			require.Empty(t, cmp.Diff(append(hi[:1:1], tc.added...), out.Result.Messages))
			require.Equal(t, tc.output, out.Result.Output)
			require.Equal(t, tc.stop, out.Result.StopReason)
			require.Equal(t, len(tc.answers), out.Result.Steps)
			require.Equal(t, workflows.Usage{InputTokens: 10 * int64(len(tc.answers)), OutputTokens: int64(len(tc.answers))}, out.Result.Usage)
			require.Len(t, model.asked, len(tc.answers))
		})
	}
}

func cut(r activities.GenerateResponse, reason string) activities.GenerateResponse {
	r.FinishReason = reason
	return r
}

func TestRequest(t *testing.T) {
	t.Parallel()
	out, model := run(t, Request{System: "be kind", MaxTokens: 7, Messages: []workflows.Message{user("hi")}},
		asks(`add {"a":1,"b":2}`), says("3", workflows.FinishStop))
	require.Equal(t, workflows.Message{Role: "system", Content: "be kind"}, model.asked[0].Messages[0])
	require.Equal(t, tools.Names(), model.asked[0].Tools)
	require.Equal(t, 7, model.asked[1].MaxTokens)
	require.Empty(t, cmp.Diff(append(model.asked[0].Messages, out.Result.Messages[1:3]...), model.asked[1].Messages))
	require.Equal(t, user("hi"), out.Result.Messages[0], "the system's words are not part of the conversation")

	// A conversation goes on with what the result has.
	again, model := run(t, Request{System: "be brief", Messages: append(out.Result.Messages, user("and 4?"))}, says("4", ""))
	require.Len(t, model.asked[0].Messages, 6)
	require.Equal(t, "be brief", model.asked[0].Messages[0].Content)
	require.Len(t, again.Result.Messages, 6)
}

func TestDefaultMaxSteps(t *testing.T) {
	t.Parallel()
	var answers []activities.GenerateResponse
	for range 60 {
		answers = append(answers, asks("nosuch"))
	}
	out, _ := run(t, Request{}, answers...)
	require.Equal(t, 50, out.Result.Steps)
	require.Equal(t, loop.StopMaxSteps, out.Result.StopReason)
}

func TestNoUsage(t *testing.T) {
	t.Parallel()
	silent := asks(`add {"a":1,"b":2}`)
	silent.Usage = nil
	out, _ := run(t, Request{}, silent, says("3", ""))
	require.Equal(t, workflows.Usage{InputTokens: 10, OutputTokens: 1}, out.Result.Usage)
}

func TestModelError(t *testing.T) {
	t.Parallel()
	out, _ := run(t, Request{Messages: []workflows.Message{user("hi")}}, asks(`add {"a":1,"b":2}`))
	require.Equal(t, "writer: llm_error: no more answers", out.Error)
	require.Len(t, out.Result.Messages, 3, "what was said up to there")
	require.Equal(t, 1, out.Result.Steps)
	require.Empty(t, out.Result.StopReason)

	out, model := run(t, Request{Remind: "broken"})
	require.Equal(t, "broken", out.Error)
	require.Empty(t, model.asked)
}

// rules refuses the targets it lists.
type rules []string

func (r rules) Decide(_ context.Context, in policy.Input) (policy.Decision, error) {
	for _, target := range r {
		if in.Target == target {
			return policy.Decision{Decision: policy.Deny, RuleID: "no", Reason: "not today"}, nil
		}
	}
	return policy.Decision{Decision: policy.Allow, RuleID: "rest"}, nil
}

func TestDenied(t *testing.T) {
	t.Parallel()
	model := &script{answers: []activities.GenerateResponse{asks(`add {"a":1,"b":2}`), says("pity", "")}}
	out := chat(t, environment(t, model, rules{"add"}, &bodies{}), Request{})
	require.Empty(t, out.Error)
	require.Equal(t, told(0, "error: add not allowed by rule no: not today"), out.Result.Messages[1])

	out = chat(t, environment(t, &script{}, rules{"writer"}, &bodies{}), Request{})
	require.Equal(t, "writer not allowed by rule no: not today", out.Error)
}

func TestOnErrorEndsTheLoop(t *testing.T) {
	t.Parallel()
	model := &script{answers: []activities.GenerateResponse{asks(`submit {"text":""}`)}}
	env := environment(t, model, nil, &bodies{})
	env.ExecuteWorkflow("chat", Request{Amend: true})
	require.True(t, temporal.IsCanceledError(env.GetWorkflowError()), "%v", env.GetWorkflowError())
}

func TestToolsRunTogether(t *testing.T) {
	t.Parallel()
	answers := []activities.GenerateResponse{asks(`meet {"text":"a"}`, `meet {"text":"b"}`, `meet {"text":"a"}`), says("", "")}
	b := &bodies{seats: make(chan struct{}, 3)}
	out := chat(t, environment(t, &script{answers: answers}, nil, b), Request{})
	require.Equal(t, []workflows.Message{told(0, "a"), told(1, "b"), told(2, "a")}, out.Result.Messages[1:4])
	require.Equal(t, 3, b.most)

	b = &bodies{}
	out = chat(t, environment(t, &script{answers: answers}, nil, b), Request{Open: true})
	require.Equal(t, []workflows.Message{told(0, "a"), told(1, "b"), told(2, "a")}, out.Result.Messages[1:4])
	require.Equal(t, 1, b.most, "one at a time while there is a resource")
}

// asking has every tool call approved.
type asking struct{}

func (asking) Decide(_ context.Context, in policy.Input) (policy.Decision, error) {
	if in.StepKind == "tool_call" {
		return policy.Decision{Decision: policy.RequireApproval, RuleID: "ask"}, nil
	}
	return policy.Decision{Decision: policy.Allow, RuleID: "rest"}, nil
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	model := &script{answers: []activities.GenerateResponse{asks(`nosuch`, `add {"a":1,"b":2}`, `add {"a":3,"b":4}`)}}
	env := environment(t, model, asking{}, &bodies{})
	env.RegisterDelayedCallback(env.CancelWorkflow, time.Minute)
	env.ExecuteWorkflow("chat", Request{})
	require.True(t, temporal.IsCanceledError(env.GetWorkflowError()), "%v", env.GetWorkflowError())
	require.Len(t, model.asked, 1)
}
