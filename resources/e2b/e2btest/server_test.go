package e2btest_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources/e2b/e2btest"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	sb.write("f", strings.Repeat("x", 1000))

	t.Run("status", func(t *testing.T) {
		c := &client{t, c.server, c.http}
		c.server.Fail(e2btest.Fault{Method: "GET", Path: "/sandboxes/*", Status: 429, RetryAfter: 1500 * time.Millisecond})
		c.server.Fail(e2btest.Fault{Method: "GET", Path: "/sandboxes/*", Status: 503, Times: 2})
		path := "/sandboxes/" + sb.id
		require.Equal(t, "2", c.want(429, "GET", path, "").header.Get("Retry-After"))
		require.NotContains(t, c.want(503, "GET", path, "").header, "Retry-After")
		c.want(204, "POST", path+"/timeout", `{"timeout":300}`)
		c.want(503, "GET", path, "")
		c.want(200, "GET", path, "")
	})
	t.Run("always and by prefix", func(t *testing.T) {
		c := setup(t, e2btest.Options{})
		sb := c.base()
		c.server.Fail(e2btest.Fault{Path: "/process.Process/", Status: 502, Times: -1})
		for range 3 {
			a := sb.call("process.Process/List", "{}")
			require.Equal(t, 502, a.status)
			require.Equal(t, sb.id, a.object(t)["sandboxId"])
		}
		require.Equal(t, 404, sb.call("filesystem.Filesystem/Stat", `{"path":"x"}`).status)
	})
	t.Run("answer lost", func(t *testing.T) {
		c := &client{t, c.server, c.http}
		before := len(c.server.Sandboxes())
		c.server.Fail(e2btest.Fault{Path: "/v2/sandboxes", CutAfter: -1})
		_, err := c.tryControl("POST", "/v2/sandboxes", `{"templateID":"base"}`)
		require.Error(t, err)
		require.Len(t, c.server.Sandboxes(), before+1, "it was done")
		c.server.Fail(e2btest.Fault{Path: "/sandboxes/*", Method: "DELETE", CutAfter: -1})
		_, err = c.tryControl("DELETE", "/sandboxes/"+c.server.Sandboxes()[before].ID, "")
		require.Error(t, err)
		require.Len(t, c.server.Sandboxes(), before)
	})
	t.Run("answer cut", func(t *testing.T) {
		c.server.Fail(e2btest.Fault{Path: "/files", CutAfter: 10})
		a, err := sb.tryEnvd("GET", "/files?path=f", map[string]string{"Accept-Encoding": "identity"}, nil)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Len(t, a.body, 10)

		// In the midst of a stream: the command goes on.
		c.server.Fail(e2btest.Fault{Path: "/process.Process/Start", CutAfter: 60})
		st := sb.start("echo one; until [ -e go ]; do sleep 0.01; done; echo two")
		_, err = st.rest()
		require.Error(t, err)
		again := sb.open(t.Context(), "Connect", fmt.Sprintf(`{"process":{"pid":%d}}`, st.pid), nil)
		sb.write("go", "")
		r, err := again.rest()
		require.NoError(t, err)
		require.Equal(t, "two\n", r.stdout)

		// After all of it, in which case only its end is missing.
		c.server.Fail(e2btest.Fault{Path: "/process.Process/Start", CutAfter: 1 << 20})
		r, err = sb.start("echo all").rest()
		require.NoError(t, err, "the last envelope has arrived")
		require.Equal(t, "all\n", r.stdout)
	})
	t.Run("delay", func(t *testing.T) {
		const delay = 100 * time.Millisecond
		c := &client{t, c.server, c.http}
		c.server.Fail(e2btest.Fault{Method: "GET", Path: "/snapshots", Delay: delay})
		began := time.Now()
		c.want(200, "GET", "/snapshots", "")
		require.GreaterOrEqual(t, time.Since(began), delay)
	})
	require.Panics(t, func() { c.server.Fail(e2btest.Fault{Path: "["}) })
}

func TestLose(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	st := sb.start("exec sleep 1000")
	dir := sb.info().Dir
	c.server.Lose(sb.id)
	_, err := st.rest()
	require.Error(t, err)
	requireState(t, st.pid, dead)
	require.NoDirExists(t, dir)
	require.Equal(t, 502, sb.envd("GET", "/health", nil, nil).status)
	c.want(404, "POST", "/v2/sandboxes/"+sb.id+"/connect", "{}")
	c.want(404, "DELETE", "/sandboxes/"+sb.id, "")
	c.server.Lose(sb.id)

	paused := c.base()
	c.want(204, "POST", "/sandboxes/"+paused.id+"/pause", "")
	c.server.Lose(paused.id)
	c.want(404, "POST", "/v2/sandboxes/"+paused.id+"/connect", "{}")
}

func TestRequests(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	sb.write("d%2Ff", strings.Repeat("x", 100<<10))
	sb.call("filesystem.Filesystem/Stat", `{"path":"x"}`)
	got := c.server.Requests()
	require.Len(t, got, 3)
	require.Equal(t, "POST", got[0].Method)
	require.Equal(t, "/v2/sandboxes", got[0].Path)
	require.JSONEq(t, `{"templateID":"base"}`, string(got[0].Body))
	require.Equal(t, "REDACTED", got[0].Header.Get("X-API-Key"))
	require.Equal(t, "application/json", got[0].Header.Get("Content-Type"))
	require.Equal(t, "path=d%2Ff", got[1].Query)
	require.Len(t, got[1].Body, 16<<10)
	require.Equal(t, "REDACTED", got[2].Header.Get("X-Access-Token"))
	require.NotContains(t, fmt.Sprint(got), c.server.APIKey())
	require.NotContains(t, fmt.Sprint(got), sb.token)
}

func TestClose(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "emulator")
	kept, err := e2btest.New(e2btest.Options{Dir: dir, APIKey: "e2b_0123"})
	require.NoError(t, err)
	require.Equal(t, "e2b_0123", kept.APIKey())
	passing := setup(t, e2btest.Options{})
	var pids []int
	for _, s := range []*e2btest.Server{kept, passing.server} {
		sb := (&client{t, s, passing.http}).base()
		require.Contains(t, sb.info().Dir, map[*e2btest.Server]string{kept: dir}[s])
		pids = append(pids, sb.start("trap '' TERM INT HUP; while :; do sleep 1; done").pid)
		sb.start(`setsid sh -c 'echo $$ >daemon; exec sleep 1000'`)
		pids = append(pids, sb.readPID("daemon"))
	}
	temp := passing.server.Sandboxes()[0].Dir
	for _, s := range []*e2btest.Server{kept, passing.server} {
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		_, err := http.Get(s.URL() + "/health")
		require.Error(t, err)
	}
	for _, pid := range pids {
		requireState(t, pid, dead)
	}
	require.NoDirExists(t, temp)
	require.NoDirExists(t, filepath.Dir(filepath.Dir(filepath.Dir(temp))))
	require.DirExists(t, dir)
}

// TestConcurrency does to one sandbox from many sides what its state forbids half of the time. What is
// refused is refused with a status that clients know.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	sb.write("f", "x")
	operations := []struct {
		method, path, body string
		statuses           []int
	}{
		{"POST", "/sandboxes/" + sb.id + "/pause", "", []int{204, 409}},
		{"POST", "/v2/sandboxes/" + sb.id + "/connect", "{}", []int{200, 201}},
		{"POST", "/sandboxes/" + sb.id + "/snapshots", `{"name":"n"}`, []int{201, 404, 409}},
		{"PUT", "/sandboxes/" + sb.id + "/network", "{}", []int{204, 404, 409}},
		{"POST", "/sandboxes/" + sb.id + "/timeout", `{"timeout":300}`, []int{204, 404}},
		{"GET", "/v2/sandboxes?metadata=a%3Db", "", []int{200}},
		{"GET", "/sandboxes/" + sb.id, "", []int{200}},
		{"GET", "/snapshots", "", []int{200}},
		{"POST", "/v2/sandboxes", `{"templateID":"n"}`, []int{201, 404}},
	}
	var all sync.WaitGroup
	for _, o := range operations {
		all.Go(func() {
			for range 20 {
				a, err := c.tryControl(o.method, o.path, o.body)
				if err != nil || !slices.Contains(o.statuses, a.status) {
					t.Errorf("%s %s: %d %s %v", o.method, o.path, a.status, a.body, err)
				}
			}
		})
	}
	for range 3 {
		all.Go(func() {
			for i := range 20 {
				// The sandbox may be paused at any time, which cuts.
				a, err := sb.tryEnvd("GET", "/files?path=f", nil, nil)
				if err == nil && a.status != 200 && a.status != 502 {
					t.Errorf("read: %d %s", a.status, a.body)
				}
				_, _ = sb.tryEnvd("POST", "/process.Process/Start",
					map[string]string{"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"},
					envelope(0, startBody(fmt.Sprintf("echo %d >n; sleep 0.01 &", i))))
			}
		})
	}
	all.Wait()
	dir := sb.info().Dir
	c.want(204, "DELETE", "/sandboxes/"+sb.id, "")
	require.NoDirExists(t, dir)
}
