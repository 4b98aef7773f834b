package eventlog_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing them")

// golden is what log.json has besides steps.json and fork_points.json.
type golden struct {
	AgentID       string               `json:"agent_id"`
	TaskQueue     string               `json:"task_queue"`
	Status        string               `json:"status"`
	Input         json.RawMessage      `json:"input"`
	Output        json.RawMessage      `json:"output,omitempty"`
	FailureReason string               `json:"failure_reason,omitempty"`
	CreatedAt     time.Time            `json:"created_at"`
	ClosedAt      time.Time            `json:"closed_at,omitzero"`
	HistoryEvents int64                `json:"history_events"`
	Ignored       int64                `json:"ignored,omitempty"`
	PolicyDigest  string               `json:"policy_digest,omitempty"`
	Unrestricted  bool                 `json:"unrestricted,omitempty"`
	Approvals     []*protocol.Approval `json:"approvals,omitempty"`
	Resources     []*eventlog.Resource `json:"resources,omitempty"`
	Events        []eventlog.Event     `json:"events"`
}

// TestGolden projects histories of real servers. To add a case, put the output of
// `temporal workflow show --output json` into testdata/<case>/history.json and run
// the test with -update.
func TestGolden(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/*/history.json")
	require.NoError(t, err)
	if len(names) == 0 {
		t.Skip("testdata has no recorded histories")
	}
	for _, name := range names {
		dir := filepath.Dir(name)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			log := readHistory(t, name)
			requireGolden(t, filepath.Join(dir, "log.json"), golden{
				AgentID:       log.AgentID,
				TaskQueue:     log.TaskQueue,
				Status:        log.Status,
				Input:         log.Input,
				Output:        log.Output,
				FailureReason: log.FailureReason,
				CreatedAt:     log.CreatedAt,
				ClosedAt:      log.ClosedAt,
				HistoryEvents: log.HistoryEvents,
				Ignored:       log.Ignored,
				PolicyDigest:  log.PolicyDigest,
				Unrestricted:  log.Unrestricted,
				Approvals:     log.Approvals,
				Resources:     log.Resources,
				Events:        log.Events,
			})
			requireGolden(t, filepath.Join(dir, "steps.json"), log.Steps)
			requireGolden(t, filepath.Join(dir, "fork_points.json"), log.ForkPoints())
			requireIdentities(t, log)
			requireForks(t, log)
		})
	}
}

func readHistory(t *testing.T, name string) *eventlog.Log {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	history, err := client.HistoryFromJSON(f, client.HistoryJSONOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, history.GetEvents())
	started := history.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes()
	log, err := eventlog.Project(started.GetWorkflowId(), started.GetOriginalExecutionRunId(), history.GetEvents(), eventlog.Decoder{})
	require.NoError(t, err)
	return log
}

// requireIdentities checks that the arguments which the log found are those from which
// the runtime made the steps' ids.
func requireIdentities(t *testing.T, log *eventlog.Log) {
	t.Helper()
	for _, s := range log.Steps {
		if s.Args != nil {
			require.Equal(t, protocol.StepID(s.Kind, s.Target, s.ArgsHash, s.Occurrence), s.StepID, "arguments of %s", s.Target)
		}
	}
}

// requireForks forks the execution at events all over its log.
func requireForks(t *testing.T, log *eventlog.Log) {
	t.Helper()
	for seq := log.LatestSeq(); seq > 0; seq -= 5 {
		fork := forkOf(t, log, seq, 1<<20).log()
		requireSame(t, forkSteps(log, seq), seqless(fork.Steps), "steps of the fork")
		require.Equal(t, log.Covered(seq), fork.Covered(fork.LatestSeq()), "coverage at %d", seq)
	}
}

func requireGolden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := json.MarshalIndent(v, "", "  ")
	require.NoError(t, err)
	got = append(got, '\n')
	if *update {
		require.NoError(t, os.WriteFile(name, got, 0o644))
		return
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err, "run the test with -update to write it")
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", name, diff)
	}
}
