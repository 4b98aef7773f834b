package e2btest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// The error codes of Connect that envd uses, with their HTTP status for unary calls.
var rpcStatus = map[string]int{
	"invalid_argument":    http.StatusBadRequest,
	"failed_precondition": http.StatusBadRequest,
	"unauthenticated":     http.StatusUnauthorized,
	"not_found":           http.StatusNotFound,
	"already_exists":      http.StatusConflict,
	"unimplemented":       http.StatusNotImplemented,
	"internal":            http.StatusInternalServerError,
	"unknown":             http.StatusInternalServerError,
	"deadline_exceeded":   http.StatusGatewayTimeout,
}

// rpcError is an error of a call, as it is sent.
type rpcError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *rpcError) Error() string { return e.Code + ": " + e.Message }

func rpcErrorf(code, format string, args ...any) error {
	return &rpcError{code, fmt.Sprintf(format, args...)}
}

func asRPCError(err error) *rpcError {
	var e *rpcError
	if errors.As(err, &e) {
		return e
	}
	return &rpcError{"internal", err.Error()}
}

const (
	unaryType  = "application/json"
	streamType = "application/connect+json"

	// endStream is the flag of the envelope that ends a stream.
	endStream      = 0x02
	envelopeHeader = 5

	// defaultKeepalive is how often a quiet stream has a sign of life.
	defaultKeepalive = 90 * time.Second
)

// rpc is a call to envd.
type rpc struct {
	server  *Server
	sandbox *sandbox
	w       http.ResponseWriter
	r       *http.Request
	user    string
	home    string
	timeout time.Duration // zero means none
	body    []byte        // the JSON of the one message
}

// decode reads the message into the struct that v points to.
func (c *rpc) decode(v any) error {
	if err := strictJSON(c.body, v); err != nil {
		return rpcErrorf("invalid_argument", "%v", err)
	}
	return nil
}

// unary are the calls with one answer.
var unary = map[string]func(*rpc) (any, error){
	"/filesystem.Filesystem/ListDir": (*rpc).listDir,
	"/filesystem.Filesystem/Stat":    (*rpc).stat,
	"/filesystem.Filesystem/MakeDir": (*rpc).makeDir,
	"/filesystem.Filesystem/Move":    (*rpc).move,
	"/filesystem.Filesystem/Remove":  (*rpc).remove,
	"/process.Process/List":          (*rpc).listProcesses,
	"/process.Process/SendSignal":    (*rpc).sendSignal,
	"/process.Process/SendInput":     (*rpc).sendInput,
	"/process.Process/CloseStdin":    (*rpc).closeStdin,
}

// streams are the calls that answer with a stream.
var streams = map[string]func(*rpc) error{
	"/process.Process/Start":   (*rpc).start,
	"/process.Process/Connect": (*rpc).connect,
}

// unemulated are the calls that envd has and the emulator has not.
var unemulated = map[string]bool{
	"/filesystem.Filesystem/CreateWatcher":    true,
	"/filesystem.Filesystem/GetWatcherEvents": true,
	"/filesystem.Filesystem/RemoveWatcher":    true,
	"/filesystem.Filesystem/WatchDir":         true,
	"/process.Process/StreamInput":            true,
	"/process.Process/Update":                 true,
}

func (s *Server) serveRPC(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	method := r.URL.Path
	answer, isUnary := unary[method]
	stream, isStream := streams[method]
	if !isUnary && !isStream && !unemulated[method] {
		writeError(w, refuse(http.StatusNotFound, "envd has nothing at this path"))
		return
	}
	if r.Method != http.MethodPost {
		writeError(w, refuse(http.StatusMethodNotAllowed, "calls are made with POST"))
		return
	}
	if !sb.authorized(r) {
		writeError(w, refuse(http.StatusUnauthorized, "unauthorized access, please provide a valid access token"))
		return
	}
	if unemulated[method] {
		writeRPCError(w, rpcErrorf("unimplemented", "the emulator has no %s", method))
		return
	}
	want := unaryType
	if isStream {
		want = streamType
	}
	if err := requireType(r.Header, want); err != nil {
		writeError(w, refuse(http.StatusUnsupportedMediaType, "%v", err))
		return
	}
	c, err := newRPC(s, sb, w, r)
	if isUnary {
		var message any
		if err == nil {
			c.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSON))
		}
		if err == nil {
			message, err = answer(c)
		}
		if err != nil {
			writeRPCError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, message)
		return
	}
	w.Header().Set("Content-Type", streamType)
	if err == nil {
		c.body, err = readEnvelope(http.MaxBytesReader(w, r.Body, maxJSON))
	}
	if err == nil {
		err = stream(c)
	}
	if r.Context().Err() != nil {
		return // nobody is there to be told
	}
	var end struct {
		Error *rpcError `json:"error,omitempty"`
	}
	if err != nil {
		end.Error = asRPCError(err)
	}
	_ = writeEnvelope(w, endStream, end)
}

// newRPC checks the headers that all calls have.
func newRPC(s *Server, sb *sandbox, w http.ResponseWriter, r *http.Request) (*rpc, error) {
	c := &rpc{server: s, sandbox: sb, w: w, r: r, user: defaultUser}
	if r.Header.Get("Connect-Protocol-Version") != "1" {
		return c, rpcErrorf("invalid_argument", "Connect-Protocol-Version must be 1")
	}
	if encoding := r.Header.Get("Connect-Content-Encoding") + r.Header.Get("Content-Encoding"); encoding != "" {
		return c, rpcErrorf("unimplemented", "the emulator has no compression %q", encoding)
	}
	if text := r.Header.Get("Connect-Timeout-Ms"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 64)
		if err != nil || len(text) > 10 {
			return c, rpcErrorf("invalid_argument", "Connect-Timeout-Ms: %q is no number of up to 10 digits", text)
		}
		c.timeout = time.Duration(ms) * time.Millisecond
	}
	if name, _, ok := r.BasicAuth(); ok {
		c.user = name
	} else if r.Header.Get("Authorization") != "" {
		return c, rpcErrorf("unauthenticated", "Authorization must be Basic, with the name of a user")
	}
	var ok bool
	if c.home, ok = home(c.user); !ok || c.user == "" {
		return c, rpcErrorf("unauthenticated", "invalid username: '%s'", c.user)
	}
	return c, nil
}

func writeRPCError(w http.ResponseWriter, err error) {
	e := asRPCError(err)
	writeJSON(w, rpcStatus[e.Code], e)
}

// readEnvelope reads the one message that a request for a stream has.
func readEnvelope(body io.Reader) ([]byte, error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, rpcErrorf("invalid_argument", "read the request: %v", err)
	}
	if len(text) < envelopeHeader || text[0] != 0 || int(binary.BigEndian.Uint32(text[1:])) != len(text)-envelopeHeader {
		return nil, rpcErrorf("invalid_argument", "the request must be one envelope without flags")
	}
	return text[envelopeHeader:], nil
}

// writeEnvelope sends one message of a stream.
func writeEnvelope(w http.ResponseWriter, flags byte, message any) error {
	text := mustMarshal(message)
	envelope := make([]byte, envelopeHeader, envelopeHeader+len(text))
	envelope[0] = flags
	binary.BigEndian.PutUint32(envelope[1:], uint32(len(text)))
	if _, err := w.Write(append(envelope, text...)); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

// keepalive is how often the client of a stream wants a sign of life.
func (c *rpc) keepalive() time.Duration {
	seconds, err := strconv.Atoi(c.r.Header.Get("Keepalive-Ping-Interval"))
	if err != nil || seconds <= 0 {
		return defaultKeepalive
	}
	return time.Duration(seconds) * time.Second
}
