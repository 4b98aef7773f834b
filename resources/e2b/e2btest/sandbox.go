package e2btest

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// The states of a sandbox, and the transitions between them.
const (
	running = "running"
	paused  = "paused"

	settled      = ""
	pausing      = "pausing"
	resuming     = "resuming"
	snapshotting = "snapshotting"
	killing      = "killing"
)

// sandbox is one sandbox. The server's mu guards all that changes, except where noted.
type sandbox struct {
	id        string
	token     string
	secure    bool // envd asks for the token
	template  *template
	reference string
	root      string
	createdAt time.Time

	metadata        map[string]string
	envVars         map[string]string
	autoPause       bool
	autoPauseMemory bool
	autoResume      bool
	internet        *bool
	network         networkConfig
	rawNetwork      json.RawMessage
	timeout         time.Duration // as it was created with

	state      string
	transition string
	changed    chan struct{} // closed and replaced when a transition ends
	gone       bool
	noMemory   bool // it was paused without its memory
	startedAt  time.Time
	endAt      time.Time
	timer      *time.Timer

	conns     map[net.Conn]int // of the requests that are inside, with how many there are
	inside    int
	processes processes // guards itself
	// fileMetadata is what uploads attached to files, by path.
	fileMetadata map[string]map[string]string
}

func (sb *sandbox) reportedState() string {
	if sb.transition == pausing {
		return paused
	}
	return sb.state
}

// find returns a sandbox. The caller holds mu.
func (s *Server) find(id string) (*sandbox, error) {
	sb := s.sandboxes[id]
	if sb == nil {
		return nil, refuse(http.StatusNotFound, "Sandbox \"%s\" not found", id)
	}
	return sb, nil
}

// findRunning returns a sandbox that is running, whatever transition it is in except being paused. The
// caller holds mu.
func (s *Server) findRunning(id string) (*sandbox, error) {
	sb, err := s.find(id)
	if err == nil && sb.reportedState() != running {
		return nil, refuse(http.StatusNotFound, "Sandbox \"%s\" is not running", id)
	}
	return sb, err
}

// awaitSettled waits until no transition is going on, or the sandbox is gone. The caller holds mu, which
// is released meanwhile.
func (s *Server) awaitSettled(ctx context.Context, sb *sandbox) error {
	for sb.transition != settled && !sb.gone {
		changed := sb.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// begin starts a transition. The caller holds mu.
func (sb *sandbox) begin(transition string) { sb.transition = transition }

// end ends a transition in a state. The caller holds mu.
func (sb *sandbox) end(state string) {
	sb.state = state
	sb.transition = settled
	close(sb.changed)
	sb.changed = make(chan struct{})
}

// forget makes a sandbox unknown. The caller holds mu, and calls remove without it.
func (s *Server) forget(sb *sandbox) {
	delete(s.sandboxes, sb.id)
	sb.gone = true
	if sb.timer != nil {
		sb.timer.Stop()
	}
	close(sb.changed)
	sb.changed = make(chan struct{})
	sb.cutConns()
}

// halt ends the processes of a sandbox that was forgotten, and the requests inside it.
func (s *Server) halt(sb *sandbox) {
	sb.endProcesses()
	s.mu.Lock()
	for sb.inside > 0 {
		s.idle.Wait()
	}
	s.mu.Unlock()
	sb.endProcesses() // that a request has started which was inside
}

// remove halts a sandbox that was forgotten, and removes its files.
func (s *Server) remove(sb *sandbox) {
	s.halt(sb)
	_ = removeAll(filepath.Dir(sb.root))
}

// cutConns cuts the connections of all requests inside the sandbox. The caller holds mu.
func (sb *sandbox) cutConns() {
	for conn := range sb.conns {
		_ = conn.Close()
	}
}

// quiesce cuts all requests inside the sandbox and waits for their end. Since the sandbox is in a
// transition no others enter. The caller holds mu, which is released meanwhile.
func (s *Server) quiesce(sb *sandbox) {
	sb.cutConns()
	for sb.inside > 0 {
		s.idle.Wait()
	}
}

// enter lets a request into a running sandbox and returns how it leaves. It waits while the sandbox is being
// snapshotted or resumed. A nil sandbox means that there is none for it.
func (s *Server) enter(r *http.Request, id string) (sb *sandbox, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		sb = s.sandboxes[id]
		if sb == nil || s.closed || sb.transition == pausing || sb.transition == killing {
			return nil, nil
		}
		if sb.transition != settled {
			if err := s.awaitSettled(r.Context(), sb); err != nil {
				return nil, nil
			}
			continue
		}
		if sb.state == running {
			break
		}
		if !sb.autoResume || sb.noMemory {
			return nil, nil
		}
		s.resume(sb, sb.timeout, Fault{}, false)
	}
	conn := connOf(r)
	sb.conns[conn]++
	sb.inside++
	return sb, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if sb.conns[conn]--; sb.conns[conn] == 0 {
			delete(sb.conns, conn)
		}
		sb.inside--
		s.idle.Broadcast()
	}
}

// materialize makes the files of a sandbox that nobody knows yet.
func (s *Server) materialize(sb *sandbox, from *build) error {
	sb.root = filepath.Join(s.dir, "sandboxes", sb.id, "root")
	if err := os.MkdirAll(filepath.Dir(sb.root), 0o755); err != nil {
		return err
	}
	return copyTree(from.dir, sb.root)
}

// startClock makes a sandbox expire after a timeout, but not beyond the longest lifetime. The caller
// holds mu.
func (s *Server) startClock(sb *sandbox, timeout time.Duration) {
	sb.endAt = time.Now().Add(timeout)
	if last := sb.startedAt.Add(s.maxLifetime); sb.endAt.After(last) {
		sb.endAt = last
	}
	if sb.timer != nil {
		sb.timer.Stop()
	}
	sb.timer = time.AfterFunc(time.Until(sb.endAt), func() { s.expire(sb) })
}

// expire pauses or kills a sandbox whose time is up.
func (s *Server) expire(sb *sandbox) {
	if !s.enterBusy() {
		return
	}
	defer s.busy.Done()
	s.mu.Lock()
	if err := s.awaitSettled(s.done, sb); err != nil || sb.gone || sb.state != running || time.Now().Before(sb.endAt) {
		s.mu.Unlock()
		return
	}
	if sb.autoPause {
		s.pause(sb, Fault{}, sb.autoPauseMemory)
		s.mu.Unlock()
		return
	}
	s.forget(sb)
	s.mu.Unlock()
	s.remove(sb)
}

// pause takes a settled running sandbox to paused, unless it gets lost on the way. The caller holds mu,
// which is released meanwhile.
func (s *Server) pause(sb *sandbox, f Fault, memory bool) {
	sb.begin(pausing)
	s.quiesce(sb)
	s.mu.Unlock()
	if memory {
		sb.freeze()
	} else {
		sb.endProcesses()
	}
	f.wait(s.done)
	s.mu.Lock()
	if sb.gone {
		return
	}
	sb.timer.Stop()
	sb.endAt = time.Now()
	sb.noMemory = !memory
	sb.end(paused)
}

// resume takes a settled paused sandbox to running. A reboot drops the memory that it was paused
// with. The caller holds mu, which is released meanwhile.
func (s *Server) resume(sb *sandbox, timeout time.Duration, f Fault, reboot bool) {
	sb.begin(resuming)
	s.mu.Unlock()
	f.wait(s.done)
	if reboot || sb.noMemory {
		sb.endProcesses()
	} else {
		sb.thaw()
	}
	s.mu.Lock()
	if sb.gone {
		return
	}
	if reboot || sb.noMemory {
		sb.envVars = nil // they are in the memory of envd, and no record of the service has them
	}
	sb.noMemory = false
	sb.startedAt = time.Now()
	s.startClock(sb, timeout)
	sb.end(running)
}

// snapshot copies a settled running sandbox. The caller holds mu, which is released meanwhile.
func (s *Server) snapshot(sb *sandbox, f Fault) (*build, error) {
	b := &build{dir: s.buildDir(), sandboxID: sb.id, fileMetadata: map[string]map[string]string{}}
	sb.begin(snapshotting)
	s.quiesce(sb)
	for path, metadata := range sb.fileMetadata {
		b.fileMetadata[path] = cloneMap(metadata)
	}
	s.mu.Unlock()
	sb.freeze()
	err := os.MkdirAll(filepath.Dir(b.dir), 0o755)
	if err == nil {
		err = copyTree(sb.root, b.dir)
	}
	f.wait(s.done)
	sb.thaw()
	s.mu.Lock()
	if sb.gone {
		err = refuse(http.StatusInternalServerError, "Error snapshotting sandbox: it was lost")
	} else {
		sb.end(running)
	}
	if err != nil {
		_ = removeAll(b.dir)
		return nil, err
	}
	b.createdAt = time.Now()
	return b, nil
}
