//go:build unix

package devserver_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/devserver"
)

const queue = "speed"

// steps runs activities one after another, which is what an agent's tool calls are.
func steps(ctx workflow.Context, n int) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	for range n {
		if err := workflow.ExecuteActivity(ctx, step).Get(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

func step(context.Context) error { return nil }

func sleeps(ctx workflow.Context, n int) error {
	for range n {
		if err := workflow.Sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// speedClient starts a server and a worker.
func speedClient(t testing.TB, opts devserver.Options) client.Client {
	opts.Headless = true
	c := dial(t, start(t, opts).Address(), "")
	w := worker.New(c, queue, worker.Options{})
	w.RegisterWorkflow(steps)
	w.RegisterWorkflow(sleeps)
	w.RegisterActivity(step)
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	return c
}

func run(t testing.TB, c client.Client, wf any, n int) {
	run, err := c.ExecuteWorkflow(context.Background(), client.StartWorkflowOptions{TaskQueue: queue}, wf, n)
	require.NoError(t, err)
	require.NoError(t, run.Get(context.Background(), nil))
}

// TestTimersAreOnTime fails if the server does not take tuning, which it ignores in silence
// when a name changes: a timer fires a second late by default.
func TestTimersAreOnTime(t *testing.T) {
	t.Parallel()
	c := speedClient(t, devserver.Options{})
	run(t, c, steps, 1) // what the first workflow waits for is not the timer
	began := time.Now()
	run(t, c, sleeps, 10)
	require.Less(t, time.Since(began), 8*time.Second, "ten timers of 1 ms")
}

// Benchmarks of one step and one sleep of 1 ms, with the settings of this package and with
// those of `temporal server start-dev`:
//
//	go test -run '^$' -bench . -benchtime 200x ./internal/devserver
func BenchmarkStep(b *testing.B)  { benchmark(b, steps) }
func BenchmarkSleep(b *testing.B) { benchmark(b, sleeps) }

func benchmark(b *testing.B, wf any) {
	untuned := map[string]any{
		"history.transferProcessorMaxPollRPS": 20,
		"history.timerProcessorMaxPollRPS":    20,
		"history.timerProcessorMaxTimeShift":  "1s",
		"system.enableActivityEagerExecution": false,
	}
	for _, c := range []struct {
		name string
		opts devserver.Options
	}{
		{"untuned", devserver.Options{DynamicConfig: untuned}},
		{"tuned", devserver.Options{}},
		{"tuned in a file", devserver.Options{DBFilename: filepath.Join(b.TempDir(), "speed.db")}},
	} {
		b.Run(c.name, func(b *testing.B) {
			client := speedClient(b, c.opts)
			run(b, client, wf, 1)
			b.ResetTimer()
			run(b, client, wf, b.N)
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/op")
		})
	}
}
