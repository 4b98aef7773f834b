package e2b

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tinerun/tine/resources"
)

func TestParseConfig(t *testing.T) {
	t.Parallel()
	for _, none := range []string{"", "null", "{}"} {
		cfg, err := parseConfig(json.RawMessage(none))
		require.NoError(t, err)
		require.Equal(t, config{Template: "base", Timeout: 600, OnTimeout: "pause"}, cfg)
	}
	cfg, err := parseConfig(json.RawMessage(`{
		"template": "go:1.26", "timeout": 60, "on_timeout": "kill", "env": {"A": "1"}, "metadata": {"team": "x"},
		"network": {"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]}, "coverage_reuse": true}`))
	require.NoError(t, err)
	require.Equal(t, config{
		Template: "go:1.26", Timeout: 60, OnTimeout: "kill",
		Env: map[string]string{"A": "1"}, Metadata: map[string]string{"team": "x"},
		Network:       networkConfig{AllowOut: []string{"example.com"}, DenyOut: []string{"0.0.0.0/0"}},
		CoverageReuse: true,
	}, cfg)
}

func TestParseConfigRefuses(t *testing.T) {
	t.Parallel()
	for raw, says := range map[string]string{
		`{"api_key": "secret"}`:             `unknown field "api_key"`,
		`{"network": {"rules": {}}}`:        `unknown field "rules"`,
		`{"timeout": 0}`:                    "timeout must be",
		`{"timeout": -1}`:                   "timeout must be",
		`{"timeout": "60s"}`:                "cannot unmarshal string",
		`{"timeout": 1.5}`:                  "cannot unmarshal number",
		`{"on_timeout": "forget"}`:          `on_timeout must be "pause" or "kill", not "forget"`,
		`{"template": ""}`:                  "template is empty",
		`{"metadata": {"tine_key": "x"}}`:   `metadata "tine_key" is the driver's own`,
		`{"metadata": {"managed_by": "x"}}`: `metadata "managed_by" is the driver's own`,
		`{"env": {"A": 1}}`:                 "cannot unmarshal number",
		`{} {}`:                             "something behind",
		`[]`:                                "cannot unmarshal array",
		`{"template": `:                     "unexpected EOF",
	} {
		_, err := parseConfig(json.RawMessage(raw))
		require.ErrorIs(t, err, resources.ErrInvalidConfig, raw)
		require.ErrorContains(t, err, says, raw)
	}
}

func TestSettingsComeBackFromMetadata(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig(json.RawMessage(`{"timeout": 60, "network": {"allow_out": ["a.b"], "deny_out": ["0.0.0.0/0"]}}`))
	require.NoError(t, err)
	owner := resources.Owner{ExecutionID: "e", RunID: "r", Key: "k"}
	metadata, err := cfg.metadata(owner)
	require.NoError(t, err)
	require.Equal(t, owner, ownerOf(metadata))
	set, err := settingsOf(metadata)
	require.NoError(t, err)
	require.Equal(t, cfg.settings(), set)

	set, err = settingsOf(nil)
	require.NoError(t, err)
	require.Equal(t, settings{Timeout: defaultTimeout}, set)
	for _, broken := range []string{"", "x", `{"timeout":0}`} {
		_, err = settingsOf(map[string]string{metaSettings: broken})
		require.Error(t, err, "%q", broken)
	}
}

// decodeMetadata reads a filter as the service does.
func decodeMetadata(t require.TestingT, query string) map[string]string {
	values, err := url.ParseQuery(query)
	require.NoError(t, err)
	filter, err := url.QueryUnescape(values.Get("metadata"))
	require.NoError(t, err)
	decoded := map[string]string{}
	for _, pair := range strings.Split(filter, "&") {
		parts := strings.Split(pair, "=")
		require.Len(t, parts, 2, "pair %q", pair)
		name, err := url.QueryUnescape(parts[0])
		require.NoError(t, err)
		decoded[name], err = url.QueryUnescape(parts[1])
		require.NoError(t, err)
	}
	return decoded
}

func TestListPath(t *testing.T) {
	t.Parallel()
	require.Equal(t,
		"/v2/sandboxes?limit=100&metadata=owner%3Da%252520b%252526c%25253Dd&state=running,paused",
		listPath(map[string]string{"owner": "a b&c=d"}, ""))
	require.Contains(t, listPath(map[string]string{"a": "b"}, "to ken&"), "&nextToken=to+ken%26&")

	rapid.Check(t, func(t *rapid.T) {
		metadata := rapid.MapOfN(rapid.String(), rapid.String(), 1, 5).Draw(t, "metadata")
		_, query, _ := strings.Cut(listPath(metadata, ""), "?")
		require.Equal(t, metadata, decodeMetadata(t, query))
	})
}

func TestEnvdURL(t *testing.T) {
	t.Parallel()
	shared, err := New(Options{APIKey: "key"})
	require.NoError(t, err)
	fixed, err := New(Options{APIKey: "key", SandboxURL: "http://127.0.0.1:1/"})
	require.NoError(t, err)
	own, err := New(Options{APIKey: "key", Domain: "e2b.example.com"})
	require.NoError(t, err)
	require.Equal(t, "https://api.e2b.app", shared.apiURL)
	require.Equal(t, "https://api.e2b.example.com", own.apiURL)
	for _, test := range []struct {
		driver *Driver
		domain string
		want   string
	}{
		{shared, "", "https://sandbox.e2b.app"},
		{shared, "e2b.dev", "https://sandbox.e2b.dev"},
		{shared, "customer.example.com", "https://49983-abc.customer.example.com"},
		{own, "", "https://49983-abc.e2b.example.com"},
		{fixed, "e2b.app", "http://127.0.0.1:1"},
	} {
		require.Equal(t, test.want, test.driver.envdURL(running{SandboxID: "abc", Domain: test.domain}))
	}
}

func TestBefore(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"0.3.9": true, "0.4.0": false, "0.6.13": false, "0.10.0": false, "1.0.0": false, "0.0.1": true,
		"": false, "x": false, "0": false, "0.x": false,
	} {
		require.Equal(t, want, before(version, 0, 4), version)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	bearer := BearerFromEnv("TOKEN")
	for says, options := range map[string]Options{
		"set E2B_API_KEY":           {},
		"Options.APIURL is no URL":  {APIKey: "key", APIURL: "api.e2b.app"},
		"Options.SandboxURL":        {APIKey: "key", SandboxURL: "https://user:password@x"},
		`"https://x" is no host`:    {APIKey: "key", Egress: map[string]Headers{"https://x": bearer}},
		"nothing gives the headers": {APIKey: "key", Egress: map[string]Headers{"x": nil}},
		"github.com is named twice": {APIKey: "key", Egress: map[string]Headers{"github.com": bearer, "GitHub.com": bearer}},
	} {
		_, err := New(options)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "password@")
	}
}

func TestPrintingHidesTheKey(t *testing.T) {
	t.Parallel()
	d, err := New(Options{APIKey: "the-api-key"})
	require.NoError(t, err)
	s := d.sandbox("i1", settings{Timeout: 1})
	s.conn = d.connectionTo(running{SandboxID: "i1", EnvdAccessToken: "the-token"})
	for _, form := range []string{"%v", "%+v", "%#v", "%s"} {
		printed := fmt.Sprintf(form+form+form, d, s, []any{d, s})
		require.NotContains(t, printed, "the-api-key")
		require.NotContains(t, printed, "the-token")
	}
}

func TestParseBinding(t *testing.T) {
	t.Parallel()
	id, err := parseBinding("op", json.RawMessage(`{"sandbox_id":"i0abc-1f"}`))
	require.NoError(t, err)
	require.Equal(t, "i0abc-1f", id)
	for _, raw := range []string{``, `{}`, `[]`, `{"sandbox_id":"../x"}`, `{"sandbox_id":"A"}`, `{"sandbox_id":"a","more":1}`} {
		_, err := parseBinding("op", json.RawMessage(raw))
		require.ErrorIs(t, err, resources.ErrGone, raw)
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := output{limit: rapid.IntRange(1, 40).Draw(t, "limit")}
		var all []byte
		for _, piece := range rapid.SliceOf(rapid.SliceOfN(rapid.ByteRange('a', 'z'), 0, 30)).Draw(t, "pieces") {
			o.write(piece)
			all = append(all, piece...)
		}
		text := o.String()
		require.Equal(t, len(all) > o.limit, o.truncated())
		require.LessOrEqual(t, len(o.tail), 2*o.limit)
		if !o.truncated() {
			require.Equal(t, string(all), text)
			return
		}
		head, tail := all[:o.limit/2], all[len(all)-(o.limit-o.limit/2):]
		require.True(t, strings.HasPrefix(text, string(head)+"\n… "))
		require.True(t, strings.HasSuffix(text, " bytes left out …\n"+string(tail)))
	})
}

func TestOutputSplitsNoCharacter(t *testing.T) {
	t.Parallel()
	for limit := 2; limit < 20; limit++ {
		o := output{limit: limit}
		o.write([]byte(strings.Repeat("ü€𝄞", 20)))
		require.True(t, utf8.ValidString(o.String()), "limit %d: %q", limit, o.String())
	}
	binary := output{limit: 10}
	binary.write(make([]byte, 5))
	binary.write([]byte{0xff, 0xfe})
	require.Equal(t, "\x00\x00\x00\x00\x00\xff\xfe", binary.String(), "what fits is kept as it is")
}

func TestSecretsForgetTheOldest(t *testing.T) {
	t.Parallel()
	s := newSecrets("the-api-key")
	for i := range 3 * maxSecrets {
		s.add("token-" + strings.Repeat("x", 3) + string(rune('a'+i%26)) + strings.Repeat("y", i/26))
	}
	require.LessOrEqual(t, len(s.known), maxSecrets+8)
	s.add("the-newest-token")
	require.Equal(t, "[redacted] [redacted]", s.redact("the-api-key the-newest-token"))
}
