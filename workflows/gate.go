package workflows

import (
	"slices"

	"go.temporal.io/sdk/workflow"
)

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

// started notes that target runs, for the UI, and returns how to end that.
func (x *execution) started(ctx workflow.Context, target string) (ended func()) {
	x.running = append(x.running, target)
	x.describe(ctx)
	return func() {
		i := slices.Index(x.running, target)
		x.running = slices.Delete(x.running, i, i+1)
		x.describe(ctx)
	}
}
