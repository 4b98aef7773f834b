package devserver

import (
	"os/exec"
	"runtime"
	"time"
)

// pipeDelay is how long a process may be gone while somebody still holds its output open.
const pipeDelay = 5 * time.Second

// process is a child with the processes that it starts, which end with this process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of cmd.Wait; valid once done is closed
}

// launch starts cmd.
func launch(cmd *exec.Cmd) (*process, error) {
	isolate(cmd)
	cmd.WaitDelay = pipeDelay
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Linux ties a child to the thread that started it, not to the process: it would kill
		// the child if the runtime ended that thread. So the thread stays here until the child
		// has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		var unwatch func()
		if err == nil {
			if unwatch, err = bind(cmd.Process.Pid); err != nil {
				killGroup(cmd.Process)
				_ = cmd.Wait()
			}
		}
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		unwatch()
		close(p.done)
	}()
	return p, <-started
}

// terminate asks the process to end.
func (p *process) terminate() {
	if !p.ended() {
		terminateGroup(p.cmd.Process)
	}
}

// kill ends the process and those that it started.
func (p *process) kill() {
	if !p.ended() {
		killGroup(p.cmd.Process)
	}
}

// ended keeps signals from a process that has by now got the same id.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
