package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

type forkPointsOptions struct {
	f  *factory
	id string
}

func newForkPointsCmd(f *factory, runF func(context.Context, *forkPointsOptions) error) *cobra.Command {
	opts := &forkPointsOptions{f: f}
	return &cobra.Command{
		Use:   "fork-points ID",
		Short: "Show at which events the checkpoints cover an execution",
		Long: `Shows over the events of an execution where checkpoints cover its resources. A
fork at a covered event starts with each resource as it was then. Any event can be
forked: where a resource is not covered, the fork starts from its newest earlier
checkpoint.`,
		Example: `  tine exec fork-points YourExecutionId
  tine exec fork-points YourExecutionId -o json | jq .checkpoints`,
		Args:              arguments([]string{"ID"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.id = args[0]
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runForkPoints(cmd.Context(), opts)
		},
	}
}

func runForkPoints(ctx context.Context, opts *forkPointsOptions) error {
	c, id, err := opts.f.resolve(ctx, opts.id)
	if err != nil {
		return err
	}
	log, err := c.Log(ctx, id)
	if err != nil {
		return err
	}
	points := log.ForkPoints()
	if opts.f.json() {
		return writeDocument(opts.f.out, points)
	}
	printForkPoints(opts.f, id, points, log.Events())
	return nil
}

func printForkPoints(f *factory, id string, points tine.ForkPoints, events []tine.Event) {
	s := f.screen()
	lines := coverageLines(points)
	if len(lines) == 0 {
		fmt.Fprintf(f.out, "%s, no resources: every event is covered\n", count(points.LatestSeq, "event", "events"))
		return
	}
	fmt.Fprintf(f.out, "%s, %s\n\n", count(points.LatestSeq, "event", "events"), count(int64(len(points.Resources)), "resource", "resources"))
	printTimeline(f, s, points.LatestSeq, lines)
	fmt.Fprintln(f.out)
	printStretches(f, s, lines)
	printCheckpoints(f, s, points, events)
	fmt.Fprintf(f.out, "\n%s\n", s.paint(faint, fmt.Sprintf("fork it: tine exec fork %s --at SEQ", s.id(id))))
}

func printTimeline(f *factory, s screen, latest int64, lines []coverageLine) {
	names := nameWidth(lines)
	width := s.width
	if width == 0 {
		width = unknownWidth
	}
	t := newTimeline(latest, width-names-gap)
	fmt.Fprintf(f.out, "%*s%s\n", names+gap, "", s.paint(faint, t.axis()))
	for _, l := range lines {
		fmt.Fprintf(f.out, "%s%s\n", padded(l.name, names), t.draw(l))
	}
	legend := "█ covered  · not covered"
	if int64(t.marks) < latest {
		legend = "█ covered  ▓ ▒ ░ partly  · not covered"
	}
	fmt.Fprintf(f.out, "%*s%s\n", names+gap, "", s.paint(faint, legend))
}

// longestName bounds the names beside the timeline.
const longestName = 20

func nameWidth(lines []coverageLine) int {
	width := 0
	for _, l := range lines {
		width = max(width, cells(l.name))
	}
	return min(width, longestName)
}

// padded is a name in a column of names.
func padded(name string, width int) string {
	name = cut(name, width)
	return name + strings.Repeat(" ", width-cells(name)+gap)
}

// printStretches lists for each line the newest stretches that have room.
func printStretches(f *factory, s screen, lines []coverageLine) {
	names := nameWidth(lines)
	for _, l := range lines {
		fmt.Fprintf(f.out, "%s%s\n", padded(l.name, names), l.words(s.width-names-gap))
	}
}

// mostCheckpoints is how many of the newest a terminal gets.
const mostCheckpoints = 20

func printCheckpoints(f *factory, s screen, points tine.ForkPoints, events []tine.Event) {
	all := points.Checkpoints
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(f.out)
	t := table{screen: s, columns: []column{{title: "COVERS", right: true}, {title: "RESOURCE", shrinks: true}, {title: "AFTER"}, {title: "CHECKPOINT"}}}
	shown := all
	if s.width > 0 && len(all) > mostCheckpoints {
		shown = all[len(all)-mostCheckpoints:]
	}
	for _, c := range shown {
		t.add(text(coveredSeqs(c)), text(oneLine(c.Key)), text(after(c, events)), cell{oneLine(c.CheckpointRef), faint})
	}
	t.write(f.out)
	if left := len(all) - len(shown); left > 0 {
		fmt.Fprintln(f.out, s.paint(faint, fmt.Sprintf("%s before; -o json has them", count(int64(left), "checkpoint", "checkpoints"))))
	}
}

// coveredSeqs is what the checkpoint covers. One that was copied into a fork may cover
// nothing there.
func coveredSeqs(c tine.Checkpoint) string {
	switch c.InvalidatedSeq {
	case 0:
		return fmt.Sprintf("%d-", c.CoveredSeq)
	case c.CoveredSeq:
		return "nothing"
	default:
		return seqs(c.CoveredSeq, c.InvalidatedSeq-1)
	}
}

// after is the event whose state the checkpoint holds.
func after(c tine.Checkpoint, events []tine.Event) string {
	if c.CoveredSeq < 1 || c.CoveredSeq > int64(len(events)) {
		return ""
	}
	e := events[c.CoveredSeq-1]
	subject, _ := newDescriber().describe(e)
	return strings.TrimSpace(e.Type + " " + subject)
}
