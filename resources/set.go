package resources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// AnyDriver is a Driver of any handle type. [Erase] makes one.
type AnyDriver interface {
	id() string
	create(ctx context.Context, req CreateRequest) (any, json.RawMessage, error)
	open(ctx context.Context, binding json.RawMessage) (any, error)
	checkpoint(ctx context.Context, handle any) (string, error)
	coverageReuse(config json.RawMessage) bool
	host() string
	// as is the driver itself, for the optional interfaces that have no handles.
	as() any
}

// Erase hides a driver's handle type, so that drivers of different types go into one list.
func Erase[H any](d Driver[H]) AnyDriver { return erased[H]{d} }

type erased[H any] struct{ driver Driver[H] }

func (e erased[H]) id() string { return e.driver.ID() }

func (e erased[H]) create(ctx context.Context, req CreateRequest) (any, json.RawMessage, error) {
	return e.driver.Create(ctx, req)
}

func (e erased[H]) open(ctx context.Context, binding json.RawMessage) (any, error) {
	return e.driver.Open(ctx, binding)
}

func (e erased[H]) checkpoint(ctx context.Context, handle any) (string, error) {
	h, ok := handle.(H)
	if !ok {
		return "", fmt.Errorf("driver %s: handle is a %T", e.driver.ID(), handle)
	}
	return e.driver.Checkpoint(ctx, h)
}

func (e erased[H]) coverageReuse(config json.RawMessage) bool {
	reuser, ok := any(e.driver).(CoverageReuser)
	return ok && reuser.CoverageReuse(config)
}

func (e erased[H]) host() string {
	if placer, ok := any(e.driver).(Placer); ok {
		return placer.Host()
	}
	return ""
}

func (e erased[H]) as() any { return e.driver }

const (
	// maxIdle is how many handles that nobody uses a worker keeps open. A handle is at
	// most a connection or a few descriptors, and opening one again costs a call.
	maxIdle = 64
	// idleTimeout is how long a handle that nobody uses stays open.
	idleTimeout = 5 * time.Minute
)

// Set holds the drivers of a worker and the handles it has open. The same binding
// gives the same handle for as long as somebody uses it.
type Set struct {
	drivers map[string]AnyDriver

	mu     sync.Mutex
	open   map[string]*entry
	idle   []*entry // oldest first
	closed bool
}

// entry is an open handle. Its handle and err may be read once ready is closed.
type entry struct {
	name   string
	ready  chan struct{}
	handle any
	err    error
	users  int
	expiry *time.Timer
}

// NewSet makes a set. Two drivers with one ID, or one without, are an error.
func NewSet(drivers ...AnyDriver) (*Set, error) {
	s := &Set{drivers: map[string]AnyDriver{}, open: map[string]*entry{}}
	for _, d := range drivers {
		switch {
		case d.id() == "":
			return nil, fmt.Errorf("resources: a driver has no ID")
		case s.drivers[d.id()] != nil:
			return nil, fmt.Errorf("resources: two drivers have the ID %q", d.id())
		}
		s.drivers[d.id()] = d
	}
	return s, nil
}

// Hosts lists the names of this host that drivers gave it, because their resources live here.
func (s *Set) Hosts() []string {
	var hosts []string
	for _, d := range s.drivers {
		if host := d.host(); host != "" {
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// UnknownDriverError says that a worker lacks a driver.
type UnknownDriverError struct {
	Driver string
	Known  []string
}

func (e *UnknownDriverError) Error() string {
	known := "none"
	if len(e.Known) > 0 {
		known = strings.Join(e.Known, ", ")
	}
	return fmt.Sprintf("no resource driver %q is registered with this worker; registered: %s", e.Driver, known)
}

func (s *Set) driver(id string) (AnyDriver, error) {
	if d := s.drivers[id]; d != nil {
		return d, nil
	}
	known := make([]string, 0, len(s.drivers))
	for id := range s.drivers {
		known = append(known, id)
	}
	slices.Sort(known)
	return nil, &UnknownDriverError{Driver: id, Known: known}
}

// Created describes a resource that Create made.
type Created struct {
	Binding       json.RawMessage
	CoverageReuse bool
	Host          string
	// CanPause says that the driver is a Pauser.
	CanPause bool
}

// Create makes a resource and keeps its handle.
func (s *Set) Create(ctx context.Context, driver string, req CreateRequest) (Created, error) {
	d, err := s.driver(driver)
	if err != nil {
		return Created{}, err
	}
	handle, binding, err := d.create(ctx, req)
	if err != nil {
		return Created{}, err
	}
	s.keep(driver, binding, handle)
	return describe(d, binding, req.Config), nil
}

func describe(d AnyDriver, binding, config json.RawMessage) Created {
	_, canPause := d.as().(Pauser)
	return Created{Binding: binding, CoverageReuse: d.coverageReuse(config), Host: d.host(), CanPause: canPause}
}

// Pause pauses the resource that binding names, without opening it. A driver that is no
// Pauser is errors.ErrUnsupported.
func (s *Set) Pause(ctx context.Context, driver string, binding json.RawMessage) error {
	d, err := optional[Pauser](s, driver, "pause resources")
	if err != nil {
		return err
	}
	return d.Pause(ctx, binding)
}

// Destroy removes the resource that binding names, and forgets its handle. A driver that is
// no Destroyer is errors.ErrUnsupported.
func (s *Set) Destroy(ctx context.Context, driver string, binding json.RawMessage) error {
	d, err := optional[Destroyer](s, driver, "destroy resources")
	if err != nil {
		return err
	}
	name, err := entryName(driver, binding)
	if err != nil {
		return err
	}
	if err := d.Destroy(ctx, binding); err != nil {
		return err
	}
	s.forget(name)
	return nil
}

// DeleteCheckpoint removes a checkpoint. A driver that is no CheckpointDeleter is
// errors.ErrUnsupported.
func (s *Set) DeleteCheckpoint(ctx context.Context, driver, ref string) error {
	d, err := optional[CheckpointDeleter](s, driver, "delete checkpoints")
	if err != nil {
		return err
	}
	return d.DeleteCheckpoint(ctx, ref)
}

// List returns the resources of a driver that exist. A driver that is no Lister is
// errors.ErrUnsupported.
func (s *Set) List(ctx context.Context, driver string) ([]Listed, error) {
	d, err := optional[Lister](s, driver, "list resources")
	if err != nil {
		return nil, err
	}
	return d.List(ctx)
}

func optional[I any](s *Set, driver, what string) (I, error) {
	var none I
	d, err := s.driver(driver)
	if err != nil {
		return none, err
	}
	implementation, ok := d.as().(I)
	if !ok {
		return none, fmt.Errorf("driver %s cannot %s: %w", driver, what, errors.ErrUnsupported)
	}
	return implementation, nil
}

// forget makes the next Acquire open the resource again.
func (s *Set) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropIdle(name)
	delete(s.open, name) // one that is in use closes with its last user
}

// forgetIdle is forget for a handle that nobody uses.
func (s *Set) forgetIdle(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropIdle(name)
}

// dropIdle closes a handle if nobody uses it. The caller holds the lock.
func (s *Set) dropIdle(name string) {
	if e := s.open[name]; e != nil && e.users == 0 {
		s.unpark(e)
		s.drop(e)
	}
}

// Reopen opens a resource that another execution has left, and keeps its handle. An idle handle
// is not good enough: the resource may have gone since.
func (s *Set) Reopen(ctx context.Context, driver string, binding, config json.RawMessage) (Created, error) {
	d, err := s.driver(driver)
	if err != nil {
		return Created{}, err
	}
	if name, err := entryName(driver, binding); err == nil {
		s.forgetIdle(name)
	}
	_, release, err := s.Acquire(ctx, driver, binding)
	if err != nil {
		return Created{}, err
	}
	release()
	return describe(d, binding, config), nil
}

// keep puts the handle of a new resource into the cache, unless there is one.
func (s *Set) keep(driver string, binding json.RawMessage, handle any) {
	name, err := entryName(driver, binding)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.closed || s.open[name] != nil {
		closeHandle(handle)
		return
	}
	e := &entry{name: name, ready: make(chan struct{}), handle: handle}
	close(e.ready)
	s.open[name] = e
	s.park(e)
}

// Checkpoint captures the resource that binding names.
func (s *Set) Checkpoint(ctx context.Context, driver string, binding json.RawMessage) (string, error) {
	handle, release, err := s.Acquire(ctx, driver, binding)
	if err != nil {
		return "", err
	}
	defer release()
	return s.drivers[driver].checkpoint(ctx, handle)
}

// Acquire gives the handle of the resource that binding names, opening it if this worker has
// not. The caller must call release when done with it.
func (s *Set) Acquire(ctx context.Context, driver string, binding json.RawMessage) (handle any, release func(), err error) {
	d, err := s.driver(driver)
	if err != nil {
		return nil, nil, err
	}
	name, err := entryName(driver, binding)
	if err != nil {
		return nil, nil, err
	}
	e, mine := s.claim(name)
	if mine {
		e.handle, e.err = d.open(ctx, binding)
		close(e.ready)
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		s.release(e)
		return nil, nil, ctx.Err()
	}
	if e.err != nil {
		s.release(e)
		return nil, nil, fmt.Errorf("open resource of driver %s: %w", driver, e.err)
	}
	return e.handle, sync.OnceFunc(func() { s.release(e) }), nil
}

// claim finds the entry or makes one; the caller that made it must open the handle.
func (s *Set) claim(name string) (e *entry, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.open[name]
	if e == nil {
		e = &entry{name: name, ready: make(chan struct{})}
		s.open[name] = e
		mine = true
	}
	s.unpark(e)
	e.users++
	return e, mine
}

func (s *Set) release(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.users--
	if e.users > 0 {
		return
	}
	if e.err != nil || s.closed || s.open[e.name] != e {
		s.drop(e)
		return
	}
	s.park(e)
}

// park makes e idle, and drops the oldest idle handle if there are too many.
func (s *Set) park(e *entry) {
	s.idle = append(s.idle, e)
	e.expiry = time.AfterFunc(idleTimeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.users == 0 && s.open[e.name] == e {
			s.unpark(e)
			s.drop(e)
		}
	})
	if len(s.idle) > maxIdle {
		oldest := s.idle[0]
		s.unpark(oldest)
		s.drop(oldest)
	}
}

func (s *Set) unpark(e *entry) {
	if i := slices.Index(s.idle, e); i >= 0 {
		s.idle = slices.Delete(s.idle, i, i+1)
	}
	if e.expiry != nil {
		e.expiry.Stop()
		e.expiry = nil
	}
}

func (s *Set) drop(e *entry) {
	if s.open[e.name] == e {
		delete(s.open, e.name)
	}
	if e.err == nil {
		closeHandle(e.handle)
	}
}

// Close closes the handles that nobody uses, and the others once they are released.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for len(s.idle) > 0 {
		e := s.idle[0]
		s.unpark(e)
		s.drop(e)
	}
}

func closeHandle(handle any) {
	if closer, ok := handle.(io.Closer); ok {
		_ = closer.Close() // nothing uses the handle any more, and its state is durable or not by Checkpoint alone
	}
}

func entryName(driver string, binding json.RawMessage) (string, error) {
	canonical, err := protocol.CanonicalJSON(binding)
	if err != nil {
		return "", fmt.Errorf("binding of driver %s: %w", driver, err)
	}
	return driver + "\x00" + string(canonical), nil
}
