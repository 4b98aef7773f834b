package openai_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/openai"
)

// events is the body of a stream with the given data.
func events(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString("data: " + d + "\n\n")
	}
	return b.String()
}

func streaming(body string) http.HandlerFunc {
	return answering(200, body, "Content-Type", "text/event-stream; charset=utf-8")
}

const done = "[DONE]"

func delta(delta string) string {
	return `{"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": ` + delta + `, "finish_reason": null}], "usage": null}`
}

func finish(reason string) string {
	return `{"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "` + reason + `"}]}`
}

const streamUsage = `{"id": "c", "model": "m-1", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}`

func TestStream(t *testing.T) {
	t.Parallel()
	calls := func(calls ...activities.ToolCall) activities.GenerateResponse {
		return activities.GenerateResponse{
			Model: "m-1", FinishReason: "tool_calls",
			Message: activities.Message{Role: "assistant", ToolCalls: calls},
		}
	}
	hel := activities.GenerateResponse{Model: "m-1", FinishReason: "stop", Message: activities.Message{Role: "assistant", Content: "hello"}}
	for name, tc := range map[string]struct {
		body string
		want activities.GenerateResponse
	}{
		"text and usage": {
			body: ": comment\n\n" + events(delta(`{"role": "assistant", "content": ""}`), delta(`{"content": "hel"}`), delta(`{"content": "lo"}`), finish("stop"), streamUsage, done),
			want: activities.GenerateResponse{
				Model: "m-1", FinishReason: "stop",
				Message: activities.Message{Role: "assistant", Content: "hello"},
				Usage:   &activities.Usage{InputTokens: 5, OutputTokens: 2},
			},
		},
		"no last event":         {body: events(delta(`{"content": "hello"}`), finish("stop")), want: hel},
		"events after the last": {body: events(delta(`{"content": "hello"}`), finish("stop"), done, "{"), want: hel},
		"ids that change":       {body: events(strings.Replace(delta(`{"content": "hello"}`), `"c"`, `""`, 1), finish("stop"), done), want: hel},
		"another choice":        {body: events(delta(`{"content": "hello"}`), `{"choices": [{"index": 1, "delta": {"content": "bye"}}]}`, finish("stop"), done), want: hel},
		"a whole answer":        {body: "", want: hel},
		"no error":              {body: events(`{"error": null, "model": "m-1", "choices": []}`, delta(`{"content": "hello"}`), finish("stop"), done), want: hel},
		"no reason, but the end": {
			body: events(delta(`{"content": "hello"}`), done),
			want: activities.GenerateResponse{Model: "m-1", Message: hel.Message},
		},
		"refusal": {
			body: events(delta(`{"refusal": "I "}`), delta(`{"refusal": "won't."}`), finish("stop"), done),
			want: activities.GenerateResponse{Model: "m-1", FinishReason: "content_filter", Message: activities.Message{Role: "assistant", Content: "I won't."}},
		},
		"tool calls": {
			body: events(
				delta(`{"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "read", "arguments": ""}}]}`),
				delta(`{"tool_calls": [{"index": 0, "function": {"arguments": "{\"x\""}}]}`),
				delta(`{"tool_calls": [{"index": 1, "id": "b", "function": {"name": "now", "arguments": "{}"}}, {"index": 0, "function": {"arguments": ":1}"}}]}`),
				finish("tool_calls"), done),
			want: calls(activities.ToolCall{ID: "a", Name: "read", Arguments: `{"x":1}`}, activities.ToolCall{ID: "b", Name: "now", Arguments: "{}"}),
		},
		"tool calls without an index": {
			body: events(
				delta(`{"tool_calls": [{"id": "a", "function": {"name": "read", "arguments": "{}"}}]}`),
				delta(`{"tool_calls": [{"id": "b", "function": {"name": "read", "arguments": "{\"x\":"}}, {"function": {"arguments": "1}"}}]}`),
				finish("tool_calls"), done),
			want: calls(activities.ToolCall{ID: "a", Name: "read", Arguments: `{}`}, activities.ToolCall{ID: "b", Name: "read", Arguments: `{"x":1}`}),
		},
		"an id for each piece": {
			body: events(
				delta(`{"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read", "arguments": ""}}]}`),
				delta(`{"tool_calls": [{"index": 0, "id": "b", "function": {"arguments": "{}"}}]}`),
				finish("tool_calls"), done),
			want: calls(activities.ToolCall{ID: "a", Name: "read", Arguments: `{}`}),
		},
		"everything in each piece": {
			body: events(
				delta(`{"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read", "arguments": "{"}}]}`),
				delta(`{"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read", "arguments": "}"}}]}`),
				finish("tool_calls"), done),
			want: calls(activities.ToolCall{ID: "a", Name: "read", Arguments: `{}`}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := streaming(tc.body)
			if tc.body == "" {
				handler = answering(200, hello)
			}
			got, err := generate(t, setup(t, openai.Options{Stream: true}, handler))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

func TestStreamRequest(t *testing.T) {
	t.Parallel()
	for stream, want := range map[bool]string{
		false: `{"model": "m", "messages": [{"role": "user", "content": "hi"}]}`,
		true:  `{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true, "stream_options": {"include_usage": true}}`,
	} {
		var got []byte
		_, err := generate(t, setup(t, openai.Options{Stream: stream}, func(w http.ResponseWriter, r *http.Request) {
			got, _ = io.ReadAll(r.Body)
			streaming(events(delta(`{"content": "hello"}`), finish("stop"), done))(w, r)
		}))
		require.NoError(t, err, "a stream that was not asked for is read as well")
		require.JSONEq(t, want, string(got))
	}
}

func TestBrokenStream(t *testing.T) {
	t.Parallel()
	begun := delta(`{"content": "hel"}`)
	for name, tc := range map[string]struct{ body, want string }{
		"ended early":            {events(begun), "the answer was cut off: the stream ended early"},
		"within a tool call":     {events(delta(`{"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]}`)), "the answer was cut off: the stream ended early"},
		"within an event":        {events(begun) + "data: {", "the answer was cut off: the stream ended early"},
		"malformed event":        {events(begun, `{"choices": `), "malformed event in the answer: unexpected end of JSON input"},
		"error":                  {events(begun, `{"error": {"message": "upstream is busy", "code": 502}}`), "the answer was broken off: upstream is busy"},
		"error after the finish": {events(begun, finish("stop"), `{"error": "lost"}`), "the answer was broken off: lost"},
		"nothing":                {events(done), "the answer has no choice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := generate(t, setup(t, openai.Options{Stream: true}, streaming(tc.body)))
			require.EqualError(t, err, `openai: model "m": `+tc.want)
			require.Zero(t, requireRetryable(t, err))
		})
	}
	t.Run("connection lost", func(t *testing.T) {
		t.Parallel()
		_, err := generate(t, setup(t, openai.Options{Stream: true}, func(w http.ResponseWriter, r *http.Request) {
			streaming(events(begun, finish("stop")))(w, r)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}))
		require.ErrorContains(t, err, "the answer was cut off")
		requireRetryable(t, err)
	})
}

// The key may come in two pieces, neither of which looks like one.
func TestKeyInStreamStaysSecret(t *testing.T) {
	t.Parallel()
	quoted := func(s string) string {
		raw, err := json.Marshal(s)
		require.NoError(t, err)
		return string(raw)
	}
	body := events(delta(`{"content": `+quoted("it is "+key[:9])+`}`), delta(`{"content": `+quoted(key[9:])+`}`), finish("stop"), done)
	got, err := generate(t, setup(t, openai.Options{APIKey: key, Stream: true}, streaming(body)))
	require.NoError(t, err)
	require.Equal(t, "it is [redacted]", got.Message.Content)
}

func TestStreamFromEnv(t *testing.T) {
	var got []byte
	server := setupServer(t, func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
		answering(200, hello)(w, r)
	})
	for value, want := range map[string]bool{"": false, "true": true, "0": false} {
		t.Setenv("LLM_BASE_URL", server)
		t.Setenv("LLM_MODEL", "m")
		t.Setenv("LLM_STREAM", value)
		t.Setenv("LLM_API_KEY", "")
		model, ok, err := openai.FromEnv()
		require.NoError(t, err)
		require.True(t, ok)
		_, err = generate(t, model)
		require.NoError(t, err)
		require.Equal(t, want, strings.Contains(string(got), `"stream":true`), value)
	}
}
