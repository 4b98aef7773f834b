package activities

import (
	"context"
	"encoding/json"

	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// tineGenerate is the activity of an llm_call.
func (a *Activities) tineGenerate(ctx context.Context, req GenerateRequest, envelope protocol.Call) (json.RawMessage, error) {
	model, ok := a.models[envelope.Model]
	if !ok {
		return nil, errUnknownStep("model", envelope.Model)
	}
	tools, err := a.toolSpecs(req.Tools)
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
	return encodeResult(envelope.Model, response)
}

func (a *Activities) toolSpecs(names []string) ([]ToolSpec, error) {
	specs := make([]ToolSpec, 0, len(names))
	for _, name := range names {
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
