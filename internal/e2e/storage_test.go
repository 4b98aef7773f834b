package e2e

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/connect"
	"github.com/tinerun/tine/internal/testserver"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

type sizeArgs struct {
	Bytes int    `json:"bytes"`
	Pad   string `json:"pad,omitempty"`
}

var large = workflows.NewTool[sizeArgs, string]("large")

func runLarge(_ context.Context, in sizeArgs) (string, error) {
	return strings.Repeat("x", in.Bytes), nil
}

// largest asks for a large result, and gives it with large arguments to the next call.
func largest(ctx workflow.Context, in sizeArgs) (int, error) {
	text, err := large.Call(ctx, in)
	if err != nil {
		return 0, err
	}
	if _, err := large.Call(ctx, sizeArgs{Bytes: 1, Pad: text}); err != nil {
		return 0, err
	}
	return len(text), nil
}

func stored20MB(t *testing.T, dir string) *bench {
	t.Helper()
	settings, err := connect.Options(connect.Flags{Address: testserver.Address(t), Storage: dir})
	require.NoError(t, err)
	c, err := connect.Dial(t.Context(), settings, log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	b := setupOn(t, c, withLarge, withOptions(func(o *worker.Options) { o.ExternalStorage = settings.ExternalStorage }))
	b.Client = tine.NewClient(c, tine.Options{TaskQueue: b.queue, ExternalStorage: settings.ExternalStorage})
	b.start(t)
	return b
}

func withLarge(b *bench) {
	withItems(func(*directory.Driver) []worker.Item {
		return []worker.Item{worker.Agent("largest", largest), worker.Tool(large, runLarge)}
	})(b)
}

func (b *bench) largest(t *testing.T, bytes int) string {
	t.Helper()
	input, err := json.Marshal(sizeArgs{Bytes: bytes})
	require.NoError(t, err)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "largest", Input: input})
	require.NoError(t, err)
	return e.ID
}

const size20MB = 20 << 20

// TestStorage has a result and arguments of 20 MB, which the log, a fork and another client read.
// It runs alone: workflow code that takes in 20 MB has a second for that.
func TestStorage(t *testing.T) {
	dir := t.TempDir()
	b := stored20MB(t, dir)
	source := b.end(t, b.largest(t, size20MB))
	require.Equal(t, tine.StatusCompleted, source.Execution().Status, source.Execution().FailureReason)
	require.Len(t, source.Steps()[0].Result, size20MB+2)
	require.Greater(t, len(source.Steps()[1].Args), size20MB)
	described, err := b.temporal.DescribeWorkflow(t.Context(), id(source), "")
	require.NoError(t, err)
	require.Less(t, described.RawResponse.GetWorkflowExecutionInfo().GetHistorySizeBytes(), int64(64<<10))

	fork := b.fork(t, tine.ForkRequest{ExecutionID: id(source), AtSeq: source.Steps()[0].SettledSeq})
	require.Equal(t, tine.StatusCompleted, fork.Execution().Status, fork.Execution().FailureReason)
	require.True(t, fork.Steps()[0].Replayed)
	require.Len(t, fork.Steps()[0].Result, size20MB+2)

	stored, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, stored)
	_, err = tine.NewClient(b.temporal, tine.Options{}).Log(t.Context(), id(source))
	require.ErrorContains(t, err, "set TINE_STORAGE")
	for _, name := range stored {
		require.NoError(t, os.Remove(name))
	}
	_, err = b.Log(t.Context(), id(source))
	require.ErrorContains(t, err, "is not in the storage")
}

// TestStorageAway has the storage away while a step needs it: the execution goes on once it is back.
func TestStorageAway(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "storage")
	b := stored20MB(t, dir)
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	e := b.largest(t, 1<<20)
	time.Sleep(3 * time.Second)
	require.Equal(t, tine.StatusRunning, b.status(t, e))
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.Equal(t, tine.StatusCompleted, b.end(t, e).Execution().Status)
}

// TestNoStorage has a result that fits nowhere: the step fails, and says what would help.
func TestNoStorage(t *testing.T) {
	t.Parallel()
	b := setup(t, withLarge)
	log := b.end(t, b.largest(t, size20MB))
	require.Equal(t, tine.StatusFailed, log.Execution().Status)
	require.Equal(t, "invalid_result", log.Steps()[0].Error.Reason)
	require.Contains(t, log.Steps()[0].Error.Message, "TINE_STORAGE")
}
