package cli

import (
	"encoding/json"
	"io"
)

// Values of --output.
const (
	outputText = "text"
	outputJSON = "json"
)

// writeDocument writes the one JSON document of a command.
func writeDocument(w io.Writer, v any) error {
	enc := encoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// writeJSON writes a document of a stream, which has a line to itself.
func writeJSON(w io.Writer, v any) error {
	return encoder(w).Encode(v)
}

func encoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false) // code and prompts are full of < and &
	return enc
}

// asksForJSON looks for --output json in arguments that could not be parsed, so that a
// script gets its errors in the form it asked for.
func asksForJSON(args []string) bool {
	for i, arg := range args {
		switch arg {
		case "--":
			return false
		case "-ojson", "-o=json", "--output=json":
			return true
		case "-o", "--output":
			return i+1 < len(args) && args[i+1] == outputJSON
		}
	}
	return false
}
