package activities

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/history"
	"github.com/tinerun/tine/internal/protocol"
)

// tineLoadPrefix is the activity that reads a page of a fork's prefix from its source.
func (a *Activities) tineLoadPrefix(ctx context.Context, in protocol.LoadPrefix) (protocol.PrefixPage, error) {
	log, err := history.Read(ctx, activity.GetClient(ctx), in.ExecutionID, in.RunID, in.HistoryEvents, a.opts.Decoder)
	var gone *serviceerror.NotFound
	if errors.As(err, &gone) {
		return protocol.PrefixPage{}, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("the history of execution %s, run %s, from which this one was forked, is gone: it was deleted, or its retention has passed",
				in.ExecutionID, in.RunID), failure.TypeUnavailable, nil)
	}
	if err != nil {
		return protocol.PrefixPage{}, err
	}
	records, err := log.Prefix(in.AtSeq)
	if err != nil {
		return protocol.PrefixPage{}, temporal.NewNonRetryableApplicationError(err.Error(), failure.TypeConfiguration, nil)
	}
	return eventlog.Pages(records, in.Offset, protocol.PageBytes), nil
}
