package e2b_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/e2b"
)

var (
	anOwner  = resources.Owner{ExecutionID: "execution", RunID: "run", Key: "workspace"}
	aSandbox = json.RawMessage(`{"sandbox_id":"i1"}`)
)

const (
	apiKey    = "e2b_0123456789abcdef"
	envdToken = "envd-token-0123456789"
)

// serve returns a driver whose requests go to handler.
func serve(t *testing.T, handler http.HandlerFunc, more ...func(*e2b.Options)) *e2b.Driver {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	options := e2b.Options{APIKey: apiKey, APIURL: server.URL, SandboxURL: server.URL}
	for _, change := range more {
		change(&options)
	}
	d, err := e2b.New(options)
	require.NoError(t, err)
	return d
}

func reply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

const runningSandbox = `{"templateID":"base","sandboxID":"i1","clientID":"c","envdVersion":"0.6.13","envdAccessToken":"` + envdToken + `"}`

func TestErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status     int
		header     string
		body       string
		checkpoint string
		is         error
		retry      bool
		delay      time.Duration
		says       string
	}{
		"wrong key": {
			status: 401, body: `{"code":401,"message":"Invalid API key"}`,
			says: "e2b: list sandboxes: 401 Unauthorized: Invalid API key (check E2B_API_KEY)",
		},
		"forbidden": {
			status: 403, body: `{"code":403,"message":"you don't have access"}`,
			says: "e2b: list sandboxes: 403 Forbidden: you don't have access (check that the team of E2B_API_KEY may do this)",
		},
		"bad request": {status: 400, body: `{"code":400,"message":"bad"}`, says: "e2b: list sandboxes: 400 Bad Request: bad"},
		"rate limit": {
			status: 429, header: "7", body: `{"code":429,"message":"slow down"}`,
			retry: true, delay: 7 * time.Second, says: "429 Too Many Requests: slow down",
		},
		"long rate limit":     {status: 429, header: "86400", body: `{}`, retry: true, delay: 5 * time.Minute, says: "429"},
		"rate limit, no hint": {status: 429, body: `{"code":429,"message":"slow down"}`, retry: true, says: "429"},
		"transition":          {status: 409, body: `{"code":409,"message":"busy"}`, retry: true, says: "409"},
		"server's fault":      {status: 500, body: `oops`, retry: true, says: "500 Internal Server Error: oops"},
		"no capacity": {
			status: 503, header: "2", body: `{"code":503,"message":"no capacity","error_code":"sandbox_capacity_unavailable"}`,
			retry: true, delay: 2 * time.Second, says: "503 Service Unavailable: no capacity",
		},
		"not E2B":   {status: 200, body: `<html>`, retry: true, says: "the answer cannot be read"},
		"elsewhere": {status: 302, body: ``, says: "check E2B_API_URL, E2B_SANDBOX_URL and E2B_DOMAIN"},
		"not there": {status: 404, body: "404 page not found", says: "check E2B_API_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", test.header)
				reply(w, test.status, test.body)
			})
			_, _, err := d.Create(t.Context(), resources.CreateRequest{Owner: anOwner})
			require.ErrorContains(t, err, test.says)
			requireRetry(t, err, test.delay, test.retry)
			var said *e2b.Error
			require.ErrorAs(t, err, &said)
			require.Equal(t, test.status, said.Status)
			require.NotErrorIs(t, err, resources.ErrGone)
			require.NotErrorIs(t, err, resources.ErrCheckpointUnavailable)
		})
	}
}

func requireRetry(t *testing.T, err error, delay time.Duration, retry bool) {
	t.Helper()
	var adviser resources.RetryAdviser
	require.ErrorAs(t, err, &adviser)
	gotDelay, gotRetry := adviser.RetryDelay()
	require.Equal(t, retry, gotRetry, "retry of %v", err)
	require.Equal(t, delay, gotDelay, "delay of %v", err)
}

func TestErrorsOfCreate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		checkpoint string
		status     int
		is         error
		retry      bool
	}{
		"missing template":      {status: 404, is: resources.ErrInvalidConfig},
		"missing snapshot":      {status: 404, checkpoint: "abc:default", is: resources.ErrCheckpointUnavailable},
		"snapshot of others":    {status: 403, checkpoint: "abc:default"},
		"no capacity":           {status: 503, checkpoint: "abc:default", retry: true},
		"template not possible": {status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					reply(w, 200, `[]`)
					return
				}
				reply(w, test.status, fmt.Sprintf(`{"code":%d,"message":"template 'x' not found"}`, test.status))
			})
			_, _, err := d.Create(t.Context(), resources.CreateRequest{Owner: anOwner, Checkpoint: test.checkpoint})
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			} else {
				require.NotErrorIs(t, err, resources.ErrCheckpointUnavailable)
				require.NotErrorIs(t, err, resources.ErrInvalidConfig)
			}
			requireRetry(t, err, 0, test.retry)
		})
	}
}

func TestErrorsOnTheWay(t *testing.T) {
	t.Parallel()
	t.Run("nobody listens", func(t *testing.T) {
		t.Parallel()
		gone := httptest.NewServer(nil)
		gone.Close()
		d := serve(t, nil, func(o *e2b.Options) { o.APIURL = gone.URL })
		_, err := d.Open(t.Context(), aSandbox)
		require.NotErrorIs(t, err, resources.ErrGone)
		require.ErrorContains(t, err, "connection refused")
		requireRetry(t, err, 0, true)
	})
	t.Run("cut answer", func(t *testing.T) {
		t.Parallel()
		d := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"sandboxID":`)
		})
		_, err := d.Open(t.Context(), aSandbox)
		require.ErrorContains(t, err, "the connection was cut")
		requireRetry(t, err, 0, true)
	})
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		d := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		})
		_, err := d.Open(ctx, aSandbox)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, resources.ErrGone)
	})
}

func TestKeyFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	stolen := make(chan string, 10)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		stolen <- r.Header.Get("X-Api-Key")
	}))
	defer other.Close()
	d := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	_, err := d.Open(t.Context(), aSandbox)
	require.ErrorContains(t, err, "check E2B_API_URL")
	requireRetry(t, err, 0, false)
	require.Empty(t, stolen)
}

// oldService knows only the old versions of create and connect.
func TestOldVersions(t *testing.T) {
	t.Parallel()
	for name, unknown := range map[string]struct {
		status int
		body   string
	}{
		"plain 404":   {404, "404 page not found"},
		"validator's": {404, `{"code":404,"message":"no matching operation was found"}`},
		"405":         {405, `{"code":405,"message":"method not allowed"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var calls []string
			d := serve(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				body, _ := io.ReadAll(r.Body)
				switch call := r.Method + " " + r.URL.Path; call {
				case "GET /v2/sandboxes":
					reply(w, 200, `[]`)
				case "GET /sandboxes/i1":
					reply(w, 200, `{"sandboxID":"i1","state":"running"}`)
				case "POST /sandboxes":
					calls = append(calls, call)
					if !bytes.Contains(body, []byte(`"secure":true`)) {
						reply(w, 400, `{"code":400,"message":"not secure"}`)
						return
					}
					reply(w, 201, runningSandbox)
				case "POST /sandboxes/i1/connect":
					calls = append(calls, call)
					reply(w, 200, runningSandbox)
				default:
					calls = append(calls, call)
					reply(w, unknown.status, unknown.body)
				}
			})
			for range 2 {
				_, binding, err := d.Create(t.Context(), resources.CreateRequest{Owner: anOwner})
				require.NoError(t, err)
				require.JSONEq(t, string(aSandbox), string(binding))
				_, err = d.Open(t.Context(), binding)
				require.NoError(t, err)
			}
			require.Equal(t, []string{
				"POST /v2/sandboxes", "POST /sandboxes", "POST /v2/sandboxes/i1/connect", "POST /sandboxes/i1/connect",
				"POST /sandboxes", "POST /sandboxes/i1/connect",
			}, calls, "what the service lacks is asked for once")
		})
	}
}

func TestUnknownSandboxIsNoOldVersion(t *testing.T) {
	t.Parallel()
	d := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "GET /sandboxes/i1":
			reply(w, 200, `{"sandboxID":"i1","state":"paused"}`)
		case "POST /v2/sandboxes/i1/connect":
			reply(w, 404, `{"code":404,"message":"Paused sandbox i1 not found"}`)
		default:
			t.Errorf("unexpected %s %s", r.Method, r.URL.Path)
		}
	})
	_, err := d.Open(t.Context(), aSandbox)
	require.ErrorIs(t, err, resources.ErrGone)
	requireRetry(t, err, 0, false)
}

// Every call fails, with an answer that repeats all the credentials it can know.
func TestErrorsHoldNoCredentials(t *testing.T) {
	t.Parallel()
	bearer := "ghp_bearer/token+0123<&>"
	basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + bearer))
	everything := strings.Join([]string{
		apiKey, envdToken, bearer, "Bearer " + bearer, url.QueryEscape(bearer), "Basic " + basic, basic,
	}, " ")
	asJSON, err := json.Marshal(everything)
	require.NoError(t, err)

	bodies := map[string]string{
		"json":  `{"code":%d,"message":` + string(asJSON) + `}`,
		"rpc":   `{"code":"internal","message":` + string(asJSON) + `}`,
		"plain": everything,
		"html":  "<p>" + string(asJSON) + "</p>",
	}
	for kind, body := range bodies {
		for _, status := range []int{400, 401, 403, 404, 409, 418, 429, 500, 502, 503} {
			var failing sync.Map // the paths that fail
			d := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, all := failing.Load("all")
				_, this := failing.Load(r.URL.Path)
				text := strings.ReplaceAll(body, "%d", fmt.Sprint(status))
				switch {
				case all || this:
					reply(w, status, text)
				case strings.HasSuffix(r.URL.Path, "/Start"):
					w.Header().Set("Content-Type", "application/connect+json")
					end := []byte(`{"error":` + `{"code":"internal","message":` + string(asJSON) + `}}`)
					_, _ = w.Write(append([]byte{2, byte(len(end) >> 24), byte(len(end) >> 16), byte(len(end) >> 8), byte(len(end))}, end...))
				case r.Method == http.MethodGet && r.URL.Path == "/v2/sandboxes":
					reply(w, 200, `[]`)
				case r.Method == http.MethodGet:
					reply(w, 200, `{"sandboxID":"i1","state":"running"}`)
				case r.Method == http.MethodPut, r.Method == http.MethodDelete:
					w.WriteHeader(http.StatusNoContent)
				default:
					reply(w, 201, runningSandbox)
				}
			}, func(o *e2b.Options) {
				o.Egress = map[string]e2b.Headers{
					"api.example.com": func(context.Context) (http.Header, error) {
						if _, ok := failing.Load("headers"); ok {
							return nil, errors.New("expired: " + everything)
						}
						return http.Header{"Authorization": {"Bearer " + bearer}}, nil
					},
					"github.com": func(context.Context) (http.Header, error) {
						return http.Header{"Authorization": {"Basic " + basic}}, nil
					},
				}
			})
			ctx := t.Context()
			s, err := d.Open(ctx, aSandbox)
			require.NoError(t, err)
			var errs []error
			check := func(err error) { errs = append(errs, err) }
			run := func(_ e2b.Result, err error) { check(err) }
			run(s.Run(ctx, e2b.Command{Line: "true"}))

			for _, path := range []string{"/sandboxes/i1/network", "/v2/sandboxes", "headers"} {
				failing.Store(path, true)
				_, _, err = d.Create(ctx, resources.CreateRequest{Owner: anOwner})
				check(err)
				failing.Delete(path)
			}
			failing.Store("all", true)
			_, err = d.Open(ctx, aSandbox)
			check(err)
			_, err = d.Checkpoint(ctx, s)
			check(err)
			check(d.Pause(ctx, aSandbox))
			_, err = d.List(ctx)
			check(err)
			run(s.Run(ctx, e2b.Command{Line: "true"}))
			_, err = s.ReadFile(ctx, "a")
			check(err)
			check(s.WriteFile(ctx, "a", nil))
			check(s.WriteFrom(ctx, "a", strings.NewReader("x")))
			_, err = s.Stat(ctx, "a")
			check(err)
			_, err = s.List(ctx, "a", 1)
			check(err)
			check(s.Remove(ctx, "a"))
			if status != 404 {
				check(d.Destroy(ctx, aSandbox))
				check(d.DeleteCheckpoint(ctx, "abc:default"))
			}
			for i, err := range errs {
				require.Error(t, err, "%s %d: call %d", kind, status, i)
				for _, text := range texts(err) {
					for _, secret := range []string{apiKey, envdToken, bearer, "ghp_bearer", basic, url.QueryEscape(bearer)} {
						require.NotContains(t, text, secret, "%s %d: call %d", kind, status, i)
					}
				}
			}
		}
	}
}

// texts returns what can be read of an error, and of all that it wraps.
func texts(err error) []string {
	all := []string{err.Error(), fmt.Sprintf("%v %+v %#v %q", err, err, err, err)}
	switch wrapped := err.(type) {
	case interface{ Unwrap() error }:
		if inner := wrapped.Unwrap(); inner != nil {
			all = append(all, texts(inner)...)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range wrapped.Unwrap() {
			all = append(all, texts(inner)...)
		}
	}
	return all
}
