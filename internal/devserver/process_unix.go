//go:build unix

package devserver

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// A child leads a process group of its own. So signals reach all that it starts, and Ctrl-C in
// a terminal reaches this process only, which then ends things in its own order.

func terminateGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// watch has a shell kill process group pid when this process ends in whatever way. The shell
// waits for the end of a pipe whose other end this process alone holds.
func watch(pid int) (unwatch func(), err error) {
	shell := exec.Command("/bin/sh", "-c", `read -r _; kill -s KILL -- "-$1"`, "tine-watch", strconv.Itoa(pid))
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	hold, err := shell.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	if err := shell.Start(); err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	return func() {
		_ = shell.Process.Kill() // before the pipe is closed, or it would act
		_ = shell.Wait()
		_ = hold.Close()
	}, nil
}
