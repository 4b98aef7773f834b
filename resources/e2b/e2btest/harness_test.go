package e2btest_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources/e2b/e2btest"
)

// patience is how long something may take that is certain to happen.
const patience = 20 * time.Second

type object = map[string]any

// client sends requests as a client of E2B does.
type client struct {
	t      *testing.T
	server *e2btest.Server
	http   *http.Client
}

func setup(t *testing.T, opts e2btest.Options) *client {
	t.Helper()
	server, err := e2btest.New(opts)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		transport.CloseIdleConnections()
	})
	return &client{t: t, server: server, http: &http.Client{Transport: transport}}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) object(t *testing.T) object {
	t.Helper()
	var o object
	require.NoError(t, json.Unmarshal(a.body, &o), "%s", a.body)
	return o
}

// send sends a request as it is.
func (c *client) send(method, path string, header http.Header, body io.Reader) (answer, error) {
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.server.URL()+path, body)
	require.NoError(c.t, err)
	req.Header = header
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, text}, err
}

// control sends a request to the control plane, with JSON unless that is empty.
func (c *client) control(method, path, body string) answer {
	c.t.Helper()
	a, err := c.tryControl(method, path, body)
	require.NoError(c.t, err)
	return a
}

func (c *client) tryControl(method, path, body string) (answer, error) {
	header := http.Header{"X-Api-Key": {c.server.APIKey()}}
	if body != "" {
		header.Set("Content-Type", "application/json")
	}
	return c.send(method, path, header, strings.NewReader(body))
}

// want sends a request to the control plane that must have a status.
func (c *client) want(status int, method, path, body string) answer {
	c.t.Helper()
	a := c.control(method, path, body)
	require.Equal(c.t, status, a.status, "%s %s %s: %s", method, path, body, a.body)
	if status >= 400 {
		require.EqualValues(c.t, status, a.object(c.t)["code"], "clients go by the code in the body")
		require.NotEmpty(c.t, a.object(c.t)["message"])
	}
	return a
}

// sandbox is a sandbox as its creator knows it.
type sandbox struct {
	*client
	id, token string
}

func (c *client) create(body string) *sandbox {
	c.t.Helper()
	o := c.want(201, "POST", "/v2/sandboxes", body).object(c.t)
	return &sandbox{client: c, id: o["sandboxID"].(string), token: o["envdAccessToken"].(string)}
}

func (c *client) base() *sandbox {
	c.t.Helper()
	return c.create(`{"templateID":"base"}`)
}

// info is what the server's own account says.
func (s *sandbox) info() e2btest.Sandbox {
	s.t.Helper()
	for _, sb := range s.server.Sandboxes() {
		if sb.ID == s.id {
			return sb
		}
	}
	s.t.Fatalf("sandbox %s does not exist", s.id)
	return e2btest.Sandbox{}
}

func (s *sandbox) exists() bool {
	for _, sb := range s.server.Sandboxes() {
		if sb.ID == s.id {
			return true
		}
	}
	return false
}

// home is a path on disk.
func (s *sandbox) home(name string) string { return filepath.Join(s.info().Dir, "home/user", name) }

func (s *sandbox) snapshot() string {
	s.t.Helper()
	return s.want(201, "POST", "/sandboxes/"+s.id+"/snapshots", `{}`).object(s.t)["snapshotID"].(string)
}

func (s *sandbox) header() http.Header {
	return http.Header{"E2b-Sandbox-Id": {s.id}, "E2b-Sandbox-Port": {"49983"}, "X-Access-Token": {s.token}}
}

// envd sends a request to envd, with headers over the usual ones; an empty one takes one out.
func (s *sandbox) envd(method, path string, header map[string]string, body []byte) answer {
	s.t.Helper()
	a, err := s.tryEnvd(method, path, header, body)
	require.NoError(s.t, err)
	return a
}

func (s *sandbox) tryEnvd(method, path string, header map[string]string, body []byte) (answer, error) {
	all := s.header()
	for name, value := range header {
		all.Del(name)
		if value != "" {
			all.Set(name, value)
		}
	}
	return s.send(method, path, all, bytes.NewReader(body))
}

func (s *sandbox) write(name, content string) {
	s.t.Helper()
	a := s.envd("POST", "/files?path="+name, map[string]string{"Content-Type": "application/octet-stream"}, []byte(content))
	require.Equal(s.t, 200, a.status, "%s", a.body)
}

func (s *sandbox) read(name string) string {
	s.t.Helper()
	a := s.envd("GET", "/files?path="+name, nil, nil)
	require.Equal(s.t, 200, a.status, "%s", a.body)
	return string(a.body)
}

// call makes a unary call.
func (s *sandbox) call(method, body string) answer {
	s.t.Helper()
	return s.envd("POST", "/"+method, map[string]string{"Content-Type": "application/json", "Connect-Protocol-Version": "1"}, []byte(body))
}

func envelope(flags byte, text string) []byte {
	e := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text)))
	return append(e, text...)
}

// stream is a stream of events, the first of which, start, has been read.
type stream struct {
	t    *testing.T
	body io.ReadCloser
	pid  int
}

// open starts a stream whose first event is start.
func (s *sandbox) open(ctx context.Context, method, body string, header map[string]string) *stream {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", s.server.URL()+"/process.Process/"+method, bytes.NewReader(envelope(0, body)))
	require.NoError(s.t, err)
	req.Header = s.header()
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := s.http.Do(req)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(s.t, 200, resp.StatusCode)
	st := &stream{t: s.t, body: resp.Body}
	event, end, err := st.next()
	require.NoError(s.t, err)
	require.Nil(s.t, end, "the stream ended: %v", end)
	start, ok := event["start"].(object)
	require.True(s.t, ok, "the first event is %v", event)
	st.pid = int(start["pid"].(float64))
	return st
}

// next reads an event, or what ends the stream.
func (st *stream) next() (event, end object, err error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(st.body, head); err != nil {
		return nil, nil, err
	}
	text := make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := io.ReadFull(st.body, text); err != nil {
		return nil, nil, err
	}
	var message object
	require.NoError(st.t, json.Unmarshal(text, &message), "%s", text)
	if head[0] == 2 {
		return nil, message, nil
	}
	require.Zero(st.t, head[0])
	return message["event"].(object), nil, nil
}

// result is what a stream said until its end.
type result struct {
	stdout, stderr string
	end            object // the end event
	failed         object // the error of the stream
	keepalives     int
}

func (st *stream) rest() (r result, err error) {
	for {
		event, end, err := st.next()
		if err != nil {
			return r, err
		}
		if end != nil {
			r.failed, _ = end["error"].(object)
			return r, nil
		}
		if data, ok := event["data"].(object); ok {
			r.stdout += decode64(st.t, data["stdout"])
			r.stderr += decode64(st.t, data["stderr"])
		}
		if last, ok := event["end"].(object); ok {
			r.end = last
		}
		if _, ok := event["keepalive"]; ok {
			r.keepalives++
		}
	}
}

func decode64(t *testing.T, v any) string {
	if v == nil {
		return ""
	}
	text, err := base64.StdEncoding.DecodeString(v.(string))
	require.NoError(t, err)
	return string(text)
}

func startBody(command string) string {
	text, _ := json.Marshal(object{"process": object{"cmd": "/bin/sh", "args": []string{"-c", command}}, "stdin": false})
	return string(text)
}

// start starts a command whose stream the test reads.
func (s *sandbox) start(command string) *stream {
	s.t.Helper()
	return s.open(s.t.Context(), "Start", startBody(command), nil)
}

// run runs a command to its end.
func (s *sandbox) run(command string) result {
	s.t.Helper()
	r, err := s.start(command).rest()
	require.NoError(s.t, err)
	require.Nil(s.t, r.failed)
	return r
}

// processState is what ps says of a process, or "" when there is none.
func processState(pid int) string {
	out, _ := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return strings.TrimSpace(string(out))
}

func requireState(t *testing.T, pid int, states string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.ContainsAny(processState(pid)+"-", states) }, patience, 5*time.Millisecond,
		"process %d is %q, not one of %q", pid, processState(pid), states)
}

const (
	frozen = "T"
	alive  = "SRD"
	dead   = "-Z" // a killed orphan is the system's to reap
)

// readPID waits for a process id that a command writes to a file in the home directory.
func (s *sandbox) readPID(name string) int {
	s.t.Helper()
	var pid int
	require.Eventually(s.t, func() bool {
		text, err := os.ReadFile(s.home(name))
		if err != nil || !strings.HasSuffix(string(text), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	}, patience, 5*time.Millisecond)
	return pid
}

// soon runs something that has to wait, and gives its answer.
func soon[T any](f func() T) <-chan T {
	done := make(chan T, 1)
	go func() { done <- f() }()
	return done
}
