package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

type stepsOptions struct {
	f      *factory
	id     string
	status choice
	kind   choice
}

func newStepsCmd(f *factory, runF func(context.Context, *stepsOptions) error) *cobra.Command {
	opts := &stepsOptions{
		f: f,
		status: choice{name: "STATUS", allowed: []string{
			eventlog.StepStatusProposed, eventlog.StepStatusLimited, eventlog.StepStatusAwaiting, eventlog.StepStatusExecuting,
			eventlog.StepStatusSucceeded, eventlog.StepStatusFailed, eventlog.StepStatusDenied, eventlog.StepStatusCancelled,
		}},
		kind: choice{name: "KIND", allowed: []string{protocol.KindTool, protocol.KindLLM, protocol.KindLocal}},
	}
	cmd := &cobra.Command{
		Use:   "steps ID",
		Short: "Show the steps of an execution",
		Long: `Shows the recorded steps of an execution: tool calls, model calls and local
steps, with the seqs of their first and last event. A step that is marked as
replayed was copied from the source of a fork and did not run again.

Results are part of the JSON output.`,
		Example: `  tine exec steps YourExecutionId --kind tool_call
  tine exec steps YourExecutionId --status failed
  tine exec steps YourExecutionId -o json | jq '.[-1].result'`,
		Args:              arguments([]string{"ID"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.id = args[0]
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runSteps(cmd.Context(), opts)
		},
	}
	addChoice(cmd, &opts.status, "status", "only those that are proposed, rate_limited, awaiting_approval,\nexecuting, succeeded, failed, denied or cancelled")
	addChoice(cmd, &opts.kind, "kind", "only those of kind tool_call, llm_call or local")
	return cmd
}

func runSteps(ctx context.Context, opts *stepsOptions) error {
	c, id, err := opts.f.resolve(ctx, opts.id)
	if err != nil {
		return err
	}
	log, err := c.Log(ctx, id)
	if err != nil {
		return err
	}
	steps := opts.selected(log.Steps())
	if opts.f.json() {
		return writeDocument(opts.f.out, steps)
	}
	if len(steps) == 0 {
		fmt.Fprintln(opts.f.out, "no steps")
		return nil
	}
	printSteps(opts.f, steps, log.Events())
	return nil
}

func (o *stepsOptions) selected(steps []*tine.Step) []*tine.Step {
	selected := []*tine.Step{}
	for _, s := range steps {
		if (o.status.value == "" || o.status.value == s.Status) && (o.kind.value == "" || o.kind.value == s.Kind) {
			selected = append(selected, s)
		}
	}
	return selected
}

func printSteps(f *factory, steps []*tine.Step, events []tine.Event) {
	t := table{screen: f.screen(), columns: []column{
		{title: "SEQ", right: true}, {title: "KIND"}, {title: "TARGET", shrinks: true}, {title: "STATUS"},
		{title: "REPLAYED"}, {title: "TOOK", right: true}, {title: "TRIES", right: true}, {title: "ARGS"},
	}}
	now := f.now()
	for _, s := range steps {
		r := t.add(
			text(seqRange(s)), text(s.Kind), text(oneLine(s.Target)), cell{s.Status, statusStyle(s.Status)},
			cell{mark(s.Replayed), faint}, text(stepTook(s, events, now)), text(attempts(s)), text(compact(s.Args)),
		)
		r.below = cell{oneLine(stepWhy(s)), statusStyle(s.Status)}
	}
	t.write(f.out)
}

// seqRange is where the step stands in the log.
func seqRange(s *tine.Step) string {
	if s.SettledSeq == 0 {
		return fmt.Sprintf("%d-", s.ProposedSeq)
	}
	return fmt.Sprintf("%d-%d", s.ProposedSeq, s.SettledSeq)
}

func mark(replayed bool) string {
	if replayed {
		return "replayed"
	}
	return ""
}

// attempts is how often the step's body was started, if more than once: the usual is not
// worth a look.
func attempts(s *tine.Step) string {
	if s.Attempts <= 1 {
		return ""
	}
	return strconv.Itoa(s.Attempts)
}

// stepTook is how long the step ran, or has run so far.
func stepTook(s *tine.Step, events []tine.Event, now time.Time) string {
	switch {
	case s.ExecutingSeq == 0:
		return ""
	case s.SettledSeq == 0:
		return span(now.Sub(events[s.ExecutingSeq-1].OccurredAt)) + "…"
	default:
		return span(events[s.SettledSeq-1].OccurredAt.Sub(events[s.ExecutingSeq-1].OccurredAt))
	}
}

// stepWhy says why the step has not succeeded.
func stepWhy(s *tine.Step) string {
	switch s.Status {
	case eventlog.StepStatusDenied, eventlog.StepStatusAwaiting:
		return joined(label("rule", s.RuleID), s.Reason)
	case eventlog.StepStatusFailed, eventlog.StepStatusCancelled:
		return stepError(s.Error)
	default:
		return ""
	}
}
