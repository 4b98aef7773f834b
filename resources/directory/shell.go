package directory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// maxOutput is how much of each output stream Shell keeps: enough for a person or a
	// model to read, and well below what fits a Temporal payload.
	maxOutput = 512 << 10
	// shellGrace is how long a command that has been killed may hold its output open.
	shellGrace = 2 * time.Second
)

// ShellResult is what a command did. An exit code of -1 means that a signal ended it.
type ShellResult struct {
	ExitCode int
	// Stdout and Stderr end with a note if there was more than 512 KiB.
	Stdout string
	Stderr string
}

// passedOn are the environment variables that a command gets from the worker: what it takes
// to find programs and their caches. Credentials of the worker are not among them.
var passedOn = []string{
	"PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR",
	"GOCACHE", "GOMODCACHE", "GOPATH", "GOROOT", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOTOOLCHAIN", "GOFLAGS",
}

// Shell runs a command with sh -c in the workspace. That it exits with another code than
// 0 is no error. When ctx ends, the command and all it has started are killed, and the error is
// ctx's. What it leaves running in the background is killed too. The command is not
// confined to the workspace.
func (w *Workspace) Shell(ctx context.Context, command string) (ShellResult, error) {
	if err := w.check(); err != nil {
		return ShellResult{}, err
	}
	var stdout, stderr limitedBuffer
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir = w.Path()
	cmd.Env = shellEnvironment(w.Path())
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = shellGrace
	err := cmd.Run()
	if killErr := killGroup(cmd); killErr != nil {
		return ShellResult{}, killErr
	}
	if ctx.Err() != nil {
		return ShellResult{}, ctx.Err()
	}
	result := ShellResult{Stdout: stdout.String(), Stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		result.ExitCode = exit.ExitCode()
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return ShellResult{}, fmt.Errorf("shell: %w", err)
	}
	return result, nil
}

// killGroup ends what a command has left running: it would go on changing files while a
// checkpoint is taken.
func killGroup(cmd *exec.Cmd) error {
	if cmd.Process == nil {
		return nil
	}
	err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("shell: end background processes: %w", err)
	}
	return nil
}

func shellEnvironment(dir string) []string {
	// git must not take a repository around the workspace for the workspace's own.
	env := []string{"PWD=" + dir, "GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir)}
	for _, name := range passedOn {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// limitedBuffer keeps the beginning of what is written to it.
type limitedBuffer struct {
	kept    bytes.Buffer
	dropped int64
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	fits := min(len(p), maxOutput-b.kept.Len())
	b.kept.Write(p[:fits])
	b.dropped += int64(len(p) - fits)
	return len(p), nil
}

func (b *limitedBuffer) String() string {
	if b.dropped == 0 {
		return b.kept.String()
	}
	return strings.ToValidUTF8(b.kept.String(), "") + fmt.Sprintf("\n… %d more bytes", b.dropped)
}
