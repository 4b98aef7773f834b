//go:build unix

package devserver

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
)

func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	parent, address, _ := helper(t, "server="+program(t))
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	require.NoError(t, parent.Kill())
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 10*time.Second, 10*time.Millisecond, "the server at %s goes on", address)
}

func TestWatchKillsWhenTheParentDies(t *testing.T) {
	t.Parallel()
	parent, line, output := helper(t, "watch")
	require.Equal(t, "watching", line)
	require.NoError(t, parent.Kill())
	require.NoError(t, output.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := io.Copy(io.Discard, output) // ends when the last process that has the pipe does
	require.NoError(t, err)
}

func TestUnwatchKillsNothing(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "1000")
	p, err := launch(cmd)
	require.NoError(t, err)
	defer p.kill()
	unwatch, err := watch(cmd.Process.Pid)
	require.NoError(t, err)
	unwatch()
	select {
	case <-p.done:
		t.Fatal("killed")
	case <-time.After(200 * time.Millisecond):
	}
}

func TestKillEndsAllThatTheChildStarted(t *testing.T) {
	t.Parallel()
	p, err := launch(exec.Command("sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"))
	require.NoError(t, err)
	p.terminate()
	p.kill()
	<-p.done
	require.ErrorContains(t, p.err, "signal:")
	requireGroupGone(t, p.cmd.Process.Pid)
	p.kill() // and again, without harm to others
}

func TestLaunchFails(t *testing.T) {
	t.Parallel()
	_, err := launch(exec.Command(filepath.Join(t.TempDir(), "nothing")))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// groupRuns looks for a process of the group that is more than a zombie nobody has reaped, which
// some containers leave lying.
func groupRuns(group int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		// pid (name) state ppid pgrp …, and the name may have anything in it.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[0] != "Z" && fields[2] == strconv.Itoa(group) {
			return true
		}
	}
	return len(stats) == 0
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	require.NoError(t, err)
	return n
}

func TestDatabaseFileSurvivesAKill(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	opts := Options{Program: program(t), DBFilename: filepath.Join(t.TempDir(), "tine.db"), Headless: true}
	connect := func(server *Server) client.Client {
		c, err := client.Dial(client.Options{HostPort: server.Address()})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	first, err := Start(ctx, opts)
	require.NoError(t, err)
	run, err := connect(first).ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: "none"}, "coder")
	require.NoError(t, err)
	first.process.kill()
	<-first.Done()

	second, err := Start(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(second.Stop)
	_, err = connect(second).DescribeWorkflow(ctx, run.GetID(), run.GetRunID())
	require.NoError(t, err)
}
