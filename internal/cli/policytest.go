package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tinerun/tine/policy/policytest"
)

type policyTestOptions struct {
	f *factory
	policyFiles
	cases string // empty means the file beside the policy
	junit string

	execution string
	since     timeSpan
	agent     string
	limit     int
}

// defaultReplayed is how many executions are read unless --limit says otherwise. Each is
// read in full.
const defaultReplayed = 100

func newPolicyTestCmd(f *factory, runF func(context.Context, *policyTestOptions) error) *cobra.Command {
	opts := &policyTestOptions{f: f}
	cmd := &cobra.Command{
		Use:   "test FILE...",
		Short: "Test a policy with cases, or with the steps of past executions",
		Long: `Decides the cases of a file and compares with what they expect. The cases of
shell.yaml stand beside it in shell.policytest.yaml. The command also lists the
rules that no case reached. It exits with 1 if a case fails or there are none.

With --execution, or --since and --agent, it decides the recorded steps of past
executions instead, and lists those that the policy would have decided otherwise
than was first decided then. Another rule with the same decision is no
difference. Left out are steps that a fork has copied, what a fork's own policy
decided, and decisions that no policy took: those of a fork's guard, of limits
that were used up, and of policies that failed. The command exits with 1 if there
are differences, so that it can gate a change, and no step runs again.`,
		Example: `  tine policy test shell.yaml
  tine policy test shell.yaml --cases more.policytest.yaml --junit report.xml
  tine policy test shell.yaml --execution YourExecutionId
  tine policy test policies/ --since 7d --agent YourAgent -o json | jq .differences`,
		Args: files,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.paths = args
			if err := opts.check(cmd); err != nil {
				return err
			}
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runPolicyTest(cmd.Context(), opts)
		},
	}
	cmd.Flags().StringVar(&opts.cases, "cases", "", "case `FILE`; the one beside the policy by default")
	cmd.Flags().StringVar(&opts.junit, "junit", "", "`FILE` to write a JUnit report to, for CI servers")
	cmd.Flags().StringVar(&opts.execution, "execution", "", "`ID` of an execution whose steps to decide")
	cmd.Flags().Var(&opts.since, "since", "decide the steps of executions created in the last\n`DURATION`, such as 12h or 7d")
	cmd.Flags().StringVar(&opts.agent, "agent", "", "with --since: `AGENT` of the executions")
	cmd.Flags().IntVar(&opts.limit, "limit", defaultReplayed, "with --since: at most the newest `N` executions")
	opts.addFlags(cmd)
	return cmd
}

// check says which flags do not go together.
func (o *policyTestOptions) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	switch {
	case given("execution") && given("since"):
		return usagef("--execution and --since do not go together")
	case given("execution") && o.execution == "":
		return usagef("--execution must not be empty")
	case o.replays() && given("cases"):
		return usagef("--cases is for tests by cases, not with --execution or --since")
	case o.replays() && given("junit"):
		return usagef("--junit is for tests by cases, not with --execution or --since")
	case given("since") && o.agent == "":
		return usagef("--since needs --agent AGENT: whose executions to read")
	case !given("since") && (given("agent") || given("limit")):
		return usagef("--agent and --limit need --since DURATION")
	case o.limit < 1:
		return usagef("--limit must be at least 1")
	default:
		return nil
	}
}

// replays says that the policy is to decide past executions.
func (o *policyTestOptions) replays() bool { return o.execution != "" || o.since > 0 }

// policyTestDocument is the JSON of a policy's tests.
type policyTestDocument struct {
	// Name is the agent's, in a directory.
	Name string `json:"name,omitempty"`
	policytest.Report
}

func runPolicyTest(ctx context.Context, opts *policyTestOptions) error {
	loaded, err := opts.load(ctx)
	if err != nil {
		return policyFailure(opts.f, err)
	}
	if opts.replays() {
		return policyFailure(opts.f, runPolicyReplay(ctx, opts, loaded))
	}
	if opts.cases != "" && len(loaded.all) > 1 {
		return usagef("--cases is for one policy; the directory holds %d", len(loaded.all))
	}
	var tested []policyTestDocument
	var suites []policytest.Suite
	for _, p := range loaded.all {
		report, err := opts.test(ctx, p)
		if err != nil {
			return policyFailure(opts.f, err)
		}
		tested = append(tested, policyTestDocument{p.name, report})
		suites = append(suites, policytest.Suite{Name: p.String(), Report: report})
	}
	if opts.junit != "" {
		if err := writeJUnit(opts.junit, suites); err != nil {
			return err
		}
	}
	if opts.f.json() {
		if err := documents(opts.f, loaded, tested); err != nil {
			return err
		}
	} else {
		printTests(opts.f, suites, loaded.directory != "")
	}
	return failedCases(opts.f, suites)
}

func (o *policyTestOptions) test(ctx context.Context, p agentPolicy) (policytest.Report, error) {
	path := o.cases
	if path == "" {
		path = policytest.Beside(p.paths[0])
	}
	cases, err := policytest.ReadFile(path)
	var invalid *policytest.FileError
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.cases == "":
		return policytest.Report{}, &fileError{
			"no_cases", fmt.Sprintf("there are no cases: no file %s beside %s", filepath.Base(path), p),
			"write it, or name another with --cases FILE",
		}
	case err != nil && !errors.As(err, &invalid):
		return policytest.Report{}, unreadable("case file", path, err, "")
	case err != nil:
		return policytest.Report{}, err
	}
	return policytest.Run(ctx, p.bundle, cases)
}

func writeJUnit(path string, suites []policytest.Suite) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("JUnit report: %w", err)
	}
	if err := policytest.WriteJUnit(file, suites...); err != nil {
		_ = file.Close()
		return fmt.Errorf("JUnit report: %w", err)
	}
	return file.Close()
}

func failedCases(f *factory, suites []policytest.Suite) error {
	failed, all := 0, 0
	for _, s := range suites {
		failed, all = failed+s.Failed, all+len(s.Cases)
	}
	if failed == 0 {
		return nil
	}
	return failWith(f, "policy_test_failed", fmt.Sprintf("%d of %s failed", failed, count(int64(all), "case", "cases")), "")
}

func printTests(f *factory, suites []policytest.Suite, named bool) {
	for i, s := range suites {
		if named {
			if i > 0 {
				fmt.Fprintln(f.out)
			}
			fmt.Fprintf(f.out, "%s\n", s.Name)
		}
		printReport(f, s.Report)
	}
}

func printReport(f *factory, report policytest.Report) {
	t := table{screen: f.screen(), columns: []column{
		{title: "RESULT"}, {title: "CASE", shrinks: true}, {title: "DECISION"}, {title: "RULE"},
	}}
	for _, r := range report.Cases {
		result := cell{"ok", green}
		if !r.OK {
			result = cell{"FAIL", red}
		}
		row := t.add(result, text(oneLine(r.Name)), text(r.Decision), text(oneLine(r.RuleID)))
		switch {
		case r.OK:
		case r.Reason == "":
			row.below = cell{oneLine(r.Message), red}
		default:
			row.below = cell{oneLine(fmt.Sprintf("%s (%s)", r.Message, r.Reason)), red}
		}
	}
	t.write(f.out)
	if len(report.UnreachedRules) > 0 {
		fmt.Fprintf(f.out, "rules that no case reached: %s\n", oneLine(strings.Join(report.UnreachedRules, ", ")))
	}
	fmt.Fprintf(f.out, "%d passed, %d failed\n", report.Passed, report.Failed)
}
