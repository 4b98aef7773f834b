package e2e

import (
	"encoding/json"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine"
)

// BenchmarkLong runs an agent of 10,000 tools, which continues as new by itself, and compares the time a
// step takes with that of one of 500. Then it reads the long log and forks it at its end.
func BenchmarkLong(b *testing.B) {
	const short, long = 500, 10_000
	c := newContest(b)
	timed := func(steps int) (time.Duration, string) {
		input, err := json.Marshal(count{steps})
		require.NoError(b, err)
		began := time.Now()
		e, err := c.tine.Create(b.Context(), tine.CreateRequest{Agent: "tool_loop", Input: input})
		require.NoError(b, err)
		err = c.temporal.GetWorkflow(b.Context(), e.ID, e.RunID).Get(b.Context(), nil)
		require.NoError(b, err)
		return time.Since(began), e.ID
	}
	timed(short)
	for b.Loop() {
		shortTime, _ := timed(short)
		longTime, id := timed(long)
		b.ReportMetric(float64(shortTime.Microseconds())/short, "µs/step-of-500")
		b.ReportMetric(float64(longTime.Microseconds())/long, "µs/step-of-10000")
		b.ReportMetric(float64(longTime)/long/(float64(shortTime)/short), "ratio")

		began := time.Now()
		log, err := c.tine.Log(b.Context(), id)
		require.NoError(b, err)
		b.ReportMetric(time.Since(began).Seconds(), "s/log")
		require.Len(b, log.Steps(), long)
		b.ReportMetric(float64(len(log.Execution().Runs)), "runs")

		began = time.Now()
		fork, err := c.tine.Fork(b.Context(), tine.ForkRequest{ExecutionID: id, AtSeq: log.Execution().LatestSeq})
		require.NoError(b, err)
		b.ReportMetric(time.Since(began).Seconds(), "s/fork-started")
		_, err = c.tine.Wait(b.Context(), fork.ID)
		require.NoError(b, err)
		b.ReportMetric(time.Since(began).Seconds(), "s/fork-ended")
		forked, err := c.tine.Log(b.Context(), fork.ID)
		require.NoError(b, err)
		require.Len(b, forked.Steps(), long)
		described, err := c.temporal.DescribeWorkflow(b.Context(), fork.ID, "")
		require.NoError(b, err)
		b.ReportMetric(float64(described.RawResponse.GetWorkflowExecutionInfo().GetHistorySizeBytes())/long, "B/replayed-step")
		runtime.GC()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		b.ReportMetric(float64(mem.HeapAlloc)/(1<<20), "MB-heap-after")
	}
}
