package eventlog_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// benchHistory is an execution of n events: an agent that writes with a tool, of
// which each call is captured.
func benchHistory(tb testing.TB, n int64) *history {
	h := newHistory(tb)
	h.open("ws", false, "c0")
	for i := int64(5); i < n; i += 5 {
		c := h.run(h.call(protocol.KindTool, "write", map[string]any{"path": fmt.Sprint(i), "content": "some lines of text"}, "ws"))
		h.checkpoint("ws", protocol.CauseStep, c.ID, fmt.Sprint("c", i))
	}
	require.Equal(tb, n, h.log().LatestSeq())
	return h
}

// BenchmarkProject10000 projects 10,000 events. The bounds are 500 ms and 200 MB.
func BenchmarkProject10000(b *testing.B) {
	h := benchHistory(b, 10_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for b.Loop() {
		if _, err := eventlog.Project("exec", "run", h.events, eventlog.Decoder{}); err != nil {
			b.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/op")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/1e6/float64(b.N), "MB/op")
}

// BenchmarkPrefix10000 plans a fork at the end and writes its pages.
func BenchmarkPrefix10000(b *testing.B) {
	log := benchHistory(b, 10_000).log()
	for b.Loop() {
		records, err := log.Prefix(log.LatestSeq())
		if err != nil {
			b.Fatal(err)
		}
		for offset, more := 0, true; more; {
			page := eventlog.Pages(records, offset, 1<<20)
			offset, more = page.Next, page.Next != 0
		}
	}
}

// BenchmarkCovered10000 draws the coverage of the whole log.
func BenchmarkCovered10000(b *testing.B) {
	log := benchHistory(b, 10_000).log()
	for b.Loop() {
		for seq := int64(1); seq <= log.LatestSeq(); seq++ {
			log.Covered(seq)
		}
	}
}
