package policy

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// BenchmarkDecideDuringReload takes decisions one after another by 1,000 rules, first undisturbed
// and then while the store reloads the policy without a pause, which is far more often than
// it ever would. It reports the latencies, and how much longer they are during reloads.
func BenchmarkDecideDuringReload(b *testing.B) {
	path := filepath.Join(b.TempDir(), "default.yaml")
	write := func(version int) {
		if err := os.WriteFile(path, []byte(manyRules(1000, version)), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	write(0)
	store, err := newStore(path, StoreOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	if err := store.loadAll(b.Context()); err != nil {
		b.Fatal(err)
	}
	var quiet []time.Duration
	b.Run("quiet", func(b *testing.B) { quiet = latencies(b, store) })
	b.Run("reloading", func(b *testing.B) {
		ctx, cancel := context.WithCancel(b.Context())
		reloads, done := 0, make(chan struct{})
		go func() {
			defer close(done)
			for version := 1; ctx.Err() == nil; version++ {
				write(version)
				store.poll(ctx)
				store.poll(ctx)
				reloads++
			}
		}()
		during := latencies(b, store)
		cancel()
		<-done
		b.ReportMetric(float64(reloads), "reloads")
		for _, q := range []int{50, 99} {
			b.ReportMetric(float64(percentile(during, q))/float64(percentile(quiet, q)), fmt.Sprintf("p%d-ratio", q))
		}
	})
}

func manyRules(n, version int) string {
	var rules strings.Builder
	fmt.Fprintf(&rules, "# version %d\nrules:\n", version)
	for i := range n {
		fmt.Fprintf(&rules, "  - id: rule-%d\n    when: {target: tool-%d}\n    then: {decision: allow}\n", i, i)
	}
	return rules.String()
}

// latencies are those of b.N decisions, shortest first.
func latencies(b *testing.B, store *Store) []time.Duration {
	b.Helper()
	took := make([]time.Duration, 0, b.N)
	for i := range b.N {
		target := fmt.Sprintf("tool-%d", i%1000)
		began := time.Now()
		decision, err := store.Decide(b.Context(), Input{AgentID: "coder", StepKind: protocol.KindTool, Target: target})
		took = append(took, time.Since(began))
		if err != nil || decision.Decision != Allow {
			b.Fatalf("%+v, %v", decision, err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(percentile(took, 50).Microseconds()), "p50-µs")
	b.ReportMetric(float64(percentile(took, 99).Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
	return took
}

func percentile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)-1)*percent/100]
}
