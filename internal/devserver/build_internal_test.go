//go:build unix

package devserver

import (
	"archive/zip"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hostile makes an environment in which a plain `go install` fails or builds something else.
func hostile(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("go.mod", []byte("module broken\n\nrequire example.com/gone v9.9.9\n"), 0o644))
	require.NoError(t, os.WriteFile("go.work", []byte("go 1.26\n\nuse ./nowhere\n"), 0o644))
	settings := filepath.Join(dir, "goenv")
	require.NoError(t, os.WriteFile(settings, []byte("GOARCH=riscv64\nGOFLAGS=-mod=vendor\n"), 0o644))
	t.Setenv("GOENV", settings)
	t.Setenv("GOWORK", filepath.Join(dir, "go.work"))
	t.Setenv("GOFLAGS", "-mod=vendor -tags=changed -modcacherw")
	t.Setenv("GOOS", "plan9")
	t.Setenv("GOARCH", "386")
	t.Setenv("CGO_ENABLED", "1")
	t.Setenv("CC", "/nonexistent")
	t.Setenv("GO111MODULE", "off")
	t.Setenv("GOBIN", filepath.Join(dir, "elsewhere"))
	t.Setenv("GOMODCACHE", filepath.Join(t.TempDir(), "mod"))
	t.Setenv("GOTOOLCHAIN", "local")
	t.Setenv("GOSUMDB", "off")
}

// moduleProxy is a Go module proxy in a directory, with one module that has one program.
func moduleProxy(t *testing.T) string {
	root := t.TempDir()
	dir := filepath.Join(root, "example.com", "prog", "@v")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	const mod = "module example.com/prog\n\ngo 1.21\n"
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("list", "v1.0.0\n")
	write("v1.0.0.info", `{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}`)
	write("v1.0.0.mod", mod)
	file, err := os.Create(filepath.Join(dir, "v1.0.0.zip"))
	require.NoError(t, err)
	archive := zip.NewWriter(file)
	for name, text := range map[string]string{
		"go.mod":     mod,
		"main.go":    "package main\n\nvar version = \"none\"\n\nfunc main() { println(version, kind) }\n",
		"plain.go":   "//go:build !changed\n\npackage main\n\nconst kind = \"plain\"\n",
		"changed.go": "//go:build changed\n\npackage main\n\nconst kind = \"changed\"\n",
	} {
		w, err := archive.Create("example.com/prog@v1.0.0/" + name)
		require.NoError(t, err)
		_, err = w.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	require.NoError(t, file.Close())
	return "file://" + root
}

func TestInstallIgnoresTheEnvironment(t *testing.T) {
	hostile(t)
	t.Setenv("GOPROXY", moduleProxy(t))
	said := &buffer{}
	dir := t.TempDir()
	err := install{target: "example.com/prog@v1.0.0", ldflags: "-X main.version=1.2.3", dir: dir, progress: said}.run(context.Background())
	require.NoError(t, err)
	require.Contains(t, said.String(), "go install example.com/prog@v1.0.0")
	out, err := exec.Command(filepath.Join(dir, "prog")).CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "1.2.3 plain\n", string(out))
}

func TestInstallOffline(t *testing.T) {
	hostile(t)
	t.Setenv("GOPROXY", "off")
	f := newFixture(t)
	f.build = goInstall
	began := time.Now()
	_, err := f.find(context.Background())
	require.ErrorContains(t, err, "build temporal v1.5.1: go install github.com/temporalio/cli/cmd/temporal@v1.5.1: exit status 1")
	require.ErrorContains(t, err, "module lookup disabled by GOPROXY=off")
	require.ErrorContains(t, err, "make a Go module proxy reachable (GOPROXY); or install temporal")
	require.Less(t, time.Since(began), 20*time.Second)
	require.Empty(t, f.files(t))
}

func TestInstallWithoutGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := goInstall(context.Background(), t.TempDir(), &buffer{})
	require.ErrorContains(t, err, "it takes Go (https://go.dev/dl), and there is no go command")
}

func TestInstallCancelled(t *testing.T) {
	bin := t.TempDir()
	pids := filepath.Join(t.TempDir(), "pids")
	// A go command that compiles for ever, in a process of its own.
	script(t, bin, "go", `[ "$1" = env ] && { echo '{}'; exit; }
sleep 1000 &
echo "$! $$" >`+pids+`
wait`)
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	f := newFixture(t)
	f.build = goInstall
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	found := make(chan error, 1)
	go func() {
		_, err := f.find(ctx)
		found <- err
	}()
	var group int
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(pids)
		if err != nil || !strings.HasSuffix(string(text), "\n") {
			return false
		}
		_, after, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		group = atoi(t, after)
		return true
	}, 10*time.Second, 10*time.Millisecond)
	cancel()
	err := <-found
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, err.Error(), "install temporal (")
	require.Empty(t, f.files(t))
	requireGroupGone(t, group)
}

func TestKeepFlags(t *testing.T) {
	t.Parallel()
	require.Equal(t, "-modcacherw --p=2", keepFlags("-mod=mod -modcacherw --p=2 -modfile=x.mod -tags=a,b -race"))
	require.Empty(t, keepFlags(""))
}

func TestBuildLog(t *testing.T) {
	t.Parallel()
	log := &buildLog{}
	for _, part := range []string{
		"go: downloading example.com/a v1.0.0\ngo: down", "loading example.com/b v1.0.0\n",
		"example.com/a\nexample.com/b/c\n# example.com/b/d\n", "d.go:1:1: undefined: x\n",
	} {
		_, err := log.Write([]byte(part))
		require.NoError(t, err)
	}
	require.Equal(t, "2 modules downloaded, 2 packages compiled", log.summary())
	require.Equal(t, "# example.com/b/d\nd.go:1:1: undefined: x", log.tail.String())
}

// requireGroupGone waits for the end of every process of a group. What the group's leader left
// is the system's to reap, so it may be seen for a moment.
func requireGroupGone(t *testing.T, group int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return syscall.Kill(-group, 0) == syscall.ESRCH || !groupRuns(group)
	}, 10*time.Second, 10*time.Millisecond)
}
