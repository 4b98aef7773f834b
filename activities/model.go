package activities

import (
	"context"

	"github.com/tinerun/tine/internal/protocol"
)

// The conversation with a model, as it stands in history.
type (
	GenerateRequest  = protocol.GenerateRequest
	GenerateResponse = protocol.GenerateResponse
	Message          = protocol.Message
	ToolCall         = protocol.ToolCall
	ToolSpec         = protocol.ToolSpec
	Usage            = protocol.Usage
)

// Model answers the llm_calls of agents. Generate is called from an activity, so
// it may be called again after a crash, and concurrently. It marks errors that
// another try may mend with [Retryable] or [RetryableAfter]; all others become the
// step's outcome. Tools are the specifications of the tools that req.Tools names.
type Model interface {
	Generate(ctx context.Context, req GenerateRequest, tools []ToolSpec) (GenerateResponse, error)
}
