// Package session reaches the workflows that keep sessions.
package session

import (
	"context"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/tinerun/tine/internal/protocol"
)

// Tell tells a session of a turn. The workflow that keeps the session is started if it does not
// run, on the task queue.
func Tell(ctx context.Context, c client.Client, label, taskQueue string, turn protocol.Turn) error {
	_, err := c.SignalWithStartWorkflow(ctx, protocol.SessionWorkflowID(label), protocol.SignalTurn, turn,
		options(label, taskQueue), protocol.WorkflowSession, protocol.SessionState{Label: label})
	return err
}

// Begin begins a session with a turn. A session that exists is a
// serviceerror.WorkflowExecutionAlreadyStarted.
func Begin(ctx context.Context, c client.Client, label, taskQueue string, turn protocol.Turn) error {
	opts := options(label, taskQueue)
	turn.Change, turn.Announced = "", true
	opts.WorkflowExecutionErrorWhenAlreadyStarted = true
	opts.WorkflowIDConflictPolicy = enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL
	_, err := c.ExecuteWorkflow(ctx, opts, protocol.WorkflowSession, protocol.SessionState{Label: label, Queue: []protocol.Turn{turn}})
	return err
}

func options(label, taskQueue string) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{
		ID:            protocol.SessionWorkflowID(label),
		TaskQueue:     taskQueue,
		StaticSummary: protocol.OneLine("session " + label),
		Memo:          map[string]any{protocol.MemoSession: label},
	}
}
