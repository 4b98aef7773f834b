package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

// verdict is what a decision says.
type verdict struct {
	word, short, effect string
	decide              func(executions, context.Context, string, tine.ApprovalDecision) (*tine.Approval, error)
}

var (
	granting = verdict{
		word: "grant", short: "Let a step run that waits for approval",
		effect: "Lets a step run that waits for approval.",
		decide: executions.Grant,
	}
	denying = verdict{
		word: "deny", short: "Refuse a step that waits for approval",
		effect: "Refuses a step that waits for approval. Its agent is told why, and goes on.",
		decide: executions.Deny,
	}
)

type approvalDecideOptions struct {
	f        *factory
	verdict  verdict
	id       string
	decision tine.ApprovalDecision
}

func newApprovalDecideCmd(f *factory, v verdict, runF func(context.Context, *approvalDecideOptions) error) *cobra.Command {
	opts := &approvalDecideOptions{f: f, verdict: v}
	cmd := &cobra.Command{
		Use:   v.word + " ID",
		Short: v.short,
		Long: v.effect + `

The decision is refused if the approval was decided before or has expired, if
the rule lists approvers and you are none of them, and if the step, its arguments or the
policy are others than those read here. A worker of the execution's task queue has to run:
it takes the decision into the history.

Exit code 3 says that the rule's approvers do not list you.

--by is checked against the rule's approvers. It is a claim, not a proof: only a
server that authenticates its callers can say who you are.`,
		Example:           fmt.Sprintf("  tine approval %s YourApprovalId --reason \"looked at the diff\"", v.word),
		Args:              arguments([]string{"ID"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.id = args[0]
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runApprovalDecide(cmd.Context(), opts)
		},
	}
	cmd.Flags().StringVar(&opts.decision.By, "by", "", "`NAME` of who decides; your user name by default")
	cmd.Flags().StringVar(&opts.decision.Reason, "reason", "", "`TEXT` that is recorded with the decision")
	return cmd
}

func runApprovalDecide(ctx context.Context, opts *approvalDecideOptions) error {
	c, err := opts.f.client(ctx)
	if err != nil {
		return err
	}
	a, err := opts.verdict.decide(c, ctx, opts.id, opts.decision)
	if err != nil {
		return err
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, a)
	}
	s := opts.f.screen()
	fmt.Fprintf(opts.f.out, "%s %s: %s\n", s.paint(statusStyle(a.Status), a.Status), oneLine(a.ID),
		joined(oneLine(a.Target), label("decided by", oneLine(a.DecidedBy)), oneLine(a.Rationale)))
	fmt.Fprintln(opts.f.out, s.paint(faint, "see it go on: tine exec watch "+s.id(a.ExecutionID)))
	return nil
}
