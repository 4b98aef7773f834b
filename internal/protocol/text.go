package protocol

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// summaryLimit keeps summaries below the 400 bytes that the server accepts.
const summaryLimit = 200

// OneLine makes a summary of text: white space folded, and cut where it is too long.
func OneLine(text string) string {
	return Cut(strings.Join(strings.Fields(text), " "), summaryLimit)
}

// Cut is what of text fits into size bytes, with an ellipsis behind it if that is not all.
func Cut(text string, size int) string {
	if len(text) <= size {
		return text
	}
	cut := size
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// FirstText is the first non-empty string among the fields of a JSON object, or the value
// itself if it is a string. It is what a person wants to see first of arguments.
//
//workflowcheck:ignore
func FirstText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return ""
	}
	for dec.More() {
		if _, err := dec.Token(); err != nil {
			return ""
		}
		var value any
		if err := dec.Decode(&value); err != nil {
			return ""
		}
		if text, ok := value.(string); ok && text != "" {
			return text
		}
	}
	return ""
}
