package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/history"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/internal/session"
	"github.com/tinerun/tine/resources"
)

// endingPatience is how long a look at a turn waits for the end that the turn has announced. It
// is one workflow task away, so that only a worker that dies right then takes longer.
const endingPatience = 3 * time.Second

// tineJoin tells a session that an execution waits for its turn.
func (a *Activities) tineJoin(ctx context.Context, in protocol.JoinSession) (protocol.Joined, error) {
	joined := protocol.Joined{Token: uuid.NewString()}
	in.Turn.Token = joined.Token
	in.Turn.Sweep = protocol.Duration(a.opts.SessionSweep)
	err := session.Tell(ctx, activity.GetClient(ctx), in.Label, activity.GetInfo(ctx).TaskQueue, in.Turn)
	if err != nil {
		return joined, fmt.Errorf("join session %q: %w", in.Label, err)
	}
	return joined, nil
}

// leftPatience bounds the reading of what a turn has left. The next one can read it itself.
const leftPatience = 5 * time.Second

// tineTurn says how a turn of a session stands.
func (a *Activities) tineTurn(ctx context.Context, in protocol.TurnQuery) (protocol.TurnStatus, error) {
	c := activity.GetClient(ctx)
	if in.Ending {
		waiting, cancel := context.WithTimeout(ctx, endingPatience)
		defer cancel()
		_ = c.GetWorkflow(waiting, in.ExecutionID, "").Get(waiting, nil) // what follows says how it ended
	}
	described, err := c.DescribeWorkflow(ctx, in.ExecutionID, "")
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return protocol.TurnStatus{Status: protocol.StatusCancelled}, nil
	}
	if err != nil {
		return protocol.TurnStatus{}, err
	}
	status := protocol.StatusFailed
	switch described.Status {
	case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED:
		status = protocol.StatusRunning
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
		status = protocol.StatusCompleted
	case enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED:
		status = protocol.StatusCancelled
	}
	turn := protocol.TurnStatus{Status: status, RunID: described.WorkflowExecution.RunID}
	if status == protocol.StatusCompleted {
		turn.Left, turn.LeftBytes = a.left(ctx, in.ExecutionID, turn.RunID)
	}
	return turn, nil
}

// left is what a completed turn has left, if that is small and can be read.
func (a *Activities) left(ctx context.Context, id, runID string) (*protocol.Previous, int) {
	ctx, cancel := context.WithTimeout(ctx, leftPatience)
	defer cancel()
	log, err := a.readLog(ctx, id, runID)
	if err != nil {
		logger(ctx).Warn("what a turn has left is not kept", "execution", id, "error", err)
		return nil, 0
	}
	left := previous(log)
	left.Resources = leftResources(log)
	raw, err := json.Marshal(left)
	if err != nil || len(raw) > protocol.KeptLimit {
		return nil, 0
	}
	return &left, len(raw)
}

// previous is the state that an execution has left, or else its output.
func previous(log *eventlog.Log) protocol.Previous {
	left := protocol.Previous{ExecutionID: log.ExecutionID, RunID: log.RunID, State: log.State}
	if left.State == nil {
		left.State = log.Output
	}
	return left
}

// tineLoadParent reads what an execution's parent has left. A fork has what its source had, as
// far as the source had begun.
func (a *Activities) tineLoadParent(ctx context.Context, in protocol.LoadParent) (protocol.Previous, error) {
	if in.Left != nil {
		return *in.Left, nil
	}
	stop := heartbeat(ctx)
	defer stop()
	if in.Source != nil {
		source, err := a.readLog(ctx, in.Source.ExecutionID, in.Source.RunID)
		if err != nil {
			return protocol.Previous{}, err
		}
		if source.Previous != nil {
			copied := *source.Previous
			copied.Resources = nil // a fork's are created anew
			return copied, nil
		}
	}
	parent, err := a.readLog(ctx, in.ExecutionID, in.RunID)
	if err != nil {
		return protocol.Previous{}, err
	}
	if problem := protocol.CheckParent(in.AgentID, parent.ExecutionID, parent.AgentID, parent.Status); problem != "" {
		return protocol.Previous{}, temporal.NewNonRetryableApplicationError(problem, failure.TypeParent, nil)
	}
	left := previous(parent)
	if in.Source == nil && in.Session != "" && in.Session == protocol.SessionOf(parent.Session, parent.ExecutionID) {
		left.Resources = leftResources(parent)
	}
	return left, nil
}

// leftResources are the resources that an execution has left, for the next one to go on with.
func leftResources(log *eventlog.Log) []protocol.PreviousResource {
	var left []protocol.PreviousResource
	for _, r := range log.Resources {
		previous := protocol.PreviousResource{
			ResourceSpec: protocol.ResourceSpec{
				Key: r.Key, Driver: r.Driver, Config: r.Config, EverySteps: r.EverySteps, OnCompletion: r.OnCompletion,
			},
			Binding: r.Binding, CoverageReuse: r.CoverageReuse,
		}
		if r.Binding != nil { // else the host is that of a checkpoint
			previous.Host = r.Host
		}
		left = append(left, previous)
	}
	return left
}

// readLog reads the log of one run, or of the latest if runID is empty.
func (a *Activities) readLog(ctx context.Context, id, runID string) (*eventlog.Log, error) {
	c := activity.GetClient(ctx)
	if runID == "" {
		described, err := c.DescribeWorkflow(ctx, id, "")
		if err != nil {
			return nil, gone(id, err)
		}
		runID = described.WorkflowExecution.RunID
	}
	log, err := history.Read(ctx, c, id, runID, 0, a.opts.Decoder)
	return log, gone(id, err)
}

// gone makes the error of a history that does not exist final.
func gone(id string, err error) error {
	var missing *serviceerror.NotFound
	if !errors.As(err, &missing) {
		return err
	}
	return temporal.NewNonRetryableApplicationError(
		fmt.Sprintf("the history of execution %s, which this one continues, is gone: it was deleted, its retention has passed, or it never existed. Begin a new session", id),
		failure.TypeParent, nil)
}

// tineState records the state that an execution leaves.
func (a *Activities) tineState(_ context.Context, state protocol.State) (protocol.State, error) {
	return state, nil
}

// tineOpenResource is the activity that opens a resource which the execution's parent has left.
func (a *Activities) tineOpenResource(ctx context.Context, in protocol.OpenResource) (protocol.ResourceCreated, error) {
	var opened resources.Created
	err := supervise(ctx, protocol.SafeToRetry, func(ctx context.Context) (err error) {
		opened, err = a.resources.Reopen(ctx, in.Driver, in.Binding, in.Config)
		return driverError(err)
	})
	return resourceCreated(opened), err
}
