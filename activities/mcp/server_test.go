package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/mcp"
)

// stdioEnv makes the test binary an MCP server over its standard input and output.
const stdioEnv = "MCP_TEST_STDIO"

func TestMain(m *testing.M) {
	if os.Getenv(stdioEnv) != "" {
		if err := tools().Run(context.Background(), &sdk.StdioTransport{}); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

type text struct {
	Text string `json:"text"`
}

func said(s string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}}
}

// tools is a server whose tools show what there is. Its pages are short.
func tools() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "test"}, &sdk.ServerOptions{PageSize: 2})
	sdk.AddTool(s, &sdk.Tool{Name: "echo", Description: "Says it again.", Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}},
		func(_ context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, any, error) {
			return said(in.Text), nil, nil
		})
	sdk.AddTool(s, &sdk.Tool{Name: "structured", Annotations: &sdk.ToolAnnotations{IdempotentHint: true}},
		func(_ context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, text, error) {
			return nil, in, nil
		})
	sdk.AddTool(s, &sdk.Tool{Name: "fail"}, func(_ context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, any, error) {
		return nil, nil, errors.New(in.Text)
	})
	sdk.AddTool(s, &sdk.Tool{Name: "mixed"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{
			&sdk.TextContent{Text: "look:"},
			&sdk.ImageContent{MIMEType: "image/png", Data: []byte("1234")},
			&sdk.AudioContent{MIMEType: "audio/wav", Data: []byte("12")},
			&sdk.ResourceLink{Name: "log", URI: "file:///log"},
			&sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: "file:///a", Text: "content of a"}},
			&sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: "file:///b", MIMEType: "x/y", Blob: []byte("123")}},
		}}, nil, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "env"}, func(_ context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, any, error) {
		value, ok := os.LookupEnv(in.Text)
		return said(fmt.Sprint(ok, " ", value)), nil, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "pid"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return said(strconv.Itoa(os.Getpid())), nil, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "die"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		os.Exit(3)
		return nil, nil, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "hang"}, func(ctx context.Context, _ *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		select { // a server waits with its end for that of its calls
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
		return nil, nil, ctx.Err()
	})
	return s
}

// legacy makes servers speak the protocol that has sessions: they know no discovery.
func legacy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte(`"server/discover"`)) {
			http.NotFound(w, r)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

func streamable() http.Handler {
	s := tools()
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil)
}

func newServer(t *testing.T, opts mcp.Options) *mcp.Server {
	t.Helper()
	s, err := mcp.New(opts)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func overHTTP(t *testing.T, handler http.Handler, opts mcp.Options) *mcp.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	opts.URL = server.URL + opts.URL
	return newServer(t, opts)
}

func overStdio(t *testing.T, opts mcp.Options) *mcp.Server {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	opts.Command = []string{exe, "-test.run=^$"}
	opts.Env = append(opts.Env, stdioEnv+"=1")
	return newServer(t, opts)
}

func call(t *testing.T, s *mcp.Server, tool, args string) string {
	t.Helper()
	result, err := s.CallTool(t.Context(), tool, json.RawMessage(args))
	require.NoError(t, err)
	return string(result)
}

func requireFinal(t *testing.T, err error, want string) {
	t.Helper()
	require.ErrorContains(t, err, want)
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

// everyWay runs a test over each transport.
func everyWay(t *testing.T, test func(t *testing.T, s *mcp.Server)) {
	t.Run("stdio", func(t *testing.T) { t.Parallel(); test(t, overStdio(t, mcp.Options{})) })
	t.Run("http", func(t *testing.T) { t.Parallel(); test(t, overHTTP(t, streamable(), mcp.Options{})) })
	t.Run("http with sessions", func(t *testing.T) { t.Parallel(); test(t, overHTTP(t, legacy(streamable()), mcp.Options{})) })
	t.Run("own", func(t *testing.T) {
		t.Parallel()
		test(t, newServer(t, mcp.Options{Transport: func() (sdk.Transport, error) {
			near, far := sdk.NewInMemoryTransports()
			_, err := tools().Connect(context.Background(), far, nil)
			return near, err
		}}))
	})
}

func TestListTools(t *testing.T) {
	t.Parallel()
	everyWay(t, func(t *testing.T, s *mcp.Server) {
		listed, err := s.ListTools(t.Context())
		require.NoError(t, err)
		idempotency := map[string]string{}
		for _, tool := range listed {
			idempotency[tool.Name] = tool.Idempotency
		}
		require.Equal(t, map[string]string{
			"echo": "safe_to_retry", "structured": "safe_to_retry", "fail": "at_most_once", "mixed": "at_most_once",
			"env": "at_most_once", "pid": "at_most_once", "die": "at_most_once", "hang": "at_most_once",
		}, idempotency)
		for _, tool := range listed {
			if tool.Name == "echo" {
				require.Equal(t, "Says it again.", tool.Description)
				require.JSONEq(t, `{"type":"object","properties":{"text":{"type":"string"}},"required":["text"],"additionalProperties":false}`, string(tool.Parameters))
			}
		}
	})
}

func TestCallTool(t *testing.T) {
	t.Parallel()
	everyWay(t, func(t *testing.T, s *mcp.Server) {
		require.Equal(t, `"a\nb"`, call(t, s, "echo", `{"text":"a\nb"}`))
		require.JSONEq(t, `{"text":"hi"}`, call(t, s, "structured", `{"text":"hi"}`))
		require.JSONEq(t, `"look:\n[image of type image/png, 4 bytes, left out]\n[audio of type audio/wav, 2 bytes, left out]\n`+
			`[resource log: file:///log]\ncontent of a\n[resource file:///b of type x/y, 3 bytes, left out]"`, call(t, s, "mixed", `{}`))

		_, err := s.CallTool(t.Context(), "fail", json.RawMessage(`{"text":"boom\non purpose"}`))
		requireFinal(t, err, "boom\non purpose")
		_, err = s.CallTool(t.Context(), "fail", json.RawMessage(`{"text":"`+strings.Repeat("x", 10000)+`"}`))
		requireFinal(t, err, "xxx…")
		require.Less(t, len(err.Error()), 9000)
		_, err = s.CallTool(t.Context(), "nosuch", json.RawMessage(`{}`))
		requireFinal(t, err, "nosuch")
		_, err = s.CallTool(t.Context(), "echo", json.RawMessage(`{"word":"a"}`))
		requireFinal(t, err, "word")
		for _, args := range []string{``, `null`, `[]`, `"a"`, `{`} {
			_, err = s.CallTool(t.Context(), "echo", json.RawMessage(args))
			requireFinal(t, err, "the arguments are not a JSON object")
			var app *temporal.ApplicationError
			require.ErrorAs(t, err, &app)
			require.Equal(t, "tine.InvalidArguments", app.Type())
		}
	})
}

func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	everyWay(t, func(t *testing.T, s *mcp.Server) {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				want := fmt.Sprint(i)
				got, err := s.CallTool(t.Context(), "echo", json.RawMessage(`{"text":"`+want+`"}`))
				if err != nil || string(got) != `"`+want+`"` {
					t.Errorf("call %d: %s %v", i, got, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestContext(t *testing.T) {
	t.Parallel()
	everyWay(t, func(t *testing.T, s *mcp.Server) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := s.CallTool(ctx, "hang", json.RawMessage(`{}`))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, `"on"`, call(t, s, "echo", `{"text":"on"}`), "the session goes on")

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.CallTool(ended, "echo", json.RawMessage(`{"text":"a"}`))
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestUseAfterClose(t *testing.T) {
	t.Parallel()
	everyWay(t, func(t *testing.T, s *mcp.Server) {
		s.Close() // nothing is open
		require.Equal(t, `"a"`, call(t, s, "echo", `{"text":"a"}`))
		s.Close()
		require.Equal(t, `"b"`, call(t, s, "echo", `{"text":"b"}`))
	})
}

// restarting is a server whose state can be lost, and that can be away.
type restarting struct {
	mu      sync.Mutex
	handler http.Handler
}

func (r *restarting) restart(handler http.Handler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handler = handler
}

func (r *restarting) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	handler := r.handler
	r.mu.Unlock()
	handler.ServeHTTP(w, req)
}

func TestServerForgetsSession(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(http.Handler) http.Handler{
		"sessions": legacy,
		"none":     func(h http.Handler) http.Handler { return h },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &restarting{handler: wrap(streamable())}
			s := overHTTP(t, r, mcp.Options{})
			require.Equal(t, `"a"`, call(t, s, "echo", `{"text":"a"}`))
			r.restart(wrap(streamable()))
			require.Equal(t, `"b"`, call(t, s, "echo", `{"text":"b"}`), "what has not run is called again")
		})
	}
}

func TestServerIsAway(t *testing.T) {
	t.Parallel()
	answer := func(status int, headers ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(status)
		})
	}
	for name, tc := range map[string]struct {
		handler   http.Handler
		retryable bool
		delay     time.Duration
		want      string
	}{
		"unauthorized":   {answer(401), false, 0, "401 Unauthorized: check the credentials"},
		"forbidden":      {answer(403), false, 0, "403 Forbidden: check the credentials"},
		"redirect":       {answer(307, "Location", "https://elsewhere.example"), false, 0, "307 Temporary Redirect: redirects are not followed: check the URL"},
		"rate limit":     {answer(429, "Retry-After", "7"), true, 7 * time.Second, "429 Too Many Requests"},
		"unavailable":    {answer(503), true, 0, "503 Service Unavailable"},
		"broken":         {answer(500), true, 0, "Internal Server Error"},
		"not there":      {answer(404), true, 0, "Not Found"},
		"drops the line": {http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), true, 0, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check := func(err error) {
				require.ErrorContains(t, err, tc.want)
				if tc.retryable {
					require.Equal(t, tc.delay, requireRetryable(t, err))
				} else {
					requireFinal(t, err, tc.want)
				}
			}
			_, err := overHTTP(t, tc.handler, mcp.Options{}).ListTools(t.Context())
			check(err)
			require.ErrorContains(t, err, "mcp: not connected: ")

			// The same once it was there.
			for _, wrap := range []func(http.Handler) http.Handler{legacy, func(h http.Handler) http.Handler { return h }} {
				r := &restarting{handler: wrap(streamable())}
				s := overHTTP(t, r, mcp.Options{})
				require.Equal(t, `"a"`, call(t, s, "echo", `{"text":"a"}`))
				r.restart(tc.handler)
				_, err = s.CallTool(t.Context(), "echo", json.RawMessage(`{"text":"b"}`))
				check(err)
				r.restart(wrap(streamable()))
				require.Equal(t, `"c"`, call(t, s, "echo", `{"text":"c"}`))
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, listener.Close())
		_, err = newServer(t, mcp.Options{URL: "http://" + listener.Addr().String()}).ListTools(t.Context())
		require.ErrorContains(t, err, listener.Addr().String())
		requireRetryable(t, err)
	})
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		s := overHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}), mcp.Options{ConnectTimeout: 50 * time.Millisecond})
		_, err := s.ListTools(t.Context())
		require.ErrorContains(t, err, "deadline exceeded")
		requireRetryable(t, err)
	})
}

// TestLostCall: the server goes away while it runs a tool.
func TestLostCall(t *testing.T) {
	t.Parallel()
	t.Run("stdio", func(t *testing.T) {
		t.Parallel()
		s := overStdio(t, mcp.Options{})
		_, err := s.CallTool(t.Context(), "die", json.RawMessage(`{}`))
		requireRetryable(t, err)
		require.ErrorContains(t, err, "mcp: ")
		require.Equal(t, `"a"`, call(t, s, "echo", `{"text":"a"}`), "it is started again")
	})
	for name, wrap := range map[string]func(http.Handler) http.Handler{
		"http with sessions": legacy,
		"http":               func(h http.Handler) http.Handler { return h },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &restarting{handler: wrap(streamable())}
			server := httptest.NewServer(r)
			t.Cleanup(server.Close)
			s := newServer(t, mcp.Options{URL: server.URL})
			require.Equal(t, `"a"`, call(t, s, "echo", `{"text":"a"}`))
			time.AfterFunc(200*time.Millisecond, server.CloseClientConnections)
			_, err := s.CallTool(t.Context(), "hang", json.RawMessage(`{}`))
			requireRetryable(t, err)
			again, err := s.CallTool(t.Context(), "echo", json.RawMessage(`{"text":"b"}`))
			for range 3 {
				if err == nil {
					break
				}
				requireRetryable(t, err) // it met another connection that was being closed
				again, err = s.CallTool(t.Context(), "echo", json.RawMessage(`{"text":"b"}`))
			}
			require.NoError(t, err)
			require.Equal(t, `"b"`, string(again))
		})
	}
}

func TestCommand(t *testing.T) {
	t.Setenv("LLM_API_KEY", "of-the-worker")
	s := overStdio(t, mcp.Options{Env: []string{"GREETING=hello", "API_TOKEN=0123456789abcdef"}})
	require.Equal(t, `"false "`, call(t, s, "env", `{"text":"LLM_API_KEY"}`), "the worker's credentials are its own")
	require.Equal(t, `"true `+os.Getenv("PATH")+`"`, call(t, s, "env", `{"text":"PATH"}`))
	require.Equal(t, `"true hello"`, call(t, s, "env", `{"text":"GREETING"}`))
	require.Equal(t, `"true [redacted]"`, call(t, s, "env", `{"text":"API_TOKEN"}`))

	alive := func(pid int) bool { return syscall.Kill(pid, 0) == nil }
	pid, err := strconv.Atoi(strings.Trim(call(t, s, "pid", `{}`), `"`))
	require.NoError(t, err)
	require.True(t, alive(pid))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { return !alive(pid) }, 10*time.Second, 10*time.Millisecond, "it is reaped")
	again, err := strconv.Atoi(strings.Trim(call(t, s, "pid", `{}`), `"`))
	require.NoError(t, err)
	require.NotEqual(t, pid, again)
	s.Close()
	require.False(t, alive(again), "it ends with its connection")
}

func TestCommandThatIsNotThere(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"nosuch-command", "/nosuch/command"} {
		_, err := newServer(t, mcp.Options{Command: []string{command}}).ListTools(t.Context())
		requireFinal(t, err, command)
	}
	// One that says nothing of the protocol.
	_, err := newServer(t, mcp.Options{Command: []string{"true"}}).ListTools(t.Context())
	require.Error(t, err)
	requireRetryable(t, err)
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	const token, inURL = "sk-0123456789", "key-abcdef"
	var seen atomic.Pointer[http.Request]
	echoing := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen.Store(r)
			next.ServeHTTP(w, r)
		})
	}
	s := overHTTP(t, echoing(streamable()), mcp.Options{
		URL: "/?api_key=" + inURL, Header: http.Header{"Authorization": {"Bearer " + token}, "x-team": {"blue"}},
	})
	require.Equal(t, `"[redacted] [redacted] blue"`, call(t, s, "echo", `{"text":"`+token+" "+inURL+` blue"}`))
	require.Equal(t, `{"text":"[redacted]"}`, call(t, s, "structured", `{"text":"`+token+`"}`))
	_, err := s.CallTool(t.Context(), "fail", json.RawMessage(`{"text":"`+token+`"}`))
	requireFinal(t, err, "[redacted]")
	require.NotContains(t, err.Error(), token)
	require.Equal(t, "Bearer "+token, seen.Load().Header.Get("Authorization"))
	require.Equal(t, "blue", seen.Load().Header.Get("X-Team"))
	require.Equal(t, inURL, seen.Load().URL.Query().Get("api_key"))

	away := newServer(t, mcp.Options{URL: "http://127.0.0.1:1/?api_key=" + inURL})
	_, err = away.ListTools(t.Context())
	require.ErrorContains(t, err, "api_key=[redacted]")
	require.NotContains(t, fmt.Sprintf("%+v %#v", away, away), inURL)
}

func TestNew(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opts mcp.Options
		want string
	}{
		"nothing":          {mcp.Options{}, "only one of them"},
		"two":              {mcp.Options{Command: []string{"a"}, URL: "http://localhost"}, "only one of them"},
		"no scheme":        {mcp.Options{URL: "localhost:80"}, "http or https"},
		"user":             {mcp.Options{URL: "http://user:sk-secret@localhost"}, "without a user"},
		"negative timeout": {mcp.Options{URL: "http://localhost", ConnectTimeout: -1}, "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := mcp.New(tc.opts)
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), "sk-secret")
		})
	}
}
