//go:build linux

package store

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// objectReader reads objects and checks them. It keeps the packs it used last open,
// and serves one goroutine.
type objectReader struct {
	store *Store
	packs map[string]*os.File
	buf   []byte
}

// maxOpenPacks bounds the descriptors of a reader: a long execution has thousands of
// packs.
const maxOpenPacks = 64

func (o *objectReader) close() {
	for _, pack := range o.packs {
		_ = pack.Close()
	}
	o.packs = nil
}

// storedObject reads the bytes of an object.
type storedObject struct {
	*io.SectionReader
	what string
	id   ID
	pack string
}

func (o *objectReader) open(what string, id ID) (storedObject, error) {
	at, ok := o.store.catalog.locate(id)
	if !ok {
		// The generation may lag behind a process that died after it published.
		if err := o.store.catalog.refresh(); err != nil {
			return storedObject{}, err
		}
		if at, ok = o.store.catalog.locate(id); !ok {
			return storedObject{}, unavailable("%s %s is missing from the store", what, id)
		}
	}
	pack, err := o.pack(at.pack)
	if errors.Is(err, fs.ErrNotExist) {
		return storedObject{}, unavailable("%s %s is lost with pack %s", what, id, at.pack)
	}
	if err != nil {
		return storedObject{}, err
	}
	bytes := io.NewSectionReader(pack, at.offset, at.length)
	return storedObject{SectionReader: bytes, what: what, id: id, pack: at.pack}, nil
}

// check turns what a read of the object found into the error of a damaged one.
func (o storedObject) check(found ID, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return unavailable("%s %s is cut short in pack %s", o.what, o.id, o.pack)
	}
	if err == nil && found != o.id {
		return unavailable("%s %s is damaged in pack %s", o.what, o.id, o.pack)
	}
	return err
}

func (o *objectReader) pack(name string) (*os.File, error) {
	if pack, ok := o.packs[name]; ok {
		return pack, nil
	}
	if len(o.packs) == maxOpenPacks {
		o.close()
	}
	pack, err := os.Open(filepath.Join(o.store.packsDir(), name+packSuffix))
	if err != nil {
		return nil, err
	}
	if o.packs == nil {
		o.packs = make(map[string]*os.File, maxOpenPacks)
	}
	o.packs[name] = pack
	return pack, nil
}

// blob writes a file's content to file. What it has written when it fails may be
// damaged.
func (o *objectReader) blob(ctx context.Context, id ID, size int64, file io.Writer) error {
	from, err := o.open("blob", id)
	if err != nil {
		return err
	}
	if from.Size() != size {
		return unavailable("blob %s has %d bytes instead of %d", id, from.Size(), size)
	}
	if o.buf == nil {
		o.buf = make([]byte, inMemory)
	}
	return from.check(copyHashed(ctx, file, from, size, o.buf))
}

func (o *objectReader) tree(id ID) ([]entry, error) {
	data, err := o.object("tree", treeDomain, id)
	if err != nil {
		return nil, err
	}
	entries, err := decodeTree(data)
	if err != nil {
		return nil, unavailable("tree %s: %w", id, err)
	}
	return entries, nil
}

func (o *objectReader) attributes(id ID) ([]attribute, error) {
	data, err := o.object("attributes", attributesDomain, id)
	if err != nil {
		return nil, err
	}
	attributes, err := decodeAttributes(data)
	if err != nil {
		return nil, unavailable("attributes %s: %w", id, err)
	}
	return attributes, nil
}

// object reads a whole object into memory.
func (o *objectReader) object(what string, in domain, id ID) ([]byte, error) {
	from, err := o.open(what, id)
	if err != nil {
		return nil, err
	}
	data := make([]byte, from.Size())
	_, err = io.ReadFull(from, data)
	return data, from.check(in.sum(data), err)
}
