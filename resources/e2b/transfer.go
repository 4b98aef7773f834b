package e2b

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// stallLimit is how long a transfer may stand still. A sandbox that is paused may leave its
// connections open.
const stallLimit = 2 * time.Minute

// stallGuard ends the context when moved was not called for too long.
func stallGuard(ctx context.Context) (guardedCtx context.Context, moved, stop func()) {
	guardedCtx, cancel := context.WithCancelCause(ctx)
	stalled := time.AfterFunc(stallLimit, func() { cancel(errStalled) })
	moved = func() { stalled.Reset(stallLimit) }
	stop = func() {
		stalled.Stop()
		cancel(nil)
	}
	return guardedCtx, moved, stop
}

// guarded reports each read.
type guarded struct {
	from  io.Reader
	moved func()
}

func (g guarded) Read(p []byte) (int, error) {
	n, err := g.from.Read(p)
	g.moved()
	return n, err
}

// keepError remembers that the caller's end of a transfer failed, not the connection.
type keepError struct {
	read  func([]byte) (int, error)
	write func([]byte) (int, error)

	mu  sync.Mutex
	err error
}

func (k *keepError) Read(p []byte) (int, error) {
	n, err := k.read(p)
	if !errors.Is(err, io.EOF) {
		k.keep(err)
	}
	return n, err
}

func (k *keepError) Write(p []byte) (int, error) {
	n, err := k.write(p)
	k.keep(err)
	return n, err
}

func (k *keepError) keep(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

func (k *keepError) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}
