package e2b

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Sandbox is a running or paused E2B sandbox: a small Linux machine. It is safe for
// concurrent use, as far as what runs in it is.
//
// A sandbox that was paused since the last call is resumed by the next one. One that does
// not exist any more is resources.ErrGone.
//
// Paths of files are absolute, or relative to the user's home. One that does not exist is
// fs.ErrNotExist.
type Sandbox struct {
	driver   *Driver
	id       string
	settings settings

	turn chan struct{} // held to read or change conn, also while connecting
	conn *connection   // nil before the next call has to connect
}

// ID returns the sandbox's ID at E2B. It is another one in a fork, so it should not be part of
// a tool's result.
func (s *Sandbox) ID() string { return s.id }

// connection is what it takes to call into a sandbox.
type connection struct {
	driver *Driver
	id     string
	base   string
	token  secret
	// legacyUser is for versions of the sandbox's daemon without a default user.
	legacyUser bool
	// made is when the sandbox's time began to run anew.
	made time.Time
}

// envdPort is where the daemon in a sandbox listens.
const envdPort = "49983"

// sharedDomains are those where one host serves all sandboxes, by their headers.
var sharedDomains = []string{"e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"}

func (d *Driver) connectionTo(r running) *connection {
	for _, token := range []string{r.EnvdAccessToken, r.TrafficAccessToken} {
		if token != "" {
			d.secrets.add(token)
		}
	}
	return &connection{
		driver: d, id: r.SandboxID, base: d.envdURL(r), token: hide(r.EnvdAccessToken),
		legacyUser: before(r.EnvdVersion, 0, 4), made: time.Now(),
	}
}

func (d *Driver) envdURL(r running) string {
	domain := r.Domain
	if domain == "" {
		domain = d.domain
	}
	switch {
	case d.sandboxURL != "":
		return d.sandboxURL
	case slices.Contains(sharedDomains, domain):
		return "https://sandbox." + domain
	}
	return "https://" + envdPort + "-" + r.SandboxID + "." + domain
}

// before reports whether a version is below major.minor. One that cannot be read is not.
func before(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	gotMajor, err := strconv.Atoi(first)
	if err != nil {
		return false
	}
	gotMinor, err := strconv.Atoi(second)
	if err != nil {
		return false
	}
	return gotMajor < major || gotMajor == major && gotMinor < minor
}

// connection returns the connection to use, made anew when half of the sandbox's time is up.
func (s *Sandbox) connection(ctx context.Context) (*connection, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.unlock()
	if s.conn != nil && time.Since(s.conn.made) < s.settings.halfLife() {
		return s.conn, nil
	}
	return s.connectLocked(ctx)
}

// reconnect replaces a connection that does not work any more, unless that was done.
func (s *Sandbox) reconnect(ctx context.Context, broken *connection) (*connection, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.unlock()
	if s.conn != nil && s.conn != broken {
		return s.conn, nil
	}
	return s.connectLocked(ctx)
}

func (s *Sandbox) connectLocked(ctx context.Context) (*connection, error) {
	conn, err := s.driver.connect(ctx, s.id, s.settings)
	if err != nil {
		return nil, err
	}
	s.conn = conn
	return conn, nil
}

// disconnect makes the next call connect.
func (s *Sandbox) disconnect() {
	s.turn <- struct{}{}
	defer s.unlock()
	s.conn = nil
}

func (s *Sandbox) lock(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &Error{Op: "connect to sandbox", cause: ctx.Err()}
	}
}

func (s *Sandbox) unlock() { <-s.turn }

// use makes a call. If the sandbox did not get it, because it is paused or has another token
// now, use connects and makes the call once more.
func (s *Sandbox) use(ctx context.Context, call func(c *connection) error) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	if err = call(conn); !isAsleep(err) {
		return err
	}
	if conn, err = s.reconnect(ctx, conn); err != nil {
		return err
	}
	return call(conn)
}

// request adds to a request what tells the proxy which sandbox it is for, and the sandbox
// that it may.
func (c *connection) request(req *http.Request) *http.Request {
	req.Header.Set("E2b-Sandbox-Id", c.id)
	req.Header.Set("E2b-Sandbox-Port", envdPort)
	if token := c.token(); token != "" {
		req.Header.Set("X-Access-Token", token)
	}
	if c.legacyUser {
		req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(legacyUser+":")))
	}
	return req
}

// legacyUser is who commands run as and files belong to where the daemon has no default.
const legacyUser = "user"

// send sends a request to the sandbox. Its answer is a success, and must be closed.
func (c *connection) send(op string, req *http.Request) (*http.Response, error) {
	res, err := c.driver.send(op, c.request(req))
	if hasStatus(err, http.StatusUnauthorized) {
		// The daemon checks the token first, so it has done nothing.
		markAsleep(err)
	}
	return res, err
}

// unary calls a method that answers once.
func (c *connection) unary(ctx context.Context, op, method string, in, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errNoAnswer)
	defer cancel()
	req, err := jsonRequest(ctx, http.MethodPost, c.base+method, in)
	if err != nil {
		return c.driver.failure(ctx, op, err)
	}
	req.Header.Set("Connect-Protocol-Version", "1")
	res, err := c.send(op, req)
	if err != nil {
		return err
	}
	return c.driver.decode(ctx, op, res, out)
}

// files is the URL of the endpoint that moves the bytes of a file.
func (c *connection) files(path string) string {
	query := url.Values{"path": {path}}
	if c.legacyUser {
		query.Set("username", legacyUser)
	}
	return c.base + "/files?" + query.Encode()
}
