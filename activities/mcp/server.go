// Package mcp connects a worker to servers of the Model Context Protocol, whose tools agents call
// through a workflows.MCPServer.
//
// [New] makes a [Server] of a command that the worker starts, or of a URL. It is bound to its reference
// in the worker:
//
//	github, err := mcp.New(mcp.Options{URL: "https://mcp.example.com", Header: header})
//	worker.MCPServer(GitHub, github)
//
// A server is connected to when it is first used, with one session for all that the worker does, and
// again when that has been lost. A command runs as long as its session. Nothing is offered to the server but
// the worker's calls: no files, no sampling, and nobody to ask for input. Its notifications are ignored.
//
// # Errors
//
// What a tool reports as an error, and what the server answers with an error, such as an unknown
// tool, is the step's outcome. A server that cannot be reached, and the statuses 429 and 503, are marked
// with [activities.Retryable]. A connection that is lost while a call is under way is marked with
// [activities.Indeterminate]: the tool may have run. The statuses 401 and 403, redirects, and a command that
// is not there are final.
//
// # Secrets
//
// Options stay in the worker. The values of headers, of the URL's query, and of environment
// variables whose names end in KEY, TOKEN, SECRET or PASSWORD are cut out of errors and results if
// they have 8 characters or more.
package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/internal/endpoint"
)

const (
	// defaultConnectTimeout leaves a command the time to load itself.
	defaultConnectTimeout = time.Minute

	// terminateTimeout is how long a command may take to end when its input does, and again when
	// it is told to.
	terminateTimeout = 2 * time.Second

	// closeTimeout bounds Close. It is longer than a command needs.
	closeTimeout = 10 * time.Second
)

// Options say what to connect to: a Command, a URL or a Transport, and only one of them.
type Options struct {
	// Command is a program and its arguments, which speaks the protocol over its standard
	// input and output.
	Command []string
	// Dir is where the command runs. Empty: the worker's directory.
	Dir string
	// Env are further variables of the command, as KEY=value. Of the worker's own it gets only
	// those that programs need to run, such as PATH and HOME, and no credentials.
	Env []string
	// Stderr gets what the command writes to its standard error. Nil: nobody.
	Stderr io.Writer

	// URL is that of a server that speaks streamable HTTP.
	URL string
	// Header is sent with each request, for credentials.
	Header http.Header
	// HTTPClient makes the requests. Nil: one with http.DefaultTransport. Unless it has a
	// CheckRedirect, redirects are errors: they would lead the headers elsewhere.
	HTTPClient *http.Client

	// Transport makes a transport of the SDK for each connection. It is for what a Command and a
	// URL do not do, such as OAuth.
	Transport func() (sdk.Transport, error)

	// ConnectTimeout bounds one attempt to connect. Zero: a minute.
	ConnectTimeout time.Duration
}

// Server is an [activities.MCPServer]. It may be used concurrently, and again after Close.
type Server struct {
	client         *sdk.Client
	transport      func() (sdk.Transport, error)
	connectTimeout time.Duration
	redact         func(string) string

	connecting chan struct{} // held by who connects
	mu         sync.Mutex
	session    *session
}

var _ activities.MCPServer = (*Server)(nil)

// session is a connection. Lost is closed when it is no more.
type session struct {
	*sdk.ClientSession
	lost chan struct{}
}

// New checks opts. It does not connect.
func New(opts Options) (*Server, error) {
	transport := opts.Transport
	given := 0
	if transport != nil {
		given++
	}
	if len(opts.Command) > 0 {
		given++
		transport = func() (sdk.Transport, error) { return command(opts), nil }
	}
	if opts.URL != "" {
		given++
		if base, err := url.Parse(opts.URL); err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Hostname() == "" || base.User != nil {
			return nil, errors.New("mcp: the URL must be an http or https URL without a user") // not quoted: it may hold a key
		}
		transport = func() (sdk.Transport, error) { return streamable(opts), nil }
	}
	if given != 1 {
		return nil, errors.New("mcp: give a command, a URL or a transport, and only one of them")
	}
	if opts.ConnectTimeout < 0 {
		return nil, fmt.Errorf("mcp: the time to connect is negative: %v", opts.ConnectTimeout)
	}
	return &Server{
		// Without capabilities, since the SDK's default offers roots.
		client:         sdk.NewClient(&sdk.Implementation{Name: "tine"}, &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}}),
		transport:      transport,
		connectTimeout: cmp.Or(opts.ConnectTimeout, defaultConnectTimeout),
		redact:         endpoint.Redactor(secrets(opts)...),
		connecting:     make(chan struct{}, 1),
	}, nil
}

// secretLength tells a secret from a word that a tool may well say.
const secretLength = 8

func secrets(opts Options) []string {
	var found []string
	add := func(value string) {
		if len(value) >= secretLength {
			found = append(found, value)
		}
	}
	for _, values := range opts.Header {
		for _, value := range values {
			add(value)
			if _, credentials, ok := strings.Cut(value, " "); ok { // after a scheme such as Bearer
				add(credentials)
			}
		}
	}
	for _, variable := range opts.Env {
		name, value, _ := strings.Cut(variable, "=")
		for _, end := range []string{"KEY", "TOKEN", "SECRET", "PASSWORD"} {
			if strings.HasSuffix(strings.ToUpper(name), end) {
				add(value)
			}
		}
	}
	if base, err := url.Parse(opts.URL); err == nil {
		for _, values := range base.Query() {
			for _, value := range values {
				add(value)
			}
		}
	}
	return found
}

// ListTools gives the tools that the server offers now.
func (s *Server) ListTools(ctx context.Context) ([]activities.MCPTool, error) {
	var tools []activities.MCPTool
	err := s.use(ctx, func(session *session) error {
		tools = nil
		known := map[string]bool{}
		for tool, err := range session.Tools(ctx, nil) {
			if err != nil {
				return err
			}
			if tool.Name == "" || known[tool.Name] {
				continue
			}
			known[tool.Name] = true
			described, err := describe(tool)
			if err != nil {
				return err
			}
			tools = append(tools, described)
		}
		return nil
	})
	return tools, err
}

// CallTool runs a tool. Its result is the structured content that the tool gives, or else its
// text, as a JSON string. Of images and the like the text only has a mention.
func (s *Server) CallTool(ctx context.Context, tool string, args json.RawMessage) (json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(args, &object); err != nil || object == nil {
		return nil, invalidArguments("the arguments are not a JSON object")
	}
	var result *sdk.CallToolResult
	err := s.use(ctx, func(session *session) (err error) {
		result, err = session.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: args})
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.result(result)
}

// use calls with a session. A server that has forgotten the session has not run the call, so it
// is made again with a new one.
func (s *Server) use(ctx context.Context, call func(*session) error) error {
	for again := true; ; again = false {
		session, err := s.connect(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return s.connectError(err)
		}
		err = call(session)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, sdk.ErrSessionMissing) && again:
			s.drop(session)
			continue
		case broken(err):
			s.drop(session)
		}
		return s.callError(err)
	}
}

// connect gives the session there is, or a new one.
func (s *Server) connect(ctx context.Context) (*session, error) {
	select {
	case s.connecting <- struct{}{}:
		defer func() { <-s.connecting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if session := s.current(); session != nil {
		return session, nil
	}
	transport, err := s.transport()
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, s.connectTimeout)
	defer cancel()
	connected, err := s.client.Connect(limited, transport, nil)
	if err != nil {
		return nil, err
	}
	made := &session{ClientSession: connected, lost: make(chan struct{})}
	go func() {
		defer close(made.lost)
		_ = connected.Wait()
		_ = connected.Close() // reaps a command that has ended
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = made
	return made, nil
}

func (s *Server) current() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		return nil
	}
	select {
	case <-s.session.lost:
		s.session = nil
	default:
	}
	return s.session
}

// drop makes the next call connect anew. Others that use the session see for themselves what has
// become of it.
func (s *Server) drop(lost *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == lost {
		s.session = nil
	}
	go func() { _ = lost.Close() }()
}

// Close ends the session, and with it a command.
func (s *Server) Close() {
	s.mu.Lock()
	open := s.session
	s.session = nil
	s.mu.Unlock()
	if open == nil {
		return
	}
	go func() { _ = open.Close() }()
	select {
	case <-open.lost:
	case <-time.After(closeTimeout):
	}
}
