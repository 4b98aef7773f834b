//go:build linux

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestAnyTreeComesBack changes a tree at random, captures it now and then, and checks
// that every checkpoint restores what the tree was, wherever the changes went since.
func TestAnyTreeComesBack(t *testing.T) {
	t.Parallel()
	rounds, dir := 0, memoryDir(t)
	rapid.Check(t, func(rt *rapid.T) {
		rounds++
		b := &testbed{root: filepath.Join(dir, fmt.Sprint(rounds))}
		m := &mutator{T: rt, dir: b.path("source")}
		m.must(os.MkdirAll(m.dir, 0o755))
		b.store = openStore(t, b.root)

		checkpoints := map[string]facts{}
		for range rapid.IntRange(1, 3).Draw(rt, "captures") {
			for range rapid.IntRange(0, 12).Draw(rt, "changes") {
				m.change()
			}
			checkpoints[b.capture(t, m.dir)] = factsOf(t, m.dir)
		}
		n := 0
		for ref, want := range checkpoints {
			n++
			copied := b.restore(t, ref, fmt.Sprint("copy", n))
			if diff := cmp.Diff(want, factsOf(t, copied)); diff != "" {
				rt.Fatalf("restored differently (-captured +restored):\n%s", diff)
			}
			if again := b.capture(t, copied); again != ref {
				rt.Fatalf("the copy has the reference %s instead of %s", again, ref)
			}
		}
		m.must(os.RemoveAll(b.root))
	})
}

// mutator changes a tree.
type mutator struct {
	*rapid.T
	dir string
}

func (m *mutator) must(err error) {
	if err != nil {
		m.Fatalf("change the tree: %v", err)
	}
}

func (m *mutator) change() {
	changes := []func(){
		m.writeFile, m.writeFile, m.writeFile, m.overwrite, m.overwriteSilently, m.mkdir, m.mkdir, m.symlink, m.link,
		m.fifo, m.remove, m.rename, m.chmod, m.setMtime, m.setAttribute, m.chown,
	}
	changes[rapid.IntRange(0, len(changes)-1).Draw(m.T, "change")]()
}

// pick returns one of the existing files that match, or "".
func (m *mutator) pick(what string, match func(fs.FileMode) bool) string {
	var paths []string
	m.must(filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && match(d.Type()) {
			paths = append(paths, path)
		}
		return err
	}))
	if len(paths) == 0 {
		return ""
	}
	return rapid.SampledFrom(paths).Draw(m.T, what)
}

func anything(fs.FileMode) bool            { return true }
func isRegular(mode fs.FileMode) bool      { return mode.IsRegular() }
func isDirectory(mode fs.FileMode) bool    { return mode.IsDir() }
func isNotDirectory(mode fs.FileMode) bool { return !mode.IsDir() }

// newPath returns a path that does not exist.
func (m *mutator) newPath() string {
	name := rapid.SampledFrom([]string{"a", "b", "c", "\xff", " ", "d.txt"}).Draw(m.T, "name")
	path := filepath.Join(m.pick("parent", isDirectory), name)
	for ; exists(path); path += "x" {
	}
	return path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (m *mutator) content() []byte {
	size := rapid.SampledFrom([]int{0, 1, 3, 100, 5000}).Draw(m.T, "size")
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i % 7)
	}
	if size > 0 {
		data[0] = rapid.Byte().Draw(m.T, "first byte")
	}
	return data
}

func (m *mutator) writeFile() { m.must(os.WriteFile(m.newPath(), m.content(), 0o644)) }
func (m *mutator) mkdir()     { m.must(os.Mkdir(m.newPath(), 0o755)) }
func (m *mutator) fifo()      { m.must(unix.Mkfifo(m.newPath(), 0o600)) }
func (m *mutator) symlink() {
	m.must(os.Symlink(rapid.SampledFrom([]string{"a", "../b", "/", "\xfe"}).Draw(m.T, "target"), m.newPath()))
}

func (m *mutator) overwrite() {
	if path := m.pick("file", isRegular); path != "" {
		m.must(os.WriteFile(path, m.content(), 0o644))
	}
}

// overwriteSilently changes a byte and leaves size and mtime.
func (m *mutator) overwriteSilently() {
	path := m.pick("file", isRegular)
	if path == "" {
		return
	}
	info, err := os.Stat(path)
	m.must(err)
	data, err := os.ReadFile(path)
	m.must(err)
	if len(data) == 0 {
		return
	}
	data[len(data)-1]++
	m.must(os.WriteFile(path, data, 0o644))
	m.must(os.Chtimes(path, info.ModTime(), info.ModTime()))
}

func (m *mutator) link() {
	if path := m.pick("file", isNotDirectory); path != "" {
		m.must(os.Link(path, m.newPath()))
	}
}

func (m *mutator) remove() {
	if path := m.pick("victim", anything); path != m.dir {
		m.must(os.RemoveAll(path))
	}
}

func (m *mutator) rename() {
	if path := m.pick("file", isNotDirectory); path != "" {
		m.must(os.Rename(path, m.newPath()))
	}
}

func (m *mutator) chmod() {
	path := m.pick("file", func(mode fs.FileMode) bool { return mode&fs.ModeSymlink == 0 })
	modes := []uint32{0o700, 0o755, 0o4755, 0o2770, 0o1777, 0o6711}
	if os.Geteuid() == 0 {
		modes = append(modes, 0, 0o444, 0o555, 0o644) // Others could not go on with these.
	}
	m.must(unix.Chmod(path, rapid.SampledFrom(modes).Draw(m.T, "mode")))
}

func (m *mutator) setMtime() {
	path := m.pick("file", anything)
	times := []unix.Timespec{
		{Nsec: unix.UTIME_OMIT},
		{Sec: rapid.Int64Range(-1e9, 4e9).Draw(m.T, "sec"), Nsec: rapid.Int64Range(0, 999_999_999).Draw(m.T, "nsec")},
	}
	m.must(unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW))
}

func (m *mutator) setAttribute() {
	path := m.pick("file", func(mode fs.FileMode) bool { return mode.IsRegular() || mode.IsDir() })
	name := rapid.SampledFrom([]string{"user.a", "user.b"}).Draw(m.T, "attribute")
	err := unix.Setxattr(path, name, []byte{rapid.Byte().Draw(m.T, "value")}, 0)
	if !errors.Is(err, unix.ENOTSUP) {
		m.must(err)
	}
}

func (m *mutator) chown() {
	if os.Geteuid() == 0 {
		m.must(os.Lchown(m.pick("file", anything), rapid.IntRange(0, 3).Draw(m.T, "uid"), rapid.IntRange(0, 3).Draw(m.T, "gid")))
	}
}
