package e2btest

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// chunkSize is the most output that one event has.
	chunkSize = 32 << 10
	// exitRetention is how long the end of a process can be asked for.
	exitRetention = 30 * time.Second
	// outputGrace is how long what a process left running may hold its output open, once it has been
	// killed.
	outputGrace = 100 * time.Millisecond

	// sandboxIDVariable is set for every process, and marks those of a sandbox.
	sandboxIDVariable = "E2B_SANDBOX_ID"
)

// processConfig is what a request says about a process.
type processConfig struct {
	Cmd  string            `json:"cmd,omitempty"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

// processEvent is one event of a process; one field is set.
type processEvent struct {
	Start     *startEvent `json:"start,omitempty"`
	Data      *dataEvent  `json:"data,omitempty"`
	End       *endEvent   `json:"end,omitempty"`
	Keepalive *struct{}   `json:"keepalive,omitempty"`
}

type startEvent struct {
	PID int `json:"pid"`
}

type dataEvent struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
}

type endEvent struct {
	ExitCode int    `json:"exitCode,omitempty"`
	Exited   bool   `json:"exited,omitempty"`
	Status   string `json:"status,omitempty"`
	Error    string `json:"error,omitempty"`
}

// process is a process that a request started.
type process struct {
	config  processConfig
	tag     *string
	pid     int
	outputs []*os.File // what it writes to is read from these

	killed   chan struct{} // closed when its output need not be waited for any more
	killOnce sync.Once
	note     func() // called at its end
	ended    chan struct{}
	end      endEvent // once ended is closed

	mu          sync.Mutex
	stdin       *os.File // nil when there is none any more
	subscribers map[*subscriber]bool
}

// subscriber gets the output of a process from some time on. One that is slow slows the process
// down.
type subscriber struct {
	data chan dataEvent
	left chan struct{}
}

func (p *process) subscribe() (sub *subscriber, leave func()) {
	sub = &subscriber{data: make(chan dataEvent), left: make(chan struct{})}
	p.mu.Lock()
	p.subscribers[sub] = true
	p.mu.Unlock()
	return sub, func() {
		p.mu.Lock()
		delete(p.subscribers, sub)
		p.mu.Unlock()
		close(sub.left)
	}
}

func (p *process) publish(event dataEvent) {
	p.mu.Lock()
	subscribers := slices.Collect(maps.Keys(p.subscribers))
	p.mu.Unlock()
	for _, sub := range subscribers {
		select {
		case sub.data <- event:
		case <-sub.left:
		}
	}
}

// launch starts cmd, which has no input and output yet.
func (p *process) launch(cmd *exec.Cmd, input bool) error {
	var reading sync.WaitGroup
	var ends []*os.File // those that only the process holds
	defer func() {
		for _, end := range ends {
			_ = end.Close()
		}
	}()
	if input {
		read, write, err := os.Pipe()
		if err != nil {
			return err
		}
		ends = append(ends, read)
		cmd.Stdin, p.stdin = read, write
	}
	pipe := func(event func([]byte) dataEvent) (*os.File, error) {
		read, write, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ends = append(ends, write)
		p.outputs = append(p.outputs, read)
		reading.Go(func() {
			defer read.Close()
			for {
				chunk := make([]byte, chunkSize)
				n, err := read.Read(chunk)
				if n > 0 {
					p.publish(event(chunk[:n]))
				}
				if err != nil {
					return
				}
			}
		})
		return write, nil
	}
	var err error
	if cmd.Stdout, err = pipe(func(b []byte) dataEvent { return dataEvent{Stdout: b} }); err != nil {
		return err
	}
	if cmd.Stderr, err = pipe(func(b []byte) dataEvent { return dataEvent{Stderr: b} }); err != nil {
		return err
	}
	allRead := make(chan struct{})
	go func() {
		reading.Wait()
		close(allRead)
	}()

	started := make(chan error, 1)
	go func() {
		// Linux kills the process with the thread that started it, so the thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		p.wait(cmd, allRead)
	}()
	return <-started
}

// wait waits for the end of a process: when its output ends, also that of what it left running, or when
// it is killed.
func (p *process) wait(cmd *exec.Cmd, allRead <-chan struct{}) {
	select {
	case <-allRead:
	case <-p.killed:
	}
	err := cmd.Wait()
	select {
	case <-allRead:
	case <-time.After(outputGrace):
		for _, output := range p.outputs {
			_ = output.SetReadDeadline(time.Now())
		}
	}
	p.end = endEvent{
		ExitCode: cmd.ProcessState.ExitCode(), Exited: cmd.ProcessState.Exited(), Status: cmd.ProcessState.String(),
	}
	if err != nil {
		p.end.Error = err.Error()
	}
	_ = p.closeStdin()
	p.note() // before anybody is told, so that who is told finds it ended
	close(p.ended)
}

// signal signals the process, but not what it has started.
func (p *process) signal(signal syscall.Signal) error {
	select {
	case <-p.ended:
		return errors.New("the process has ended")
	default:
	}
	if signal == syscall.SIGKILL || signal == syscall.SIGTERM {
		p.stopReading()
	}
	return syscall.Kill(p.pid, signal)
}

// stopReading keeps what a process left running from delaying its end.
func (p *process) stopReading() { p.killOnce.Do(func() { close(p.killed) }) }

// write gives the process input, until ctx ends if it takes none.
func (p *process) write(ctx context.Context, data []byte) error {
	p.mu.Lock()
	stdin := p.stdin
	p.mu.Unlock()
	if stdin == nil {
		return errors.New("stdin not enabled or closed")
	}
	if err := stdin.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = stdin.SetWriteDeadline(time.Now()) })
	defer stop()
	_, err := stdin.Write(data)
	return err
}

func (p *process) closeStdin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stdin == nil {
		return nil
	}
	err := p.stdin.Close()
	p.stdin = nil
	return err
}

// processes are the processes of a sandbox.
type processes struct {
	mu      sync.Mutex
	running map[int]*process
	exited  map[int]*process
	// groups are the process groups that may have members, of processes that have ended, too.
	groups map[int]bool
}

// start starts a process with its command.
func (ps *processes) start(p *process, cmd *exec.Cmd, input bool) error {
	// What is started has to be known before the next freeze or kill.
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.note = func() { ps.finish(p) }
	if err := p.launch(cmd, input); err != nil {
		return err
	}
	if ps.running == nil {
		ps.running, ps.exited, ps.groups = map[int]*process{}, map[int]*process{}, map[int]bool{}
	}
	ps.running[p.pid] = p
	delete(ps.exited, p.pid)
	if p.tag != nil {
		maps.DeleteFunc(ps.exited, func(_ int, old *process) bool { return old.tag != nil && *old.tag == *p.tag })
	}
	ps.groups[p.pid] = true
	return nil
}

// finish takes note of a process's end.
func (ps *processes) finish(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.running[p.pid] == p {
		delete(ps.running, p.pid)
	}
	ps.exited[p.pid] = p
	ps.pruneGroups()
	time.AfterFunc(exitRetention, func() {
		ps.mu.Lock()
		defer ps.mu.Unlock()
		if ps.exited[p.pid] == p {
			delete(ps.exited, p.pid)
		}
	})
}

// pruneGroups forgets groups that have no members, whose ids the system may give to others.
func (ps *processes) pruneGroups() {
	maps.DeleteFunc(ps.groups, func(group int, _ bool) bool {
		return ps.running[group] == nil && errors.Is(syscall.Kill(-group, 0), syscall.ESRCH)
	})
}

// selector names a process in a request.
type selector struct {
	PID *int    `json:"pid"`
	Tag *string `json:"tag"`
}

func (sel selector) find(among map[int]*process) *process {
	if sel.PID != nil {
		return among[*sel.PID]
	}
	for _, p := range among {
		if p.tag != nil && *p.tag == *sel.Tag {
			return p
		}
	}
	return nil
}

func (ps *processes) find(sel selector, exited bool) *process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := sel.find(ps.running)
	if p == nil && exited {
		p = sel.find(ps.exited)
	}
	return p
}

func (ps *processes) list() []*process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.SortedFunc(maps.Values(ps.running), func(a, b *process) int { return a.pid - b.pid })
}

// signalAll signals every process of the sandbox.
func (sb *sandbox) signalAll(signal syscall.Signal) {
	ps := &sb.processes
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.groups == nil {
		return // it has never had a process
	}
	ps.pruneGroups()
	for group := range ps.groups {
		_ = syscall.Kill(-group, signal)
	}
	for _, pid := range marked(sb.id) {
		_ = syscall.Kill(pid, signal)
	}
}

// freeze stops every process, and thaw lets them go on.
func (sb *sandbox) freeze() { sb.signalAll(syscall.SIGSTOP) }

func (sb *sandbox) thaw() { sb.signalAll(syscall.SIGCONT) }

// endProcesses kills every process and waits until they are gone.
func (sb *sandbox) endProcesses() {
	ps := &sb.processes
	ps.mu.Lock()
	all := slices.Collect(maps.Values(ps.running))
	started := ps.groups != nil
	ps.mu.Unlock()
	if !started {
		return
	}
	for _, p := range all {
		p.stopReading()
	}
	sb.signalAll(syscall.SIGKILL)
	for _, p := range all {
		<-p.ended
	}
	// A process that was being forked may have been missed. Killed ones take a moment to go.
	for range 100 {
		if len(marked(sb.id)) == 0 {
			return
		}
		sb.signalAll(syscall.SIGKILL)
		time.Sleep(10 * time.Millisecond)
	}
}

// environment is what a process finds in its environment.
func (s *Server) environment(sb *sandbox, user, home, cwd string, envs map[string]string) []string {
	env := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": sb.hostPath(home), "USER": user, "LOGNAME": user, "PWD": cwd,
		"TMPDIR": sb.hostPath("/tmp"), "E2B_SANDBOX": "true", sandboxIDVariable: sb.id,
		// git must not take a repository around the sandbox for the sandbox's own.
		"GIT_CEILING_DIRECTORIES": sb.root,
	}
	for _, name := range []string{"LANG", "LC_ALL", "TZ"} {
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	maps.Copy(env, s.proxyEnvironment(sb))
	for _, given := range []map[string]string{sb.envVars, envs} {
		for name, value := range given {
			env[name] = sb.mapText(value)
		}
	}
	env[sandboxIDVariable] = sb.id
	var list []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		// A NUL would keep the process from starting.
		list = append(list, name+"="+strings.ReplaceAll(env[name], "\x00", ""))
	}
	return list
}
