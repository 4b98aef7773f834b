//go:build !unix

package devserver

import (
	"os"
	"os/exec"
)

// Without process groups and signals a child is killed, alone, and outlives a parent that is
// killed itself.

func isolate(*exec.Cmd) {}

func bind(int) (unbind func(), err error) { return func() {}, nil }

func terminateGroup(p *os.Process) { _ = p.Kill() }

func killGroup(p *os.Process) { _ = p.Kill() }
