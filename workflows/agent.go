package workflows

import (
	"encoding/json"
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// Agent is an agent's handler under its name, ready to be registered as a workflow
// type. Package worker makes and registers it for you.
type Agent struct {
	name   string
	handle func(workflow.Context, json.RawMessage) (json.RawMessage, error)
}

// NewAgent names a handler. In and Out are encoded as JSON. It panics on a name
// that is empty or is Tine's own.
func NewAgent[In, Out any](name string, handler func(workflow.Context, In) (Out, error)) Agent {
	checkName("agent", name)
	return Agent{
		name: name,
		handle: func(ctx workflow.Context, raw json.RawMessage) (json.RawMessage, error) {
			var in In
			if len(raw) > 0 {
				if err := protocol.Decode(raw, &in); err != nil {
					return nil, temporal.NewNonRetryableApplicationError(
						"the input does not fit agent "+name+": "+err.Error(), failure.TypeInput, nil)
				}
			}
			out, err := handler(ctx, in)
			if err != nil {
				return nil, err
			}
			return encodeOutput(name, out, executionFrom(ctx).payloadLimit())
		},
	}
}

// Name is the agent's name, which is its workflow type.
func (a Agent) Name() string { return a.name }

// Run is the workflow function. Its first argument is the agent's input; the second is
// set by Tine's client and may be left out.
func (a Agent) Run(ctx workflow.Context, input json.RawMessage, start *protocol.Start) (json.RawMessage, error) {
	x, err := newExecution(ctx, a.name, start)
	if err != nil {
		leave(ctx, start)
		return nil, err
	}
	out, err := x.run(ctx, a.handle, input)
	if workflow.IsContinueAsNewError(err) {
		return nil, err
	}
	err = executionError(err)
	x.publishEnd(ctx, err)
	leave(ctx, start)
	return out, err
}

// run lets the handler run when its turn has come.
func (x *execution) run(ctx workflow.Context, handler func(workflow.Context, json.RawMessage) (json.RawMessage, error), input json.RawMessage) (json.RawMessage, error) {
	if x.start.Roll == nil {
		if err := x.enter(ctx); err != nil {
			return nil, err
		}
	}
	out, err := x.handle(ctx, handler, input)
	if workflow.IsContinueAsNewError(err) {
		return nil, err
	}
	if err == nil {
		x.captureUncovered(ctx)
	}
	x.noteDivergence(ctx)
	x.pauseAtEnd(ctx)
	if err == nil {
		err = x.recordState(ctx)
	}
	return out, err
}

func encodeOutput(agent string, out any, limit int) (json.RawMessage, error) {
	raw, err := protocol.Encode(out)
	if err != nil {
		return nil, temporal.NewNonRetryableApplicationError(
			"the output of agent "+agent+" cannot be encoded: "+err.Error(), failure.TypeInvalidResult, nil)
	}
	if len(raw) > limit {
		return nil, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("the output of agent %s has %d bytes; at most %d fit%s", agent, len(raw), limit, protocol.StorageHint(limit)),
			failure.TypeInvalidResult, nil)
	}
	return raw, nil
}

// handle runs the handler in a coroutine of its own, so that the main coroutine stays free to
// end the run while the handler waits: with what is fatal, or to continue as new.
func (x *execution) handle(ctx workflow.Context, handler func(workflow.Context, json.RawMessage) (json.RawMessage, error), input json.RawMessage) (json.RawMessage, error) {
	var out json.RawMessage
	var err error
	finished := false
	workflow.GoNamed(ctx, "handler", func(ctx workflow.Context) {
		out, err = handler(workflow.WithValue(ctx, executionKey{}, x), input)
		finished = true
	})
	// A cancelled execution ends when its handler has cleaned up, not before.
	waiting, _ := workflow.NewDisconnectedContext(ctx)
	for {
		waitErr := workflow.Await(waiting, func() bool {
			return finished || x.fatal != nil || x.rolling && (x.quiet() || x.cancelled())
		})
		switch {
		case waitErr != nil:
			return nil, waitErr
		case x.fatal != nil:
			return nil, x.fatal
		case finished:
			return out, err
		}
		if !x.cancelled() { // the next run would not know that it is
			if rollErr := x.roll(ctx, input); rollErr != nil {
				return nil, rollErr
			}
		}
		x.rolling = false
	}
}
