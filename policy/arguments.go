package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// object is a JSON object of which only what is asked for gets decoded.
type object map[string]*member

type member struct {
	raw json.RawMessage
	// fields are those of a member that is an object. Until read is set nobody has looked.
	fields object
	read   bool
}

// readObject gives nil for a value that is no object. Of a repeated key the last counts, as
// everywhere in Tine.
func readObject(raw json.RawMessage) (object, error) {
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		if len(trimmed) > 0 && !json.Valid(trimmed) {
			return nil, errors.New("the arguments are not JSON")
		}
		return nil, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, fmt.Errorf("the arguments are not JSON: %w", err)
	}
	o := make(object, len(fields))
	for key, value := range fields {
		o[key] = &member{raw: value}
	}
	return o, nil
}

// find looks for a member by its path: the whole path as a name first, then, split at its first
// dot, the rest of it in the member that is named by the beginning. Arrays are not entered.
func (o object) find(path string) (json.RawMessage, bool) {
	if m := o[path]; m != nil {
		return m.raw, true
	}
	head, rest, dotted := strings.Cut(path, ".")
	m := o[head]
	if !dotted || m == nil {
		return nil, false
	}
	if !m.read {
		m.fields, _ = readObject(m.raw) // it is part of what has been decoded already, so it is JSON
		m.read = true
	}
	return m.fields.find(rest)
}

// argumentText is what predicates see of a value: of a string what it says, and of anything else
// its JSON without white space, with numbers as they are spelled and members in their order.
// Strings inside are written in one way only, so that no escape hides anything from a rule.
func argumentText(raw json.RawMessage) (string, error) {
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return "", err
	}
	if bytes.IndexByte(compact.Bytes(), '\\') < 0 {
		return strings.ToValidUTF8(compact.String(), string(utf8.RuneError)), nil
	}
	return requote(compact.Bytes())
}

// requote writes the strings in valid JSON with the fewest escapes.
func requote(compact []byte) (string, error) {
	var b strings.Builder
	for len(compact) > 0 {
		start := bytes.IndexByte(compact, '"')
		if start < 0 {
			b.Write(compact)
			break
		}
		b.Write(compact[:start])
		compact = compact[start:]
		end := 1
		for compact[end] != '"' {
			if compact[end] == '\\' {
				end++
			}
			end++
		}
		var s string
		if err := json.Unmarshal(compact[:end+1], &s); err != nil {
			return "", err
		}
		writeQuoted(&b, s)
		compact = compact[end+1:]
	}
	return b.String(), nil
}

func writeQuoted(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ':
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}
