package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

type createOptions struct {
	f       *factory
	agent   string
	input   string // as given: JSON, "-" or "@file"
	id      string
	session string
	parent  string
	wait    bool
}

func newCreateCmd(f *factory, runF func(context.Context, *createOptions) error) *cobra.Command {
	opts := &createOptions{f: f}
	cmd := &cobra.Command{
		Use:   "create AGENT [JSON]",
		Short: "Start an execution of an agent",
		Long: `Starts an execution of an agent on an input and prints it. The input is JSON:
inline, or - for stdin, or @FILE; without one it is {}.

No worker need run: the execution waits on its task queue. With --wait the
command shows the execution's events until it ends; the exit code is 0 if it
completed and 1 if it failed or was cancelled. An interrupt ends the waiting, not
the execution.

With --session the execution is a turn of that session: it waits until those
before it have ended, and continues the newest completed one of the same agent.
With --parent it continues that execution instead.`,
		Example: `  tine exec create YourAgent '{"task":"tidy the notes"}'
  tine exec create YourAgent @input.json --id nightly-2026-05-01 --wait
  id=$(tine exec create YourAgent -o json | jq -r .id)`,
		Args:              arguments([]string{"AGENT"}, "JSON"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.agent, opts.input = args[0], "{}"
			if len(args) > 1 {
				opts.input = args[1]
			}
			if opts.agent == "" {
				return usagef("AGENT must not be empty")
			}
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runCreate(cmd.Context(), opts)
		},
	}
	cmd.Flags().StringVar(&opts.id, "id", "", "`ID` of the execution; a new UUID by default")
	cmd.Flags().StringVar(&opts.session, "session", "", "`SESSION` that the execution is a turn of")
	cmd.Flags().StringVar(&opts.parent, "parent", "", "`ID` of a completed execution to continue")
	cmd.Flags().BoolVar(&opts.wait, "wait", false, "show the execution to its end")
	return cmd
}

func runCreate(ctx context.Context, opts *createOptions) error {
	input, err := readJSON("input", opts.input, opts.f.in)
	if err != nil {
		return err
	}
	c, err := opts.f.client(ctx)
	if err != nil {
		return err
	}
	if opts.parent != "" {
		if opts.parent, err = c.Resolve(ctx, opts.parent); err != nil {
			return err
		}
	}
	created, err := c.Create(ctx, tine.CreateRequest{
		Agent: opts.agent, Input: input, ID: opts.id, TaskQueue: opts.f.taskQueue,
		Session: opts.session, Parent: opts.parent,
	})
	if err != nil {
		return err
	}
	if !opts.f.json() {
		fmt.Fprintf(opts.f.out, "created %s\n%sagent %s, task queue %s\n", created.ID, indent, oneLine(created.AgentID), oneLine(created.TaskQueue))
	}
	return goOn(ctx, opts.f, c, created, opts.wait)
}
