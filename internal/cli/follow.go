package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/eventlog"
)

// How long an execution may be quiet before a look at what keeps it, and how far that grows
// while it stays quiet: a look reads the whole history.
const (
	firstLook = 2 * time.Second
	lastLook  = 30 * time.Second
)

// follow gives an execution's events to show as they happen, until it has ended, and
// describes it then. What keeps it from going on is told on stderr. Its error is
// an *outcomeError unless the execution has completed.
func follow(ctx context.Context, f *factory, c executions, id string, show func(tine.Event) error) (*tine.Execution, error) {
	if err := showAll(ctx, f, c, id, show); err != nil {
		if ctx.Err() != nil {
			return nil, &interruptedError{id}
		}
		return nil, err
	}
	ended, err := c.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if ended.Status != tine.StatusCompleted {
		return ended, &outcomeError{ended}
	}
	return ended, nil
}

func showAll(ctx context.Context, f *factory, c executions, id string, show func(tine.Event) error) error {
	l := lookout{f: f, executions: c, id: id, moved: make(chan struct{}, 1), asked: make(chan struct{}, 1)}
	defer l.start(ctx)()
	for e, err := range c.Follow(ctx, id, 0) {
		if err != nil {
			return err
		}
		if err := show(e); err != nil {
			return err
		}
		l.happened(e)
	}
	return nil
}

// lookout looks after an execution that has been quiet for a while, or that asks for approval: a
// user who waits wants to know that no worker serves it, and which command lets it go on.
type lookout struct {
	f          *factory
	executions executions
	id         string
	moved      chan struct{}
	asked      chan struct{} // somebody has to decide an approval
	told       []string
}

// start looks until the function it returns is called, which waits for the end of
// the last look.
func (l *lookout) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { l.run(ctx) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// happened says that the execution goes on, or that it waits for a person.
func (l *lookout) happened(e tine.Event) {
	signalled := l.moved
	if e.Type == eventlog.ApprovalRequested {
		signalled = l.asked
	}
	select {
	case signalled <- struct{}{}:
	default: // one is enough
	}
}

func (l *lookout) run(ctx context.Context) {
	wait := firstLook
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.moved:
			wait = firstLook
		case <-l.asked: // who watches should not have to wait to be told
			l.look(ctx)
			wait = firstLook
		case <-time.After(wait):
			l.look(ctx)
			wait = min(2*wait, lastLook)
		}
	}
}

// look tells what is new of what keeps the execution.
func (l *lookout) look(ctx context.Context) {
	notes, err := l.notes(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		notes = []string{"the server does not answer: " + err.Error()}
	}
	for _, note := range notes {
		if slices.Contains(l.told, note) {
			continue
		}
		l.told = append(l.told, note)
		tell(l.f, l.f.errOut, note)
	}
}

func (l *lookout) notes(ctx context.Context) ([]string, error) {
	e, err := l.executions.Get(ctx, l.id)
	if err != nil {
		return nil, err
	}
	return e.Notes, nil
}

func tell(f *factory, w io.Writer, note string) {
	if f.json() {
		_ = writeJSON(w, map[string]string{"note": note})
		return
	}
	fmt.Fprintln(w, "note:", oneLine(note))
}
