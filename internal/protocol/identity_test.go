package protocol_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/protocol"
)

func TestCanonicalJSON(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		``:                   `null`,
		` null `:             `null`,
		`{}`:                 `{}`,
		`{ "b": 1, "a": 2 }`: `{"a":2,"b":1}`,
		`{"a":1,"b":"x"}`:    `{"a":1,"b":"x"}`,
		`{"a":1,"a":2}`:      `{"a":2}`,
		`{"b":{"d":1,"c":[3,2,{"z":0,"y":1}]},"a":0}`: `{"a":0,"b":{"c":[3,2,{"y":1,"z":0}],"d":1}}`,
		`{"a": 1}`:                       `{"a":1}`,
		`{"a":1.0,"b":1e0,"c":1}`:        `{"a":1.0,"b":1e0,"c":1}`,
		`"\u00e9"`:                       `"é"`,
		`{"a":"\u00e9"}`:                 `{"a":"é"}`,
		`{"a":"\u0041"}`:                 `{"a":"A"}`,
		`{"a":"<&>"}`:                    `{"a":"<&>"}`,
		`{"a":"\u003c"}`:                 `{"a":"<"}`,
		`[1, 2]`:                         `[1,2]`,
		`{"a":[2,1] }`:                   `{"a":[2,1]}`,
		`{"a":",","b":"}"}`:              `{"a":",","b":"}"}`,
		`{"":1}`:                         `{"":1}`,
		`{"B":1,"a":2}`:                  `{"B":1,"a":2}`,
		`123456789012345678901234567890`: `123456789012345678901234567890`,
	} {
		got, err := protocol.CanonicalJSON(json.RawMessage(raw))
		require.NoError(t, err, raw)
		require.Equal(t, want, string(got), raw)
	}
	for _, raw := range []string{`{`, `{"a":}`, `{"a":1}x`, `{"a":1} {}`, `{"a":tru}`, `{"a" 1}`, `{a:1}`} {
		_, err := protocol.CanonicalJSON(json.RawMessage(raw))
		require.Error(t, err, raw)
	}
}

// FuzzCanonicalJSON compares with a rewriting of everything.
func FuzzCanonicalJSON(f *testing.F) {
	for _, seed := range []string{`{"a":1}`, `{"a":"x","b":null}`, `{"b":1,"a":{}}`, `[{"a":1.0}]`, `{"a":-1.5e+3,"b":true}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := protocol.CanonicalJSON(json.RawMessage(raw))
		dec := json.NewDecoder(strings.NewReader(raw))
		dec.UseNumber()
		var value any
		if strings.TrimSpace(raw) == "" || !json.Valid([]byte(raw)) {
			return
		}
		require.NoError(t, err)
		require.NoError(t, dec.Decode(&value))
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		require.NoError(t, enc.Encode(value))
		require.Equal(t, strings.TrimSuffix(want.String(), "\n"), string(got))
	})
}

func TestStepID(t *testing.T) {
	t.Parallel()
	hash := func(raw string) string {
		h, err := protocol.ArgsHash(json.RawMessage(raw))
		require.NoError(t, err)
		return h
	}
	require.Equal(t, hash(``), hash(`null`))
	require.NotEqual(t, hash(`{}`), hash(`null`))
	require.NotEqual(t, hash(`{"n":1}`), hash(`{"n":1.0}`))
	require.Equal(t, hash(`{"a":1,"b":2}`), hash(`{ "b":2, "a":1 }`))

	ids := map[string]bool{}
	for _, id := range []string{
		protocol.StepID("tool_call", "a", hash(`{}`), 0),
		protocol.StepID("tool_call", "a", hash(`{}`), 1),
		protocol.StepID("tool_call", "b", hash(`{}`), 0),
		protocol.StepID("local", "a", hash(`{}`), 0),
		protocol.StepID("tool_call", "a", hash(`{"x":1}`), 0),
		protocol.StepID("tool_cal", "la", hash(`{}`), 0),
	} {
		require.Len(t, id, 32)
		ids[id] = true
	}
	require.Len(t, ids, 6)
}
