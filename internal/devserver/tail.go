package devserver

import (
	"bytes"
	"sync"
)

// tailSize is how much output an error shows: enough for a panic's first goroutine.
const tailSize = 4 << 10

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
	cut bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.cut = true
	}
	return len(p), nil
}

// String gives whole lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.buf
	if t.cut {
		if _, rest, found := bytes.Cut(text, []byte("\n")); found {
			text = rest
		}
	}
	return string(bytes.TrimSpace(text))
}
