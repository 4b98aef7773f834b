package policytest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/policy/policytest"
)

func TestParse(t *testing.T) {
	t.Parallel()
	cases, err := policytest.Parse("shell.policytest.yaml", []byte(`agent_id: coder
cases:
  - name: all of it
    agent_id: writer
    kind: llm_call
    target: gpt
    args: {a: 1}
    expect: deny
    expect_rule: r
  - {target: shell, expect: allow}
  - {target: 7, expect_rule: r, agent_id: ""}
`))
	require.NoError(t, err)
	require.Equal(t, []policytest.Case{
		{Name: "all of it", AgentID: "writer", Kind: "llm_call", Target: "gpt", Args: []byte(`{"a":1}`), Expect: "deny", ExpectRule: "r", Line: 3},
		{Name: "case 2", AgentID: "coder", Kind: "tool_call", Target: "shell", Expect: "allow", Line: 10},
		{Name: "case 3", Kind: "tool_call", Target: "7", ExpectRule: "r", Line: 11},
	}, cases)
}

// TestArgs has YAML on the left and what a policy sees on the right.
func TestArgs(t *testing.T) {
	t.Parallel()
	for _, tc := range [][2]string{
		{`{n: 1, f: 1.0, e: 1e0, g: -0.50, big: 123456789012345678901234567890}`, `{"n":1,"f":1.0,"e":1e0,"g":-0.50,"big":123456789012345678901234567890}`},
		{`{z: 1, a: 2, "m": 3}`, `{"z":1,"a":2,"m":3}`},
		{`{s: text, q: "1.0", single: '1', empty: "", yes: yes, date: 2026-05-01, tilde: ~, nul: null, none: }`, `{"s":"text","q":"1.0","single":"1","empty":"","yes":"yes","date":"2026-05-01","tilde":null,"nul":null,"none":null}`},
		{`{t: true, f: False}`, `{"t":true,"f":false}`},
		{`{hex: 0x10, under: 1_000, plus: +1, dot: .5, oct: 0o17}`, `{"hex":16,"under":1000,"plus":1,"dot":0.5,"oct":15}`},
		{`[1, [2, {a: []}], {}]`, `[1,[2,{"a":[]}],{}]`},
		{`{html: "<a> & b", "é": "\u00e9\n", 1: one}`, `{"html":"<a> & b","é":"é\n","1":"one"}`},
		{`null`, `null`},
		{`plain`, `"plain"`},
		{`{a: &x {b: 1}, c: *x, d: *x}`, `{"a":{"b":1},"c":{"b":1},"d":{"b":1}}`},
		{`{"json": {"n": 1.50, "s": "\"\u00e9"}}`, `{"json":{"n":1.50,"s":"\"é"}}`},
	} {
		t.Run(tc[0], func(t *testing.T) {
			t.Parallel()
			cases, err := policytest.Parse("f", []byte("cases:\n  - {target: x, expect: allow, args: "+tc[0]+"}\n"))
			require.NoError(t, err)
			require.Equal(t, tc[1], string(cases[0].Args))
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	inArgs := func(args string) string { return "cases:\n  - target: x\n    expect: allow\n    args: " + args + "\n" }
	bomb := "&a0 [x,x,x,x,x,x,x,x,x,x]"
	for i := range 9 {
		bomb += fmt.Sprintf(", &a%d [%s]", i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	for name, tc := range map[string]struct {
		file string
		want []string
	}{
		"nothing":         {"", []string{"f:1: the file has no cases"}},
		"comments":        {"# none yet\n", []string{"f:1: the file has no cases"}},
		"no cases":        {"agent_id: a\n", []string{"f:1: the file has no cases"}},
		"empty cases":     {"cases: []\n", []string{"f:1: the file has no cases"}},
		"null cases":      {"cases:\n", []string{"f:1: the file has no cases"}},
		"not YAML":        {"cases:\n  - {\n", []string{"not valid YAML"}},
		"two documents":   {"cases: [{target: x, expect: allow}]\n---\n{}\n", []string{"a second document"}},
		"a list":          {"- target: x\n", []string{"f:1: the file must be a mapping with agent_id, cases"}},
		"cases no list":   {"cases: {target: x}\n", []string{"f:1: cases must be a list"}},
		"a case no map":   {"cases:\n  - target\n", []string{"f:2: a case must be a mapping"}},
		"unknown key":     {"case:\n  - target: x\n", []string{`f:1: unknown key "case"; the file has agent_id, cases`}},
		"unknown in case": {"cases:\n  - target: x\n    expects: allow\n", []string{`f:3: unknown key "expects"; a case has name, agent_id, kind, target, args, expect, expect_rule`}},
		"key twice":       {"cases:\n  - target: x\n    target: y\n    expect: allow\n", []string{"f:3: target stands here twice"}},
		"no target":       {"cases:\n  - name: n\n    expect: allow\n", []string{"f:2: n: target is missing"}},
		"unknown kind":    {"cases:\n  - target: x\n    expect: allow\n    kind: tool\n", []string{`f:4: case 1: unknown kind "tool"; it is tool_call, llm_call or local`}},
		"unknown expect":  {"cases:\n  - target: x\n    expect: denied\n", []string{`f:3: case 1: unknown expect "denied"; it is allow, deny or require_approval`}},
		"expects nothing": {"cases:\n  - target: x\n", []string{"f:2: case 1: expects nothing"}},
		"target no text":  {"cases:\n  - target: [x]\n    expect: allow\n", []string{"f:2: target must be a text"}},
		"all problems":    {"cases:\n  - expect: allow\n  - {target: x, expect: no}\n", []string{"f:2: ", "f:3: "}},
		"infinite":        {inArgs("{a: .inf}"), []string{"f:4: args: .inf is no number that JSON has"}},
		"merge":           {inArgs("{<<: {a: 1}}"), []string{"f:4: args: merge keys"}},
		"twice in args":   {inArgs("{a: 1, a: 2}"), []string{`f:4: args: key "a" stands here twice`}},
		"key no text":     {inArgs("{[a]: 1}"), []string{"f:4: args: a key must be a text"}},
		"of itself":       {inArgs("&x [*x]"), []string{"contains itself"}},
		"strange tag":     {inArgs("!!binary aGk="), []string{"f:4: args: JSON has nothing like"}},
		"a bomb":          {inArgs("[" + bomb + "]"), []string{"more than the"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := policytest.Parse("f", []byte(tc.file))
			var invalid *policytest.FileError
			require.ErrorAs(t, err, &invalid)
			require.Len(t, invalid.Problems, len(tc.want), err.Error())
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shell.policytest.yaml")
	_, err := policytest.ReadFile(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("cases: [{target: x, expect: allow}]"), 0o644))
	cases, err := policytest.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, cases, 1)
}

func TestBeside(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"shell.yaml": "shell.policytest.yaml", "p/a.b.yml": "p/a.b.policytest.yaml", "x.rego": "x.policytest.yaml", "./x.tar.gz": "./x.policytest.yaml",
	} {
		require.Equal(t, want, policytest.Beside(file))
	}
}
