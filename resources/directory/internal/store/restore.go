//go:build linux

package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Restore creates the directory dir with what the checkpoint ref holds. The parent
// of dir must exist, dir must not. The files are copies: no write to them reaches
// the store. A checkpoint that is missing or damaged is
// resources.ErrCheckpointUnavailable. After an error dir is left incomplete; the
// caller removes it.
//
// indexFile, as in Capture, receives what the store knows about the new files, so
// that the first capture of dir reads only what changed.
func (s *Store) Restore(ctx context.Context, ref, dir, indexFile string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("restore %s: %w", ref, explainFull(err))
		}
	}()
	release, err := s.share(ctx)
	if err != nil {
		return err
	}
	defer release()
	root, err := s.loadRecord(ref)
	if err != nil {
		return err
	}
	if err := s.refresh(); err != nil {
		return err
	}
	parent, err := openDirAt(unix.AT_FDCWD, filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.release()

	r := newRestore(s)
	defer r.close()
	root.name = filepath.Base(dir)
	if err := r.run(ctx, parent, root); err != nil {
		return err
	}
	// Without the index the first capture reads more, which is no reason to fail.
	_ = r.saveIndex(indexFile)
	return nil
}

// restore is one run of Restore.
type restore struct {
	store *Store
	// privileged tells whether owners and attributes of root can be set.
	privileged bool
	workers    []restoreWorker

	mu    sync.Mutex
	links []hardLink
	// relinked has the stats of files that got more names.
	relinked map[fileKey]fileStat
}

// restoreWorker is what a worker has for itself.
type restoreWorker struct {
	reader objectReader
	seen   []indexed
}

// restoredDir is a directory whose metadata is set last, when nothing is created in
// it any more.
type restoredDir struct {
	entry
	parent  *restoredDir
	subdirs []*restoredDir
}

// hardLink is another name of a file that is restored under its first name.
type hardLink struct {
	dir    *restoredDir
	name   string
	target string
}

// unrestored is a directory that waits to be created.
type unrestored struct {
	parent *openDir
	dir    *restoredDir
}

func newRestore(s *Store) *restore {
	r := &restore{
		store:      s,
		privileged: os.Geteuid() == 0,
		workers:    make([]restoreWorker, workerCount()),
		relinked:   map[fileKey]fileStat{},
	}
	for i := range r.workers {
		r.workers[i].reader.store = s
	}
	return r
}

func (r *restore) close() {
	for i := range r.workers {
		r.workers[i].reader.close()
	}
}

// saveIndex writes what is known about the new files. The index is made only now,
// because its time decides which of them have settled.
func (r *restore) saveIndex(path string) error {
	index, err := newIndexWriter(r.store.tmpDir(), path)
	if err != nil {
		return err
	}
	defer index.discard()
	var records []byte
	for _, w := range r.workers {
		for i := range w.seen {
			file := &w.seen[i]
			if now, ok := r.relinked[file.stat.key]; ok {
				file.stat = now
			}
			records = index.append(records, file)
		}
	}
	return index.save(records)
}

// path returns the path of d from the restored root.
func (d *restoredDir) path() []string {
	var names []string
	for ; d.parent != nil; d = d.parent {
		names = append(names, d.name)
	}
	slices.Reverse(names)
	return names
}

// display is the path of name in d for messages.
func (d *restoredDir) display(name string) string {
	return filepath.Join(append(d.path(), name)...)
}

func (r *restore) run(ctx context.Context, parent *openDir, root entry) error {
	top := &restoredDir{entry: root}
	parent.retain()
	create := func(worker int, u unrestored, push func(unrestored)) error {
		return r.create(ctx, &r.workers[worker], u, push)
	}
	err := visitAll(ctx, unrestored{parent: parent, dir: top}, create, func(u unrestored) { u.parent.release() })
	if err != nil {
		return err
	}
	// A link changes its directory's mtime and the ctime of its file.
	if err := r.linkAll(parent.fd, top); err != nil {
		return err
	}
	return r.finish(parent.fd, top)
}

// create makes a directory with all its entries but the subdirectories, which it
// pushes, and hard links.
func (r *restore) create(ctx context.Context, w *restoreWorker, u unrestored, push func(unrestored)) error {
	dir, err := makeDir(u)
	u.parent.release()
	if err != nil {
		return fmt.Errorf("create directory %q: %w", u.dir.display("."), err)
	}
	defer dir.release()
	entries, err := w.reader.tree(u.dir.content)
	if err != nil {
		return fmt.Errorf("directory %q: %w", u.dir.display("."), err)
	}
	for i := range entries {
		e := &entries[i]
		switch e.kind {
		case kindDir:
			u.dir.subdirs = append(u.dir.subdirs, &restoredDir{entry: *e, parent: u.dir})
		case kindHardLink:
			r.addLink(hardLink{dir: u.dir, name: e.name, target: e.target})
		default:
			if err := r.createEntry(ctx, w, dir.fd, e); err != nil {
				return fmt.Errorf("%q: %w", u.dir.display(e.name), err)
			}
		}
	}
	for _, sub := range slices.Backward(u.dir.subdirs) {
		dir.retain()
		push(unrestored{parent: dir, dir: sub})
	}
	return nil
}

// makeDir makes a directory that only its owner can enter until it is finished. The
// topmost one could get more from its parent, and hand it on: ACLs and setgid.
func makeDir(u unrestored) (*openDir, error) {
	const ownerOnly = 0o700
	if err := unix.Mkdirat(u.parent.fd, u.dir.name, ownerOnly); err != nil {
		return nil, err
	}
	if u.dir.parent != nil {
		return openDirAt(u.parent.fd, u.dir.name)
	}
	if err := unix.Fchmodat(u.parent.fd, u.dir.name, ownerOnly, 0); err != nil {
		return nil, err
	}
	dir, err := openDirAt(u.parent.fd, u.dir.name)
	if err != nil {
		return nil, err
	}
	if err := removeACLs(dir.fd); err != nil {
		dir.release()
		return nil, err
	}
	return dir, nil
}

func (r *restore) addLink(link hardLink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links = append(r.links, link)
}

func (r *restore) createEntry(ctx context.Context, w *restoreWorker, dir int, e *entry) error {
	switch e.kind {
	case kindFile:
		return r.createFile(ctx, w, dir, e)
	case kindSymlink:
		if err := unix.Symlinkat(e.target, dir, e.name); err != nil {
			return err
		}
		if err := r.setOwner(dir, e); err != nil {
			return err
		}
	case kindFIFO:
		if err := r.createFIFO(dir, e); err != nil {
			return err
		}
	}
	return setTime(dir, e)
}

// createFIFO makes a FIFO with its mode. A change of owner clears setuid, so the mode
// comes last. It cannot be set without following symlinks on older kernels, but the
// name was made here, where nobody else can enter.
func (r *restore) createFIFO(dir int, e *entry) error {
	if err := unix.Mkfifoat(dir, e.name, 0o600); err != nil {
		return err
	}
	if err := r.setOwner(dir, e); err != nil {
		return err
	}
	return unix.Fchmodat(dir, e.name, e.mode, 0)
}

func (r *restore) setOwner(dir int, e *entry) error {
	if !r.privileged {
		return nil
	}
	return unix.Fchownat(dir, e.name, int(e.uid), int(e.gid), unix.AT_SYMLINK_NOFOLLOW)
}

// setTime sets the mtime and leaves the time of access as it is.
func setTime(dir int, e *entry) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: e.mtime.sec, Nsec: int64(e.mtime.nsec)}}
	return unix.UtimesNanoAt(dir, e.name, times, unix.AT_SYMLINK_NOFOLLOW)
}

func (r *restore) createFile(ctx context.Context, w *restoreWorker, dir int, e *entry) error {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	mode := e.mode & 0o777 // With setuid, writing would clear it.
	if !e.attributes.isZero() {
		mode = 0o600
	}
	fd, err := retryEINTR(func() (int, error) { return unix.Openat(dir, e.name, flags, mode) })
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), e.name)
	err = r.fill(ctx, w, dir, file, e)
	if closeErr := file.Close(); err == nil {
		err = closeErr // Network file systems may write only now.
	}
	return err
}

// fill gives a new file its content and its metadata.
func (r *restore) fill(ctx context.Context, w *restoreWorker, dir int, file *os.File, e *entry) error {
	if err := w.reader.blob(ctx, e.content, e.size, file); err != nil {
		return err
	}
	fd := int(file.Fd())
	if err := r.setMetadata(w, fd, e); err != nil {
		return err
	}
	if err := setTime(dir, e); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	w.seen = append(w.seen, indexed{stat: statOf(&st), content: e.content, attributes: e.attributes})
	return nil
}

// setMetadata sets all but the mtime of an open file or directory, as far as it is not
// right from the start: each change costs a transaction of the file system. A change of
// owner clears setuid and capabilities, so it comes first; attributes can be set only
// while the file is writable, and ACLs change the mode, so the mode comes last.
func (r *restore) setMetadata(w *restoreWorker, fd int, e *entry) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if r.privileged && (st.Uid != e.uid || st.Gid != e.gid) {
		if err := unix.Fchown(fd, int(e.uid), int(e.gid)); err != nil {
			return err
		}
	}
	if e.attributes.isZero() {
		if st.Mode&permissionBits == e.mode {
			return nil
		}
		return unix.Fchmod(fd, e.mode)
	}
	attributes, err := w.reader.attributes(e.attributes)
	if err != nil {
		return err
	}
	if err := writeAttributes(fd, attributes, r.privileged); err != nil {
		return fmt.Errorf("set extended attributes: %w", err)
	}
	return unix.Fchmod(fd, e.mode)
}

// linkAll gives the files of hard link groups their other names.
func (r *restore) linkAll(parent int, top *restoredDir) error {
	for _, link := range r.links {
		if err := r.link(parent, top, link); err != nil {
			return fmt.Errorf("link %q to %q: %w", link.dir.display(link.name), link.target, err)
		}
	}
	return nil
}

func (r *restore) link(parent int, top *restoredDir, link hardLink) error {
	targetPath, target := splitPath(link.target)
	from, err := openPath(parent, append([]string{top.name}, targetPath...))
	if err != nil {
		return err
	}
	defer from.release()
	to, err := openPath(parent, append([]string{top.name}, link.dir.path()...))
	if err != nil {
		return err
	}
	defer to.release()
	if err := unix.Linkat(from.fd, target, to.fd, link.name, 0); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from.fd, target, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	r.relinked[fileKey{dev: st.Dev, ino: st.Ino}] = statOf(&st)
	return nil
}

// finish sets the metadata of a directory and all below it, the deepest first.
func (r *restore) finish(parent int, d *restoredDir) error {
	dir, err := openDirAt(parent, d.name)
	if err != nil {
		return err
	}
	defer dir.release()
	for _, sub := range d.subdirs {
		if err := r.finish(dir.fd, sub); err != nil {
			return err
		}
	}
	if err := r.setMetadata(&r.workers[0], dir.fd, &d.entry); err != nil {
		return fmt.Errorf("directory %q: %w", d.display("."), err)
	}
	return setTime(parent, &d.entry)
}
