package e2btest

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// entryInfo describes a file, directory or symbolic link.
type entryInfo struct {
	Name          string            `json:"name,omitempty"`
	Type          string            `json:"type,omitempty"`
	Path          string            `json:"path,omitempty"`
	Size          int64             `json:"size,string,omitempty"`
	Mode          uint32            `json:"mode,omitempty"`
	Permissions   string            `json:"permissions,omitempty"`
	Owner         string            `json:"owner,omitempty"`
	Group         string            `json:"group,omitempty"`
	ModifiedTime  time.Time         `json:"modifiedTime"`
	SymlinkTarget string            `json:"symlinkTarget,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
}

type entryAnswer struct {
	Entry *entryInfo `json:"entry"`
}

// entry describes what is at a path of the sandbox. A symbolic link has the type of its target.
func (c *rpc) entry(name string) (*entryInfo, error) {
	host := c.sandbox.hostPath(name)
	info, err := os.Lstat(host)
	if err != nil {
		return nil, c.fileError(err, "file not found: %s", name)
	}
	entry := &entryInfo{
		Name: path.Base(name), Path: name, Size: info.Size(),
		Mode: uint32(info.Mode().Perm()), Permissions: info.Mode().String(),
		Owner: defaultUser, Group: defaultUser, ModifiedTime: info.ModTime().UTC(),
	}
	kind := info.Mode()
	if kind.Type() == fs.ModeSymlink {
		if target, err := filepath.EvalSymlinks(host); err == nil {
			entry.SymlinkTarget = c.sandbox.guestPath(target)
		}
		if target, err := os.Stat(host); err == nil {
			kind = target.Mode()
		}
	}
	switch kind.Type() {
	case fs.ModeDir:
		entry.Type = "FILE_TYPE_DIRECTORY"
	case fs.ModeSymlink: // to nowhere
		entry.Type = "FILE_TYPE_SYMLINK"
	case 0:
		entry.Type = "FILE_TYPE_FILE"
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	entry.Metadata = cloneMap(c.sandbox.fileMetadata[name])
	return entry, nil
}

// fileError is not_found if that is what err says.
func (c *rpc) fileError(err error, format string, args ...any) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return rpcErrorf("not_found", format, args...)
	}
	return rpcErrorf("internal", "%v", c.sandbox.guestError(err))
}

func (c *rpc) resolve(name string) string { return c.sandbox.resolve(c.home, name) }

func (c *rpc) listDir() (any, error) {
	var body struct {
		Path  string `json:"path"`
		Depth uint32 `json:"depth"`
	}
	if err := c.decode(&body); err != nil {
		return nil, err
	}
	depth := int(max(body.Depth, 1))
	name := c.resolve(body.Path)
	root, err := filepath.EvalSymlinks(c.sandbox.hostPath(name))
	if err != nil {
		return nil, c.fileError(err, "path not found: %s", name)
	}
	if info, err := os.Stat(root); err != nil || !info.IsDir() {
		return nil, rpcErrorf("invalid_argument", "path is not a directory: %s", name)
	}
	answer := struct {
		Entries []*entryInfo `json:"entries,omitempty"`
	}{}
	err = filepath.WalkDir(root, func(host string, d fs.DirEntry, err error) error {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		rel := strings.TrimPrefix(host, root)
		if rel == "" {
			return nil
		}
		entry, err := c.entry(path.Join(name, rel))
		if err == nil {
			answer.Entries = append(answer.Entries, entry)
		}
		if d != nil && d.IsDir() && strings.Count(rel, "/") == depth {
			return fs.SkipDir
		}
		return nil // what is gone by now is left out
	})
	if err != nil {
		return nil, c.fileError(err, "path not found: %s", name)
	}
	return answer, nil
}

type pathBody struct {
	Path string `json:"path"`
}

func (c *rpc) stat() (any, error) {
	var body pathBody
	if err := c.decode(&body); err != nil {
		return nil, err
	}
	return c.answer(c.resolve(body.Path))
}

// answer is the answer of calls that tell of one entry.
func (c *rpc) answer(name string) (any, error) {
	entry, err := c.entry(name)
	if err != nil {
		return nil, err
	}
	return entryAnswer{entry}, nil
}

func (c *rpc) makeDir() (any, error) {
	var body pathBody
	if err := c.decode(&body); err != nil {
		return nil, err
	}
	name := c.resolve(body.Path)
	if info, err := os.Stat(c.sandbox.hostPath(name)); err == nil {
		if info.IsDir() {
			return nil, rpcErrorf("already_exists", "directory already exists: %s", name)
		}
		return nil, rpcErrorf("invalid_argument", "path already exists but it is not a directory: %s", name)
	}
	if err := os.MkdirAll(c.sandbox.hostPath(name), 0o755); err != nil {
		return nil, rpcErrorf("internal", "%v", c.sandbox.guestError(err))
	}
	return c.answer(name)
}

func (c *rpc) move() (any, error) {
	var body struct {
		Source      string `json:"source"`
		Destination string `json:"destination"`
	}
	if err := c.decode(&body); err != nil {
		return nil, err
	}
	from, to := c.resolve(body.Source), c.resolve(body.Destination)
	if err := os.MkdirAll(filepath.Dir(c.sandbox.hostPath(to)), 0o755); err != nil {
		return nil, rpcErrorf("internal", "%v", c.sandbox.guestError(err))
	}
	if err := os.Rename(c.sandbox.hostPath(from), c.sandbox.hostPath(to)); err != nil {
		return nil, c.fileError(err, "source file not found: %s", from)
	}
	c.moveMetadata(from, to)
	return c.answer(to)
}

func (c *rpc) remove() (any, error) {
	var body pathBody
	if err := c.decode(&body); err != nil {
		return nil, err
	}
	name := c.resolve(body.Path)
	if err := removeAll(c.sandbox.hostPath(name)); err != nil {
		return nil, rpcErrorf("internal", "%v", c.sandbox.guestError(err))
	}
	c.moveMetadata(name, "")
	return struct{}{}, nil
}

// moveMetadata makes metadata follow files from one path to another, or drops it if that is empty.
func (c *rpc) moveMetadata(from, to string) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	moved := map[string]map[string]string{}
	for name, metadata := range c.sandbox.fileMetadata {
		if rest, ok := strings.CutPrefix(name, from); ok && (rest == "" || rest[0] == '/') {
			delete(c.sandbox.fileMetadata, name)
			moved[to+rest] = metadata
		}
	}
	if to != "" {
		for name, metadata := range moved {
			c.sandbox.fileMetadata[name] = metadata
		}
	}
}
