//go:build linux

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// inMemory is up to which size a file is read once, into memory. Larger ones are
// hashed first and copied into the pack only if the store lacks them.
const inMemory = 1 << 20

// Capture stores the directory dir and returns a reference to the checkpoint, which
// is durable then. Equal directories, with all their metadata, have equal references.
//
// indexFile is where the store keeps what it knows about the files of dir. It lies
// outside of dir, on the store's file system, and belongs to dir alone.
func (s *Store) Capture(ctx context.Context, dir, indexFile string) (ref string, err error) {
	defer func() { err = explainFull(err) }()
	release, err := s.share(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	if err := s.refresh(); err != nil {
		return "", err
	}
	index, err := newIndexWriter(s.tmpDir(), indexFile)
	if err != nil {
		return "", err
	}
	defer index.discard()

	c := newCapture(s, loadStatIndex(indexFile), index)
	defer c.pack.discard()
	root, err := walk(ctx, dir, c)
	if err != nil {
		return "", err
	}
	// The index says nothing about the checkpoint, so it need not wait for it. Without
	// it the next capture reads more, which is no reason to fail.
	var saving sync.WaitGroup
	saving.Go(func() { _ = index.save(c.records()...) })
	defer saving.Wait()

	resolveHardLinks(root)
	if err := c.storeTree(root); err != nil {
		return "", err
	}
	if err := s.publish(ctx, c.pack); err != nil {
		return "", err
	}
	// The record may build on packs whose names another process has not synced yet.
	if err := syncDir(s.packsDir()); err != nil {
		return "", err
	}
	return s.saveRecord(newRecord(root.entry, c.files, c.bytes))
}

// explainFull tells what to do about a full disk.
func explainFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w; free some space where the checkpoint store lies, existing checkpoints are intact", err)
	}
	return err
}

// capture is one run of Capture.
type capture struct {
	store   *Store
	known   statIndex
	index   *indexWriter
	pack    *packWriter
	workers []captureWorker
	treeBuf []byte

	files, bytes int64
}

// captureWorker is what a worker of the walk has for itself.
type captureWorker struct {
	buf []byte
	// records are for the next index.
	records []byte
}

func newCapture(s *Store, known statIndex, index *indexWriter) *capture {
	c := &capture{
		store:   s,
		known:   known,
		index:   index,
		pack:    newPackWriter(s.tmpDir()),
		workers: make([]captureWorker, workerCount()),
	}
	for i := range c.workers {
		c.workers[i].records = make([]byte, 0, len(known.records)/len(c.workers))
	}
	return c
}

// records returns what all workers have for the next index.
func (c *capture) records() [][]byte {
	var all [][]byte
	for _, w := range c.workers {
		all = append(all, w.records)
	}
	return all
}

// has tells whether an object needs no storing.
func (c *capture) has(id ID) bool { return c.store.catalog.has(id) || c.pack.has(id) }

// file implements fileReader: it reads a file if its stat is not the indexed one.
func (c *capture) file(ctx context.Context, worker, dir int, e *entry, st *unix.Stat_t) error {
	w := &c.workers[worker]
	found, ok := c.known.lookup(statOf(st))
	if !ok || !c.has(found.content) || (!found.attributes.isZero() && !c.has(found.attributes)) {
		err := retryChanged(ctx, func() (err error) {
			found, err = c.readFile(ctx, w, dir, e.name, st)
			return err
		})
		if err != nil {
			return err
		}
	}
	w.records = c.index.append(w.records, &found)
	e.size, e.content, e.attributes = found.stat.size, found.content, found.attributes
	return nil
}

// directory implements fileReader. Attributes of directories are read each time:
// they are open already.
func (c *capture) directory(fd int) (ID, error) { return c.storeAttributes(fd) }

// readFile stores a file that keeps still meanwhile. It sets st to what was true when
// it was read.
func (c *capture) readFile(ctx context.Context, w *captureWorker, dir int, name string, st *unix.Stat_t) (indexed, error) {
	// Without O_NONBLOCK a FIFO that took the file's place would block the open.
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := retryEINTR(func() (int, error) { return unix.Openat(dir, name, flags, 0) })
	if err != nil {
		return indexed{}, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	if err := unix.Fstat(fd, st); err != nil {
		return indexed{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return indexed{}, errChanged
	}
	found := indexed{stat: statOf(st)}
	if found.content, err = c.storeContent(ctx, w, file, st.Size); err != nil {
		return indexed{}, err
	}
	if found.attributes, err = c.storeAttributes(fd); err != nil {
		return indexed{}, err
	}
	var after unix.Stat_t
	if err := unix.Fstat(fd, &after); err != nil {
		return indexed{}, err
	}
	if statOf(&after) != found.stat {
		return indexed{}, errChanged
	}
	return found, nil
}

func (c *capture) storeContent(ctx context.Context, w *captureWorker, file *os.File, size int64) (ID, error) {
	if w.buf == nil {
		w.buf = make([]byte, inMemory+1)
	}
	if size > inMemory {
		return c.storeLarge(ctx, w, file, size)
	}
	// One byte more than the file should have shows that it grew.
	n, err := io.ReadFull(file, w.buf[:size+1])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return ID{}, err
	}
	if int64(n) != size {
		return ID{}, errChanged
	}
	data := w.buf[:n]
	id := blobDomain.sum(data)
	if c.has(id) {
		return id, nil
	}
	return id, c.pack.append(id, data)
}

func (c *capture) storeLarge(ctx context.Context, w *captureWorker, file *os.File, size int64) (ID, error) {
	id, err := copyHashed(ctx, io.Discard, file, size, w.buf)
	if err != nil || c.has(id) {
		return id, changedIfShort(err)
	}
	to, at, err := c.pack.reserve(size)
	if err != nil {
		return ID{}, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return ID{}, err
	}
	again, err := copyHashed(ctx, io.NewOffsetWriter(to, at.offset), file, size, w.buf)
	if err != nil {
		return ID{}, changedIfShort(err)
	}
	if again != id {
		return ID{}, errChanged
	}
	c.pack.claim(id, at)
	return id, nil
}

// copyHashed copies size bytes and returns the ID of the blob they are.
func copyHashed(ctx context.Context, to io.Writer, from io.Reader, size int64, buf []byte) (ID, error) {
	h := blobDomain.newHash()
	for size > 0 {
		if err := ctx.Err(); err != nil {
			return ID{}, err
		}
		n, err := io.ReadFull(from, buf[:min(size, int64(len(buf)))])
		if err != nil {
			return ID{}, err
		}
		h.Write(buf[:n])
		if _, err := to.Write(buf[:n]); err != nil {
			return ID{}, err
		}
		size -= int64(n)
	}
	return digest(h), nil
}

// changedIfShort says that a file that ended early has changed.
func changedIfShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errChanged
	}
	return err
}

func (c *capture) storeAttributes(fd int) (ID, error) {
	attributes, err := readAttributes(fd)
	if err != nil || len(attributes) == 0 {
		return ID{}, err
	}
	data := encodeAttributes(attributes)
	return c.storeObject(attributesDomain.sum(data), data)
}

func (c *capture) storeObject(id ID, data []byte) (ID, error) {
	if c.has(id) {
		return id, nil
	}
	return id, c.pack.append(id, data)
}

// storeTree stores a directory's tree after those of its subdirectories, and
// completes its entry.
func (c *capture) storeTree(dir *walkedDir) error {
	subdirs := dir.subdirs
	for i := range dir.entries {
		e := &dir.entries[i]
		switch e.kind {
		case kindDir:
			if err := c.storeTree(subdirs[0]); err != nil {
				return err
			}
			*e = subdirs[0].entry
			subdirs = subdirs[1:]
		case kindFile:
			c.files++
			c.bytes += e.size
		}
	}
	c.treeBuf = appendTree(c.treeBuf[:0], dir.entries)
	id, err := c.storeObject(treeDomain.sum(c.treeBuf), c.treeBuf)
	dir.content = id
	return err
}

// resolveHardLinks turns all names of a file but the first, in the order of the tree,
// into links to the first. Inode numbers would be different in every copy.
func resolveHardLinks(root *walkedDir) {
	first := map[fileKey]string{}
	var resolve func(dir *walkedDir)
	resolve = func(dir *walkedDir) {
		subdirs := dir.subdirs
		for i := range dir.entries {
			e := &dir.entries[i]
			if e.kind == kindDir {
				resolve(subdirs[0])
				subdirs = subdirs[1:]
				continue
			}
			key, linked := dir.linked[i]
			if !linked {
				continue
			}
			if target, seen := first[key]; seen {
				dir.entries[i] = entry{name: e.name, kind: kindHardLink, target: target}
			} else {
				first[key] = dir.path(e.name)
			}
		}
	}
	resolve(root)
}
