package e2btest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// defaultMaxLifetime is how long the service lets a sandbox run at most.
	defaultMaxLifetime = 24 * time.Hour
	// envdVersion is above every version that a client asks for.
	envdVersion = "0.6.13"
	// clientID is the same in all answers; the field is deprecated.
	clientID = "6532622b"
	envdPort = "49983"
)

// apiKeyForm is what SDKs up to 2.45 hold a key to before they send it.
var apiKeyForm = regexp.MustCompile(`^e2b_[0-9a-f]+$`)

// Options configure a Server. The zero value works.
type Options struct {
	// Dir is where sandboxes and snapshots are kept. Empty means a temporary directory that
	// Close removes; another one is made if it is not there, and stays. State is not loaded from it.
	Dir string
	// APIKey is the key that requests need: e2b_ and hexadecimal digits. Empty means a random one.
	APIKey string
	// Templates are the files that a new sandbox has in /home/user, by the template's alias. There
	// is always a template base, empty unless it is given here.
	Templates map[string]fs.FS
	// MaxLifetime is how long a sandbox may run between its start or resume and its end. Zero
	// means 24 hours.
	MaxLifetime time.Duration
	// Egress makes hosts reachable from inside sandboxes, through a proxy that applies a sandbox's
	// network configuration: it maps a host name, with a port unless that is 80, to the base URL
	// that stands for http://<host>. It is set as http_proxy for processes; HTTPS and programs that ignore
	// the variable go past it. Nil means no proxy.
	Egress map[string]string
}

// Server is a running emulator.
type Server struct {
	dir         string
	ownDir      bool
	apiKey      string
	maxLifetime time.Duration
	egressHosts map[string]*url.URL
	url         string
	address     string
	http        *http.Server
	served      chan struct{}
	copies      *http.Transport // carries what the egress proxy forwards

	requests recorder
	faults   faults

	// mu guards what follows, and the state of every sandbox and template.
	mu        sync.Mutex
	idle      *sync.Cond // told when a request that is inside a sandbox ends
	sandboxes map[string]*sandbox
	templates map[string]*template
	closed    bool
	// busy counts requests, and sandboxes that expire.
	busy sync.WaitGroup
	// done is cancelled by Close.
	done context.Context
	stop context.CancelFunc
}

// New starts an emulator on a free port of the loopback interface.
func New(opts Options) (*Server, error) {
	s := &Server{
		dir:         opts.Dir,
		apiKey:      opts.APIKey,
		maxLifetime: opts.MaxLifetime,
		served:      make(chan struct{}),
		copies:      &http.Transport{},
		sandboxes:   map[string]*sandbox{},
		templates:   map[string]*template{},
	}
	s.idle = sync.NewCond(&s.mu)
	s.done, s.stop = context.WithCancel(context.Background())
	if s.apiKey == "" {
		s.apiKey = "e2b_" + randomHex(20)
	}
	if !apiKeyForm.MatchString(s.apiKey) {
		return nil, errors.New("e2btest: the API key must be e2b_ and hexadecimal digits")
	}
	if s.maxLifetime == 0 {
		s.maxLifetime = defaultMaxLifetime
	}
	var err error
	if s.egressHosts, err = egressHosts(opts.Egress); err != nil {
		return nil, err
	}
	if err := s.makeDir(); err != nil {
		return nil, err
	}
	if err := s.start(opts.Templates); err != nil {
		if s.ownDir {
			_ = os.RemoveAll(s.dir)
		}
		return nil, err
	}
	return s, nil
}

func (s *Server) makeDir() error {
	var err error
	if s.dir == "" {
		s.ownDir = true
		if s.dir, err = os.MkdirTemp("", "e2btest-"); err != nil {
			return fmt.Errorf("e2btest: %w", err)
		}
	} else if err = os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("e2btest: %w", err)
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return fmt.Errorf("e2btest: %w", err)
	}
	// Processes see the path without symbolic links, and the file API has to recognise it.
	if s.dir, err = filepath.EvalSymlinks(s.dir); err != nil {
		return fmt.Errorf("e2btest: %w", err)
	}
	return nil
}

func (s *Server) start(templates map[string]fs.FS) error {
	if err := s.seedTemplates(templates); err != nil {
		return fmt.Errorf("e2btest: %w", err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("e2btest: %w", err)
	}
	s.address = listener.Addr().String()
	s.url = "http://" + s.address
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ErrorLog: log.New(io.Discard, "", 0), // it would tell of connections that were cut on purpose
	}
	go func() {
		defer close(s.served)
		_ = s.http.Serve(listener)
	}()
	return nil
}

// connKey finds a request's connection in its context.
type connKey struct{}

func connOf(r *http.Request) net.Conn { return r.Context().Value(connKey{}).(net.Conn) }

// URL is the base URL of the control plane and of envd.
func (s *Server) URL() string { return s.url }

// APIKey is the key that requests to the control plane need.
func (s *Server) APIKey() string { return s.apiKey }

// Close ends all requests and all processes of sandboxes, and removes the temporary directory.
// A program that ends without it may leave processes behind.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	all := make([]*sandbox, 0, len(s.sandboxes))
	for _, sb := range s.sandboxes {
		all = append(all, sb)
	}
	s.mu.Unlock()

	err := s.http.Close()
	<-s.served
	s.stop()
	for _, sb := range all {
		s.mu.Lock()
		if !sb.gone {
			s.forget(sb)
		}
		s.mu.Unlock()
		s.halt(sb)
	}
	s.busy.Wait()
	s.copies.CloseIdleConnections()
	if s.ownDir {
		err = errors.Join(err, removeAll(s.dir))
	}
	if err != nil {
		return fmt.Errorf("e2btest: close: %w", err)
	}
	return nil
}

// Sandbox is what the emulator knows about a sandbox.
type Sandbox struct {
	ID string
	// State is "running" or "paused".
	State    string
	Metadata map[string]string
	// TemplateID is the template's or the snapshot's own id, and Reference what the request to
	// create the sandbox called it.
	TemplateID string
	Reference  string
	// Dir is the sandbox's root on disk: its /home/user is home/user below it.
	Dir string
	// Network is the network configuration as it was last set: the network field of the request
	// that created the sandbox, or the body of the last request that replaced it. Nil means none.
	Network   json.RawMessage
	StartedAt time.Time
	// EndAt is when a running sandbox expires, or when a paused one was paused.
	EndAt time.Time
}

// Sandboxes are the sandboxes that exist, in the order of their creation.
func (s *Server) Sandboxes() []Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*sandbox, 0, len(s.sandboxes))
	for _, sb := range s.sandboxes {
		all = append(all, sb)
	}
	slices.SortFunc(all, func(a, b *sandbox) int { return a.createdAt.Compare(b.createdAt) })
	out := make([]Sandbox, len(all))
	for i, sb := range all {
		out[i] = Sandbox{
			ID: sb.id, State: sb.reportedState(), Metadata: cloneMap(sb.metadata),
			TemplateID: sb.template.id, Reference: sb.reference, Dir: sb.root,
			Network: slices.Clone(sb.rawNetwork), StartedAt: sb.startedAt, EndAt: sb.endAt,
		}
	}
	return out
}

// Snapshots are the ids of the snapshots that exist, in the order of their creation.
func (s *Server) Snapshots() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, snapshot := range s.allSnapshots() {
		ids = append(ids, snapshot.id())
	}
	return ids
}

// Lose ends a sandbox as when the service loses it: at once, whatever it is doing. An id that does not
// exist is ignored.
func (s *Server) Lose(sandboxID string) {
	s.mu.Lock()
	sb := s.sandboxes[sandboxID]
	if sb == nil {
		s.mu.Unlock()
		return
	}
	s.forget(sb)
	s.mu.Unlock()
	s.remove(sb)
}

// LoseSnapshot makes a snapshot disappear. An id that does not exist is ignored.
func (s *Server) LoseSnapshot(id string) {
	s.mu.Lock()
	t, b, err := s.findTemplate(id)
	if err == nil && t.snapshot {
		t.drop(b)
		if len(t.builds) == 0 {
			delete(s.templates, t.id)
		}
	}
	s.mu.Unlock()
	if err == nil && t.snapshot {
		_ = removeAll(b.dir)
	}
}

// Expire does what happens when a running sandbox's time is up: it is paused or killed, as it was
// created to be. It returns when that is done. An id that is not running is ignored.
func (s *Server) Expire(sandboxID string) {
	s.mu.Lock()
	sb := s.sandboxes[sandboxID]
	if sb != nil && sb.state == running {
		sb.endAt = time.Now()
	}
	s.mu.Unlock()
	if sb != nil {
		s.expire(sb)
	}
}

// serve answers every request that arrives at the port.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.enterBusy() {
		panic(http.ErrAbortHandler)
	}
	defer s.busy.Done()
	if r.URL.Host != "" || r.Method == http.MethodConnect {
		s.proxy(w, r)
		return
	}
	s.requests.record(r)
	f := s.faults.take(r)
	if f.Status != 0 {
		f.wait(r.Context())
		f.answer(w, r)
		return
	}
	if f.CutAfter != 0 {
		w = &cutWriter{ResponseWriter: w, conn: connOf(r), left: max(f.CutAfter, 0)}
	}
	if sandboxID, ok := envdSandbox(r); ok {
		f.wait(r.Context())
		s.serveEnvd(w, r, sandboxID)
	} else {
		s.serveControl(w, r, f)
	}
	if cut, ok := w.(*cutWriter); ok {
		cut.finish()
	}
}

// enterBusy counts something that Close has to wait for, which ends with busy.Done. It refuses when the
// server is closed.
func (s *Server) enterBusy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.busy.Add(1)
	return true
}

// errorBody is the body of every error of the control plane and of envd's file API.
type errorBody struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// httpError is an error with the status that tells it.
type httpError struct {
	status  int
	message string
}

func (e *httpError) Error() string { return e.message }

func refuse(status int, format string, args ...any) error {
	return &httpError{status, fmt.Sprintf(format, args...)}
}

func writeError(w http.ResponseWriter, err error) {
	var e *httpError
	if !errors.As(err, &e) {
		e = &httpError{http.StatusInternalServerError, err.Error()}
	}
	writeJSON(w, e.status, errorBody{e.status, e.message})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(mustMarshal(body))
}

// mustMarshal encodes this package's own types.
func mustMarshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// randomID is an id as the service makes them, of lower-case letters and digits.
func randomID(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, n)
	_, _ = rand.Read(b)
	var id strings.Builder
	for _, c := range b {
		id.WriteByte(letters[int(c)%len(letters)])
	}
	return id.String()
}

func cloneMap(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	c := make(map[string]string, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}
