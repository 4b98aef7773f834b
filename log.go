package tine

import (
	"context"
	"iter"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/history"
)

// Log is an execution's event log.
type Log struct {
	log *eventlog.Log
}

// Execution describes the execution as the log has it.
func (l *Log) Execution() *Execution { return describeLog(l.log) }

// Events are the log's entries, by seq.
func (l *Log) Events() []Event { return l.log.Events }

// Steps are the recorded steps, in the order they were proposed.
func (l *Log) Steps() []*Step { return l.log.Steps }

// ForkPoints is what checkpoints cover.
func (l *Log) ForkPoints() ForkPoints { return l.log.ForkPoints() }

// Covered reports whether a fork at seq starts with every resource as it was then.
func (l *Log) Covered(seq int64) bool { return l.log.Covered(seq) }

// Follow yields an execution's events after afterSeq, first those there are and then
// each as it happens, until the execution ends or ctx does.
func (c *Client) Follow(ctx context.Context, id string, afterSeq int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		next := max(afterSeq, 0)
		err := c.follow(ctx, id, func(log *eventlog.Log) bool {
			for ; next < log.LatestSeq(); next++ {
				if !yield(log.Events[next], nil) {
					return false
				}
			}
			return true
		})
		if err != nil {
			yield(Event{}, err)
		}
	}
}

// Wait waits until an execution has ended and describes it.
func (c *Client) Wait(ctx context.Context, id string) (*Execution, error) {
	var ended *eventlog.Log
	err := c.follow(ctx, id, func(log *eventlog.Log) bool {
		ended = log
		return true
	})
	if err != nil {
		return nil, err
	}
	return describeLog(ended), nil
}

func (c *Client) follow(ctx context.Context, id string, fn func(*eventlog.Log) bool) error {
	runID, err := c.run(ctx, id)
	if err != nil {
		return err
	}
	return named(id, history.Follow(ctx, c.temporal, id, runID, c.decoder, fn))
}
