package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"time"
)

// maxReadFile is how much ReadFile returns, in bytes. ReadTo has no limit.
const maxReadFile = 32 << 20

// FileInfo describes a file in a sandbox.
type FileInfo struct {
	Name string `json:"name"`
	Path string `json:"path"` // absolute
	// Type is "file", "directory" or "other". A symlink has its target's type, if that exists.
	Type string `json:"type"`
	Size int64  `json:"size"`
	// Mode is as ls shows it: "-rw-r--r--".
	Mode    string    `json:"mode"`
	ModTime time.Time `json:"mod_time"`
	// Link is a symlink's target.
	Link string `json:"link,omitempty"`
}

// IsDir reports whether it is a directory.
func (i FileInfo) IsDir() bool { return i.Type == typeDirectory }

const (
	typeFile      = "file"
	typeDirectory = "directory"
	typeOther     = "other"
)

// ReadFile returns the content of a file of at most 32 MiB.
func (s *Sandbox) ReadFile(ctx context.Context, path string) ([]byte, error) {
	var content bytes.Buffer
	if _, err := s.ReadTo(ctx, path, &limitedWriter{to: &content, left: maxReadFile}); err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}

// limitedWriter refuses more than a file may have.
type limitedWriter struct {
	to   io.Writer
	left int
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return 0, fmt.Errorf("the file has more than %d MiB; use ReadTo", maxReadFile>>20)
	}
	w.left -= len(p)
	return w.to.Write(p)
}

// ReadTo copies the content of a file to w, and returns its size. After an error w may have
// a part of it.
func (s *Sandbox) ReadTo(ctx context.Context, path string, w io.Writer) (int64, error) {
	op := fmt.Sprintf("read %q", path)
	var n int64
	err := s.use(ctx, func(c *connection) (err error) {
		n, err = c.download(ctx, op, path, w)
		return err
	})
	return n, err
}

func (c *connection) download(ctx context.Context, op, path string, w io.Writer) (int64, error) {
	if path == "" {
		return 0, noPathError(op)
	}
	ctx, moved, stop := stallGuard(ctx)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.files(path), nil)
	if err != nil {
		return 0, c.driver.failure(ctx, op, err)
	}
	res, err := c.send(op, req)
	if err != nil {
		return 0, means(err, http.StatusNotFound, fs.ErrNotExist)
	}
	defer res.Body.Close()
	to := &keepError{write: w.Write}
	n, err := io.Copy(to, guarded{res.Body, moved})
	switch {
	case to.failed() != nil:
		return n, fmt.Errorf("e2b: %s: %w", op, to.failed())
	case err != nil:
		return n, c.driver.failure(ctx, op, err)
	}
	return n, nil
}

// WriteFile replaces the content of a file. It makes the file, and its parents, if they do
// not exist.
func (s *Sandbox) WriteFile(ctx context.Context, path string, data []byte) error {
	op := fmt.Sprintf("write %q", path)
	return s.use(ctx, func(c *connection) error {
		return c.upload(ctx, op, path, bytes.NewReader(data))
	})
}

// WriteFrom replaces the content of a file with all that r gives, without holding it in
// memory. After an error the file may have a part of it.
func (s *Sandbox) WriteFrom(ctx context.Context, path string, r io.Reader) error {
	op := fmt.Sprintf("write %q", path)
	// What was read of r is lost if the sandbox turns out to be paused, so that is asked before.
	if err := s.use(ctx, func(c *connection) error { return c.health(ctx, op) }); err != nil {
		return err
	}
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	return conn.upload(ctx, op, path, r)
}

// health reports whether the sandbox can be reached.
func (c *connection) health(ctx context.Context, op string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errNoAnswer)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/health", nil)
	if err != nil {
		return c.driver.failure(ctx, op, err)
	}
	res, err := c.send(op, req)
	if err != nil {
		return err
	}
	return c.driver.decode(ctx, op, res, nil)
}

// upload sends a file as a form, which all versions of the daemon take.
func (c *connection) upload(ctx context.Context, op, path string, content io.Reader) error {
	if path == "" {
		return noPathError(op)
	}
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	if _, err := parts.CreateFormFile("file", path); err != nil {
		return err
	}
	opening := bytes.Clone(form.Bytes())
	form.Reset()
	if err := parts.Close(); err != nil {
		return err
	}
	ctx, moved, stop := stallGuard(ctx)
	defer stop()
	from := &keepError{read: content.Read}
	body := io.MultiReader(bytes.NewReader(opening), guarded{from, moved}, &form)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.files(path), body)
	if err != nil {
		return c.driver.failure(ctx, op, err)
	}
	req.Header.Set("Content-Type", parts.FormDataContentType())
	res, err := c.send(op, req)
	if sourceErr := from.failed(); sourceErr != nil {
		if err == nil {
			res.Body.Close()
		}
		return fmt.Errorf("e2b: %s: %w", op, sourceErr)
	}
	if err != nil {
		return err
	}
	return c.driver.decode(ctx, op, res, nil)
}

func noPathError(op string) error {
	return &Error{Op: op, Status: http.StatusBadRequest, Message: "the path is empty"}
}

// Remove removes a file, or a directory with all it holds. What does not exist is no error.
func (s *Sandbox) Remove(ctx context.Context, path string) error {
	return s.filesystem(ctx, fmt.Sprintf("remove %q", path), "Remove", pathRequest{Path: path}, &struct{}{})
}

// Stat describes a file.
func (s *Sandbox) Stat(ctx context.Context, path string) (FileInfo, error) {
	var found struct {
		Entry entry `json:"entry"`
	}
	err := s.filesystem(ctx, fmt.Sprintf("stat %q", path), "Stat", pathRequest{Path: path}, &found)
	return found.Entry.info(), err
}

// Exists reports whether there is such a file.
func (s *Sandbox) Exists(ctx context.Context, path string) (bool, error) {
	_, err := s.Stat(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// List describes what is in a directory, and with a depth above 1 what is that many levels
// below it.
func (s *Sandbox) List(ctx context.Context, path string, depth int) ([]FileInfo, error) {
	var found struct {
		Entries []entry `json:"entries"`
	}
	request := listRequest{Path: path, Depth: max(depth, 1)}
	if err := s.filesystem(ctx, fmt.Sprintf("list %q", path), "ListDir", request, &found); err != nil {
		return nil, err
	}
	infos := make([]FileInfo, 0, len(found.Entries))
	for _, e := range found.Entries {
		infos = append(infos, e.info())
	}
	return infos, nil
}

type pathRequest struct {
	Path string `json:"path"`
}

type listRequest struct {
	Path  string `json:"path"`
	Depth int    `json:"depth"`
}

// filesystem calls a method of the sandbox's filesystem service.
func (s *Sandbox) filesystem(ctx context.Context, op, method string, in, out any) error {
	return s.use(ctx, func(c *connection) error {
		err := c.unary(ctx, op, "/filesystem.Filesystem/"+method, in, out)
		return means(err, http.StatusNotFound, fs.ErrNotExist)
	})
}

// entry is how the daemon describes a file.
type entry struct {
	Name         string      `json:"name"`
	Type         string      `json:"type"`
	Path         string      `json:"path"`
	Size         json.Number `json:"size"` // a string on the wire, absent when 0
	Permissions  string      `json:"permissions"`
	ModifiedTime time.Time   `json:"modifiedTime"`
	Link         string      `json:"symlinkTarget"`
}

var entryTypes = map[string]string{
	"FILE_TYPE_FILE":      typeFile,
	"FILE_TYPE_DIRECTORY": typeDirectory,
}

func (e entry) info() FileInfo {
	kind, known := entryTypes[e.Type]
	if !known {
		kind = typeOther
	}
	size, _ := e.Size.Int64() // 0 when absent
	return FileInfo{
		Name: e.Name, Path: e.Path, Type: kind, Size: size,
		Mode: e.Permissions, ModTime: e.ModifiedTime, Link: e.Link,
	}
}
