package anthropic_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/anthropic"
)

// key has characters that JSON, Go and URLs escape, each in their own way.
const key = `sk-se"cr\et/+=0123456789`

const hello = `{"id": "msg_1", "type": "message", "role": "assistant", "model": "c-1", "content": [{"type": "text", "text": "hello"}],
	"stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 5, "output_tokens": 2}}`

var request = activities.GenerateRequest{Messages: []activities.Message{{Role: "user", Content: "hi"}}}

func setup(t *testing.T, opts anthropic.Options, handler http.HandlerFunc) *anthropic.Model {
	t.Helper()
	if opts.BaseURL == "" {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		opts.BaseURL = server.URL
	}
	if opts.Model == "" {
		opts.Model = "c"
	}
	model, err := anthropic.New(opts)
	require.NoError(t, err)
	return model
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

func generate(t *testing.T, model *anthropic.Model) (activities.GenerateResponse, error) {
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
		opts  anthropic.Options
		req   activities.GenerateRequest
		tools []activities.ToolSpec
		want  string
	}{
		"least": {
			req:  request,
			want: `{"model": "c", "max_tokens": 8192, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}`,
		},
		"options": {
			req:  activities.GenerateRequest{Model: "other", Temperature: &half, MaxTokens: 64, Messages: request.Messages},
			want: `{"model": "other", "temperature": 0.5, "max_tokens": 64, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}`,
		},
		"own limit": {
			opts: anthropic.Options{MaxTokens: 100000},
			req:  activities.GenerateRequest{Messages: request.Messages},
			want: `{"model": "c", "max_tokens": 100000, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}`,
		},
		"conversation": {
			req: activities.GenerateRequest{Messages: []activities.Message{
				{Role: "system", Content: "be <brief> & kind"},
				{Role: "user", Content: "weather?"},
				{Role: "assistant", Content: "let me see", ToolCalls: []activities.ToolCall{
					{ID: "1", Name: "weather", Arguments: `{"z": 1, "city": "Rome"}`},
					{ID: "2", Name: "weather", Arguments: `{"city":`},
					{ID: "3", Name: "now", Arguments: ""},
					{ID: "4", Name: "now", Arguments: `[1]`},
					{ID: "5", Name: "now", Arguments: `null`},
				}},
				{Role: "tool", ToolCallID: "1", Content: "sunny"},
				{Role: "tool", ToolCallID: "2"},
				{Role: "system", Content: "be quick"},
				{Role: "user", Content: "well?"},
				{Role: "assistant"},
				{Role: "user", Content: ""},
				{Role: "user", Content: "hello?"},
			}},
			want: `{"model": "c", "max_tokens": 8192,
				"system": [{"type": "text", "text": "be <brief> & kind"}, {"type": "text", "text": "be quick"}],
				"messages": [
					{"role": "user", "content": [{"type": "text", "text": "weather?"}]},
					{"role": "assistant", "content": [
						{"type": "text", "text": "let me see"},
						{"type": "tool_use", "id": "1", "name": "weather", "input": {"z": 1, "city": "Rome"}},
						{"type": "tool_use", "id": "2", "name": "weather", "input": {"malformed_arguments": "{\"city\":"}},
						{"type": "tool_use", "id": "3", "name": "now", "input": {}},
						{"type": "tool_use", "id": "4", "name": "now", "input": {"malformed_arguments": "[1]"}},
						{"type": "tool_use", "id": "5", "name": "now", "input": {"malformed_arguments": "null"}}
					]},
					{"role": "user", "content": [
						{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "sunny"}]},
						{"type": "tool_result", "tool_use_id": "2"},
						{"type": "text", "text": "well?"},
						{"type": "text", "text": "hello?"}
					]}
				]}`,
		},
		"tools": {
			req: request,
			tools: []activities.ToolSpec{
				{Name: "weather", Description: "tells the weather", Parameters: json.RawMessage(`{"type": "object", "properties": {"z": {"type": "string"}, "a": {"maximum": 9007199254740993}}, "additionalProperties": false}`)},
				{Name: "now"},
			},
			want: `{"model": "c", "max_tokens": 8192, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "tools": [
				{"name": "weather", "description": "tells the weather",
					"input_schema": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"maximum": 9007199254740993}}, "additionalProperties": false}},
				{"name": "now", "input_schema": {"type": "object"}}
			]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []byte
			model := setup(t, tc.opts, func(w http.ResponseWriter, r *http.Request) {
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
	model := setup(t, anthropic.Options{}, func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
		answering(200, hello)(w, r)
	})
	_, err := model.Generate(t.Context(), request, []activities.ToolSpec{{Name: "f", Parameters: json.RawMessage(`{"type":"object",` + properties + `}`)}})
	require.NoError(t, err)
	require.Contains(t, string(got), properties)
}

func TestRequestLine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ key, suffix, path string }{
		"no key":         {"", "", "/v1/messages"},
		"key":            {key, "", "/v1/messages"},
		"trailing slash": {"", "/", "/v1/messages"},
		"path":           {"", "/anthropic", "/anthropic/v1/messages"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got *http.Request
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got = r
				answering(200, hello)(w, r)
			}))
			t.Cleanup(server.Close)
			_, err := generate(t, setup(t, anthropic.Options{BaseURL: server.URL + tc.suffix, APIKey: tc.key}, nil))
			require.NoError(t, err)
			require.Equal(t, "POST "+tc.path, got.Method+" "+got.URL.Path)
			require.Equal(t, tc.key, got.Header.Get("X-Api-Key"))
			require.Equal(t, "2023-06-01", got.Header.Get("Anthropic-Version"))
			require.Equal(t, "application/json", got.Header.Get("Content-Type"))
		})
	}
}

// What the SDK reads by itself is for another endpoint than that of the options.
func TestVariablesAreIgnored(t *testing.T) {
	t.Setenv("ANTHROPIC_API_KEY", "sk-for-somebody-else")
	t.Setenv("ANTHROPIC_AUTH_TOKEN", "token-for-somebody-else")
	t.Setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
	t.Setenv("ANTHROPIC_PROFILE", "nosuch")
	t.Setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Custom: 1")
	var got http.Header
	model := setup(t, anthropic.Options{}, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		answering(200, hello)(w, r)
	})
	_, err := generate(t, model)
	require.NoError(t, err)
	for _, name := range []string{"Authorization", "X-Api-Key", "X-Custom", "Traceparent"} {
		require.NotContains(t, got, name)
	}
}

func TestUnusableRequest(t *testing.T) {
	t.Parallel()
	model := setup(t, anthropic.Options{}, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })

	_, err := model.Generate(t.Context(), activities.GenerateRequest{Messages: []activities.Message{{Role: "user"}, {Role: "robot"}}}, nil)
	requireFinal(t, err)
	require.EqualError(t, err, `anthropic: messages[1]: unknown role "robot": use system, user, assistant or tool`)

	for _, schema := range []string{`[]`, `{`, `"x"`} {
		_, err = model.Generate(t.Context(), request, []activities.ToolSpec{{Name: "f", Parameters: json.RawMessage(schema)}})
		requireFinal(t, err)
		require.ErrorContains(t, err, `anthropic: tool "f": parameters are not a JSON object`)
	}

	unnamed, err := anthropic.New(anthropic.Options{BaseURL: "http://127.0.0.1:1"})
	require.NoError(t, err)
	_, err = generate(t, unnamed)
	requireFinal(t, err)
	require.ErrorContains(t, err, "ANTHROPIC_MODEL")
}

func TestResponse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body string
		want activities.GenerateResponse
	}{
		"text and usage": {
			body: hello,
			want: activities.GenerateResponse{
				Model: "c-1", FinishReason: "stop",
				Message: activities.Message{Role: "assistant", Content: "hello"},
				Usage:   &activities.Usage{InputTokens: 5, OutputTokens: 2},
			},
		},
		"cached input": {
			body: `{"content": [], "stop_reason": "end_turn", "usage": {"input_tokens": 5, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 2}}`,
			want: activities.GenerateResponse{
				FinishReason: "stop", Message: activities.Message{Role: "assistant"},
				Usage: &activities.Usage{InputTokens: 115, OutputTokens: 2},
			},
		},
		"no usage": {
			body: `{"content": [], "stop_reason": "end_turn", "usage": null}`,
			want: activities.GenerateResponse{FinishReason: "stop", Message: activities.Message{Role: "assistant"}},
		},
		"tool calls": {
			body: `{"model": "c-1", "stop_reason": "tool_use", "content": [
				{"type": "thinking", "thinking": "hm", "signature": "s"},
				{"type": "text", "text": "let me "}, {"type": "text", "text": "see"}, {"type": "new_block", "text": "?"},
				{"type": "tool_use", "id": "b", "name": "write", "input": { "x" : 1 }},
				{"type": "tool_use", "id": "a", "name": "now", "input": {}}]}`,
			want: activities.GenerateResponse{
				Model: "c-1", FinishReason: "tool_calls",
				Message: activities.Message{Role: "assistant", Content: "let me see", ToolCalls: []activities.ToolCall{
					{ID: "b", Name: "write", Arguments: `{ "x" : 1 }`}, {ID: "a", Name: "now", Arguments: `{}`},
				}},
			},
		},
		"refusal": {
			body: `{"content": [], "stop_reason": "refusal", "stop_details": {"type": "refusal", "category": null, "explanation": "It may do harm."}}`,
			want: activities.GenerateResponse{FinishReason: "content_filter", Message: activities.Message{Role: "assistant", Content: "It may do harm."}},
		},
		"refusal after some content": {
			body: `{"content": [{"type": "text", "text": "First,"}], "stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": "no"}}`,
			want: activities.GenerateResponse{FinishReason: "content_filter", Message: activities.Message{Role: "assistant", Content: "First,"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := generate(t, setup(t, anthropic.Options{}, answering(200, tc.body)))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(tc.want, got))
		})
	}
	for reason, want := range map[string]string{
		"stop_sequence": "stop", "max_tokens": "length", "model_context_window_exceeded": "length", "pause_turn": "pause_turn", "new": "new",
	} {
		got, err := generate(t, setup(t, anthropic.Options{}, answering(200, `{"content": [], "stop_reason": "`+reason+`"}`)))
		require.NoError(t, err)
		require.Equal(t, want, got.FinishReason)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	broken := func(kind string) string {
		return `{"type": "error", "error": {"type": "` + kind + `", "message": "it broke"}, "request_id": "req_1"}`
	}
	for _, tc := range []struct {
		status    int
		body      string
		retryable bool
		want      string
	}{
		{400, broken("invalid_request_error"), false, `400 Bad Request: it broke`},
		{401, broken("authentication_error"), false, `401 Unauthorized: it broke (check the API key (ANTHROPIC_API_KEY))`},
		{402, broken("billing_error"), false, `402 Payment Required: it broke (check the plan and billing of the account)`},
		{403, broken("permission_error"), false, `403 Forbidden: it broke (check that the API key (ANTHROPIC_API_KEY) may use this model)`},
		{404, broken("not_found_error"), false, `404 Not Found: it broke (check the base URL (ANTHROPIC_BASE_URL) and the model (ANTHROPIC_MODEL))`},
		{413, broken("request_too_large"), false, `413 Request Entity Too Large: it broke (shorten the conversation)`},
		{408, broken("timeout_error"), true, `408 Request Timeout: it broke`},
		{409, broken("conflict_error"), true, `409 Conflict: it broke`},
		{429, broken("rate_limit_error"), true, `429 Too Many Requests: it broke`},
		{429, broken("billing_error"), false, `429 Too Many Requests: it broke (check the plan and billing of the account)`},
		{500, broken("api_error"), true, `500 Internal Server Error: it broke`},
		{529, broken("overloaded_error"), true, `529: it broke`},
		{502, "<h1>\n\tBad\x1b[31m gateway\xff</h1>\r\n", true, "502 Bad Gateway: <h1> Bad [31m gateway\uFFFD</h1>"},
		{503, ``, true, `503 Service Unavailable`},
	} {
		t.Run(fmt.Sprint(tc.status), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			_, err := generate(t, setup(t, anthropic.Options{}, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				answering(tc.status, tc.body, "X-Should-Retry", "true")(w, r)
			}))
			require.EqualError(t, err, `anthropic: model "c": `+tc.want)
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
	for value, want := range map[string]time.Duration{"7": 7 * time.Second, "86400": 5 * time.Minute, "soon": 0} {
		_, err := generate(t, setup(t, anthropic.Options{}, answering(429, `{}`, "Retry-After", value)))
		require.Equal(t, want, requireRetryable(t, err))
	}
}

func TestBrokenAnswer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handler   http.HandlerFunc
		retryable bool
		want      string
	}{
		"dropped":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true, "EOF"},
		"cut answer":   {answering(200, hello[:20], "Content-Length", "200"), true, "the answer was cut off: unexpected EOF"},
		"cut error":    {answering(401, `{"err`, "Content-Length", "200"), false, "401 Unauthorized"},
		"malformed":    {answering(200, hello[:20]), true, "malformed answer: unexpected end of JSON input"},
		"no content":   {answering(200, `{}`), true, "the answer has no content: {}"},
		"hidden error": {answering(200, `{"error": {"message": "upstream is busy"}}`), true, "the answer has no content: upstream is busy"},
		"web page":     {answering(200, "<html>Welcome</html>", "Content-Type", "text/html; charset=utf-8"), false, `the answer is not JSON but of type "text/html": check the base URL (ANTHROPIC_BASE_URL)`},
		"redirect":     {answering(302, "", "Location", "/login"), false, "302 Found: /login (redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := generate(t, setup(t, anthropic.Options{}, tc.handler))
			require.ErrorContains(t, err, `anthropic: model "c": `)
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
		_, err = generate(t, setup(t, anthropic.Options{BaseURL: "http://" + listener.Addr().String()}, nil))
		require.Zero(t, requireRetryable(t, err))
		require.ErrorContains(t, err, listener.Addr().String())
	})
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

func TestTimeoutAndContext(t *testing.T) {
	t.Parallel()
	for name, handler := range stalling {
		t.Run("timeout "+name, func(t *testing.T) {
			t.Parallel()
			_, err := generate(t, setup(t, anthropic.Options{Timeout: 50 * time.Millisecond}, handler))
			require.EqualError(t, err, `anthropic: model "c": no answer within 50ms`)
			require.Zero(t, requireRetryable(t, err))
		})
		t.Run("cancelled "+name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			model := setup(t, anthropic.Options{}, func(w http.ResponseWriter, r *http.Request) {
				cancel()
				handler(w, r)
			})
			_, err := model.Generate(ctx, request, nil)
			require.Equal(t, context.Canceled, err)
		})
	}
}

func TestKeyStaysSecret(t *testing.T) {
	t.Parallel()
	jsonOf := func(value any) string {
		encoded, _ := json.Marshal(value)
		return string(encoded)
	}
	echo := func(r *http.Request) string { return "bad credentials: " + r.Header.Get("X-Api-Key") }
	for name, handler := range map[string]http.HandlerFunc{
		"message": func(w http.ResponseWriter, r *http.Request) {
			answering(401, jsonOf(map[string]any{"error": map[string]any{"message": echo(r)}}))(w, r)
		},
		"text": func(w http.ResponseWriter, r *http.Request) {
			answering(500, echo(r), "Content-Type", "text/plain")(w, r)
		},
		"no content": func(w http.ResponseWriter, r *http.Request) {
			answering(200, jsonOf(map[string]any{"error": echo(r)}))(w, r)
		},
		"content": func(w http.ResponseWriter, r *http.Request) {
			answering(200, jsonOf(map[string]any{"model": echo(r), "stop_reason": echo(r), "content": []any{
				map[string]any{"type": "text", "text": echo(r)},
				map[string]any{"type": "tool_use", "id": echo(r), "name": echo(r), "input": map[string]any{"x": echo(r)}},
			}}))(w, r)
		},
		"refusal": func(w http.ResponseWriter, r *http.Request) {
			answering(200, jsonOf(map[string]any{"content": []any{}, "stop_reason": "refusal", "stop_details": map[string]any{"explanation": echo(r)}}))(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := setup(t, anthropic.Options{APIKey: key}, handler)
			resp, err := generate(t, model)
			seen := fmt.Sprintf("%+v %+v %+v %#v", resp, err, model, model)
			for inner := err; inner != nil; inner = errors.Unwrap(inner) {
				seen += fmt.Sprintf("%+v %#v", inner, inner)
			}
			for _, part := range []string{"sk-se", "0123456789"} {
				require.NotContains(t, seen, part)
			}
			require.Contains(t, seen, "[redacted]")
		})
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opts anthropic.Options
		want string
	}{
		"nothing":          {anthropic.Options{}, ""},
		"no scheme":        {anthropic.Options{BaseURL: "127.0.0.1:8080"}, "ANTHROPIC_BASE_URL"},
		"credentials":      {anthropic.Options{BaseURL: "http://user:sk-secret@localhost"}, "no user"},
		"newline in key":   {anthropic.Options{APIKey: "sk-secret\n"}, "ANTHROPIC_API_KEY"},
		"negative timeout": {anthropic.Options{Timeout: -1}, "timeout is negative"},
		"negative limit":   {anthropic.Options{MaxTokens: -1}, "token limit is negative"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := anthropic.New(tc.opts)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), "sk-secret")
		})
	}
}

func TestFromEnv(t *testing.T) {
	for name, tc := range map[string]struct {
		url, key, model string
		ok              bool
		want            string
	}{
		"none":                  {},
		"key and model":         {key: key, model: "c", ok: true},
		"gateway":               {url: "http://127.0.0.1:8080", model: "c", ok: true},
		"only the URL":          {url: "http://127.0.0.1:8080"},
		"no model":              {key: key, want: "anthropic: ANTHROPIC_MODEL not set"},
		"no key and no gateway": {model: "c", want: "anthropic: ANTHROPIC_API_KEY not set"},
		"bad URL":               {url: "localhost", model: "c", want: "(ANTHROPIC_BASE_URL) must be an http or https URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("ANTHROPIC_BASE_URL", tc.url)
			t.Setenv("ANTHROPIC_API_KEY", tc.key)
			t.Setenv("ANTHROPIC_MODEL", tc.model)
			model, ok, err := anthropic.FromEnv()
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

func Example() {
	server := httptest.NewServer(answering(200, hello)) // in place of the real API
	defer server.Close()

	model, err := anthropic.New(anthropic.Options{BaseURL: server.URL, Model: "c-1"})
	if err != nil {
		panic(err)
	}
	resp, err := model.Generate(context.Background(), activities.GenerateRequest{
		Messages: []activities.Message{{Role: "user", Content: "hi"}},
	}, nil)
	fmt.Println(resp.Message.Content, err)
	// Output: hello <nil>
}
