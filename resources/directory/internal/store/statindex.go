package store

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// fileKey names a file whatever its name is.
type fileKey struct{ dev, ino uint64 }

// fileStat is what has to be the same for a file to be the same: a program that
// keeps the size and puts the mtime back still moves the ctime.
type fileStat struct {
	key   fileKey
	size  int64
	mode  uint32
	mtime timestamp
	ctime timestamp
}

// indexed is what a capture found out about a file by reading it.
type indexed struct {
	stat       fileStat
	content    ID
	attributes ID
}

// statIndex remembers the files of one directory from capture to capture, so that
// unchanged ones need not be read. It is a cache: without it a capture reads
// everything and comes to the same result.
type statIndex struct {
	// records are encoded; most captures look at each just once.
	records []byte
	offsets map[fileKey]int
}

// lookup returns what is known of a file that has not changed.
func (x statIndex) lookup(st fileStat) (indexed, bool) {
	offset, ok := x.offsets[st.key]
	if !ok {
		return indexed{}, false
	}
	known := decodeIndexed(x.records[offset : offset+indexedSize])
	return known, known.stat == st
}

const (
	statIndexMagic = "tinestx1"
	// indexedSize is what appendIndexed writes.
	indexedSize = 2*8 + 8 + 4 + 2*(8+4) + 2*len(ID{})
)

// loadStatIndex returns an empty index where there is none, where it is damaged, and
// where it was written before the machine last started: after a power failure a
// file may have its new ctime and its old bytes.
func loadStatIndex(path string) statIndex {
	data, err := os.ReadFile(path)
	if err != nil {
		return statIndex{}
	}
	index, boot, err := parseStatIndex(data)
	if err != nil || boot == "" || boot != bootID() {
		return statIndex{}
	}
	return index
}

func parseStatIndex(data []byte) (index statIndex, boot string, err error) {
	d, err := openChecked(data, statIndexMagic)
	if err != nil {
		return statIndex{}, "", fmt.Errorf("stat index: %w", err)
	}
	boot = d.string()
	if d.err != nil || len(d.data)%indexedSize != 0 {
		return statIndex{}, "", fmt.Errorf("stat index: %w", errMalformed)
	}
	index = statIndex{records: d.data, offsets: make(map[fileKey]int, len(d.data)/indexedSize)}
	for offset := 0; offset < len(index.records); offset += indexedSize {
		index.offsets[decodeKey(index.records[offset:])] = offset
	}
	return index, boot, nil
}

func decodeKey(record []byte) fileKey {
	return fileKey{dev: binary.BigEndian.Uint64(record), ino: binary.BigEndian.Uint64(record[8:])}
}

func decodeTimestamp(record []byte) timestamp {
	return timestamp{sec: int64(binary.BigEndian.Uint64(record)), nsec: binary.BigEndian.Uint32(record[8:])}
}

func decodeIndexed(record []byte) indexed {
	return indexed{
		stat: fileStat{
			key:   decodeKey(record),
			size:  int64(binary.BigEndian.Uint64(record[16:])),
			mode:  binary.BigEndian.Uint32(record[24:]),
			mtime: decodeTimestamp(record[28:]),
			ctime: decodeTimestamp(record[40:]),
		},
		content:    ID(record[52:84]),
		attributes: ID(record[84:116]),
	}
}

func appendIndexed(buf []byte, file *indexed) []byte {
	st := &file.stat
	buf = binary.BigEndian.AppendUint64(buf, st.key.dev)
	buf = binary.BigEndian.AppendUint64(buf, st.key.ino)
	buf = binary.BigEndian.AppendUint64(buf, uint64(st.size))
	buf = binary.BigEndian.AppendUint32(buf, st.mode)
	for _, t := range [...]timestamp{st.mtime, st.ctime} {
		buf = binary.BigEndian.AppendUint64(buf, uint64(t.sec))
		buf = binary.BigEndian.AppendUint32(buf, t.nsec)
	}
	buf = append(buf, file.content[:]...)
	return append(buf, file.attributes[:]...)
}

// racyWindow is how far the clock must have moved past a ctime before a later
// change is sure to give another one. Kernels stamp files with the time of the last
// tick, at most 10 ms ago; this is twice that.
const racyWindow = 20 * time.Millisecond

// settled tells whether a file with this ctime would have got another one if it had
// been changed at or after now.
func (t timestamp) settled(now time.Time) bool {
	return time.Unix(t.sec, int64(t.nsec)).Before(now.Add(-racyWindow))
}

// indexWriter replaces a stat index. Its temporary file is made first, because its
// timestamp is the time by the clock that stamps the files.
type indexWriter struct {
	path string
	tmp  *os.File
	// now is the time by the clock of the file system.
	now   time.Time
	saved bool
}

func newIndexWriter(tmpDir, path string) (*indexWriter, error) {
	tmp, err := os.CreateTemp(tmpDir, filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	w := &indexWriter{path: path, tmp: tmp}
	info, err := tmp.Stat()
	if err != nil {
		w.discard()
		return nil, err
	}
	w.now = info.ModTime()
	return w, nil
}

// append adds the record of a file to records, unless the file changed so shortly
// before w was made that it may change again without a sign.
func (w *indexWriter) append(records []byte, file *indexed) []byte {
	if !file.stat.ctime.settled(w.now) {
		return records
	}
	return appendIndexed(records, file)
}

// save writes an index of the given records. It is not synced: an index from before
// the last start of the machine is not used.
func (w *indexWriter) save(records ...[]byte) error {
	sum := sha256.New()
	out := io.MultiWriter(w.tmp, sum)
	header := appendString([]byte(statIndexMagic), bootID())
	for _, part := range append([][]byte{header}, records...) {
		if _, err := out.Write(part); err != nil {
			return err
		}
	}
	if _, err := w.tmp.Write(sum.Sum(nil)); err != nil {
		return err
	}
	if err := os.Rename(w.tmp.Name(), w.path); err != nil {
		return err
	}
	w.saved = true
	return nil
}

// discard closes the temporary file and removes it, unless it was saved.
func (w *indexWriter) discard() {
	_ = w.tmp.Close()
	if !w.saved {
		_ = os.Remove(w.tmp.Name())
	}
}

// bootID changes whenever the machine starts. It is empty where the kernel has none,
// and then indexes are not used.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
