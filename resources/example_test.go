package resources_test

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
	"testing"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/resourcetest"
)

// Notes is a driver whose resources are files of key-value pairs, below one directory:
//
//	live/OWNER.json        the resource of one execution, by a hash of its owner
//	checkpoints/HASH.json  a checkpoint, by a hash of its content
type Notes struct{ root string }

// Notebook is its handle. It holds nothing open, so it may outlive any capture.
type Notebook struct{ file string }

var _ resources.Driver[*Notebook] = (*Notes)(nil)

func NewNotes(root string) (*Notes, error) {
	for _, dir := range []string{"live", "checkpoints"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			return nil, fmt.Errorf("open notes: %w", err)
		}
	}
	return &Notes{root: root}, nil
}

// ID is recorded in histories, so it never changes.
func (d *Notes) ID() string { return "notes" }

// binding is what histories say of a resource. It names no host and no path, so it can be
// opened by every worker with access to the root.
type binding struct {
	Name string `json:"name"`
}

// Create is asked again when its answer was lost. The name comes from the owner alone, so it
// finds what the first call made.
func (d *Notes) Create(_ context.Context, req resources.CreateRequest) (*Notebook, json.RawMessage, error) {
	if len(req.Config) > 0 {
		return nil, nil, fmt.Errorf("create notes: %w: there is nothing to configure", resources.ErrInvalidConfig)
	}
	state := []byte("{}")
	if req.Checkpoint != "" {
		var err error
		if state, err = d.load(req.Checkpoint); err != nil {
			return nil, nil, fmt.Errorf("create notes: %w", err)
		}
	}
	name := digest(fmt.Appendf(nil, "%q %q %q", req.Owner.ExecutionID, req.Owner.RunID, req.Owner.Key))
	notebook := d.notebook(name)
	if err := create(notebook.file, state); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, nil, fmt.Errorf("create notes: %w", err)
	}
	raw, err := json.Marshal(binding{Name: name})
	return notebook, raw, err
}

// Open never makes anything: steps must not go on in an empty notebook.
func (d *Notes) Open(_ context.Context, raw json.RawMessage) (*Notebook, error) {
	var b binding
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, fmt.Errorf("open notes: %w: %w", resources.ErrGone, err)
	}
	notebook := d.notebook(b.Name)
	_, err := os.Stat(notebook.file)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %s", resources.ErrGone, b.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("open notes: %w", err)
	}
	return notebook, nil
}

// Checkpoint returns when the copy is durable. Equal content has an equal reference.
func (d *Notes) Checkpoint(_ context.Context, n *Notebook) (string, error) {
	state, err := os.ReadFile(n.file)
	if err != nil {
		return "", fmt.Errorf("checkpoint notes: %w", err)
	}
	ref := digest(state)
	if err := create(d.checkpoint(ref), state); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("checkpoint notes: %w", err)
	}
	return ref, nil
}

// load reads a checkpoint. One that is not there, or damaged, fails the fork at once.
func (d *Notes) load(ref string) ([]byte, error) {
	state, err := os.ReadFile(d.checkpoint(ref))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s", resources.ErrCheckpointUnavailable, ref)
	case err != nil:
		return nil, err // the disk may come back
	case digest(state) != ref:
		return nil, fmt.Errorf("%w: %s is damaged", resources.ErrCheckpointUnavailable, ref)
	}
	return state, nil
}

// Base keeps names that come from a history, or from a caller, within the directory.
func (d *Notes) notebook(name string) *Notebook {
	return &Notebook{file: filepath.Join(d.root, "live", filepath.Base(name)+".json")}
}

func (d *Notes) checkpoint(ref string) string {
	return filepath.Join(d.root, "checkpoints", filepath.Base(ref)+".json")
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// create makes a file that is complete and durable when it has its name, or fails with
// fs.ErrExist. That holds also if this process dies, or another one creates it too.
func create(file string, data []byte) error {
	tmp, err := durable(file, data)
	if err != nil {
		return err
	}
	return errors.Join(os.Link(tmp, file), os.Remove(tmp), syncDir(file))
}

func replace(file string, data []byte) error {
	tmp, err := durable(file, data)
	if err != nil {
		return err
	}
	return errors.Join(os.Rename(tmp, file), syncDir(file))
}

func durable(file string, data []byte) (tmp string, err error) {
	f, err := os.CreateTemp(filepath.Dir(file), ".tmp-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	return f.Name(), errors.Join(err, f.Sync(), f.Close())
}

func syncDir(file string) error {
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Set and Get are what tools do with a notebook.

func (n *Notebook) Set(name, value string) error {
	notes, err := n.all()
	if err != nil {
		return err
	}
	notes[name] = value
	state, err := json.Marshal(notes) // keys in order, so that equal notes are equal bytes
	if err != nil {
		return err
	}
	return replace(n.file, state)
}

func (n *Notebook) Get(name string) (value string, ok bool, err error) {
	notes, err := n.all()
	value, ok = notes[name]
	return value, ok, err
}

func (n *Notebook) all() (map[string]string, error) {
	state, err := os.ReadFile(n.file)
	if err != nil {
		return nil, err
	}
	var notes map[string]string
	return notes, json.NewDecoder(bytes.NewReader(state)).Decode(&notes)
}

// The conformance suite knows the contract; hooks tell it how to use the handles.
func TestNotes(t *testing.T) {
	t.Parallel()
	resourcetest.Run(t, func(t *testing.T) resources.Driver[*Notebook] {
		driver, err := NewNotes(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return driver
	}, resourcetest.Hooks[*Notebook]{
		Write: func(_ context.Context, n *Notebook, name, value string) error {
			return n.Set(name, value)
		},
		Read: func(_ context.Context, n *Notebook, name string) (string, bool, error) {
			return n.Get(name)
		},
		UnknownBinding: json.RawMessage(`{"name":"none"}`),
		Reopen: func(t *testing.T, d resources.Driver[*Notebook]) resources.Driver[*Notebook] {
			again, err := NewNotes(d.(*Notes).root)
			if err != nil {
				t.Fatal(err)
			}
			return again
		},
	})
}

// A fork gets a copy of what its checkpoint holds.
func Example() {
	ctx := context.Background()
	root, _ := os.MkdirTemp("", "notes-")
	defer os.RemoveAll(root)
	driver, _ := NewNotes(root)

	source, _, _ := driver.Create(ctx, resources.CreateRequest{
		Owner: resources.Owner{ExecutionID: "source", RunID: "1", Key: "notebook"},
	})
	_ = source.Set("colour", "blue")
	ref, _ := driver.Checkpoint(ctx, source)

	fork, _, _ := driver.Create(ctx, resources.CreateRequest{
		Owner:      resources.Owner{ExecutionID: "fork", RunID: "2", Key: "notebook"},
		Checkpoint: ref,
	})
	_ = fork.Set("colour", "red")
	before, _, _ := source.Get("colour")
	after, _, _ := fork.Get("colour")
	fmt.Println(before, after)
	// Output: blue red
}
