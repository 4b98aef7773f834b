package cli

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	tine "github.com/tinerun/tine"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares output with testdata/golden/<name>.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("output differs from %s; go test ./internal/cli -update accepts it:\n%s", path, diff)
	}
}

// listed is a client that has several executions.
func listed() *fake {
	order := newScript("order-42").execution
	order.CreatedAt, order.Session, order.AgentID = testNow.Add(-80*time.Hour), "billing", "accountant"
	found := []*tine.Execution{forked().execution, coder().execution, short().execution, order}
	found[2].ID = "019dcdf1-0000-7000-8000-000000000000"
	return &fake{list: func(tine.ListOptions) ([]*tine.Execution, error) { return found, nil }}
}

// conversing is a client that has sessions.
func conversing() *fake {
	var turns []*tine.Execution
	turn := func(id, status, parent string) {
		e := newScript(id).execution
		e.Session, e.Status, e.ParentExecutionID = "billing", status, parent
		e.CreatedAt = e.CreatedAt.Add(time.Duration(len(turns)) * time.Minute)
		turns = append(turns, e)
	}
	turn("turn-1", tine.StatusCompleted, "")
	turn("turn-2", tine.StatusRunning, "turn-1")
	turn("turn-3", tine.StatusPending, "")
	billing := tine.Session{
		Session: "billing", Agents: []string{"accountant", "coder"}, Turns: 3, Pending: 1, Running: "turn-2", Latest: "turn-3",
		CreatedAt: turns[0].CreatedAt, UpdatedAt: turns[2].CreatedAt,
	}
	return &fake{
		sessions: func(tine.SessionOptions) ([]*tine.Session, error) {
			known := &tine.Session{Session: "only a\nlabel", CreatedAt: testNow, UpdatedAt: testNow}
			return []*tine.Session{&billing, known}, nil
		},
		session: func(_ string, opts tine.SessionOptions) (*tine.Session, error) {
			s := billing
			s.Executions = turns[max(0, len(turns)-opts.Limit):]
			return &s, nil
		},
	}
}

func starts(s *script) *fake {
	c := s.client()
	c.create = func(tine.CreateRequest) (*tine.Execution, error) { return newScript(sourceID).execution, nil }
	c.fork = func(tine.ForkRequest) (*tine.Execution, error) { return forked().execution, nil }
	c.cancel = func(string) error { return nil }
	return c
}

func TestOutput(t *testing.T) {
	t.Parallel()
	const piped = 0
	cases := []struct {
		name   string
		client executions
		width  int
		args   []string
		exit   int
	}{
		{"ls.80.txt", listed(), 80, []string{"exec", "ls"}, 0},
		{"ls.piped.txt", listed(), piped, []string{"exec", "ls", "--limit", "4"}, 0},
		{"ls.json", listed(), piped, []string{"exec", "ls", "-o", "json"}, 0},
		{"ls.none.txt", &fake{list: func(tine.ListOptions) ([]*tine.Execution, error) { return nil, nil }}, 80, []string{"exec", "ls"}, 0},
		{"ls.none.json", &fake{list: func(tine.ListOptions) ([]*tine.Execution, error) { return nil, nil }}, 80, []string{"exec", "ls", "-o", "json"}, 0},
		{"get.failed.80.txt", coder().client(), 80, []string{"exec", "get", sourceID}, 0},
		{"get.fork.80.txt", forked().client(), 80, []string{"exec", "get", forkID}, 0},
		{"get.fork.piped.txt", forked().client(), piped, []string{"exec", "get", forkID}, 0},
		{"get.fork.json", forked().client(), piped, []string{"exec", "get", forkID, "-o", "json"}, 0},
		{"get.completed.120.txt", short().client(), 120, []string{"exec", "get", sourceID}, 0},
		{"events.80.txt", coder().client(), 80, []string{"exec", "events", sourceID}, 0},
		{"events.fork.120.txt", forked().client(), 120, []string{"exec", "events", forkID}, 0},
		{"events.piped.txt", coder().client(), piped, []string{"exec", "events", sourceID, "--after-seq", "3", "--limit", "4"}, 0},
		{"events.json", coder().client(), piped, []string{"exec", "events", sourceID, "--after-seq", "19", "-o", "json"}, 0},
		{"events.none.txt", coder().client(), piped, []string{"exec", "events", sourceID, "--after-seq", "99"}, 0},
		{"events.none.json", coder().client(), piped, []string{"exec", "events", sourceID, "--after-seq", "99", "-o", "json"}, 0},
		{"events.follow.80.txt", coder().client(), 80, []string{"exec", "events", sourceID, "--follow", "--after-seq", "12"}, 0},
		{"events.follow.jsonl", coder().client(), piped, []string{"exec", "events", sourceID, "--follow", "--limit", "3", "-o", "json"}, 0},
		{"steps.80.txt", coder().client(), 80, []string{"exec", "steps", sourceID}, 0},
		{"steps.fork.80.txt", forked().client(), 80, []string{"exec", "steps", forkID}, 0},
		{"steps.fork.200.txt", forked().client(), 200, []string{"exec", "steps", forkID}, 0},
		{"steps.failed.piped.txt", coder().client(), piped, []string{"exec", "steps", sourceID, "--status", "failed", "--kind", "tool_call"}, 0},
		{"steps.none.txt", coder().client(), 80, []string{"exec", "steps", sourceID, "--kind", "local"}, 0},
		{"steps.json", coder().client(), piped, []string{"exec", "steps", sourceID, "--status", "failed", "-o", "json"}, 0},
		{"fork-points.short.80.txt", short().client(), 80, []string{"exec", "fork-points", sourceID}, 0},
		{"fork-points.80.txt", coder().client(), 80, []string{"exec", "fork-points", sourceID}, 0},
		{"fork-points.long.80.txt", long().client(), 80, []string{"exec", "fork-points", sourceID}, 0},
		{"fork-points.long.200.txt", long().client(), 200, []string{"exec", "fork-points", sourceID}, 0},
		{"fork-points.none.txt", newScript(sourceID).client(), 80, []string{"exec", "fork-points", sourceID}, 0},
		{"fork-points.json", coder().client(), piped, []string{"exec", "fork-points", sourceID, "-o", "json"}, 0},
		{"watch.completed.80.txt", short().client(), 80, []string{"exec", "watch", sourceID}, 0},
		{"watch.failed.80.txt", coder().client(), 80, []string{"exec", "watch", sourceID}, exitFailed},
		{"watch.jsonl", short().client(), piped, []string{"exec", "watch", sourceID, "-o", "json"}, 0},
		{"create.80.txt", starts(short()), 80, []string{"exec", "create", "coder"}, 0},
		{"create.wait.80.txt", starts(short()), 80, []string{"exec", "create", "coder", "--wait"}, 0},
		{"create.json", starts(short()), piped, []string{"exec", "create", "coder", "-o", "json"}, 0},
		{"create.wait.json", starts(short()), piped, []string{"exec", "create", "coder", "--wait", "-o", "json"}, 0},
		{"fork.80.txt", starts(coder()), 80, []string{"exec", "fork", sourceID, "--at", "13"}, 0},
		{"fork.json", starts(coder()), piped, []string{"exec", "fork", sourceID, "--at", "13", "-o", "json"}, 0},
		{"fork.wait.json", starts(coder()), piped, []string{"exec", "fork", sourceID, "--at", "13", "--wait", "-o", "json"}, exitFailed},
		{"cancel.80.txt", starts(coder()), 80, []string{"exec", "cancel", sourceID}, 0},
		{"cancel.json", starts(coder()), piped, []string{"exec", "cancel", sourceID, "-o", "json"}, 0},
		{"get.blocked.80.txt", blocked().client(), 80, []string{"exec", "get", sourceID}, 0},
		{"events.blocked.120.txt", blocked().client(), 120, []string{"exec", "events", sourceID}, 0},
		{"approval.ls.80.txt", asks(), 80, []string{"approval", "ls"}, 0},
		{"approval.ls.160.txt", asks(), 160, []string{"approval", "ls"}, 0},
		{"approval.ls.json", asks(), piped, []string{"approval", "ls", "-o", "json"}, 0},
		{"approval.ls.none.txt", &fake{approvals: func(tine.ApprovalOptions) ([]*tine.Approval, error) { return nil, nil }}, 80, []string{"approval", "ls"}, 0},
		{"approval.ls.none.json", &fake{approvals: func(tine.ApprovalOptions) ([]*tine.Approval, error) { return nil, nil }}, piped, []string{"approval", "ls", "-o", "json"}, 0},
		{"approval.get.80.txt", asks(), 80, []string{"approval", "get", sourceID}, 0},
		{"approval.get.json", asks(), piped, []string{"approval", "get", sourceID, "-o", "json"}, 0},
		{"approval.grant.80.txt", asks(), 80, []string{"approval", "grant", sourceID, "--by", "ann", "--reason", "looks fine"}, 0},
		{"approval.deny.json", asks(), piped, []string{"approval", "deny", sourceID, "--by", "ann", "-o", "json"}, 0},
		{"session.ls.80.txt", conversing(), 80, []string{"session", "ls"}, 0},
		{"session.ls.piped.txt", conversing(), piped, []string{"session", "ls", "--limit", "2"}, 0},
		{"session.ls.json", conversing(), piped, []string{"session", "ls", "-o", "json"}, 0},
		{"session.ls.none.txt", &fake{sessions: func(tine.SessionOptions) ([]*tine.Session, error) { return nil, nil }}, 80, []string{"session", "ls"}, 0},
		{"session.ls.none.json", &fake{sessions: func(tine.SessionOptions) ([]*tine.Session, error) { return nil, nil }}, piped, []string{"session", "ls", "-o", "json"}, 0},
		{"session.get.80.txt", conversing(), 80, []string{"session", "get", "billing"}, 0},
		{"session.get.some.80.txt", conversing(), 80, []string{"session", "get", "billing", "--limit", "2"}, 0},
		{"session.get.json", conversing(), piped, []string{"session", "get", "billing", "--limit", "1", "-o", "json"}, 0},
		{"version.txt", nil, 80, []string{"version"}, 0},
		{"version.json", nil, piped, []string{"version", "-o", "json"}, 0},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(tc.client, tc.width)
			require.Equal(t, tc.exit, h.run(context.Background(), tc.args...), h.err.String())
			golden(t, tc.name, h.out.String())
			if tc.exit == 0 {
				require.Empty(t, h.err.String())
			}
		})
	}
}

func TestColour(t *testing.T) {
	t.Parallel()
	h := newHarness(forked().client(), 100)
	h.f.screen = func() screen { return screen{width: 100, colour: true} }
	require.Equal(t, exitOK, h.run(t.Context(), "exec", "steps", forkID))
	golden(t, "steps.colour.txt", h.out.String())
}
