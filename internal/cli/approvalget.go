package cli

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

type approvalGetOptions struct {
	f  *factory
	id string
}

func newApprovalGetCmd(f *factory, runF func(context.Context, *approvalGetOptions) error) *cobra.Command {
	opts := &approvalGetOptions{f: f}
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show an approval",
		Long: `Shows what an approval is for, with all arguments of the step, who may decide it, and
who did. A decision is bound to what is shown here: the step, the hash of its
arguments and the policy's digest.`,
		Example:           `  tine approval get YourApprovalId`,
		Args:              arguments([]string{"ID"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.id = args[0]
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runApprovalGet(cmd.Context(), opts)
		},
	}
}

func runApprovalGet(ctx context.Context, opts *approvalGetOptions) error {
	c, err := opts.f.client(ctx)
	if err != nil {
		return err
	}
	a, err := c.Approval(ctx, opts.id)
	if err != nil {
		return err
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, a)
	}
	printApproval(opts.f, a)
	return nil
}

func printApproval(f *factory, a *tine.Approval) {
	p := page{w: f.out, screen: f.screen(), now: f.now()}
	p.fact("Approval", oneLine(a.ID))
	p.fact("Status", p.screen.paint(statusStyle(a.Status), a.Status))
	p.fact("Execution", oneLine(a.ExecutionID))
	p.fact("Agent", oneLine(a.AgentID))
	p.fact("Step", fmt.Sprintf("%s %s, %s", a.StepKind, oneLine(a.Target), a.StepID))
	p.fact("Rule", joined(oneLine(a.RuleID), oneLine(a.Reason)))
	p.fact("Policy", oneLine(a.PolicyDigest))
	p.fact("Arguments", "hash "+a.ArgsHash)
	who := "anyone may decide"
	if len(a.Approvers) > 0 {
		who = oneLine(strings.Join(a.Approvers, ", "))
	}
	p.fact("Approvers", who)
	p.fact("Requested", p.when(a.RequestedAt))
	if a.Status == tine.ApprovalPending {
		p.fact("Expires", fmt.Sprintf("%s (%s)", full(p.now, a.ExpiresAt), expiry(p.now, a.ExpiresAt)))
	}
	if a.DecidedAt != nil {
		p.fact("Decided", joined(p.when(*a.DecidedAt), label("by", oneLine(a.DecidedBy)),
			label("connected as", oneLine(a.Identity)), label("authenticated as", oneLine(a.Principal))))
	}
	p.fact("Rationale", oneLine(a.Rationale))
	p.prose("Message", plain, a.Message)
	p.valueUpTo(math.MaxInt, "Args", a.Args) // nobody should approve what they could not read
	p.heading("Next")
	if a.Status == tine.ApprovalPending {
		for _, command := range deciding(p.screen, a)[1:] {
			fmt.Fprintln(p.w, indent+command)
		}
		return
	}
	fmt.Fprintf(p.w, "%stine exec get %s\n", indent, p.screen.id(a.ExecutionID))
}
