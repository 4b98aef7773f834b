package policy

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestGlob(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, target string
		want            bool
	}{
		{"shell", "shell", true},
		{"shell", "shell2", false},
		{"shell", "Shell", false},
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"*", "a/b", true},
		{"fs/*", "fs/", true},
		{"fs/*", "fs/a/b/c", true},
		{"fs/*", "fs", false},
		{"*/c", "a/b/c", true},
		{"a*b*c", "aXbYbZc", true},
		{"a*b*c", "aXcYb", false},
		{"a**c", "abc", true},
		{"a?c", "a/c", true},
		{"a?c", "ac", false},
		{"a?c", "aéc", true},
		{"a?c", "abbc", false},
		{"?", "", false},
		{"[a-c]x", "bx", true},
		{"[a-c]x", "dx", false},
		{"[^a-c]x", "dx", true},
		{"[^a-c]x", "/x", true},
		{"[^a-c]x", "ax", false},
		{"[!a]", "!", true},
		{"[!a]", "a", true},
		{"[!a]", "b", false},
		{"[a^]", "^", true},
		{`[\]\-\^]`, "]", true},
		{`[\]\-\^]`, "-", true},
		{`[\]\-\^]`, "^", true},
		{`[\]\-\^]`, `\`, false},
		{"[à-ü]", "é", true},
		{`a\*`, "a*", true},
		{`a\*`, "ab", false},
		{`a\\b`, `a\b`, true},
		{`\[a]`, "[a]", true},
		{`\a`, "a", true},
		{"a]", "a]", true},
		{"{a,b}", "{a,b}", true},
		{"{a,b}", "a", false},
		{"*.*", "a.b.c", true},
		{"*é", "caffé", true},
		{"*a*a*a*a*b", strings.Repeat("a", 10_000), false},
	} {
		g, err := parseGlob(test.pattern)
		require.NoError(t, err, test.pattern)
		require.Equal(t, test.want, g.matches(test.target), "%s on %s", test.pattern, test.target)
	}
}

func TestBadGlob(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"[":      "a [ is never closed",
		"a[b":    "a [ is never closed",
		"[^":     "a [ is never closed",
		"[a-":    "a [ is never closed",
		"[]":     "a class in [] is empty",
		"[]a]":   "a class in [] is empty",
		"[^]":    "a class in [] is empty",
		"[c-a]":  "the range c-a in a class is backwards",
		"[-a]":   "a - in a class stands between two characters",
		"[a-]":   "a - in a class stands between two characters",
		`a\`:     `it ends with a \ that escapes nothing`,
		`[a\`:    `it ends with a \ that escapes nothing`,
		`[a-\`:   `it ends with a \ that escapes nothing`,
		`fs/*[a`: "a [ is never closed",
	} {
		_, err := parseGlob(pattern)
		require.ErrorContains(t, err, want, pattern)
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("a*b?[c-d]", "axxbyd")
	f.Add(`*\*[^a]*`, "x*b")
	f.Add("[!a]*{x}", "!{x}")
	f.Fuzz(func(t *testing.T, pattern, target string) {
		if len(pattern) > 30 || len(target) > 30 || !utf8.ValidString(pattern) {
			t.Skip("the reference takes exponential time, and YAML gives valid text only")
		}
		g, err := parseGlob(pattern)
		if err != nil {
			return
		}
		require.Equal(t, naiveGlob([]rune(pattern), []rune(target)), g.matches(target))
	})
}

// naiveGlob is the meaning of a valid pattern, written down without a thought for speed.
func naiveGlob(pattern, target []rune) bool {
	if len(pattern) == 0 {
		return len(target) == 0
	}
	switch pattern[0] {
	case '*':
		return naiveGlob(pattern[1:], target) || len(target) > 0 && naiveGlob(pattern, target[1:])
	case '?':
		return len(target) > 0 && naiveGlob(pattern[1:], target[1:])
	case '[':
		in, rest := naiveClass(pattern[1:], target)
		return in && naiveGlob(rest, target[1:])
	case '\\':
		pattern = pattern[1:]
	}
	return len(target) > 0 && pattern[0] == target[0] && naiveGlob(pattern[1:], target[1:])
}

func naiveClass(class, target []rune) (in bool, rest []rune) {
	negated := class[0] == '^'
	if negated {
		class = class[1:]
	}
	for class[0] != ']' {
		low := naiveRune(&class)
		high := low
		if class[0] == '-' {
			class = class[1:]
			high = naiveRune(&class)
		}
		in = in || len(target) > 0 && low <= target[0] && target[0] <= high
	}
	return len(target) > 0 && in != negated, class[1:]
}

func naiveRune(class *[]rune) rune {
	if (*class)[0] == '\\' {
		*class = (*class)[1:]
	}
	r := (*class)[0]
	*class = (*class)[1:]
	return r
}
