package eventlog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// TestMarkerFormat pins the format of local activities' markers, which the SDK does
// not document: it replays the markers that the tests here build, and gets out of them
// what the event log does. It fails with an SDK that writes them in another way.
func TestMarkerFormat(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	want := protocol.StepRecord{Step: h.tool().kept(), Decision: &allow, Outcome: &protocol.Outcome{Result: []byte(`"ok"`)}}
	h.marker(protocol.ActivityStep, want, nil)
	h.completed(want)

	var got protocol.StepRecord
	coder := func(ctx workflow.Context, _ map[string]string) (protocol.StepRecord, error) {
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{ScheduleToCloseTimeout: time.Minute})
		err := workflow.ExecuteLocalActivity(ctx, protocol.ActivityStep).Get(ctx, &got)
		return got, err
	}
	replayer := worker.NewWorkflowReplayer()
	replayer.RegisterWorkflowWithOptions(coder, workflow.RegisterOptions{Name: "coder"})
	require.NoError(t, replayer.ReplayWorkflowHistory(nil, &historypb.History{Events: h.events}))
	require.Equal(t, want, got)

	step := h.log().Steps[0]
	require.Equal(t, want.Step.ID, step.StepID)
	require.Equal(t, eventlog.StepStatusSucceeded, step.Status)
	require.Equal(t, string(want.Outcome.Result), string(step.Result))
}
