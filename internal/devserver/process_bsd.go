//go:build unix && !linux

package devserver

import (
	"os/exec"
	"syscall"
)

func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

func bind(pid int) (unbind func(), err error) { return watch(pid) }
