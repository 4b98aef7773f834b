package workflows

import (
	"encoding/json"
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// Now is the time, recorded: a fork sees the time its source saw.
func Now(ctx workflow.Context) (time.Time, error) {
	return run[time.Time](ctx, call{kind: protocol.KindLocal, target: protocol.StepNow})
}

// NewUUID is a new random UUID, recorded.
func NewUUID(ctx workflow.Context) (string, error) {
	return run[string](ctx, call{kind: protocol.KindLocal, target: protocol.StepUUID})
}

// Record records value under name, and returns it. In a fork's prefix it
// returns what was recorded instead. It lets an agent read its input in a way
// that a fork with another input can change from the fork point on:
//
//	instruction, err := workflows.Record(ctx, "instruction", in.Instruction)
//
// An execution may record a name any number of times.
func Record[T any](ctx workflow.Context, name string, value T) (T, error) {
	var none T
	if name == "" || protocol.ReservedStep(name) {
		return none, configurationError("record %q: the name is empty or Tine's own", name)
	}
	raw, err := protocol.Encode(value)
	if err != nil {
		return none, fmt.Errorf("record %s: %w", name, err)
	}
	return run[T](ctx, call{kind: protocol.KindLocal, target: name, value: raw})
}

// Sleep waits for d, which is counted in milliseconds. A fork does not wait again
// for what its source has waited for. Other steps go on meanwhile.
func Sleep(ctx workflow.Context, d time.Duration) error {
	args, err := protocol.Encode(map[string]int64{"ms": d.Milliseconds()})
	if err != nil {
		return fmt.Errorf("sleep: %w", err)
	}
	_, err = run[json.RawMessage](ctx, call{
		kind: protocol.KindLocal, target: protocol.StepSleep, args: args,
		wait: func(ctx workflow.Context, began time.Time) (json.RawMessage, error) {
			left := d - workflow.Now(ctx).Sub(began)
			timer := workflow.NewTimerWithOptions(ctx, left, workflow.TimerOptions{Summary: "sleep " + d.String()})
			return nil, timer.Get(ctx, nil)
		},
	})
	return err
}

// Receive waits for the signal called name and returns its payload, recorded: a
// fork does not wait again for a signal its source has received. Other steps go
// on meanwhile. A payload that does not fit T is an error.
func Receive[T any](ctx workflow.Context, name string) (T, error) {
	args, err := protocol.Encode(map[string]string{"signal": name})
	if err != nil {
		var none T
		return none, fmt.Errorf("receive %s: %w", name, err)
	}
	return run[T](ctx, call{
		kind: protocol.KindLocal, target: protocol.StepReceive, args: args,
		wait: func(ctx workflow.Context, _ time.Time) (json.RawMessage, error) {
			return receive(ctx, name)
		},
	})
}

func receive(ctx workflow.Context, name string) (json.RawMessage, error) {
	if payload, ok := executionFrom(ctx).kept(name); ok {
		return payload, nil
	}
	var payload json.RawMessage
	var err error
	signals := workflow.GetSignalChannel(ctx, name)
	workflow.NewSelector(ctx).
		AddReceive(signals, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, &payload) }).
		AddReceive(ctx.Done(), func(workflow.ReceiveChannel, bool) { err = ctx.Err() }).
		Select(ctx)
	return payload, err
}
