package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime/debug"

	"github.com/google/jsonschema-go/jsonschema"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// Handler is the body of a tool or local step, its types erased.
type Handler struct {
	name   string
	schema json.RawMessage
	// run is the body. Arguments that a model may have written are checked against the
	// schema; those that typed workflow code has encoded fit already.
	run func(ctx context.Context, args json.RawMessage, check bool) (json.RawMessage, error)
}

// NewHandler binds fn to a name. A must have a JSON schema: maps need string keys, and there
// are no functions, channels or cycles.
func NewHandler[A, R any](name string, fn func(context.Context, A) (R, error)) (Handler, error) {
	schema, err := jsonschema.ForType(reflect.TypeFor[A](), &jsonschema.ForOptions{})
	if err != nil {
		return Handler{}, fmt.Errorf("%s: the arguments' type has no JSON schema: %w", name, err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return Handler{}, fmt.Errorf("%s: the arguments' schema: %w", name, err)
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		return Handler{}, fmt.Errorf("%s: the arguments' schema: %w", name, err)
	}
	return Handler{
		name:   name,
		schema: raw,
		run: func(ctx context.Context, raw json.RawMessage, check bool) (json.RawMessage, error) {
			args, err := decodeArgs[A](resolved, raw, check)
			if err != nil {
				return nil, temporal.NewNonRetryableApplicationError(err.Error(), failure.TypeInvalidArguments, nil)
			}
			result, err := call(ctx, name, fn, args)
			if err != nil {
				return nil, err
			}
			return encodeResult(name, result)
		},
	}, nil
}

// Name is the tool's or step's name.
func (h Handler) Name() string { return h.name }

// Schema is the JSON schema of the arguments.
func (h Handler) Schema() json.RawMessage { return h.schema }

func decodeArgs[A any](schema *jsonschema.Resolved, raw json.RawMessage, check bool) (A, error) {
	var args A
	if len(raw) == 0 {
		raw = json.RawMessage("null")
	}
	if check {
		var value any
		if err := json.Unmarshal(raw, &value); err != nil {
			return args, fmt.Errorf("the arguments are not JSON: %w", err)
		}
		if err := schema.Validate(value); err != nil {
			return args, fmt.Errorf("the arguments do not fit the schema: %w", err)
		}
	}
	if err := json.Unmarshal(raw, &args); err != nil {
		return args, fmt.Errorf("the arguments do not fit: %w", err)
	}
	return args, nil
}

// call runs the body and turns a panic into an error that is not tried again: it would
// most likely panic again, and the agent can do something about it.
func call[A, R any](ctx context.Context, name string, fn func(context.Context, A) (R, error), args A) (result R, err error) {
	defer func() {
		if p := recover(); p != nil {
			logger(ctx).Error("step panicked", "step", name, "panic", p, "stack", string(debug.Stack()))
			err = temporal.NewNonRetryableApplicationError(fmt.Sprintf("panic: %v", p), failure.TypePanic, nil)
		}
	}()
	return fn(ctx, args)
}

func encodeResult(name string, result any) (json.RawMessage, error) {
	raw, err := json.Marshal(result)
	if err != nil {
		return nil, temporal.NewNonRetryableApplicationError("the result cannot be encoded as JSON: "+err.Error(), failure.TypeInvalidResult, nil)
	}
	return raw, nil
}

// fits refuses a result that Temporal would: it would refuse it again and again.
func (a *Activities) fits(raw json.RawMessage, err error) (json.RawMessage, error) {
	if err != nil || len(raw) <= a.opts.PayloadLimit {
		return raw, err
	}
	return nil, temporal.NewNonRetryableApplicationError(
		fmt.Sprintf("the result has %d bytes; at most %d fit%s. Return less, or a reference to where the rest is",
			len(raw), a.opts.PayloadLimit, protocol.StorageHint(a.opts.PayloadLimit)),
		failure.TypeInvalidResult, nil)
}
