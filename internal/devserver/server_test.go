//go:build unix

package devserver_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/devserver"
	"github.com/tinerun/tine/internal/protocol"
)

func program(t testing.TB) string {
	t.Helper()
	path, err := devserver.Program(context.Background(), os.Stderr)
	require.NoError(t, err)
	return path
}

func start(t testing.TB, opts devserver.Options) *devserver.Server {
	t.Helper()
	opts.Progress = os.Stderr
	server, err := devserver.Start(context.Background(), opts)
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return server
}

func dial(t testing.TB, address, namespace string) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{HostPort: address, Namespace: namespace, Logger: quiet{}})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	logs := &buffer{}
	server := start(t, devserver.Options{LogWriter: logs})
	require.NoError(t, server.Err())

	// The search attributes are there and can be written and searched at once.
	ctx := context.Background()
	c := dial(t, server.Address(), "")
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		TaskQueue: "none",
		TypedSearchAttributes: temporal.NewSearchAttributes(
			temporal.NewSearchAttributeKeyKeyword(protocol.AttributeStatus).ValueSet("running"),
			temporal.NewSearchAttributeKeyKeyword(protocol.AttributeAgent).ValueSet("coder"),
			temporal.NewSearchAttributeKeyKeyword(protocol.AttributeSession).ValueSet("s"),
			temporal.NewSearchAttributeKeyKeyword(protocol.AttributeForkedFrom).ValueSet("source"),
			temporal.NewSearchAttributeKeyInt64(protocol.AttributeForkSeq).ValueSet(7),
		),
	}, "coder")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		counted, err := c.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{
			Query: "TineStatus = 'running' AND TineAgent = 'coder' AND TineForkSeq > 6 AND WorkflowId = '" + run.GetID() + "'",
		})
		require.NoError(t, err)
		return counted.GetCount() == 1
	}, 10*time.Second, 20*time.Millisecond)

	page, err := http.Get(server.UIAddress())
	require.NoError(t, err)
	require.NoError(t, page.Body.Close())
	require.Equal(t, http.StatusOK, page.StatusCode)

	require.Eventually(t, func() bool { return strings.Contains(logs.String(), "Server 1.") },
		10*time.Second, 10*time.Millisecond, "the server says its version when it runs")
	said := logs.String()
	var stops sync.WaitGroup
	for range 3 {
		stops.Go(server.Stop)
	}
	stops.Wait()
	<-server.Done()
	require.NoError(t, server.Err())
	require.Equal(t, said, logs.String(), "a server that is stopped has nothing more to say")
	_, err = net.Dial("tcp", server.Address())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestHeadlessWithNamespaceAndDynamicConfig(t *testing.T) {
	t.Parallel()
	server := start(t, devserver.Options{
		Headless:         true,
		Namespace:        "agents",
		SearchAttributes: map[string]enumspb.IndexedValueType{"Team": enumspb.INDEXED_VALUE_TYPE_KEYWORD},
		DynamicConfig:    map[string]any{"limit.maxIDLength": 20},
	})
	require.Empty(t, server.UIAddress())
	c := dial(t, server.Address(), "agents")
	_, err := c.ListWorkflow(context.Background(), &workflowservice.ListWorkflowExecutionsRequest{Query: "Team = 'x'"})
	require.NoError(t, err)
	_, err = c.ExecuteWorkflow(context.Background(), client.StartWorkflowOptions{
		ID: strings.Repeat("x", 21), TaskQueue: "none",
	}, "coder")
	require.ErrorContains(t, err, "exceeds")
}

func TestDatabaseFileSurvivesRestart(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	file := filepath.Join(t.TempDir(), "tine.db")
	// As `temporal server start-dev` by hand would make it, without Tine's search attributes.
	opts := devserver.Options{DBFilename: file, Headless: true, SearchAttributes: map[string]enumspb.IndexedValueType{}}
	first := start(t, opts)
	_, err := dial(t, first.Address(), "").ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "kept", TaskQueue: "none"}, "coder")
	require.NoError(t, err)

	_, err = devserver.Start(ctx, opts)
	require.ErrorContains(t, err, "is in use by another dev server")

	first.Stop()
	opts.SearchAttributes = nil
	second := start(t, opts)
	c := dial(t, second.Address(), "")
	described, err := c.DescribeWorkflow(ctx, "kept", "")
	require.NoError(t, err)
	require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, described.Status)
	_, err = c.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Query: "TineStatus = 'running'"})
	require.NoError(t, err)

	second.Stop()
	opts.SearchAttributes = map[string]enumspb.IndexedValueType{protocol.AttributeStatus: enumspb.INDEXED_VALUE_TYPE_INT}
	_, err = devserver.Start(ctx, opts)
	require.ErrorContains(t, err, "TineStatus is Keyword there and has to be Int; use another database file")
	left, err := filepath.Glob(file + "*.lock")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port

	for flag, opts := range map[string]devserver.Options{
		"--port":    {Port: port},
		"--ui-port": {UIPort: port},
	} {
		opts.Program = "/nonexistent" // it does not come to that
		_, err := devserver.Start(context.Background(), opts)
		var inUse *devserver.PortError
		require.ErrorAs(t, err, &inUse)
		require.Equal(t, port, inUse.Port)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.Regexp(t, `cannot use port \d+: .*address already in use; stop what uses it, or choose another with `+flag+"$", err)
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string]devserver.Options{
		"port 70000 does not exist":           {Port: 70000},
		"may not have ?, # or % in it":        {DBFilename: "what?.db"},
		"make its directory first":            {DBFilename: "/nonexistent/x.db"},
		"run /nonexistent: fork/exec":         {Program: "/nonexistent"},
		"dynamic config a: json: unsupported": {DynamicConfig: map[string]any{"a": func() {}}, Program: "/nonexistent"},
	} {
		_, err := devserver.Start(context.Background(), opts)
		require.ErrorContains(t, err, want)
	}
}

func TestServerThatFails(t *testing.T) {
	t.Parallel()
	fake := func(body string) string {
		path := filepath.Join(t.TempDir(), "temporal")
		syscall.ForkLock.RLock() // see script in main_internal_test.go
		defer syscall.ForkLock.RUnlock()
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
		return path
	}
	ends := fake("echo reading config; echo no such schema >&2; exit 3")
	hangs := fake("trap '' TERM; echo getting there; while :; do sleep 1; done")

	t.Run("ends", func(t *testing.T) {
		t.Parallel()
		_, err := devserver.Start(context.Background(), devserver.Options{Program: ends, Headless: true})
		require.EqualError(t, err, "start the Temporal dev server: exit status 3; its last output:\nreading config\nno such schema")
	})
	t.Run("does not get ready", func(t *testing.T) {
		t.Parallel()
		_, err := devserver.Start(context.Background(), devserver.Options{
			Program: hangs, Headless: true, ReadyTimeout: 300 * time.Millisecond,
		})
		require.ErrorContains(t, err, "it is not ready after 300ms: health check: ")
		require.ErrorContains(t, err, "; its last output:\ngetting there")
	})
	t.Run("is given up", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		_, err := devserver.Start(ctx, devserver.Options{Program: hangs, Headless: true})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("does not get its ports", func(t *testing.T) {
		t.Parallel()
		count := filepath.Join(t.TempDir(), "count")
		loses := fake("echo x >>" + count + "; echo 'listen tcp 127.0.0.1:4: bind: address already in use'; exit 1")
		_, err := devserver.Start(context.Background(), devserver.Options{Program: loses, Headless: true})
		require.ErrorContains(t, err, "another process took one of its ports")
		tries, err := os.ReadFile(count)
		require.NoError(t, err)
		require.Equal(t, 4, bytes.Count(tries, []byte("x")))
	})
	t.Run("ends by itself later", func(t *testing.T) {
		t.Parallel()
		pid := filepath.Join(t.TempDir(), "pid")
		server := start(t, devserver.Options{
			Program: fake("echo $$ >" + pid + `; exec "` + program(t) + `" "$@"`), Headless: true,
		})
		kill(t, pid)
		<-server.Done()
		require.ErrorContains(t, server.Err(), "ended by itself: signal: killed")
		server.Stop()
		require.Error(t, server.Err(), "that it was stopped later explains nothing")
	})
	t.Run("does not stop", func(t *testing.T) {
		t.Parallel()
		server := start(t, devserver.Options{
			Program:   fake(`trap '' TERM; "` + program(t) + `" "$@"; sleep 1000`),
			Headless:  true,
			StopGrace: 100 * time.Millisecond,
		})
		began := time.Now()
		server.Stop()
		require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
		require.NoError(t, server.Err())
	})
}

// kill kills the process whose id is in a file.
func kill(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var pid int
	for _, digit := range strings.TrimSpace(string(text)) {
		pid = pid*10 + int(digit-'0')
	}
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// quiet is a logger of the SDK that says nothing.
type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}

// buffer is a bytes.Buffer for several writers.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

var _ io.Writer = (*buffer)(nil)

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
