package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// readJSON reads a JSON argument: the text itself, "-" for stdin, or "@file". What names the
// argument in errors.
func readJSON(what, arg string, stdin io.Reader) (json.RawMessage, error) {
	from := what
	var raw []byte
	var err error
	switch {
	case arg == "-":
		from = what + " from stdin"
		raw, err = io.ReadAll(stdin)
	case strings.HasPrefix(arg, "@"):
		from = what + " from " + arg[1:]
		raw, err = os.ReadFile(arg[1:])
	default:
		raw = []byte(arg)
	}
	if err != nil {
		return nil, &usageError{message: fmt.Sprintf("cannot read %s: %v", what, err)}
	}
	return raw, checkJSON(from, raw)
}

// checkJSON says where in the argument the first mistake is.
func checkJSON(from string, raw []byte) error {
	const hint = `give JSON inline, as "-" for stdin, or as "@file"`
	if len(bytes.TrimSpace(raw)) == 0 {
		return &usageError{code: "invalid_json", message: from + " is empty", hint: hint}
	}
	var value json.RawMessage
	err := json.Unmarshal(raw, &value)
	if err == nil {
		return nil
	}
	message := fmt.Sprintf("%s is not valid JSON: %v", from, err)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		line, column := position(raw, syntax.Offset)
		message = fmt.Sprintf("%s is not valid JSON, at line %d, column %d: %v", from, line, column, err)
	}
	return &usageError{code: "invalid_json", message: message, hint: hint}
}

// position is the line and column, both from 1 and in characters, of the last of the
// bytes that were read.
func position(raw []byte, read int64) (line, column int) {
	before := raw[:max(0, min(read, int64(len(raw)))-1)]
	line = 1 + bytes.Count(before, []byte("\n"))
	start := bytes.LastIndexByte(before, '\n') + 1
	return line, 1 + utf8.RuneCount(before[start:])
}
