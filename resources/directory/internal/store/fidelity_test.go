//go:build linux

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestFidelity(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		root  bool // needs root
		build func(t *testing.T, dir string)
	}{
		{name: "empty directory", build: func(*testing.T, string) {}},
		{name: "files of many sizes", build: func(t *testing.T, dir string) {
			for _, size := range []int{0, 1, 4095, inMemory - 1, inMemory, inMemory + 1, 3*inMemory + 17} {
				write(t, filepath.Join(dir, fmt.Sprint(size)), strings.Repeat("x", size))
			}
		}},
		{name: "file permissions", build: func(t *testing.T, dir string) {
			for _, mode := range []uint32{0o600, 0o644, 0o755, 0o777, 0o400} {
				write(t, filepath.Join(dir, fmt.Sprintf("%04o", mode)), "x")
				require.NoError(t, unix.Chmod(filepath.Join(dir, fmt.Sprintf("%04o", mode)), mode))
			}
		}},
		{name: "unreadable files and directories", root: true, build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "locked/read-only/secret"), "x")
			require.NoError(t, unix.Chmod(filepath.Join(dir, "locked/read-only/secret"), 0))
			require.NoError(t, unix.Chmod(filepath.Join(dir, "locked/read-only"), 0o555))
			require.NoError(t, unix.Chmod(filepath.Join(dir, "locked"), 0))
		}},
		{name: "setuid, setgid and sticky", build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "all"), "x")
			require.NoError(t, unix.Chmod(filepath.Join(dir, "all"), 0o7755))
			write(t, filepath.Join(dir, "d/x"), "x")
			require.NoError(t, unix.Chmod(filepath.Join(dir, "d"), 0o7777))
		}},
		{name: "owners", root: true, build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "d/f"), "x")
			require.NoError(t, os.Symlink("f", filepath.Join(dir, "d/l")))
			require.NoError(t, unix.Mkfifo(filepath.Join(dir, "d/p"), 0o600))
			for i, name := range []string{"d/f", "d/l", "d/p", "d"} {
				require.NoError(t, os.Lchown(filepath.Join(dir, name), 1000+i, 2000+i))
			}
			require.NoError(t, unix.Chmod(filepath.Join(dir, "d/f"), 0o4755))
		}},
		{name: "mtimes", build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "d/nano"), "x")
			require.NoError(t, os.Symlink("nano", filepath.Join(dir, "d/link")))
			setMtime(t, filepath.Join(dir, "d/nano"), 1_234_567_890, 123_456_789)
			setMtime(t, filepath.Join(dir, "d/link"), 1_000_000_000, 1)
			setMtime(t, filepath.Join(dir, "d"), -5, 999_999_999)
			setMtime(t, dir, 42, 7)
		}},
		{name: "symlinks", build: func(t *testing.T, dir string) {
			for name, target := range map[string]string{
				"relative": "d/f", "absolute": "/etc/passwd", "out": "../../x", "dangling": "nowhere", "loop": "loop", "bytes": "\xff\xfe",
				"long": strings.Repeat("y/", 2000), "to-dir": ".",
			} {
				require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
			}
		}},
		{name: "hard links", build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "b/file"), "shared")
			write(t, filepath.Join(dir, "z"), "alone")
			require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o755))
			require.NoError(t, os.Link(filepath.Join(dir, "b/file"), filepath.Join(dir, "a/other")))
			require.NoError(t, os.Link(filepath.Join(dir, "b/file"), filepath.Join(dir, "third")))
			require.NoError(t, os.Symlink("x", filepath.Join(dir, "s1")))
			require.NoError(t, os.Link(filepath.Join(dir, "s1"), filepath.Join(dir, "s2")))
			require.NoError(t, os.Link(filepath.Join(dir, "z"), dir+".outside"))
			setMtime(t, filepath.Join(dir, "b"), 1, 1)
			setMtime(t, dir, 2, 2)
		}},
		{name: "FIFO", build: func(t *testing.T, dir string) {
			require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
			require.NoError(t, unix.Chmod(filepath.Join(dir, "pipe"), 0o640))
			setMtime(t, filepath.Join(dir, "pipe"), 3, 3)
		}},
		{name: "names of any bytes", build: func(t *testing.T, dir string) {
			for _, name := range []string{"\xff\xfe", "new\nline", " ", "ünï", `back\slash`, "-rf", "*", strings.Repeat("n", 255), ".hidden", "a", "a.b", "a b"} {
				write(t, dir+"/"+name, name)
			}
			write(t, dir+"/\x80dir/\x01", "x")
		}},
		{name: "nested git repository", build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "sub/.git/HEAD"), "ref: refs/heads/main\n")
			write(t, filepath.Join(dir, "sub/.git/objects/aa/bb"), "\x78\x01")
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub/.git/refs/heads"), 0o755))
			write(t, filepath.Join(dir, "sub/.gitattributes"), "* text eol=crlf\n")
			write(t, filepath.Join(dir, "sub/.gitignore"), "*\n")
			write(t, filepath.Join(dir, "sub/unix.txt"), "a\nb\n")
		}},
		{name: "deeper than PATH_MAX", build: buildDeep},
		{name: "root's own mode", build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "f"), "x")
			require.NoError(t, unix.Chmod(dir, 0o2550))
		}},
		{name: "extended attributes", build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "d/f"), "x")
			require.NoError(t, unix.Setxattr(filepath.Join(dir, "d/f"), "user.one", []byte("1"), 0))
			require.NoError(t, unix.Setxattr(filepath.Join(dir, "d/f"), "user.empty", nil, 0))
			require.NoError(t, unix.Setxattr(filepath.Join(dir, "d/f"), "user.long", []byte(strings.Repeat("v", 1000)), 0))
			require.NoError(t, unix.Setxattr(filepath.Join(dir, "d"), "user.dir", []byte("\x00\xff"), 0))
			require.NoError(t, unix.Setxattr(dir, "user.root", []byte("r"), 0))
			require.NoError(t, unix.Chmod(filepath.Join(dir, "d/f"), 0o444))
		}},
		{name: "capabilities", root: true, build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "ping"), "x")
			capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
			require.NoError(t, os.Chown(filepath.Join(dir, "ping"), 1, 1))
			require.NoError(t, unix.Setxattr(filepath.Join(dir, "ping"), "security.capability", []byte(capability), 0))
			require.NoError(t, unix.Setxattr(filepath.Join(dir, "ping"), "trusted.note", []byte("t"), 0))
		}},
		{name: "ACLs", build: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "d/f"), "x")
			require.NoError(t, unix.Setxattr(filepath.Join(dir, "d/f"), "system.posix_acl_access", []byte(sampleACL), 0))
			require.NoError(t, unix.Setxattr(filepath.Join(dir, "d"), "system.posix_acl_default", []byte(sampleACL), 0))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.root {
				requireRoot(t)
			}
			b := setup(t)
			source := b.mkdir(t, "source")
			tt.build(t, source)
			ref := b.capture(t, source)
			copied := b.restore(t, ref, "copy")
			if diff := cmp.Diff(lookAt(t, source), lookAt(t, copied)); diff != "" {
				t.Fatalf("restored differently (-source +copy):\n%s", diff)
			}
			require.Equal(t, ref, b.capture(t, copied), "a restored directory is equal, so its reference is too")
			packs, _ := b.packs(t)
			require.Len(t, packs, 1, "the copy holds nothing new")
		})
	}
}

// sampleACL lets user 1000 read. It has a version, then tag, permissions and ID of each
// entry.
const sampleACL = "\x02\x00\x00\x00" +
	"\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\xe8\x03\x00\x00" + "\x04\x00\x04\x00\xff\xff\xff\xff" +
	"\x10\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff"

func TestNothingIsInheritedFromTheParent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.mkdir(t, "source")
	write(t, filepath.Join(source, "sub/file"), "x")
	ref := b.capture(t, source)
	require.NoError(t, unix.Setxattr(b.root, "system.posix_acl_default", []byte(sampleACL), 0))
	require.NoError(t, unix.Chmod(b.root, 0o2755))
	copied := b.restore(t, ref, "copy")
	require.Equal(t, factsOf(t, source), factsOf(t, copied))
}

// lookAt is factsOf, but for trees whose paths are too long for plain calls.
func lookAt(t *testing.T, dir string) facts {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(dir, deepName)); err != nil {
		return factsOf(t, dir)
	}
	found := facts{}
	root, err := os.OpenRoot(dir)
	for depth := 0; ; depth++ {
		require.NoError(t, err)
		data, err := root.ReadFile("leaf")
		require.NoError(t, err)
		info, err := root.Stat(".")
		require.NoError(t, err)
		found[fmt.Sprint(depth)] = fmt.Sprintf("%s %s %s", data, info.Mode(), info.ModTime())
		next, err := root.OpenRoot(deepName)
		require.NoError(t, root.Close())
		if os.IsNotExist(err) {
			return found
		}
		require.NoError(t, err)
		root = next
	}
}

var deepName = strings.Repeat("deep", 50)

// buildDeep nests directories until their path is longer than a system call takes.
func buildDeep(t *testing.T, dir string) {
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	for depth := range 3 * unix.PathMax / len(deepName) {
		require.NoError(t, root.WriteFile("leaf", []byte(fmt.Sprint(depth)), 0o644))
		require.NoError(t, root.Mkdir(deepName, 0o755))
		next, err := root.OpenRoot(deepName)
		require.NoError(t, err)
		require.NoError(t, root.Close())
		root = next
	}
	require.NoError(t, root.WriteFile("leaf", []byte("end"), 0o644))
	require.NoError(t, root.Close())
}

func TestRefusedKinds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		root bool
		make func(path string) error
		want string
	}{
		{"socket", false, makeSocket, "socket"},
		{"device", true, func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) }, "device"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.root {
				requireRoot(t)
			}
			b := setup(t)
			dir := b.mkdir(t, "source")
			write(t, filepath.Join(dir, "sub/file"), "x")
			require.NoError(t, tt.make(filepath.Join(dir, "sub/special")))
			_, err := b.store.Capture(t.Context(), dir, indexOf(dir))
			require.ErrorContains(t, err, `"sub/special"`)
			require.ErrorContains(t, err, tt.want)
			require.NotContains(t, err.Error(), b.root)

			require.NoError(t, os.Remove(filepath.Join(dir, "sub/special")))
			b.capture(t, dir)
		})
	}
}

// makeSocket avoids the limit that net.Listen has for the length of a path.
func makeSocket(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) }

func TestMountPointRefused(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	b := setup(t)
	dir := b.mkdir(t, "source")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "mnt"), 0o755))
	if err := unix.Mount("tmpfs", filepath.Join(dir, "mnt"), "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(filepath.Join(dir, "mnt"), 0)) })
	_, err := b.store.Capture(t.Context(), dir, indexOf(dir))
	require.ErrorContains(t, err, `"mnt" is a mount point`)
}
