package e2btest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	baseAlias  = "base"
	defaultTag = "default"
	// teamSlug goes before the names of snapshots.
	teamSlug = "team-slug"
	homeDir  = "/home/user"
)

// template is what a sandbox can be made from: one that Options gave, or a snapshot.
type template struct {
	id       string
	alias    string // of a template that is no snapshot
	name     string // of a snapshot, with its team, or empty
	snapshot bool
	builds   []*build
}

// build is what a tag of a template stands for.
type build struct {
	tag          string
	dir          string // its root directory
	fileMetadata map[string]map[string]string
	sandboxID    string // the sandbox that it is a snapshot of
	createdAt    time.Time
}

func (t *template) build(tag string) *build {
	for _, b := range t.builds {
		if b.tag == tag {
			return b
		}
	}
	return nil
}

func (t *template) drop(b *build) {
	t.builds = slices.DeleteFunc(t.builds, func(other *build) bool { return other == b })
}

func (s *Server) seedTemplates(seeds map[string]fs.FS) error {
	if _, ok := seeds[baseAlias]; !ok {
		if err := s.seedTemplate(baseAlias, nil); err != nil {
			return err
		}
	}
	for alias, files := range seeds {
		if !referenceForm.MatchString(alias) || strings.Contains(alias, ":") {
			return fmt.Errorf("template alias %q: it must be of lower-case letters, digits, - and _", alias)
		}
		if err := s.seedTemplate(alias, files); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) seedTemplate(alias string, files fs.FS) error {
	t := &template{id: randomID(20), alias: alias}
	b := &build{tag: defaultTag, dir: s.buildDir(), createdAt: time.Now()}
	for _, dir := range []string{homeDir, "/root", "/tmp"} {
		if err := os.MkdirAll(filepath.Join(b.dir, dir), 0o755); err != nil {
			return err
		}
	}
	if files != nil {
		if err := os.CopyFS(filepath.Join(b.dir, homeDir), files); err != nil {
			return fmt.Errorf("template %s: %w", alias, err)
		}
	}
	t.builds = append(t.builds, b)
	s.templates[t.id] = t
	return nil
}

func (s *Server) buildDir() string {
	return filepath.Join(s.dir, "templates", randomID(20))
}

// referenceForm is what a template may be called in a request: an id or alias, after a team or
// not, with a tag or not.
var referenceForm = regexp.MustCompile(`^([a-z0-9_-]+/)?[a-z0-9_-]+(:[A-Za-z0-9._-]+)?$`)

// findTemplate finds what a reference names. The caller holds mu.
func (s *Server) findTemplate(reference string) (*template, *build, error) {
	if !referenceForm.MatchString(reference) {
		return nil, nil, refuse(http.StatusBadRequest, "Invalid template reference: '%s'", reference)
	}
	name, tag, tagged := strings.Cut(reference, ":")
	if !tagged {
		tag = defaultTag
	}
	t := s.named(name)
	if t == nil {
		return nil, nil, refuse(http.StatusNotFound, "template '%s' not found", name)
	}
	b := t.build(tag)
	if b == nil {
		return nil, nil, refuse(http.StatusNotFound, "tag '%s' does not exist for template '%s'", tag, name)
	}
	return t, b, nil
}

// named finds a template by its id or alias, else a snapshot by its name.
func (s *Server) named(name string) *template {
	if t := s.templates[name]; t != nil {
		return t
	}
	var found *template
	for _, t := range s.templates {
		if name == t.alias {
			return t
		}
		if t.hasName(name) {
			found = t
		}
	}
	return found
}

// hasName tells whether a snapshot has a name, which may be without the team.
func (t *template) hasName(name string) bool {
	return t.name != "" && (name == t.name || teamSlug+"/"+name == t.name)
}

// snapshot is a build of a template that is a snapshot.
type snapshot struct {
	template *template
	build    *build
}

func (sn snapshot) id() string {
	if sn.template.name != "" {
		return sn.template.name + ":" + sn.build.tag
	}
	return sn.template.id + ":" + sn.build.tag
}

func (sn snapshot) names() []string {
	if sn.template.name == "" {
		return []string{}
	}
	return []string{sn.template.name}
}

// allSnapshots are all snapshots in the order of their creation. The caller holds mu.
func (s *Server) allSnapshots() []snapshot {
	var all []snapshot
	for _, t := range s.templates {
		if t.snapshot {
			for _, b := range t.builds {
				all = append(all, snapshot{t, b})
			}
		}
	}
	slices.SortFunc(all, func(a, b snapshot) int { return a.build.createdAt.Compare(b.build.createdAt) })
	return all
}

// addSnapshot makes a build known under a name, which may have a tag, or under an id of its own. It
// returns what had the name and tag until now, if anything had. The caller holds mu.
func (s *Server) addSnapshot(name string, b *build) (added snapshot, replaced *build) {
	name, tag, tagged := strings.Cut(name, ":")
	if !tagged {
		tag = defaultTag
	}
	b.tag = tag
	var t *template
	if name != "" {
		name = teamSlug + "/" + strings.TrimPrefix(name, teamSlug+"/")
		for _, other := range s.templates {
			if other.hasName(name) {
				t = other
			}
		}
	}
	if t == nil {
		t = &template{id: randomID(20), name: name, snapshot: true}
		s.templates[t.id] = t
	}
	if replaced = t.build(tag); replaced != nil {
		t.drop(replaced)
	}
	t.builds = append(t.builds, b)
	return snapshot{t, b}, replaced
}

// copyTree copies files, directories and symbolic links with their permissions and times. A link to
// a place below from becomes one to the same place below to.
func copyTree(from, to string) error {
	type dirTime struct {
		path string
		info fs.FileInfo
	}
	var dirs []dirTime
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != from {
			return nil // a program that is not of this sandbox may remove files meanwhile
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		target := to + strings.TrimPrefix(path, from)
		switch info.Mode().Type() {
		case fs.ModeDir:
			dirs = append(dirs, dirTime{target, info})
			return os.MkdirAll(target, 0o700)
		case fs.ModeSymlink:
			return copyLink(path, target, from, to)
		case 0:
			return copyFile(path, target, info)
		}
		return nil // sockets and pipes belong to processes, which are not copied
	})
	if err != nil {
		return err
	}
	// Backwards, since what is done to a directory's entries changes its time and takes its
	// permissions.
	for _, dir := range slices.Backward(dirs) {
		if err := errors.Join(os.Chmod(dir.path, permissions(dir.info)), os.Chtimes(dir.path, time.Time{}, dir.info.ModTime())); err != nil {
			return err
		}
	}
	return nil
}

func copyLink(path, target, from, to string) error {
	link, err := os.Readlink(path)
	if err != nil {
		return err
	}
	if rest, ok := strings.CutPrefix(link, from); ok && (rest == "" || rest[0] == '/') {
		link = to + rest
	}
	return os.Symlink(link, target)
}

func copyFile(path, target string, info fs.FileInfo) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(),
		os.Chmod(target, permissions(info)), os.Chtimes(target, time.Time{}, info.ModTime()))
}

func permissions(info fs.FileInfo) fs.FileMode {
	return info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

// removeAll also removes directories that forbid it.
func removeAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
