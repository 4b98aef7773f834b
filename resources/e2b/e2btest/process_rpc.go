package e2btest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

type startBody struct {
	Process *processConfig `json:"process"`
	PTY     *struct {
		Size struct {
			Cols uint32 `json:"cols"`
			Rows uint32 `json:"rows"`
		} `json:"size"`
	} `json:"pty"`
	Tag   *string `json:"tag"`
	Stdin *bool   `json:"stdin"`
}

func (c *rpc) start() error {
	var body startBody
	if err := c.decode(&body); err != nil {
		return err
	}
	switch {
	case body.Process == nil || body.Process.Cmd == "":
		return rpcErrorf("invalid_argument", "process.cmd is missing")
	case body.PTY != nil:
		return rpcErrorf("unimplemented", "the emulator has no terminals")
	}
	cmd, err := c.command(*body.Process)
	if err != nil {
		return err
	}
	p := &process{
		config: *body.Process, tag: body.Tag,
		killed: make(chan struct{}), ended: make(chan struct{}), subscribers: map[*subscriber]bool{},
	}
	sub, leave := p.subscribe()
	defer leave()
	if err := c.sandbox.processes.start(p, cmd, body.Stdin == nil || *body.Stdin); err != nil {
		_ = p.closeStdin()
		return rpcErrorf("invalid_argument", "error starting process '%s': %v", body.Process.Cmd, c.sandbox.guestError(err))
	}
	// The process outlives the request unless its time is up.
	if c.timeout > 0 {
		timer := time.AfterFunc(c.timeout, func() { _ = p.signal(syscall.SIGKILL) })
		go func() {
			<-p.ended
			timer.Stop()
		}()
	}
	return c.follow(p, sub)
}

// command is how a process runs on this host.
func (c *rpc) command(config processConfig) (*exec.Cmd, error) {
	guest := c.resolve(config.Cwd)
	if config.Cwd == "" {
		guest = homeDir
	}
	cwd := c.sandbox.hostPath(guest)
	if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
		return nil, rpcErrorf("invalid_argument", "cwd '%s' does not exist", guest)
	}
	// Through a shell, as in envd: so a program that does not exist is exit code 127.
	args := []string{"-c", `exec "$@"`, "sh", c.sandbox.mapText(config.Cmd)}
	for _, arg := range config.Args {
		args = append(args, c.sandbox.mapText(arg))
	}
	cmd := exec.Command("/bin/sh", args...)
	cmd.Dir = cwd
	c.server.mu.Lock()
	cmd.Env = c.server.environment(c.sandbox, c.user, c.home, cwd, config.Envs)
	c.server.mu.Unlock()
	cmd.SysProcAttr = attributes()
	return cmd, nil
}

// eventAnswer is a message of the streams about a process.
type eventAnswer struct {
	Event processEvent `json:"event"`
}

// follow sends the events of a process until it ends, or the call's time does.
func (c *rpc) follow(p *process, sub *subscriber) error {
	ctx := c.r.Context()
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	send := func(event processEvent) error { return writeEnvelope(c.w, 0, eventAnswer{event}) }
	if err := send(processEvent{Start: &startEvent{p.pid}}); err != nil {
		return err
	}
	keepalive := time.NewTicker(c.keepalive())
	defer keepalive.Stop()
	for {
		select {
		case event := <-sub.data:
			if err := send(processEvent{Data: &event}); err != nil {
				return err
			}
			keepalive.Reset(c.keepalive())
		case <-keepalive.C:
			if err := send(processEvent{Keepalive: &struct{}{}}); err != nil {
				return err
			}
		case <-ctx.Done():
			return deadlineError(ctx)
		case <-p.ended:
			if ctx.Err() != nil {
				return deadlineError(ctx)
			}
			return send(processEvent{End: &p.end})
		}
	}
}

func deadlineError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return rpcErrorf("deadline_exceeded", "the operation timed out")
	}
	return ctx.Err()
}

// processBody is the part that calls about a process share.
type processBody struct {
	Process *selector `json:"process"`
}

func (b processBody) find(c *rpc, exited bool) (*process, error) {
	if b.Process == nil || (b.Process.PID == nil) == (b.Process.Tag == nil) {
		return nil, rpcErrorf("invalid_argument", "process must have either a pid or a tag")
	}
	p := c.sandbox.processes.find(*b.Process, exited)
	if p == nil {
		return nil, rpcErrorf("not_found", "there is no such process")
	}
	return p, nil
}

func (c *rpc) connect() error {
	var body processBody
	if err := c.decode(&body); err != nil {
		return err
	}
	p, err := body.find(c, true)
	if err != nil {
		return err
	}
	sub, leave := p.subscribe()
	defer leave()
	return c.follow(p, sub)
}

func (c *rpc) listProcesses() (any, error) {
	if err := c.decode(&struct{}{}); err != nil {
		return nil, err
	}
	type info struct {
		Config processConfig `json:"config"`
		PID    int           `json:"pid"`
		Tag    *string       `json:"tag,omitempty"`
	}
	var answer struct {
		Processes []info `json:"processes,omitempty"`
	}
	for _, p := range c.sandbox.processes.list() {
		answer.Processes = append(answer.Processes, info{p.config, p.pid, p.tag})
	}
	return answer, nil
}

func (c *rpc) sendSignal() (any, error) {
	var body struct {
		processBody
		Signal string `json:"signal"`
	}
	if err := c.decode(&body); err != nil {
		return nil, err
	}
	p, err := body.find(c, false)
	if err != nil {
		return nil, err
	}
	signal := map[string]syscall.Signal{"SIGNAL_SIGKILL": syscall.SIGKILL, "SIGNAL_SIGTERM": syscall.SIGTERM}[body.Signal]
	if signal == 0 {
		return nil, rpcErrorf("unimplemented", "invalid signal: %s", body.Signal)
	}
	if err := p.signal(signal); err != nil {
		return nil, rpcErrorf("internal", "error sending signal: %v", err)
	}
	return struct{}{}, nil
}

func (c *rpc) sendInput() (any, error) {
	var body struct {
		processBody
		Input struct {
			Stdin *[]byte `json:"stdin"`
		} `json:"input"`
	}
	if err := c.decode(&body); err != nil {
		return nil, err
	}
	p, err := body.find(c, false)
	if err != nil {
		return nil, err
	}
	if body.Input.Stdin == nil {
		return nil, rpcErrorf("unimplemented", "input must have stdin")
	}
	if err := p.write(c.r.Context(), *body.Input.Stdin); err != nil {
		return nil, rpcErrorf("internal", "error writing to stdin: %v", err)
	}
	return struct{}{}, nil
}

func (c *rpc) closeStdin() (any, error) {
	var body processBody
	if err := c.decode(&body); err != nil {
		return nil, err
	}
	p, err := body.find(c, false)
	if err != nil {
		return nil, err
	}
	if err := p.closeStdin(); err != nil {
		return nil, rpcErrorf("unknown", "error closing stdin: %v", err)
	}
	return struct{}{}, nil
}
