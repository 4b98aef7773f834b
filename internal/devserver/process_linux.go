package devserver

import (
	"os/exec"
	"syscall"
)

// isolate has the kernel kill the child when its parent thread ends; see launch for the thread.
func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func bind(int) (unbind func(), err error) { return func() {}, nil }
