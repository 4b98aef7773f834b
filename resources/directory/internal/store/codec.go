package store

import (
	"encoding/binary"
	"errors"
)

var errMalformed = errors.New("malformed encoding")

// decoder reads the store's binary encodings. The first failure sticks, so callers
// read a whole structure and check err once. It never allocates: what it returns
// lies within data.
type decoder struct {
	data []byte
	err  error
}

func (d *decoder) fail() {
	d.data = nil
	d.err = errMalformed
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.data)) {
		d.fail()
		return nil
	}
	head := d.data[:n]
	d.data = d.data[n:]
	return head
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.data)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.data = d.data[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.data)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.data = d.data[n:]
	return v
}

// uint32 reads an unsigned varint that must fit 32 bits.
func (d *decoder) uint32() uint32 {
	v := d.uvarint()
	if v > 1<<32-1 {
		d.fail()
	}
	return uint32(v)
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// flag reads a byte that can only be 0 or 1.
func (d *decoder) flag() bool {
	b := d.byte()
	if b > 1 {
		d.fail()
	}
	return b == 1
}

func (d *decoder) string() string { return string(d.bytes(d.uvarint())) }

func (d *decoder) id() ID {
	var id ID
	copy(id[:], d.bytes(uint64(len(id))))
	return id
}

func (d *decoder) fixed64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// end reports whether everything was read, and nothing failed.
func (d *decoder) end() error {
	if d.err == nil && len(d.data) > 0 {
		d.fail()
	}
	return d.err
}

func appendString[S ~string | ~[]byte](buf []byte, s S) []byte {
	buf = binary.AppendUvarint(buf, uint64(len(s)))
	return append(buf, s...)
}
