package e2b_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/e2b"
	"github.com/tinerun/tine/resources/e2b/e2btest"
)

const (
	startCommand = "/process.Process/Start"
	// patience is for what happens at once on a machine that is not busy.
	patience = 20 * time.Second
)

func TestWrongKey(t *testing.T) {
	t.Parallel()
	_, server := setup(t)
	d := open(t, server, func(o *e2b.Options) { o.APIKey = "e2b_bad" })
	_, _, err := d.Create(t.Context(), resources.CreateRequest{Owner: anOwner})
	require.ErrorContains(t, err, "check E2B_API_KEY")
	requireRetry(t, err, 0, false)
	require.Empty(t, server.Sandboxes())
}

func TestLimitsAndCapacity(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	server.Fail(e2btest.Fault{Method: http.MethodPost, Path: "/v2/sandboxes", Status: 429, RetryAfter: 3 * time.Second})
	_, _, err := d.Create(t.Context(), resources.CreateRequest{Owner: anOwner})
	requireRetry(t, err, 3*time.Second, true)
	server.Fail(e2btest.Fault{Method: http.MethodPost, Path: "/v2/sandboxes", Status: 503})
	_, _, err = d.Create(t.Context(), resources.CreateRequest{Owner: anOwner})
	requireRetry(t, err, 0, true)
	create(t, d, resources.CreateRequest{})
	require.Len(t, server.Sandboxes(), 1)
}

// The worker dies, or loses its connection, when its request has arrived.
func TestCreateFindsWhatItsFirstAttemptMade(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v2/sandboxes", "/sandboxes/*/network"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			_, server := setup(t)
			d := open(t, server, egress(new(atomic.Value)))
			source, _ := create(t, d, resources.CreateRequest{Owner: resources.Owner{ExecutionID: "source"}})
			ref, err := d.Checkpoint(t.Context(), source)
			require.NoError(t, err)
			req := resources.CreateRequest{
				Owner:      resources.Owner{ExecutionID: "a&b=c+d%e f ü", RunID: "r", Key: "k"},
				Checkpoint: ref,
			}
			method := map[bool]string{true: http.MethodPut, false: http.MethodPost}[strings.HasSuffix(path, "network")]
			server.Fail(e2btest.Fault{Method: method, Path: path, CutAfter: -1})
			_, _, err = d.Create(t.Context(), req)
			requireRetry(t, err, 0, true)
			require.Len(t, server.Sandboxes(), 2, "the request was served")

			other := open(t, server, egress(new(atomic.Value)))
			s, _ := create(t, other, req)
			sandboxes := server.Sandboxes()
			require.Len(t, sandboxes, 2, "nothing leaks")
			require.Equal(t, sandboxes[1].ID, s.ID())
			require.Equal(t, ref, sandboxes[1].Reference)
			require.Contains(t, string(sandboxes[1].Network), "Bearer")
		})
	}
}

func TestCreateKeepsTheOldest(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	first, binding := create(t, d, resources.CreateRequest{})
	twins := server.Sandboxes()[0].Metadata
	for range 2 {
		body, err := json.Marshal(map[string]any{"templateID": "base", "metadata": twins, "timeout": 60, "autoPause": true})
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL()+"/v2/sandboxes", bytes.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("X-Api-Key", server.APIKey())
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusCreated, res.StatusCode)
	}
	require.Len(t, server.Sandboxes(), 3)
	again, againBinding := create(t, d, resources.CreateRequest{})
	require.Equal(t, first.ID(), again.ID())
	require.JSONEq(t, string(binding), string(againBinding))
	require.Len(t, server.Sandboxes(), 1)
}

// Two workers create for one owner, each before it could see the other's sandbox.
func TestCreateInTwoWorkers(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	other := open(t, server)
	// Both ask what there is before the first sandbox is there.
	server.Fail(e2btest.Fault{Method: http.MethodPost, Path: "/v2/sandboxes", Delay: time.Second})
	var ids [2]string
	var both sync.WaitGroup
	for i, d := range []*e2b.Driver{d, other} {
		both.Go(func() {
			s, _, err := d.Create(t.Context(), resources.CreateRequest{Owner: anOwner})
			if err == nil {
				ids[i] = s.ID()
			}
		})
	}
	both.Wait()
	require.NotEmpty(t, ids[0])
	require.NotEmpty(t, ids[1])
	require.LessOrEqual(t, len(server.Sandboxes()), 2)
	// Whatever each returned exists: none took away the other's.
	for _, id := range ids {
		s, err := d.Open(t.Context(), json.RawMessage(`{"sandbox_id":"`+id+`"}`))
		require.NoError(t, err)
		require.NoError(t, s.WriteFile(t.Context(), "x", nil))
	}
}

func TestLostSandbox(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, binding := create(t, d, resources.CreateRequest{})
	require.NoError(t, s.WriteFile(t.Context(), "work", []byte("x")))
	server.Lose(s.ID())

	_, runErr := s.Run(t.Context(), e2b.Command{Line: "true"})
	_, readErr := s.ReadFile(t.Context(), "work")
	_, openErr := d.Open(t.Context(), binding)
	_, checkpointErr := d.Checkpoint(t.Context(), s)
	for _, err := range []error{
		runErr, readErr, openErr, checkpointErr, d.Pause(t.Context(), binding),
		s.WriteFile(t.Context(), "work", nil), s.WriteFrom(t.Context(), "work", strings.NewReader("")),
	} {
		require.ErrorIs(t, err, resources.ErrGone)
		requireRetry(t, err, 0, false)
	}
	require.Empty(t, server.Sandboxes(), "nothing goes on in an empty sandbox")
}

func TestLostSnapshot(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	ref, err := d.Checkpoint(t.Context(), s)
	require.NoError(t, err)
	server.LoseSnapshot(ref)
	_, _, err = d.Create(t.Context(), resources.CreateRequest{Owner: resources.Owner{ExecutionID: "fork"}, Checkpoint: ref})
	require.ErrorIs(t, err, resources.ErrCheckpointUnavailable)
	requireRetry(t, err, 0, false)
}

func TestTimeIsUp(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	paused, _ := create(t, d, resources.CreateRequest{})
	require.NoError(t, paused.WriteFile(t.Context(), "work", []byte("x")))
	server.Expire(paused.ID())
	require.Equal(t, "paused", server.Sandboxes()[0].State)
	require.Equal(t, "x", run(t, paused, "cat work").Stdout)

	killed, binding := create(t, d, resources.CreateRequest{
		Owner: resources.Owner{ExecutionID: "kill"}, Config: json.RawMessage(`{"on_timeout":"kill"}`),
	})
	server.Expire(killed.ID())
	_, err := killed.Run(t.Context(), e2b.Command{Line: "true"})
	require.ErrorIs(t, err, resources.ErrGone)
	_, err = d.Open(t.Context(), binding)
	require.ErrorIs(t, err, resources.ErrGone)
}

func TestTimeoutIsThatOfTheConfiguration(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	_, binding := create(t, d, resources.CreateRequest{Config: json.RawMessage(`{"timeout":7200}`)})
	require.NoError(t, d.Pause(t.Context(), binding))
	_, err := open(t, server).Open(t.Context(), binding)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(2*time.Hour), server.Sandboxes()[0].EndAt, time.Minute)
}

func TestCommandOutlivesTheSandboxsTimeout(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	s, _ := create(t, d, resources.CreateRequest{Config: json.RawMessage(`{"timeout":3}`)})
	require.Equal(t, "done\n", run(t, s, "sleep 5; echo done").Stdout)
}

func TestSlowSnapshot(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	server.Fail(e2btest.Fault{Method: http.MethodPost, Path: "/sandboxes/*/snapshots", Delay: 2 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := d.Checkpoint(ctx, s)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, resources.ErrGone)

	// The next attempt waits for the transition under way, or is told to come back.
	require.Eventually(t, func() bool {
		_, err = d.Checkpoint(t.Context(), s)
		return err == nil
	}, patience, 100*time.Millisecond)
	require.Equal(t, "here\n", run(t, s, "echo here").Stdout)
}

func TestSnapshotDuringCommand(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	ended := make(chan error, 1)
	started := make(chan bool, 1)
	go func() {
		_, err := s.Run(t.Context(), e2b.Command{
			Line: "echo started; sleep 600", OnStdout: func([]byte) { started <- true },
		})
		ended <- err
	}()
	<-started
	_, err := d.Checkpoint(t.Context(), s)
	require.NoError(t, err)
	select {
	case err := <-ended:
		requireRetry(t, err, 0, true)
	case <-time.After(patience):
		t.Fatal("the command's stream is lost, and Run does not say so")
	}
	require.Equal(t, "here\n", run(t, s, "echo here").Stdout)
}

// family starts a process with a child and a grandchild, and writes down their IDs.
const family = `echo $$ > pids
bash -c 'echo $$ >> pids; sleep 600 & echo $! >> pids; wait' &
while [ "$(wc -l < pids)" -lt 3 ]; do sleep 0.01; done
echo started
wait`

// requireNoFamily waits until the processes of family have ended.
func requireNoFamily(t *testing.T, s *e2b.Sandbox) {
	t.Helper()
	result := run(t, s, `for i in $(seq 100); do
alive=; for pid in $(cat pids); do kill -0 $pid 2>/dev/null && alive="$alive $pid"; done
[ -z "$alive" ] && break
sleep 0.05
done; wc -l < pids; echo "alive:$alive"`)
	require.Equal(t, "3\nalive:\n", result.Stdout)
}

func TestCommandOutlivesItsTimeout(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	began := time.Now()
	result, err := s.Run(t.Context(), e2b.Command{Line: family, Timeout: 2 * time.Second})
	require.NoError(t, err, "it is a result, as a failing command is")
	require.Less(t, time.Since(began), patience)
	require.True(t, result.TimedOut)
	require.Equal(t, -1, result.ExitCode)
	require.Equal(t, "started\n", result.Stdout)
	require.Equal(t, "killed after its timeout of 2s", result.Status)
	requireNoFamily(t, s)
}

func TestCancelKillsTheCommand(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Run(ctx, e2b.Command{Line: family, OnStdout: func([]byte) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
	requireNoFamily(t, s)
}

func TestCutStream(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	// Enough for the start, and not for all of the output.
	server.Fail(e2btest.Fault{Path: startCommand, CutAfter: 60})
	result, err := s.Run(t.Context(), e2b.Command{Line: family})
	require.ErrorContains(t, err, "the connection was cut")
	requireRetry(t, err, 0, true)
	require.Empty(t, result.Stdout)
	requireNoFamily(t, s)

	server.Fail(e2btest.Fault{Path: startCommand, CutAfter: -1})
	_, err = s.Run(t.Context(), e2b.Command{Line: "true"})
	requireRetry(t, err, 0, true)
}

func TestMuchOutput(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	const size = 50 << 20
	seen := 0
	result, err := s.Run(t.Context(), e2b.Command{
		Line:     "printf beginning; head -c " + strconv.Itoa(size) + " /dev/zero | tr '\\0' x; printf end; echo problem >&2",
		OnStdout: func(piece []byte) { seen += len(piece) },
	})
	require.NoError(t, err)
	const total = size + len("beginning") + len("end")
	require.Equal(t, total, seen)
	require.True(t, result.Truncated)
	require.Less(t, len(result.Stdout), 1<<20+100)
	require.True(t, strings.HasPrefix(result.Stdout, "beginningxxx"))
	require.True(t, strings.HasSuffix(result.Stdout, "xxxend"))
	require.Contains(t, result.Stdout, "x\n… "+strconv.Itoa(total-1<<20)+" bytes left out …\nx")
	require.Equal(t, "problem\n", result.Stderr)

	result, err = s.Run(t.Context(), e2b.Command{Line: "seq 1000", MaxOutput: 10})
	require.NoError(t, err)
	require.Equal(t, "1\n2\n3\n… 3883 bytes left out …\n1000\n", result.Stdout)
}

// pattern gives size bytes that are not all the same.
func pattern(size int64) io.Reader {
	block := make([]byte, 64<<10)
	for i := range block {
		block[i] = byte(i * 7)
	}
	return io.LimitReader(&repeat{block: block}, size)
}

type repeat struct {
	block []byte
	at    int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.block[r.at:])
	r.at = (r.at + n) % len(r.block)
	return n, nil
}

// matches compares what is written to it with a reader.
type matches struct {
	want io.Reader
	n    int64
}

func (m *matches) Write(p []byte) (int, error) {
	want := make([]byte, len(p))
	if _, err := io.ReadFull(m.want, want); err != nil || !bytes.Equal(p, want) {
		return 0, errors.New("the content differs")
	}
	m.n += int64(len(p))
	return len(p), nil
}

func TestLargeFiles(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, binding := create(t, d, resources.CreateRequest{})
	const size = 50 << 20
	// A reader cannot be read again, so the sandbox must be awake before.
	require.NoError(t, d.Pause(t.Context(), binding))
	require.NoError(t, s.WriteFrom(t.Context(), "large", pattern(size)))
	to := &matches{want: pattern(size)}
	n, err := s.ReadTo(t.Context(), "large", to)
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	require.EqualValues(t, size, to.n)

	_, err = s.ReadFile(t.Context(), "large")
	require.ErrorContains(t, err, "use ReadTo")
	_, err = s.ReadTo(t.Context(), "large", &matches{want: strings.NewReader("")})
	require.ErrorContains(t, err, "the content differs")
	broken := errors.New("the caller's reader broke")
	err = s.WriteFrom(t.Context(), "broken", io.MultiReader(pattern(1<<20), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)

	server.Fail(e2btest.Fault{Method: http.MethodGet, Path: "/files", CutAfter: 1 << 20})
	_, err = s.ReadTo(t.Context(), "large", io.Discard)
	require.ErrorContains(t, err, "the connection was cut")
	requireRetry(t, err, 0, true)
}

func TestManyCallsAfterAPauseConnectOnce(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, binding := create(t, d, resources.CreateRequest{})
	require.NoError(t, d.Pause(t.Context(), binding))
	var calls sync.WaitGroup
	var errs [8]error
	for i := range errs {
		calls.Go(func() { errs[i] = s.WriteFile(t.Context(), strconv.Itoa(i), []byte("x")) })
	}
	calls.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, 1, count(server, "POST /v2/sandboxes/"+s.ID()+"/connect"))
}

func TestPauseDoesNotOpen(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, binding := create(t, d, resources.CreateRequest{})
	other := open(t, server)
	require.NoError(t, other.Pause(t.Context(), binding))
	require.NoError(t, other.Pause(t.Context(), binding))
	require.Zero(t, count(server, "POST /v2/sandboxes/"+s.ID()+"/connect"))
	require.Equal(t, "paused", server.Sandboxes()[0].State)

	// A sandbox that changes its state is not paused yet.
	require.NoError(t, s.WriteFile(t.Context(), "x", nil))
	server.Fail(e2btest.Fault{Method: http.MethodPost, Path: "/sandboxes/*/pause", Status: 409})
	requireRetry(t, d.Pause(t.Context(), binding), 0, true)
}

// egress gives the driver a credential that can change.
func egress(token *atomic.Value) func(*e2b.Options) {
	token.CompareAndSwap(nil, "first-token-0123456789")
	return func(o *e2b.Options) {
		o.Egress = map[string]e2b.Headers{
			"API.example.com": func(context.Context) (http.Header, error) {
				return http.Header{"Authorization": {"Bearer " + token.Load().(string)}}, nil
			},
		}
	}
}

func TestEgressCredentials(t *testing.T) {
	t.Parallel()
	_, server := setup(t)
	var token atomic.Value
	d := open(t, server, egress(&token))
	config := json.RawMessage(`{"network":{"allow_out":["api.example.com"],"deny_out":["0.0.0.0/0"]}}`)
	s, binding := create(t, d, resources.CreateRequest{Config: config})
	requireNetwork := func(header string) {
		t.Helper()
		want := `{"allowOut":["api.example.com"],"denyOut":["0.0.0.0/0"]`
		if header != "" {
			want += `,"rules":{"api.example.com":[{"transform":{"headers":{"Authorization":"` + header + `"}}}]}`
		}
		require.JSONEq(t, want+"}", string(server.Sandboxes()[0].Network))
	}
	requireNetwork("Bearer first-token-0123456789")

	// Each connect sets what the worker holds then, and keeps the rest.
	token.Store("second-token-0123456789")
	_, err := d.Open(t.Context(), binding)
	require.NoError(t, err)
	requireNetwork("Bearer second-token-0123456789")
	token.Store("third-token-0123456789")
	require.NoError(t, d.Pause(t.Context(), binding))
	require.NoError(t, s.WriteFile(t.Context(), "x", nil))
	requireNetwork("Bearer third-token-0123456789")
	token.Store("fourth-token-0123456789")
	ref, err := d.Checkpoint(t.Context(), s)
	require.NoError(t, err)
	requireNetwork("Bearer fourth-token-0123456789")

	// Nothing that is recorded holds one.
	for _, sandbox := range server.Sandboxes() {
		recorded, err := json.Marshal([]any{binding, ref, sandbox.Metadata, s})
		require.NoError(t, err)
		require.NotContains(t, string(recorded), "token-0123456789")
	}
	require.Empty(t, run(t, s, "env | grep token-").Stdout)

	// A worker without credentials takes away those of another.
	_, err = open(t, server).Open(t.Context(), binding)
	require.NoError(t, err)
	requireNetwork("")
}

func TestEgressCredentialIsMissing(t *testing.T) {
	t.Parallel()
	_, server := setup(t)
	d := open(t, server, func(o *e2b.Options) {
		o.Egress = map[string]e2b.Headers{"api.example.com": e2b.BearerFromEnv("TINE_TEST_NO_SUCH_VARIABLE")}
	})
	_, _, err := d.Create(t.Context(), resources.CreateRequest{Owner: anOwner})
	require.EqualError(t, err, "e2b: egress credentials for api.example.com: TINE_TEST_NO_SUCH_VARIABLE is not set")
}

func TestEgressRefused(t *testing.T) {
	t.Parallel()
	_, server := setup(t)
	d := open(t, server, egress(new(atomic.Value)))
	server.Fail(e2btest.Fault{Method: http.MethodPut, Path: "/sandboxes/*/network", Status: 400})
	_, _, err := d.Create(t.Context(), resources.CreateRequest{Owner: anOwner})
	requireRetry(t, err, 0, false)
	require.Empty(t, server.Sandboxes(), "no other attempt would find it")
}

func TestFromEnv(t *testing.T) {
	_, server := setup(t)
	t.Setenv("E2B_API_KEY", server.APIKey())
	t.Setenv("E2B_API_URL", server.URL())
	t.Setenv("E2B_SANDBOX_URL", server.URL())
	t.Setenv("TINE_TEST_TOKEN", "t0ken")
	d, err := e2b.FromEnv()
	require.NoError(t, err)
	s, _ := create(t, d, resources.CreateRequest{})
	require.Equal(t, "here\n", run(t, s, "echo here").Stdout)

	header, err := e2b.BearerFromEnv("TINE_TEST_TOKEN")(t.Context())
	require.NoError(t, err)
	require.Equal(t, http.Header{"Authorization": {"Bearer t0ken"}}, header)
	header, err = e2b.BasicFromEnv("x-access-token", "TINE_TEST_TOKEN")(t.Context())
	require.NoError(t, err)
	require.Equal(t, http.Header{"Authorization": {"Basic eC1hY2Nlc3MtdG9rZW46dDBrZW4="}}, header)
}

// A slow attempt must not take away what its successor has returned, which may be the newer one.
func TestCreateRemovesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	const (
		labels = `"metadata":{"managed_by":"tine","tine_execution_id":"execution","tine_run_id":"run","tine_key":"workspace"}`
		older  = `{"sandboxID":"i0","state":"running","startedAt":"2026-01-01T00:00:00Z",` + labels + `}`
		mine   = `{"sandboxID":"i1","state":"running","startedAt":"2026-01-01T00:00:01Z",` + labels + `}`
		newer  = `{"sandboxID":"i2","state":"running","startedAt":"2026-01-01T00:00:02Z",` + labels + `}`
		others = `{"sandboxID":"ix","state":"running","startedAt":"2025-01-01T00:00:00Z","metadata":{"team":"prod"}}`
	)
	for name, test := range map[string]struct {
		afterwards string // what there is after the sandbox was created
		want       string
		killed     []string
	}{
		"alone":         {afterwards: mine, want: "i1"},
		"another newer": {afterwards: newer + "," + mine, want: "i1"},
		"another older": {afterwards: mine + "," + older, want: "i0", killed: []string{"/sandboxes/i1"}},
		"not listed":    {afterwards: newer, want: "i1"},
		"of others, by a service that does not filter": {afterwards: others + "," + mine, want: "i1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var killed []string
			sandboxes := ""
			d := serve(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case r.Method == http.MethodGet:
					reply(w, 200, "["+sandboxes+"]")
				case r.Method == http.MethodDelete:
					killed = append(killed, r.URL.Path)
					sandboxes = older
					w.WriteHeader(http.StatusNoContent)
				case strings.HasSuffix(r.URL.Path, "/connect"):
					reply(w, 200, strings.ReplaceAll(runningSandbox, "i1", "i0"))
				default:
					sandboxes = test.afterwards
					reply(w, 201, runningSandbox)
				}
			})
			s, _, err := d.Create(t.Context(), resources.CreateRequest{Owner: anOwner})
			require.NoError(t, err)
			require.Equal(t, test.want, s.ID())
			require.Equal(t, test.killed, killed)
		})
	}
}

func TestCancelBeforeTheCommandHasStarted(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	server.Fail(e2btest.Fault{Path: startCommand, Delay: time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := s.Run(ctx, e2b.Command{Line: "echo $$ > pid; exec sleep 600"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	result := run(t, s, `for i in $(seq 100); do
[ -f pid ] && kill -0 $(cat pid) 2>/dev/null || exit 0
sleep 0.05
done; exit 1`)
	require.Zero(t, result.ExitCode, "the command still runs")
}

// The daemon ends commands of workers that died.
func TestCommandsHaveALimit(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	limit := func() string {
		all := server.Requests()
		return all[len(all)-1].Header.Get("Connect-Timeout-Ms")
	}
	run(t, s, "true")
	require.Empty(t, limit())
	_, err := s.Run(t.Context(), e2b.Command{Line: "true", Timeout: time.Minute})
	require.NoError(t, err)
	require.Equal(t, "75000", limit())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = s.Run(ctx, e2b.Command{Line: "true", Timeout: time.Hour})
	require.NoError(t, err)
	ms, err := strconv.Atoi(limit())
	require.NoError(t, err)
	require.InDelta(t, 75_000, ms, 20_000, "the context ends first")
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	d, server := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	before := len(server.Requests())
	for says, command := range map[string]e2b.Command{
		"the command is empty":  {},
		"both a Line and a Cmd": {Line: "true", Cmd: "true"},
		"timeout is -1s":        {Line: "true", Timeout: -time.Second},
	} {
		_, err := s.Run(t.Context(), command)
		require.ErrorContains(t, err, says)
	}
	require.Len(t, server.Requests(), before)
}

func TestStandardInput(t *testing.T) {
	t.Parallel()
	d, _ := setup(t)
	s, _ := create(t, d, resources.CreateRequest{})
	large := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	result, err := s.Run(t.Context(), e2b.Command{Line: "md5sum | cut -c1-32", Stdin: large})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%x\n", md5.Sum(large)), result.Stdout)
	result, err = s.Run(t.Context(), e2b.Command{Line: "cat; echo end", Stdin: []byte{}})
	require.NoError(t, err)
	require.Equal(t, "end\n", result.Stdout)
	require.Equal(t, "end\n", run(t, s, "cat; echo end").Stdout, "no input is an empty one")
	result, err = s.Run(t.Context(), e2b.Command{Line: "exit 4", Stdin: large})
	require.NoError(t, err, "a command need not read its input")
	require.Equal(t, 4, result.ExitCode)
}

// Daemons before 0.4 have no default user.
func TestOldDaemon(t *testing.T) {
	t.Parallel()
	users := make(chan string, 10)
	d := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/sandboxes/i1":
			reply(w, 200, `{"sandboxID":"i1","state":"running"}`)
		case strings.HasSuffix(r.URL.Path, "/connect"):
			reply(w, 200, strings.ReplaceAll(runningSandbox, "0.6.13", "0.3.2"))
		case r.URL.Path == "/files":
			users <- r.URL.Query().Get("username")
		default:
			user, _, _ := r.BasicAuth()
			users <- user
			reply(w, 200, `{}`)
		}
	})
	s, err := d.Open(t.Context(), aSandbox)
	require.NoError(t, err)
	_, err = s.ReadFile(t.Context(), "x")
	require.NoError(t, err)
	require.NoError(t, s.Remove(t.Context(), "x"))
	require.Equal(t, "user", <-users)
	require.Equal(t, "user", <-users)
}

// The token of a sandbox may be another one after it was resumed elsewhere.
func TestNewToken(t *testing.T) {
	t.Parallel()
	var connects atomic.Int64
	d := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/sandboxes/i1":
			reply(w, 200, `{"sandboxID":"i1","state":"running"}`)
		case strings.HasSuffix(r.URL.Path, "/connect"):
			reply(w, 200, strings.ReplaceAll(runningSandbox, envdToken, "token-"+strconv.FormatInt(connects.Add(1), 10)))
		case r.Header.Get("X-Access-Token") != "token-2":
			reply(w, 401, `{"code":"unauthenticated","message":"wrong token"}`)
		default:
			reply(w, 200, `{}`)
		}
	})
	s, err := d.Open(t.Context(), aSandbox)
	require.NoError(t, err)
	require.NoError(t, s.Remove(t.Context(), "x"))
	require.EqualValues(t, 2, connects.Load())
}

// Between running and paused, the proxy says that calls have to wait; connecting does.
func TestCallDuringTransition(t *testing.T) {
	t.Parallel()
	var connects atomic.Int64
	d := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/sandboxes/i1":
			reply(w, 200, `{"sandboxID":"i1","state":"running"}`)
		case strings.HasSuffix(r.URL.Path, "/connect"):
			connects.Add(1)
			reply(w, 200, runningSandbox)
		case connects.Load() == 1:
			reply(w, 409, `{"sandboxId":"i1","message":"The sandbox is still transitioning","code":409}`)
		default:
			reply(w, 200, `{}`)
		}
	})
	s, err := d.Open(t.Context(), aSandbox)
	require.NoError(t, err)
	require.NoError(t, s.Remove(t.Context(), "x"))
	require.EqualValues(t, 2, connects.Load())
}

// A stream that stops after the command's end has told all there is.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	envelope := func(flags byte, message string) string {
		return string([]byte{flags, 0, 0, 0, byte(len(message))}) + message
	}
	start := envelope(0, `{"event":{"start":{"pid":999999999}}}`)
	out := envelope(0, `{"event":{"data":{"stdout":"aGkK"}}}`)
	end := envelope(0, `{"event":{"end":{"exited":true,"status":"exit status 0"}}}`)
	for name, test := range map[string]struct {
		stream string
		says   string // "" is success
		retry  bool
	}{
		"whole":          {stream: start + out + end + envelope(2, `{}`)},
		"pings":          {stream: start + envelope(0, `{"event":{"keepalive":{}}}`) + out + end + envelope(2, `{}`)},
		"cut at the end": {stream: start + out + end},
		"no end":         {stream: start + out + envelope(2, `{}`), says: "the stream ended before the command", retry: true},
		"cut":            {stream: start + out, says: "the connection was cut", retry: true},
		"cut inside":     {stream: start + out + end[:20], says: "the connection was cut", retry: true},
		"compressed":     {stream: start + out + envelope(1, `{}`), says: "it is compressed", retry: true},
		"no JSON":        {stream: start + out + envelope(0, `x`), says: "the answer cannot be read", retry: true},
		"too large":      {stream: start + out + "\x00\xff\xff\xff\xff", says: "too large", retry: true},
		"refused": {
			stream: start + out + envelope(2, `{"error":{"code":"permission_denied","message":"no"}}`), says: "403 Forbidden: no",
		},
		"unavailable": {
			stream: start + out + envelope(2, `{"error":{"code":"unavailable","message":"no"}}`), says: "503", retry: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var kills atomic.Int64
			d := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				switch {
				case r.URL.Path == "/sandboxes/i1":
					reply(w, 200, `{"sandboxID":"i1","state":"running"}`)
				case strings.HasSuffix(r.URL.Path, "/connect"):
					reply(w, 200, runningSandbox)
				case r.URL.Path != startCommand:
					reply(w, 200, `{}`)
				case bytes.Contains(body, []byte("999999999")):
					kills.Add(1)
					reply(w, 503, `{}`)
				default:
					w.Header().Set("Content-Type", "application/connect+json")
					_, _ = io.WriteString(w, test.stream)
				}
			})
			s, err := d.Open(t.Context(), aSandbox)
			require.NoError(t, err)
			result, err := s.Run(t.Context(), e2b.Command{Line: "true"})
			require.Equal(t, "hi\n", result.Stdout)
			if test.says == "" {
				require.NoError(t, err)
				require.Zero(t, result.ExitCode)
				require.Zero(t, kills.Load())
				return
			}
			require.ErrorContains(t, err, test.says)
			requireRetry(t, err, 0, test.retry)
			require.EqualValues(t, 1, kills.Load(), "it must not run beside another attempt")
		})
	}
}
