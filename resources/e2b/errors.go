package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tinerun/tine/resources"
)

// Error is what E2B, a sandbox, or the connection to one said no with. Its text never
// contains a credential that the driver knows.
//
// It wraps resources.ErrGone, resources.ErrCheckpointUnavailable, resources.ErrInvalidConfig,
// fs.ErrNotExist or the context's error where that is what it means.
type Error struct {
	// Op is what was tried, such as "create sandbox".
	Op string
	// Status is the HTTP status, or the one that belongs to the code of an RPC. It is 0 when
	// there was no complete answer.
	Status int
	// Message is what the answer said, on one line and at most 500 characters long.
	Message string
	// RetryAfter is how long the service asked to be left alone, at most 5 minutes.
	RetryAfter time.Duration

	cause error
	// asleep says that the sandbox did not get the call: it is paused or gone, or has another
	// token now.
	asleep bool
	// noPath says that the service has no such endpoint, whatever the sandbox.
	noPath bool
	// transient says that the same call may succeed later although the status suggests otherwise.
	transient bool
}

var _ resources.RetryAdviser = (*Error)(nil)

func (e *Error) Error() string {
	text := "e2b: " + e.Op
	if e.Status != 0 {
		text += strings.TrimRight(fmt.Sprintf(": %d %s", e.Status, http.StatusText(e.Status)), " ")
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	if advice := e.advice(); advice != "" {
		text += " (" + advice + ")"
	}
	return text
}

// Unwrap returns the sentinel that the error stands for, if any.
func (e *Error) Unwrap() error { return e.cause }

// RetryDelay says to try again after a cut connection, a rate limit, a conflict with a
// transition under way, and a server's fault.
func (e *Error) RetryDelay() (time.Duration, bool) {
	switch {
	case e.cause != nil:
		return 0, false
	case e.transient, e.Status < http.StatusMultipleChoices:
		return e.RetryAfter, true
	case e.Status == http.StatusNotImplemented, e.Status == http.StatusInsufficientStorage:
		return 0, false
	case e.Status >= http.StatusInternalServerError:
		return e.RetryAfter, true
	}
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return e.RetryAfter, true
	}
	return 0, false
}

func (e *Error) advice() string {
	switch {
	case e.noPath, e.Status >= http.StatusMultipleChoices && e.Status < http.StatusBadRequest:
		return "check E2B_API_URL, E2B_SANDBOX_URL and E2B_DOMAIN"
	case e.Status == http.StatusUnauthorized:
		return "check E2B_API_KEY"
	case e.Status == http.StatusForbidden:
		return "check that the team of E2B_API_KEY may do this"
	case errors.Is(e.cause, resources.ErrInvalidConfig):
		return "check the template in the resource's configuration"
	}
	return ""
}

const (
	// textLimit bounds what an error quotes from outside: it ends in a history.
	textLimit = 500
	// maxRetryAfter bounds the wait that a server may ask for. A limit that lasts longer
	// answers the next attempt with its time again.
	maxRetryAfter = 5 * time.Minute
	// maxErrorBody is how much of an error's body is read.
	maxErrorBody = 64 << 10
)

var (
	errNoAnswer = errors.New("no answer in time")
	errStalled  = errors.New("nothing has come through the connection for too long")
)

// failure describes a call that got no complete answer.
func (d *Driver) failure(ctx context.Context, op string, err error) *Error {
	if ended := ctx.Err(); ended != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errNoAnswer) || errors.Is(cause, errStalled) {
			return &Error{Op: op, Message: cause.Error()}
		}
		return &Error{Op: op, cause: ended}
	}
	// The URL is left out: it holds more than it explains.
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the connection was cut")
	}
	return &Error{Op: op, Message: d.clean(err.Error())}
}

// refusal describes an answer that is no success, and closes it.
func (d *Driver) refusal(op string, res *http.Response) *Error {
	defer res.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // half a body says as much as there is
	e := &Error{Op: op, Status: res.StatusCode, RetryAfter: retryAfter(res.Header)}

	// The control plane and the files API say the status again as the code, the proxy before
	// sandboxes also which one it means, and RPCs have a word as the code.
	var said struct {
		Code      json.RawMessage `json:"code"`
		Message   *string         `json:"message"`
		SandboxID string          `json:"sandboxId"`
	}
	understood := json.Unmarshal(body, &said) == nil && said.Message != nil
	if understood {
		e.Message = d.clean(*said.Message)
	} else {
		e.Message = d.clean(string(body))
	}
	// 502 is said of a sandbox that is paused or gone, 409 of one that is on the way there.
	e.asleep = said.SandboxID != "" && (res.StatusCode == http.StatusBadGateway || res.StatusCode == http.StatusConflict)
	e.noPath = res.StatusCode == http.StatusMethodNotAllowed ||
		res.StatusCode == http.StatusNotFound && (!understood || strings.Contains(e.Message, noOperation))
	return e
}

// noOperation is what E2B's validator says about a path that is not in its API. Unlike for
// other unknown paths, the body looks as if a sandbox were unknown.
const noOperation = "no matching operation"

// malformed describes an answer that makes no sense.
func (d *Driver) malformed(op string, status int, err error) *Error {
	return &Error{Op: op, Status: status, Message: "the answer cannot be read: " + d.clean(err.Error())}
}

// means adds the sentinel that the error stands for, if its status is the given one.
func means(err error, status int, cause error) error {
	e, ok := errors.AsType[*Error](err)
	if ok && e.Status == status && !e.noPath {
		e.cause = cause
	}
	return err
}

// hasStatus reports whether err says that the thing itself, not the path, has the status.
func hasStatus(err error, status int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == status && !e.noPath
}

func isNoPath(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.noPath
}

func isAsleep(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.asleep
}

func markAsleep(err error) {
	if e, ok := errors.AsType[*Error](err); ok {
		e.asleep = true
	}
}

// isFinal reports whether another attempt would fail in the same way.
func isFinal(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	_, retry := e.RetryDelay()
	return !retry
}

// rpcStatus maps the codes of RPC errors to HTTP statuses, as the Connect protocol does.
var rpcStatus = map[string]int{
	"canceled":            499,
	"invalid_argument":    http.StatusBadRequest,
	"failed_precondition": http.StatusBadRequest,
	"out_of_range":        http.StatusBadRequest,
	"unauthenticated":     http.StatusUnauthorized,
	"permission_denied":   http.StatusForbidden,
	"not_found":           http.StatusNotFound,
	"already_exists":      http.StatusConflict,
	"aborted":             http.StatusConflict,
	"resource_exhausted":  http.StatusTooManyRequests,
	"unimplemented":       http.StatusNotImplemented,
	"unavailable":         http.StatusServiceUnavailable,
	"deadline_exceeded":   http.StatusGatewayTimeout,
}

// rpcError is the error at the end of a stream.
type rpcError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (d *Driver) rpcFailure(op string, said *rpcError) *Error {
	status, known := rpcStatus[said.Code]
	if !known {
		status = http.StatusInternalServerError
	}
	e := &Error{Op: op, Status: status, Message: d.clean(said.Message)}
	if status == http.StatusNotFound {
		e.cause = fs.ErrNotExist
	}
	return e
}

// retryAfter is how long the server asks to be left alone, 0 if it does not say.
func retryAfter(header http.Header) time.Duration {
	value := header.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(value, 64); err == nil && seconds >= 0 {
		return time.Duration(min(seconds*float64(time.Second), float64(maxRetryAfter)))
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return 0
}

// clean makes a text from outside fit for an error: on one line, valid, without
// credentials, and short.
func (d *Driver) clean(text string) string {
	words := strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	})
	// Redacted before it is cut, so that the cut cannot leave a part of a credential.
	runes := []rune(d.secrets.redact(strings.Join(words, " ")))
	if len(runes) > textLimit {
		return string(runes[:textLimit]) + "…"
	}
	return string(runes)
}
