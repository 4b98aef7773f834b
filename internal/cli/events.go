package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

type eventsOptions struct {
	f        *factory
	id       string
	afterSeq int64
	limit    int
	follow   bool
}

func newEventsCmd(f *factory, runF func(context.Context, *eventsOptions) error) *cobra.Command {
	opts := &eventsOptions{f: f}
	cmd := &cobra.Command{
		Use:   "events ID",
		Short: "Show the event log of an execution",
		Long: `Shows the events of an execution's log. An event's seq counts them from 1, and is
what "tine exec fork --at" takes.

With --follow it shows events as they happen, until the execution ends. With
-o json it writes an array, or with --follow an event a line.`,
		Example: `  tine exec events YourExecutionId
  tine exec events YourExecutionId --after-seq 120 --limit 20
  tine exec events YourExecutionId --follow -o json`,
		Args:              arguments([]string{"ID"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.id = args[0]
			if opts.afterSeq < 0 {
				return usagef("--after-seq must not be negative")
			}
			if opts.limit < 0 {
				return usagef("--limit must not be negative")
			}
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runEvents(cmd.Context(), opts)
		},
	}
	cmd.Flags().Int64Var(&opts.afterSeq, "after-seq", 0, "leave out the events up to `SEQ`")
	cmd.Flags().IntVar(&opts.limit, "limit", 0, "show at most `N` events; 0 shows all")
	cmd.Flags().BoolVar(&opts.follow, "follow", false, "wait for more events until the execution ends")
	return cmd
}

func runEvents(ctx context.Context, opts *eventsOptions) error {
	c, id, err := opts.f.resolve(ctx, opts.id)
	if err != nil {
		return err
	}
	if opts.follow {
		return followEvents(ctx, opts, c.Follow(ctx, id, opts.afterSeq))
	}
	log, err := c.Log(ctx, id)
	if err != nil {
		return err
	}
	events := log.Events()
	events = events[min(opts.afterSeq, int64(len(events))):]
	if opts.limit > 0 {
		events = events[:min(opts.limit, len(events))]
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, append([]tine.Event{}, events...))
	}
	printEvents(opts.f, events)
	return nil
}

// followEvents writes events as they happen. Being interrupted is how one stops.
func followEvents(ctx context.Context, opts *eventsOptions, events iter.Seq2[tine.Event, error]) error {
	write := eventWriter(opts.f, opts.f.out)
	shown := 0
	for e, err := range events {
		if err != nil {
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil
			}
			return err
		}
		if err := write(e); err != nil {
			return err
		}
		if shown++; shown == opts.limit {
			return nil
		}
	}
	return nil
}

func eventColumns() []column {
	return []column{{title: "SEQ", right: true}, {title: "TIME"}, {title: "TYPE"}, {title: "SUBJECT"}, {title: "DETAILS"}}
}

func printEvents(f *factory, events []tine.Event) {
	if len(events) == 0 {
		fmt.Fprintln(f.out, "no events")
		return
	}
	t := table{screen: f.screen(), columns: eventColumns()}
	t.columns[3].shrinks = true
	d := newDescriber()
	for _, e := range events {
		t.add(eventCells(f, d, e)...)
	}
	t.write(f.out)
}

// eventWriter writes events one by one: as JSON, or as rows of a table whose columns fit
// most of what comes.
func eventWriter(f *factory, w io.Writer) func(tine.Event) error {
	if f.json() {
		return func(e tine.Event) error { return writeJSON(w, e) }
	}
	t := table{screen: f.screen(), columns: eventColumns()}
	for i, width := range []int{4, len("15:04:05.000"), len("step.awaiting_approval"), narrowest} {
		t.columns[i].width = width
	}
	d := newDescriber()
	return func(e tine.Event) error {
		t.writeRow(w, row{cells: eventCells(f, d, e)})
		return nil
	}
}

func eventCells(f *factory, d *describer, e tine.Event) []cell {
	subject, details := d.describe(e)
	return []cell{
		{text: strconv.FormatInt(e.Seq, 10)},
		{clock(f.now(), e.OccurredAt), faint},
		{oneLine(e.Type), eventStyle(e.Type)},
		{text: subject},
		{text: details},
	}
}
