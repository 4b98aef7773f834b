package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	tine "github.com/tinerun/tine"
)

func TestPolicyCheckFlags(t *testing.T) {
	t.Parallel()
	checkFlags(t, newPolicyCheckCmd, func(o *policyCheckOptions) [2][]string {
		return [2][]string{o.paths, o.keys}
	}, map[string][2][]string{
		"a.yaml": {{"a.yaml"}, nil},
		"a.yaml a.rego --verification-key k=f --verification-key l=g": {{"a.yaml", "a.rego"}, {"k=f", "l=g"}},
	})
}

func TestPolicyEvalFlags(t *testing.T) {
	t.Parallel()
	checkFlags(t, newPolicyEvalCmd, func(o *policyEvalOptions) [5]string {
		return [5]string{strings.Join(o.paths, " "), o.target, o.kind.value, o.agent, o.args}
	}, map[string][5]string{
		"a.yaml --target t": {"a.yaml", "t", "tool_call", "", ""},
		"a.yaml b.rego --target t --kind local --agent a --args @f": {"a.yaml b.rego", "t", "local", "a", "@f"},
	})
}

func TestPolicyTestFlags(t *testing.T) {
	t.Parallel()
	type shown struct {
		Cases, JUnit, Execution, Agent string
		Since                          time.Duration
		Limit                          int
	}
	checkFlags(t, newPolicyTestCmd, func(o *policyTestOptions) shown {
		return shown{o.cases, o.junit, o.execution, o.agent, time.Duration(o.since), o.limit}
	}, map[string]shown{
		"a.yaml":                                {Limit: 100},
		"a.yaml --cases c --junit j":            {Cases: "c", JUnit: "j", Limit: 100},
		"a.yaml --execution x":                  {Execution: "x", Limit: 100},
		"a.yaml --since 90m --agent a":          {Since: 90 * time.Minute, Agent: "a", Limit: 100},
		"a.yaml --since 7d --agent a --limit 3": {Since: 168 * time.Hour, Agent: "a", Limit: 3},
	})
}

// policyFile writes a policy, and the cases beside it if there are any.
func policyFile(t *testing.T, rules, cases string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shell.yaml")
	require.NoError(t, os.WriteFile(path, []byte(rules), 0o644))
	if cases != "" {
		require.NoError(t, os.WriteFile(strings.TrimSuffix(path, ".yaml")+".policytest.yaml", []byte(cases), 0o644))
	}
	return path
}

// strict allows the model and some commands, and has others approved.
const strict = `default_action: deny
rules:
  - id: model
    when: {step_kind: llm_call}
    then: {decision: allow}
  - id: go-commands
    when: {target: shell, arguments: {command: {regex: "^go "}}}
    then: {decision: allow}
  - id: other-commands
    when: {target: shell}
    then: {decision: require_approval, reason: ask first}
`

// approved is an execution in which a person approved a step, and one had no more calls.
func approved() *script {
	s := newScript(sourceID)
	s.start()
	s.succeed(s.step("llm_call", "writer", `{"prompt":"go on"}`), `{}`, time.Second)
	deploy := &tine.Step{
		StepID: "waits", Kind: "tool_call", Target: "deploy", Args: json.RawMessage(`{"region":"eu"}`),
		Status: "executing", Decision: "allow", RuleID: "deploys", Reason: "approval_granted", Attempts: 1,
	}
	s.steps = append(s.steps, deploy)
	deploy.ProposedSeq = s.event("step.proposed", s.about(deploy, nil))
	s.event("step.awaiting_approval", s.about(deploy, map[string]any{"rule_id": "deploys", "reason": "ask"}))
	s.event("step.allowed", s.about(deploy, map[string]any{"rule_id": "deploys", "reason": "approval_granted"}))
	deploy.ExecutingSeq = s.event("step.executing", s.about(deploy, nil))
	s.succeed(deploy, `{}`, time.Second)
	s.deny("tool_call", "web_search", `{}`, "search-rate", "rate_limit_exceeded")
	return s.close(tine.StatusCompleted, "", `{}`)
}

func TestPolicyReplayOutput(t *testing.T) {
	t.Parallel()
	path := policyFile(t, strict, "")
	cases := []struct {
		name   string
		script *script
		width  int
		more   []string
		exit   int
	}{
		{"policy.replay.80.txt", coder(), 80, nil, exitFailed},
		{"policy.replay.piped.txt", coder(), 0, nil, exitFailed},
		{"policy.replay.json", coder(), 0, []string{"-o", "json"}, exitFailed},
		{"policy.replay.approved.80.txt", approved(), 80, nil, exitFailed},
		{"policy.replay.none.txt", newScript(sourceID), 80, nil, exitOK},
		{"policy.replay.none.json", newScript(sourceID), 0, []string{"-o", "json"}, exitOK},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(tc.script.client(), tc.width)
			require.Equal(t, tc.exit, h.run(t.Context(), append([]string{"policy", "test", path, "--execution", sourceID}, tc.more...)...), h.err.String())
			golden(t, tc.name, h.out.String())
			if tc.exit != exitOK && len(tc.more) > 0 {
				require.Contains(t, h.err.String(), `{"error":{"code":"policy_differs","message":"`)
			} else {
				require.Empty(t, h.err.String())
			}
		})
	}
}

// TestPolicyReplayLeavesOutWhatThePolicyDidNotDecide: neither copied steps nor those of a fork's own policy
// were this one's.
func TestPolicyReplayLeavesOutWhatThePolicyDidNotDecide(t *testing.T) {
	t.Parallel()
	path := policyFile(t, strict, "")
	fork := forked()
	h := newHarness(fork.client(), 0)
	require.Equal(t, exitFailed, h.run(t.Context(), "policy", "test", path, "--execution", forkID))
	require.Contains(t, h.out.String(), "1 difference among 1 compared step in 1 execution; left out: 1 copied by a fork\n")

	fork.execution.Policy = &tine.PolicyInfo{Digest: "sha256:1", Source: "fork"}
	h = newHarness(fork.client(), 0)
	require.Equal(t, exitOK, h.run(t.Context(), "policy", "test", path, "--execution", forkID))
	require.Equal(t, "0 differences among 0 compared steps in 1 execution; left out: 1 copied by a fork, 1 decided by a fork's own policy\n", h.out.String())

	h = newHarness(fork.client(), 0)
	require.Equal(t, exitOK, h.run(t.Context(), "policy", "test", path, "--execution", forkID, "-o", "json"))
	require.JSONEq(t, `{"executions":1,"compared":0,"skipped":2,"skipped_by":{"copied":1,"fork_policy":1},"differences":[]}`, h.out.String())
}

func TestPolicyReplayCountsWhatALimitRefused(t *testing.T) {
	t.Parallel()
	s := newScript(sourceID)
	s.start()
	search := &tine.Step{StepID: "few", Kind: "tool_call", Target: "search", Status: "rate_limited", RuleID: "few", Reason: "rate_limit_exceeded"}
	s.steps = append(s.steps, search)
	search.ProposedSeq = s.event("step.proposed", s.about(search, nil))
	s.event("step.rate_limited", s.about(search, map[string]any{"rule_id": "few", "reason": "rate_limit_exceeded"}))
	h := newHarness(s.client(), 0)
	require.Equal(t, exitOK, h.run(t.Context(), "policy", "test", policyFile(t, strict, ""), "--execution", sourceID))
	require.Equal(t, "0 differences among 0 compared steps in 1 execution; left out: 1 refused by a limit\n", h.out.String())
}

func TestPolicyReplayOfManyExecutions(t *testing.T) {
	t.Parallel()
	path := policyFile(t, strict, "")
	old, gone := newScript("old").execution, newScript("gone").execution
	old.CreatedAt = testNow.Add(-48 * time.Hour)
	c := coder().client()
	log := c.log
	c.log = func(id string) (executionLog, error) {
		if id == "gone" {
			return nil, &tine.NotFoundError{ExecutionID: id}
		}
		return log(id)
	}
	var asked tine.ListOptions
	c.list = func(opts tine.ListOptions) ([]*tine.Execution, error) {
		asked = opts
		return []*tine.Execution{gone, coder().execution, old}, nil
	}
	h := newHarness(c, 0)
	require.Equal(t, exitFailed, h.run(t.Context(), "policy", "test", path, "--since", "1d", "--agent", "coder", "--limit", "2"))
	require.Equal(t, tine.ListOptions{Agent: "coder", Limit: 2}, asked)
	require.Contains(t, h.out.String(), "2 differences among 4 compared steps in 1 execution\n")
	require.Contains(t, h.out.String(), "the newest 2; --limit reads more\n")

	h = newHarness(&fake{list: func(tine.ListOptions) ([]*tine.Execution, error) { return []*tine.Execution{old}, nil }}, 0)
	require.Equal(t, exitFailed, h.run(t.Context(), "policy", "test", path, "--since", "24h", "--agent", "coder"))
	require.Equal(t, "error: agent coder has no executions of the last 24h00m\n", h.err.String())
}

func TestPolicyReplayDecidesForTheAgentOfADirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(policyFile(t, strict, ""))
	require.NoError(t, os.Rename(filepath.Join(dir, "shell.yaml"), filepath.Join(dir, "coder.yaml")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "writer.yaml"), []byte("default_action: allow"), 0o644))
	h := newHarness(coder().client(), 0)
	require.Equal(t, exitFailed, h.run(t.Context(), "policy", "test", dir, "--execution", sourceID))
	require.Contains(t, h.out.String(), "by no-destruction, now by other-commands")

	require.NoError(t, os.Remove(filepath.Join(dir, "coder.yaml")))
	h = newHarness(coder().client(), 0)
	require.Equal(t, exitFailed, h.run(t.Context(), "policy", "test", dir, "--execution", sourceID))
	require.Empty(t, h.out.String())
	require.Equal(t, "error: agent \"coder\" has no policy in "+dir+"\nhint: add coder.yaml, or default.yaml for the agents that have none of their own\n", h.err.String())
}

// TestForkBringsThePolicyOfItsAgent reads files and directories as the policy commands do.
func TestForkBringsThePolicyOfItsAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
		return filepath.Join(dir, name)
	}
	own, rego := write("coder.yaml", strict), write("coder.rego", "package tine\n\ndecision := {\"decision\": \"allow\"}")
	write("default.yaml", "default_action: deny")
	write("other.yaml", "default_action: alow")
	var asked *tine.PolicyBundle
	fork := func(agent string, args ...string) *harness {
		s := newScript(sourceID)
		s.execution.AgentID = agent
		c := s.client()
		c.fork = func(req tine.ForkRequest) (*tine.Execution, error) {
			asked = req.Policy
			return forked().execution, nil
		}
		asked = nil
		h := newHarness(c, 0)
		h.run(t.Context(), append([]string{"exec", "fork", sourceID, "--at", "1"}, args...)...)
		return h
	}
	names := func(h *harness) (names []string) {
		t.Helper()
		require.NotNil(t, asked, h.err.String())
		require.NotEmpty(t, asked.Digest)
		for _, file := range asked.Files {
			names = append(names, file.Name)
		}
		return names
	}
	require.Equal(t, []string{"coder.yaml", "coder.rego"}, names(fork("coder", "--policy", own, "--policy", rego)))
	digest := asked.Digest
	require.Equal(t, []string{"coder.rego", "coder.yaml"}, names(fork("coder", "--policy", dir)))
	require.Equal(t, digest, asked.Digest)
	require.Equal(t, []string{"default.yaml"}, names(fork("writer", "--policy", dir)))
	fork("coder")
	require.Nil(t, asked)

	h := fork("other", "--policy", dir)
	require.Nil(t, asked)
	require.Contains(t, h.err.String(), filepath.Join(dir, "other.yaml")+":1: unknown default_action")
	require.NoError(t, os.Remove(filepath.Join(dir, "default.yaml")))
	h = fork("writer", "--policy", dir)
	require.Nil(t, asked)
	require.Contains(t, h.err.String(), `error: agent "writer" has no policy in `+dir)
}

// TestPolicyTestOfTheExamples breaks a rule, and reads what its author would.
func TestPolicyTestOfTheExamples(t *testing.T) {
	t.Parallel()
	examples := filepath.Join("..", "..", "examples", "policies")
	h := newHarness(nil, 80)
	require.Equal(t, exitOK, h.run(t.Context(), "policy", "test", examples), h.err.String())
	require.NotContains(t, h.out.String(), "rules that no case reached")

	rules, err := os.ReadFile(filepath.Join(examples, "shell.yaml"))
	require.NoError(t, err)
	cases, err := os.ReadFile(filepath.Join(examples, "shell.policytest.yaml"))
	require.NoError(t, err)
	path := policyFile(t, strings.Replace(string(rules), "(rm|", "(", 1), string(cases))
	h = newHarness(nil, 80)
	require.Equal(t, exitFailed, h.run(t.Context(), "policy", "test", path))
	require.Empty(t, h.err.String())
	golden(t, "policy.test.broken.80.txt", h.out.String())
}
