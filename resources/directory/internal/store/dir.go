//go:build linux

package store

import (
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

func supported() error { return nil }

// openDir is a directory that is open for as long as something needs it. Everything
// below it is reached relative to its descriptor and one name at a time, so no path
// is ever too long, and no symlink that appears meanwhile leads elsewhere.
type openDir struct {
	fd    int
	users atomic.Int32
}

const openDirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openDirAt opens the directory name in parent with one user, the caller.
func openDirAt(parent int, name string) (*openDir, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.Openat(parent, name, openDirFlags, 0) })
	if err != nil {
		return nil, err
	}
	dir := &openDir{fd: fd}
	dir.users.Store(1)
	return dir, nil
}

// openPath opens the directory that path names from the directory root, with one
// user.
func openPath(root int, path []string) (*openDir, error) {
	dir, err := openDirAt(root, ".")
	for _, name := range path {
		if err != nil {
			return nil, err
		}
		parent := dir
		dir, err = openDirAt(parent.fd, name)
		parent.release()
	}
	return dir, err
}

func (d *openDir) retain() { d.users.Add(1) }

func (d *openDir) release() {
	if d.users.Add(-1) == 0 {
		_ = unix.Close(d.fd)
	}
}

// readNames returns the names in a directory, unsorted.
func readNames(fd int, buf []byte) ([]string, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	var names []string
	for {
		n, err := retryEINTR(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil || n == 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// retryEINTR repeats a system call that a signal interrupted, which happens on slow file
// systems: Go's scheduler sends signals all the time.
func retryEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// splitPath cuts a path of a tree into the directory's names and the last one.
func splitPath(path string) (dir []string, base string) {
	names := strings.Split(path, "/")
	return names[:len(names)-1], names[len(names)-1]
}
