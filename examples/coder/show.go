package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/tinerun/tine"
)

// show prints events, one a line. Of a step it leaves out what goes without saying.
type show struct {
	out io.Writer
}

func newShow(out io.Writer) *show { return &show{out: out} }

// payload is what the events' payloads have in common.
type payload struct {
	Target     string          `json:"target"`
	Key        string          `json:"key"`
	Cause      string          `json:"cause"`
	CoveredSeq int64           `json:"covered_seq"`
	ForkedFrom string          `json:"forked_from"`
	ForkSeq    int64           `json:"fork_seq"`
	Reason     string          `json:"reason"`
	Error      *tine.StepError `json:"error"`
}

func (s *show) event(e tine.Event) {
	var p payload
	_ = json.Unmarshal(e.Payload, &p) // a payload of another shape just shows no details
	line := fmt.Sprintf("%5d  %-28s %s", e.Seq, e.Type, p.details())
	fmt.Fprintln(s.out, strings.TrimRight(line, " "))
}

func (p payload) details() string {
	switch {
	case p.Key != "" && p.CoveredSeq > 0:
		return fmt.Sprintf("%s as of event %d (%s)", p.Key, p.CoveredSeq, p.Cause)
	case p.Key != "" && p.Error != nil:
		return fmt.Sprintf("%s: %s", p.Key, p.Error.Message)
	case p.ForkedFrom != "":
		return fmt.Sprintf("from %s at event %d", p.ForkedFrom, p.ForkSeq)
	case p.Target != "" && p.Error != nil:
		return fmt.Sprintf("%s: %s", p.Target, p.Error.Message)
	case p.Key != "":
		return p.Key
	case p.Target != "":
		return p.Target
	default:
		return p.Reason
	}
}

// compare shows two executions side by side, and what each changed.
func compare(out io.Writer, source, fork *finished) {
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	row := func(name string, value func(*finished) string) {
		fmt.Fprintf(table, "%s\t%s\t%s\n", name, value(source), value(fork))
	}
	fmt.Fprintln(table, "\tSOURCE\tFORK")
	row("execution", func(f *finished) string { return f.ID })
	row("status", func(f *finished) string { return f.Status })
	row("turns", func(f *finished) string { return fmt.Sprint(f.output.Turns) })
	row("steps run", func(f *finished) string { return fmt.Sprint(len(f.steps) - f.replayed()) })
	row("steps replayed", func(f *finished) string { return fmt.Sprint(f.replayed()) })
	row("tokens paid for", func(f *finished) string { return fmt.Sprint(f.tokens()) })
	row("changed", func(f *finished) string { return changes(f.output.Diff) })
	table.Flush()
	for _, f := range []*finished{source, fork} {
		fmt.Fprintf(out, "\n── %s: %s\n%s\n", f.role(), f.output.Answer, strings.TrimRight(f.output.Diff, "\n"))
	}
}

func (f *finished) role() string {
	if f.ForkedFrom != "" {
		return "Fork"
	}
	return "Source"
}

func (f *finished) replayed() int {
	n := 0
	for _, step := range f.steps {
		if step.Replayed {
			n++
		}
	}
	return n
}

// tokens are those of the model calls that ran in this execution.
func (f *finished) tokens() int64 {
	var n int64
	for _, step := range f.steps {
		if step.Usage != nil && !step.Replayed {
			n += step.Usage.InputTokens + step.Usage.OutputTokens
		}
	}
	return n
}

// changes sums up a diff.
func changes(diff string) string {
	var files, added, removed int
	for line := range strings.Lines(diff) {
		switch {
		case strings.HasPrefix(line, "diff "):
			files++
		case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"):
		case strings.HasPrefix(line, "+"):
			added++
		case strings.HasPrefix(line, "-"):
			removed++
		}
	}
	noun := "files"
	if files == 1 {
		noun = "file"
	}
	return fmt.Sprintf("%d %s, +%d −%d lines", files, noun, added, removed)
}

func (p *place) whereToLook(out io.Writer, executions ...*finished) {
	fmt.Fprintln(out)
	if p.uiAddress == "" {
		fmt.Fprintf(out, "Look at both in the UI of your Temporal server (namespace %s), by their workflow ids:\n", p.namespace)
		for _, e := range executions {
			fmt.Fprintf(out, "  %s\n", e.ID)
		}
		return
	}
	fmt.Fprintf(out, "Look at both in the Temporal UI: %s\n", p.uiAddress)
	for _, e := range executions {
		fmt.Fprintf(out, "  %s/namespaces/%s/workflows/%s\n", p.uiAddress, p.namespace, e.ID)
	}
}
