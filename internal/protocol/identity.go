package protocol

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
)

// stepIDBytes is how much of the hash a step id keeps. An execution has at most millions
// of steps; 128 bits leave no chance of a collision and keep histories small.
const stepIDBytes = 16

// CanonicalJSON rewrites raw so that equal values have equal bytes: object keys
// sorted bytewise, no white space, strings re-encoded, the last of duplicate
// keys. Numbers keep their spelling, so 1 and 1.0 differ. Empty input is null.
//
//workflowcheck:ignore
func CanonicalJSON(raw json.RawMessage) (json.RawMessage, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return json.RawMessage("null"), nil
	}
	if flatCanonical(raw) {
		return raw, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("canonical JSON: more than one value")
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// flatCanonical reports whether raw is an object of scalars that is canonical as it is. Most
// arguments are, and to find that out costs much less than to rewrite them. What it is
// not sure of it denies.
func flatCanonical(raw json.RawMessage) bool {
	if len(raw) < 2 || raw[0] != '{' || raw[len(raw)-1] != '}' || !json.Valid(raw) {
		return false
	}
	var last []byte
	for rest := raw[1 : len(raw)-1]; len(rest) > 0; {
		key, after, ok := plainString(rest)
		if !ok || last != nil && bytes.Compare(last, key) >= 0 || len(after) == 0 || after[0] != ':' {
			return false
		}
		last = key
		if rest, ok = plainScalar(after[1:]); !ok {
			return false
		}
		if len(rest) > 0 {
			rest = rest[1:] // the comma: raw is valid
		}
	}
	return true
}

// plainString reads a string that has one spelling only: ASCII without escapes.
func plainString(raw []byte) (text, rest []byte, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return nil, nil, false
	}
	for i := 1; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			return raw[1:i], raw[i+1:], true
		case c == '\\' || c < ' ' || c > '~':
			return nil, nil, false
		}
	}
	return nil, nil, false
}

// plainScalar skips a string, a number, true, false or null.
func plainScalar(raw []byte) (rest []byte, ok bool) {
	if len(raw) > 0 && raw[0] == '"' {
		_, rest, ok = plainString(raw)
		return rest, ok
	}
	end := bytes.IndexByte(raw, ',')
	if end < 0 {
		end = len(raw)
	}
	return raw[end:], end > 0 && !bytes.ContainsAny(raw[:end], " \t\r\n{[")
}

// ArgsHash is the hex SHA-256 of the canonical form of args.
//
//workflowcheck:ignore
func ArgsHash(args json.RawMessage) (string, error) {
	canonical, err := CanonicalJSON(args)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// StepID derives a step's identity from what it does, not from when it is asked
// for, so parallel steps may be asked for in any order. Occurrence counts the
// earlier calls with the same kind, target and arguments.
//
//workflowcheck:ignore
func StepID(kind, target, argsHash string, occurrence int) string {
	h := sha256.New()
	for _, field := range []string{kind, target, argsHash} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(field)))
		h.Write(n[:])
		io.WriteString(h, field)
	}
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(occurrence))
	h.Write(n[:])
	return hex.EncodeToString(h.Sum(nil)[:stepIDBytes])
}

// LimiterID is the Workflow ID of the limiter that keeps the bucket of a rule, for the names that
// share it. Names may have any characters, and a Workflow ID may have 1,000 bytes.
func LimiterID(scope string, names ...string) string {
	escaped := make([]string, len(names))
	for i, name := range names {
		escaped[i] = url.PathEscape(name)
	}
	id := strings.Join(escaped, "/")
	if len(id) > maxLimiterID {
		sum := sha256.Sum256([]byte(id))
		id = hex.EncodeToString(sum[:])
	}
	return "tine-limiter/" + scope + "/" + id
}

const maxLimiterID = 500
