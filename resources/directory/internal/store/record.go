package store

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// record is the file that makes a checkpoint exist. It holds nothing but facts
// about the content, so equal content gives equal bytes and so an equal reference.
type record struct {
	Format int        `json:"format"`
	Root   recordRoot `json:"root"`
	// Files and Bytes count what the checkpoint holds, for people who look at it.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// recordRoot describes the captured directory itself.
type recordRoot struct {
	Tree       string `json:"tree"`
	Mode       uint32 `json:"mode"`
	UID        uint32 `json:"uid"`
	GID        uint32 `json:"gid"`
	MtimeSec   int64  `json:"mtime_sec"`
	MtimeNsec  uint32 `json:"mtime_nsec"`
	Attributes string `json:"attributes,omitempty"`
}

const recordFormat = 1

func newRecord(root entry, files, bytes int64) record {
	r := record{Format: recordFormat, Files: files, Bytes: bytes, Root: recordRoot{
		Tree: root.content.String(), Mode: root.mode, UID: root.uid, GID: root.gid,
		MtimeSec: root.mtime.sec, MtimeNsec: root.mtime.nsec,
	}}
	if !root.attributes.isZero() {
		r.Root.Attributes = root.attributes.String()
	}
	return r
}

func (r record) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// parseRecord returns the root directory that a record describes, as an entry
// without a name.
func parseRecord(data []byte) (entry, error) {
	var r record
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&r); err != nil {
		return entry{}, err
	}
	if r.Format != recordFormat {
		return entry{}, fmt.Errorf("record has format %d; this program reads %d", r.Format, recordFormat)
	}
	root := entry{
		kind: kindDir, mode: r.Root.Mode, uid: r.Root.UID, gid: r.Root.GID,
		mtime: timestamp{sec: r.Root.MtimeSec, nsec: r.Root.MtimeNsec},
	}
	if root.mode&^permissionBits != 0 || root.mtime.nsec >= 1e9 {
		return entry{}, errors.New("invalid metadata of the root")
	}
	var err error
	if root.content, err = parseID(r.Root.Tree); err != nil {
		return entry{}, err
	}
	if r.Root.Attributes != "" {
		root.attributes, err = parseID(r.Root.Attributes)
	}
	return root, err
}

func parseID(text string) (ID, error) {
	var id ID
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(id) {
		return ID{}, fmt.Errorf("invalid object ID %q", text)
	}
	copy(id[:], raw)
	return id, nil
}

// refPrefix starts every reference, so that a later format can be told apart.
const refPrefix = formatSegment + "-"

func refOf(recordData []byte) string { return refPrefix + recordDomain.sum(recordData).String() }

// checkRef refuses references that this store never gave out; they become file
// names.
func checkRef(ref string) error {
	digits, ok := strings.CutPrefix(ref, refPrefix)
	if !ok {
		return fmt.Errorf("reference %q is not of format %s", ref, formatSegment)
	}
	id, err := parseID(digits)
	if err != nil || id.String() != digits {
		return fmt.Errorf("reference %q is not one of this store", ref)
	}
	return nil
}

// saveRecord writes the record of a checkpoint whose objects are all durable, and
// returns its reference once the record is durable too.
func (s *Store) saveRecord(r record) (string, error) {
	data, err := r.encode()
	if err != nil {
		return "", err
	}
	ref := refOf(data)
	path := filepath.Join(s.recordsDir(), ref)
	// A record that is there and sound stays. Its directory is synced all the same:
	// whoever wrote it may not have come so far.
	if existing, err := os.ReadFile(path); err != nil || !bytes.Equal(existing, data) {
		if err := s.writeFile(path, data); err != nil {
			return "", err
		}
	}
	return ref, syncDir(s.recordsDir())
}

// loadRecord returns the root of a checkpoint.
func (s *Store) loadRecord(ref string) (entry, error) {
	if err := checkRef(ref); err != nil {
		return entry{}, unavailable("%w", err)
	}
	data, err := os.ReadFile(filepath.Join(s.recordsDir(), ref))
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, unavailable("the store has no record of it")
	}
	if err != nil {
		return entry{}, err
	}
	if refOf(data) != ref {
		return entry{}, unavailable("its record is damaged")
	}
	root, err := parseRecord(data)
	if err != nil {
		return entry{}, unavailable("its record cannot be read: %w", err)
	}
	return root, nil
}

// writeFile writes a durable file that appears complete or not at all. The caller
// syncs the directory.
func (s *Store) writeFile(path string, data []byte) error {
	file, err := os.CreateTemp(s.tmpDir(), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}
