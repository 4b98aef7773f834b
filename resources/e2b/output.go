package e2b

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// output keeps the beginning and the end of what is written to it.
type output struct {
	limit int
	head  []byte
	tail  []byte // at most twice what is kept of it, so that it is seldom moved
	total int64
}

func (o *output) write(p []byte) {
	o.total += int64(len(p))
	fits := min(len(p), o.headLimit()-len(o.head))
	o.head = append(o.head, p[:fits]...)
	p = p[fits:]
	keep := o.limit - o.headLimit()
	if len(p) > keep {
		p = p[len(p)-keep:]
	}
	if len(o.tail)+len(p) > 2*keep {
		o.tail = append(o.tail[:0], lastBytes(o.tail, keep)...)
	}
	o.tail = append(o.tail, p...)
}

func (o *output) headLimit() int { return o.limit / 2 }

func (o *output) truncated() bool { return o.total > int64(o.limit) }

// String returns all of it, or the two ends with a note of what is missing between them.
func (o *output) String() string {
	tail := lastBytes(o.tail, o.limit-o.headLimit())
	if !o.truncated() {
		return string(o.head) + string(tail)
	}
	head := trimEnd(o.head)
	tail = trimStart(tail)
	left := o.total - int64(len(head)+len(tail))
	var b strings.Builder
	b.Write(head)
	fmt.Fprintf(&b, "\n… %d bytes left out …\n", left)
	b.Write(tail)
	return b.String()
}

func lastBytes(p []byte, n int) []byte { return p[max(len(p)-n, 0):] }

// trimEnd cuts off a character that the limit has split.
func trimEnd(p []byte) []byte {
	for i := 1; i <= min(utf8.UTFMax, len(p)); i++ {
		if start := len(p) - i; utf8.RuneStart(p[start]) {
			if utf8.FullRune(p[start:]) {
				return p
			}
			return p[:start]
		}
	}
	return p
}

// trimStart cuts off what is left of a character that the limit has split.
func trimStart(p []byte) []byte {
	for i := range min(utf8.UTFMax, len(p)) {
		if utf8.RuneStart(p[i]) {
			return p[i:]
		}
	}
	if len(p) < utf8.UTFMax {
		return nil
	}
	return p // no text
}
