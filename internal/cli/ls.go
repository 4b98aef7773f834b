package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

type lsOptions struct {
	f      *factory
	status choice
	list   tine.ListOptions
}

const defaultListed = 50

func newLsCmd(f *factory, runF func(context.Context, *lsOptions) error) *cobra.Command {
	opts := &lsOptions{f: f, status: choice{name: "STATUS", allowed: []string{
		tine.StatusPending, tine.StatusRunning, tine.StatusBlocked,
		tine.StatusCompleted, tine.StatusFailed, tine.StatusCancelled,
	}}}
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List executions, newest first",
		Long: `Lists executions, newest first. They come from Temporal's visibility store, which
may lag behind by a second or so.`,
		Example: `  tine exec ls --agent YourAgent --status failed
  tine exec ls --forked-from YourExecutionId
  tine exec ls --limit 500 -o json | jq -r '.[].id'`,
		Args:              arguments(nil),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.list.Limit < 1 {
				return usagef("--limit must be at least 1")
			}
			opts.list.Status = opts.status.value
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runLs(cmd.Context(), opts)
		},
	}
	cmd.Flags().StringVar(&opts.list.Agent, "agent", "", "only those of `AGENT`")
	addChoice(cmd, &opts.status, "status", "only those that are pending, running, blocked, completed,\nfailed or cancelled")
	cmd.Flags().StringVar(&opts.list.Session, "session", "", "only those of `SESSION`")
	cmd.Flags().StringVar(&opts.list.ForkedFrom, "forked-from", "", "only forks of the execution with `ID`")
	cmd.Flags().IntVar(&opts.list.Limit, "limit", defaultListed, "at most `N`")
	return cmd
}

func runLs(ctx context.Context, opts *lsOptions) error {
	c, err := opts.f.client(ctx)
	if err != nil {
		return err
	}
	if opts.list.ForkedFrom != "" {
		source, err := c.Resolve(ctx, opts.list.ForkedFrom)
		var missing *tine.NotFoundError
		switch {
		case err == nil:
			opts.list.ForkedFrom = source
		case !errors.As(err, &missing): // a source that is gone may have forks
			return err
		}
	}
	found, err := c.List(ctx, opts.list)
	if err != nil {
		return err
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, append([]*tine.Execution{}, found...))
	}
	if len(found) == 0 {
		fmt.Fprintln(opts.f.out, "no executions")
		return nil
	}
	printExecutions(opts.f, found)
	if len(found) == opts.list.Limit {
		fmt.Fprintln(opts.f.out, opts.f.screen().paint(faint, fmt.Sprintf("the newest %d; --limit shows more", len(found))))
	}
	return nil
}

func printExecutions(f *factory, found []*tine.Execution) {
	t := table{screen: f.screen(), columns: []column{
		{title: "ID"}, {title: "AGENT", shrinks: true}, {title: "STATUS"}, {title: "AGE", right: true},
		{title: "TOOK", right: true}, {title: "FORKED FROM"}, {title: "SESSION"},
	}}
	now := f.now()
	id := shortener(t.screen, found)
	for _, e := range found {
		took, from := "", ""
		if e.ClosedAt != nil {
			took = span(e.ClosedAt.Sub(e.CreatedAt))
		}
		if e.ForkedFrom != "" {
			from = fmt.Sprintf("%s at %d", id(e.ForkedFrom), e.ForkSeq)
		}
		t.add(text(id(e.ID)), text(oneLine(e.AgentID)), cell{e.Status, statusStyle(e.Status)},
			cell{age(now.Sub(e.CreatedAt)), faint}, text(took), text(from), text(oneLine(e.Session)))
	}
	t.write(f.out)
}

// shortener is the screen's way to show ids, unless that makes two of those listed the same.
func shortener(s screen, listed []*tine.Execution) func(string) string {
	seen := map[string]bool{}
	for _, e := range listed {
		short := s.id(e.ID)
		if seen[short] {
			return oneLine
		}
		seen[short] = true
	}
	return s.id
}
