package eventlog

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// ownEvents is how many events of its own a fork has before the copied ones:
// execution.created and execution.forked.
const ownEvents = 2

// Prefix is what a fork at an event copies, in the order of the fork's log: the
// resources and settled steps as of the event, what each resource starts from, and
// the checkpoints. The only error is a [*SeqError].
func (l *Log) Prefix(atSeq int64) ([]protocol.PrefixRecord, error) {
	plan, err := l.PlanFork(atSeq)
	if err != nil {
		return nil, err
	}
	records, seqs := l.copiedEvents(atSeq)
	for _, r := range l.registered(atSeq) {
		records = append(records, protocol.PrefixRecord{
			Type:       ResourceInitialized,
			At:         records[len(records)-1].At, // the fork has no time of its own yet
			Key:        r.Key,
			Checkpoint: reference(plan.Restoration[r.Key].CheckpointRef),
		})
	}
	return append(records, l.copiedCheckpoints(atSeq, seqs)...), nil
}

// copiedEvents are the events of the source that a fork repeats, and their seqs.
func (l *Log) copiedEvents(atSeq int64) ([]protocol.PrefixRecord, seqMap) {
	var records []protocol.PrefixRecord
	var seqs seqMap
	refused := l.refusedBy(atSeq)
	builds := l.building(func(s *Step) bool { return s.copiedAt(atSeq) })
	for i := range l.Events[:atSeq] {
		if step := l.subjects[i].step; step != nil && refused[step] && !step.copiedAt(atSeq) {
			if rec, ok := copyRefusal(&l.Events[i], l.subjects[i]); ok {
				records = append(records, rec)
				seqs = append(seqs, l.Events[i].Seq)
			}
			continue
		}
		rec, ok := copyEvent(&l.Events[i], l.subjects[i], atSeq)
		if ok {
			if step := l.subjects[i].step; rec.Step != nil && builds[step] {
				request := l.requests[step]
				rec.Step.Args, rec.Step.Base = request.rest, request.base
			}
			records = append(records, rec)
			seqs = append(seqs, l.Events[i].Seq)
		}
	}
	return records, seqs
}

// building are the steps whose arguments build on those of a step that was proposed before, of those
// that are copied. Where the other one is not copied the arguments are copied as a whole.
func (l *Log) building(copied func(*Step) bool) map[*Step]bool {
	before, builds := map[string]bool{}, map[*Step]bool{}
	for _, step := range l.Steps {
		if !copied(step) {
			continue
		}
		if request, ok := l.requests[step]; ok {
			builds[step] = before[request.base.StepID]
		}
		before[step.StepID] = true
	}
	return builds
}

// refusedBy are the steps that a rate limit has refused up to an event.
func (l *Log) refusedBy(atSeq int64) map[*Step]bool {
	refused := map[*Step]bool{}
	for _, about := range l.subjects[:atSeq] {
		if about.refused != nil {
			refused[about.step] = true
		}
	}
	return refused
}

// copyRefusal copies what a fork has of a step that was only ever refused: its handler may have
// gone another way for that.
func copyRefusal(ev *Event, about subject) (protocol.PrefixRecord, bool) {
	rec := protocol.PrefixRecord{Type: ev.Type, At: ev.OccurredAt, StepID: about.step.StepID}
	switch {
	case ev.Type == StepProposed:
		rec.Step = about.step.prefix()
		rec.Step.Decision, rec.Step.Attempts = nil, 0 // of later
	case about.refused != nil:
		rec.Limited = about.refused
	default:
		return rec, false
	}
	return rec, true
}

func copyEvent(ev *Event, about subject, atSeq int64) (protocol.PrefixRecord, bool) {
	rec := protocol.PrefixRecord{Type: ev.Type, At: ev.OccurredAt}
	switch {
	case ev.Type == StepRateLimited && about.refused == nil: // the fork does not wait again
		return rec, false
	case about.step != nil && about.step.copiedAt(atSeq):
		rec.StepID = about.step.StepID
		switch ev.Type {
		case StepProposed:
			rec.Step = about.step.prefix()
		case StepRateLimited:
			rec.Limited = about.refused
		case StepAwaitingApproval:
			rec.Decision = about.decision
		case StepSucceeded, StepFailed, StepDenied:
			rec.Outcome = &protocol.Outcome{Result: about.step.Result, Error: about.step.Error}
		}
	case ev.Type == ResourceRegistered:
		rec.Key = about.resource.Key
		rec.Resource = about.resource.prefix()
	case ev.Type == ResourceInitialized:
		rec.Key = about.resource.Key
		rec.Checkpoint = reference(about.ref)
	default:
		return rec, false
	}
	return rec, true
}

// copiedAt says whether a fork at an event has the step's outcome.
func (s *Step) copiedAt(atSeq int64) bool {
	return s.settled() && s.SettledSeq <= atSeq && s.Status != StepStatusCancelled
}

func (s *Step) prefix() *protocol.PrefixStep {
	p := &protocol.PrefixStep{
		Step: protocol.Step{
			ID:          s.StepID,
			Kind:        s.Kind,
			Target:      s.Target,
			Args:        s.Args,
			Occurrence:  s.Occurrence,
			Idempotency: s.Idempotency,
			Resources:   s.Resources,
		},
		Attempts: s.Attempts,
	}
	if s.Decision != "" {
		decision := s.decision()
		p.Decision = &decision
	}
	return p
}

func (r *Resource) prefix() *protocol.PrefixResource {
	return &protocol.PrefixResource{
		ResourceSpec: protocol.ResourceSpec{
			Key:          r.Key,
			Driver:       r.Driver,
			Config:       r.Config,
			EverySteps:   r.EverySteps,
			OnCompletion: r.OnCompletion,
		},
		CoverageReuse: r.CoverageReuse,
	}
}

func reference(ref string) *protocol.PrefixCheckpoint {
	if ref == "" {
		return nil
	}
	return &protocol.PrefixCheckpoint{Ref: ref}
}

// copiedCheckpoints are the checkpoints that cover events of the fork, in its seqs.
// Of several that cover from one event on, the newest stays.
func (l *Log) copiedCheckpoints(atSeq int64, seqs seqMap) []protocol.PrefixRecord {
	times := l.checkpointTimes()
	var records []protocol.PrefixRecord
	for _, r := range l.registered(atSeq) {
		var own []protocol.PrefixRecord
		for _, i := range l.checkpointsOf(r.Key, atSeq) {
			rec := protocol.PrefixRecord{
				Type:       ResourceCheckpointed,
				At:         times[i],
				Key:        r.Key,
				Checkpoint: seqs.checkpoint(l.Checkpoints[i], atSeq),
			}
			if n := len(own); n > 0 && own[n-1].Checkpoint.CoveredSeq == rec.Checkpoint.CoveredSeq {
				own = own[:n-1]
			}
			own = append(own, rec)
		}
		records = append(records, own...)
	}
	slices.SortStableFunc(records, func(a, b protocol.PrefixRecord) int {
		return cmp.Compare(a.Checkpoint.CoveredSeq, b.Checkpoint.CoveredSeq)
	})
	return records
}

// checkpointsOf are the resource's checkpoints as of an event, oldest first, as indexes.
func (l *Log) checkpointsOf(key string, atSeq int64) []int {
	var own []int
	for i, c := range l.Checkpoints {
		if c.Key == key && c.CoveredSeq <= atSeq {
			own = append(own, i)
		}
	}
	slices.SortStableFunc(own, func(a, b int) int {
		return cmp.Compare(l.Checkpoints[a].CoveredSeq, l.Checkpoints[b].CoveredSeq)
	})
	return own
}

// checkpointTimes says when each of l.Checkpoints was taken.
func (l *Log) checkpointTimes() []time.Time {
	times := make([]time.Time, 0, len(l.Checkpoints))
	for i := range l.Events {
		if l.Events[i].Type == ResourceCheckpointed {
			times = append(times, l.Events[i].OccurredAt)
		}
	}
	return times
}

// seqMap maps seqs of a source to seqs of a fork. It has the seqs of the events
// that are copied, ascending.
type seqMap []int64

// at is the seq of the last event that the fork has of those up to seq.
func (m seqMap) at(seq int64) int64 {
	copied, _ := slices.BinarySearch(m, seq+1)
	return ownEvents + int64(copied)
}

// checkpoint maps an interval. Where the step that ended it is not copied the
// interval may be empty; where it ended after the fork point it is open again.
func (m seqMap) checkpoint(c Checkpoint, atSeq int64) *protocol.PrefixCheckpoint {
	mapped := &protocol.PrefixCheckpoint{Ref: c.CheckpointRef, CoveredSeq: m.at(c.CoveredSeq), Cause: c.Cause}
	if c.InvalidatedSeq != 0 && c.InvalidatedSeq <= atSeq {
		mapped.InvalidatedSeq = m.at(c.InvalidatedSeq)
	}
	return mapped
}

// Pages is the page of records that begins at offset. It has as many records as fit
// maxBytes of JSON before it is compressed, and at least one, so that paging always ends.
func Pages(records []protocol.PrefixRecord, offset, maxBytes int) protocol.PrefixPage {
	page, next := pageOf(records, offset, maxBytes)
	return protocol.PrefixPage{Records: page, Next: next}
}

func pageOf[R any](records []R, offset, maxBytes int) (page []R, next int) {
	page = []R{}
	if offset < 0 || offset >= len(records) {
		return page, 0
	}
	size := len("[]")
	for _, rec := range records[offset:] {
		size += encodedSize(rec) + len(",")
		if size > maxBytes && len(page) > 0 {
			return page, offset + len(page)
		}
		page = append(page, rec)
	}
	return page, 0
}

// encodedSize is the size of v as JSON. What cannot be encoded counts for nothing
// here, and is an error where the page is encoded.
func encodedSize(v any) int {
	raw, err := json.Marshal(v)
	if err != nil {
		return 0
	}
	return len(raw)
}
