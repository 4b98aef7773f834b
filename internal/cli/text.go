package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// printable makes the control characters of text visible, but for line breaks and tabs:
// what agents and tools say must not reach a terminal as commands.
func printable(text string) string {
	return mapControl(text, func(r rune) bool { return r == '\n' || r == '\t' })
}

// oneLine is text on one line, with nothing in it that a terminal obeys.
func oneLine(text string) string {
	return mapControl(strings.Join(strings.Fields(text), " "), func(rune) bool { return false })
}

func mapControl(text string, keep func(rune) bool) string {
	if strings.IndexFunc(text, func(r rune) bool { return obeyed(r) && !keep(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if obeyed(r) && !keep(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// obeyed says that a terminal would do something on the character, or change the direction of
// the text around it.
func obeyed(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// compact is JSON on one line. What is not JSON is shown as it is.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return oneLine(string(raw))
	}
	return mapControl(b.String(), func(rune) bool { return false })
}

// cells counts the columns of a terminal that text takes.
func cells(text string) int {
	n := 0
	for _, r := range text {
		n += cellsOf(r)
	}
	return n
}

func cellsOf(r rune) int {
	switch {
	case r < utf8.RuneSelf:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// cut shortens text to a number of columns.
func cut(text string, limit int) string {
	if limit <= 0 {
		return ""
	}
	if len(text) <= limit || cells(text) <= limit {
		return text
	}
	n := 1 // the ellipsis
	for i, r := range text {
		if n += cellsOf(r); n > limit {
			return text[:i] + "…"
		}
	}
	return text
}

// wrap breaks text between words into lines of at most limit columns, where words allow.
// Zero means no limit.
func wrap(text string, limit int) []string {
	if limit <= 0 {
		return []string{text}
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case cells(line)+1+cells(word) <= limit:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}

// count is a number with its noun.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + many
}

// grouped writes a number with commas between thousands.
func grouped(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// shortIDLength is enough of a UUID to copy: of version 7, which ids have by default, it
// holds the time to less than a microsecond.
const shortIDLength = 18

// id is how an execution's id is shown where it stands among other things. On a terminal it is
// short, if it is of a kind whose beginning is sure to be unique.
func (s screen) id(id string) string {
	if s.width == 0 || !uuidShape(id) {
		return oneLine(id)
	}
	return id[:shortIDLength]
}

func uuidShape(id string) bool {
	if len(id) != len("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") {
		return false
	}
	for i, r := range id {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (r == '-') || !dash && !strings.ContainsRune("0123456789abcdef", r) {
			return false
		}
	}
	return true
}

// span is a length of time with about two digits that matter.
func span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "<1ms"
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

// age is how old something is, in one unit. A server's clock may be ahead.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(0, d).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

// full is a local time to read on its own.
func full(now, at time.Time) string {
	return at.In(now.Location()).Format("2006-01-02 15:04:05")
}

// clock is a local time for a column of times: to the millisecond today, with its date
// before.
func clock(now, at time.Time) string {
	at = at.In(now.Location())
	switch {
	case at.Format(time.DateOnly) == now.Format(time.DateOnly):
		return at.Format("15:04:05.000")
	case at.Year() == now.Year():
		return at.Format("Jan _2 15:04:05")
	default:
		return at.Format("2006-01-02 15:04")
	}
}
