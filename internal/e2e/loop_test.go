package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/activities/openai"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
	"github.com/tinerun/tine/workflows/loop"
)

type phrase struct {
	Text string `json:"text"`
}

var (
	shout   = workflows.NewTool[phrase, string]("shout", workflows.WithDescription("Say it loud."))
	whisper = workflows.NewTool[phrase, string]("whisper")
	speaker = workflows.NewModel("speaker")
)

// chat is an agent whose model has two tools.
func chat(ctx workflow.Context, question string) (loop.Result, error) {
	return loop.Run(ctx, loop.Options{
		Model: speaker, Tools: workflows.Tools(shout, whisper), System: "be brief",
		Messages: []workflows.Message{{Role: workflows.RoleUser, Content: question}},
		MaxSteps: 5,
	})
}

// modelServer speaks chat completions. It gives its answers one after another, whole or as a
// stream, and keeps the requests.
type modelServer struct {
	stream  bool
	mu      sync.Mutex
	answers []modelAnswer
	asked   []completionRequest
	at      []time.Time
}

// modelAnswer is a message, or something that goes wrong.
type modelAnswer struct {
	content, refusal, finish string
	calls                    []activityCall
	status                   int    // if it is not 200
	retryAfter               string // with a status
	cut                      bool   // the connection breaks in the middle
}

type activityCall struct{ name, arguments string }

type completionRequest struct {
	Stream   bool `json:"stream"`
	Messages []struct {
		Role       string `json:"role"`
		Content    string `json:"content"`
		ToolCallID string `json:"tool_call_id"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
}

func (s *modelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req completionRequest
	err := json.NewDecoder(r.Body).Decode(&req)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked, s.at = append(s.asked, req), append(s.at, time.Now())
	if err != nil || req.Stream != s.stream || r.URL.Path != "/v1/chat/completions" || len(s.answers) == 0 {
		http.Error(w, "not expected", http.StatusBadRequest)
		return
	}
	answer := s.answers[0]
	s.answers = s.answers[1:]
	switch {
	case answer.status != 0:
		w.Header().Set("Retry-After", answer.retryAfter)
		http.Error(w, `{"error": {"message": "slow down"}}`, answer.status)
	case s.stream:
		answer.writeStream(w)
	default:
		answer.write(w)
	}
}

func (a modelAnswer) write(w http.ResponseWriter) {
	message := map[string]any{"role": "assistant", "content": a.content, "refusal": a.refusal}
	var calls []any
	for i, c := range a.calls {
		calls = append(calls, map[string]any{"id": fmt.Sprintf("call_%d", i), "type": "function", "function": map[string]any{"name": c.name, "arguments": c.arguments}})
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	raw, _ := json.Marshal(map[string]any{
		"model": "m-1", "choices": []any{map[string]any{"finish_reason": a.finish, "message": message}},
		"usage": map[string]any{"prompt_tokens": 10, "completion_tokens": 3},
	})
	w.Header().Set("Content-Type", "application/json")
	if a.cut {
		w.Header().Set("Content-Length", fmt.Sprint(len(raw)))
		raw = raw[:len(raw)/2]
	}
	_, _ = w.Write(raw)
}

// writeStream sends the message in pieces of three bytes.
func (a modelAnswer) writeStream(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(v any) {
		raw, _ := json.Marshal(v)
		_, _ = io.WriteString(w, "data: "+string(raw)+"\n\n")
		w.(http.Flusher).Flush()
	}
	choice := func(delta map[string]any, finish any) {
		event(map[string]any{"model": "m-1", "choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}})
	}
	for _, part := range pieces(a.content) {
		choice(map[string]any{"content": part}, nil)
	}
	for _, part := range pieces(a.refusal) {
		choice(map[string]any{"refusal": part}, nil)
	}
	for i, c := range a.calls {
		choice(map[string]any{"tool_calls": []any{map[string]any{"index": i, "id": fmt.Sprintf("call_%d", i), "function": map[string]any{"name": c.name, "arguments": ""}}}}, nil)
		for _, part := range pieces(c.arguments) {
			choice(map[string]any{"tool_calls": []any{map[string]any{"index": i, "function": map[string]any{"arguments": part}}}}, nil)
		}
	}
	if a.cut {
		panic(http.ErrAbortHandler)
	}
	choice(map[string]any{}, a.finish)
	event(map[string]any{"model": "m-1", "choices": []any{}, "usage": map[string]any{"prompt_tokens": 10, "completion_tokens": 3}})
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func pieces(text string) []string {
	var all []string
	for ; len(text) > 3; text = text[3:] {
		all = append(all, text[:3])
	}
	return append(all, text)
}

// modelItems are the model server and the tools of chat.
func modelItems(t *testing.T, s *modelServer) []worker.Item {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	model, err := openai.New(openai.Options{BaseURL: server.URL + "/v1", Model: "m", Stream: s.stream})
	require.NoError(t, err)
	return []worker.Item{
		worker.Model(speaker, model),
		worker.Tool(shout, func(_ context.Context, in phrase) (string, error) { return strings.ToUpper(in.Text) + "!", nil }),
		worker.Tool(whisper, func(_ context.Context, in phrase) (string, error) { return "(" + in.Text + ")", nil }),
	}
}

// conversing makes a bench whose worker serves chat with the model server.
func conversing(t *testing.T, s *modelServer, options ...benchOption) *bench {
	t.Helper()
	items := append(modelItems(t, s), worker.Agent("chat", chat))
	return setup(t, append([]benchOption{withItems(func(*directory.Driver) []worker.Item { return items })}, options...)...)
}

// serve makes the worker serve more.
func (b *bench) serve(t *testing.T, more ...worker.Item) {
	t.Helper()
	b.stop()
	b.items = append(b.items, more...)
	b.start(t)
}

// loopAnswers ask for tools in every way that there is, and end.
func loopAnswers() []modelAnswer {
	return []modelAnswer{
		{finish: "tool_calls", calls: []activityCall{{"shout", `{"text":"hello"}`}, {"whisper", `{"text":"hi"}`}}},
		{finish: "tool_calls", content: "and now", calls: []activityCall{
			{"shout", `{"text":`}, {"sing", `{}`}, {"whisper", `{"word":"hi"}`}, {"shout", ``},
		}},
		{finish: "stop", content: "I have said hello."},
	}
}

func (b *bench) converse(t *testing.T) (*tine.Log, loop.Result) {
	t.Helper()
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "chat", Input: json.RawMessage(`"hello?"`)})
	require.NoError(t, err)
	log := b.end(t, e.ID)
	return log, loopResult(t, log)
}

func loopResult(t *testing.T, log *tine.Log) loop.Result {
	t.Helper()
	e := log.Execution()
	require.Equal(t, tine.StatusCompleted, e.Status, e.FailureReason)
	var result loop.Result
	require.NoError(t, json.Unmarshal(e.Output, &result))
	return result
}

// bothWays runs a test with and without streaming.
func bothWays(t *testing.T, test func(t *testing.T, stream bool)) {
	for _, stream := range []bool{false, true} {
		t.Run(map[bool]string{false: "whole", true: "stream"}[stream], func(t *testing.T) {
			t.Parallel()
			test(t, stream)
		})
	}
}

func TestLoop(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, stream bool) {
		s := &modelServer{stream: stream, answers: loopAnswers()}
		b := conversing(t, s)
		log, result := b.converse(t)
		require.Equal(t, "I have said hello.", result.Output)
		require.Equal(t, loop.StopDone, result.StopReason)
		require.Equal(t, 3, result.Steps)
		require.Equal(t, workflows.Usage{InputTokens: 30, OutputTokens: 9}, result.Usage)
		require.Len(t, result.Messages, 10)

		require.Len(t, s.asked, 3)
		require.Equal(t, "be brief", s.asked[0].Messages[0].Content)
		require.Equal(t, "Say it loud.", s.asked[0].Tools[0].Function.Description)
		require.Contains(t, string(s.asked[0].Tools[0].Function.Parameters), `"text"`)
		told := s.asked[2].Messages[3:]
		var texts []string
		for _, m := range told {
			texts = append(texts, m.Role+" "+m.ToolCallID+": "+m.Content)
		}
		require.Equal(t, []string{
			"tool call_0: HELLO!", "tool call_1: (hi)", "assistant : and now",
			"tool call_0: error: shout: invalid_arguments: the arguments are not valid JSON",
			`tool call_1: error: sing: unknown_tool: there is no tool "sing"; there are: shout, whisper`,
		}, texts[:5])
		require.Contains(t, texts[5], "tool call_2: error: whisper: invalid_arguments: the arguments do not fit the schema")
		require.Contains(t, texts[6], "tool call_3: error: shout: invalid_arguments")

		var targets []string
		for _, step := range log.Steps() {
			targets = append(targets, step.Target+" "+step.Status)
		}
		require.ElementsMatch(t, []string{
			"speaker succeeded", "shout succeeded", "whisper succeeded", "speaker succeeded",
			"whisper failed", "shout failed", "speaker succeeded",
		}, targets, "what is not a call of a tool is not recorded")

		// A fork before the last answer asks for that one only.
		s.mu.Lock()
		s.answers = []modelAnswer{{finish: "stop", content: "Hello it was."}}
		s.mu.Unlock()
		last := log.Steps()[len(log.Steps())-1]
		fork := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: last.ProposedSeq - 1})
		again := loopResult(t, fork)
		require.Equal(t, "Hello it was.", again.Output)
		require.Equal(t, result.Messages[:9], again.Messages[:9])
		require.Equal(t, result.Usage, again.Usage, "copied answers count")
		require.Len(t, s.asked, 4)
		require.Equal(t, s.asked[2], s.asked[3])
		require.NotContains(t, types(fork), "execution.diverged")
	})
}

func TestLoopStops(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, stream bool) {
		for name, tc := range map[string]struct {
			answer modelAnswer
			stop   loop.StopReason
			output string
		}{
			"refusal":      {modelAnswer{finish: "stop", refusal: "I won't."}, loop.StopRefusal, "I won't."},
			"filter":       {modelAnswer{finish: "content_filter", content: "Well"}, loop.StopRefusal, "Well"},
			"length":       {modelAnswer{finish: "length", content: "Once upon"}, loop.StopLength, "Once upon"},
			"length, call": {modelAnswer{finish: "length", calls: []activityCall{{"shout", `{"text":"a"}`}}}, loop.StopLength, ""},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				log, result := conversing(t, &modelServer{stream: stream, answers: []modelAnswer{tc.answer}}).converse(t)
				require.Equal(t, tc.stop, result.StopReason)
				require.Equal(t, tc.output, result.Output)
				require.Len(t, log.Steps(), 1)
			})
		}
	})
}

func TestLoopRetries(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, stream bool) {
		s := &modelServer{stream: stream, answers: []modelAnswer{
			{status: http.StatusTooManyRequests, retryAfter: "3"},
			{cut: true, content: "I was about to"},
			{finish: "stop", content: "Hello."},
		}}
		log, result := conversing(t, s).converse(t)
		require.Equal(t, "Hello.", result.Output)
		require.Equal(t, 1, result.Steps)
		require.Equal(t, 3, log.Steps()[0].Attempts)
		require.GreaterOrEqual(t, s.at[1].Sub(s.at[0]), 3*time.Second-50*time.Millisecond)
		require.Equal(t, s.asked[0], s.asked[2])
	})
}

func TestLoopEndsWithItsModel(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer modelAnswer
		rules  string
		reason string
	}{
		"refused by the endpoint": {modelAnswer{status: http.StatusUnauthorized}, "default_action: allow\nrules: []\n", "401 Unauthorized"},
		"denied": {modelAnswer{}, `
default_action: allow
rules: [{id: quiet, when: {step_kind: llm_call}, then: {decision: deny, reason: hush}}]
`, "speaker not allowed by rule quiet: hush"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := conversing(t, &modelServer{answers: []modelAnswer{tc.answer}}, withPolicy(t, tc.rules))
			e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "chat", Input: json.RawMessage(`"hello?"`)})
			require.NoError(t, err)
			ended := b.end(t, e.ID).Execution()
			require.Equal(t, tine.StatusFailed, ended.Status)
			require.Contains(t, ended.FailureReason, tc.reason)
		})
	}
}

func TestLoopDeniedTool(t *testing.T) {
	t.Parallel()
	s := &modelServer{answers: []modelAnswer{
		{finish: "tool_calls", calls: []activityCall{{"shout", `{"text":"hello"}`}, {"whisper", `{"text":"hi"}`}}},
		{finish: "stop", content: "I whispered."},
	}}
	log, result := conversing(t, s, withPolicy(t, `
default_action: allow
rules: [{id: quiet, when: {target: shout}, then: {decision: deny, reason: people sleep}}]
`)).converse(t)
	require.Equal(t, "error: shout not allowed by rule quiet: people sleep", result.Messages[2].Content)
	require.Equal(t, "(hi)", result.Messages[3].Content)
	require.Contains(t, types(log), "step.denied")
	require.Equal(t, protocol.KindTool, log.Steps()[1].Kind)
}
