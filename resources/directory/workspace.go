package directory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gofrs/flock"

	"github.com/tinerun/tine/resources"
)

// Workspace is a directory that belongs to one resource. Its file operations take
// paths relative to the directory and refuse those that lead out of it, by name or
// through a symlink. Their errors name that path and keep the host's to themselves.
//
// A Workspace holds no open files, and is safe for concurrent use as far as the
// files are.
type Workspace struct {
	id    string
	state string
}

// Entry is a file of a workspace as List describes it.
type Entry struct {
	// Path is relative to the workspace, with slashes.
	Path string `json:"path"`
	// Mode is as ls shows it: "-rw-r--r--".
	Mode string `json:"mode"`
	Size int64  `json:"size"`
	// SHA256 is of a regular file's content, in hexadecimal.
	SHA256 string `json:"sha256,omitempty"`
	// Link is a symlink's target.
	Link string `json:"link,omitempty"`
}

// filesName is the workspace itself in its state directory.
const filesName = "files"

// newDirMode is for parents that WriteFile makes; the umask applies.
const newDirMode = 0o755

// Path returns the absolute path of the directory, for programs that work in it.
// What they do there is not confined.
func (w *Workspace) Path() string { return filepath.Join(w.state, filesName) }

// ReadFile returns the content of a regular file.
func (w *Workspace) ReadFile(path string) ([]byte, error) {
	var data []byte
	err := w.within("read", path, func(root *os.Root, name string) (err error) {
		data, err = readRegular(root, name, io.ReadAll)
		return err
	})
	return data, err
}

// WriteFile replaces the content of a file. It makes the file with mode perm, and its
// parents, if they do not exist.
func (w *Workspace) WriteFile(path string, data []byte, perm fs.FileMode) error {
	return w.write("write", path, data, os.O_TRUNC, perm)
}

// AppendFile adds to the end of a file. It makes the file with mode perm, and its
// parents, if they do not exist.
func (w *Workspace) AppendFile(path string, data []byte, perm fs.FileMode) error {
	return w.write("append to", path, data, os.O_APPEND, perm)
}

func (w *Workspace) write(op, path string, data []byte, flag int, perm fs.FileMode) error {
	return w.within(op, path, func(root *os.Root, name string) error {
		if err := root.MkdirAll(filepath.Dir(name), newDirMode); err != nil {
			return err
		}
		file, err := openRegular(root, name, os.O_WRONLY|os.O_CREATE|flag, perm)
		if err != nil {
			return err
		}
		_, err = file.Write(data)
		return errors.Join(err, file.Close())
	})
}

// Remove removes a file, or a directory with all it holds. What does not exist cannot
// be removed: the error is fs.ErrNotExist.
func (w *Workspace) Remove(path string) error {
	return w.within("remove", path, func(root *os.Root, name string) error {
		if name == "." {
			return errors.New("this is the workspace itself; remove what is in it")
		}
		if _, err := root.Lstat(name); err != nil {
			return err
		}
		return root.RemoveAll(name)
	})
}

// List describes all files and symlinks of the workspace, sorted by path. Directories
// are not listed.
func (w *Workspace) List() ([]Entry, error) {
	entries := []Entry{}
	err := w.within("list", ".", func(root *os.Root, name string) error {
		return list(root, name, &entries)
	})
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return entries, err
}

func list(root *os.Root, dir string, entries *[]Entry) error {
	names, err := readDirNames(root, dir)
	if err != nil {
		return fmt.Errorf("%q: %w", dir, cause(err))
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := root.Lstat(path)
		if err != nil {
			return fmt.Errorf("%q: %w", path, cause(err))
		}
		if info.IsDir() {
			if err := list(root, path, entries); err != nil {
				return err
			}
			continue
		}
		entry, err := describe(root, path, info)
		if err != nil {
			return fmt.Errorf("%q: %w", path, cause(err))
		}
		*entries = append(*entries, entry)
	}
	return nil
}

func readDirNames(root *os.Root, dir string) ([]string, error) {
	file, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return file.Readdirnames(-1)
}

func describe(root *os.Root, path string, info fs.FileInfo) (entry Entry, err error) {
	entry = Entry{Path: filepath.ToSlash(path), Mode: info.Mode().String(), Size: info.Size()}
	switch {
	case info.Mode().IsRegular():
		entry.SHA256, err = readRegular(root, path, hashContent)
	case info.Mode()&fs.ModeSymlink != 0:
		entry.Link, err = root.Readlink(path)
	}
	return entry, err
}

func hashContent(content io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, content)
	return hex.EncodeToString(h.Sum(nil)), err
}

func readRegular[T any](root *os.Root, name string, read func(io.Reader) (T, error)) (T, error) {
	file, err := openRegular(root, name, os.O_RDONLY, 0)
	if err != nil {
		var none T
		return none, err
	}
	defer file.Close()
	return read(file)
}

// openRegular refuses FIFOs and devices, which could block a tool for ever; so would
// opening one without O_NONBLOCK.
func openRegular(root *os.Root, name string, flag int, perm fs.FileMode) (*os.File, error) {
	file, err := root.OpenFile(name, flag|syscall.O_NONBLOCK, perm)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = syscall.EISDIR
	} else if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// within runs do with the open workspace and the cleaned path.
func (w *Workspace) within(op, path string, do func(root *os.Root, name string) error) error {
	name := filepath.Clean(path)
	if path == "" || !filepath.IsLocal(name) {
		return fmt.Errorf("%s %q: the path leaves the workspace; use one relative to its top directory", op, path)
	}
	root, err := w.openRoot()
	if err != nil {
		return fmt.Errorf("%s %q: %w", op, path, err)
	}
	defer root.Close()
	if err := do(root, name); err != nil {
		return fmt.Errorf("%s %q: %w", op, path, cause(err))
	}
	return nil
}

// openRoot opens the directory by way of its parent, so that a symlink in its place
// does not lead out.
func (w *Workspace) openRoot() (*os.Root, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	state, err := os.OpenRoot(w.state)
	if err != nil {
		return nil, cause(err)
	}
	defer state.Close()
	root, err := state.OpenRoot(filesName)
	if err != nil {
		return nil, cause(err)
	}
	return root, nil
}

// cause strips the path that the os package adds: the caller names the right one.
func cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

func (w *Workspace) partialPath() string { return w.Path() + ".partial" }
func (w *Workspace) indexFile() string   { return w.Path() + ".index" }
func (w *Workspace) lockFile() string    { return filepath.Join(w.state, "lock") }
func (w *Workspace) ownerFile() string   { return filepath.Join(w.state, "owner.json") }

// check returns nil if the workspace exists, and ErrGone if it does not.
func (w *Workspace) check() error {
	info, err := os.Lstat(w.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: this host's store has no workspace %s; it was removed, or belongs to another host", resources.ErrGone, w.id)
	}
	if err != nil {
		return fmt.Errorf("workspace %s: %w", w.id, cause(err))
	}
	if !info.IsDir() {
		return fmt.Errorf("workspace %s was replaced by something that is no directory", w.id)
	}
	return nil
}

// lock keeps others from building or capturing the workspace meanwhile.
func (w *Workspace) lock(ctx context.Context) (release func(), err error) {
	lock := flock.New(w.lockFile())
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return nil, fmt.Errorf("lock workspace: %w", err)
	}
	return func() { _ = lock.Unlock() }, nil
}

// ownerRecord tells people, and whoever looks for orphans, what a workspace is for.
type ownerRecord struct {
	resources.Owner
	Checkpoint string          `json:"checkpoint,omitempty"`
	Config     json.RawMessage `json:"config,omitempty"`
}

func (w *Workspace) saveOwner(req resources.CreateRequest) error {
	data, err := json.Marshal(ownerRecord{Owner: req.Owner, Checkpoint: req.Checkpoint, Config: req.Config})
	if err != nil {
		return err
	}
	return os.WriteFile(w.ownerFile(), append(data, '\n'), 0o600)
}

// sweep removes an unfinished workspace that nobody is making.
func (w *Workspace) sweep() error {
	if _, err := os.Lstat(w.partialPath()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	lock := flock.New(w.lockFile())
	if ok, err := lock.TryLock(); err != nil || !ok {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	return removeTree(w.partialPath())
}
