package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatTerminalsObeyIsMadeVisible(t *testing.T) {
	t.Parallel()
	require.Equal(t, `\u001b[31mred\u0007`, oneLine("\x1b[31mred\a"))
	require.Equal(t, "two lines", oneLine("two\n\tlines "))
	require.Equal(t, "two\n\tlines\\u000d", printable("two\n\tlines\r"))
	require.Equal(t, `safe\u202egnp.exe`, oneLine("safe\u202egnp.exe"))
	require.Equal(t, `{"a":"\u009b"}`, compact([]byte(`{ "a": "`+"\u009b"+`" }`)))
	require.Equal(t, "not { json", compact([]byte("not {\njson")))
}

func TestCutCountsColumns(t *testing.T) {
	t.Parallel()
	require.Equal(t, "short", cut("short", 5))
	require.Equal(t, "long…", cut("longer", 5))
	require.Equal(t, "日本…", cut("日本語文", 5))
	require.Equal(t, "日本…", cut("日本語文", 6))
	require.Equal(t, "日本語文", cut("日本語文", 8))
	require.Equal(t, "e\u0301e\u0301", cut("e\u0301e\u0301", 2))
	require.Empty(t, cut("x", 0))
}

func TestWrap(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"a few", "words"}, wrap("a few words", 7))
	require.Equal(t, []string{"a", "verylongword", "b"}, wrap("a verylongword b", 5))
	require.Equal(t, []string{"as it is"}, wrap("as it is", 0))
}

func TestLengthsOfTime(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"<1ms": 10 * time.Microsecond, "250ms": 250 * time.Millisecond, "2.4s": 2400 * time.Millisecond,
		"42s": 42 * time.Second, "1m05s": 65 * time.Second, "3h07m": 187 * time.Minute, "5d": 5 * 24 * time.Hour,
	} {
		require.Equal(t, want, span(d))
	}
	for want, d := range map[string]time.Duration{"0s": -time.Second, "59s": 59 * time.Second, "3m": 3 * time.Minute, "47h": 47 * time.Hour, "2d": 48 * time.Hour} {
		require.Equal(t, want, age(d))
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	require.Equal(t, "14:29:59.750", clock(testNow, testNow.Add(-250*time.Millisecond).UTC()))
	require.Equal(t, "Apr 30 14:30:00", clock(testNow, testNow.AddDate(0, 0, -1)))
	require.Equal(t, "2025-05-01 14:30", clock(testNow, testNow.AddDate(-1, 0, 0)))
}

func TestShortIDs(t *testing.T) {
	t.Parallel()
	terminal := screen{width: 80}
	require.Equal(t, "019dcdf2-3a40-7c11", terminal.id(sourceID))
	require.Equal(t, sourceID, screen{}.id(sourceID))
	require.Equal(t, "order-42-of-a-customer-with-a-long-id", terminal.id("order-42-of-a-customer-with-a-long-id"))
	require.Equal(t, strings.ToUpper(sourceID), terminal.id(strings.ToUpper(sourceID)), "not as Tine writes them")
}

func TestGrouped(t *testing.T) {
	t.Parallel()
	require.Equal(t, "999", grouped(999))
	require.Equal(t, "1,234,567", grouped(1234567))
}

func TestPositionOfAMistake(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		`{"a" 1}`:                    "line 1, column 6",
		"{\n  \"ä\": tru\n}":         "line 2, column 11",
		`{"a":1} x`:                  "line 1, column 9",
		`{"a":`:                      "line 1, column 5",
		"  \n ":                      "input is empty",
		"{\"text\": \"two\nlines\"}": "line 1, column 14",
	} {
		_, err := readJSON("input", input, nil)
		require.ErrorContains(t, err, want, input)
	}
}
