package e2b

import (
	"context"
	"sync"

	"github.com/tinerun/tine/resources"
)

// ownerLocks let one call at a time create for an owner. The zero value is ready.
type ownerLocks struct {
	mu   sync.Mutex
	held map[resources.Owner]chan struct{}
}

func (l *ownerLocks) lock(ctx context.Context, owner resources.Owner) (release func(), err error) {
	for {
		mine := make(chan struct{})
		other := l.claim(owner, mine)
		if other == nil {
			return func() { l.free(owner, mine) }, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// claim returns what is closed when the owner's lock is free, or nil if it is the caller's now.
func (l *ownerLocks) claim(owner resources.Owner, mine chan struct{}) (other chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.held[owner]; other != nil {
		return other
	}
	if l.held == nil {
		l.held = map[resources.Owner]chan struct{}{}
	}
	l.held[owner] = mine
	return nil
}

func (l *ownerLocks) free(owner resources.Owner, mine chan struct{}) {
	l.mu.Lock()
	delete(l.held, owner)
	l.mu.Unlock()
	close(mine)
}
