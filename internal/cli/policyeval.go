package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

type policyEvalOptions struct {
	f *factory
	policyFiles
	target string
	kind   choice
	agent  string
	args   string // as given: JSON, "-" or "@file"; empty means none
}

func newPolicyEvalCmd(f *factory, runF func(context.Context, *policyEvalOptions) error) *cobra.Command {
	opts := &policyEvalOptions{f: f, kind: choice{
		name: "KIND", value: protocol.KindTool,
		allowed: []string{protocol.KindTool, protocol.KindLLM, protocol.KindLocal},
	}}
	cmd := &cobra.Command{
		Use:   "eval FILE... --target TARGET",
		Short: "Show what a policy decides of one step",
		Long: `Shows what a policy decides of one step, the rule that decides it, the reason, and
who may approve and what limits there are. The exit code is 0 whatever is decided.
Rate limits and budgets are not applied: they depend on what else an execution does.`,
		Example: `  tine policy eval shell.yaml --target shell --args '{"command":"go test ./..."}'
  tine policy eval spend.yaml --kind llm_call --target YourModel --agent YourAgent
  tine policy eval policies/ --agent YourAgent --target open_pr -o json | jq .approval`,
		Args: files,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.paths = args
			if opts.target == "" {
				return usagef("--target TARGET is missing: the tool, model or local step to decide")
			}
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runPolicyEval(cmd.Context(), opts)
		},
	}
	cmd.Flags().StringVar(&opts.target, "target", "", "`TARGET` of the step: the name of a tool, model or local step")
	addChoice(cmd, &opts.kind, "kind", "tool_call, llm_call or local")
	cmd.Flags().StringVar(&opts.agent, "agent", "", "`AGENT` that takes the step")
	cmd.Flags().StringVar(&opts.args, "args", "", "arguments of the step as `JSON`; - for stdin, @FILE")
	opts.addFlags(cmd)
	return cmd
}

func runPolicyEval(ctx context.Context, opts *policyEvalOptions) error {
	in := policy.Input{
		AgentID: opts.agent, StepKind: opts.kind.value, Target: opts.target,
		Idempotency: protocol.SafeToRetry, Time: opts.f.now().UTC(),
	}
	if opts.args != "" {
		args, err := readJSON("--args", opts.args, opts.f.in)
		if err != nil {
			return err
		}
		in.Arguments = args
	}
	loaded, err := opts.load(ctx)
	if err != nil {
		return policyFailure(opts.f, err)
	}
	unrestricted := loaded.unrestricted(in.AgentID)
	if unrestricted && in.AgentID == "" {
		return usagef("--agent AGENT is missing: %s has no default policy, only %s", loaded.directory, loaded.owners())
	}
	decision, err := loaded.engine.Decide(ctx, in)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil { // as in a worker
		decision = policy.Decision{Decision: policy.Deny, RuleID: protocol.RuleBundleError, Reason: err.Error()}
	}
	switch {
	case opts.f.json():
		return writeDocument(opts.f.out, evalDocument{decision, unrestricted})
	case unrestricted:
		fmt.Fprintf(opts.f.out, "agent %q has no policy in %s: all its steps are allowed, or denied by a worker that requires a policy\n",
			in.AgentID, loaded.directory)
	default:
		printDecision(opts.f, decision)
	}
	return nil
}

// evalDocument is the JSON of a decision.
type evalDocument struct {
	policy.Decision
	// Unrestricted says that no policy is for the agent, so that none has decided.
	Unrestricted bool `json:"unrestricted,omitempty"`
}

// owners names the agents that have policies.
func (l *loadedPolicies) owners() string {
	var names []string
	for _, p := range l.all {
		names = append(names, p.name)
	}
	if len(names) == 1 {
		return "that of " + names[0]
	}
	return "those of " + strings.Join(names, ", ")
}

func printDecision(f *factory, d policy.Decision) {
	fmt.Fprintln(f.out, strings.TrimSpace(strings.Join([]string{d.Decision, d.RuleID, oneLine(d.Reason)}, " ")))
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(f.out, "%s%s  %s\n", indent, f.screen().paint(faint, fmt.Sprintf("%-10s", name)), value)
		}
	}
	if d.Approval != nil {
		fact("Approvers", oneLine(strings.Join(d.Approval.Approvers, ", ")))
		fact("Timeout", brief(d.Approval.Timeout))
		fact("Message", oneLine(d.Approval.Message))
	}
	parts := d.Split()
	for _, part := range parts {
		by, approvers := "", ""
		if len(parts) > 1 {
			by = fmt.Sprintf(" (rule %s)", oneLine(part.RuleID))
			approvers = approversOverBudget(part)
		}
		if limit := rateLimit(part.RateLimit); limit != "" {
			fact("Rate limit", limit+by)
		}
		if spend := budget(part); spend != "" {
			fact("Budget", spend+approvers+by)
		}
	}
}

// brief is a duration as people write it in a policy.
func brief(d policy.Duration) string {
	if d == 0 {
		return ""
	}
	text := time.Duration(d).String()
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = short + "m"
	}
	if short, ok := strings.CutSuffix(text, "h0m"); ok {
		text = short + "h"
	}
	return text
}

func rateLimit(l *policy.RateLimit) string {
	if l.Unlimited() {
		return ""
	}
	whose := "each " + cmp.Or(l.PerWhat, protocol.PerExecution)
	if l.PerWhat == protocol.PerGlobal {
		whose = "all agents together"
	}
	limit := fmt.Sprintf("%s in %s for %s", count(l.MaxCalls, "call", "calls"), brief(l.Window), whose)
	if l.MaxWait > 0 {
		limit += ", waiting up to " + brief(l.MaxWait)
	}
	if l.OnLimiterError == policy.Deny {
		limit += "; denied if the limiter cannot be reached"
	}
	return limit
}

// approversOverBudget are those of a part: the whole decision may not have any.
func approversOverBudget(d policy.Decision) string {
	if d.Budget == nil || d.Budget.OnExceed != policy.RequireApproval || d.Approval == nil || len(d.Approval.Approvers) == 0 {
		return ""
	}
	return " of " + oneLine(strings.Join(d.Approval.Approvers, ", "))
}

func budget(d policy.Decision) string {
	b := d.Budget
	if b == nil || d.Decision == policy.Deny {
		return ""
	}
	return fmt.Sprintf("%s of the %s, then %s", count(b.MaxTokens, "token", "tokens"),
		cmp.Or(b.Scope, protocol.PerExecution), cmp.Or(b.OnExceed, policy.Deny))
}
