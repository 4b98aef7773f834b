package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/policy"
)

type forkOptions struct {
	f         *factory
	source    string
	atSeq     int64
	id        string
	input     *string // as given; nil keeps the source's
	session   string
	taskQueue string // empty keeps the source's
	policy    policyFiles
	effects   choice
	wait      bool
}

func newForkCmd(f *factory, runF func(context.Context, *forkOptions) error) *cobra.Command {
	opts := &forkOptions{f: f, effects: choice{
		name: "MODE", value: tine.EffectsGuard, allowed: []string{tine.EffectsGuard, tine.EffectsPolicy},
	}}
	var input string
	cmd := &cobra.Command{
		Use:   "fork ID --at SEQ",
		Short: "Start a new execution from an event of another",
		Long: `Starts a new execution that has the steps of the source up to an event, without
running them again, and goes its own way from there. Each resource starts from
the checkpoint that fits; the source and its resources stay as they are. The
source may be running or have ended, and no worker need run. The fork runs on the
source's task queue unless --task-queue says otherwise.

What at_most_once steps of the source have done since the event, such as a mail that was
sent, the fork does not do again unasked: those tools need approval in it. With
--effects policy the policy alone decides. --policy gives the fork a policy of
its own, which forks of it inherit; copied outcomes stay as they are.

The command prints the fork and what its resources start from. One that is not
covered starts from an older state than the event's: "tine exec fork-points" shows
which events are covered.`,
		Example: `  tine exec fork YourExecutionId --at 39
  tine exec fork YourExecutionId --at 39 --input '{"task":"try again"}' --wait
  tine exec fork YourExecutionId --at 39 --policy stricter.yaml`,
		Args:              arguments([]string{"ID"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.source = args[0]
			if !cmd.Flags().Changed("at") {
				return &usageError{
					message: "--at SEQ is missing: the event to fork at",
					hint:    fmt.Sprintf("%q shows which events are covered", "tine exec fork-points "+opts.source),
				}
			}
			if cmd.Flags().Changed("task-queue") {
				opts.taskQueue = f.taskQueue
			}
			if cmd.Flags().Changed("input") {
				opts.input = &input
			}
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runFork(cmd.Context(), opts)
		},
	}
	cmd.Flags().Int64Var(&opts.atSeq, "at", 0, "`SEQ` of the last event that the fork shares with its source")
	cmd.Flags().StringVar(&opts.id, "id", "", "`ID` of the fork; a new UUID by default")
	cmd.Flags().StringVar(&input, "input", "", "`JSON` to use instead of the source's input; - for stdin, @FILE")
	cmd.Flags().StringVar(&opts.session, "session", "", "new `SESSION` that the fork belongs to")
	cmd.Flags().StringArrayVar(&opts.policy.paths, "policy", nil, "`FILE` of a policy that decides instead of the worker's; may be\nrepeated, for rules and the Rego beside them, or be a directory\nwith a policy for the agent")
	opts.policy.addFlags(cmd)
	addChoice(cmd, &opts.effects, "effects", "guard, or policy: whether effects of the source need approval")
	cmd.Flags().BoolVar(&opts.wait, "wait", false, "show the fork to its end")
	return cmd
}

func runFork(ctx context.Context, opts *forkOptions) error {
	request := tine.ForkRequest{AtSeq: opts.atSeq, ID: opts.id, TaskQueue: opts.taskQueue, Session: opts.session, Effects: opts.effects.value}
	directory, err := opts.policy.directory()
	if err == nil && directory == "" && len(opts.policy.paths) > 0 {
		request.Policy, err = opts.policy.pack(ctx, opts.policy.paths)
	}
	if err != nil {
		return policyFailure(opts.f, err)
	}
	if opts.input != nil {
		input, err := readJSON("--input", *opts.input, opts.f.in)
		if err != nil {
			return err
		}
		request.Input = input
	}
	c, source, err := opts.f.resolve(ctx, opts.source)
	if err != nil {
		return err
	}
	request.ExecutionID = source
	if directory != "" {
		if request.Policy, err = opts.policy.ofAgent(ctx, c, source, directory); err != nil {
			return policyFailure(opts.f, err)
		}
	}
	fork, err := c.Fork(ctx, request)
	if err != nil {
		return err
	}
	if !opts.f.json() {
		printFork(opts.f, fork)
	}
	return goOn(ctx, opts.f, c, fork, opts.wait)
}

// ofAgent packs the policy that a directory has for the agent of an execution.
func (p *policyFiles) ofAgent(ctx context.Context, c executions, id, directory string) (*tine.PolicyBundle, error) {
	source, err := c.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	paths, err := policy.FilesOf(directory, source.AgentID)
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, noPolicy(directory, source.AgentID)
	}
	return p.pack(ctx, paths)
}

func printFork(f *factory, fork *tine.Execution) {
	fmt.Fprintf(f.out, "created %s\n%sa fork of %s at event %d\n", fork.ID, indent, fork.ForkedFrom, fork.ForkSeq)
	if fork.Policy != nil && fork.Policy.Source == "fork" {
		fmt.Fprintf(f.out, "%swith a policy of its own, %s\n", indent, fork.Policy.Digest)
	}
	if len(fork.GuardedEffects) > 0 {
		fmt.Fprintf(f.out, "%sneeds approval, since the source has done it: %s\n", indent, targets(fork.GuardedEffects))
	}
	printRestoration(f, fork.Restoration)
}

func targets(effects []tine.Effect) string {
	var names []string
	for _, effect := range effects {
		names = append(names, oneLine(effect.Target))
	}
	return strings.Join(names, ", ")
}

// printRestoration says what each resource of a fork starts from.
func printRestoration(f *factory, restoration map[string]tine.Restoration) {
	if len(restoration) == 0 {
		return
	}
	t := table{screen: f.screen(), indent: indent, columns: []column{{title: "RESOURCE"}, {title: "STARTS FROM"}, {title: "COVERED"}, {title: "CHECKPOINT"}}}
	for _, key := range slices.Sorted(maps.Keys(restoration)) {
		r := restoration[key]
		from := "its initial environment"
		switch {
		case r.CheckpointSeq != 0:
			from = fmt.Sprintf("the source's event %d", r.CheckpointSeq)
		case r.CheckpointRef != "":
			from = "what the source started from"
		}
		t.add(text(oneLine(key)), text(from), covered(r.Covered), cell{oneLine(r.CheckpointRef), faint})
	}
	t.write(f.out)
}

func covered(is bool) cell {
	if is {
		return cell{"yes", green}
	}
	return cell{"no", yellow}
}
