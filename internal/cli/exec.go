package cli

import "github.com/spf13/cobra"

func newExecCmd(f *factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec",
		Short: "Create, read, cancel and fork executions",
		Long: `An execution is one run of an agent on an input. Its event log says all it did,
also while no worker runs and after it has ended, and it can be forked at each
event.`,
		Example: `  tine exec ls
  tine exec get YourExecutionId`,
		Args: cobra.ArbitraryArgs, RunE: group, SuggestionsMinimumDistance: nearEnough,
	}
	cmd.AddCommand(
		newCreateCmd(f, nil),
		newLsCmd(f, nil),
		newGetCmd(f, nil),
		newEventsCmd(f, nil),
		newStepsCmd(f, nil),
		newWatchCmd(f, nil),
		newCancelCmd(f, nil),
		newForkCmd(f, nil),
		newForkPointsCmd(f, nil),
	)
	return cmd
}
