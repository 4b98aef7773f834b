package policy_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/policy"
)

func rules(id string) []byte {
	return []byte("rules:\n  - id: " + id + "\n    then: {decision: allow}\n")
}

func openStore(t *testing.T, ctx context.Context) (s *policy.Store, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "default.yaml")
	require.NoError(t, os.WriteFile(file, rules("old"), 0o644))
	s, err := policy.Open(ctx, file, policy.StoreOptions{
		Interval: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return s, file
}

func decidedBy(t *testing.T, s *policy.Store) string {
	t.Helper()
	decision, err := s.Decide(t.Context(), policy.Input{AgentID: "coder", StepKind: "tool_call", Target: "shell"})
	require.NoError(t, err)
	return decision.RuleID
}

func TestStoreFollowsItsFile(t *testing.T) {
	t.Parallel()
	s, file := openStore(t, t.Context())
	require.Equal(t, "old", decidedBy(t, s))
	require.NoError(t, os.WriteFile(file, rules("new"), 0o644))
	require.Eventually(t, func() bool { return decidedBy(t, s) == "new" }, 10*time.Second, time.Millisecond)

	require.NoError(t, os.Remove(file))
	require.Eventually(t, func() bool { return s.Status()[0].Problem != "" }, 10*time.Second, time.Millisecond)
	s.Close()
	require.Equal(t, "new", decidedBy(t, s), "a closed store decides by what it has")
	s.Close()
}

func TestStoreEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s, _ := openStore(t, ctx)
	cancel()
	s.Close() // waits for the goroutine
	require.Equal(t, "old", decidedBy(t, s))
}
