package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

type cancelOptions struct {
	f  *factory
	id string
}

func newCancelCmd(f *factory, runF func(context.Context, *cancelOptions) error) *cobra.Command {
	opts := &cancelOptions{f: f}
	return &cobra.Command{
		Use:   "cancel ID",
		Short: "Ask an execution to stop",
		Long: `Asks an execution to stop. The step under way is told, and the agent decides how
it ends, so it may take a while, or complete after all. It is an error if the
execution has ended.`,
		Example:           `  tine exec cancel YourExecutionId && tine exec watch YourExecutionId`,
		Args:              arguments([]string{"ID"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.id = args[0]
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runCancel(cmd.Context(), opts)
		},
	}
}

func runCancel(ctx context.Context, opts *cancelOptions) error {
	c, id, err := opts.f.resolve(ctx, opts.id)
	if err != nil {
		return err
	}
	if err := c.Cancel(ctx, id); err != nil {
		return err
	}
	if opts.f.json() {
		e, err := c.Get(ctx, id)
		if err != nil {
			return err
		}
		return writeDocument(opts.f.out, e)
	}
	s := opts.f.screen()
	fmt.Fprintf(opts.f.out, "asked %s to stop\n", id)
	fmt.Fprintln(opts.f.out, s.paint(faint, "see it end: tine exec watch "+s.id(id)))
	return nil
}
