package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

type watchOptions struct {
	f  *factory
	id string
}

func newWatchCmd(f *factory, runF func(context.Context, *watchOptions) error) *cobra.Command {
	opts := &watchOptions{f: f}
	return &cobra.Command{
		Use:   "watch ID",
		Short: "Follow an execution to its end",
		Long: `Shows the events of an execution's log, and more as they happen, until it ends.
The exit code is 0 if it completed and 1 if it failed or was cancelled.

What keeps an execution from going on, such as an approval that nobody has given
or a task queue that no worker serves, is said on stderr. An interrupt ends the watching, not the execution.`,
		Example: `  tine exec watch YourExecutionId
  tine exec watch YourExecutionId -o json | jq .type`,
		Args:              arguments([]string{"ID"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.id = args[0]
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runWatch(cmd.Context(), opts)
		},
	}
}

func runWatch(ctx context.Context, opts *watchOptions) error {
	c, id, err := opts.f.resolve(ctx, opts.id)
	if err != nil {
		return err
	}
	return watch(ctx, opts.f, c, id)
}

// watch shows an execution's events and its outcome.
func watch(ctx context.Context, f *factory, c executions, id string) error {
	ended, err := follow(ctx, f, c, id, eventWriter(f, f.out))
	if ended != nil && !f.json() {
		printOutcome(f, ended)
	}
	return err
}

func printOutcome(f *factory, e *tine.Execution) {
	s := f.screen()
	took, why := "", ""
	if e.ClosedAt != nil {
		took = " after " + span(e.ClosedAt.Sub(e.CreatedAt))
	}
	switch {
	case e.FailureReason != "":
		why = ": " + oneLine(e.FailureReason)
	case hasValue(e.Output):
		why = ": " + s.limit(compact(e.Output), s.width-cells(e.Status+took)-len(": "))
	}
	fmt.Fprintf(f.out, "\n%s%s%s\n", s.paint(statusStyle(e.Status), e.Status), took, why)
	printNext(f, e)
}

// goOn ends create and fork: with --wait they show the execution to its end, which as
// JSON is one document, of the ended execution.
func goOn(ctx context.Context, f *factory, c executions, e *tine.Execution, wait bool) error {
	switch {
	case !wait && f.json():
		return writeDocument(f.out, e)
	case !wait:
		printNext(f, e)
		return nil
	case !f.json():
		return watch(ctx, f, c, e.ID)
	}
	ended, err := follow(ctx, f, c, e.ID, func(tine.Event) error { return nil })
	if ended == nil {
		return err
	}
	return errors.Join(err, writeDocument(f.out, ended))
}

// next is what one may want to do with an execution, given how it is.
func next(e *tine.Execution, id string) []string {
	again := fmt.Sprintf("try again from an event: tine exec fork %s --at SEQ", id)
	switch e.Status {
	case tine.StatusCompleted:
		return []string{"see it all: tine exec get " + id}
	case tine.StatusFailed:
		return []string{"see its steps: tine exec steps " + id, again}
	case tine.StatusCancelled:
		return []string{again}
	default:
		return []string{"follow it: tine exec watch " + id}
	}
}

func printNext(f *factory, e *tine.Execution) {
	s := f.screen()
	for _, line := range next(e, s.id(e.ID)) {
		fmt.Fprintln(f.out, s.paint(faint, line))
	}
}
