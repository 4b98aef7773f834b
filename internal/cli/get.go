package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

type getOptions struct {
	f  *factory
	id string
}

func newGetCmd(f *factory, runF func(context.Context, *getOptions) error) *cobra.Command {
	opts := &getOptions{f: f}
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show an execution",
		Long: `Shows an execution: its status, input and output, where it comes from, its
resources, what it is doing, and what keeps it from going on.`,
		Example: `  tine exec get YourExecutionId
  tine exec get YourExecutionId -o json | jq .output`,
		Args:              arguments([]string{"ID"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.id = args[0]
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runGet(cmd.Context(), opts)
		},
	}
}

func runGet(ctx context.Context, opts *getOptions) error {
	c, id, err := opts.f.resolve(ctx, opts.id)
	if err != nil {
		return err
	}
	e, err := c.Get(ctx, id)
	if err != nil {
		return err
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, e)
	}
	printExecution(opts.f, e)
	return nil
}

// printExecution writes what there is to know, and nothing of what there is not.
func printExecution(f *factory, e *tine.Execution) {
	p := page{w: f.out, screen: f.screen(), now: f.now()}
	p.facts(e)
	p.value("Input", e.Input)
	p.value("Output", e.Output)
	p.prose("Failed", red, e.FailureReason)
	if e.Divergence != nil {
		p.prose("Diverged", red, diverged(e.Divergence))
	}
	if len(e.Restoration) > 0 {
		p.heading("Restoration")
		printRestoration(f, e.Restoration)
	}
	p.resources(e.Resources)
	p.approvals(f, e.Approvals)
	p.pending(e.Pending)
	p.prose("Notes", yellow, e.Notes...)
	p.heading("Next")
	for _, line := range suggestions(p.screen, e) {
		fmt.Fprintln(p.w, indent+line)
	}
}

// indent stands before what belongs to the line above it.
const indent = "  "

// page writes titled sections.
type page struct {
	w      io.Writer
	screen screen
	now    time.Time
}

func (p page) heading(title string) {
	fmt.Fprintf(p.w, "\n%s\n", p.screen.paint(bold, title))
}

// fact writes a line of the first section, if there is a value.
func (p page) fact(name, value string) {
	if value != "" {
		fmt.Fprintf(p.w, "%s  %s\n", p.screen.paint(faint, fmt.Sprintf("%-10s", name)), value)
	}
}

func (p page) facts(e *tine.Execution) {
	p.fact("Execution", oneLine(e.ID))
	p.fact("Agent", oneLine(e.AgentID))
	p.fact("Status", p.screen.paint(statusStyle(e.Status), e.Status))
	p.fact("Created", p.when(e.CreatedAt))
	if e.ClosedAt != nil {
		p.fact("Closed", fmt.Sprintf("%s, after %s", p.when(*e.ClosedAt), span(e.ClosedAt.Sub(e.CreatedAt))))
	}
	p.fact("Session", oneLine(e.Session))
	p.fact("Continues", oneLine(e.ParentExecutionID))
	if e.ForkedFrom != "" {
		p.fact("Forked", fmt.Sprintf("from %s at event %d", oneLine(e.ForkedFrom), e.ForkSeq))
	}
	p.fact("Guarded", label("needs approval, since the source has done it:", targets(e.GuardedEffects)))
	p.fact("Policy", policyLine(e.Policy))
	p.fact("Task queue", oneLine(e.TaskQueue))
	p.fact("Log", fmt.Sprintf("%s, from %s of Temporal's history", count(e.LatestSeq, "event", "events"), grouped(e.HistoryEvents)))
	p.fact("Run", strings.Join(e.Runs, "\n            "))
}

func (p page) when(at time.Time) string {
	return fmt.Sprintf("%s (%s ago)", full(p.now, at), age(p.now.Sub(at)))
}

// Output that goes on longer than this is no use on a terminal.
const mostLines = 30

// value writes JSON: in one line if it fits, else indented, and text as text.
func (p page) value(title string, raw json.RawMessage) {
	p.valueUpTo(mostLines, title, raw)
}

// valueUpTo writes so many lines of a value to a terminal.
func (p page) valueUpTo(most int, title string, raw json.RawMessage) {
	if !hasValue(raw) {
		return
	}
	p.heading(title)
	width := p.screen.width
	if width == 0 {
		width = unknownWidth
	}
	lines := valueLines(raw, width-len(indent))
	if p.screen.width > 0 && len(lines) > most {
		left := len(lines) - most
		lines = append(lines[:most], p.screen.paint(faint, fmt.Sprintf("… %d more lines; -o json has them", left)))
	}
	for _, line := range lines {
		fmt.Fprintln(p.w, indent+line)
	}
}

func hasValue(raw json.RawMessage) bool {
	return len(raw) > 0 && string(raw) != "null"
}

func valueLines(raw json.RawMessage, width int) []string {
	var text string
	if json.Unmarshal(raw, &text) == nil && strings.Contains(text, "\n") {
		return strings.Split(printable(text), "\n")
	}
	if line := compact(raw); cells(line) <= width {
		return []string{line}
	}
	var indented bytes.Buffer
	if json.Indent(&indented, raw, "", "  ") != nil {
		return []string{oneLine(string(raw))}
	}
	return strings.Split(printable(indented.String()), "\n")
}

// prose writes sentences, each from a line of its own.
func (p page) prose(title string, as style, sentences ...string) {
	sentences = nonEmpty(sentences)
	if len(sentences) == 0 {
		return
	}
	p.heading(title)
	for _, sentence := range sentences {
		for _, line := range wrap(oneLine(sentence), p.screen.width-len(indent)) {
			fmt.Fprintln(p.w, indent+p.screen.paint(as, line))
		}
	}
}

func (p page) resources(resources []*tine.Resource) {
	if len(resources) == 0 {
		return
	}
	p.heading("Resources")
	t := table{screen: p.screen, indent: indent, columns: []column{
		{title: "KEY"}, {title: "DRIVER"}, {title: "COVERED"}, {title: "STEPS", right: true}, {title: "CAPTURED"}, {title: "BINDING"},
	}}
	for _, r := range resources {
		binding := "not opened yet"
		if r.BoundSeq != 0 {
			binding = compact(r.Binding)
		}
		t.add(text(oneLine(r.Key)), text(oneLine(r.Driver)), covered(r.Covered), text(grouped(int64(r.Count))),
			text(captured(r)), cell{binding, faint})
	}
	t.write(p.w)
}

// captured says when checkpoints of the resource are taken.
func captured(r *tine.Resource) string {
	every := "every step"
	if r.EverySteps > 1 {
		every = fmt.Sprintf("every %d steps", r.EverySteps)
	}
	if r.OnCompletion && r.EverySteps > 1 {
		every += ", at the end"
	}
	return every
}

// policyLine says what decides the execution's steps.
func policyLine(info *tine.PolicyInfo) string {
	switch {
	case info == nil:
		return ""
	case info.Unrestricted:
		return "none: the agent is unrestricted"
	case info.Source == "fork":
		return oneLine(info.Digest) + ", the fork's own"
	default:
		return oneLine(info.Digest)
	}
}

func (p page) approvals(f *factory, approvals []*tine.Approval) {
	if len(approvals) == 0 {
		return
	}
	p.heading("Waits for approval")
	t := approvalTable(f, approvals)
	t.indent = indent
	t.write(p.w)
}

func (p page) pending(pending []tine.PendingActivity) {
	if len(pending) == 0 {
		return
	}
	p.heading("Under way")
	t := table{screen: p.screen, indent: indent, columns: []column{
		{title: "ACTIVITY", shrinks: true}, {title: "STATE"}, {title: "AGE", right: true}, {title: "ATTEMPT", right: true}, {title: "NEXT"}, {title: "LAST FAILURE"},
	}}
	for _, a := range pending {
		since, next := "", ""
		if a.ScheduledAt != nil {
			since = age(p.now.Sub(*a.ScheduledAt))
		}
		if a.NextAttempt != nil {
			next = "in " + span(max(0, a.NextAttempt.Sub(p.now)))
		}
		t.add(text(oneLine(a.Type)), text(strings.ReplaceAll(a.State, "_", " ")), text(since), text(fmt.Sprint(a.Attempt)),
			text(next), cell{oneLine(a.LastFailure), red})
	}
	t.write(p.w)
}

// deciding are the commands that decide an approval, once one has looked at it.
func deciding(s screen, a *tine.Approval) []string {
	id, by := s.approvalID(a), ""
	if len(a.Approvers) > 0 {
		by = " --by NAME"
	}
	return []string{
		"tine approval get " + id, "tine approval grant " + id + by, "tine approval deny " + id + by + " --reason TEXT",
	}
}

// suggestions are the commands one may want next.
func suggestions(s screen, e *tine.Execution) []string {
	id := s.id(e.ID)
	commands := []string{"tine exec events " + id}
	switch {
	case len(e.Approvals) > 0:
		commands = append(deciding(s, e.Approvals[0]), "tine exec watch "+id)
	case !e.Closed():
		commands = []string{"tine exec watch " + id, "tine exec cancel " + id}
	case e.Status == tine.StatusFailed:
		commands = []string{"tine exec steps " + id}
	}
	if e.LatestSeq > 1 {
		commands = append(commands, "tine exec fork-points "+id, fmt.Sprintf("tine exec fork %s --at SEQ", id))
	}
	return commands
}
