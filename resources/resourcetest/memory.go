package resourcetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/tinerun/tine/resources"
)

// Memory is a driver whose resources are maps of strings in this process. Its
// configuration is {"initial": {"name": "value"}, "coverage_reuse": true}; both fields
// may be left out. Make one with NewMemory; it is safe for concurrent use. It has all
// optional interfaces but resources.Placer; being paused is only a mark.
//
// To inject faults, embed a *Memory and override a method.
type Memory struct {
	mu          sync.Mutex
	values      map[string]*Values
	checkpoints map[string]map[string]string
}

var (
	_ resources.Driver[*Values]   = (*Memory)(nil)
	_ resources.CoverageReuser    = (*Memory)(nil)
	_ resources.Pauser            = (*Memory)(nil)
	_ resources.Destroyer         = (*Memory)(nil)
	_ resources.CheckpointDeleter = (*Memory)(nil)
	_ resources.Lister            = (*Memory)(nil)
)

// Values is the handle of a Memory. It is safe for concurrent use.
type Values struct {
	owner resources.Owner

	mu     sync.Mutex
	values map[string]string
	paused bool
}

// NewMemory returns a driver without resources.
func NewMemory() *Memory {
	return &Memory{values: map[string]*Values{}, checkpoints: map[string]map[string]string{}}
}

// Get returns a value, and whether there is one.
func (v *Values) Get(name string) (value string, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.paused = false
	value, ok = v.values[name]
	return value, ok
}

// Set sets a value.
func (v *Values) Set(name, value string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.paused = false
	v.values[name] = value
}

// Delete removes a value.
func (v *Values) Delete(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.paused = false
	delete(v.values, name)
}

// All returns a copy of all values.
func (v *Values) All() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.paused = false
	return maps.Clone(v.values)
}

// Paused reports whether the values are paused. Any other use resumes them.
func (v *Values) Paused() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.paused
}

type memoryConfig struct {
	Initial       map[string]string `json:"initial"`
	CoverageReuse bool              `json:"coverage_reuse"`
}

type memoryBinding struct {
	Values string `json:"values"`
}

// ID returns "memory".
func (m *Memory) ID() string { return "memory" }

// CoverageReuse returns the field coverage_reuse of a configuration.
func (m *Memory) CoverageReuse(raw json.RawMessage) bool {
	cfg, err := parseMemoryConfig(raw)
	return err == nil && cfg.CoverageReuse
}

// Create returns the owner's values.
func (m *Memory) Create(ctx context.Context, req resources.CreateRequest) (*Values, json.RawMessage, error) {
	cfg, err := parseMemoryConfig(req.Config)
	if err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	name := hash(req.Owner)
	binding, err := json.Marshal(memoryBinding{Values: name})
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if existing, ok := m.values[name]; ok {
		return existing, binding, nil
	}
	initial := cfg.Initial
	if req.Checkpoint != "" {
		var ok bool
		if initial, ok = m.checkpoints[req.Checkpoint]; !ok {
			return nil, nil, fmt.Errorf("create values: %w: %q", resources.ErrCheckpointUnavailable, req.Checkpoint)
		}
	}
	created := &Values{owner: req.Owner, values: map[string]string{}}
	maps.Copy(created.values, initial)
	m.values[name] = created
	return created, binding, nil
}

// Open returns the values that a binding names.
func (m *Memory) Open(_ context.Context, raw json.RawMessage) (*Values, error) {
	values, err := m.find(raw)
	if err != nil {
		return nil, fmt.Errorf("open values: %w", err)
	}
	values.mu.Lock()
	defer values.mu.Unlock()
	values.paused = false
	return values, nil
}

func (m *Memory) find(raw json.RawMessage) (*Values, error) {
	var binding memoryBinding
	if err := json.Unmarshal(raw, &binding); err != nil {
		return nil, fmt.Errorf("%w: %w", resources.ErrGone, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	values, ok := m.values[binding.Values]
	if !ok {
		return nil, fmt.Errorf("%w: %q", resources.ErrGone, binding.Values)
	}
	return values, nil
}

// Pause marks the values that a binding names as paused.
func (m *Memory) Pause(_ context.Context, raw json.RawMessage) error {
	values, err := m.find(raw)
	if err != nil {
		return fmt.Errorf("pause values: %w", err)
	}
	values.mu.Lock()
	defer values.mu.Unlock()
	values.paused = true
	return nil
}

// Destroy removes the values that a binding names.
func (m *Memory) Destroy(_ context.Context, raw json.RawMessage) error { return m.Lose(raw) }

// DeleteCheckpoint removes a copy.
func (m *Memory) DeleteCheckpoint(_ context.Context, ref string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.checkpoints, ref)
	return nil
}

// List returns all values.
func (m *Memory) List(context.Context) ([]resources.Listed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []resources.Listed
	for _, name := range slices.Sorted(maps.Keys(m.values)) {
		binding, err := json.Marshal(memoryBinding{Values: name})
		if err != nil {
			return nil, err
		}
		all = append(all, resources.Listed{Owner: m.values[name].owner, Binding: binding})
	}
	return all, nil
}

// Checkpoint keeps a copy of the values. Equal values have equal references.
func (m *Memory) Checkpoint(ctx context.Context, values *Values) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	state := values.All()
	ref := hash(state)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.checkpoints[ref] = state
	return ref, nil
}

// Lose removes the resource that a binding names, so that Open says it is gone.
func (m *Memory) Lose(raw json.RawMessage) error {
	var binding memoryBinding
	if err := json.Unmarshal(raw, &binding); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, binding.Values)
	return nil
}

func parseMemoryConfig(raw json.RawMessage) (memoryConfig, error) {
	var cfg memoryConfig
	if len(raw) == 0 {
		return cfg, nil
	}
	strict := json.NewDecoder(bytes.NewReader(raw))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&cfg); err != nil {
		return cfg, fmt.Errorf("%w: %w", resources.ErrInvalidConfig, err)
	}
	return cfg, nil
}

// hash names a value by its JSON, which has map keys in order.
func hash(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // Only maps and structs of strings come here.
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
