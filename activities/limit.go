package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// tineLimit takes a token of a bucket that executions share, by an update of the workflow that
// keeps it. The workflow is started if it does not run, on the task queue of the execution.
func (a *Activities) tineLimit(ctx context.Context, request protocol.LimitRequest) (protocol.LimitGrant, error) {
	c := activity.GetClient(ctx)
	start := c.NewWithStartWorkflowOperation(client.StartWorkflowOptions{
		ID:                       request.Bucket,
		TaskQueue:                activity.GetInfo(ctx).TaskQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
		StaticSummary:            "rate limit shared by executions",
	}, protocol.WorkflowLimiter, time.Time{})
	handle, err := c.UpdateWithStartWorkflow(ctx, client.UpdateWithStartWorkflowOptions{
		StartWorkflowOperation: start,
		UpdateOptions: client.UpdateWorkflowOptions{
			UpdateID:     request.Request,
			UpdateName:   protocol.UpdateTake,
			Args:         []any{request},
			WaitForStage: client.WorkflowUpdateStageCompleted,
		},
	})
	var grant protocol.LimitGrant
	if err == nil {
		err = handle.Get(ctx, &grant)
	}
	if err != nil {
		return grant, limiterError(request.Bucket, err)
	}
	return grant, nil
}

// limiterError tells an outage from what no attempt can mend, such as a name that the server
// refuses: a limit that can never be applied must not count as a limiter that is away.
func limiterError(bucket string, err error) error {
	var invalid *serviceerror.InvalidArgument
	var forbidden *serviceerror.PermissionDenied
	if errors.As(err, &invalid) || errors.As(err, &forbidden) {
		return temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("rate limiter %s: %s", bucket, err), failure.TypeLimiter, nil)
	}
	var application *temporal.ApplicationError
	if errors.As(err, &application) && application.NonRetryable() {
		err = errors.New(err.Error()) // the limiter may have ended as the update came in
	}
	return fmt.Errorf("rate limiter %s: %w", bucket, err)
}
