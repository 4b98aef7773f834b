package resources_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources"
)

// countingDriver counts its open handles.
type countingDriver struct {
	opened, closed atomic.Int64
	fail           error
}

type countedHandle struct {
	driver *countingDriver
	shut   atomic.Bool
}

func (h *countedHandle) Close() error {
	h.shut.Store(true)
	h.driver.closed.Add(1)
	return nil
}

func (d *countingDriver) ID() string { return "counting" }

func (d *countingDriver) Create(context.Context, resources.CreateRequest) (*countedHandle, json.RawMessage, error) {
	h, err := d.Open(context.Background(), nil)
	return h, json.RawMessage(`{"n":0}`), err
}

func (d *countingDriver) Open(context.Context, json.RawMessage) (*countedHandle, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	d.opened.Add(1)
	return &countedHandle{driver: d}, nil
}

func (d *countingDriver) Checkpoint(_ context.Context, h *countedHandle) (string, error) {
	if h.shut.Load() {
		return "", fmt.Errorf("the handle is closed")
	}
	return "ref", nil
}

func newSet(t *testing.T, d *countingDriver) *resources.Set {
	t.Helper()
	set, err := resources.NewSet(resources.Erase(d))
	require.NoError(t, err)
	return set
}

func numbered(n int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)) }

func TestSetSharesHandles(t *testing.T) {
	t.Parallel()
	d := &countingDriver{}
	set := newSet(t, d)
	created, err := set.Create(t.Context(), "counting", resources.CreateRequest{})
	require.NoError(t, err)
	var wg sync.WaitGroup
	handles := make([]any, 20)
	for i := range handles {
		wg.Go(func() {
			handle, release, err := set.Acquire(t.Context(), "counting", json.RawMessage(` { "n": 0 } `))
			if err == nil {
				handles[i] = handle
				defer release()
			}
		})
	}
	wg.Wait()
	for _, h := range handles {
		require.Same(t, handles[0], h, "the same binding gives the same handle")
	}
	ref, err := set.Checkpoint(t.Context(), "counting", created.Binding)
	require.NoError(t, err)
	require.Equal(t, "ref", ref)
	require.EqualValues(t, 1, d.opened.Load())
	require.Zero(t, d.closed.Load())
	set.Close()
	require.EqualValues(t, 1, d.closed.Load())
}

func TestSetKeepsUsedHandlesOpen(t *testing.T) {
	t.Parallel()
	d := &countingDriver{}
	set := newSet(t, d)
	used, release, err := set.Acquire(t.Context(), "counting", numbered(-1))
	require.NoError(t, err)
	for i := range 200 {
		_, free, err := set.Acquire(t.Context(), "counting", numbered(i))
		require.NoError(t, err)
		free()
		free() // releasing twice counts once
	}
	require.Greater(t, d.closed.Load(), int64(100), "idle handles are bounded")
	require.False(t, used.(*countedHandle).shut.Load())
	set.Close()
	require.False(t, used.(*countedHandle).shut.Load(), "somebody uses it")
	release()
	require.True(t, used.(*countedHandle).shut.Load())
	require.Equal(t, d.opened.Load(), d.closed.Load())
}

func TestSetReopens(t *testing.T) {
	t.Parallel()
	d := &countingDriver{}
	set := newSet(t, d)
	created, err := set.Create(t.Context(), "counting", resources.CreateRequest{})
	require.NoError(t, err)

	opened, err := set.Reopen(t.Context(), "counting", created.Binding, nil)
	require.NoError(t, err)
	require.Equal(t, created, opened)
	require.EqualValues(t, 2, d.opened.Load(), "an idle handle does not show that the resource is there")
	require.EqualValues(t, 1, d.closed.Load())

	_, release, err := set.Acquire(t.Context(), "counting", created.Binding)
	require.NoError(t, err)
	_, err = set.Reopen(t.Context(), "counting", created.Binding, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.opened.Load(), "the same binding gives the same handle")
	release()

	d.fail = resources.ErrGone
	_, err = set.Reopen(t.Context(), "counting", created.Binding, nil)
	require.ErrorIs(t, err, resources.ErrGone)
	_, err = set.Reopen(t.Context(), "other", created.Binding, nil)
	var unknown *resources.UnknownDriverError
	require.ErrorAs(t, err, &unknown)
}

func TestSetErrors(t *testing.T) {
	t.Parallel()
	d := &countingDriver{fail: resources.ErrGone}
	set := newSet(t, d)
	_, _, err := set.Acquire(t.Context(), "counting", numbered(1))
	require.ErrorIs(t, err, resources.ErrGone)
	d.fail = nil
	_, release, err := set.Acquire(t.Context(), "counting", numbered(1))
	require.NoError(t, err, "a failure is not kept")
	release()

	_, err = set.Create(t.Context(), "other", resources.CreateRequest{})
	var unknown *resources.UnknownDriverError
	require.ErrorAs(t, err, &unknown)
	require.ErrorContains(t, err, `no resource driver "other" is registered with this worker; registered: counting`)

	_, err = resources.NewSet(resources.Erase(d), resources.Erase(d))
	require.ErrorContains(t, err, "two drivers")
}

// restingDriver is a countingDriver that also has the optional interfaces without handles.
type restingDriver struct {
	countingDriver
	paused, destroyed, deleted string
}

func (d *restingDriver) Pause(_ context.Context, binding json.RawMessage) error {
	d.paused = string(binding)
	return nil
}

func (d *restingDriver) Destroy(_ context.Context, binding json.RawMessage) error {
	d.destroyed = string(binding)
	return nil
}

func (d *restingDriver) DeleteCheckpoint(_ context.Context, ref string) error {
	d.deleted = ref
	return nil
}

func (d *restingDriver) List(context.Context) ([]resources.Listed, error) {
	return []resources.Listed{{Binding: numbered(7)}}, nil
}

func TestSetWithoutOpening(t *testing.T) {
	t.Parallel()
	d := &restingDriver{}
	set, err := resources.NewSet(resources.Erase(d))
	require.NoError(t, err)
	require.NoError(t, set.Pause(t.Context(), "counting", numbered(1)))
	require.Equal(t, `{"n":1}`, d.paused)
	require.NoError(t, set.Destroy(t.Context(), "counting", numbered(2)))
	require.Equal(t, `{"n":2}`, d.destroyed)
	require.NoError(t, set.DeleteCheckpoint(t.Context(), "counting", "ref"))
	require.Equal(t, "ref", d.deleted)
	listed, err := set.List(t.Context(), "counting")
	require.NoError(t, err)
	require.Equal(t, []resources.Listed{{Binding: numbered(7)}}, listed)
	require.Zero(t, d.opened.Load(), "none of this opens a resource")

	created, err := set.Create(t.Context(), "counting", resources.CreateRequest{})
	require.NoError(t, err)
	require.True(t, created.CanPause)
}

func TestSetDestroyForgetsHandles(t *testing.T) {
	t.Parallel()
	d := &restingDriver{}
	set, err := resources.NewSet(resources.Erase(d))
	require.NoError(t, err)
	used, release, err := set.Acquire(t.Context(), "counting", numbered(1))
	require.NoError(t, err)
	_, free, err := set.Acquire(t.Context(), "counting", numbered(2))
	require.NoError(t, err)
	free()

	require.NoError(t, set.Destroy(t.Context(), "counting", numbered(2)))
	require.EqualValues(t, 1, d.closed.Load(), "nobody uses the handle")
	require.NoError(t, set.Destroy(t.Context(), "counting", numbered(1)))
	require.EqualValues(t, 1, d.closed.Load(), "somebody uses the handle")
	again, releaseAgain, err := set.Acquire(t.Context(), "counting", numbered(1))
	require.NoError(t, err)
	require.NotSame(t, used, again)
	release()
	require.EqualValues(t, 2, d.closed.Load())
	require.False(t, again.(*countedHandle).shut.Load())
	releaseAgain()
	set.Close()
	require.EqualValues(t, 3, d.closed.Load())
}

func TestSetWithoutOptionalInterfaces(t *testing.T) {
	t.Parallel()
	set := newSet(t, &countingDriver{})
	_, listErr := set.List(t.Context(), "counting")
	for _, err := range []error{
		set.Pause(t.Context(), "counting", numbered(1)),
		set.Destroy(t.Context(), "counting", numbered(1)),
		set.DeleteCheckpoint(t.Context(), "counting", "ref"),
		listErr,
	} {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "driver counting cannot")
	}
	var unknown *resources.UnknownDriverError
	require.ErrorAs(t, set.Pause(t.Context(), "other", numbered(1)), &unknown)
	created, err := set.Create(t.Context(), "counting", resources.CreateRequest{})
	require.NoError(t, err)
	require.False(t, created.CanPause)
}
