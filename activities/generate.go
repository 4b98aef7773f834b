package activities

import (
	"context"
	"encoding/json"

	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// tineGenerate is the activity of an llm_call.
func (a *Activities) tineGenerate(ctx context.Context, raw json.RawMessage, envelope protocol.Call) (json.RawMessage, error) {
	model, ok := a.models[envelope.Model]
	if !ok {
		return nil, errUnknownStep("model", envelope.Model)
	}
	req, err := a.request(ctx, raw, envelope.Base)
	if err != nil {
		return nil, err
	}
	tools, err := a.toolSpecs(req)
	if err != nil {
		return nil, err
	}
	var response GenerateResponse
	err = supervise(ctx, envelope.Idempotency, func(ctx context.Context) (err error) {
		response, err = call(ctx, envelope.Model, func(ctx context.Context, req GenerateRequest) (GenerateResponse, error) {
			response, err := model.Generate(ctx, req, tools)
			return response, modelError(err)
		}, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return a.fits(encodeResult(envelope.Model, response))
}

// toolSpecs describes the tools that a request names: as it says itself, or else by what the
// worker knows.
func (a *Activities) toolSpecs(req GenerateRequest) ([]ToolSpec, error) {
	brought := map[string]ToolSpec{}
	for _, spec := range req.ToolSpecs {
		brought[spec.Name] = spec
	}
	specs := make([]ToolSpec, 0, len(req.Tools))
	for _, name := range req.Tools {
		if spec, ok := brought[name]; ok {
			specs = append(specs, spec)
			continue
		}
		h, ok := a.tools[name]
		if !ok {
			return nil, errUnknownStep("tool", name)
		}
		specs = append(specs, ToolSpec{Name: name, Description: a.descriptions[name], Parameters: h.schema})
	}
	return specs, nil
}

// modelError marks a model's error as one, and keeps what it says about retrying.
func modelError(err error) error {
	if err == nil {
		return nil
	}
	typed := temporal.NewApplicationError(err.Error(), failure.TypeLLM)
	if delay, retry := RetryDelay(err); retry {
		return RetryableAfter(typed, delay)
	}
	return typed
}
