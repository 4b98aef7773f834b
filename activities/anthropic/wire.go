package anthropic

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/internal/endpoint"
	"github.com/tinerun/tine/internal/protocol"
)

// params puts a request into the form of the wire.
func (m *Model) params(req activities.GenerateRequest, tools []activities.ToolSpec) (sdk.MessageNewParams, error) {
	params := sdk.MessageNewParams{Model: sdk.Model(req.Model), MaxTokens: int64(m.maxTokens)}
	if req.MaxTokens > 0 {
		params.MaxTokens = int64(req.MaxTokens)
	}
	if req.Temperature != nil {
		params.Temperature = sdk.Float(*req.Temperature)
	}
	for i, message := range req.Messages {
		if err := addMessage(&params, message); err != nil {
			return params, fmt.Errorf("messages[%d]: %w", i, err)
		}
	}
	for _, tool := range tools {
		p, err := toolParam(tool)
		if err != nil {
			return params, fmt.Errorf("tool %q: %w", tool.Name, err)
		}
		params.Tools = append(params.Tools, p)
	}
	return params, nil
}

func addMessage(params *sdk.MessageNewParams, message activities.Message) error {
	switch message.Role {
	case protocol.RoleSystem:
		if message.Content != "" {
			params.System = append(params.System, sdk.TextBlockParam{Text: message.Content})
		}
	case protocol.RoleUser:
		add(params, sdk.MessageParamRoleUser, text(message.Content)...)
	case protocol.RoleTool:
		add(params, sdk.MessageParamRoleUser, toolResult(message))
	case protocol.RoleAssistant:
		blocks := text(message.Content)
		for _, call := range message.ToolCalls {
			blocks = append(blocks, sdk.NewToolUseBlock(call.ID, input(call.Arguments), call.Name))
		}
		add(params, sdk.MessageParamRoleAssistant, blocks...)
	default:
		return fmt.Errorf("unknown role %q: use system, user, assistant or tool", message.Role)
	}
	return nil
}

// add puts blocks at the end of the conversation, into the last message if it has the same role.
func add(params *sdk.MessageNewParams, role sdk.MessageParamRole, blocks ...sdk.ContentBlockParamUnion) {
	if len(blocks) == 0 {
		return
	}
	if n := len(params.Messages); n > 0 && params.Messages[n-1].Role == role {
		last := &params.Messages[n-1]
		last.Content = append(last.Content, blocks...)
		return
	}
	params.Messages = append(params.Messages, sdk.MessageParam{Role: role, Content: blocks})
}

// text is a block, or none for an empty text.
func text(content string) []sdk.ContentBlockParamUnion {
	if content == "" {
		return nil
	}
	return []sdk.ContentBlockParamUnion{sdk.NewTextBlock(content)}
}

func toolResult(message activities.Message) sdk.ContentBlockParamUnion {
	result := sdk.ToolResultBlockParam{ToolUseID: message.ToolCallID}
	if message.Content != "" {
		result.Content = []sdk.ToolResultBlockParamContentUnion{{OfText: &sdk.TextBlockParam{Text: message.Content}}}
	}
	return sdk.ContentBlockParamUnion{OfToolResult: &result}
}

// input is a tool call's arguments. The API wants an object, and arguments that are none, from
// an answer that was cut off or of another model, would make it refuse the conversation for ever.
func input(arguments string) any {
	var object map[string]json.RawMessage
	if strings.TrimSpace(arguments) == "" {
		return struct{}{}
	}
	if json.Unmarshal([]byte(arguments), &object) != nil || object == nil {
		return map[string]string{"malformed_arguments": arguments}
	}
	return json.RawMessage(arguments)
}

func toolParam(tool activities.ToolSpec) (sdk.ToolUnionParam, error) {
	p := sdk.ToolParam{Name: tool.Name}
	if tool.Description != "" {
		p.Description = sdk.String(tool.Description)
	}
	schema := tool.Parameters
	if len(schema) == 0 {
		schema = json.RawMessage(`{"type":"object"}`) // the API wants one
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(schema, &object); err != nil {
		return sdk.ToolUnionParam{}, fmt.Errorf("parameters are not a JSON object: %w", err)
	}
	// As it is: models tend to fill properties in the order in which the schema has them.
	p.InputSchema = param.Override[sdk.ToolInputSchemaParam](schema)
	return sdk.ToolUnionParam{OfTool: &p}, nil
}

// finishReasons are the names that other endpoints have for the API's stop reasons.
var finishReasons = map[sdk.StopReason]string{
	sdk.StopReasonEndTurn:                    protocol.FinishStop,
	sdk.StopReasonStopSequence:               protocol.FinishStop,
	sdk.StopReasonToolUse:                    protocol.FinishToolCalls,
	sdk.StopReasonMaxTokens:                  protocol.FinishLength,
	sdk.StopReasonModelContextWindowExceeded: protocol.FinishLength,
	sdk.StopReasonRefusal:                    protocol.FinishRefusal,
}

// answer reads the body of a successful response.
func (m *Model) answer(model string, header http.Header, body []byte) (activities.GenerateResponse, error) {
	var message sdk.Message
	if err := json.Unmarshal(body, &message); err != nil {
		mediaType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
		if !strings.HasSuffix(mediaType, "json") {
			return activities.GenerateResponse{}, m.endpoint.Errorf(model, "the answer is not JSON but of type %q: check the base URL (ANTHROPIC_BASE_URL)", m.endpoint.Clean(mediaType))
		}
		return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "malformed answer: %s", m.endpoint.Clean(err.Error())))
	}
	if !message.JSON.Content.Valid() {
		text, _ := endpoint.ErrorText(body)
		return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "the answer has no content: %s", m.endpoint.Clean(text)))
	}

	resp := activities.GenerateResponse{
		Model:        m.endpoint.Answer(string(message.Model)),
		Message:      activities.Message{Role: protocol.RoleAssistant},
		FinishReason: m.endpoint.Answer(string(message.StopReason)),
	}
	if reason, known := finishReasons[message.StopReason]; known {
		resp.FinishReason = reason
	}
	var said strings.Builder
	for _, block := range message.Content {
		switch block.Type {
		case "text":
			said.WriteString(block.Text)
		case "tool_use":
			resp.Message.ToolCalls = append(resp.Message.ToolCalls, activities.ToolCall{
				ID:        m.endpoint.Answer(block.ID),
				Name:      m.endpoint.Answer(block.Name),
				Arguments: m.endpoint.Answer(string(block.Input)),
			})
		}
	}
	resp.Message.Content = m.endpoint.Answer(said.String())
	if resp.FinishReason == protocol.FinishRefusal && resp.Message.Content == "" {
		resp.Message.Content = m.endpoint.Answer(message.StopDetails.Explanation)
	}
	if message.JSON.Usage.Valid() {
		usage := message.Usage
		resp.Usage = &activities.Usage{
			InputTokens:  usage.InputTokens + usage.CacheCreationInputTokens + usage.CacheReadInputTokens,
			OutputTokens: usage.OutputTokens,
		}
	}
	return resp, nil
}
