// Package storage keeps payloads that are too large for Temporal's histories outside of them, through
// the SDK's external storage: histories then hold references. Workers and clients of a namespace need
// the same storage.
package storage

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"
)

// Env is the environment variable that names the storage: a directory, also as file:///path.
const Env = "TINE_STORAGE"

// PayloadLimit is the most bytes of JSON that Tine puts into one payload where there is storage. A
// worker holds such a payload in memory a few times.
const PayloadLimit = 256 << 20

// driverName stands in histories with each reference.
const driverName = "tine.directory"

const claimHash = "sha256"

// Open gives the storage at a location, for client.Options.ExternalStorage. Payloads of more than
// 256 KiB go there. The directory is made if it is missing.
func Open(location string) (converter.ExternalStorage, error) {
	dir, found := strings.CutPrefix(location, "file://")
	if !found && strings.Contains(location, "://") {
		return converter.ExternalStorage{}, fmt.Errorf("storage %q: only directories are known; give a path, or file:///path", location)
	}
	if !filepath.IsAbs(dir) {
		return converter.ExternalStorage{}, fmt.Errorf("storage %q: the path must be absolute, since workers and clients share it", location)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return converter.ExternalStorage{}, fmt.Errorf("storage: %w", err)
	}
	return converter.ExternalStorage{Drivers: []converter.StorageDriver{directory{dir}}}, nil
}

// directory keeps each payload in a file that is named by its hash. Files are never changed, so
// equal payloads share one.
type directory struct{ dir string }

func (directory) Name() string { return driverName }
func (directory) Type() string { return driverName }

// Store writes the payloads. It returns once they are on the disk.
func (d directory) Store(ctx converter.StorageDriverStoreContext, payloads []*commonpb.Payload) ([]converter.StorageDriverClaim, error) {
	claims := make([]converter.StorageDriverClaim, len(payloads))
	for i, payload := range payloads {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(payload)
		if err != nil {
			return nil, fmt.Errorf("storage: %w", err)
		}
		sum := sha256.Sum256(raw)
		hash := hex.EncodeToString(sum[:])
		err = ctx.GetLimiter().Permit(ctx.Context, payload, func() error { return d.write(hash, raw) })
		if err != nil {
			return nil, fmt.Errorf("storage: payload of %d bytes not stored: %w", len(raw), err)
		}
		claims[i] = converter.StorageDriverClaim{ClaimData: map[string]string{claimHash: hash}}
	}
	return claims, nil
}

func (d directory) write(hash string, raw []byte) error {
	name := d.file(hash)
	// The content counts: a damaged file may have the right size, and no writer would ever mend it.
	if _, err := d.read(hash); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(name), "new-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // which is gone once it is renamed
	_, err = temp.Write(raw)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), name)
}

// Retrieve reads payloads and checks that they are what was stored.
func (d directory) Retrieve(ctx converter.StorageDriverRetrieveContext, claims []converter.StorageDriverClaim) ([]*commonpb.Payload, error) {
	payloads := make([]*commonpb.Payload, len(claims))
	for i, claim := range claims {
		err := ctx.GetLimiter().Permit(ctx.Context, claim, func() (err error) {
			payloads[i], err = d.read(claim.ClaimData[claimHash])
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("storage: %w", err)
		}
	}
	return payloads, nil
}

func (d directory) read(hash string) (*commonpb.Payload, error) {
	if raw, err := hex.DecodeString(hash); err != nil || len(raw) != sha256.Size {
		return nil, fmt.Errorf("%q is no name of a payload", hash)
	}
	raw, err := os.ReadFile(d.file(hash))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("payload %s is not in the storage %s; is %s the one that the workers use?", hash, d.dir, Env)
	}
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != hash {
		return nil, fmt.Errorf("payload %s in the storage %s is damaged", hash, d.dir)
	}
	payload := &commonpb.Payload{}
	return payload, proto.Unmarshal(raw, payload)
}

func (d directory) file(hash string) string { return filepath.Join(d.dir, hash[:2], hash[2:]) }
