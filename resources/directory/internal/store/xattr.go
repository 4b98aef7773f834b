//go:build linux

package store

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// attribute is one extended attribute; ACLs and capabilities are some, too.
type attribute struct {
	name  string
	value []byte
}

// kept tells which attributes belong to a file's content. The rest, SELinux labels
// above all, is up to the machine that the file lies on.
func kept(name string) bool {
	return strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "trusted.") ||
		strings.HasPrefix(name, "system.posix_acl_") || name == "security.capability"
}

// readAttributes returns the kept attributes of an open file, sorted.
func readAttributes(fd int) ([]attribute, error) {
	list, err := growing(func(buf []byte) (int, error) { return unix.Flistxattr(fd, buf) })
	if err != nil || len(list) == 0 {
		return nil, err
	}
	names := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
	slices.Sort(names)
	var attributes []attribute
	for _, name := range names {
		if !kept(name) {
			continue
		}
		value, err := growing(func(buf []byte) (int, error) { return unix.Fgetxattr(fd, name, buf) })
		if errors.Is(err, unix.ENODATA) {
			continue // Removed meanwhile, which moved the ctime: the caller notices.
		}
		if err != nil {
			return nil, err
		}
		attributes = append(attributes, attribute{name: name, value: value})
	}
	return attributes, nil
}

// growing calls read with a larger buffer until the result fits. Nothing is read
// where the file system has no attributes.
func growing(read func(buf []byte) (int, error)) ([]byte, error) {
	var small [256]byte
	for buf := small[:]; ; buf = make([]byte, 4*len(buf)) {
		n, err := read(buf)
		switch {
		case err == nil:
			return slices.Clone(buf[:n]), nil
		case errors.Is(err, unix.ENOTSUP):
			return nil, nil
		case !errors.Is(err, unix.ERANGE):
			return nil, err
		}
	}
}

// writeAttributes sets the attributes of an open file. Those that only root may set
// are left out for other users, as owners are.
func writeAttributes(fd int, attributes []attribute, privileged bool) error {
	for _, a := range attributes {
		rootOnly := strings.HasPrefix(a.name, "trusted.") || strings.HasPrefix(a.name, "security.")
		if rootOnly && !privileged {
			continue
		}
		if err := unix.Fsetxattr(fd, a.name, a.value, 0); err != nil {
			return err
		}
	}
	return nil
}

// removeACLs leaves a directory with its mode only.
func removeACLs(fd int) error {
	for _, name := range []string{"system.posix_acl_default", "system.posix_acl_access"} {
		err := unix.Fremovexattr(fd, name)
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
	}
	return nil
}

func encodeAttributes(attributes []attribute) []byte {
	buf := binary.AppendUvarint(nil, uint64(len(attributes)))
	for _, a := range attributes {
		buf = appendString(buf, a.name)
		buf = appendString(buf, a.value)
	}
	return buf
}

func decodeAttributes(data []byte) ([]attribute, error) {
	d := &decoder{data: data}
	var attributes []attribute
	for range d.uvarint() {
		a := attribute{name: d.string(), value: d.bytes(d.uvarint())}
		if d.err != nil {
			return nil, d.err
		}
		attributes = append(attributes, a)
	}
	return attributes, d.end()
}
