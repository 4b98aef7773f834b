package eventlog_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// readable is the JSON of histories in which payloads can be read, and so mutated.
var readable = map[string]any{commonpb.EnablePayloadShorthandMetadataKey: true}

// FuzzProject reads histories in the JSON of `temporal workflow show`. Whatever a
// history holds, the log can be made or refused, and what is made can be used.
func FuzzProject(f *testing.F) {
	for _, h := range fuzzSeeds(f) {
		raw, err := temporalproto.CustomJSONMarshalOptions{Metadata: readable}.Marshal(&historypb.History{Events: h.events})
		require.NoError(f, err)
		f.Add(raw)
	}
	recorded, err := filepath.Glob("testdata/*/history.json")
	require.NoError(f, err)
	for _, name := range recorded {
		raw, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var h historypb.History
		if err := (temporalproto.CustomJSONUnmarshalOptions{Metadata: readable, DiscardUnknown: true}).Unmarshal(raw, &h); err != nil {
			t.Skip("not a history")
		}
		log, err := eventlog.Project("exec", "run", h.GetEvents(), eventlog.Decoder{})
		if err != nil {
			return
		}
		use(t, log)
	})
}

func fuzzSeeds(t testingT) []*history {
	everything := newHistory(t)
	everything.open("ws", true, "c0")
	c := everything.run(everything.tool("ws"))
	everything.checkpoint("ws", protocol.CauseStep, c.ID, "c1")
	everything.fail(everything.scheduleCheckpoint("ws", protocol.CauseCompletion, ""), errors.New("no room"))
	everything.decide(everything.tool(), deny)
	everything.decide(everything.tool(), approval)
	asked := everything.tool()
	everything.decide(asked, approval)
	everything.grant(asked)
	asked = everything.once("ledger")
	everything.decide(asked, approval)
	everything.expire(asked, protocol.RationaleTimeout)
	limited := everything.tool()
	everything.propose(limited, allow)
	everything.limit(limited, &window.ExpiresAt)
	everything.settle(record(limited, allow))
	everything.run(everything.once("ledger"))
	everything.runLocal(everything.call(protocol.KindLocal, "now", 1), protocol.Outcome{})
	everything.cancel(everything.begin(everything.llm()))
	everything.marker(protocol.ActivityNote, protocol.Divergence{Unused: 1}, nil)
	fork := forkOf(t, everything.log(), everything.log().LatestSeq(), 500)
	fork.open("ws", false, "c2")
	fork.failed(failureOf(errors.New("no")))
	everything.completed("done")
	empty := emptyHistory(t)
	return []*history{empty, newHistory(t), everything, fork}
}

// use does with a log what its readers do.
func use(t *testing.T, log *eventlog.Log) {
	for _, v := range []any{log.Events, log.Steps, log.Resources, log.Approvals, log.PendingApprovals(), log.ForkPoints(), log.Input, log.Output} {
		_, err := json.Marshal(v)
		require.NoError(t, err)
	}
	for seq := int64(1); seq <= log.LatestSeq(); seq++ {
		log.Covered(seq)
		log.EffectsSince(seq)
		records, err := log.Prefix(seq)
		require.NoError(t, err)
		eventlog.Pages(records, 0, 1000)
	}
}
