package workflows

import (
	"go.temporal.io/sdk/workflow"

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

// Roles of a Message.
const (
	RoleSystem    = protocol.RoleSystem
	RoleUser      = protocol.RoleUser
	RoleAssistant = protocol.RoleAssistant
	RoleTool      = protocol.RoleTool
)

// Reasons why a model stopped, which GenerateResponse.FinishReason gives. An endpoint may have
// others.
const (
	FinishStop      = protocol.FinishStop
	FinishToolCalls = protocol.FinishToolCalls
	FinishLength    = protocol.FinishLength
	FinishRefusal   = protocol.FinishRefusal
)

// Model refers to a language model. The worker binds it to an endpoint, whose
// credentials stay there.
type Model struct {
	name    string
	options options
}

// NewModel declares the model called name. It panics on a name that is empty or is Tine's own.
func NewModel(name string, opts ...Option) Model {
	checkName("model", name)
	return Model{name: name, options: newOptions(options{}, opts)}
}

// Name is the model reference's name.
func (m Model) Name() string { return m.name }

// Generate asks the model for one answer: an llm_call step, whose target is the
// request's model id or else the reference's name. It does not wait for tools, and
// tools do not wait for it.
func (m Model) Generate(ctx workflow.Context, req GenerateRequest, opts ...Option) (GenerateResponse, error) {
	return m.Start(ctx, req, opts...).Get(ctx)
}

// Start is Generate that returns at once.
func (m Model) Start(ctx workflow.Context, req GenerateRequest, opts ...Option) Future[GenerateResponse] {
	raw, err := protocol.Encode(req)
	if err != nil {
		return failed[GenerateResponse](ctx, &StepError{Kind: protocol.KindLLM, Target: m.name, Reason: ReasonInvalidArguments, Message: err.Error()})
	}
	target := req.Model
	if target == "" {
		target = m.name
	}
	return start[GenerateResponse](ctx, call{kind: protocol.KindLLM, target: target, args: raw, model: m.name, options: newOptions(m.options, opts)})
}
