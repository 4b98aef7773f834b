package cli

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	tine "github.com/tinerun/tine"
)

// parse gives the options that a command makes of arguments.
func parse[O any](newCmd func(*factory, func(context.Context, *O) error) *cobra.Command, args ...string) (*O, error) {
	f := newFactory(strings.NewReader(""), io.Discard, io.Discard)
	var parsed *O
	root := &cobra.Command{Use: "tine", SilenceErrors: true, SilenceUsage: true}
	addConnectionFlags(root, f)
	cmd := newCmd(f, func(_ context.Context, opts *O) error {
		parsed = opts
		return nil
	})
	root.AddCommand(cmd)
	root.SetArgs(append([]string{cmd.Name()}, args...))
	return parsed, root.Execute()
}

// checkFlags compares what commands make of arguments, by way of show.
func checkFlags[O, S any](t *testing.T, newCmd func(*factory, func(context.Context, *O) error) *cobra.Command, show func(*O) S, cases map[string]S) {
	t.Helper()
	for args, want := range cases {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			opts, err := parse(newCmd, strings.Fields(args)...)
			require.NoError(t, err)
			if diff := cmp.Diff(want, show(opts)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCreateFlags(t *testing.T) {
	t.Parallel()
	type shown struct {
		Agent, Input, ID, Session, Parent, TaskQueue string
		Wait                                         bool
	}
	checkFlags(t, newCreateCmd, func(o *createOptions) shown {
		return shown{o.agent, o.input, o.id, o.session, o.parent, o.f.taskQueue, o.wait}
	}, map[string]shown{
		"coder":         {Agent: "coder", Input: "{}", TaskQueue: "tine"},
		`coder {"a":1}`: {Agent: "coder", Input: `{"a":1}`, TaskQueue: "tine"},
		"coder - --id x --session s --parent p --task-queue q --wait": {Agent: "coder", Input: "-", ID: "x", Session: "s", Parent: "p", TaskQueue: "q", Wait: true},
	})
}

func TestLsFlags(t *testing.T) {
	t.Parallel()
	checkFlags(t, newLsCmd, func(o *lsOptions) tine.ListOptions { return o.list }, map[string]tine.ListOptions{
		"": {Limit: 50},
		"--agent a --status failed --session s --forked-from f --limit 7": {Agent: "a", Status: "failed", Session: "s", ForkedFrom: "f", Limit: 7},
	})
}

func TestSessionFlags(t *testing.T) {
	t.Parallel()
	type shown struct {
		Session string
		Limit   int
	}
	show := func(o *sessionOptions) shown { return shown{o.session, o.limit} }
	checkFlags(t, newSessionLsCmd, show, map[string]shown{"": {"", 50}, "--limit 7": {"", 7}})
	checkFlags(t, newSessionGetCmd, show, map[string]shown{"s": {"s", 50}, "s --limit 7": {"s", 7}})
	for _, args := range []string{"session ls --limit 0", "session ls s", "session get", "session get s --limit -1"} {
		h := newHarness(nil, 0)
		require.Equal(t, exitUsage, h.run(t.Context(), strings.Fields(args)...), args)
	}
}

func TestEventsFlags(t *testing.T) {
	t.Parallel()
	type shown struct {
		ID       string
		AfterSeq int64
		Limit    int
		Follow   bool
	}
	checkFlags(t, newEventsCmd, func(o *eventsOptions) shown {
		return shown{o.id, o.afterSeq, o.limit, o.follow}
	}, map[string]shown{
		"x":                                   {ID: "x"},
		"x --after-seq 12 --limit 3 --follow": {"x", 12, 3, true},
	})
}

func TestStepsFlags(t *testing.T) {
	t.Parallel()
	checkFlags(t, newStepsCmd, func(o *stepsOptions) [3]string {
		return [3]string{o.id, o.status.value, o.kind.value}
	}, map[string][3]string{
		"x": {"x", "", ""},
		"x --status awaiting_approval --kind llm_call": {"x", "awaiting_approval", "llm_call"},
	})
}

func TestForkFlags(t *testing.T) {
	t.Parallel()
	type shown struct {
		Source                 string
		AtSeq                  int64
		ID, Session, TaskQueue string
		Input                  *string
		Policy                 []string
		Effects                string
		Wait                   bool
	}
	input, none := `{"a":1}`, ""
	checkFlags(t, newForkCmd, func(o *forkOptions) shown {
		return shown{o.source, o.atSeq, o.id, o.session, o.taskQueue, o.input, o.policy.paths, o.effects.value, o.wait}
	}, map[string]shown{
		"x --at 39":          {Source: "x", AtSeq: 39, Effects: "guard"},
		"x --at 39 --input=": {Source: "x", AtSeq: 39, Input: &none, Effects: "guard"},
		`x --at 39 --id y --session s --task-queue q --wait --input {"a":1} --policy a.yaml --policy a.rego --effects policy`: {
			"x", 39, "y", "s", "q", &input, []string{"a.yaml", "a.rego"}, "policy", true,
		},
	})
}

func TestIDArguments(t *testing.T) {
	t.Parallel()
	checkFlags(t, newGetCmd, func(o *getOptions) string { return o.id }, map[string]string{"x": "x"})
	checkFlags(t, newWatchCmd, func(o *watchOptions) string { return o.id }, map[string]string{"x": "x"})
	checkFlags(t, newCancelCmd, func(o *cancelOptions) string { return o.id }, map[string]string{"x": "x"})
	checkFlags(t, newApprovalGetCmd, func(o *approvalGetOptions) string { return o.id }, map[string]string{"x": "x"})
	checkFlags(t, newForkPointsCmd, func(o *forkPointsOptions) string { return o.id }, map[string]string{"x": "x"})
}

func TestVersionTakesNoArguments(t *testing.T) {
	t.Parallel()
	_, err := parse(newVersionCmd, "x")
	require.ErrorContains(t, err, `unexpected argument "x"`)
}
