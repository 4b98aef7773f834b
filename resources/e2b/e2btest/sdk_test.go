package e2btest_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources/e2b/e2btest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	sdkDir = "testdata/sdk"
	// requireNode makes a machine without Node.js fail the test that it would skip.
	requireNode = "TINE_REQUIRE_NODE"
	sdkTimeout  = 5 * time.Minute
)

// TestSDK drives the emulator with E2B's own SDK for JavaScript, and holds the shape of what the SDK
// sends to a golden file: what the emulator accepts is what a client really sends.
func TestSDK(t *testing.T) {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv(requireNode) == "1" {
				t.Fatalf("%s=1, and there is no %s on PATH", requireNode, program)
			}
			t.Skipf("there is no %s on PATH, so the emulator is not held to E2B's own SDK; %s=1 makes this fail", program, requireNode)
		}
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), sdkTimeout)
	defer cancel()
	modules := installSDK(t, ctx)
	server, err := e2btest.New(e2btest.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	// The SDK tries again by itself, because the answer says when.
	server.Fail(e2btest.Fault{Method: "POST", Path: "/v2/sandboxes", Status: 429, RetryAfter: time.Second})

	// Node finds packages next to the script, which may not be next to the sources.
	dir := t.TempDir()
	script, err := os.ReadFile(filepath.Join(sdkDir, "scenario.mjs"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "scenario.mjs"), script, 0o644))
	require.NoError(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	cmd := exec.CommandContext(ctx, "node", "scenario.mjs")
	cmd.Dir = dir
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "E2B_") && !strings.HasPrefix(strings.ToLower(entry), "http_proxy=") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env,
		"E2B_API_KEY="+server.APIKey(), "E2B_API_URL="+server.URL(), "E2B_SANDBOX_URL="+server.URL())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "done\n", string(out))

	require.Empty(t, server.Sandboxes())
	require.Empty(t, server.Snapshots())
	requireGolden(t, filepath.Join(sdkDir, "requests.golden"), shapes(server.Requests()))
	for _, r := range server.Requests() {
		require.NotContains(t, fmt.Sprint(r.Header), server.APIKey())
	}
}

// installSDK puts the SDK into the user's cache, once for each package-lock.json, and returns its
// node_modules.
func installSDK(t *testing.T, ctx context.Context) string {
	t.Helper()
	lockFile, err := os.ReadFile(filepath.Join(sdkDir, "package-lock.json"))
	require.NoError(t, err)
	require.NotContains(t, string(lockFile), `"resolved"`, "the lock file must not name a registry; see npm's omit-lockfile-registry-resolved")
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	sum := sha256.Sum256(lockFile)
	root := filepath.Join(cache, "tine", "e2b-sdk")
	target := filepath.Join(root, hex.EncodeToString(sum[:8]))
	modules := filepath.Join(target, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules
	}
	require.NoError(t, os.MkdirAll(root, 0o755))
	lock := flock.New(target + ".lock")
	if locked, err := lock.TryLock(); err == nil && !locked {
		t.Log("waiting for another process that installs E2B's SDK")
	}
	locked, err := lock.TryLockContext(ctx, 200*time.Millisecond)
	require.NoError(t, err)
	require.True(t, locked)
	defer func() { _ = lock.Close() }()
	if _, err := os.Stat(modules); err == nil {
		return modules
	} else if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}

	t.Logf("installing E2B's SDK with npm ci, once, into %s", target)
	dir, err := os.MkdirTemp(root, ".installing-*")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join(sdkDir, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "npm ci: %s", out)
	require.NoError(t, os.Rename(dir, target))
	return modules
}

var (
	sandboxIDs = regexp.MustCompile(`\bi[a-z0-9]{20}\b`)
	otherIDs   = regexp.MustCompile(`\b[a-z0-9]{20}\b`)
	headerList = []string{
		"Content-Type", "Content-Encoding", "X-Api-Key", "X-Access-Token", "Authorization",
		"E2b-Sandbox-Port", "Connect-Protocol-Version", "Connect-Timeout-Ms", "Keepalive-Ping-Interval",
	}
)

// shapes are the distinct kinds of requests in the order of their first appearance: method, path, names
// of parameters, and the headers that matter.
func shapes(requests []e2btest.Request) string {
	var out strings.Builder
	seen := map[string]bool{}
	for _, r := range requests {
		path := otherIDs.ReplaceAllString(sandboxIDs.ReplaceAllString(r.Path, "{sandboxID}"), "{templateID}")
		var names []string
		for _, part := range strings.Split(r.Query, "&") {
			name, value, _ := strings.Cut(part, "=")
			if name == "state" || name == "metadata" {
				name += "=" + value
			}
			names = append(names, name)
		}
		shape := r.Method + " " + path
		if r.Query != "" {
			shape += "?" + strings.Join(names, "&")
		}
		shape += "\n"
		for _, name := range headerList {
			if value := r.Header.Get(name); value != "" {
				value, _, _ = strings.Cut(value, "; boundary=")
				shape += "    " + name + ": " + value + "\n"
			}
		}
		if !seen[shape] {
			seen[shape] = true
			out.WriteString(shape)
		}
	}
	return out.String()
}

func requireGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); -update rewrites it:\n%s", path, diff)
	}
}
