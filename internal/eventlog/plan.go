package eventlog

import (
	"fmt"

	"github.com/tinerun/tine/internal/protocol"
)

// SeqError says that an execution has no event with the seq to fork at.
type SeqError struct {
	AtSeq  int64
	Latest int64
}

func (e *SeqError) Error() string {
	if e.Latest == 0 {
		return fmt.Sprintf("cannot fork at event %d: the execution has no events yet", e.AtSeq)
	}
	return fmt.Sprintf("cannot fork at event %d: the execution has events 1 to %d", e.AtSeq, e.Latest)
}

// Plan is what a fork starts from.
type Plan struct {
	AtSeq int64 `json:"at_seq"`
	// HistoryEvents is how much of the source's history the plan knows. A fork of a
	// running execution that loads its prefix from just so much agrees with its plan.
	HistoryEvents int64 `json:"history_events"`
	// Restoration has one entry for each resource registered at the fork point.
	Restoration map[string]protocol.Restoration `json:"restoration"`
	// Effects are those of [Log.EffectsSince] the fork point.
	Effects []protocol.Effect `json:"effects,omitempty"`
}

// PlanFork plans a fork at an event. The only error is a [*SeqError].
func (l *Log) PlanFork(atSeq int64) (Plan, error) {
	if atSeq < 1 || atSeq > l.LatestSeq() {
		return Plan{}, &SeqError{AtSeq: atSeq, Latest: l.LatestSeq()}
	}
	plan := Plan{
		AtSeq:         atSeq,
		HistoryEvents: l.HistoryEvents,
		Restoration:   map[string]protocol.Restoration{},
		Effects:       l.EffectsSince(atSeq),
	}
	for _, r := range l.registered(atSeq) {
		plan.Restoration[r.Key] = l.restoration(r, atSeq)
	}
	return plan, nil
}

// registered are the resources that exist at an event.
func (l *Log) registered(seq int64) []*Resource {
	for i, r := range l.Resources {
		if r.RegisteredSeq > seq {
			return l.Resources[:i]
		}
	}
	return l.Resources
}

// restoration selects what the resource of a fork starts from: the newest checkpoint
// that covers the fork point, else the newest before it, else what the resource
// itself started from, else the initial environment.
func (l *Log) restoration(r *Resource, atSeq int64) protocol.Restoration {
	best, covered := l.newest(r.Key, atSeq)
	if best == nil {
		return hosted(protocol.Restoration{CheckpointRef: l.startedFrom(r, atSeq)}, r)
	}
	return hosted(protocol.Restoration{
		CheckpointRef: best.CheckpointRef,
		CheckpointSeq: best.CoveredSeq,
		Covered:       covered,
	}, r)
}

// hosted names the host that holds the checkpoint: the one that holds the resource
// it was taken of. The initial environment is at home everywhere.
func hosted(restoration protocol.Restoration, r *Resource) protocol.Restoration {
	if restoration.CheckpointRef != "" {
		restoration.Host = r.Host
	}
	return restoration
}

// newest is the resource's newest checkpoint that covers seq, or else the newest
// from before seq, or nil. The event that recorded it may lie after seq.
func (l *Log) newest(key string, seq int64) (best *Checkpoint, covered bool) {
	for i := range l.Checkpoints {
		c := &l.Checkpoints[i]
		if c.Key != key || c.CoveredSeq > seq {
			continue
		}
		covers := c.covers(seq)
		if best == nil || covers && !covered || covers == covered && c.CoveredSeq >= best.CoveredSeq {
			best, covered = c, covers
		}
	}
	return best, covered
}

// startedFrom is the checkpoint that the resource of a fork was created from, if
// it had been by seq.
func (l *Log) startedFrom(r *Resource, seq int64) string {
	for i := seq - 1; i >= 0; i-- {
		if l.Events[i].Type == ResourceInitialized && l.subjects[i].resource == r {
			return l.subjects[i].ref
		}
	}
	return ""
}
