package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tinerun/tine/policy"
)

type policyCheckOptions struct {
	f *factory
	policyFiles
}

func newPolicyCheckCmd(f *factory, runF func(context.Context, *policyCheckOptions) error) *cobra.Command {
	opts := &policyCheckOptions{f: f}
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Say whether a policy can be used",
		Long: `Compiles a policy and says how many rules it has and its digest, by which
decisions name it. If it cannot be used, the command lists all that is wrong,
with file and line, and exits with 1. What can be used and is hardly meant, such as
a rule that never matches, is a warning: the command tells it and exits with 0.`,
		Example: `  tine policy check shell.yaml
  tine policy check shell.yaml shell.rego
  tine policy check bundle.tar.gz --verification-key YourKeyId=public.pem
  tine policy check policies/ -o json`,
		Args: files,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.paths = args
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runPolicyCheck(cmd.Context(), opts)
		},
	}
	opts.addFlags(cmd)
	return cmd
}

// policyDocument is the JSON of a policy that can be used.
type policyDocument struct {
	// Name is the agent's, in a directory.
	Name         string   `json:"name,omitempty"`
	Files        []string `json:"files"`
	PolicyDigest string   `json:"policy_digest"`
	// Rules counts those in YAML.
	Rules int `json:"rules"`
	// Warnings are what the policy hardly means.
	Warnings []policy.Problem `json:"warnings"`
}

func runPolicyCheck(ctx context.Context, opts *policyCheckOptions) error {
	loaded, err := opts.load(ctx)
	if err != nil {
		return policyFailure(opts.f, err)
	}
	var checked []policyDocument
	for _, p := range loaded.all {
		checked = append(checked, policyDocument{
			Name: p.name, Files: p.paths, PolicyDigest: p.bundle.Digest(),
			Rules: len(p.bundle.Rules()), Warnings: append([]policy.Problem{}, p.bundle.Warnings()...),
		})
	}
	if opts.f.json() {
		return documents(opts.f, loaded, checked)
	}
	for i, p := range loaded.all {
		fmt.Fprintf(opts.f.out, "%s: valid, %s, %s\n", p, count(int64(checked[i].Rules), "rule", "rules"), checked[i].PolicyDigest)
		for _, warning := range checked[i].Warnings {
			fmt.Fprintf(opts.f.out, "%swarning: %s\n", indent, printable(warning.String()))
		}
	}
	return nil
}
