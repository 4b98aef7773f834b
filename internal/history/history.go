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
// limit is 0. A run that has yet to load what the one before has left has that one's log. The error
// of a history that does not exist is a serviceerror.NotFound.
func Read(ctx context.Context, c client.Client, executionID, runID string, limit int64, dec eventlog.Decoder) (*eventlog.Log, error) {
	return ReadEach(ctx, c, executionID, runID, limit, dec, func(*historypb.HistoryEvent) {})
}

// ReadEach is Read that also calls fn with each event of the run's own history.
func ReadEach(ctx context.Context, c client.Client, executionID, runID string, limit int64, dec eventlog.Decoder, fn func(*historypb.HistoryEvent)) (*eventlog.Log, error) {
	projector := eventlog.NewProjector(executionID, runID, dec)
	err := each(ctx, c, executionID, runID, false, func(event *historypb.HistoryEvent) (bool, error) {
		fn(event)
		return limit == 0 || event.GetEventId() < limit, projector.Add(event)
	})
	if err != nil {
		return nil, err
	}
	log := projector.Log()
	if log.Loading == "" {
		return log, nil
	}
	before, err := Read(ctx, c, executionID, log.Loading, 0, dec)
	if err == nil && !log.ClosedAt.IsZero() { // it ended before it had loaded anything
		before.Ended(log)
	}
	return before, err
}

// Follow projects the history of an execution as it grows, from one run on, and calls fn after each
// event until the execution closes or fn returns false. When the execution continues as new the log
// is another one, which goes on with all that the one before has.
func Follow(ctx context.Context, c client.Client, executionID, runID string, dec eventlog.Decoder, fn func(*eventlog.Log) bool) error {
	for {
		projector := eventlog.NewProjector(executionID, runID, dec)
		next, more := "", true
		err := each(ctx, c, executionID, runID, true, func(event *historypb.HistoryEvent) (bool, error) {
			if err := projector.Add(event); err != nil {
				return false, err
			}
			next = event.GetWorkflowExecutionContinuedAsNewEventAttributes().GetNewExecutionRunId()
			more = projector.Log().Loading != "" || fn(projector.Log())
			return more, nil
		})
		switch {
		case err != nil || !more:
			return err
		case next != "":
			runID = next
		case projector.Log().Loading == "":
			return nil
		default: // it ended before it had loaded anything
			log, err := Read(ctx, c, executionID, runID, 0, dec)
			if err == nil {
				fn(log)
			}
			return err
		}
	}
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
