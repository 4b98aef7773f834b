// Package directory is a resource driver for directories on the worker's host, with
// checkpoints that cost little more than a look at the files' metadata.
//
// Make a driver with [New] and register it with the worker. Its handles are
// [*Workspace]: tools pass [Workspace.Path] to programs they start, and use the
// file operations, which cannot leave the workspace, for paths that a model chose.
//
// The configuration of a resource is a JSON object:
//
//	{"template": "/srv/templates/go", "coverage_reuse": true}
//
// Both fields may be left out. The template is a directory on the worker's host
// whose content new workspaces start with. With coverage_reuse a checkpoint keeps
// covering while steps run that do not declare that they affect the resource.
//
// # What a checkpoint holds
//
// Everything below the workspace's directory and the directory itself: bytes, names
// of any bytes, modes with setuid, setgid and sticky, mtimes to the nanosecond,
// owners, symlinks, hard links, FIFOs, empty directories, and extended attributes with
// ACLs. Owners and attributes that only root may set come back when the worker runs as root.
// Holes of sparse files come back as zeros. Sockets, devices and mount points
// fail the capture with an error that names them.
//
// A capture trusts the kernel's ctime to tell which files changed. A process that
// keeps a file mapped into memory and writes to it between steps can change it
// without moving the ctime until the kernel writes the page back; stop such servers
// before a step ends.
//
// Checkpoints survive a crash of the machine. A workspace is an ordinary directory,
// and after a power failure it holds what its programs had synced.
//
// # On disk
//
// All below Options.Root, which must be one file system:
//
//	id                         names the store, and so the host's task queue
//	store/                     checkpoints, shared by all workspaces
//	templates/HASH.index       what the store knows about a template's files
//	workspaces/ID/owner.json   whose workspace it is, and what it was made from
//	workspaces/ID/files/       the workspace itself; it exists when it is complete
//	workspaces/ID/files.partial/  a workspace being built
//	workspaces/ID/files.index  what the store knows about its files
//	workspaces/ID/lock         held while it is built or captured
//
// A damaged object fails the restores that need it and is named with its pack. When
// that pack and its index are deleted and the workers restarted, captures store again what the
// workspaces still hold.
//
// The driver needs Linux. On other systems the package compiles and New fails.
package directory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/directory/internal/store"
)

// Options configure a Driver.
type Options struct {
	// Root is the directory that holds workspaces and checkpoints. It is created,
	// for the worker's user only, if it does not exist. Required.
	Root string
	// Shared says that all workers have access to Root: there is one host, or Root
	// is on a network file system. Without it, steps of an execution that holds a
	// workspace run on the host that has it.
	Shared bool
}

// Driver makes, opens and captures workspaces. It is safe for concurrent use, also by
// several processes with the same root.
type Driver struct {
	root   string
	shared bool
	id     string
	store  *store.Store
}

var (
	_ resources.Driver[*Workspace] = (*Driver)(nil)
	_ resources.CoverageReuser     = (*Driver)(nil)
	_ resources.Placer             = (*Driver)(nil)
)

// lockPoll is how often a workspace that another call holds is tried again.
const lockPoll = 5 * time.Millisecond

// New opens the root of a driver, and removes what calls that died left unfinished.
func New(options Options) (*Driver, error) {
	if options.Root == "" {
		return nil, errors.New("open directory driver: Options.Root is empty; name a directory for workspaces and checkpoints")
	}
	d, err := openRoot(options)
	if err != nil {
		return nil, fmt.Errorf("open directory driver: %w", err)
	}
	return d, nil
}

func openRoot(options Options) (*Driver, error) {
	root, err := filepath.Abs(options.Root)
	if err != nil {
		return nil, err
	}
	d := &Driver{root: root, shared: options.Shared}
	for _, dir := range []string{d.root, d.workspacesDir(), d.templatesDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if d.id, err = storeID(root); err != nil {
		return nil, err
	}
	if d.store, err = store.Open(filepath.Join(root, "store")); err != nil {
		return nil, err
	}
	return d, d.sweep()
}

func (d *Driver) workspacesDir() string { return filepath.Join(d.root, "workspaces") }
func (d *Driver) templatesDir() string  { return filepath.Join(d.root, "templates") }

// ID returns "directory".
func (d *Driver) ID() string { return "directory" }

// TaskQueue names the task queue of the workers that have access to the driver's
// root, or is empty if all have.
func (d *Driver) Host() string {
	if d.shared {
		return ""
	}
	return "tine-host-" + d.id
}

// CoverageReuse returns the field coverage_reuse of a configuration.
func (d *Driver) CoverageReuse(raw json.RawMessage) bool {
	cfg, err := parseConfig(raw)
	return err == nil && cfg.coverageReuse
}

// Create returns the owner's workspace. If there is none yet, it is made from the
// request's checkpoint, from the configured template, or empty.
func (d *Driver) Create(ctx context.Context, req resources.CreateRequest) (*Workspace, json.RawMessage, error) {
	cfg, err := parseConfig(req.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("create workspace: %w", err)
	}
	if req.Owner == (resources.Owner{}) {
		return nil, nil, errors.New("create workspace: the request names no owner")
	}
	w := d.workspace(workspaceID(req.Owner))
	if err := d.ensure(ctx, w, req, cfg); err != nil {
		return nil, nil, fmt.Errorf("create workspace %q of execution %s: %w", req.Owner.Key, req.Owner.ExecutionID, err)
	}
	raw, err := json.Marshal(binding{Workspace: w.id})
	return w, raw, err
}

// Open returns the workspace that a binding names.
func (d *Driver) Open(_ context.Context, raw json.RawMessage) (*Workspace, error) {
	id, err := parseBinding(raw)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	w := d.workspace(id)
	if err := w.check(); err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	return w, nil
}

// Checkpoint captures a workspace. Equal workspaces have equal references.
func (d *Driver) Checkpoint(ctx context.Context, w *Workspace) (string, error) {
	ref, err := d.capture(ctx, w)
	if err != nil {
		return "", fmt.Errorf("checkpoint workspace %s: %w", w.id, err)
	}
	return ref, nil
}

func (d *Driver) capture(ctx context.Context, w *Workspace) (string, error) {
	if err := w.check(); err != nil {
		return "", err
	}
	release, err := w.lock(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	return d.store.Capture(ctx, w.Path(), w.indexFile())
}

// ensure makes the workspace unless it is complete. Whatever an earlier attempt left
// is complete or gets replaced: the directory gets its name last.
func (d *Driver) ensure(ctx context.Context, w *Workspace, req resources.CreateRequest, cfg config) error {
	if err := os.MkdirAll(w.state, 0o700); err != nil {
		return err
	}
	release, err := w.lock(ctx)
	if err != nil {
		return err
	}
	defer release()

	if err := w.check(); !errors.Is(err, resources.ErrGone) {
		return err
	}
	if err := w.saveOwner(req); err != nil {
		return err
	}
	if err := removeTree(w.partialPath()); err != nil {
		return err
	}
	if err := d.build(ctx, w, req.Checkpoint, cfg.template); err != nil {
		return errors.Join(err, removeTree(w.partialPath()))
	}
	return os.Rename(w.partialPath(), w.Path())
}

// build makes the unfinished workspace.
func (d *Driver) build(ctx context.Context, w *Workspace, checkpoint, template string) error {
	if checkpoint == "" && template == "" {
		return os.Mkdir(w.partialPath(), 0o755)
	}
	if checkpoint == "" {
		// A copy of the template would have to be stored anyway when the workspace is
		// captured first; this way the template is read once, however many start from it.
		var err error
		if checkpoint, err = d.captureTemplate(ctx, template); err != nil {
			return err
		}
	}
	return d.store.Restore(ctx, checkpoint, w.partialPath(), w.indexFile())
}

func (d *Driver) captureTemplate(ctx context.Context, template string) (string, error) {
	path, err := resolveTemplate(template, d.root)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(path))
	index := filepath.Join(d.templatesDir(), hex.EncodeToString(sum[:])+".index")
	ref, err := d.store.Capture(ctx, path, index)
	if err != nil {
		return "", fmt.Errorf("copy template %q: %w", template, err)
	}
	return ref, nil
}

// sweep removes workspaces whose making died. One that is being made is locked.
func (d *Driver) sweep() error {
	ids, err := os.ReadDir(d.workspacesDir())
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !id.IsDir() {
			continue
		}
		if err := d.workspace(id.Name()).sweep(); err != nil {
			return fmt.Errorf("remove unfinished workspace %s: %w", id.Name(), err)
		}
	}
	return nil
}

func (d *Driver) workspace(id string) *Workspace {
	return &Workspace{id: id, state: filepath.Join(d.workspacesDir(), id)}
}

// binding locates a workspace below the root of whichever worker opens it.
type binding struct {
	Workspace string `json:"workspace"`
}

// workspaceIDLength is in bytes; a workspace's name has two digits for each.
const workspaceIDLength = 16

// workspaceID derives a workspace's name from its owner, so that a repeated Create
// comes to the same place.
func workspaceID(owner resources.Owner) string {
	// Quoting keeps different owners different, whatever their parts contain.
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", owner.ExecutionID, owner.RunID, owner.Key))
	return hex.EncodeToString(sum[:workspaceIDLength])
}

// parseBinding refuses what Create never returned; an ID becomes part of a path. Such
// a binding names nothing that exists, so trying again cannot help.
func parseBinding(raw json.RawMessage) (string, error) {
	var b binding
	strict := json.NewDecoder(bytes.NewReader(raw))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&b); err != nil {
		return "", fmt.Errorf("%w: the binding is not one of a directory: %w", resources.ErrGone, err)
	}
	digits, err := hex.DecodeString(b.Workspace)
	if err != nil || len(digits) != workspaceIDLength || hex.EncodeToString(digits) != b.Workspace {
		return "", fmt.Errorf("%w: the binding's workspace %q is not one that this driver makes", resources.ErrGone, b.Workspace)
	}
	return b.Workspace, nil
}

// removeTree removes a directory, also one that has directories which its owner must
// not change.
func removeTree(path string) error {
	err := os.RemoveAll(path)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	err = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		// A directory is visited before it is read.
		if entry != nil && entry.IsDir() && err == nil {
			return os.Chmod(path, 0o700)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(path))
}
