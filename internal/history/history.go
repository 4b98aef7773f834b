// Package history reads executions' histories from a Temporal server into event logs.
package history

import (
	"context"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"

	"github.com/tinerun/tine/internal/eventlog"
)

// Read projects the history of one run: its first events, or all there are now if
// limit is 0. The error of a history that does not exist is a serviceerror.NotFound.
func Read(ctx context.Context, c client.Client, executionID, runID string, limit int64, dec eventlog.Decoder) (*eventlog.Log, error) {
	projector := eventlog.NewProjector(executionID, runID, dec)
	err := each(ctx, c, executionID, runID, false, func(event *historypb.HistoryEvent) (bool, error) {
		return limit == 0 || event.GetEventId() < limit, projector.Add(event)
	})
	if err != nil {
		return nil, err
	}
	return projector.Log(), nil
}

// Follow projects the history of one run as it grows, and calls fn after each of its
// events until the run closes or fn returns false. The log stays the same one.
func Follow(ctx context.Context, c client.Client, executionID, runID string, dec eventlog.Decoder, fn func(*eventlog.Log) bool) error {
	projector := eventlog.NewProjector(executionID, runID, dec)
	return each(ctx, c, executionID, runID, true, func(event *historypb.HistoryEvent) (bool, error) {
		if err := projector.Add(event); err != nil {
			return false, err
		}
		return fn(projector.Log()), nil
	})
}

func each(ctx context.Context, c client.Client, executionID, runID string, wait bool, fn func(*historypb.HistoryEvent) (bool, error)) error {
	events := c.GetWorkflowHistory(ctx, executionID, runID, wait, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if err != nil {
			return err
		}
		more, err := fn(event)
		if err != nil || !more {
			return err
		}
	}
	return nil
}
