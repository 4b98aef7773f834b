package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
)

// MessagesBase says that the messages of a request begin like those of an earlier llm_call of the
// execution, and that only the others are recorded with it. So a conversation takes a history as much
// room as it is long, and not for each turn again.
type MessagesBase struct {
	StepID string `json:"step_id"`
	Count  int    `json:"count"`
}

// Messages are the messages of a GenerateRequest in JSON. It is nil if there are none, or raw is no
// such request.
//
//workflowcheck:ignore
func Messages(raw json.RawMessage) []json.RawMessage {
	var request struct {
		Messages []json.RawMessage `json:"messages"`
	}
	if err := json.Unmarshal(raw, &request); err != nil {
		return nil
	}
	return request.Messages
}

// WithMessages is the request with other messages.
//
//workflowcheck:ignore
func WithMessages(raw json.RawMessage, messages []json.RawMessage) (json.RawMessage, error) {
	var request map[string]json.RawMessage
	if err := json.Unmarshal(raw, &request); err != nil {
		return nil, err
	}
	list, err := Encode(messages)
	if err != nil {
		return nil, err
	}
	request["messages"] = list
	return Encode(request)
}

// SinceBase is the request without the messages that it has in common with an earlier one, and how
// many those are.
//
//workflowcheck:ignore
func SinceBase(raw json.RawMessage, messages, earlier []json.RawMessage) (json.RawMessage, int) {
	common := 0
	for common < len(messages) && common < len(earlier) && bytes.Equal(messages[common], earlier[common]) {
		common++
	}
	if common == 0 {
		return raw, 0
	}
	rest, err := WithMessages(raw, append([]json.RawMessage{}, messages[common:]...))
	if err != nil {
		return raw, 0
	}
	return rest, common
}

// OnBase is the whole request again.
func (b MessagesBase) OnBase(raw json.RawMessage, earlier []json.RawMessage) (json.RawMessage, error) {
	if b.Count < 0 || b.Count > len(earlier) {
		return nil, errors.New("the request begins with more messages than step " + b.StepID + " has")
	}
	return WithMessages(raw, append(earlier[:b.Count:b.Count], Messages(raw)...))
}
