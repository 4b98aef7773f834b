//go:build linux

package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// testbed is a store with room for directories beside it.
type testbed struct {
	store *Store
	root  string
}

func setup(t testing.TB) *testbed {
	t.Helper()
	root := t.TempDir()
	makeRemovable(t, root)
	return &testbed{store: openStore(t, root), root: root}
}

func openStore(t testing.TB, root string) *Store {
	t.Helper()
	s, err := Open(filepath.Join(root, "store"))
	require.NoError(t, err)
	return s
}

// makeRemovable lets TempDir remove directories that forbid it, as another user than
// root.
func makeRemovable(t testing.TB, root string) {
	t.Cleanup(func() {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				_ = os.Chmod(path, 0o700)
			}
			return nil
		})
	})
}

// memoryDir returns a directory that is removed in the end, in memory if possible,
// for tests that sync thousands of times.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "tine-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	makeRemovable(t, dir)
	return dir
}

// path returns the path of a directory beside the store.
func (b *testbed) path(name string) string { return filepath.Join(b.root, name) }

func (b *testbed) mkdir(t testing.TB, name string) string {
	t.Helper()
	require.NoError(t, os.Mkdir(b.path(name), 0o755))
	return b.path(name)
}

func indexOf(dir string) string { return dir + ".index" }

func (b *testbed) capture(t testing.TB, dir string) string {
	t.Helper()
	ref, err := b.store.Capture(t.Context(), dir, indexOf(dir))
	require.NoError(t, err)
	return ref
}

func (b *testbed) restore(t testing.TB, ref, name string) string {
	t.Helper()
	dir := b.path(name)
	require.NoError(t, b.store.Restore(t.Context(), ref, dir, indexOf(dir)))
	return dir
}

// packs returns the names and the total size of the published packs.
func (b *testbed) packs(t testing.TB) (names []string, size int64) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(b.store.packsDir(), "*"+packSuffix))
	require.NoError(t, err)
	for _, name := range names {
		info, err := os.Stat(name)
		require.NoError(t, err)
		size += info.Size()
	}
	return names, size
}

func write(t testing.TB, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

// settle waits until the files that exist can be told from changed ones by their
// ctime.
func settle() { time.Sleep(racyWindow + 15*time.Millisecond) }

// facts are all that a checkpoint keeps of one file, as text that reads well in a
// diff.
type facts map[string]string

// factsOf looks at a tree with plain calls, sharing no code with the store.
func factsOf(t testing.TB, root string) facts {
	t.Helper()
	found := facts{}
	names := map[uint64][]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		text := fmt.Sprintf("mode %o, owner %d:%d, mtime %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			text += fmt.Sprintf(", size %d, sha256 %s", st.Size, hex.EncodeToString(sum[:8]))
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(", to %q", target)
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			names[st.Ino] = append(names[st.Ino], name)
		}
		found[name] = text + attributesText(path, &st)
		return nil
	})
	require.NoError(t, err)
	for _, group := range names {
		for _, name := range group[1:] {
			found[name] += fmt.Sprintf(", same as %q", group[0])
		}
	}
	return found
}

func attributesText(path string, st *unix.Stat_t) string {
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return ""
	}
	var list, value [4096]byte
	n, err := unix.Llistxattr(path, list[:])
	if err != nil || n == 0 {
		return ""
	}
	var text strings.Builder
	names := strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00")
	slices.Sort(names)
	for _, name := range names {
		if n, err := unix.Lgetxattr(path, name, value[:]); err == nil {
			fmt.Fprintf(&text, ", %s=%x", name, value[:n])
		}
	}
	return text.String()
}

// setMtime sets the mtime of a file or of a symlink itself.
func setMtime(t testing.TB, path string, sec, nsec int64) {
	t.Helper()
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: sec, Nsec: nsec}}
	require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW))
}

func inode(t testing.TB, path string) *syscall.Stat_t {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t)
}

func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// askedContext calls asked whenever someone wants to know whether it is done.
type askedContext struct {
	context.Context
	mu    sync.Mutex
	asked func() error
}

func (c *askedContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked()
}

// nobody is the user without rights.
const nobody = 65534

// runAsNobody runs the calling test as another user than root.
func runAsNobody(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chown(dir, nobody, nobody))
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	// The directory of the test's own binary is closed to others.
	binary := filepath.Join(dir, "test")
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(binary, self, 0o755))
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "as nobody:\n%s", output)
	require.Contains(t, string(output), "--- PASS: "+t.Name())
}
