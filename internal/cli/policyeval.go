package cli

import (
	"context"
	"fmt"
	"strings"

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
		Long: `Shows what a policy decides of one step, the rule that decides it, and the
reason. The exit code is 0 whatever is decided. Rate limits and budgets are not
applied: they depend on what else an execution does.`,
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
	decision, err := loaded.engine.Decide(ctx, in)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil { // as in a worker
		decision = policy.Decision{Decision: policy.Deny, RuleID: protocol.RuleBundleError, Reason: err.Error()}
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, decision)
	}
	fmt.Fprintln(opts.f.out, strings.TrimSpace(strings.Join([]string{decision.Decision, decision.RuleID, oneLine(decision.Reason)}, " ")))
	return nil
}
