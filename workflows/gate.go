package workflows

import "go.temporal.io/sdk/workflow"

// gate lets tool calls and local steps run side by side until the execution has
// a resource, and one at a time from then on.
type gate struct {
	mutex   workflow.Mutex
	serial  bool
	running int
}

func newGate(ctx workflow.Context) *gate {
	return &gate{mutex: workflow.NewMutex(ctx)}
}

// enter waits for the caller's turn and returns how to leave.
func (g *gate) enter(ctx workflow.Context) (leave func(), err error) {
	if !g.serial {
		g.running++
		return func() { g.running-- }, nil
	}
	if err := g.mutex.Lock(ctx); err != nil {
		return nil, err
	}
	return g.mutex.Unlock, nil
}

// try enters if nobody is in, and reports whether it did.
func (g *gate) try(ctx workflow.Context) (leave func(), ok bool) {
	if g.running > 0 || !g.mutex.TryLock(ctx) {
		return nil, false
	}
	return g.mutex.Unlock, true
}

// close makes the gate serial, waits for those who entered before, and enters.
func (g *gate) close(ctx workflow.Context) (leave func(), err error) {
	g.serial = true
	if err := g.mutex.Lock(ctx); err != nil {
		return nil, err
	}
	if err := workflow.Await(ctx, func() bool { return g.running == 0 }); err != nil {
		g.mutex.Unlock()
		return nil, err
	}
	return g.mutex.Unlock, nil
}
