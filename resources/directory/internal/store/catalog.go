package store

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// location tells where an object's bytes lie.
type location struct {
	pack   string
	offset int64
	length int64
}

// catalog knows the objects of all published packs. It is a copy in memory of the
// pack indexes, which never change; refresh adds those that other processes wrote.
type catalog struct {
	dir string

	mu      sync.RWMutex
	loaded  map[string]bool
	objects map[ID]location
}

func newCatalog(dir string) *catalog {
	return &catalog{dir: dir, loaded: map[string]bool{}, objects: map[ID]location{}}
}

func (c *catalog) locate(id ID) (location, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	at, ok := c.objects[id]
	return at, ok
}

func (c *catalog) has(id ID) bool {
	_, ok := c.locate(id)
	return ok
}

// add enters the objects of a pack. Where an object is known already, the older
// place stays.
func (c *catalog) add(pack string, objects map[ID]span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loaded[pack] = true
	for id, at := range objects {
		if _, known := c.objects[id]; !known {
			c.objects[id] = location{pack: pack, offset: at.offset, length: at.length}
		}
	}
}

// refresh enters the packs that were published since the last refresh.
func (c *catalog) refresh() error {
	files, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		pack, isIndex := strings.CutSuffix(file.Name(), indexSuffix)
		if !isIndex || c.isLoaded(pack) {
			continue
		}
		objects, err := loadPackIndex(c.dir, pack)
		if err != nil {
			return err
		}
		c.add(pack, objects)
	}
	return nil
}

func (c *catalog) isLoaded(pack string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.loaded[pack]
}

const (
	packSuffix  = ".pack"
	indexSuffix = ".idx"
)

// span is a range of a pack.
type span struct{ offset, length int64 }

// loadPackIndex returns the objects that can be read from a pack. A damaged index
// and a truncated pack are no error: what they held is missing, so that captures
// store it again and restores that need it fail, and all the rest stays usable.
func loadPackIndex(dir, pack string) (map[ID]span, error) {
	data, err := os.ReadFile(filepath.Join(dir, pack+indexSuffix))
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(filepath.Join(dir, pack+packSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	objects, err := parsePackIndex(data)
	if err != nil {
		return nil, nil
	}
	for id, at := range objects {
		if at.length > info.Size() || at.offset > info.Size()-at.length {
			delete(objects, id)
		}
	}
	return objects, nil
}

const (
	packMagic  = "tinepak1"
	indexMagic = "tineidx1"
	// indexEntrySize is an ID, an offset and a length.
	indexEntrySize = len(ID{}) + 8 + 8
)

func encodePackIndex(objects map[ID]span) []byte {
	buf := make([]byte, 0, len(indexMagic)+8+len(objects)*indexEntrySize+sha256.Size)
	buf = append(buf, indexMagic...)
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(objects)))
	for id, at := range objects {
		buf = append(buf, id[:]...)
		buf = binary.BigEndian.AppendUint64(buf, uint64(at.offset))
		buf = binary.BigEndian.AppendUint64(buf, uint64(at.length))
	}
	return appendChecksum(buf)
}

func parsePackIndex(data []byte) (map[ID]span, error) {
	d, err := openChecked(data, indexMagic)
	if err != nil {
		return nil, fmt.Errorf("pack index: %w", err)
	}
	count := d.fixed64()
	if count != uint64(len(d.data)/indexEntrySize) {
		return nil, fmt.Errorf("pack index: %w", errMalformed)
	}
	objects := make(map[ID]span, count)
	for range count {
		id, at := d.id(), span{offset: int64(d.fixed64()), length: int64(d.fixed64())}
		if at.offset < 0 || at.length < 0 {
			return nil, fmt.Errorf("pack index: %w", errMalformed)
		}
		objects[id] = at
	}
	return objects, d.end()
}

// appendChecksum ends an encoding whose reader uses openChecked.
func appendChecksum(buf []byte) []byte {
	sum := sha256.Sum256(buf)
	return append(buf, sum[:]...)
}

// openChecked checks the checksum and the magic of an encoding, and returns a
// decoder for what lies between.
func openChecked(data []byte, magic string) (*decoder, error) {
	if len(data) < len(magic)+sha256.Size {
		return nil, errMalformed
	}
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if sha256.Sum256(body) != [sha256.Size]byte(sum) {
		return nil, errors.New("checksum does not match")
	}
	if string(body[:len(magic)]) != magic {
		return nil, errors.New("not a file of this format")
	}
	return &decoder{data: body[len(magic):]}, nil
}
