package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

func newApprovalCmd(f *factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approval",
		Short: "Decide steps that wait for a person",
		Long: `Where a policy requires approval, the step waits and its execution is blocked until
somebody grants or denies it, or until the approval expires. These commands list
what waits, and decide it.

An approval's ID is that of its execution, a slash, and the beginning of the step's.
The beginning of an ID will do while it is the only one of its kind.`,
		Example: `  tine approval ls
  tine approval grant YourApprovalId --reason "looked at the diff"`,
		Args: cobra.ArbitraryArgs, RunE: group, SuggestionsMinimumDistance: nearEnough,
	}
	cmd.AddCommand(
		newApprovalLsCmd(f, nil), newApprovalGetCmd(f, nil),
		newApprovalDecideCmd(f, granting, nil), newApprovalDecideCmd(f, denying, nil),
	)
	return cmd
}

type approvalLsOptions struct {
	f      *factory
	status choice
	list   tine.ApprovalOptions
}

func newApprovalLsCmd(f *factory, runF func(context.Context, *approvalLsOptions) error) *cobra.Command {
	opts := &approvalLsOptions{f: f, status: choice{name: "STATUS", allowed: []string{
		tine.ApprovalPending, tine.ApprovalGranted, tine.ApprovalDenied, tine.ApprovalExpired,
	}}}
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List approvals that are pending",
		Long: `Lists the pending approvals of all executions, those that expire first before others.
No worker need run. They come from Temporal's visibility store, which may lag behind
by a second or so. With --execution it lists all approvals of one, from its log.`,
		Example: `  tine approval ls --agent YourAgent
  tine approval ls --execution YourExecutionId --status denied
  tine approval ls -o json | jq -r '.[].id'`,
		Args:              arguments(nil),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.list.Limit < 0 {
				return usagef("--limit must not be negative")
			}
			opts.list.Status = opts.status.value
			if opts.list.Execution == "" && opts.list.Status != "" && opts.list.Status != tine.ApprovalPending {
				return usagef("--status %s needs --execution: only pending approvals are listed over all executions", opts.list.Status)
			}
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runApprovalLs(cmd.Context(), opts)
		},
	}
	cmd.Flags().StringVar(&opts.list.Execution, "execution", "", "all those of the execution with `ID`")
	cmd.Flags().StringVar(&opts.list.Agent, "agent", "", "only those of `AGENT`")
	addChoice(cmd, &opts.status, "status", "only those that are pending, granted, denied or expired")
	cmd.Flags().IntVar(&opts.list.Limit, "limit", 0, "at most `N`; 0 lists all")
	return cmd
}

func runApprovalLs(ctx context.Context, opts *approvalLsOptions) error {
	c, err := opts.f.client(ctx)
	if err != nil {
		return err
	}
	if opts.list.Execution != "" {
		if opts.list.Execution, err = c.Resolve(ctx, opts.list.Execution); err != nil {
			return err
		}
	}
	found, err := c.Approvals(ctx, opts.list)
	if err != nil {
		return err
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, append([]*tine.Approval{}, found...))
	}
	if len(found) == 0 {
		fmt.Fprintln(opts.f.out, "no approvals")
		return nil
	}
	t := approvalTable(opts.f, found)
	t.write(opts.f.out)
	return nil
}

// approvalID is how an approval's id is shown. Like an execution's it is short on a terminal.
func (s screen) approvalID(a *tine.Approval) string {
	return s.id(a.ExecutionID) + oneLine(strings.TrimPrefix(a.ID, a.ExecutionID))
}

func approvalTable(f *factory, approvals []*tine.Approval) *table {
	t := &table{screen: f.screen(), columns: []column{
		{title: "ID"}, {title: "AGENT", shrinks: true}, {title: "TARGET", shrinks: true}, {title: "STATUS"}, {title: "RULE", shrinks: true}, {title: "EXPIRES"}, {title: "WHO"},
	}}
	for _, a := range approvals {
		who, expires := "anyone", ""
		if len(a.Approvers) > 0 {
			who = strings.Join(a.Approvers, ", ")
		}
		if a.Status == tine.ApprovalPending {
			expires = expiry(f.now(), a.ExpiresAt)
		} else {
			who = a.DecidedBy
		}
		row := t.add(text(t.screen.approvalID(a)), text(oneLine(a.AgentID)), text(oneLine(a.Target)),
			cell{a.Status, statusStyle(a.Status)}, text(oneLine(a.RuleID)), text(expires), text(oneLine(who)))
		row.below = cell{compact(a.Args), faint}
	}
	return t
}

// expiry says how long an approval is open for.
func expiry(now, at time.Time) string {
	if left := at.Sub(now); left > 0 {
		return "in " + span(left)
	}
	return "expired"
}
