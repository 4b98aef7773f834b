package store

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
)

// ID names an object by its content.
type ID [sha256.Size]byte

// String returns the ID in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// isZero tells whether the ID names nothing.
func (id ID) isZero() bool { return id == ID{} }

// domain keeps the kinds of object apart: without it an empty file and an empty
// directory, or a file that holds the bytes of a tree, would share an ID.
type domain string

const (
	blobDomain       domain = "tine blob v1\x00"
	treeDomain       domain = "tine tree v1\x00"
	attributesDomain domain = "tine attributes v1\x00"
	recordDomain     domain = "tine record v1\x00"
)

func (d domain) newHash() hash.Hash {
	h := sha256.New()
	h.Write([]byte(d))
	return h
}

func (d domain) sum(data []byte) ID {
	h := d.newHash()
	h.Write(data)
	return digest(h)
}

func digest(h hash.Hash) ID {
	var id ID
	h.Sum(id[:0])
	return id
}
