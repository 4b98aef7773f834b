// Package hub stands for GitHub on loopback: one bare git repository behind git's own HTTP backend,
// and the few calls of the REST API that the example makes. Both want the token, as GitHub does for
// a private repository.
package hub

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
)

const (
	// Owner and Name are those of the repository.
	Owner = "acme"
	Name  = "slug"

	defaultBranch = "main"
	gitUser       = "x-access-token"
)

// Hub is the running server.
type Hub struct {
	dir    string
	token  string
	url    string
	server *http.Server
	served chan struct{}

	mu    sync.Mutex
	pulls []pull
	// before and after are called around the creation of a pull request.
	before, after func()
	refused       int
}

// pull is a pull request, as far as it does not follow its branch.
type pull struct {
	Number int
	Title  string
	Body   string
	Branch string
}

// Pull is an open pull request.
type Pull struct {
	Number int
	Title  string
	Branch string
	// Head is the commit that its branch has now.
	Head string
}

// New starts a hub in an empty directory, with a repository that holds the files of an archive.
func New(dir, token string, files []byte) (*Hub, error) {
	h := &Hub{dir: dir, token: token, served: make(chan struct{})}
	if err := h.makeRepository(files); err != nil {
		return nil, err
	}
	backend, err := h.gitBackend()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h.url = "http://" + listener.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("/"+Owner+"/"+Name+".git/", h.private(backend))
	mux.HandleFunc("GET /api/repos/"+Owner+"/"+Name, h.api(h.repository))
	mux.HandleFunc("GET /api/repos/"+Owner+"/"+Name+"/pulls", h.api(h.list))
	mux.HandleFunc("POST /api/repos/"+Owner+"/"+Name+"/pulls", h.api(h.create))
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(h.served)
		_ = h.server.Serve(listener)
	}()
	return h, nil
}

// Close stops the server. The directory stays.
func (h *Hub) Close() {
	_ = h.server.Close()
	<-h.served
}

// URL is the base URL of the git server.
func (h *Hub) URL() string { return h.url }

// APIURL is the base URL of the REST API.
func (h *Hub) APIURL() string { return h.url + "/api" }

// Pulls are the pull requests, in the order of their creation.
func (h *Hub) Pulls() []Pull {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []Pull
	for _, p := range h.pulls {
		head, _ := h.git("rev-parse", "--verify", "--quiet", "refs/heads/"+p.Branch)
		all = append(all, Pull{Number: p.Number, Title: p.Title, Branch: p.Branch, Head: head})
	}
	return all
}

// Refused counts the requests that came without the token.
func (h *Hub) Refused() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refused
}

// OnCreate sets what is called before a pull request is created, and after that before it is
// answered. One that panics with http.ErrAbortHandler cuts the connection. Nil is nothing.
func (h *Hub) OnCreate(before, after func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before, h.after = before, after
}

// Log is the one-line history of a branch, newest first, without what the default branch has.
func (h *Hub) Log(branch string) ([]string, error) {
	out, err := h.git("log", "--format=%s", defaultBranch+".."+branch)
	if err != nil || out == "" {
		return nil, err
	}
	return strings.Split(out, "\n"), nil
}

// File is the content of a file on a branch.
func (h *Hub) File(branch, name string) (string, error) {
	return h.git("show", branch+":"+name)
}

func (h *Hub) bare() string { return filepath.Join(h.dir, Owner, Name+".git") }

func (h *Hub) git(args ...string) (string, error) { return git(h.bare(), args...) }

func git(dir string, args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimRight(string(out), "\n"), nil
}

func (h *Hub) makeRepository(files []byte) error {
	work := filepath.Join(h.dir, "start")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	for _, file := range txtar.Parse(files).Files {
		if err := os.WriteFile(filepath.Join(work, file.Name), file.Data, 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=" + defaultBranch},
		{"add", "--all"},
		{"-c", "user.name=Tine", "-c", "user.email=tine@example.com", "commit", "--quiet", "--no-gpg-sign", "--message=Start"},
		{"clone", "--quiet", "--bare", ".", h.bare()},
		{"-C", h.bare(), "config", "http.receivepack", "true"},
	} {
		if _, err := git(work, args...); err != nil {
			return err
		}
	}
	return nil
}

func (h *Hub) gitBackend() (http.Handler, error) {
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("git is needed: %w", err)
	}
	return &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + h.dir, "GIT_HTTP_EXPORT_ALL=1"},
	}, nil
}

func (h *Hub) refuse(w http.ResponseWriter, message string) {
	h.mu.Lock()
	h.refused++
	h.mu.Unlock()
	w.WriteHeader(http.StatusUnauthorized)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
}

func (h *Hub) isToken(text string) bool {
	return subtle.ConstantTimeCompare([]byte(text), []byte(h.token)) == 1
}

// private lets only those in who have the token.
func (h *Hub) private(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != gitUser || !h.isToken(password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
			h.refuse(w, "Requires authentication")
			return
		}
		r.Header.Del("Authorization") // the backend would have it in its environment
		answer := &answer{header: http.Header{}, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		answer.send(w)
	})
}

// answer holds back what a backend says. One that cannot write to a client that has gone is killed, and
// would leave the repository locked.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header            { return a.header }
func (a *answer) WriteHeader(status int)         { a.status = status }
func (a *answer) Write(text []byte) (int, error) { return a.body.Write(text) }

func (a *answer) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}

// api lets only those in who have the token.
func (h *Hub) api(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || !h.isToken(token) {
			h.refuse(w, "Bad credentials")
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		next(w, r)
	}
}

func (h *Hub) repository(w http.ResponseWriter, _ *http.Request) {
	_ = json.NewEncoder(w).Encode(map[string]any{"full_name": Owner + "/" + Name, "default_branch": defaultBranch})
}

func (h *Hub) list(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := []any{}
	for _, p := range h.pulls {
		if r.URL.Query().Get("head") == Owner+":"+p.Branch {
			found = append(found, h.describe(p))
		}
	}
	_ = json.NewEncoder(w).Encode(found)
}

func (h *Hub) create(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Title, Body, Head, Base string }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, `{"message":"Problems parsing JSON"}`, http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	problem := ""
	if _, err := h.git("rev-parse", "--verify", "--quiet", "refs/heads/"+asked.Head); err != nil || asked.Base != defaultBranch {
		problem = "head or base is invalid"
	}
	for _, p := range h.pulls {
		if p.Branch == asked.Head {
			problem = "A pull request already exists for " + Owner + ":" + asked.Head + "."
		}
	}
	if problem != "" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"message": "Validation Failed",
			"errors":  []any{map[string]string{"resource": "PullRequest", "code": "custom", "message": problem}},
		})
		return
	}
	if h.before != nil {
		h.before()
	}
	p := pull{Number: len(h.pulls) + 1, Title: asked.Title, Body: asked.Body, Branch: asked.Head}
	h.pulls = append(h.pulls, p)
	if h.after != nil {
		h.after()
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(h.describe(p))
}

func (h *Hub) describe(p pull) map[string]any {
	return map[string]any{
		"number": p.Number, "state": "open", "title": p.Title, "body": p.Body,
		"html_url": fmt.Sprintf("%s/%s/%s/pull/%d", h.url, Owner, Name, p.Number),
		"head":     map[string]string{"ref": p.Branch, "label": Owner + ":" + p.Branch},
		"base":     map[string]string{"ref": defaultBranch},
	}
}
