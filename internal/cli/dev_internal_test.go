package cli

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/devserver"
)

func TestDevFlags(t *testing.T) {
	t.Parallel()
	type shown struct {
		File, Namespace string
		Port, UIPort    int
		Command         []string
	}
	checkFlags(t, newDevCmd, func(o *devOptions) shown {
		return shown{o.server.DBFilename, o.server.Namespace, o.server.Port, o.server.UIPort, o.command}
	}, map[string]shown{
		"": {Port: 7233, UIPort: 8233, Command: []string{}},
		"--db-filename x.db --port 0 --ui-port 1 --namespace n": {"x.db", "n", 0, 1, []string{}},
		"--port 2 -- worker --port 3 -- x":                      {Port: 2, UIPort: 8233, Command: []string{"worker", "--port", "3", "--", "x"}},
	})
}

func TestDevRefuses(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"worker":         `unexpected argument "worker"; a command to run goes after --`,
		"worker -- x":    `unexpected argument "worker"`,
		"--":             "COMMAND is missing after --",
		"--port 65536":   "port 65536 does not exist",
		"--ui-port=-1":   "port -1 does not exist",
		"-- no-such-cmd": "cannot run no-such-cmd: ",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			h := newHarness(nil, 0)
			require.Equal(t, exitUsage, h.run(t.Context(), append([]string{"dev"}, strings.Fields(args)...)...))
			require.Contains(t, h.err.String(), want)
		})
	}
}

// fakeServer is a dev server that does nothing.
type fakeServer struct {
	mu   sync.Mutex
	err  error
	done chan struct{}
}

func (s *fakeServer) Address() string       { return "127.0.0.1:7233" }
func (s *fakeServer) UIAddress() string     { return "http://127.0.0.1:8233" }
func (s *fakeServer) Done() <-chan struct{} { return s.done }

func (s *fakeServer) Tuning() map[string]any {
	return map[string]any{"system.enableActivityEagerExecution": true, "history.timerProcessorMaxPollRPS": 1000}
}

func (s *fakeServer) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *fakeServer) Stop() { s.end(nil) }

func (s *fakeServer) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
	default:
		s.err = err
		close(s.done)
	}
}

// devHarness is a harness whose dev server is fake, and which sends signals.
type devHarness struct {
	*harness
	server  *fakeServer
	signals chan os.Signal
	asked   devserver.Options
}

func newDevHarness() *devHarness {
	h := &devHarness{harness: newHarness(nil, 0), server: &fakeServer{done: make(chan struct{})}, signals: make(chan os.Signal, 1)}
	h.f.signals = func() (<-chan os.Signal, func()) { return h.signals, func() {} }
	h.f.startServer = func(_ context.Context, opts devserver.Options) (devServer, error) {
		h.asked = opts
		return h.server, nil
	}
	return h
}

func (h *devHarness) stopped(t *testing.T) {
	t.Helper()
	select {
	case <-h.server.done:
	default:
		t.Error("the server was left running")
	}
}

func TestDevServesUntilInterrupted(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"dev.txt":  {"dev"},
		"dev.json": {"dev", "--db-filename", "tine.db", "--namespace", "mine", "-o", "json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			interrupt()
			h := newDevHarness()
			require.Equal(t, exitOK, h.run(ctx, args...))
			golden(t, name, h.out.String())
			require.Empty(t, h.err.String())
			h.stopped(t)
		})
	}
}

func TestDevServerThatEnds(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"dev"}, {"dev", "--", "sleep", "60"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			h := newDevHarness()
			h.server.end(errors.New("it ended by itself"))
			require.Equal(t, exitFailed, h.run(t.Context(), args...))
			require.Contains(t, h.err.String(), "error: it ended by itself\n")
		})
	}
}

func TestDevServerThatDoesNotStart(t *testing.T) {
	t.Parallel()
	h := newDevHarness()
	h.f.startServer = func(context.Context, devserver.Options) (devServer, error) {
		return nil, &devserver.PortError{Port: 7233, Flag: "--port", Err: errors.New("in use")}
	}
	require.Equal(t, exitFailed, h.run(t.Context(), "dev"))
	require.Contains(t, h.err.String(), "choose another with --port")
}

func TestDevRunsACommand(t *testing.T) {
	t.Parallel()
	h := newDevHarness()
	require.Equal(t, 7, h.run(t.Context(), "dev", "--", "sh", "-c", "echo $TEMPORAL_ADDRESS $TEMPORAL_NAMESPACE; exit 7"))
	require.Equal(t, "127.0.0.1:7233 default\n", h.out.String(), "stdout is the command's")
	require.Contains(t, h.err.String(), "The Temporal dev server is ready.")
	require.NotContains(t, h.err.String(), "error:")
	h.stopped(t)
}

func TestDevCommandKilledByASignal(t *testing.T) {
	t.Parallel()
	require.Equal(t, 128+int(syscall.SIGKILL), newDevHarness().run(t.Context(), "dev", "--", "sh", "-c", "kill -KILL $$"))
}

// trap says that it is ready, and with which signal it is told to stop.
const trap = `trap 'echo INT; exit 3' INT; trap 'echo TERM; exit 4' TERM; echo ready >&2; while :; do sleep 0.01; done`

// readiness is a stderr that tells when the trap is ready.
type readiness struct {
	once  sync.Once
	ready chan struct{}
}

func (r *readiness) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "ready\n") {
		r.once.Do(func() { close(r.ready) })
	}
	return len(p), nil
}

func TestDevPassesSignalsOn(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		end  func(h *devHarness, interrupt func())
		exit int
		said string
	}{
		"interrupt": {func(h *devHarness, interrupt func()) { h.signals <- os.Interrupt; interrupt() }, 3, "INT\n"},
		"late":      {func(h *devHarness, interrupt func()) { interrupt(); h.signals <- os.Interrupt }, 3, "INT\n"},
		"terminate": {func(h *devHarness, interrupt func()) { h.signals <- syscall.SIGTERM; interrupt() }, 4, "TERM\n"},
		"context":   {func(_ *devHarness, interrupt func()) { interrupt() }, 4, "TERM\n"},
		"server":    {func(h *devHarness, _ func()) { h.server.end(errors.New("gone")) }, exitFailed, "TERM\n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			h := newDevHarness()
			stderr := &readiness{ready: make(chan struct{})}
			h.f.errOut = stderr
			go func() {
				<-stderr.ready
				tc.end(h, interrupt)
			}()
			require.Equal(t, tc.exit, h.run(ctx, "dev", "-o", "json", "--", "sh", "-c", trap))
			require.True(t, strings.HasSuffix(h.out.String(), "}\n"+tc.said), h.out.String())
			h.stopped(t)
		})
	}
}

func TestCommandEnvironment(t *testing.T) {
	t.Parallel()
	got := commandEnv([]string{
		"PATH=/bin", "TEMPORAL_ADDRESS=cloud:7233", "TEMPORAL_NAMESPACE=prod", "TEMPORAL_API_KEY=secret", "TEMPORAL_TLS=true",
		"TEMPORAL_TLS_SERVER_NAME=x", "TEMPORAL_PROFILE=prod", "TEMPORAL_CONFIG_FILE=/x", "TEMPORAL_DEBUG=1",
	}, "127.0.0.1:1", "mine")
	want := []string{"PATH=/bin", "TEMPORAL_DEBUG=1", "TEMPORAL_ADDRESS=127.0.0.1:1", "TEMPORAL_NAMESPACE=mine", "TEMPORAL_CONFIG_FILE=" + os.DevNull}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAwaitSignal(t *testing.T) {
	t.Parallel()
	began := time.Now()
	require.Equal(t, syscall.SIGTERM, awaitSignal(nil))
	require.GreaterOrEqual(t, time.Since(began), signalGrace)
}
