package e2btest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources/e2b/e2btest"
)

// repository serves a git repository to those who have a token.
func repository(t *testing.T, token string) *httptest.Server {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"init", "-q", "work"},
		{"-C", "work", "-c", "user.name=n", "-c", "user.email=e@example.com", "commit", "-q", "--allow-empty", "-m", "first commit"},
		{"clone", "-q", "--bare", "work", "repo.git"},
		{"-C", "repo.git", "update-server-info"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "git %v: %s", args, out)
	}
	files := http.FileServer(http.Dir(dir))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

// TestEgress clones a repository in a sandbox that never has the credential.
func TestEgress(t *testing.T) {
	t.Parallel()
	const secret = "not-for-the-sandbox"
	origin := repository(t, secret)
	c := setup(t, e2btest.Options{Egress: map[string]string{"git.example.com": origin.URL}})
	network := func(token string) string {
		return fmt.Sprintf(`{"allowOut":["git.example.com"],"denyOut":["0.0.0.0/0"],
			"rules":{"git.example.com":[{"transform":{"headers":{"Authorization":"Bearer %s"}}}]}}`, token)
	}
	sb := c.create(`{"templateID":"base","network":` + network(secret) + `}`)
	r := sb.run(`git clone -q http://git.example.com/repo.git && git -C repo log --format=%s && env && cat repo/.git/config`)
	require.Equal(t, true, r.end["exited"], r.stderr)
	require.True(t, strings.HasPrefix(r.stdout, "first commit\n"), "%s%s", r.stdout, r.stderr)
	require.NotContains(t, r.stdout+r.stderr, secret)

	clone := func(sb *sandbox, name string) (code any) {
		return sb.run("git clone -q http://git.example.com/repo.git " + name).end["exitCode"]
	}
	// The rules are those of the sandbox, and of now.
	c.want(204, "PUT", "/sandboxes/"+sb.id+"/network", network("expired"))
	require.NotNil(t, clone(sb, "second"))
	c.want(204, "PUT", "/sandboxes/"+sb.id+"/network", network(secret))
	require.Nil(t, clone(sb, "third"))
	require.NotNil(t, clone(c.base(), "other"))
	c.want(204, "PUT", "/sandboxes/"+sb.id+"/network", `{"denyOut":["0.0.0.0/0"]}`)
	require.NotNil(t, clone(sb, "fourth"))
}

func TestEgressProxy(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got *http.Request
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = r
	}))
	t.Cleanup(target.Close)
	c := setup(t, e2btest.Options{Egress: map[string]string{"Api.example.com": target.URL + "/base", "api.example.com:8080": target.URL}})
	sb := c.create(`{"templateID":"base","network":{"rules":{"*.example.com":[{"transform":{"headers":{"X-Key":"injected"}}}]}}}`)
	lines := strings.Split(sb.run(`echo "$http_proxy"; echo "$HTTP_PROXY$https_proxy"; echo "$no_proxy"`).stdout, "\n")
	require.True(t, strings.HasSuffix(lines[0], strings.TrimPrefix(c.server.URL(), "http://")), lines[0])
	require.Empty(t, lines[1])
	require.Contains(t, lines[2], "127.0.0.1")

	proxy, err := url.Parse(c.server.URL())
	require.NoError(t, err)
	client := &http.Transport{Proxy: http.ProxyURL(proxy)}
	t.Cleanup(client.CloseIdleConnections)
	request := func(method, target, user, password string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, target, nil)
		require.NoError(t, err)
		req.SetBasicAuth(user, password)
		req.Header["Proxy-Authorization"] = req.Header["Authorization"]
		req.Header.Set("Authorization", "the sandbox's own")
		req.Header.Set("X-Key", "of the sandbox")
		resp, err := client.RoundTrip(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		return resp.StatusCode
	}
	require.Equal(t, 200, request("POST", "http://api.example.com/path?q=1", sb.id, sb.token))
	mu.Lock()
	require.Equal(t, "/base/path", got.URL.Path)
	require.Equal(t, "q=1", got.URL.RawQuery)
	require.Equal(t, "api.example.com", got.Host)
	require.Equal(t, []string{"injected"}, got.Header["X-Key"])
	require.Equal(t, "the sandbox's own", got.Header.Get("Authorization"))
	require.NotContains(t, got.Header, "Proxy-Authorization")
	mu.Unlock()
	require.Equal(t, 200, request("GET", "http://API.example.com:80/", sb.id, sb.token))
	require.Equal(t, 200, request("GET", "http://api.example.com:8080/", sb.id, sb.token))
	require.Equal(t, 502, request("GET", "http://api.example.com:81/", sb.id, sb.token))
	require.Equal(t, 502, request("GET", "http://other.example.com/", sb.id, sb.token))
	require.Equal(t, 407, request("GET", "http://api.example.com/", sb.id, "wrong"))
	require.Equal(t, 407, request("GET", "http://api.example.com/", "inope", sb.token))
	c.want(204, "PUT", "/sandboxes/"+sb.id+"/network", `{"allow_internet_access":false}`)
	require.Equal(t, 403, request("GET", "http://api.example.com/", sb.id, sb.token))
	c.want(204, "PUT", "/sandboxes/"+sb.id+"/network", `{"allow_internet_access":false,"allowOut":["api.example.com"],"denyOut":["0.0.0.0/0"]}`)
	require.Equal(t, 200, request("GET", "http://api.example.com/", sb.id, sb.token))
	for _, r := range c.server.Requests() {
		require.NotEqual(t, "/path", r.Path)
	}
}
