package e2b

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"
)

// Command is what to run. Set Line, or Cmd with Args.
type Command struct {
	// Line is run by bash, as a login shell: "cd repo && make test".
	Line string
	// Cmd is a program, with its path or found by the sandbox's PATH.
	Cmd  string
	Args []string
	// Dir is the working directory. Empty means the user's home, or the template's own.
	Dir string
	// Env is added to the sandbox's environment. It does not belong to a configuration, but what
	// runs in the sandbox can read it.
	Env map[string]string
	// Stdin is what the command can read. Nil means none at all.
	Stdin []byte
	// Timeout is after how long the command is killed. 0 means when the context ends.
	Timeout time.Duration
	// MaxOutput is how many bytes of each output stream the result keeps: half from the
	// beginning, half from the end. 0 means 1 MiB. A tool that returns the result should keep
	// less: all of a step's result must fit into 2 MiB of JSON.
	MaxOutput int
	// OnStdout and OnStderr get all output as it comes, in pieces that may split a character.
	// They must not keep the slice.
	OnStdout, OnStderr func(piece []byte)
}

// Result is what a command did.
type Result struct {
	// ExitCode is -1 when a signal ended the command, also the one of its timeout.
	ExitCode int    `json:"exit_code"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	// Status is "exit status 1" or "signal: killed", in the words of the sandbox.
	Status string `json:"status,omitempty"`
	// Truncated says that there was more output than MaxOutput. The text says where and how much.
	Truncated bool `json:"truncated,omitempty"`
	// TimedOut says that the command was killed because its Timeout was up.
	TimedOut bool `json:"timed_out,omitempty"`
}

const (
	defaultMaxOutput = 1 << 20

	// idleLimit is how long a stream may be silent: some of the daemon's pings.
	idleLimit = 3 * pingInterval * time.Second

	// killTimeout is how long killing a command may take, and how long to wait for its end then,
	// or for its start if that was not seen yet.
	killTimeout = 5 * time.Second

	// limitMargin is how much later than the worker the daemon ends a command. It does so for
	// a worker that died; it kills the command only and not what that has started.
	limitMargin = 15 * time.Second
)

const opRun = "run command"

// Run runs a command until it and all who hold its output open have ended. That it exits with
// another code than 0, or is killed because its Timeout is up, is a result and no error.
//
// When ctx ends, the command and all it has started are killed, and the error is ctx's. An
// error that another attempt may mend, such as a cut connection, says so; the command
// is killed before, if the sandbox can be reached.
func (s *Sandbox) Run(ctx context.Context, command Command) (Result, error) {
	start, err := command.startRequest()
	if err != nil {
		return Result{}, fmt.Errorf("e2b: %s: %w", opRun, err)
	}
	if err := ctx.Err(); err != nil {
		return Result{}, &Error{Op: opRun, cause: err}
	}
	deadline := timer(command.Timeout)
	defer deadline.Stop()

	// The stream outlives ctx, so that the command can be killed and its end seen.
	streamCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel(nil)

	r := &run{sandbox: s, command: command}
	r.stdout.limit, r.stderr.limit = command.maxOutput(), command.maxOutput()
	if err := r.open(ctx, streamCtx, cancel, start); err != nil {
		return Result{}, err
	}
	defer r.stream.body.Close()
	events := make(chan message)
	helpers.Go(func() { r.receive(streamCtx, events) })
	helpers.Go(func() { s.keepRunning(streamCtx) })

	err = r.follow(ctx, deadline.C, events, func() {
		helpers.Go(func() { r.feed(streamCtx) })
	})
	return r.result(), err
}

// timer fires after d, or never if that is 0.
func timer(d time.Duration) *time.Timer {
	t := time.NewTimer(d)
	if d <= 0 {
		t.Stop()
	}
	return t
}

func (c Command) maxOutput() int {
	if c.MaxOutput > 0 {
		return c.MaxOutput
	}
	return defaultMaxOutput
}

type startRequest struct {
	Process process `json:"process"`
	Stdin   bool    `json:"stdin"`
}

type process struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

func (c Command) startRequest() (startRequest, error) {
	p := process{Cmd: c.Cmd, Args: c.Args, Envs: c.Env, Cwd: c.Dir}
	switch {
	case c.Timeout < 0:
		return startRequest{}, fmt.Errorf("the command's timeout is %s; use 0 for none", c.Timeout)
	case c.Line != "" && (c.Cmd != "" || len(c.Args) > 0):
		return startRequest{}, errors.New("the command has both a Line and a Cmd; set one of them")
	case c.Line != "":
		p.Cmd, p.Args = "/bin/bash", []string{"-l", "-c", c.Line}
	case c.Cmd == "":
		return startRequest{}, errors.New("the command is empty; set Line or Cmd")
	}
	return startRequest{Process: p, Stdin: c.Stdin != nil}, nil
}

// limit is after how long the daemon ends the command by itself. 0 means never.
func (c Command) limit(ctx context.Context) time.Duration {
	limit := c.Timeout
	if deadline, ok := ctx.Deadline(); ok && (limit == 0 || time.Until(deadline) < limit) {
		limit = max(time.Until(deadline), time.Millisecond)
	}
	if limit == 0 {
		return 0
	}
	return limit + limitMargin
}

// run is a command that is running.
type run struct {
	sandbox *Sandbox
	command Command
	conn    *connection
	stream  *stream
	pid     int

	stdout, stderr output
	end            *endEvent
	timedOut       bool
}

type event struct {
	Event struct {
		Start *struct {
			PID int `json:"pid"`
		} `json:"start"`
		Data *struct {
			Stdout []byte `json:"stdout"`
			Stderr []byte `json:"stderr"`
		} `json:"data"`
		End *endEvent `json:"end"`
	} `json:"event"`
}

type endEvent struct {
	ExitCode int    `json:"exitCode"`
	Status   string `json:"status"`
}

// message is what receive passes on: an event, or the error that ends the stream.
type message struct {
	event event
	err   error
}

// open starts the command. The daemon answers at once. When ctx ends, the answer is still
// waited for a little: a command can only be killed by what the answer says.
func (r *run) open(ctx, streamCtx context.Context, cancel context.CancelCauseFunc, start startRequest) error {
	overdue := time.AfterFunc(requestTimeout+startTimeout, func() { cancel(errNoAnswer) })
	defer overdue.Stop()
	defer context.AfterFunc(ctx, func() { overdue.Reset(killTimeout) })()
	err := r.sandbox.use(ctx, func(c *connection) (err error) {
		r.conn = c
		r.stream, err = c.open(streamCtx, opRun, "/process.Process/Start", start, r.command.limit(ctx))
		return err
	})
	if err != nil && ctx.Err() != nil {
		return &Error{Op: opRun, cause: ctx.Err()}
	}
	return err
}

// receive passes on the events until the stream ends.
func (r *run) receive(ctx context.Context, to chan<- message) {
	for {
		var m message
		m.err = r.stream.next(ctx, &m.event)
		select {
		case to <- m:
		case <-ctx.Done():
			return
		}
		if m.err != nil {
			return
		}
	}
}

// follow takes the events until the command has ended, or must be.
func (r *run) follow(ctx context.Context, deadline <-chan time.Time, events <-chan message, started func()) error {
	idle := time.NewTimer(idleLimit)
	defer idle.Stop()
	for {
		var err error
		select {
		case m := <-events:
			idle.Reset(idleLimit)
			done, err := r.take(m, started)
			if err != nil {
				r.abandon(ctx)
			}
			if done || err != nil {
				return err
			}
			continue
		case <-deadline:
			r.timedOut = true
		case <-idle.C:
			err = &Error{Op: opRun, Message: errStalled.Error()}
		case <-ctx.Done():
			err = &Error{Op: opRun, cause: ctx.Err()}
		}
		r.stop(ctx, events)
		return err
	}
}

// take handles one message, and reports whether the command has ended.
func (r *run) take(m message, started func()) (done bool, err error) {
	switch {
	case errors.Is(m.err, io.EOF) && r.end == nil:
		return true, &Error{Op: opRun, Message: "the stream ended before the command"}
	case errors.Is(m.err, io.EOF):
		return true, nil
	case m.err != nil && r.end != nil:
		return true, nil // what was lost is the end of the stream, not the command's
	case m.err != nil:
		return true, m.err
	}
	e := m.event.Event
	if e.Start != nil && r.pid == 0 {
		r.pid = e.Start.PID
		started()
	}
	if e.Data != nil {
		r.output(&r.stdout, r.command.OnStdout, e.Data.Stdout)
		r.output(&r.stderr, r.command.OnStderr, e.Data.Stderr)
	}
	if e.End != nil {
		r.end = e.End
	}
	return false, nil
}

func (r *run) output(to *output, also func([]byte), piece []byte) {
	if len(piece) == 0 {
		return
	}
	to.write(piece)
	if also != nil {
		also(piece)
	}
}

// stop kills the command and takes what it still says.
func (r *run) stop(ctx context.Context, events <-chan message) {
	patience := time.NewTimer(killTimeout)
	defer patience.Stop()
	killed := false
	for {
		// A command whose start was not seen yet cannot be named.
		if r.pid != 0 && !killed {
			killed = true
			r.kill(ctx)
			patience.Reset(killTimeout)
		}
		select {
		case m := <-events:
			if done, err := r.take(m, func() {}); done || err != nil {
				return
			}
		case <-patience.C:
			return
		}
	}
}

// abandon kills a command whose stream is lost, so that it does not run beside another
// attempt's.
func (r *run) abandon(ctx context.Context) {
	if r.pid != 0 && r.end == nil {
		r.kill(ctx)
	}
}

// killTree kills a process and all it has started. It stops each first, so that none
// starts more meanwhile. The daemon itself can only kill the one.
const killTree = `t() {
kill -STOP "$1"
for c in $(cat /proc/"$1"/task/*/children); do t "$c"; done
kill -KILL "$1"
}
t "$1" 2>/dev/null`

// kill ends the command. It does not wake a sandbox that is paused: then nothing runs.
func (r *run) kill(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if r.killTree(ctx) == nil {
		return
	}
	// A template without a shell. What the command has started may go on then.
	_ = r.conn.unary(ctx, opRun, "/process.Process/SendSignal", signalRequest{selector{r.pid}, "SIGNAL_SIGKILL"}, &struct{}{})
}

func (r *run) killTree(ctx context.Context) error {
	start := startRequest{Process: process{Cmd: "/bin/sh", Args: []string{"-c", killTree, "sh", strconv.Itoa(r.pid)}}}
	stream, err := r.conn.open(ctx, opRun, "/process.Process/Start", start, killTimeout)
	if err != nil {
		return err
	}
	defer stream.body.Close()
	for {
		var e event
		err := stream.next(ctx, &e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

type selector struct {
	PID int `json:"pid"`
}

type signalRequest struct {
	Process selector `json:"process"`
	Signal  string   `json:"signal"`
}

type inputRequest struct {
	Process selector `json:"process"`
	Input   input    `json:"input"`
}

type input struct {
	Stdin []byte `json:"stdin"`
}

type closeRequest struct {
	Process selector `json:"process"`
}

// inputPiece is how much input goes into one call.
const inputPiece = 64 << 10

// feed gives the command its input. A command may end without reading it, so what goes wrong
// is not an error: the output shows what the command made of it.
func (r *run) feed(ctx context.Context) {
	if r.command.Stdin == nil {
		return
	}
	process := selector{r.pid}
	for rest := r.command.Stdin; len(rest) > 0; {
		piece := rest[:min(inputPiece, len(rest))]
		rest = rest[len(piece):]
		if err := r.conn.unary(ctx, opRun, "/process.Process/SendInput", inputRequest{process, input{piece}}, &struct{}{}); err != nil {
			return
		}
	}
	_ = r.conn.unary(ctx, opRun, "/process.Process/CloseStdin", closeRequest{process}, &struct{}{})
}

// keepRunning extends the sandbox's time while a command runs. That a call fails shows in
// the command's stream, if it matters.
func (s *Sandbox) keepRunning(ctx context.Context) {
	ticker := time.NewTicker(s.settings.halfLife())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = s.driver.extend(ctx, s.id, s.settings)
		case <-ctx.Done():
			return
		}
	}
}

func (r *run) result() Result {
	result := Result{
		Stdout: r.stdout.String(), Stderr: r.stderr.String(),
		Truncated: r.stdout.truncated() || r.stderr.truncated(), TimedOut: r.timedOut,
	}
	switch {
	case r.timedOut:
		result.ExitCode = -1
		result.Status = fmt.Sprintf("killed after its timeout of %s", r.command.Timeout)
	case r.end == nil:
		result.ExitCode = -1
	default:
		result.ExitCode, result.Status = r.end.ExitCode, r.end.Status
	}
	return result
}
