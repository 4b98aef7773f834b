package e2btest

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

var filesParameters = []string{"path", "username", "signature", "signature_expiration"}

// metadataPrefix starts the headers of an upload that become metadata of the files.
const metadataPrefix = "X-Metadata-"

func (s *Server) serveFiles(w http.ResponseWriter, r *http.Request, sb *sandbox) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	for name, values := range query {
		if !slices.Contains(filesParameters, name) || len(values) > 1 {
			return refuse(http.StatusBadRequest, "query parameter %s: it is unknown, or there more than once", name)
		}
	}
	operation := map[string]string{http.MethodGet: "read", http.MethodPost: "write"}[r.Method]
	if operation == "" {
		return refuse(http.StatusMethodNotAllowed, "there is no %s here", r.Method)
	}
	if !sb.authorized(r) && !(query.Has("signature") && sb.signed(query, operation)) {
		return refuse(http.StatusUnauthorized, "missing or wrong access token or signature")
	}
	dir, ok := home(query.Get("username"))
	if !ok {
		return refuse(http.StatusUnauthorized, "error looking up user '%s'", query.Get("username"))
	}
	if operation == "read" {
		return sb.download(w, r, sb.resolve(dir, query.Get("path")))
	}
	return s.upload(w, r, sb, dir, query)
}

func (sb *sandbox) download(w http.ResponseWriter, r *http.Request, name string) error {
	// What is no regular file might never end, or block before it begins.
	info, err := os.Stat(sb.hostPath(name))
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return refuse(http.StatusNotFound, "path '%s' does not exist", name)
	case err != nil:
		return sb.guestError(err)
	case info.IsDir():
		return refuse(http.StatusBadRequest, "path '%s' is a directory", name)
	case !info.Mode().IsRegular():
		return refuse(http.StatusBadRequest, "path '%s' is not a regular file", name)
	}
	file, err := os.Open(sb.hostPath(name))
	if err != nil {
		return sb.guestError(err)
	}
	defer file.Close()

	compress, ok := acceptsGzip(r.Header)
	if !ok {
		return refuse(http.StatusNotAcceptable, "no acceptable encoding")
	}
	h := w.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(name)}))
	h.Set("Vary", "Accept-Encoding")
	if !compress || info.Size() == 0 || r.Header.Get("Range") != "" {
		http.ServeContent(w, r, path.Base(name), info.ModTime(), file)
		return nil
	}
	h.Set("Content-Encoding", "gzip")
	h.Set("Content-Type", contentType(name))
	packed, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if _, err := io.Copy(packed, file); err != nil {
		panic(http.ErrAbortHandler) // the answer has begun
	}
	if err := packed.Close(); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

func contentType(name string) string {
	if byExtension := mime.TypeByExtension(filepath.Ext(name)); byExtension != "" {
		return byExtension
	}
	return "application/octet-stream"
}

// acceptsGzip tells whether a client takes gzip, and whether it takes anything that there is.
func acceptsGzip(h http.Header) (compress, ok bool) {
	quality := map[string]float64{"identity": 1}
	for _, value := range h.Values("Accept-Encoding") {
		for _, element := range strings.Split(value, ",") {
			coding, params, _ := strings.Cut(strings.TrimSpace(element), ";")
			q := 1.0
			if text, has := strings.CutPrefix(strings.TrimSpace(params), "q="); has {
				q, _ = strconv.ParseFloat(text, 64)
			}
			if coding = strings.ToLower(strings.TrimSpace(coding)); coding == "*" {
				coding = "identity"
			}
			quality[coding] = q
		}
	}
	return quality["gzip"] > 0, quality["gzip"] > 0 || quality["identity"] > 0
}

// writeInfo tells of an uploaded file.
type writeInfo struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func (s *Server) upload(w http.ResponseWriter, r *http.Request, sb *sandbox, home string, query url.Values) error {
	body := io.Reader(r.Body)
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "":
	case "gzip":
		packed, err := gzip.NewReader(body)
		if err != nil {
			return refuse(http.StatusBadRequest, "error decompressing request body: %v", err)
		}
		body = packed
	default:
		return refuse(http.StatusBadRequest, "content encoding %q: it must be gzip", encoding)
	}
	metadata := map[string]string{}
	for header, values := range r.Header {
		if key, ok := strings.CutPrefix(header, metadataPrefix); ok {
			metadata[strings.ToLower(key)] = values[0]
		}
	}
	put := func(name string, content io.Reader) (writeInfo, error) {
		return s.put(sb, sb.resolve(home, name), content, metadata)
	}

	var written []writeInfo
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err != nil:
		return refuse(http.StatusBadRequest, "content type %q: %v", r.Header.Get("Content-Type"), err)
	case kind == "application/octet-stream":
		if query.Get("path") == "" {
			return refuse(http.StatusBadRequest, "path is required for an upload as application/octet-stream")
		}
		info, err := put(query.Get("path"), body)
		if err != nil {
			return err
		}
		written = append(written, info)
	case kind == "multipart/form-data" && params["boundary"] != "":
		if written, err = uploadParts(multipart.NewReader(body, params["boundary"]), query, put); err != nil {
			return err
		}
	default:
		return refuse(http.StatusBadRequest, "content type %q: it must be multipart/form-data or application/octet-stream", kind)
	}
	// The service sends it without a content type of JSON, so Go finds one that says text.
	_, _ = w.Write(mustMarshal(written))
	return nil
}

func uploadParts(parts *multipart.Reader, query url.Values, put func(string, io.Reader) (writeInfo, error)) ([]writeInfo, error) {
	var written []writeInfo
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			if len(written) == 0 {
				return nil, refuse(http.StatusBadRequest, "there is no part named file")
			}
			return written, nil
		}
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "read the form: %v", err)
		}
		// FileName would strip directories.
		_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil || params["name"] != "file" || params["filename"] == "" {
			return nil, refuse(http.StatusBadRequest, "a part must have the name file and a file name")
		}
		name := params["filename"]
		if query.Has("path") {
			if len(written) > 0 {
				return nil, refuse(http.StatusBadRequest, "there is one path for more than one file")
			}
			name = query.Get("path")
		}
		info, err := put(name, part)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(written, func(w writeInfo) bool { return w.Path == info.Path }) {
			return nil, refuse(http.StatusBadRequest, "more than one file for path '%s'", info.Path)
		}
		written = append(written, info)
	}
}

// put writes a file as the service does: in place, so an upload that is cut leaves a part of it.
func (s *Server) put(sb *sandbox, name string, content io.Reader, metadata map[string]string) (writeInfo, error) {
	host := sb.hostPath(name)
	if err := os.MkdirAll(filepath.Dir(host), 0o755); err != nil {
		return writeInfo{}, sb.guestError(err)
	}
	if info, err := os.Stat(host); err == nil && !info.Mode().IsRegular() {
		kind := "not a regular file"
		if info.IsDir() {
			kind = "a directory"
		}
		return writeInfo{}, refuse(http.StatusBadRequest, "path is %s: %s", kind, name)
	}
	file, err := os.OpenFile(host, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return writeInfo{}, sb.guestError(err)
	}
	_, err = io.Copy(file, content)
	if err = errors.Join(err, file.Close()); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return writeInfo{}, refuse(http.StatusInsufficientStorage, "not enough disk space available")
		}
		return writeInfo{}, sb.guestError(fmt.Errorf("error writing file: %w", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(sb.fileMetadata, name)
	if len(metadata) > 0 {
		sb.fileMetadata[name] = metadata
	}
	return writeInfo{Path: name, Name: path.Base(name), Type: "file", Metadata: metadata}, nil
}

// guestError tells an error without where the sandbox is on the host.
func (sb *sandbox) guestError(err error) error {
	return refuse(http.StatusInternalServerError, "%s", strings.ReplaceAll(err.Error(), sb.root, ""))
}
