//go:build linux

package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// walkedDir is a directory as the walk found it. The embedded entry is how its
// parent names it.
type walkedDir struct {
	entry
	parent  *walkedDir
	entries []entry
	// subdirs belong to the entries of kind kindDir, in the same order.
	subdirs []*walkedDir
	// linked are the files that have more than one name, by their place in entries.
	linked map[int]fileKey
}

// path returns the path of name in d from the root of the walk.
func (d *walkedDir) path(name string) string {
	parts := []string{name}
	for ; d.parent != nil; d = d.parent {
		parts = append(parts, d.name)
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/")
}

// displayPath is path for messages about the directory itself.
func (d *walkedDir) displayPath() string {
	if d.parent == nil {
		return "."
	}
	return d.parent.path(d.name)
}

// fileReader finds out what a walk cannot see in a stat. It may correct the stat.
type fileReader interface {
	// file completes the entry of a regular file.
	file(ctx context.Context, worker, dir int, e *entry, st *unix.Stat_t) error
	// directory returns the attributes of an open directory.
	directory(fd int) (ID, error)
}

// walker walks one tree.
type walker struct {
	reader fileReader
	dev    uint64
	bufs   [][]byte
}

// pending is a directory that waits for its visit.
type pending struct {
	parent *openDir
	node   *walkedDir
}

const direntBufSize = 64 << 10

// walk reads the tree below the directory root, several directories at a time.
func walk(ctx context.Context, root string, reader fileReader) (*walkedDir, error) {
	dir, err := openDirAt(unix.AT_FDCWD, root)
	if err != nil {
		return nil, fmt.Errorf("open directory \".\": %w", explain(err))
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir.fd, &st); err != nil {
		dir.release()
		return nil, err
	}
	w := &walker{reader: reader, dev: st.Dev, bufs: make([][]byte, workerCount())}
	tree := &walkedDir{entry: entry{name: ".", kind: kindDir}}
	visit := func(worker int, p pending, push func(pending)) error { return w.visit(ctx, worker, p, push) }
	err = visitAll(ctx, pending{parent: dir, node: tree}, visit, func(p pending) { p.parent.release() })
	return tree, err
}

func (w *walker) visit(ctx context.Context, worker int, p pending, push func(pending)) error {
	dir, err := openDirAt(p.parent.fd, p.node.name)
	p.parent.release()
	if vanished(err) {
		return fmt.Errorf("%q: %w", p.node.displayPath(), errChanged)
	}
	if err != nil {
		return fmt.Errorf("open directory %q: %w", p.node.displayPath(), explain(err))
	}
	defer dir.release()

	err = retryChanged(ctx, func() error { return w.scan(ctx, worker, dir.fd, p.node) })
	if err != nil {
		return err
	}
	// The last one pushed is visited first, so this goes through them in order.
	for _, sub := range slices.Backward(p.node.subdirs) {
		dir.retain()
		push(pending{parent: dir, node: sub})
	}
	return nil
}

// scan fills in the node of an open directory.
func (w *walker) scan(ctx context.Context, worker, fd int, node *walkedDir) error {
	var before, after unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return err
	}
	if before.Dev != w.dev {
		return fmt.Errorf("%q is a mount point, and a checkpoint holds one file system; unmount it", node.displayPath())
	}
	if w.bufs[worker] == nil {
		w.bufs[worker] = make([]byte, direntBufSize)
	}
	names, err := readNames(fd, w.bufs[worker])
	if err != nil {
		return fmt.Errorf("read directory %q: %w", node.displayPath(), err)
	}
	slices.Sort(names)
	setMetadata(&node.entry, &before)
	if node.attributes, err = w.reader.directory(fd); err != nil {
		return fmt.Errorf("read attributes of %q: %w", node.displayPath(), err)
	}
	if err := w.scanEntries(ctx, worker, fd, node, names); err != nil {
		return err
	}
	if err := unix.Fstat(fd, &after); err != nil {
		return err
	}
	if statOf(&before) != statOf(&after) {
		return fmt.Errorf("%q: %w", node.displayPath(), errChanged)
	}
	return nil
}

func (w *walker) scanEntries(ctx context.Context, worker, fd int, node *walkedDir, names []string) error {
	node.entries = make([]entry, len(names))
	node.subdirs, node.linked = nil, nil
	for i, name := range names {
		e := &node.entries[i]
		e.name = name
		var st unix.Stat_t
		err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			err = w.describe(ctx, worker, fd, e, &st)
		}
		if vanished(err) {
			err = errChanged
		}
		if err != nil {
			return fmt.Errorf("%q: %w", node.path(name), explain(err))
		}
		if e.kind == kindDir {
			node.subdirs = append(node.subdirs, &walkedDir{entry: entry{name: name, kind: kindDir}, parent: node})
		} else if st.Nlink > 1 {
			if node.linked == nil {
				node.linked = map[int]fileKey{}
			}
			node.linked[i] = fileKey{dev: st.Dev, ino: st.Ino}
		}
	}
	return nil
}

// describe fills in what a name stands for. Directories get theirs from their own
// visit.
func (w *walker) describe(ctx context.Context, worker, fd int, e *entry, st *unix.Stat_t) (err error) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.kind = kindFile
		err = w.reader.file(ctx, worker, fd, e, st)
	case unix.S_IFDIR:
		e.kind = kindDir
	case unix.S_IFLNK:
		e.kind = kindSymlink
		e.target, err = readLink(fd, e.name, int(st.Size))
	case unix.S_IFIFO:
		e.kind = kindFIFO
	case unix.S_IFSOCK:
		err = errors.New("a socket cannot be kept in a checkpoint; stop its server and remove it")
	default:
		err = errors.New("a device cannot be kept in a checkpoint; remove it")
	}
	setMetadata(e, st)
	return err
}

func setMetadata(e *entry, st *unix.Stat_t) {
	e.mode = st.Mode & permissionBits
	e.uid, e.gid = st.Uid, st.Gid
	e.mtime = timestampOf(st.Mtim)
}

func timestampOf(t unix.Timespec) timestamp {
	return timestamp{sec: int64(t.Sec), nsec: uint32(t.Nsec)}
}

func statOf(st *unix.Stat_t) fileStat {
	return fileStat{
		key:   fileKey{dev: st.Dev, ino: st.Ino},
		size:  st.Size,
		mode:  st.Mode,
		mtime: timestampOf(st.Mtim),
		ctime: timestampOf(st.Ctim),
	}
}

// readLink returns the target of a symlink. The size is only a hint: some file
// systems report none.
func readLink(dir int, name string, size int) (string, error) {
	for room := size + 1; ; room = max(2*room, unix.PathMax) {
		buf := make([]byte, room)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return "", err
		}
		if n < room {
			return string(buf[:n]), nil
		}
	}
}

// errChanged says that something moved while it was read.
var errChanged = errors.New("it keeps changing while it is captured; stop the process that writes it")

const (
	captureAttempts = 5
	changedPause    = 10 * time.Millisecond
)

// retryChanged repeats read while what it reads moves. The error that is left in the
// end is no errChanged any more, so that no caller starts over once again.
func retryChanged(ctx context.Context, read func() error) error {
	for attempt := 1; ; attempt++ {
		err := read()
		if !errors.Is(err, errChanged) {
			return err
		}
		if attempt == captureAttempts {
			return errors.New(err.Error())
		}
		select {
		case <-time.After(time.Duration(attempt) * changedPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// vanished tells whether a name stood for something else when it was used than when
// it was listed.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)
}

// explain adds what to do to an error whose text does not tell.
func explain(err error) error {
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w; make it readable for the worker's user, or run the worker as root", err)
	}
	return err
}
