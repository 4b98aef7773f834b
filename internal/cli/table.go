package cli

import (
	"fmt"
	"io"
	"strings"
)

// style is how text looks where colour is wanted.
type style string

const (
	plain  style = ""
	faint  style = "2"
	bold   style = "1"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

func (s screen) paint(as style, text string) string {
	if !s.colour || as == plain || text == "" {
		return text
	}
	return "\x1b[" + string(as) + "m" + text + "\x1b[0m"
}

// statusStyle is for statuses of executions and of steps.
func statusStyle(status string) style {
	switch status {
	case "completed", "succeeded", "granted":
		return green
	case "failed", "denied":
		return red
	case "blocked", "awaiting_approval", "rate_limited", "cancelled", "pending", "requested", "expired":
		return yellow
	case "running", "executing":
		return cyan
	default:
		return plain
	}
}

// column is a column of a table.
type column struct {
	title string
	width int // how wide it is at least
	right bool
	// shrinks says that its cells may be cut where the terminal is too narrow. Those of
	// the last column always are.
	shrinks bool
}

// narrowest is how far a column that shrinks does so.
const narrowest = 10

// gap stands between columns.
const gap = 2

type cell struct {
	text  string
	style style
}

func text(s string) cell { return cell{text: s} }

type row struct {
	cells []cell
	// below stands under the row, from the second column on.
	below cell
}

// table lays rows out in columns that fit the screen. A table may also be written row by
// row, with columns as wide as they say; a cell that is wider moves the rest of its row.
type table struct {
	screen  screen
	indent  string
	columns []column
	rows    []row
}

func (t *table) add(cells ...cell) *row {
	t.rows = append(t.rows, row{cells: cells})
	return &t.rows[len(t.rows)-1]
}

// write writes the header and all rows, without the columns that have no content.
func (t *table) write(w io.Writer) {
	t.dropEmpty()
	t.fit()
	t.writeHeader(w)
	for _, r := range t.rows {
		t.writeRow(w, r)
	}
}

func (t *table) dropEmpty() {
	for i := len(t.columns) - 1; i >= 0; i-- {
		if t.used(i) {
			continue
		}
		t.columns = append(t.columns[:i], t.columns[i+1:]...)
		for r := range t.rows {
			t.rows[r].cells = append(t.rows[r].cells[:i], t.rows[r].cells[i+1:]...)
		}
	}
}

func (t *table) used(i int) bool {
	for _, r := range t.rows {
		if r.cells[i].text != "" {
			return true
		}
	}
	return false
}

// fit widens columns to their content, and then narrows those that shrink until the
// last one has its least width.
func (t *table) fit() {
	for i := range t.columns {
		c := &t.columns[i]
		c.width = max(c.width, cells(c.title))
		for _, r := range t.rows {
			c.width = max(c.width, cells(r.cells[i].text))
		}
	}
	if t.screen.width == 0 {
		return
	}
	last := len(t.columns) - 1
	excess := len(t.indent) + t.before(last) + min(t.columns[last].width, 2*narrowest) - t.screen.width
	for i := last - 1; i >= 0 && excess > 0; i-- {
		if c := &t.columns[i]; c.shrinks {
			by := min(excess, max(0, c.width-narrowest))
			c.width -= by
			excess -= by
		}
	}
}

// before is how many columns of the terminal stand before a column.
func (t *table) before(i int) int {
	n := 0
	for _, c := range t.columns[:i] {
		n += c.width + gap
	}
	return n
}

func (t *table) writeHeader(w io.Writer) {
	var header row
	for _, c := range t.columns {
		header.cells = append(header.cells, cell{c.title, faint})
	}
	t.writeRow(w, header)
}

func (t *table) writeRow(w io.Writer, r row) {
	var line strings.Builder
	at := len(t.indent)
	line.WriteString(t.indent)
	for i, c := range t.columns {
		if i > 0 {
			line.WriteString(strings.Repeat(" ", gap))
			at += gap
		}
		at += t.writeCell(&line, i, r.cells[i], at)
		if c.right || i == len(t.columns)-1 {
			continue
		}
		pad := max(0, len(t.indent)+t.before(i)+c.width-at)
		line.WriteString(strings.Repeat(" ", pad))
		at += pad
	}
	fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	if r.below.text != "" {
		under := strings.Repeat(" ", len(t.indent)+t.before(1))
		fmt.Fprintln(w, under+t.screen.paint(r.below.style, t.screen.limit(r.below.text, t.screen.width-len(under))))
	}
}

// writeCell writes a cell that begins at a column of the terminal, and says how wide it is.
func (t *table) writeCell(line *strings.Builder, i int, content cell, at int) int {
	c, shown := t.columns[i], content.text
	switch {
	case i == len(t.columns)-1:
		shown = t.screen.limit(shown, t.screen.width-at)
	case c.shrinks:
		shown = t.screen.limit(shown, c.width)
	}
	pad := 0
	if c.right {
		pad = max(0, c.width-cells(shown))
	}
	line.WriteString(strings.Repeat(" ", pad) + t.screen.paint(content.style, shown))
	return pad + cells(shown)
}

// limit cuts text, but only for a terminal: what is piped is complete.
func (s screen) limit(text string, to int) string {
	if s.width == 0 {
		return text
	}
	return cut(text, to)
}
