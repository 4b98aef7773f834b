package store

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// kind is the type of a tree's entry. The letters are part of the format.
type kind byte

const (
	kindFile     kind = 'f'
	kindDir      kind = 'd'
	kindSymlink  kind = 'l'
	kindFIFO     kind = 'p'
	kindHardLink kind = 'h'
)

// timestamp has the full range of the file system; nanoseconds since 1970 in 64
// bits would not reach year 9999.
type timestamp struct {
	sec  int64
	nsec uint32
}

// entry is one name in a directory.
type entry struct {
	name string
	kind kind
	// mode holds the permission bits with setuid, setgid and sticky.
	mode     uint32
	uid, gid uint32
	mtime    timestamp
	// attributes names the set of extended attributes; zero if there are none.
	attributes ID
	// size and content describe a file; content of a directory is its tree.
	size    int64
	content ID
	// target is where a symlink points, or for a hard link the path, from the root,
	// of the first name of the same file. A hard link has no metadata of its own.
	target string
}

// minEntrySize is what the shortest entry takes: one byte of name with its length,
// the kind, and a target of one byte. It bounds what a decoder allocates.
const minEntrySize = 5

// treeVersion starts every tree, so that a reader never guesses.
const treeVersion = 1

// appendTree encodes entries, which must be sorted by name: the same directory has
// to give the same bytes.
func appendTree(buf []byte, entries []entry) []byte {
	buf = append(buf, treeVersion)
	buf = binary.AppendUvarint(buf, uint64(len(entries)))
	for i := range entries {
		buf = appendEntry(buf, &entries[i])
	}
	return buf
}

func appendEntry(buf []byte, e *entry) []byte {
	buf = appendString(buf, e.name)
	buf = append(buf, byte(e.kind))
	if e.kind == kindHardLink {
		return appendString(buf, e.target)
	}
	buf = binary.AppendUvarint(buf, uint64(e.mode))
	buf = binary.AppendUvarint(buf, uint64(e.uid))
	buf = binary.AppendUvarint(buf, uint64(e.gid))
	buf = binary.AppendVarint(buf, e.mtime.sec)
	buf = binary.AppendUvarint(buf, uint64(e.mtime.nsec))
	if e.attributes.isZero() {
		buf = append(buf, 0)
	} else {
		buf = append(buf, 1)
		buf = append(buf, e.attributes[:]...)
	}
	switch e.kind {
	case kindFile:
		buf = binary.AppendUvarint(buf, uint64(e.size))
		buf = append(buf, e.content[:]...)
	case kindDir:
		buf = append(buf, e.content[:]...)
	case kindSymlink:
		buf = appendString(buf, e.target)
	}
	return buf
}

// decodeTree is the inverse of appendTree. It refuses whatever could make a restore
// leave its directory.
func decodeTree(data []byte) ([]entry, error) {
	d := &decoder{data: data}
	if version := d.byte(); d.err == nil && version != treeVersion {
		return nil, fmt.Errorf("tree has version %d; this program reads %d", version, treeVersion)
	}
	count := d.uvarint()
	if count > uint64(len(d.data)/minEntrySize) {
		return nil, errMalformed
	}
	entries := make([]entry, count)
	for i := range entries {
		entries[i] = decodeEntry(d)
		if d.err != nil {
			return nil, d.err
		}
		if err := checkEntry(&entries[i]); err != nil {
			return nil, err
		}
		if i > 0 && entries[i-1].name >= entries[i].name {
			return nil, fmt.Errorf("tree is not sorted at %q", entries[i].name)
		}
	}
	return entries, d.end()
}

func decodeEntry(d *decoder) entry {
	e := entry{name: d.string(), kind: kind(d.byte())}
	if e.kind == kindHardLink {
		e.target = d.string()
		return e
	}
	e.mode, e.uid, e.gid = d.uint32(), d.uint32(), d.uint32()
	e.mtime = timestamp{sec: d.varint(), nsec: d.uint32()}
	if d.flag() {
		e.attributes = d.id()
	}
	switch e.kind {
	case kindFile:
		e.size, e.content = int64(d.uvarint()), d.id()
	case kindDir:
		e.content = d.id()
	case kindSymlink:
		e.target = d.string()
	}
	return e
}

func checkEntry(e *entry) error {
	if !validName(e.name) {
		return fmt.Errorf("invalid name %q in tree", e.name)
	}
	switch e.kind {
	case kindFile, kindDir, kindSymlink, kindFIFO:
	case kindHardLink:
		if !slices.ContainsFunc(strings.Split(e.target, "/"), func(part string) bool { return !validName(part) }) {
			return nil
		}
		return fmt.Errorf("invalid hard link target %q in tree", e.target)
	default:
		return fmt.Errorf("unknown kind %q of %q in tree", byte(e.kind), e.name)
	}
	if e.mode&^permissionBits != 0 || e.mtime.nsec >= 1e9 || e.size < 0 {
		return fmt.Errorf("invalid metadata of %q in tree", e.name)
	}
	return nil
}

// permissionBits are the mode bits that a tree keeps.
const permissionBits = 0o7777

func validName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
