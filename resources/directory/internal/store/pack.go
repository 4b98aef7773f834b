package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// packWriter collects what one capture adds to the store, in a temporary file that
// is made when the first object comes. It is safe for concurrent use.
type packWriter struct {
	tmpDir string

	mu      sync.Mutex
	file    *os.File
	size    int64
	objects map[ID]span
}

func newPackWriter(tmpDir string) *packWriter {
	return &packWriter{tmpDir: tmpDir, objects: map[ID]span{}}
}

func (p *packWriter) has(id ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.objects[id]
	return ok
}

// reserve returns a range that the caller alone writes. A range that never gets an
// object is cut out when the pack is published.
func (p *packWriter) reserve(length int64) (file *os.File, at span, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reserveLocked(length)
}

func (p *packWriter) reserveLocked(length int64) (*os.File, span, error) {
	if p.file == nil {
		file, err := os.CreateTemp(p.tmpDir, "pack.*")
		if err != nil {
			return nil, span{}, err
		}
		p.file = file
		if _, err := file.WriteString(packMagic); err != nil {
			return nil, span{}, err
		}
		p.size = int64(len(packMagic))
	}
	at := span{offset: p.size, length: length}
	p.size += length
	return p.file, at, nil
}

// append adds an object that is in memory, unless the pack has it.
func (p *packWriter) append(id ID, data []byte) error {
	p.mu.Lock()
	if _, ok := p.objects[id]; ok {
		p.mu.Unlock()
		return nil
	}
	file, at, err := p.reserveLocked(int64(len(data)))
	if err == nil {
		p.objects[id] = at
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = file.WriteAt(data, at.offset)
	return err
}

// claim enters an object that was written to a reserved range.
func (p *packWriter) claim(id ID, at span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.objects[id]; !ok {
		p.objects[id] = at
	}
}

// discard removes the temporary file, unless it was published.
func (p *packWriter) discard() {
	if p.file != nil {
		_ = p.file.Close()
		_ = os.Remove(p.file.Name())
		p.file = nil
	}
}

// rename publishes the file. Its content is durable already.
func (p *packWriter) rename(path string) error {
	if err := os.Rename(p.file.Name(), path); err != nil {
		return err
	}
	_ = p.file.Close()
	p.file = nil
	return nil
}

// drop forgets the objects that known has.
func (p *packWriter) drop(known func(ID) bool) {
	for id := range p.objects {
		if known(id) {
			delete(p.objects, id)
		}
	}
}

// compact rewrites the pack if it holds bytes that belong to no object.
func (p *packWriter) compact() error {
	used := int64(len(packMagic))
	for _, at := range p.objects {
		used += at.length
	}
	if used == p.size {
		return nil
	}
	smaller := newPackWriter(p.tmpDir)
	inOrder := slices.SortedFunc(maps.Keys(p.objects), func(a, b ID) int {
		return cmp.Compare(p.objects[a].offset, p.objects[b].offset)
	})
	for _, id := range inOrder {
		if err := smaller.copyFrom(p.file, id, p.objects[id]); err != nil {
			smaller.discard()
			return err
		}
	}
	p.discard()
	p.file, p.size, p.objects = smaller.file, smaller.size, smaller.objects
	return p.file.Sync()
}

func (p *packWriter) copyFrom(file *os.File, id ID, at span) error {
	to, place, err := p.reserve(at.length)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.NewOffsetWriter(to, place.offset), io.NewSectionReader(file, at.offset, at.length))
	if err == nil && n != at.length {
		err = io.ErrUnexpectedEOF
	}
	p.claim(id, place)
	return err
}

// publish makes the objects of p durable parts of the store. Two captures of the
// same content at once both arrive here with all of it; whoever comes second drops
// what the first one published, so it is stored once.
func (s *Store) publish(ctx context.Context, p *packWriter) error {
	if p.file == nil {
		return nil
	}
	defer p.discard()
	// Most captures publish exactly what they wrote. Syncing before the lock is taken
	// keeps the slow part concurrent.
	if err := p.file.Sync(); err != nil {
		return err
	}
	release, err := s.lockPublishing(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := s.refresh(); err != nil {
		return err
	}
	p.drop(s.catalog.has)
	if len(p.objects) == 0 {
		return nil
	}
	if err := p.compact(); err != nil {
		return err
	}
	return s.publishPack(p)
}

// publishPack gives the pack its name, then its index, so that an index never names
// a pack that is not complete. The names are durable before anyone else may build
// on the objects.
func (s *Store) publishPack(p *packWriter) error {
	name, err := newPackName()
	if err != nil {
		return err
	}
	path := filepath.Join(s.packsDir(), name)
	if err := p.rename(path + packSuffix); err != nil {
		return err
	}
	if err := s.writeFile(path+indexSuffix, encodePackIndex(p.objects)); err != nil {
		_ = os.Remove(path + packSuffix)
		return err
	}
	if err := syncDir(s.packsDir()); err != nil {
		return err
	}
	s.catalog.add(name, p.objects)
	return s.advanceGeneration()
}

func newPackName() (string, error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", random), nil
}

// neverSeen is a generation that no store reaches.
const neverSeen = math.MaxUint64

// The generation tells, without listing all packs, whether any was published since
// the last look. It is written under the publish lock, after the pack appeared, and
// read before packs are listed, so a reader may list in vain but never miss one.

func (s *Store) generationFile() string { return filepath.Join(s.dir, "generation") }

func (s *Store) generation() (uint64, error) {
	data, err := os.ReadFile(s.generationFile())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil || len(data) != 8 {
		return 0, err
	}
	return binary.BigEndian.Uint64(data), nil
}

// refresh brings the catalog up to date with other processes.
func (s *Store) refresh() error {
	now, err := s.generation()
	if err != nil {
		return err
	}
	if s.seen.Load() == now {
		return nil
	}
	if err := s.catalog.refresh(); err != nil {
		return err
	}
	s.seen.Store(now)
	return nil
}

// advanceGeneration is called with the publish lock held and the catalog refreshed.
func (s *Store) advanceGeneration() error {
	now, err := s.generation()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(s.generationFile(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteAt(binary.BigEndian.AppendUint64(nil, now+1), 0); err != nil {
		return err
	}
	s.seen.Store(now + 1)
	return nil
}
