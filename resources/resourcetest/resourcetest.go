// Package resourcetest checks implementations of [resources.Driver].
//
// A driver's own test calls [Run] with hooks that write and read state through the
// driver's handles. [Memory] is a driver for tests of code that uses drivers.
package resourcetest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources"
)

// Hooks tell Run how to use a driver's handles. Write, Read and UnknownBinding are
// required.
type Hooks[H any] struct {
	// Write sets name to value in the resource's state.
	Write func(ctx context.Context, handle H, name, value string) error
	// Read returns the value of name, and whether there is one.
	Read func(ctx context.Context, handle H, name string) (value string, ok bool, err error)

	// UnknownBinding is a binding of the right form for a resource that does not exist.
	UnknownBinding json.RawMessage
	// MissingCheckpoint is a reference of the right form to a checkpoint that does not
	// exist. If empty, Run uses text that no driver returns.
	MissingCheckpoint string
	// Config is passed to every Create.
	Config json.RawMessage
	// Secrets are credentials that the driver holds; no binding may contain them.
	Secrets []string
	// Reopen returns a driver with access to the same resources and checkpoints, as a
	// worker has that replaces another one. If nil, that is not checked.
	Reopen func(t *testing.T, driver resources.Driver[H]) resources.Driver[H]
}

// Run checks that the drivers newDriver returns keep the contract of
// resources.Driver, and of the optional interfaces they implement. It calls newDriver
// for each check, which is a subtest.
func Run[H any](t *testing.T, newDriver func(t *testing.T) resources.Driver[H], hooks Hooks[H]) {
	t.Helper()
	if hooks.Write == nil || hooks.Read == nil || hooks.UnknownBinding == nil {
		t.Fatal("resourcetest: set Hooks.Write, Hooks.Read and Hooks.UnknownBinding")
	}
	checks := []struct {
		name  string
		check func(*suite[H])
	}{
		{"ID is stable", (*suite[H]).idIsStable},
		{"Create is idempotent by owner", (*suite[H]).createIsIdempotent},
		{"owners are isolated", (*suite[H]).ownersAreIsolated},
		{"Open gives the state", (*suite[H]).openGivesState},
		{"binding is a small JSON object without secrets", (*suite[H]).bindingIsPlain},
		{"unknown binding is gone", (*suite[H]).unknownBindingIsGone},
		{"handle is usable after Checkpoint", (*suite[H]).handleSurvivesCheckpoint},
		{"checkpoint is immutable", (*suite[H]).checkpointIsImmutable},
		{"Create from checkpoint", (*suite[H]).createFromCheckpoint},
		{"created from checkpoint is idempotent by owner", (*suite[H]).createFromCheckpointIsIdempotent},
		{"checkpoint of a fork", (*suite[H]).checkpointOfFork},
		{"missing checkpoint is unavailable", (*suite[H]).missingCheckpointIsUnavailable},
		{"concurrent owners", (*suite[H]).concurrentOwners},
		{"concurrent Creates of one owner", (*suite[H]).concurrentCreates},
		{"cancelled context", (*suite[H]).cancelledContext},
		{"another worker", (*suite[H]).anotherWorker},
		{"Pause", (*suite[H]).pause},
		{"Destroy", (*suite[H]).destroy},
		{"DeleteCheckpoint", (*suite[H]).deleteCheckpoint},
		{"List", (*suite[H]).list},
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			c.check(&suite[H]{T: t, Hooks: hooks, driver: newDriver(t)})
		})
	}
}

// suite is one check on one driver.
type suite[H any] struct {
	*testing.T
	Hooks[H]
	driver resources.Driver[H]
}

func owner(name string) resources.Owner {
	return resources.Owner{ExecutionID: "execution-" + name, RunID: "run-" + name, Key: "workspace"}
}

func (s *suite[H]) create(owner resources.Owner, checkpoint string) (H, json.RawMessage) {
	s.Helper()
	handle, binding, err := s.driver.Create(s.Context(), s.request(owner, checkpoint))
	require.NoError(s, err, "Create")
	return handle, binding
}

func (s *suite[H]) request(owner resources.Owner, checkpoint string) resources.CreateRequest {
	return resources.CreateRequest{Owner: owner, Config: s.Config, Checkpoint: checkpoint}
}

func (s *suite[H]) open(binding json.RawMessage) H {
	s.Helper()
	handle, err := s.driver.Open(s.Context(), binding)
	require.NoError(s, err, "Open")
	return handle
}

func (s *suite[H]) checkpoint(handle H) string {
	s.Helper()
	ref, err := s.driver.Checkpoint(s.Context(), handle)
	require.NoError(s, err, "Checkpoint")
	require.NotEmpty(s, ref, "Checkpoint returned an empty reference")
	return ref
}

func (s *suite[H]) write(handle H, name, value string) {
	s.Helper()
	require.NoError(s, s.Write(s.Context(), handle, name, value), "write %s", name)
}

func (s *suite[H]) requireValue(handle H, name, want string) {
	s.Helper()
	value, ok, err := s.Read(s.Context(), handle, name)
	require.NoError(s, err, "read %s", name)
	require.True(s, ok, "%s is missing", name)
	require.Equal(s, want, value, "value of %s", name)
}

func (s *suite[H]) requireMissing(handle H, name string) {
	s.Helper()
	value, ok, err := s.Read(s.Context(), handle, name)
	require.NoError(s, err, "read %s", name)
	require.False(s, ok, "%s should be missing, but is %q", name, value)
}

func (s *suite[H]) idIsStable() {
	require.NotEmpty(s, s.driver.ID())
	require.Equal(s, s.driver.ID(), s.driver.ID(), "the ID is recorded in history")
}

func (s *suite[H]) createIsIdempotent() {
	first, binding := s.create(owner("a"), "")
	s.write(first, "name", "kept")
	second, again := s.create(owner("a"), "")
	require.JSONEq(s, string(binding), string(again), "a repeated Create must find what the first one made")
	s.requireValue(second, "name", "kept")
}

func (s *suite[H]) ownersAreIsolated() {
	base := owner("a")
	others := map[string]resources.Owner{
		"another execution": {ExecutionID: "execution-b", RunID: base.RunID, Key: base.Key},
		"another run":       {ExecutionID: base.ExecutionID, RunID: "run-b", Key: base.Key},
		"another key":       {ExecutionID: base.ExecutionID, RunID: base.RunID, Key: "other"},
		"parts shifted":     {ExecutionID: base.ExecutionID + base.RunID, RunID: "", Key: base.Key},
	}
	first, binding := s.create(base, "")
	s.write(first, "name", "first")
	for what, other := range others {
		handle, otherBinding := s.create(other, "")
		require.NotEqual(s, string(binding), string(otherBinding), what)
		s.requireMissing(handle, "name")
		s.write(handle, "name", what)
	}
	s.requireValue(first, "name", "first")
}

func (s *suite[H]) openGivesState() {
	handle, binding := s.create(owner("a"), "")
	s.write(handle, "name", "value")
	opened := s.open(binding)
	s.requireValue(opened, "name", "value")
	s.write(opened, "name", "changed")
	s.requireValue(handle, "name", "changed")
}

// maxBinding is what a binding may take: it is part of every step's history.
const maxBinding = 4 << 10

func (s *suite[H]) bindingIsPlain() {
	_, binding := s.create(owner("a"), "")
	var object map[string]any
	require.NoError(s, json.Unmarshal(binding, &object), "the binding must be a JSON object, not %s", binding)
	require.NotEmpty(s, object, "the binding must say which resource it is")
	require.LessOrEqual(s, len(binding), maxBinding, "the binding is recorded in history")
	for i, secret := range s.Secrets {
		require.NotContains(s, string(binding), secret, "the binding contains Secrets[%d]", i)
	}
}

func (s *suite[H]) unknownBindingIsGone() {
	_, err := s.driver.Open(s.Context(), s.UnknownBinding)
	require.ErrorIs(s, err, resources.ErrGone)
}

func (s *suite[H]) handleSurvivesCheckpoint() {
	handle, binding := s.create(owner("a"), "")
	s.write(handle, "before", "1")
	s.checkpoint(handle)
	s.requireValue(handle, "before", "1")
	s.write(handle, "after", "2")
	s.requireValue(s.open(binding), "after", "2")
	s.checkpoint(handle)
}

func (s *suite[H]) checkpointIsImmutable() {
	handle, _ := s.create(owner("a"), "")
	s.write(handle, "name", "old")
	old := s.checkpoint(handle)
	s.write(handle, "name", "new")
	s.write(handle, "more", "new")
	recent := s.checkpoint(handle)
	require.NotEqual(s, old, recent, "different states need different references")

	fromOld, _ := s.create(owner("b"), old)
	s.requireValue(fromOld, "name", "old")
	s.requireMissing(fromOld, "more")
	fromRecent, _ := s.create(owner("c"), recent)
	s.requireValue(fromRecent, "name", "new")
	s.requireValue(fromRecent, "more", "new")
}

func (s *suite[H]) createFromCheckpoint() {
	source, binding := s.create(owner("a"), "")
	s.write(source, "name", "source")
	ref := s.checkpoint(source)

	fork, forkBinding := s.create(owner("b"), ref)
	require.NotEqual(s, string(binding), string(forkBinding), "a fork must not share its source's resource")
	s.write(fork, "name", "fork")
	s.requireValue(source, "name", "source")
	s.write(source, "only", "source")
	s.requireMissing(fork, "only")

	second, _ := s.create(owner("c"), ref)
	s.requireValue(second, "name", "source")
}

func (s *suite[H]) createFromCheckpointIsIdempotent() {
	source, _ := s.create(owner("a"), "")
	s.write(source, "name", "source")
	ref := s.checkpoint(source)

	fork, binding := s.create(owner("b"), ref)
	s.write(fork, "name", "fork")
	again, againBinding := s.create(owner("b"), ref)
	require.JSONEq(s, string(binding), string(againBinding))
	s.requireValue(again, "name", "fork")
}

func (s *suite[H]) checkpointOfFork() {
	source, _ := s.create(owner("a"), "")
	s.write(source, "name", "source")
	fork, _ := s.create(owner("b"), s.checkpoint(source))
	s.write(fork, "more", "fork")
	forkOfFork, _ := s.create(owner("c"), s.checkpoint(fork))
	s.requireValue(forkOfFork, "name", "source")
	s.requireValue(forkOfFork, "more", "fork")
}

func (s *suite[H]) missingCheckpointIsUnavailable() {
	missing := s.MissingCheckpoint
	if missing == "" {
		missing = "resourcetest: no such checkpoint"
	}
	_, _, err := s.driver.Create(s.Context(), s.request(owner("a"), missing))
	require.ErrorIs(s, err, resources.ErrCheckpointUnavailable)
	// What failed must not stand in the way of what works.
	handle, _ := s.create(owner("a"), "")
	s.requireMissing(handle, "name")
}

// parallelCalls is enough to meet in a driver's critical sections.
const parallelCalls = 8

func (s *suite[H]) concurrentOwners() {
	s.concurrently(func(i int) error {
		handle, binding, err := s.driver.Create(s.Context(), s.request(owner(fmt.Sprint(i)), ""))
		if err != nil {
			return err
		}
		if err := s.Write(s.Context(), handle, "name", fmt.Sprint(i)); err != nil {
			return err
		}
		ref, err := s.driver.Checkpoint(s.Context(), handle)
		if err != nil {
			return err
		}
		if _, err := s.driver.Open(s.Context(), binding); err != nil {
			return err
		}
		fork, _, err := s.driver.Create(s.Context(), s.request(owner(fmt.Sprint("fork-", i)), ref))
		if err != nil {
			return err
		}
		value, _, err := s.Read(s.Context(), fork, "name")
		if err == nil && value != fmt.Sprint(i) {
			err = fmt.Errorf("fork of %d has the state %q", i, value)
		}
		return err
	})
}

func (s *suite[H]) concurrentCreates() {
	source, _ := s.create(owner("source"), "")
	s.write(source, "name", "source")
	ref := s.checkpoint(source)

	var bindings [parallelCalls]string
	s.concurrently(func(i int) error {
		_, binding, err := s.driver.Create(s.Context(), s.request(owner("same"), ref))
		bindings[i] = string(binding)
		return err
	})
	for _, binding := range bindings {
		require.JSONEq(s, bindings[0], binding, "Creates of one owner must agree")
	}
	s.requireValue(s.open(json.RawMessage(bindings[0])), "name", "source")
}

func (s *suite[H]) concurrently(call func(i int) error) {
	s.Helper()
	var errs [parallelCalls]error
	var calls sync.WaitGroup
	for i := range parallelCalls {
		calls.Go(func() { errs[i] = call(i) })
	}
	calls.Wait()
	for _, err := range errs {
		require.NoError(s, err)
	}
}

// cancelledContext accepts success: a driver may be done before it looks.
func (s *suite[H]) cancelledContext() {
	source, _ := s.create(owner("source"), "")
	s.write(source, "name", "source")
	ref := s.checkpoint(source)

	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	_, _, err := s.driver.Create(ctx, s.request(owner("a"), ref))
	require.NotErrorIs(s, err, resources.ErrCheckpointUnavailable, "a cancelled call says nothing about the checkpoint")
	_, err = s.driver.Checkpoint(ctx, source)
	require.NotErrorIs(s, err, resources.ErrGone, "a cancelled call says nothing about the resource")

	handle, _ := s.create(owner("a"), ref)
	s.requireValue(handle, "name", "source")
	s.checkpoint(source)
}

func (s *suite[H]) anotherWorker() {
	if s.Reopen == nil {
		s.Skip("Hooks.Reopen is not set")
	}
	handle, binding := s.create(owner("a"), "")
	s.write(handle, "name", "value")
	ref := s.checkpoint(handle)

	other := &suite[H]{T: s.T, Hooks: s.Hooks, driver: s.Reopen(s.T, s.driver)}
	require.Equal(s, s.driver.ID(), other.driver.ID())
	other.requireValue(other.open(binding), "name", "value")
	_, again := other.create(owner("a"), "")
	require.JSONEq(s, string(binding), string(again), "another worker must find what the first one made")
	fork, _ := other.create(owner("b"), ref)
	other.requireValue(fork, "name", "value")
	// The first worker sees what the second one stored.
	other.write(fork, "more", "fork")
	forkOfFork, _ := s.create(owner("c"), other.checkpoint(fork))
	s.requireValue(forkOfFork, "more", "fork")
}

// optional skips a check of an interface that the driver does not implement.
func optional[I any, H any](s *suite[H]) I {
	s.Helper()
	implementation, ok := s.driver.(I)
	if !ok {
		s.Skipf("the driver is no %T", (*I)(nil))
	}
	return implementation
}

func (s *suite[H]) pause() {
	pauser := optional[resources.Pauser](s)
	handle, binding := s.create(owner("a"), "")
	s.write(handle, "name", "value")
	pause := func() {
		require.NoError(s, pauser.Pause(s.Context(), binding))
		require.NoError(s, pauser.Pause(s.Context(), binding), "pausing a paused resource does nothing")
	}

	pause()
	s.requireValue(handle, "name", "value")
	pause()
	s.write(handle, "more", "value")
	pause()
	s.requireValue(s.open(binding), "more", "value")
	pause()
	_, again := s.create(owner("a"), "")
	require.JSONEq(s, string(binding), string(again), "Create must find what is paused")
	pause()
	fork, _ := s.create(owner("b"), s.checkpoint(handle))
	s.requireValue(fork, "more", "value")

	require.ErrorIs(s, pauser.Pause(s.Context(), s.UnknownBinding), resources.ErrGone)
}

func (s *suite[H]) destroy() {
	destroyer := optional[resources.Destroyer](s)
	handle, binding := s.create(owner("a"), "")
	s.write(handle, "name", "value")
	ref := s.checkpoint(handle)
	other, _ := s.create(owner("b"), "")
	s.write(other, "name", "other")

	require.NoError(s, destroyer.Destroy(s.Context(), binding))
	_, err := s.driver.Open(s.Context(), binding)
	require.ErrorIs(s, err, resources.ErrGone)
	require.NoError(s, destroyer.Destroy(s.Context(), binding), "what is gone is no error")
	require.NoError(s, destroyer.Destroy(s.Context(), s.UnknownBinding), "what is gone is no error")
	s.requireValue(other, "name", "other")
	fork, forkBinding := s.create(owner("c"), ref)
	s.requireValue(fork, "name", "value")

	if pauser, ok := s.driver.(resources.Pauser); ok {
		require.NoError(s, pauser.Pause(s.Context(), forkBinding))
		require.NoError(s, destroyer.Destroy(s.Context(), forkBinding))
		require.ErrorIs(s, pauser.Pause(s.Context(), forkBinding), resources.ErrGone)
	}
}

func (s *suite[H]) deleteCheckpoint() {
	deleter := optional[resources.CheckpointDeleter](s)
	handle, _ := s.create(owner("a"), "")
	s.write(handle, "name", "old")
	old := s.checkpoint(handle)
	s.write(handle, "name", "new")
	recent := s.checkpoint(handle)

	require.NoError(s, deleter.DeleteCheckpoint(s.Context(), old))
	_, _, err := s.driver.Create(s.Context(), s.request(owner("b"), old))
	require.ErrorIs(s, err, resources.ErrCheckpointUnavailable)
	require.NoError(s, deleter.DeleteCheckpoint(s.Context(), old), "what is gone is no error")
	s.requireValue(handle, "name", "new")
	fork, _ := s.create(owner("c"), recent)
	s.requireValue(fork, "name", "new")
}

func (s *suite[H]) list() {
	lister := optional[resources.Lister](s)
	want := map[resources.Owner]string{}
	for _, name := range []string{"a", "b & = + %"} {
		_, binding := s.create(owner(name), "")
		want[owner(name)] = string(binding)
	}
	listed := func() map[resources.Owner]string {
		all, err := lister.List(s.Context())
		require.NoError(s, err)
		bindings := map[resources.Owner]string{}
		for _, one := range all {
			require.NotContains(s, bindings, one.Owner, "one resource an owner")
			bindings[one.Owner] = string(one.Binding)
		}
		return bindings
	}
	got := listed()
	for owner, binding := range want {
		require.JSONEq(s, binding, got[owner], "binding of %+v", owner)
	}
	if destroyer, ok := s.driver.(resources.Destroyer); ok {
		require.NoError(s, destroyer.Destroy(s.Context(), json.RawMessage(want[owner("a")])))
		require.NotContains(s, listed(), owner("a"))
	}
}
