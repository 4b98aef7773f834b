package e2btest

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// v1Timeout and defaultTimeout are how long a sandbox lives if the request does not say it.
	v1Timeout      = 15 * time.Second
	defaultTimeout = 300 * time.Second
)

// call is a request to the control plane.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	id    string // in the path
	body  []byte
	fault Fault // its delay, for operations that spend it in a transition
}

// operation is an operation of the control plane.
type operation struct {
	method string
	path   string                     // {} stands for an id
	query  []string                   // the parameters that it takes
	body   bool                       // it takes a JSON body
	slow   bool                       // it spends a fault's delay itself
	do     func(*Server, *call) error // nil if the emulator does not have it
}

var operations = []operation{
	{method: "POST", path: "/v2/sandboxes", body: true, slow: true, do: (*Server).createV2},
	{method: "POST", path: "/sandboxes", body: true, slow: true, do: (*Server).createV1},
	{method: "GET", path: "/v2/sandboxes", query: []string{"metadata", "state", "startedAfter", "template", "order", "limit", "nextToken"}, do: (*Server).list},
	{method: "GET", path: "/sandboxes/{}", do: (*Server).get},
	{method: "DELETE", path: "/sandboxes/{}", slow: true, do: (*Server).kill},
	{method: "POST", path: "/v2/sandboxes/{}/connect", body: true, slow: true, do: (*Server).connectV2},
	{method: "POST", path: "/sandboxes/{}/connect", body: true, slow: true, do: (*Server).connectV1},
	{method: "POST", path: "/sandboxes/{}/pause", body: true, slow: true, do: (*Server).pauseSandbox},
	{method: "POST", path: "/sandboxes/{}/snapshots", body: true, slow: true, do: (*Server).createSnapshot},
	{method: "POST", path: "/sandboxes/{}/timeout", body: true, do: (*Server).setTimeout},
	{method: "PUT", path: "/sandboxes/{}/network", body: true, do: (*Server).replaceNetwork},
	{method: "GET", path: "/snapshots", query: []string{"sandboxID", "name", "limit", "nextToken"}, do: (*Server).listSnapshots},
	{method: "DELETE", path: "/templates/{}", do: (*Server).deleteTemplate},

	{method: "POST", path: "/sandboxes/{}/resume"},
	{method: "POST", path: "/sandboxes/{}/refreshes"},
	{method: "POST", path: "/sandboxes/{}/fork"},
	{method: "GET", path: "/sandboxes/{}/metrics"},
	{method: "GET", path: "/sandboxes/{}/logs"},
}

// match tells whether an escaped path is the operation's, and which id is in it.
func (o operation) match(path string) (id string, ok bool) {
	before, after, has := strings.Cut(o.path, "{}")
	if !has {
		return "", path == o.path
	}
	rest, ok := strings.CutPrefix(path, before)
	if !ok {
		return "", false
	}
	if rest, ok = strings.CutSuffix(rest, after); !ok || rest == "" || strings.Contains(rest, "/") {
		return "", false
	}
	id, err := url.PathUnescape(rest)
	return id, err == nil
}

// sandboxIDForm is a sandbox's id, after which clients may have written more.
var sandboxIDForm = regexp.MustCompile(`^([a-z0-9]+)(-.*)?$`)

func (s *Server) serveControl(w http.ResponseWriter, r *http.Request, f Fault) {
	if key := r.Header.Get("X-API-Key"); key != s.apiKey {
		writeError(w, refuse(http.StatusUnauthorized, "Invalid API key"))
		return
	}
	var known bool
	for _, o := range operations {
		id, ok := o.match(r.URL.EscapedPath())
		known = known || ok
		if !ok || o.method != r.Method {
			continue
		}
		c := &call{w: w, r: r, id: id, fault: f}
		if !o.slow {
			f.wait(r.Context())
		}
		if err := s.do(o, c); err != nil {
			writeError(w, err)
		}
		return
	}
	if known {
		writeError(w, refuse(http.StatusMethodNotAllowed, "there is no %s here", r.Method))
		return
	}
	writeError(w, refuse(http.StatusNotFound, "the emulator has nothing at this path"))
}

func (s *Server) do(o operation, c *call) error {
	if o.do == nil {
		return refuse(http.StatusNotImplemented, "the emulator has no %s %s", o.method, o.path)
	}
	for name, values := range c.r.URL.Query() {
		if !slices.Contains(o.query, name) || len(values) > 1 {
			return refuse(http.StatusBadRequest, "query parameter %s: it is unknown, or there more than once", name)
		}
	}
	if strings.HasPrefix(o.path, "/sandboxes/{}") || strings.HasPrefix(o.path, "/v2/sandboxes/{}") {
		m := sandboxIDForm.FindStringSubmatch(c.id)
		if m == nil {
			return refuse(http.StatusBadRequest, "Invalid sandbox ID")
		}
		c.id = m[1]
	}
	var err error
	if c.body, err = io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxJSON)); err != nil {
		return refuse(http.StatusBadRequest, "read the body: %v", err)
	}
	if len(c.body) > 0 && !o.body {
		return refuse(http.StatusBadRequest, "%s %s has no body", o.method, o.path)
	}
	return o.do(s, c)
}

// decode decodes the body into the struct that v points to.
func (c *call) decode(v any) error {
	if err := requireType(c.r.Header, "application/json"); err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	if err := strictJSON(c.body, v); err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	return nil
}

type createBody struct {
	TemplateID      *string           `json:"templateID"`
	Timeout         *int32            `json:"timeout"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      struct {
		Enabled *bool `json:"enabled"`
	} `json:"autoResume"`
	AllowInternetAccess *bool           `json:"allow_internet_access"`
	Network             json.RawMessage `json:"network"`
	MCP                 json.RawMessage `json:"mcp"`
	IAM                 json.RawMessage `json:"iam"`
	VolumeMounts        json.RawMessage `json:"volumeMounts"`
}

type createV1Body struct {
	createBody
	Secure bool `json:"secure"`
}

func (s *Server) createV2(c *call) error {
	var body createBody
	if err := c.decode(&body); err != nil {
		return err
	}
	return s.createSandbox(c, body, defaultTimeout, true)
}

func (s *Server) createV1(c *call) error {
	var body createV1Body
	if err := c.decode(&body); err != nil {
		return err
	}
	return s.createSandbox(c, body.createBody, v1Timeout, body.Secure)
}

func (s *Server) createSandbox(c *call, body createBody, timeout time.Duration, secure bool) error {
	sb, err := s.newSandbox(body, timeout)
	if err != nil {
		return err
	}
	sb.secure = secure

	s.mu.Lock()
	t, b, err := s.findTemplate(sb.reference)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	sb.template = t
	sb.fileMetadata = map[string]map[string]string{}
	for path, metadata := range b.fileMetadata {
		sb.fileMetadata[path] = cloneMap(metadata)
	}
	c.fault.wait(s.done)
	err = s.materialize(sb, b)

	s.mu.Lock()
	defer s.mu.Unlock()
	if t.build(b.tag) != b { // deleted while it was being copied
		err = refuse(http.StatusNotFound, "template '%s' not found", sb.reference)
	} else if s.closed {
		err = refuse(http.StatusServiceUnavailable, "the emulator is closed")
	}
	if err != nil {
		_ = removeAll(filepath.Dir(sb.root))
		return err
	}
	sb.createdAt = time.Now()
	sb.startedAt = sb.createdAt
	s.startClock(sb, sb.timeout)
	s.sandboxes[sb.id] = sb
	writeJSON(c.w, http.StatusCreated, sb.answer())
	return nil
}

// newSandbox checks a request to create a sandbox.
func (s *Server) newSandbox(body createBody, timeout time.Duration) (*sandbox, error) {
	if body.TemplateID == nil {
		return nil, refuse(http.StatusBadRequest, "templateID is missing")
	}
	for name, value := range map[string]json.RawMessage{"mcp": body.MCP, "iam": body.IAM, "volumeMounts": body.VolumeMounts} {
		if value != nil {
			return nil, refuse(http.StatusNotImplemented, "the emulator has no %s", name)
		}
	}
	timeout, err := s.timeout(body.Timeout, timeout)
	if err != nil {
		return nil, err
	}
	memory := body.AutoPauseMemory == nil || *body.AutoPauseMemory
	autoResume := body.AutoResume.Enabled != nil && *body.AutoResume.Enabled
	if !memory && (!body.AutoPause || autoResume) {
		return nil, refuse(http.StatusBadRequest, "autoPauseMemory=false needs autoPause, and goes without autoResume")
	}
	sb := &sandbox{
		id: "i" + randomID(20), token: randomHex(32), reference: *body.TemplateID,
		metadata: body.Metadata, envVars: body.EnvVars,
		autoPause: body.AutoPause, autoPauseMemory: memory, autoResume: autoResume,
		internet: body.AllowInternetAccess, timeout: timeout,
		state: running, changed: make(chan struct{}), conns: map[net.Conn]int{},
	}
	if body.Network != nil {
		var network createNetwork
		if err := strictJSON(body.Network, &network); err != nil {
			return nil, refuse(http.StatusBadRequest, "network: %v", err)
		}
		if err := network.check(); err != nil {
			return nil, err
		}
		sb.network, sb.rawNetwork = network.networkConfig, body.Network
	}
	return sb, nil
}

// timeout is the time in seconds that a request gives, or the default.
func (s *Server) timeout(seconds *int32, otherwise time.Duration) (time.Duration, error) {
	timeout := otherwise
	if seconds != nil {
		timeout = time.Duration(*seconds) * time.Second
	}
	if timeout <= 0 {
		return 0, refuse(http.StatusBadRequest, "Timeout must be greater than 0")
	}
	if timeout > s.maxLifetime {
		return 0, refuse(http.StatusBadRequest, "Timeout cannot be greater than %g hours", s.maxLifetime.Hours())
	}
	return timeout, nil
}

// sandboxAnswer is the answer to a request that creates or connects.
type sandboxAnswer struct {
	TemplateID      string  `json:"templateID"`
	Alias           string  `json:"alias,omitempty"`
	SandboxID       string  `json:"sandboxID"`
	ClientID        string  `json:"clientID"`
	EnvdVersion     string  `json:"envdVersion"`
	EnvdAccessToken string  `json:"envdAccessToken,omitempty"`
	Domain          *string `json:"domain"`
}

func (sb *sandbox) answer() sandboxAnswer {
	answer := sandboxAnswer{
		TemplateID: sb.template.id, Alias: sb.template.alias, SandboxID: sb.id, ClientID: clientID, EnvdVersion: envdVersion,
	}
	if sb.secure {
		answer.EnvdAccessToken = sb.token
	}
	return answer
}

type connectBody struct {
	Timeout *int32 `json:"timeout"`
	Memory  *bool  `json:"memory"`
}

func (s *Server) connectV2(c *call) error {
	var body connectBody
	if err := c.decode(&body); err != nil {
		return err
	}
	return s.connect(c, body)
}

func (s *Server) connectV1(c *call) error {
	var body connectBody
	if err := c.decode(&body); err != nil {
		return err
	}
	if body.Timeout == nil {
		return refuse(http.StatusBadRequest, "timeout is missing")
	}
	return s.connect(c, body)
}

func (s *Server) connect(c *call, body connectBody) error {
	timeout, err := s.timeout(body.Timeout, defaultTimeout)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.sandboxes[c.id]
	if sb == nil {
		return refuse(http.StatusNotFound, "Paused sandbox %s not found", c.id)
	}
	if sb.transition == killing {
		return refuse(http.StatusConflict, "Sandbox %s is being killed", c.id)
	}
	if err := s.awaitSettled(c.r.Context(), sb); err != nil {
		return err
	}
	if sb.gone {
		return refuse(http.StatusNotFound, "Paused sandbox %s not found", c.id)
	}
	if sb.state == paused {
		s.resume(sb, timeout, c.fault, body.Memory != nil && !*body.Memory)
		if sb.gone {
			return refuse(http.StatusNotFound, "Paused sandbox %s not found", c.id)
		}
		writeJSON(c.w, http.StatusCreated, sb.answer())
		return nil
	}
	if err := s.checkLifetime(sb); err != nil {
		return err
	}
	if time.Now().Add(timeout).After(sb.endAt) {
		s.startClock(sb, timeout)
	}
	writeJSON(c.w, http.StatusOK, sb.answer())
	return nil
}

// checkLifetime refuses more time for a sandbox that has had all of it.
func (s *Server) checkLifetime(sb *sandbox) error {
	if time.Since(sb.startedAt) > s.maxLifetime {
		return refuse(http.StatusBadRequest, "Max instance length exceeded")
	}
	return nil
}

func (s *Server) pauseSandbox(c *call) error {
	var body struct {
		Memory *bool `json:"memory"`
	}
	if len(c.body) > 0 {
		if err := c.decode(&body); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.find(c.id)
	if err != nil {
		return err
	}
	if sb.state == paused || sb.transition != settled {
		return refuse(http.StatusConflict, "Sandbox '%s' cannot be paused now: it is %s", c.id, sb.describe())
	}
	s.pause(sb, c.fault, body.Memory == nil || *body.Memory)
	if sb.gone {
		return refuse(http.StatusInternalServerError, "Error pausing sandbox: it was lost")
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// describe is the transition or the state. The caller holds mu.
func (sb *sandbox) describe() string {
	if sb.transition != settled {
		return sb.transition
	}
	return sb.state
}

func (s *Server) kill(c *call) error {
	s.mu.Lock()
	sb, err := s.find(c.id)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	joined := sb.transition == killing
	if err := s.awaitSettled(c.r.Context(), sb); err != nil || sb.gone {
		s.mu.Unlock()
		if err == nil && !joined {
			err = refuse(http.StatusNotFound, "Sandbox \"%s\" not found", c.id)
		}
		if err == nil {
			c.w.WriteHeader(http.StatusNoContent)
		}
		return err
	}
	sb.begin(killing)
	s.mu.Unlock()
	c.fault.wait(s.done)
	s.mu.Lock()
	if !sb.gone {
		s.forget(sb)
	}
	s.mu.Unlock()
	s.remove(sb)
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) createSnapshot(c *call) error {
	var body struct {
		Name *string `json:"name"`
	}
	if err := c.decode(&body); err != nil {
		return err
	}
	name := ""
	if body.Name != nil {
		if name = *body.Name; !referenceForm.MatchString(name) {
			return refuse(http.StatusBadRequest, "Invalid snapshot name: '%s'", name)
		}
		if team, _, named := strings.Cut(name, "/"); named && team != teamSlug {
			return refuse(http.StatusForbidden, "you don't have access to team '%s'", team)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.find(c.id)
	if err != nil {
		return err
	}
	if sb.transition != settled {
		return refuse(http.StatusConflict, "Sandbox '%s' cannot be snapshotted now: it is %s", c.id, sb.transition)
	}
	if sb.state == paused {
		return refuse(http.StatusNotFound, "Sandbox \"%s\" is not running", c.id)
	}
	b, err := s.snapshot(sb, c.fault)
	if err != nil {
		return err
	}
	added, replaced := s.addSnapshot(name, b)
	if replaced != nil {
		_ = removeAll(replaced.dir)
	}
	writeJSON(c.w, http.StatusCreated, added.answer())
	return nil
}

type snapshotAnswer struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func (sn snapshot) answer() snapshotAnswer { return snapshotAnswer{sn.id(), sn.names()} }

func (s *Server) deleteTemplate(c *call) error {
	s.mu.Lock()
	t, _, err := s.findTemplate(c.id)
	if err == nil {
		err = s.deletable(t)
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	delete(s.templates, t.id)
	builds := t.builds
	t.builds = nil
	s.mu.Unlock()
	for _, b := range builds {
		_ = removeAll(b.dir)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// deletable refuses to delete a template that sandboxes were made from. The caller holds mu.
func (s *Server) deletable(t *template) error {
	if !t.snapshot {
		return refuse(http.StatusForbidden, "you don't have access to delete template '%s'", t.alias)
	}
	for _, state := range []string{running, paused} {
		for _, sb := range s.sandboxes {
			if sb.template == t && sb.reportedState() == state {
				return refuse(http.StatusBadRequest, "cannot delete template '%s' because there are %s sandboxes using it", t.id, state)
			}
		}
	}
	return nil
}

func (s *Server) setTimeout(c *call) error {
	var body struct {
		Timeout *int32 `json:"timeout"`
	}
	if err := c.decode(&body); err != nil {
		return err
	}
	if body.Timeout == nil || *body.Timeout < 0 {
		return refuse(http.StatusBadRequest, "timeout must be a number of seconds")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.findRunning(c.id)
	if err != nil {
		return err
	}
	if err := s.checkLifetime(sb); err != nil {
		return err
	}
	s.startClock(sb, time.Duration(*body.Timeout)*time.Second)
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) replaceNetwork(c *call) error {
	var body updateNetwork
	if err := c.decode(&body); err != nil {
		return err
	}
	if err := body.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.find(c.id)
	if err != nil {
		return err
	}
	if sb.transition != settled {
		return refuse(http.StatusConflict, "Sandbox '%s' is %s", c.id, sb.transition)
	}
	if sb.state != running {
		return refuse(http.StatusNotFound, "Sandbox \"%s\" is not running", c.id)
	}
	sb.network, sb.rawNetwork, sb.internet = body.networkConfig, c.body, body.AllowInternetAccess
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
