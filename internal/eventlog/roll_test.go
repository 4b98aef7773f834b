package eventlog

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/tinerun/tine/internal/protocol"
)

// TestRolledLogs ends each recorded history after every sixtieth of its events, and at its end, and checks that the log which the
// next run restores says the same: events, steps, checkpoints, and what forks would copy.
func TestRolledLogs(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/*/history.json")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		t.Run(filepath.Base(filepath.Dir(name)), func(t *testing.T) {
			t.Parallel()
			f, err := os.Open(name)
			require.NoError(t, err)
			defer f.Close()
			history, err := client.HistoryFromJSON(f, client.HistoryJSONOptions{})
			require.NoError(t, err)
			p := NewProjector("execution", "run", Decoder{})
			for _, ev := range history.GetEvents() {
				require.NoError(t, p.Add(ev))
				if ev.GetEventId()%60 == 0 { // all of them take too long
					requireRolled(t, p)
				}
			}
			requireSamePrefixes(t, p.log, requireRolled(t, p))
		})
	}
}

// requireRolled checks the log that the next run restores, and gives it.
func requireRolled(t *testing.T, p *Projector) *Log {
	t.Helper()
	log := p.log
	records, err := log.Rolled()
	require.NoError(t, err)
	next := NewProjector("execution", "next", Decoder{})
	next.log.Fork = log.Fork
	for offset := 0; ; {
		raw, err := json.Marshal(RolledPage(records, offset, 4096))
		require.NoError(t, err)
		var page protocol.RolledPage
		require.NoError(t, json.Unmarshal(raw, &page))
		for i := range page.Records {
			require.NoError(t, next.restore(&page.Records[i]))
		}
		if offset = page.Next; offset == 0 {
			break
		}
	}
	next.coverage.resume()
	same := func(want, got any, what string) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s after history event %d (-before +restored):\n%s", what, log.HistoryEvents, diff)
		}
	}
	same(log.Events, next.log.Events, "events")
	same(log.Steps, next.log.Steps, "steps")
	same(log.Resources, next.log.Resources, "resources")
	same(log.Checkpoints, next.log.Checkpoints, "checkpoints")
	same(log.Approvals, next.log.Approvals, "approvals")
	same(p.coverage.began, next.coverage.began, "begun steps")
	same(p.coverage.wrote, next.coverage.wrote, "writers")
	return next.log
}

func requireSamePrefixes(t *testing.T, want, got *Log) {
	t.Helper()
	for seq := int64(1); seq <= want.LatestSeq(); seq += 20 {
		before, err := want.Prefix(seq)
		require.NoError(t, err)
		restored, err := got.Prefix(seq)
		require.NoError(t, err)
		if diff := cmp.Diff(before, restored, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("prefix at %d (-before +restored):\n%s", seq, diff)
		}
	}
}
