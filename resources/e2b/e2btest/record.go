package e2btest

import (
	"bytes"
	"io"
	"net/http"
	"sync"
)

const (
	// keptRequests and keptBody bound what an emulator that runs for long remembers.
	keptRequests = 10_000
	keptBody     = 16 << 10
	redacted     = "REDACTED"
)

// Request is a request that the emulator got.
type Request struct {
	Method string
	// Path and Query are as they were sent, percent-encoded.
	Path  string
	Query string
	// Header has REDACTED for the values of X-API-Key, X-Access-Token and Authorization.
	Header http.Header
	// Body is what was read of the body, up to 16 KiB. It is not redacted: the headers that network rules
	// inject are in it.
	Body []byte
}

// Requests are the requests that have arrived, oldest first: the newest ten thousand. What sandboxes send
// through the egress proxy is not among them.
func (s *Server) Requests() []Request {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	out := make([]Request, len(s.requests.all))
	for i, r := range s.requests.all {
		out[i] = *r
		out[i].Header = r.Header.Clone()
		out[i].Body = bytes.Clone(r.Body)
	}
	return out
}

type recorder struct {
	mu  sync.Mutex
	all []*Request
}

// record notes a request, and from then on what is read of its body.
func (rec *recorder) record(r *http.Request) {
	entry := &Request{
		Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Header: r.Header.Clone(),
	}
	for _, name := range []string{"X-Api-Key", "X-Access-Token", "Authorization"} {
		for i := range entry.Header[name] {
			entry.Header[name][i] = redacted
		}
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if len(rec.all) == keptRequests {
		rec.all = append(rec.all[:0:0], rec.all[1:]...)
	}
	rec.all = append(rec.all, entry)
	r.Body = &recordedBody{ReadCloser: r.Body, recorder: rec, entry: entry}
}

type recordedBody struct {
	io.ReadCloser
	recorder *recorder
	entry    *Request
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.recorder.mu.Lock()
	defer b.recorder.mu.Unlock()
	kept := min(n, keptBody-len(b.entry.Body))
	b.entry.Body = append(b.entry.Body, p[:kept]...)
	return n, err
}
