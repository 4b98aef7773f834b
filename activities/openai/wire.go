package openai

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"

	sdk "github.com/openai/openai-go/v3"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/internal/endpoint"
	"github.com/tinerun/tine/internal/protocol"
)

// params puts a request into the form of the wire.
func (m *Model) params(req activities.GenerateRequest, tools []activities.ToolSpec) (sdk.ChatCompletionNewParams, error) {
	params := sdk.ChatCompletionNewParams{Model: req.Model}
	for i, message := range req.Messages {
		param, err := messageParam(message)
		if err != nil {
			return params, fmt.Errorf("messages[%d]: %w", i, err)
		}
		params.Messages = append(params.Messages, param)
	}
	for _, tool := range tools {
		param, err := toolParam(tool)
		if err != nil {
			return params, fmt.Errorf("tool %q: %w", tool.Name, err)
		}
		params.Tools = append(params.Tools, param)
	}
	if req.Temperature != nil {
		params.Temperature = sdk.Float(*req.Temperature)
	}
	if m.stream {
		// Without being asked a stream says nothing of tokens, which budgets count.
		params.StreamOptions.IncludeUsage = sdk.Bool(true)
	}
	switch {
	case req.MaxTokens == 0:
	case m.maxCompletionTokens:
		// OpenAI has renamed the limit, and its reasoning models refuse the old name.
		params.MaxCompletionTokens = sdk.Int(int64(req.MaxTokens))
	default:
		// Compatible servers all know the old name, and many know no other.
		params.MaxTokens = sdk.Int(int64(req.MaxTokens))
	}
	return params, nil
}

func messageParam(message activities.Message) (sdk.ChatCompletionMessageParamUnion, error) {
	switch message.Role {
	case protocol.RoleSystem:
		return sdk.SystemMessage(message.Content), nil
	case protocol.RoleUser:
		return sdk.UserMessage(message.Content), nil
	case protocol.RoleTool:
		return sdk.ToolMessage(message.Content, message.ToolCallID), nil
	case protocol.RoleAssistant:
		var assistant sdk.ChatCompletionAssistantMessageParam
		// Beside tool calls, empty content means that there was none.
		if message.Content != "" || len(message.ToolCalls) == 0 {
			assistant.Content.OfString = sdk.String(message.Content)
		}
		for _, call := range message.ToolCalls {
			assistant.ToolCalls = append(assistant.ToolCalls, sdk.ChatCompletionMessageToolCallUnionParam{
				OfFunction: &sdk.ChatCompletionMessageFunctionToolCallParam{
					ID:       call.ID,
					Function: sdk.ChatCompletionMessageFunctionToolCallFunctionParam{Name: call.Name, Arguments: call.Arguments},
				},
			})
		}
		return sdk.ChatCompletionMessageParamUnion{OfAssistant: &assistant}, nil
	}
	return sdk.ChatCompletionMessageParamUnion{}, fmt.Errorf("unknown role %q: use system, user, assistant or tool", message.Role)
}

func toolParam(tool activities.ToolSpec) (sdk.ChatCompletionToolUnionParam, error) {
	function := sdk.FunctionDefinitionParam{Name: tool.Name}
	if tool.Description != "" {
		function.Description = sdk.String(tool.Description)
	}
	if len(tool.Parameters) > 0 {
		// Only the outermost object is decoded: models tend to fill properties in the
		// order in which the schema has them.
		var schema map[string]json.RawMessage
		if err := json.Unmarshal(tool.Parameters, &schema); err != nil {
			return sdk.ChatCompletionToolUnionParam{}, fmt.Errorf("parameters are not a JSON object: %w", err)
		}
		function.Parameters = make(sdk.FunctionParameters, len(schema))
		for key, value := range schema {
			function.Parameters[key] = value
		}
	}
	return sdk.ChatCompletionFunctionTool(function), nil
}

// answer reads the body of a successful response.
func (m *Model) answer(model string, header http.Header, body []byte) (activities.GenerateResponse, error) {
	var completion sdk.ChatCompletion
	if err := json.Unmarshal(body, &completion); err != nil {
		mediaType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
		if !strings.HasSuffix(mediaType, "json") {
			return activities.GenerateResponse{}, m.endpoint.Errorf(model, "the answer is not JSON but of type %q: check the base URL (LLM_BASE_URL), which often ends in /v1", m.endpoint.Clean(mediaType))
		}
		return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "malformed answer: %s", m.endpoint.Clean(err.Error())))
	}
	if len(completion.Choices) == 0 || !completion.Choices[0].JSON.Message.Valid() {
		// Gateways that have already promised a 200 put the error of the server behind
		// them here.
		text, _ := endpoint.ErrorText(body)
		return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "the answer has no choice: %s", m.endpoint.Clean(text)))
	}

	choice := completion.Choices[0]
	resp := activities.GenerateResponse{
		Model:        m.endpoint.Answer(completion.Model),
		Message:      activities.Message{Role: protocol.RoleAssistant, Content: m.endpoint.Answer(choice.Message.Content)},
		FinishReason: m.endpoint.Answer(choice.FinishReason),
	}
	m.refuse(&resp, choice.Message.Refusal)
	for _, call := range choice.Message.ToolCalls {
		resp.Message.ToolCalls = append(resp.Message.ToolCalls, activities.ToolCall{
			ID:        m.endpoint.Answer(call.ID),
			Name:      m.endpoint.Answer(call.Function.Name),
			Arguments: m.endpoint.Answer(call.Function.Arguments),
		})
	}
	if completion.JSON.Usage.Valid() {
		resp.Usage = &activities.Usage{
			InputTokens:  completion.Usage.PromptTokens,
			OutputTokens: completion.Usage.CompletionTokens,
		}
	}
	return resp, nil
}

// refuse marks an answer as a refusal if the model has given one.
func (m *Model) refuse(resp *activities.GenerateResponse, refusal string) {
	if refusal == "" {
		return
	}
	resp.FinishReason = protocol.FinishRefusal
	if resp.Message.Content == "" {
		resp.Message.Content = m.endpoint.Answer(refusal)
	}
}
