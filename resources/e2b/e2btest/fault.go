package e2btest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fault says what happens to requests that it matches.
type Fault struct {
	// Method and Path choose requests. Empty means any. Path is a pattern of [path.Match] for the
	// decoded path, or, if it ends with a slash, the beginning of it.
	Method string
	Path   string
	// Times is how many requests it happens to. Zero means one, and less than zero all.
	Times int

	// Status is answered in place of what was asked for. Zero means that the request is served.
	Status int
	// RetryAfter is sent with Status in the header of this name, in whole seconds. Zero means no header.
	RetryAfter time.Duration
	// CutAfter is after how many bytes of the answer's body the connection is cut; the request is
	// served all the same. Zero means never, and less than zero before the answer begins.
	CutAfter int
	// Delay passes before the request is answered. A request that creates, connects, pauses,
	// snapshots or kills a sandbox takes that much longer, with the sandbox in that transition.
	Delay time.Duration
	// Hold is like a delay that ends when it is closed. Nil means that there is none.
	Hold <-chan struct{}
}

// Fail makes requests fail. Of the faults that match a request the oldest one that is not used up
// happens to it. A malformed path pattern panics.
func (s *Server) Fail(f Fault) {
	if _, err := path.Match(f.Path, ""); err != nil {
		panic(fmt.Sprintf("e2btest: fault path %q: %v", f.Path, err))
	}
	if f.Times == 0 {
		f.Times = 1
	}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.all = append(s.faults.all, &f)
}

type faults struct {
	mu  sync.Mutex
	all []*Fault
}

// take returns the fault that happens to a request; the zero value is none.
func (fs *faults) take(r *http.Request) Fault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.all {
		if f.Times == 0 || !f.matches(r) {
			continue
		}
		if f.Times > 0 {
			f.Times--
		}
		return *f
	}
	return Fault{}
}

func (f *Fault) matches(r *http.Request) bool {
	if f.Method != "" && f.Method != r.Method {
		return false
	}
	if f.Path == "" {
		return true
	}
	if strings.HasSuffix(f.Path, "/") {
		return strings.HasPrefix(r.URL.Path, f.Path)
	}
	matched, _ := path.Match(f.Path, r.URL.Path)
	return matched
}

// wait lets the delay pass, or the client go away.
func (f *Fault) wait(ctx context.Context) {
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-ctx.Done():
		}
	}
	if f.Hold != nil {
		select {
		case <-f.Hold:
		case <-ctx.Done():
		}
	}
}

func (f *Fault) answer(w http.ResponseWriter, r *http.Request) {
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((f.RetryAfter+time.Second-1)/time.Second)))
	}
	if id, ok := envdSandbox(r); ok && f.Status == http.StatusBadGateway {
		writeGone(w, id)
		return
	}
	writeError(w, refuse(f.Status, "%s", http.StatusText(f.Status)))
}

// cutWriter cuts the connection when it has passed on some bytes.
type cutWriter struct {
	http.ResponseWriter
	conn net.Conn
	left int
}

func (c *cutWriter) Write(p []byte) (int, error) {
	if c.left == 0 {
		c.cut()
	}
	if len(p) < c.left {
		c.left -= len(p)
		return c.ResponseWriter.Write(p)
	}
	_, _ = c.ResponseWriter.Write(p[:c.left])
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	c.cut()
	return 0, net.ErrClosed
}

// WriteHeader keeps the header back if not even that is to arrive.
func (c *cutWriter) WriteHeader(status int) {
	if c.left > 0 {
		c.ResponseWriter.WriteHeader(status)
	}
}

func (c *cutWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// finish cuts after an answer that was shorter.
func (c *cutWriter) finish() {
	if c.left > 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush()
	}
	c.cut()
}

// cut ends the handler, too.
func (c *cutWriter) cut() {
	_ = c.conn.Close()
	panic(http.ErrAbortHandler)
}
