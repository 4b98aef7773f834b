package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/openai"
)

// key has characters that JSON, Go and URLs escape, each in their own way.
const key = `sk-se"cr\et/+=0123456789`

const hello = `{"model": "m-1", "choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}`

var request = activities.GenerateRequest{Messages: []activities.Message{{Role: "user", Content: "hi"}}}

func setup(t *testing.T, opts openai.Options, handler http.HandlerFunc) *openai.Model {
	t.Helper()
	if opts.BaseURL == "" {
		opts.BaseURL = setupServer(t, handler)
	}
	if opts.Model == "" {
		opts.Model = "m"
	}
	model, err := openai.New(opts)
	require.NoError(t, err)
	return model
}

// setupServer starts a server and gives its base URL.
func setupServer(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/v1"
}

// answering is a handler that gives the same answer to every request.
func answering(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func generate(t *testing.T, model *openai.Model) (activities.GenerateResponse, error) {
	t.Helper()
	return model.Generate(t.Context(), request, nil)
}

func requireFinal(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	_, retryable := activities.RetryDelay(err)
	require.False(t, retryable, "marked as retryable: %v", err)
}

func requireRetryable(t *testing.T, err error) time.Duration {
	t.Helper()
	require.Error(t, err)
	delay, retryable := activities.RetryDelay(err)
	require.True(t, retryable, "not marked as retryable: %v", err)
	return delay
}

func TestRequest(t *testing.T) {
	t.Parallel()
	half := 0.5
	for name, tc := range map[string]struct {
		req   activities.GenerateRequest
		tools []activities.ToolSpec
		want  string
	}{
		"least": {
			req:  request,
			want: `{"model": "m", "messages": [{"role": "user", "content": "hi"}]}`,
		},
		"options": {
			req:  activities.GenerateRequest{Model: "other", Temperature: &half, MaxTokens: 64, Messages: request.Messages},
			want: `{"model": "other", "temperature": 0.5, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}`,
		},
		"zero temperature": {
			req:  activities.GenerateRequest{Temperature: new(float64), Messages: request.Messages},
			want: `{"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "hi"}]}`,
		},
		"conversation": {
			req: activities.GenerateRequest{Messages: []activities.Message{
				{Role: "system", Content: "be <brief> & kind"},
				{Role: "user", Content: "weather?"},
				{Role: "assistant", ToolCalls: []activities.ToolCall{
					{ID: "1", Name: "weather", Arguments: `{"city": "Rome"}`},
					{ID: "2", Name: "weather", Arguments: `{"city":`},
				}},
				{Role: "tool", ToolCallID: "1", Content: "sunny"},
				{Role: "tool", ToolCallID: "2"},
				{Role: "assistant", Content: "let me see", ToolCalls: []activities.ToolCall{{ID: "3", Name: "now", Arguments: ""}}},
				{Role: "assistant"},
			}},
			want: `{"model": "m", "messages": [
				{"role": "system", "content": "be <brief> & kind"},
				{"role": "user", "content": "weather?"},
				{"role": "assistant", "tool_calls": [
					{"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}},
					{"id": "2", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":"}}
				]},
				{"role": "tool", "tool_call_id": "1", "content": "sunny"},
				{"role": "tool", "tool_call_id": "2", "content": ""},
				{"role": "assistant", "content": "let me see", "tool_calls": [{"id": "3", "type": "function", "function": {"name": "now", "arguments": ""}}]},
				{"role": "assistant", "content": ""}
			]}`,
		},
		"tools": {
			req: request,
			tools: []activities.ToolSpec{
				{Name: "weather", Description: "tells the weather", Parameters: json.RawMessage(`{"type": "object", "properties": {"z": {"type": "string"}, "a": {"maximum": 9007199254740993}}}`)},
				{Name: "now"},
			},
			want: `{"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [
				{"type": "function", "function": {"name": "weather", "description": "tells the weather",
					"parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"maximum": 9007199254740993}}}}},
				{"type": "function", "function": {"name": "now"}}
			]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []byte
			model := setup(t, openai.Options{}, func(w http.ResponseWriter, r *http.Request) {
				got, _ = io.ReadAll(r.Body)
				answering(200, hello)(w, r)
			})
			_, err := model.Generate(t.Context(), tc.req, tc.tools)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(decode(t, []byte(tc.want)), decode(t, got)))
		})
	}
}

// decode keeps numbers as they are written.
func decode(t *testing.T, data []byte) (value any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&value))
	return value
}

func TestRequestKeepsOrderOfProperties(t *testing.T) {
	t.Parallel()
	properties := `"properties":{"reasoning":{"type":"string"},"answer":{"type":"string"}}`
	var got []byte
	model := setup(t, openai.Options{}, func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
		answering(200, hello)(w, r)
	})
	_, err := model.Generate(t.Context(), request, []activities.ToolSpec{{Name: "f", Parameters: json.RawMessage(`{"type":"object",` + properties + `}`)}})
	require.NoError(t, err)
	require.Contains(t, string(got), properties)
}

func TestRequestLine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ key, suffix, authorization, path string }{
		"no key":         {"", "/v1", "", "/v1/chat/completions"},
		"key":            {key, "/v1", "Bearer " + key, "/v1/chat/completions"},
		"trailing slash": {"", "/api/v1/", "", "/api/v1/chat/completions"},
		"no path":        {"", "", "", "/chat/completions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got *http.Request
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got = r
				answering(200, hello)(w, r)
			}))
			t.Cleanup(server.Close)
			_, err := generate(t, setup(t, openai.Options{BaseURL: server.URL + tc.suffix, APIKey: tc.key}, nil))
			require.NoError(t, err)
			require.Equal(t, "POST "+tc.path, got.Method+" "+got.URL.Path)
			require.Equal(t, tc.authorization, got.Header.Get("Authorization"))
			require.Equal(t, "application/json", got.Header.Get("Content-Type"))
		})
	}
}

// The SDK's own variables are for another endpoint than LLM_BASE_URL.
func TestOpenAIVariablesAreIgnored(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-for-somebody-else")
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1")
	t.Setenv("OPENAI_ORG_ID", "org")
	t.Setenv("OPENAI_CUSTOM_HEADERS", "X-Custom: 1")
	var got http.Header
	model := setup(t, openai.Options{}, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		answering(200, hello)(w, r)
	})
	_, err := generate(t, model)
	require.NoError(t, err)
	for _, name := range []string{"Authorization", "Openai-Organization", "X-Custom"} {
		require.NotContains(t, got, name)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTokenLimitName(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{
		"https://api.openai.com/v1":           `"max_completion_tokens":7`,
		"https://eu.api.openai.com/v1":        `"max_completion_tokens":7`,
		"https://api.openai.com.example.org/": `"max_tokens":7`,
		"http://localhost:8080/v1":            `"max_tokens":7`,
	} {
		var got []byte
		model := setup(t, openai.Options{BaseURL: base, HTTPClient: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			got, _ = io.ReadAll(r.Body)
			recorder := httptest.NewRecorder()
			answering(200, hello)(recorder, r)
			return recorder.Result(), nil
		})}}, nil)
		_, err := model.Generate(t.Context(), activities.GenerateRequest{Messages: request.Messages, MaxTokens: 7}, nil)
		require.NoError(t, err)
		require.Contains(t, string(got), want, base)
	}
}

func TestUnusableRequest(t *testing.T) {
	t.Parallel()
	model := setup(t, openai.Options{}, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })

	_, err := model.Generate(t.Context(), activities.GenerateRequest{Messages: []activities.Message{{Role: "user"}, {Role: "robot"}}}, nil)
	requireFinal(t, err)
	require.EqualError(t, err, `openai: messages[1]: unknown role "robot": use system, user, assistant or tool`)

	for _, schema := range []string{`[]`, `{`, `"x"`} {
		_, err = model.Generate(t.Context(), request, []activities.ToolSpec{{Name: "f", Parameters: json.RawMessage(schema)}})
		requireFinal(t, err)
		require.ErrorContains(t, err, `openai: tool "f": parameters are not a JSON object`)
	}

	unnamed, err := openai.New(openai.Options{BaseURL: "http://127.0.0.1:1/v1"})
	require.NoError(t, err)
	_, err = generate(t, unnamed)
	requireFinal(t, err)
	require.ErrorContains(t, err, "LLM_MODEL")
}

func TestResponse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body string
		want activities.GenerateResponse
	}{
		"text and usage": {
			body: `{"id": "c", "object": "chat.completion", "model": "m-1", "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
				"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello", "refusal": null}}]}`,
			want: activities.GenerateResponse{
				Model: "m-1", FinishReason: "stop",
				Message: activities.Message{Role: "assistant", Content: "hello"},
				Usage:   &activities.Usage{InputTokens: 5, OutputTokens: 2},
			},
		},
		"missing usage": {
			body: hello,
			want: activities.GenerateResponse{Model: "m-1", FinishReason: "stop", Message: activities.Message{Role: "assistant", Content: "hello"}},
		},
		"null usage and unknown fields": {
			body: `{"choices": [{"finish_reason": "length", "message": {"content": "hel", "reasoning": "…"}}], "usage": null, "new": {}}`,
			want: activities.GenerateResponse{FinishReason: "length", Message: activities.Message{Role: "assistant", Content: "hel"}},
		},
		"tool calls": {
			body: `{"model": "m-1", "choices": [{"finish_reason": "tool_calls", "message": {"content": null, "tool_calls": [
				{"id": "b", "type": "function", "function": {"name": "write", "arguments": "{ \"x\" : 1 }"}},
				{"id": "a", "type": "function", "function": {"name": "read", "arguments": "not json"}},
				{"id": "c", "function": {"name": "now"}}]}}]}`,
			want: activities.GenerateResponse{
				Model: "m-1", FinishReason: "tool_calls",
				Message: activities.Message{Role: "assistant", ToolCalls: []activities.ToolCall{
					{ID: "b", Name: "write", Arguments: `{ "x" : 1 }`},
					{ID: "a", Name: "read", Arguments: "not json"},
					{ID: "c", Name: "now"},
				}},
			},
		},
		"refusal": {
			body: `{"choices": [{"finish_reason": "stop", "message": {"content": null, "refusal": "I can't help with that."}}]}`,
			want: activities.GenerateResponse{FinishReason: "content_filter", Message: activities.Message{Role: "assistant", Content: "I can't help with that."}},
		},
		"refusal after some content": {
			body: `{"choices": [{"finish_reason": "stop", "message": {"content": "First,", "refusal": "No."}}]}`,
			want: activities.GenerateResponse{FinishReason: "content_filter", Message: activities.Message{Role: "assistant", Content: "First,"}},
		},
		"content in parts and arguments as an object are kept": {
			body: `{"choices": [{"finish_reason": null, "message": {"content": [{"type":"text"}], "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"x":1}}}]}}]}`,
			want: activities.GenerateResponse{Message: activities.Message{
				Role: "assistant", Content: `[{"type":"text"}]`, ToolCalls: []activities.ToolCall{{ID: "1", Name: "f", Arguments: `{"x":1}`}},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := generate(t, setup(t, openai.Options{}, answering(200, tc.body)))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

func TestResponseOfWrongContentType(t *testing.T) {
	t.Parallel()
	got, err := generate(t, setup(t, openai.Options{}, answering(200, hello, "Content-Type", "text/plain")))
	require.NoError(t, err)
	require.Equal(t, "hello", got.Message.Content)
}

func TestStatus(t *testing.T) {
	t.Parallel()
	const broken = `{"error": {"message": "it broke", "type": "t", "param": null, "code": null}}`
	for _, tc := range []struct {
		status    int
		body      string
		retryable bool
		want      string
	}{
		{400, broken, false, `400 Bad Request: it broke`},
		{401, broken, false, `401 Unauthorized: it broke (check the API key (LLM_API_KEY))`},
		{402, broken, false, `402 Payment Required: it broke (check the plan and billing of the account)`},
		{403, broken, false, `403 Forbidden: it broke (check that the API key (LLM_API_KEY) may use this model)`},
		{404, broken, false, `404 Not Found: it broke (check the base URL (LLM_BASE_URL) and the model (LLM_MODEL))`},
		{405, broken, false, `405 Method Not Allowed: it broke (check the base URL (LLM_BASE_URL) and the model (LLM_MODEL))`},
		{413, broken, false, `413 Request Entity Too Large: it broke (shorten the conversation)`},
		{418, broken, false, `418 I'm a teapot: it broke`},
		{422, broken, false, `422 Unprocessable Entity: it broke`},
		{408, broken, true, `408 Request Timeout: it broke`},
		{409, broken, true, `409 Conflict: it broke`},
		{429, broken, true, `429 Too Many Requests: it broke`},
		{500, broken, true, `500 Internal Server Error: it broke`},
		{502, broken, true, `502 Bad Gateway: it broke`},
		{503, broken, true, `503 Service Unavailable: it broke`},
		{504, broken, true, `504 Gateway Timeout: it broke`},
		{529, broken, true, `529: it broke`},

		{429, `{"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "param": null, "code": "insufficient_quota"}}`, false,
			`429 Too Many Requests: You exceeded your current quota (check the plan and billing of the account)`},
		{429, `{"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}`, true, `429 Too Many Requests: slow down`},

		{500, `{"error": "a string"}`, true, `500 Internal Server Error: a string`},
		{500, `{"object": "error", "message": "vllm's", "code": 500}`, true, `500 Internal Server Error: vllm's`},
		{422, `{"detail": [{"loc": ["body"], "msg": "x > y"}]}`, false, `422 Unprocessable Entity: [{"loc":["body"],"msg":"x > y"}]`},
		{400, `{"reason": 5}`, false, `400 Bad Request: {"reason":5}`},
		{502, "<h1>\n\tBad\x1b[31m gateway\xff</h1>\r\n", true, "502 Bad Gateway: <h1> Bad [31m gateway\uFFFD</h1>"},
		{503, ``, true, `503 Service Unavailable`},
		{500, strings.Repeat("é", 501), true, `500 Internal Server Error: ` + strings.Repeat("é", 500) + `…`},
	} {
		t.Run(fmt.Sprint(tc.status), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			_, err := generate(t, setup(t, openai.Options{}, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				answering(tc.status, tc.body)(w, r)
			}))
			require.EqualError(t, err, `openai: model "m": `+tc.want)
			if tc.retryable {
				require.Zero(t, requireRetryable(t, err))
			} else {
				requireFinal(t, err)
			}
			require.EqualValues(t, 1, requests.Load())
		})
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	date := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for name, tc := range map[string]struct {
		headers []string
		want    time.Duration
	}{
		"seconds":             {[]string{"Retry-After", "7"}, 7 * time.Second},
		"fraction":            {[]string{"Retry-After", "0.5"}, 500 * time.Millisecond},
		"zero":                {[]string{"Retry-After", "0"}, 0},
		"milliseconds":        {[]string{"Retry-After-Ms", "250"}, 250 * time.Millisecond},
		"milliseconds first":  {[]string{"Retry-After-Ms", "250", "Retry-After", "1"}, 250 * time.Millisecond},
		"bad ms, good s":      {[]string{"Retry-After-Ms", "soon", "Retry-After", "1"}, time.Second},
		"date":                {[]string{"Retry-After", date(time.Minute)}, time.Minute},
		"past date":           {[]string{"Retry-After", date(-time.Minute)}, 0},
		"capped":              {[]string{"Retry-After", "86400"}, 5 * time.Minute},
		"capped ms":           {[]string{"Retry-After-Ms", "1e300"}, 5 * time.Minute},
		"capped date":         {[]string{"Retry-After", date(24 * time.Hour)}, 5 * time.Minute},
		"infinite":            {[]string{"Retry-After", "Inf"}, 5 * time.Minute},
		"negative":            {[]string{"Retry-After", "-1"}, 0},
		"not a number":        {[]string{"Retry-After", "NaN"}, 0},
		"neither":             {[]string{"Retry-After", "tomorrow"}, 0},
		"nothing":             {nil, 0},
		"of another response": {[]string{"X-Retry-After", "7"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, status := range []int{429, 503} {
				_, err := generate(t, setup(t, openai.Options{}, answering(status, `{}`, tc.headers...)))
				// A date has whole seconds, and some time passes.
				require.InDelta(t, tc.want, requireRetryable(t, err), dateSlack(name))
			}
		})
	}
}

func dateSlack(name string) float64 {
	if name == "date" {
		return float64(10 * time.Second)
	}
	return 0
}

func TestBrokenConnection(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handler   http.HandlerFunc
		retryable bool
		want      string
	}{
		"dropped":          {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true, "EOF"},
		"cut answer":       {answering(200, hello[:20], "Content-Length", "200"), true, "the answer was cut off: unexpected EOF"},
		"cut error":        {answering(401, `{"err`, "Content-Length", "200"), false, "401 Unauthorized (check the API key (LLM_API_KEY))"},
		"cut server error": {answering(503, `{"err`, "Content-Length", "200", "Retry-After", "3"), true, "503 Service Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := generate(t, setup(t, openai.Options{}, tc.handler))
			require.ErrorContains(t, err, tc.want)
			if tc.retryable {
				requireRetryable(t, err)
			} else {
				requireFinal(t, err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, listener.Close())
		_, err = generate(t, setup(t, openai.Options{BaseURL: "http://" + listener.Addr().String() + "/v1"}, nil))
		require.Zero(t, requireRetryable(t, err))
		require.ErrorContains(t, err, listener.Addr().String())
	})
}

func TestUnusableAnswer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handler   http.HandlerFunc
		retryable bool
		want      string
	}{
		"malformed":     {answering(200, hello[:20]), true, "malformed answer: unexpected end of JSON input"},
		"a list":        {answering(200, `[]`), true, "malformed answer: json: cannot unmarshal array"},
		"no choices":    {answering(200, `{"choices": []}`), true, `the answer has no choice: {"choices":[]}`},
		"null":          {answering(200, `null`), true, "the answer has no choice: null"},
		"no message":    {answering(200, `{"choices": [{"finish_reason": "stop"}]}`), true, "the answer has no choice"},
		"hidden error":  {answering(200, `{"error": {"message": "upstream is busy", "code": 502}}`), true, "the answer has no choice: upstream is busy"},
		"web page":      {answering(200, "<html>Welcome</html>", "Content-Type", "text/html; charset=utf-8"), false, `the answer is not JSON but of type "text/html": check the base URL (LLM_BASE_URL)`},
		"nothing":       {answering(204, "", "Content-Type", ""), false, "the answer is not JSON"},
		"redirect":      {answering(308, "", "Location", "https://elsewhere.example/v1"), false, "308 Permanent Redirect: https://elsewhere.example/v1 (redirects are not followed: check the base URL (LLM_BASE_URL))"},
		"redirect home": {answering(302, "", "Location", "/login"), false, "302 Found: /login (redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := generate(t, setup(t, openai.Options{}, tc.handler))
			require.ErrorContains(t, err, `openai: model "m": `+tc.want)
			if tc.retryable {
				requireRetryable(t, err)
			} else {
				requireFinal(t, err)
			}
		})
	}
}

// stalling handlers never finish. The first has not begun to answer, the second has.
var stalling = map[string]http.HandlerFunc{
	"before the answer": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	},
	"within the answer": func(w http.ResponseWriter, r *http.Request) {
		answering(200, hello[:20])(w, r)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	},
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	for name, handler := range stalling {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := generate(t, setup(t, openai.Options{Timeout: 50 * time.Millisecond}, handler))
			require.EqualError(t, err, `openai: model "m": no answer within 50ms`)
			require.Zero(t, requireRetryable(t, err))
		})
	}
}

func TestContext(t *testing.T) {
	t.Parallel()
	for name, handler := range stalling {
		t.Run("cancelled "+name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			model := setup(t, openai.Options{}, func(w http.ResponseWriter, r *http.Request) {
				cancel()
				handler(w, r)
			})
			_, err := model.Generate(ctx, request, nil)
			require.Equal(t, context.Canceled, err)
		})
		t.Run("expired "+name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := setup(t, openai.Options{}, handler).Generate(ctx, request, nil)
			require.Equal(t, context.DeadlineExceeded, err)
		})
	}
}

// echo is what a careless server says about a request.
func echo(r *http.Request) string {
	return "bad credentials: " + r.Header.Get("Authorization")
}

func TestKeyStaysSecret(t *testing.T) {
	t.Parallel()
	jsonOf := func(value any) string {
		encoded, _ := json.Marshal(value)
		return string(encoded)
	}
	for name, handler := range map[string]http.HandlerFunc{
		"message": func(w http.ResponseWriter, r *http.Request) {
			answering(401, jsonOf(map[string]any{"error": map[string]any{"message": echo(r)}}))(w, r)
		},
		"unknown form": func(w http.ResponseWriter, r *http.Request) {
			answering(400, jsonOf(map[string]any{"headers": r.Header}))(w, r)
		},
		"text": func(w http.ResponseWriter, r *http.Request) {
			answering(500, echo(r), "Content-Type", "text/plain")(w, r)
		},
		"at the limit": func(w http.ResponseWriter, r *http.Request) {
			answering(500, strings.Repeat("x", 500-len("bad credentials: Bearer sk-se"))+echo(r))(w, r)
		},
		"location": func(w http.ResponseWriter, r *http.Request) {
			answering(302, "", "Location", "https://elsewhere.example/?"+url.QueryEscape(echo(r)))(w, r)
		},
		"content type": func(w http.ResponseWriter, r *http.Request) {
			answering(200, "", "Content-Type", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))(w, r)
		},
		"no choice": func(w http.ResponseWriter, r *http.Request) {
			answering(200, jsonOf(map[string]any{"error": echo(r)}))(w, r)
		},
		"not HTTP": func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")+"\r\n")
				_ = conn.Close()
			}
		},
		"content": func(w http.ResponseWriter, r *http.Request) {
			answering(200, jsonOf(map[string]any{"model": echo(r), "choices": []any{map[string]any{
				"finish_reason": echo(r),
				"message": map[string]any{"content": echo(r), "tool_calls": []any{map[string]any{
					"id": echo(r), "function": map[string]any{"name": echo(r), "arguments": jsonOf(echo(r))},
				}}},
			}}}))(w, r)
		},
		"refusal": func(w http.ResponseWriter, r *http.Request) {
			answering(200, jsonOf(map[string]any{"choices": []any{map[string]any{"message": map[string]any{"refusal": echo(r)}}}}))(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := setup(t, openai.Options{APIKey: key}, handler)
			resp, err := generate(t, model)
			seen := fmt.Sprintf("%+v %+v", resp, err)
			if err != nil {
				for inner := err; inner != nil; inner = errors.Unwrap(inner) {
					seen += fmt.Sprintf("%+v %#v", inner, inner)
				}
			}
			for _, part := range []string{"sk-se", "0123456789"} {
				require.NotContains(t, seen, part)
			}
			if name != "at the limit" && name != "content type" {
				require.Contains(t, seen, "[redacted]")
			}
		})
	}

	model, err := openai.New(openai.Options{BaseURL: "http://127.0.0.1:1", APIKey: key})
	require.NoError(t, err)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(format, model), "sk-se")
	}
}

// A local server's placeholder for a key may be a word that the model says.
func TestPlaceholderStaysInAnswers(t *testing.T) {
	t.Parallel()
	got, err := generate(t, setup(t, openai.Options{APIKey: "hello"}, answering(200, hello)))
	require.NoError(t, err)
	require.Equal(t, "hello", got.Message.Content)

	_, err = generate(t, setup(t, openai.Options{APIKey: "hello"}, answering(401, `{"error": "bad key hello"}`)))
	require.ErrorContains(t, err, "bad key [redacted]")
}

func TestNew(t *testing.T) {
	t.Parallel()
	const base = "http://127.0.0.1:8080/v1"
	for name, tc := range map[string]struct {
		opts openai.Options
		want string
	}{
		"no URL":              {openai.Options{}, "LLM_BASE_URL"},
		"no scheme":           {openai.Options{BaseURL: "127.0.0.1:8080/v1"}, "http or https"},
		"host as scheme":      {openai.Options{BaseURL: "localhost:8080/v1"}, "http or https"},
		"other scheme":        {openai.Options{BaseURL: "ftp://localhost/v1"}, "http or https"},
		"no host":             {openai.Options{BaseURL: "http://:8080/v1"}, "http or https"},
		"key as URL":          {openai.Options{BaseURL: "http://sk-secret\x00"}, "http or https"},
		"credentials":         {openai.Options{BaseURL: "http://user:sk-secret@localhost/v1"}, "no user"},
		"query":               {openai.Options{BaseURL: base + "?key=sk-secret"}, "query"},
		"fragment":            {openai.Options{BaseURL: base + "#sk-secret"}, "fragment"},
		"newline in key":      {openai.Options{BaseURL: base, APIKey: "sk-secret\n"}, "LLM_API_KEY"},
		"non-ASCII key":       {openai.Options{BaseURL: base, APIKey: "sk-secret…"}, "LLM_API_KEY"},
		"negative timeout":    {openai.Options{BaseURL: base, Timeout: -1}, "timeout is negative"},
		"all that is needed":  {openai.Options{BaseURL: base}, ""},
		"everything":          {openai.Options{BaseURL: base, APIKey: key, Model: "m", Timeout: 1, HTTPClient: &http.Client{}}, ""},
		"scheme in uppercase": {openai.Options{BaseURL: "HTTPS://api.example.com"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := openai.New(tc.opts)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), "sk-secret")
		})
	}
}

func TestHTTPClient(t *testing.T) {
	t.Parallel()
	redirecting := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/chat/completions" {
			http.Redirect(w, r, "/v2", http.StatusPermanentRedirect)
			return
		}
		answering(200, hello)(w, r)
	}

	client := &http.Client{}
	_, err := generate(t, setup(t, openai.Options{HTTPClient: client}, redirecting))
	requireFinal(t, err)
	require.Nil(t, client.CheckRedirect, "the caller's client was changed")

	client.CheckRedirect = func(*http.Request, []*http.Request) error { return nil }
	_, err = generate(t, setup(t, openai.Options{HTTPClient: client}, redirecting))
	require.NoError(t, err)
}

func TestFromEnv(t *testing.T) {
	for name, tc := range map[string]struct {
		url, key, model, stream string
		ok                      bool
		want                    string
	}{
		"none":         {},
		"all":          {url: "http://127.0.0.1:8080/v1", key: key, model: "m", ok: true},
		"no key":       {url: "http://127.0.0.1:8080/v1", model: "m", ok: true},
		"streaming":    {url: "http://127.0.0.1:8080/v1", model: "m", stream: "true", ok: true},
		"only stream":  {stream: "true"},
		"bad stream":   {url: "http://127.0.0.1:8080/v1", model: "m", stream: "maybe", want: "LLM_STREAM must be true or false"},
		"no model":     {url: "http://127.0.0.1:8080/v1", want: "openai: LLM_MODEL not set: set LLM_BASE_URL and LLM_MODEL, or none of the LLM_ variables"},
		"no URL":       {model: "m", want: "openai: LLM_BASE_URL not set: "},
		"only the key": {key: key, want: "openai: LLM_BASE_URL and LLM_MODEL not set: "},
		"bad URL":      {url: "localhost", model: "m", want: "(LLM_BASE_URL) must be an http or https URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("LLM_BASE_URL", tc.url)
			t.Setenv("LLM_API_KEY", tc.key)
			t.Setenv("LLM_MODEL", tc.model)
			t.Setenv("LLM_STREAM", tc.stream)
			model, ok, err := openai.FromEnv()
			require.Equal(t, tc.ok, ok)
			require.Equal(t, tc.ok, model != nil)
			if tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
}
