package mcp

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tinerun/tine/activities/internal/endpoint"
)

// inherited are the worker's variables that a command gets: what programs need to find their way on
// Unix and on Windows.
var inherited = []string{
	"HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
	"APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE",
	"PROGRAMDATA", "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE",
}

func command(opts Options) sdk.Transport {
	cmd := exec.Command(opts.Command[0], opts.Command[1:]...)
	cmd.Dir = opts.Dir
	cmd.Stderr = opts.Stderr
	cmd.Env = []string{} // nil would be the worker's
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Env = append(cmd.Env, opts.Env...)
	return &sdk.CommandTransport{Command: cmd, TerminateDuration: terminateTimeout}
}

func streamable(opts Options) sdk.Transport {
	client := http.Client{}
	if opts.HTTPClient != nil {
		client = *opts.HTTPClient
	}
	if client.CheckRedirect == nil {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	next := client.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	client.Transport = roundTripper{header: opts.Header, next: next}
	return &sdk.StreamableClientTransport{
		Endpoint:   opts.URL,
		HTTPClient: &client,
		// What it brings is ignored.
		DisableStandaloneSSE: true,
	}
}

// roundTripper adds the headers, and gives refusals as errors that keep their status, which
// the SDK's do not.
type roundTripper struct {
	header http.Header
	next   http.RoundTripper
}

// statusError is a response that says that a request was not carried out.
type statusError struct {
	status int
	after  time.Duration
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the server answers %d %s", e.status, http.StatusText(e.status))
}

func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	for name, values := range t.header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	res, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch {
	case res.StatusCode >= 300 && res.StatusCode < 400,
		res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden,
		res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusServiceUnavailable:
		_ = res.Body.Close()
		return nil, &statusError{status: res.StatusCode, after: endpoint.RetryAfter(res.Header)}
	}
	return res, nil
}
