//go:build unix

package devserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// helperEnv turns this test binary into a process that a test kills or waits for.
const helperEnv = "TINE_DEVSERVER_TEST_HELPER"

func TestMain(m *testing.M) {
	switch mode, arg, _ := strings.Cut(os.Getenv(helperEnv), "="); mode {
	case "":
		os.Exit(m.Run())
	case "server":
		server, err := Start(context.Background(), Options{Program: arg, Headless: true})
		exitOn(err)
		fmt.Println(server.Address())
		select {}
	case "watch":
		child := exec.Command("sleep", "1000")
		child.Stdout = os.Stdout // so the test sees the end of it, too
		child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		exitOn(child.Start())
		_, err := watch(child.Process.Pid)
		exitOn(err)
		fmt.Println("watching")
		select {}
	case "lock":
		_, err := lockFile(context.Background(), arg, func(time.Duration) {})
		exitOn(err)
		fmt.Println("locked")
		select {}
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// helper starts this binary in a mode and waits for its first line, which it returns with the
// process and the rest of its output.
func helper(t *testing.T, mode string) (process *os.Process, line string, rest *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = read.Close() })
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+mode)
	cmd.Stdout, cmd.Stderr = write, os.Stderr
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var text strings.Builder
	for one := make([]byte, 1); ; text.Write(one) {
		_, err := read.Read(one)
		require.NoError(t, err, "helper ended early: %s", text.String())
		if one[0] == '\n' {
			return cmd.Process, text.String(), read
		}
	}
}

// script writes a shell script to run as a program.
func script(t *testing.T, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	// A process that another test starts meanwhile would inherit the open file for a moment,
	// and the system does not run files that are open for writing.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
	return path
}

// program is the real one.
func program(t *testing.T) string {
	t.Helper()
	path, err := Program(context.Background(), os.Stderr)
	require.NoError(t, err)
	return path
}
