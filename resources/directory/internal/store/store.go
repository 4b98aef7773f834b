// Package store keeps checkpoints of directories, content addressed, for all
// workspaces below one root.
//
// Start with [Open], then [Store.Capture] and [Store.Restore]. Capturing walks
// the directory, reads only the files whose stat changed since the last capture
// of the same directory, and writes what the store does not hold yet into one
// new pack. Restoring builds a new directory and checks every hash on the way.
//
// Objects are the contents of files (blobs), directories (trees) and sets of
// extended attributes, each named by the SHA-256 of its bytes in a hash domain
// of its own. The store's directory holds:
//
//	v1/packs/NAME.pack    objects, one after another; never changed
//	v1/packs/NAME.idx     which object lies where in the pack
//	v1/records/REF        one checkpoint: the root tree and the root's metadata
//	v1/tmp/               files being written; swept by Open when nobody writes
//	v1/lock               shared by captures and restores, exclusive for sweeping
//	v1/publish.lock       held while a pack is published
//	v1/generation         counts published packs
//
// A record is written last, so whatever a crash leaves behind belongs to no
// checkpoint and harms none: temporary files are swept, and a pack without an
// index is ignored.
package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"

	"github.com/tinerun/tine/resources"
)

// formatSegment is the part of every path and reference that names the format.
// A new format gets a new segment, so that both can live in one store.
const formatSegment = "v1"

// lockPoll is how often a lock that another process holds is tried again.
const lockPoll = 2 * time.Millisecond

// Store is a checkpoint store. It is safe for concurrent use, also by several
// processes on the same directory.
type Store struct {
	dir     string
	catalog *catalog
	// publishing queues the goroutines of this process, because waiting for the
	// file lock means polling it.
	publishing chan struct{}
	// seen is the generation up to which the catalog is complete.
	seen atomic.Uint64
}

// Open opens the store in dir and creates it if necessary. The parent of dir must
// exist.
func Open(dir string) (*Store, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	s := &Store{dir: filepath.Join(dir, formatSegment), publishing: make(chan struct{}, 1)}
	for _, sub := range []string{s.packsDir(), s.recordsDir(), s.tmpDir()} {
		if err := os.MkdirAll(sub, 0o700); err != nil {
			return nil, fmt.Errorf("open checkpoint store: %w", err)
		}
	}
	// The names of the directories have to be as durable as what will be in them.
	for _, created := range []string{s.dir, dir, filepath.Dir(dir)} {
		if err := syncDir(created); err != nil {
			return nil, fmt.Errorf("open checkpoint store: %w", err)
		}
	}
	if err := s.sweep(); err != nil {
		return nil, fmt.Errorf("open checkpoint store: %w", err)
	}
	s.catalog = newCatalog(s.packsDir())
	s.seen.Store(neverSeen)
	if err := s.refresh(); err != nil {
		return nil, fmt.Errorf("open checkpoint store: %w", err)
	}
	return s, nil
}

func (s *Store) packsDir() string   { return filepath.Join(s.dir, "packs") }
func (s *Store) recordsDir() string { return filepath.Join(s.dir, "records") }
func (s *Store) tmpDir() string     { return filepath.Join(s.dir, "tmp") }

// share registers a capture or a restore, so that nothing it uses is swept.
func (s *Store) share(ctx context.Context) (release func(), err error) {
	lock := flock.New(filepath.Join(s.dir, "lock"))
	if _, err := lock.TryRLockContext(ctx, lockPoll); err != nil {
		return nil, fmt.Errorf("lock the checkpoint store: %w", err)
	}
	return func() { _ = lock.Unlock() }, nil
}

// sweep removes the temporary files of captures that died. Their owners hold the
// shared lock, so the exclusive one proves that nobody needs them. A busy store is
// left for a later Open.
func (s *Store) sweep() error {
	lock := flock.New(filepath.Join(s.dir, "lock"))
	alone, err := lock.TryLock()
	if err != nil || !alone {
		return err
	}
	defer func() { _ = lock.Unlock() }()

	leftovers, err := os.ReadDir(s.tmpDir())
	if err != nil {
		return err
	}
	for _, leftover := range leftovers {
		if err := os.Remove(filepath.Join(s.tmpDir(), leftover.Name())); err != nil {
			return err
		}
	}
	return nil
}

// lockPublishing makes the caller the only one that adds packs to the store.
func (s *Store) lockPublishing(ctx context.Context) (release func(), err error) {
	select {
	case s.publishing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	lock := flock.New(filepath.Join(s.dir, "publish.lock"))
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		<-s.publishing
		return nil, fmt.Errorf("lock the checkpoint store for publishing: %w", err)
	}
	return func() {
		_ = lock.Unlock()
		<-s.publishing
	}, nil
}

// unavailable reports a checkpoint that trying again cannot bring back.
func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", resources.ErrCheckpointUnavailable, fmt.Errorf(format, args...))
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
