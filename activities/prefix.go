package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

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
	key := fmt.Sprintf("fork/%s/%s/%d/%d", in.ExecutionID, in.RunID, in.HistoryEvents, in.AtSeq)
	records, err := recordsOf(a, key, func() ([]protocol.PrefixRecord, error) {
		log, err := a.runLog(ctx, in.ExecutionID, in.RunID, in.HistoryEvents, "from which this one was forked")
		if err != nil {
			return nil, err
		}
		return log.Prefix(in.AtSeq)
	})
	if err != nil {
		return protocol.PrefixPage{}, err
	}
	page := eventlog.Pages(records, in.Offset, protocol.PageBytes)
	a.prefixes.served(key, page.Next)
	return page, nil
}

// tineLoadRun is the activity that reads a page of the log which the run before has left.
func (a *Activities) tineLoadRun(ctx context.Context, in protocol.LoadRun) (protocol.RolledPage, error) {
	key := fmt.Sprintf("run/%s/%s", in.ExecutionID, in.RunID)
	records, err := recordsOf(a, key, func() ([]protocol.RolledRecord, error) {
		log, err := a.runLog(ctx, in.ExecutionID, in.RunID, 0, "which this one continues")
		if err != nil {
			return nil, err
		}
		return log.Rolled()
	})
	if err != nil {
		return protocol.RolledPage{}, err
	}
	page := eventlog.RolledPage(records, in.Offset, protocol.PageBytes)
	a.prefixes.served(key, page.Next)
	return page, nil
}

// runLog reads the log of one run. That it is gone is final.
func (a *Activities) runLog(ctx context.Context, id, runID string, limit int64, whose string) (*eventlog.Log, error) {
	log, err := history.Read(ctx, activity.GetClient(ctx), id, runID, limit, a.opts.Decoder)
	var gone *serviceerror.NotFound
	if errors.As(err, &gone) {
		return nil, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("the history of execution %s, run %s, %s, is gone: it was deleted, or its retention has passed", id, runID, whose),
			failure.TypeUnavailable, nil)
	}
	return log, err
}

// maxPrefixes bounds the prefixes of which a worker serves pages at a time.
const maxPrefixes = 2

// prefixes keeps what pages are cut from until the last one is served, so that a long history is
// not read again for each.
type prefixes struct {
	mu   sync.Mutex
	keys []string // the last used one last
	kept map[string]any
}

// recordsOf gives the kept records, or has them read.
func recordsOf[R any](a *Activities, key string, read func() ([]R, error)) ([]R, error) {
	if records, ok := a.prefixes.get(key).([]R); ok {
		return records, nil
	}
	records, err := read()
	var seq *eventlog.SeqError
	if errors.As(err, &seq) {
		return nil, temporal.NewNonRetryableApplicationError(err.Error(), failure.TypeConfiguration, nil)
	}
	if err == nil {
		a.prefixes.put(key, records)
	}
	return records, err
}

func (p *prefixes) get(key string) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept[key]
}

func (p *prefixes) put(key string, records any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil {
		p.kept = map[string]any{}
	}
	if _, known := p.kept[key]; !known {
		p.keys = append(p.keys, key)
	}
	p.kept[key] = records
	if len(p.keys) > maxPrefixes {
		delete(p.kept, p.keys[0])
		p.keys = p.keys[1:]
	}
}

// served forgets records whose last page has been served.
func (p *prefixes) served(key string, next int) {
	if next != 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.kept, key)
	p.keys = slices.DeleteFunc(p.keys, func(other string) bool { return other == key })
}
