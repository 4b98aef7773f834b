package directory

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// storeIDLength is in bytes.
const storeIDLength = 16

// idTimeout bounds the wait for another process that is making the ID, which takes
// milliseconds.
const idTimeout = 10 * time.Second

// storeID returns the name that a root keeps for ever, and makes it if there is none.
func storeID(root string) (string, error) {
	path := filepath.Join(root, "id")
	lock := flock.New(filepath.Join(root, "id.lock"))
	ctx, cancel := context.WithTimeout(context.Background(), idTimeout)
	defer cancel()
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer func() { _ = lock.Unlock() }()

	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeStoreID(path)
	}
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(text))
	if digits, err := hex.DecodeString(id); err != nil || len(digits) != storeIDLength {
		return "", fmt.Errorf("%s does not hold a store's ID; restore it, since running executions are bound to it", path)
	}
	return id, nil
}

// makeStoreID writes a new ID, which is complete and durable before it has its name.
func makeStoreID(path string) (string, error) {
	var random [storeIDLength]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	id := hex.EncodeToString(random[:])
	if err := writeFileDurably(path, []byte(id+"\n")); err != nil {
		return "", err
	}
	return id, nil
}

// writeFileDurably replaces a file. The caller holds a lock on it.
func writeFileDurably(path string, data []byte) error {
	tmp, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
