package devserver

import (
	"context"
	"os"
	"time"

	"github.com/gofrs/flock"
)

const (
	// lockInterval is how often a taken lock is tried again.
	lockInterval = 200 * time.Millisecond
	// lockReport is how often a process says that it still waits.
	lockReport = 15 * time.Second
)

// fileLock is a lock between processes. The system releases it when its holder dies.
type fileLock struct {
	path string
	lock *flock.Flock
}

// lockFile takes the lock at path, and calls waiting at once and then regularly while it has to
// wait for it.
func lockFile(ctx context.Context, path string, waiting func(elapsed time.Duration)) (*fileLock, error) {
	began := time.Now()
	var told time.Time
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		lock, err := tryLockFile(path)
		if lock != nil || err != nil {
			return lock, err
		}
		if time.Since(told) >= lockReport {
			waiting(time.Since(began))
			told = time.Now()
		}
		select {
		case <-ctx.Done():
		case <-time.After(lockInterval):
		}
	}
}

// tryLockFile takes the lock at path, or returns nil if another has it.
func tryLockFile(path string) (*fileLock, error) {
	lock := flock.New(path)
	if ok, err := lock.TryLock(); err != nil || !ok {
		return nil, err
	}
	// A holder removes its file, so this may have locked one that has no name any more, while
	// somebody else locks the one at path.
	locked, err := lock.Stat()
	if err == nil {
		var named os.FileInfo
		if named, err = os.Stat(path); err == nil && os.SameFile(locked, named) {
			return &fileLock{path: path, lock: lock}, nil
		}
	}
	if closeErr := lock.Close(); closeErr != nil {
		return nil, closeErr
	}
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return nil, nil
}

// release gives the lock up and leaves no file behind.
func (l *fileLock) release() {
	_ = os.Remove(l.path) // where an open file cannot be removed, it stays, empty
	_ = l.lock.Close()
}
