package openai

import (
	"encoding/json"
	"mime"
	"net/http"
	"strings"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/internal/endpoint"
	"github.com/tinerun/tine/internal/protocol"
)

// streams reports whether a response is a stream of events. A server that does not know how to
// stream answers whole, and one that refuses the request sends an error.
func streams(res *http.Response) bool {
	mediaType, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return res.StatusCode == http.StatusOK && mediaType == "text/event-stream"
}

// endOfStream is the data of the last event.
const endOfStream = "[DONE]"

// streamed reads an answer that comes in pieces. It is complete with its last event, or if
// the server ends it after it has said why the model stopped.
func (m *Model) streamed(model string, res *http.Response) (activities.GenerateResponse, error) {
	var parts pieces
	decoder := ssestream.NewDecoder(res)
	for decoder.Next() {
		data := strings.TrimSpace(string(decoder.Event().Data))
		if data == endOfStream {
			return m.whole(model, &parts)
		}
		var chunk sdk.ChatCompletionChunk
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "malformed event in the answer: %s", m.endpoint.Clean(err.Error())))
		}
		if raw := chunk.JSON.ExtraFields["error"].Raw(); raw != "" && raw != "null" {
			text, _ := endpoint.ErrorText([]byte(data))
			return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "the answer was broken off: %s", m.endpoint.Clean(text)))
		}
		parts.add(chunk)
	}
	if err := decoder.Err(); err != nil {
		return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "the answer was cut off: %s", m.endpoint.Clean(err.Error())))
	}
	if parts.finish == "" {
		return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "the answer was cut off: the stream ended early"))
	}
	return m.whole(model, &parts)
}

// whole puts the pieces together. The API key may have come in two of them, so it is cut out
// only here.
func (m *Model) whole(model string, parts *pieces) (activities.GenerateResponse, error) {
	if !parts.chosen {
		return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "the answer has no choice"))
	}
	resp := activities.GenerateResponse{
		Model:        m.endpoint.Answer(parts.model),
		Message:      activities.Message{Role: protocol.RoleAssistant, Content: m.endpoint.Answer(parts.content.String())},
		FinishReason: m.endpoint.Answer(parts.finish),
		Usage:        parts.usage,
	}
	m.refuse(&resp, parts.refusal.String())
	for _, call := range parts.calls {
		resp.Message.ToolCalls = append(resp.Message.ToolCalls, activities.ToolCall{
			ID:        m.endpoint.Answer(call.id),
			Name:      m.endpoint.Answer(call.name),
			Arguments: m.endpoint.Answer(call.arguments.String()),
		})
	}
	return resp, nil
}

// pieces is what has come of an answer so far. The SDK's own accumulator refuses streams whose
// chunks differ in their id, as those of some gateways do.
type pieces struct {
	model, finish    string
	content, refusal strings.Builder
	calls            []*callPieces
	usage            *activities.Usage
	chosen           bool // a choice has come
}

type callPieces struct {
	index     int64
	id, name  string
	arguments strings.Builder
}

func (p *pieces) add(chunk sdk.ChatCompletionChunk) {
	if chunk.Model != "" {
		p.model = chunk.Model
	}
	if chunk.JSON.Usage.Valid() { // some servers count anew in every chunk
		p.usage = &activities.Usage{InputTokens: chunk.Usage.PromptTokens, OutputTokens: chunk.Usage.CompletionTokens}
	}
	for _, choice := range chunk.Choices {
		if choice.Index != 0 { // one is asked for
			continue
		}
		p.chosen = true
		p.content.WriteString(choice.Delta.Content)
		p.refusal.WriteString(choice.Delta.Refusal)
		if choice.FinishReason != "" {
			p.finish = choice.FinishReason
		}
		for _, delta := range choice.Delta.ToolCalls {
			p.call(delta)
		}
	}
}

// call adds a piece to the tool call that it belongs to. Servers disagree on how: some repeat the
// id and the name in each piece, some make up an id for each, and some give all calls the same
// index. Only the first piece of a call has another id together with a name.
func (p *pieces) call(delta sdk.ChatCompletionChunkChoiceDeltaToolCall) {
	name := delta.Function.Name
	var call *callPieces
	for _, other := range p.calls {
		if other.index == delta.Index {
			call = other
		}
	}
	if call == nil || name != "" && delta.ID != "" && delta.ID != call.id {
		call = &callPieces{index: delta.Index, id: delta.ID}
		p.calls = append(p.calls, call)
	}
	if name != call.name {
		call.name += name
	}
	call.arguments.WriteString(delta.Function.Arguments)
}
