package policytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/tinerun/tine/internal/protocol"
)

// argsError says what in a case's arguments JSON cannot hold.
type argsError struct {
	line    int
	message string
}

// toJSON writes YAML as the JSON that an agent would have sent. Policies tell 1 from 1.0 and
// see keys in their order, so both are kept as they are spelled.
func toJSON(node *yaml.Node) (json.RawMessage, *argsError) {
	w := &jsonWriter{within: map[*yaml.Node]bool{}}
	if err := w.value(node); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

type jsonWriter struct {
	out bytes.Buffer
	// within are the collections that the one being written is part of.
	within map[*yaml.Node]bool
}

func (w *jsonWriter) value(node *yaml.Node) *argsError {
	node = resolved(node)
	if w.within[node] {
		return &argsError{node.Line, "a value contains itself"}
	}
	if w.out.Len() > protocol.PayloadLimit { // aliases of aliases can write a lot
		return &argsError{node.Line, fmt.Sprintf("more than the %d bytes that a step may have", protocol.PayloadLimit)}
	}
	w.within[node] = true
	defer delete(w.within, node)
	switch node.Kind {
	case yaml.MappingNode:
		return w.object(node)
	case yaml.SequenceNode:
		return w.array(node)
	default:
		return w.scalar(node)
	}
}

func (w *jsonWriter) object(node *yaml.Node) *argsError {
	seen := map[string]bool{}
	w.out.WriteByte('{')
	for i := 0; i < len(node.Content); i += 2 {
		key := resolved(node.Content[i])
		switch {
		case key.Kind != yaml.ScalarNode:
			return &argsError{key.Line, "a key must be a text"}
		case key.ShortTag() == "!!merge":
			return &argsError{key.Line, "merge keys (<<) are not supported"}
		case seen[key.Value]:
			return &argsError{key.Line, fmt.Sprintf("key %q stands here twice", key.Value)}
		}
		seen[key.Value] = true
		if i > 0 {
			w.out.WriteByte(',')
		}
		w.string(key.Value)
		w.out.WriteByte(':')
		if err := w.value(node.Content[i+1]); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

func (w *jsonWriter) array(node *yaml.Node) *argsError {
	w.out.WriteByte('[')
	for i, item := range node.Content {
		if i > 0 {
			w.out.WriteByte(',')
		}
		if err := w.value(item); err != nil {
			return err
		}
	}
	w.out.WriteByte(']')
	return nil
}

func (w *jsonWriter) scalar(node *yaml.Node) *argsError {
	switch node.ShortTag() {
	case "!!str", "!!timestamp": // JSON has no times; an agent would have sent the text
		w.string(node.Value)
	case "!!null":
		w.out.WriteString("null")
	case "!!bool":
		var is bool
		if err := node.Decode(&is); err != nil {
			return &argsError{node.Line, fmt.Sprintf("%q is not true or false", node.Value)}
		}
		w.out.WriteString(strconv.FormatBool(is))
	case "!!int", "!!float":
		return w.number(node)
	default:
		return &argsError{node.Line, fmt.Sprintf("JSON has nothing like YAML's %s", node.ShortTag())}
	}
	return nil
}

// number keeps the spelling of a number that JSON can spell so.
func (w *jsonWriter) number(node *yaml.Node) *argsError {
	if json.Valid([]byte(node.Value)) {
		w.out.WriteString(node.Value)
		return nil
	}
	if node.ShortTag() == "!!int" { // 0x10, 1_000, +1
		var n int64
		if err := node.Decode(&n); err != nil {
			return &argsError{node.Line, fmt.Sprintf("%s is no number that JSON has", node.Value)}
		}
		w.out.WriteString(strconv.FormatInt(n, 10))
		return nil
	}
	var n float64
	if err := node.Decode(&n); err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
		return &argsError{node.Line, fmt.Sprintf("%s is no number that JSON has", node.Value)}
	}
	spelled, err := json.Marshal(n)
	if err != nil {
		return &argsError{node.Line, err.Error()}
	}
	w.out.Write(spelled)
	return nil
}

func (w *jsonWriter) string(text string) {
	encoder := json.NewEncoder(&w.out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a text can always be written
	w.out.Truncate(w.out.Len() - 1)
}
