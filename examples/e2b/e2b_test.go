package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/e2b/agent"
	"github.com/tinerun/tine/internal/testserver"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/policy/policytest"
)

func TestMain(m *testing.M) {
	if queue := os.Getenv(workerEnv); queue != "" {
		if err := work(queue); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testserver.Main(m))
}

// setup makes a place on the test server, without a worker.
func setup(t *testing.T) *place {
	t.Helper()
	w, err := newWorld()
	require.NoError(t, err)
	t.Cleanup(w.close)
	p := &place{logged: &record{}, world: w}
	p.temporal, err = client.Dial(client.Options{HostPort: testserver.Address(t), Logger: log.NewStructuredLogger(p.logger())})
	require.NoError(t, err)
	p.closers = append(p.closers, p.temporal.Close)
	t.Cleanup(p.close)
	p.connect(client.Options{})
	return p
}

// logger writes all to the place's record.
func (p *place) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(p.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// setupServed makes one with a worker in this process.
func setupServed(t *testing.T) *place {
	t.Helper()
	p := setup(t)
	settings, err := agent.NewSettings(p.world.getenv)
	require.NoError(t, err)
	require.NoError(t, p.serve(t.Context(), client.Options{}, p.logger(), settings, agent.Scripted{}))
	return p
}

// TestDemonstration runs what --local does.
func TestDemonstration(t *testing.T) {
	t.Setenv("TEMPORAL_ADDRESS", testserver.Address(t))
	for _, variable := range modelVariables {
		t.Setenv(variable, "")
	}
	var out bytes.Buffer
	p, _, err := prepare(t.Context(), true, &out)
	require.NoError(t, err)
	defer p.close()
	s, err := demonstrate(t.Context(), p, &out)
	require.NoError(t, err, "%s", &out)
	require.Equal(t, []int{1, 1, 1}, s.pulls, "exactly one pull request, from the first turn on")

	first := s.first
	require.Len(t, first.approvals, 1)
	require.Equal(t, tine.ApprovalGranted, first.approvals[0].Status)
	require.Equal(t, []string{"paused"}, first.resting, "the emulator has it paused while a person thinks")
	types := typesOf(first.log)
	asked := slices.Index(types, "approval.requested")
	paused := asked + slices.Index(types[asked:], "resource.paused")
	require.Greater(t, paused, asked)
	require.Greater(t, slices.Index(types, "approval.granted"), paused)
	require.Equal(t, first.Session, first.output.Session)
	require.Equal(t, agent.BranchOf(first.Session), first.output.Branch)
	require.Equal(t, p.world.hub.URL()+"/acme/slug/pull/1", first.output.PullRequest)

	second := s.second
	require.Equal(t, first.ID, second.ParentExecutionID)
	require.Equal(t, first.sandbox, second.sandbox)
	require.Equal(t, first.output.Branch, second.output.Branch)
	require.Equal(t, first.output.PullRequest, second.output.PullRequest)
	require.NotContains(t, targets(second.log), agent.Checkout.Name(), "the clone is there already")
	require.NotContains(t, targets(second.log), agent.OpenPR.Name())
	require.Contains(t, string(firstArgs(second.log, agent.Model.Name())), agent.FixTask, "the model knows of the first turn")
	commits, err := p.world.hub.Log(first.output.Branch)
	require.NoError(t, err)
	require.Equal(t, []string{"Test a title of punctuation only", "Join words with single hyphens"}, commits)
	pulls := p.world.hub.Pulls()
	require.Len(t, pulls, 1)
	require.Equal(t, first.output.Branch, pulls[0].Branch)

	fork := s.fork
	require.NotEqual(t, first.Session, fork.Session)
	require.NotEqual(t, first.sandbox, fork.sandbox)
	require.Nil(t, fork.Divergence)
	require.True(t, fork.Restoration[agent.Sandbox.Key()].Covered, "its sandbox is as the source's was")
	require.NotEmpty(t, fork.Restoration[agent.Sandbox.Key()].CheckpointRef)
	require.Equal(t, agent.BranchOf(fork.Session), fork.output.Branch)
	require.Empty(t, fork.output.PullRequest)
	require.Equal(t, tine.ApprovalDenied, fork.approvals[0].Status)
	require.Contains(t, fork.output.Answer, "no pull request")
	commits, err = p.world.hub.Log(fork.output.Branch)
	require.NoError(t, err)
	require.Equal(t, []string{"Join words with single hyphens"}, commits)
	ours, err := p.world.hub.File(fork.output.Branch, "slug.sh")
	require.NoError(t, err)
	theirs, err := p.world.hub.File(first.output.Branch, "slug.sh")
	require.NoError(t, err)
	require.NotEqual(t, theirs, ours, "each mended it in its own way")

	sandboxes := p.world.emulator.Sandboxes()
	require.Len(t, sandboxes, 2)
	for _, sandbox := range sandboxes {
		require.Equal(t, "paused", sandbox.State)
	}

	require.Empty(t, s.secrets.found)
	require.Greater(t, s.secrets.historyEvents, 100)
	require.Greater(t, s.secrets.files, 50)
	require.Positive(t, s.secrets.logBytes)
	known, err := p.searchFor(t.Context(), "Join words with", first, second, fork)
	require.NoError(t, err)
	found := strings.Join(known.found, "\n")
	require.Contains(t, found, "history event", "the search finds what is there")
	require.Contains(t, found, "event ")
	require.Contains(t, found, string(os.PathSeparator), "in files, too")
	require.Zero(t, p.world.hub.Refused())
	require.NotContains(t, out.String(), p.world.token)
}

func typesOf(log *tine.Log) []string {
	var types []string
	for _, e := range log.Events() {
		types = append(types, e.Type)
	}
	return types
}

func targets(log *tine.Log) []string {
	var all []string
	for _, step := range log.Steps() {
		all = append(all, step.Target)
	}
	return all
}

func firstArgs(log *tine.Log, target string) []byte {
	for _, step := range log.Steps() {
		if step.Target == target {
			return step.Args
		}
	}
	return nil
}

// TestErrorsHaveNoToken has requests refused whose credentials are wrong.
func TestErrorsHaveNoToken(t *testing.T) {
	t.Parallel()
	p := setup(t)
	wrong := "ghp_" + strings.Repeat("0", 40)
	settings, err := agent.NewSettings(func(variable string) string {
		if variable == "GITHUB_TOKEN" {
			return wrong
		}
		return p.world.getenv(variable)
	})
	require.NoError(t, err)
	require.NoError(t, p.serve(t.Context(), client.Options{}, p.logger(), settings, agent.Scripted{}))
	f, err := p.turn(t.Context(), "", agent.FixTask, io.Discard)
	require.ErrorContains(t, err, "checkout: git: exit code 128")
	f.output.Session = "none"
	searched, err := p.searchFor(t.Context(), wrong, f)
	require.Empty(t, searched.found)
	require.Positive(t, p.world.hub.Refused())
	require.ErrorContains(t, err, "none", "there is no such session")
}

func TestHubWantsTheToken(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for _, url := range []string{
		p.world.hub.URL() + "/acme/slug.git/info/refs?service=git-upload-pack",
		p.world.hub.APIURL() + "/repos/acme/slug/pulls",
	} {
		response, err := http.Get(url)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	}
	require.Equal(t, 2, p.world.hub.Refused())
}

func TestFormsOf(t *testing.T) {
	t.Parallel()
	const secret = "ghp_0123456789abcdef"
	for before := range 5 {
		for after := range 4 {
			text := strings.Repeat("x", before) + secret + strings.Repeat("y", after)
			for _, encoded := range []string{text, base64.StdEncoding.EncodeToString([]byte(text))} {
				require.True(t, slices.ContainsFunc(formsOf(secret), func(form []byte) bool {
					return bytes.Contains([]byte(encoded), form)
				}), "%d bytes before, %d after", before, after)
			}
		}
	}
	for _, form := range formsOf(secret) {
		require.Greater(t, len(form), len(secret)-2, "it is long enough to mean something")
	}
}

var modelVariables = []string{"LLM_BASE_URL", "LLM_API_KEY", "LLM_MODEL", "ANTHROPIC_API_KEY", "ANTHROPIC_MODEL"}

func TestMissingVariables(t *testing.T) {
	for _, variable := range append([]string{"E2B_API_KEY", "REPO", "GITHUB_TOKEN"}, modelVariables...) {
		t.Setenv(variable, "")
	}
	err := run(t.Context(), nil, io.Discard, io.Discard)
	for _, say := range []string{"E2B_API_KEY is not set", "REPO is not set", "GITHUB_TOKEN is not set", "LLM_BASE_URL", "--local"} {
		require.ErrorContains(t, err, say)
	}
	t.Setenv("E2B_API_KEY", "e2b_00")
	t.Setenv("REPO", "https://github.com/a/b")
	err = run(t.Context(), nil, io.Discard, io.Discard)
	require.NotContains(t, err.Error(), "E2B_API_KEY is not set")
	require.ErrorContains(t, err, `REPO is "https://github.com/a/b"; it has the form owner/name`)
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	bundle, err := policy.Compile(t.Context(), []policy.Source{{Name: "policy.yaml", Data: policyYAML}}, policy.Options{})
	require.NoError(t, err)
	cases, err := policytest.ReadFile("policy.policytest.yaml")
	require.NoError(t, err)
	report, err := policytest.Run(context.Background(), bundle, cases)
	require.NoError(t, err)
	require.Zero(t, report.Failed, "%+v", report)
	require.Empty(t, report.UnreachedRules)
}
