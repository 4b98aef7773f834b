package protocol

import "encoding/json"

// GenerateRequest is the arguments of an llm_call.
type GenerateRequest struct {
	// Model is the endpoint's model id. Empty: the one the worker is configured with.
	Model    string    `json:"model,omitempty"`
	Messages []Message `json:"messages"`
	// Tools names the tools the model may call. Their descriptions and schemas come
	// from the worker, so that they are not part of the step's identity.
	Tools []string `json:"tools,omitempty"`
	// ToolSpecs describe those of Tools that the worker does not know by name, such as an MCP
	// server's.
	ToolSpecs   []ToolSpec `json:"tool_specs,omitempty"`
	Temperature *float64   `json:"temperature,omitempty"`
	MaxTokens   int        `json:"max_tokens,omitempty"`
}

// Roles of a message.
const (
	RoleSystem    = "system"
	RoleUser      = "user"
	RoleAssistant = "assistant"
	RoleTool      = "tool"
)

// Message is one entry of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content,omitempty"`
	// ToolCalls are what an assistant message asks for.
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
	// ToolCallID says which call a tool message answers.
	ToolCallID string `json:"tool_call_id,omitempty"`
}

// ToolCall is a model's request to call a tool. Arguments are as the model wrote
// them, which need not be valid JSON.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Reasons why a model stopped.
const (
	FinishStop      = "stop"
	FinishToolCalls = "tool_calls"
	FinishLength    = "length"
	FinishRefusal   = "content_filter"
)

// GenerateResponse is the result of an llm_call.
type GenerateResponse struct {
	Model        string  `json:"model,omitempty"`
	Message      Message `json:"message"`
	FinishReason string  `json:"finish_reason,omitempty"`
	Usage        *Usage  `json:"usage,omitempty"`
}

// ToolSpec describes a tool to a model.
type ToolSpec struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}
