package store

import (
	"context"
	"runtime"
	"sync"
)

// workersPerCore keeps a core busy while another worker waits for the disk.
const workersPerCore = 2

func workerCount() int { return workersPerCore * runtime.GOMAXPROCS(0) }

// visitAll visits first and everything that visits push, with several workers at
// once, and returns the first error. What was pushed last is visited first, so that
// the visits stay close to a depth-first walk and few items wait. Items that are not
// visited because of an error are dropped.
func visitAll[T any](ctx context.Context, first T, visit func(worker int, item T, push func(T)) error, drop func(T)) error {
	v := &visits[T]{items: []T{first}}
	v.changed.L = &v.mu
	var workers sync.WaitGroup
	for worker := range workerCount() {
		workers.Go(func() {
			for item, ok := v.next(); ok; item, ok = v.next() {
				err := ctx.Err()
				if err != nil {
					drop(item)
				} else {
					err = visit(worker, item, v.push)
				}
				v.done(err)
			}
		})
	}
	workers.Wait()
	for _, item := range v.items {
		drop(item)
	}
	return v.err
}

type visits[T any] struct {
	mu      sync.Mutex
	changed sync.Cond
	items   []T
	busy    int
	err     error
}

// next waits for an item; there is none any more when all workers wait, or after an
// error.
func (v *visits[T]) next() (item T, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for len(v.items) == 0 && v.busy > 0 && v.err == nil {
		v.changed.Wait()
	}
	if len(v.items) == 0 || v.err != nil {
		return item, false
	}
	last := len(v.items) - 1
	item = v.items[last]
	v.items = v.items[:last]
	v.busy++
	return item, true
}

func (v *visits[T]) push(item T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.items = append(v.items, item)
	v.changed.Signal()
}

func (v *visits[T]) done(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.busy--
	if v.err == nil {
		v.err = err
	}
	if v.err != nil || (v.busy == 0 && len(v.items) == 0) {
		v.changed.Broadcast()
	}
}
