//go:build unix

package devserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

const goodVersion = "echo 'temporal version 1.5.1 (Server 1.29.1, UI 2.42.1)'"

// fixture is a finder that finds nothing on PATH and builds a script.
type fixture struct {
	*finder
	said   *buffer
	builds atomic.Int32
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{said: &buffer{}}
	f.finder = &finder{
		dir:      filepath.Join(t.TempDir(), "bin"),
		progress: f.said,
		lookPath: func(string) (string, error) { return "", exec.ErrNotFound },
		probe:    probe,
		build: func(_ context.Context, dir string, _ io.Writer) error {
			f.builds.Add(1)
			script(t, dir, "temporal", goodVersion)
			return nil
		},
	}
	return f
}

// onPath puts a script on the PATH that the finder looks at.
func (f *fixture) onPath(t *testing.T, body string) string {
	path := script(t, t.TempDir(), "temporal", body)
	f.lookPath = func(string) (string, error) { return path, nil }
	return path
}

// files are all that is in the cache.
func (f *fixture) files(t *testing.T) []string {
	entries, err := os.ReadDir(f.dir)
	require.NoError(t, err)
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestFind(t *testing.T) {
	t.Parallel()
	ctx := context.Background()

	t.Run("takes the one on PATH", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		installed := f.onPath(t, goodVersion)
		got, err := f.find(ctx)
		require.NoError(t, err)
		require.Equal(t, installed, got)
		require.Empty(t, f.said.String())
		require.NoDirExists(t, f.dir)
	})

	t.Run("builds once and then takes the cached one", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		for range 2 {
			got, err := f.find(ctx)
			require.NoError(t, err)
			require.Equal(t, f.cached(), got)
		}
		require.EqualValues(t, 1, f.builds.Load())
		require.Equal(t, []string{"temporal-v1.5.1"}, f.files(t))
		require.Contains(t, f.said.String(), "no temporal on PATH, so temporal v1.5.1 is built with Go, once")
	})

	for name, refused := range map[string]struct{ body, why string }{
		"old":     {"echo 'temporal version 1.1.1 (Server 1.25.1, UI 2.31.2)'", "it has Temporal server 1.25, and Tine needs 1.28"},
		"older":   {"echo 'temporal version 0.10.7 (server 1.22.0) (ui 2.17.2)'", "it has Temporal server 1.22"},
		"foreign": {"echo 'temporal 3: a calendar'", "does not answer as Temporal's CLI does"},
		"broken":  {"exit 7", "exit status 7"},
	} {
		t.Run("does not take one on PATH that is "+name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			installed := f.onPath(t, refused.body)
			got, err := f.find(ctx)
			require.NoError(t, err)
			require.Equal(t, f.cached(), got)
			require.Contains(t, f.said.String(), installed+" cannot be used: ")
			require.Contains(t, f.said.String(), refused.why)
		})
	}

	for name, accepted := range map[string]string{
		"same":        goodVersion,
		"go install":  "echo 'temporal version 0.0.0-DEV (Server 1.29.1, UI 2.42.1)'",
		"prerelease":  "echo 'temporal version 1.6.0-rc1 (Server 1.30.0-150.1, UI 2.45.0, abc)'",
		"next server": "echo 'temporal version 2.0.0 (Server 2.0.0, UI 3.0.0)'",
	} {
		t.Run("takes one on PATH that is "+name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			installed := f.onPath(t, accepted)
			got, err := f.find(ctx)
			require.NoError(t, err)
			require.Equal(t, installed, got)
		})
	}

	t.Run("builds a truncated one again", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		self, err := os.ReadFile(os.Args[0])
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(f.dir, 0o755))
		require.NoError(t, os.WriteFile(f.cached(), self[:len(self)/4], 0o755))
		_, err = f.find(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, f.builds.Load())
		require.Contains(t, f.said.String(), "what was built before cannot be used")
		require.NoError(t, probe(ctx, f.cached()))
	})

	t.Run("clears up after a build that was killed", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		left := filepath.Join(f.dir, ".building-123")
		require.NoError(t, os.MkdirAll(left, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(left, "temporal"), []byte("half"), 0o755))
		require.NoError(t, os.WriteFile(f.cached()+".lock", nil, 0o600))
		_, err := f.find(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"temporal-v1.5.1"}, f.files(t))
	})

	t.Run("leaves nothing behind when the build fails, and tries again", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		build := f.build
		f.build = func(_ context.Context, dir string, _ io.Writer) error {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "half"), nil, 0o644))
			return errors.New("no network")
		}
		_, err := f.find(ctx)
		require.ErrorContains(t, err, "build temporal v1.5.1: no network; or install temporal")
		require.Empty(t, f.files(t))

		f.build = build
		_, err = f.find(ctx)
		require.NoError(t, err)
	})

	t.Run("does not keep a build that does not run", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.build = func(_ context.Context, dir string, _ io.Writer) error {
			script(t, dir, "temporal", "exit 1")
			return nil
		}
		_, err := f.find(ctx)
		require.ErrorContains(t, err, "the program that was built does not run")
		require.Empty(t, f.files(t))
	})
}

func TestFindTogether(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var building atomic.Int32
	build := f.build
	release := make(chan struct{})
	f.build = func(ctx context.Context, dir string, w io.Writer) error {
		require.EqualValues(t, 1, building.Add(1), "two builds at once")
		defer building.Add(-1)
		<-release
		return build(ctx, dir, w)
	}
	var group errgroup.Group
	for range 5 {
		group.Go(func() error {
			_, err := f.find(context.Background())
			return err
		})
	}
	require.Eventually(t, func() bool {
		return strings.Count(f.said.String(), "waiting for another process that is building") == 4
	}, 10*time.Second, 10*time.Millisecond)
	close(release)
	require.NoError(t, group.Wait())
	require.EqualValues(t, 1, f.builds.Load())
	require.Equal(t, []string{"temporal-v1.5.1"}, f.files(t))
}

func TestFindWaitsForAnotherProcess(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, os.MkdirAll(f.dir, 0o755))
	other, line, _ := helper(t, "lock="+f.cached()+".lock")
	require.Equal(t, "locked", line)

	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := f.find(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Contains(t, f.said.String(), "waiting for another process that is building temporal v1.5.1")
	require.Zero(t, f.builds.Load())

	found := make(chan error, 1)
	go func() {
		_, err := f.find(context.Background())
		found <- err
	}()
	require.NoError(t, other.Kill()) // which gives the lock up
	require.NoError(t, <-found)
	require.EqualValues(t, 1, f.builds.Load())
}

func TestProgramLooksOnPathAndThenInTheCache(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache) // where Linux looks
	t.Setenv("HOME", cache)           // where others do
	dir := t.TempDir()
	t.Setenv("PATH", dir+string(os.PathListSeparator)+"/bin:/usr/bin")
	installed := script(t, dir, "temporal", goodVersion)
	got, err := Program(context.Background(), nil)
	require.NoError(t, err)
	require.Equal(t, installed, got)

	require.NoError(t, os.Remove(installed))
	user, err := os.UserCacheDir()
	require.NoError(t, err)
	bin := filepath.Join(user, "tine", "bin")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	built := script(t, bin, "temporal-v1.5.1", goodVersion)
	got, err = Program(context.Background(), nil)
	require.NoError(t, err)
	require.Equal(t, built, got)
}

// buffer is a bytes.Buffer for several writers.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
