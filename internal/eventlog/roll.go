package eventlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	commonpb "go.temporal.io/api/common/v1"

	"github.com/tinerun/tine/internal/protocol"
)

// Rolled is the whole log as the execution's next run goes on with it. What it holds gives the
// same log again, with the same seqs, when the histories of earlier runs are gone.
func (l *Log) Rolled() ([]protocol.RolledRecord, error) {
	records := []protocol.RolledRecord{{Head: &protocol.RolledHead{
		CreatedAt: l.CreatedAt, Runs: l.Runs, Parent: l.Parent, Previous: l.Previous,
		PolicyDigest: l.PolicyDigest, Unrestricted: l.Unrestricted, Divergence: l.Divergence,
	}}}
	for _, r := range l.Resources {
		raw, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		records = append(records, protocol.RolledRecord{Resource: &protocol.RolledRegistration{
			ResourceSpec: r.prefix().ResourceSpec, CoverageReuse: r.CoverageReuse,
			Bound: r.BoundSeq != 0, Count: r.Count, Covered: r.Covered, Log: raw,
		}})
	}
	refusals := l.refusals()
	builds := l.building(func(*Step) bool { return true })
	for _, step := range l.Steps {
		rolled := &protocol.RolledStep{Refusals: refusals[step]}
		logged := *step
		if builds[step] {
			request := l.requests[step]
			logged.Args, rolled.Base = request.rest, request.base
		}
		raw, err := json.Marshal(logged)
		if err != nil {
			return nil, err
		}
		rolled.Log = raw
		if step.ExecutingSeq != 0 && !step.settled() {
			rolled.Began = &l.Events[step.ExecutingSeq-1].OccurredAt
		}
		records = append(records, protocol.RolledRecord{Step: rolled})
	}
	for _, a := range l.Approvals {
		records = append(records, protocol.RolledRecord{Approval: a})
	}
	for _, c := range l.Checkpoints {
		raw, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		records = append(records, protocol.RolledRecord{Checkpoint: raw})
	}
	for i := range l.Events {
		records = append(records, protocol.RolledRecord{Event: l.rolledEvent(i)})
	}
	return records, nil
}

// RolledPage is the page of a log's records that begins at offset, like [Pages].
func RolledPage(records []protocol.RolledRecord, offset, maxBytes int) protocol.RolledPage {
	page, next := pageOf(records, offset, maxBytes)
	return protocol.RolledPage{Records: page, Next: next}
}

// refusals are those of rate limits, by the step that they turned away.
func (l *Log) refusals() map[*Step][]protocol.Limited {
	found := map[*Step][]protocol.Limited{}
	for _, about := range l.subjects {
		if about.refused != nil {
			found[about.step] = append(found[about.step], *about.refused)
		}
	}
	return found
}

func (l *Log) rolledEvent(i int) *protocol.RolledEvent {
	e, about := &l.Events[i], l.subjects[i]
	rolled := &protocol.RolledEvent{
		Type: e.Type, Payload: e.Payload, At: e.OccurredAt,
		Run: slices.Index(l.Runs, e.RunID), HistoryEventID: e.HistoryEventID,
		Decision: about.decision, Refused: about.refused, Ref: about.ref,
	}
	if about.step != nil {
		rolled.StepID = about.step.StepID
	}
	if about.resource != nil {
		rolled.Key = about.resource.Key
	}
	return rolled
}

func (rolledTask) completed(p *Projector, s stamp, _ int, result *commonpb.Payloads) error {
	var page protocol.RolledPage
	if err := p.dec.decode(result, &page); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	for i := range page.Records {
		if err := p.restore(&page.Records[i]); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
	}
	if page.Next != 0 {
		return nil
	}
	return p.continued(s)
}

// failed says nothing: the workflow asks again, or fails.
func (rolledTask) failed(*Projector, stamp, int, error) error { return nil }

// continued goes on with a log that is complete.
func (p *Projector) continued(s stamp) error {
	previous := p.log.Loading
	p.log.Loading, p.loading, p.started = "", false, true
	p.coverage.resume()
	p.setStatus()
	_, err := p.emit(s, ExecutionContinued, continuedPayload{RunID: p.log.RunID, PreviousRunID: previous}, subject{})
	return err
}

func (p *Projector) restore(rec *protocol.RolledRecord) error {
	switch log := p.log; {
	case rec.Head != nil:
		head := rec.Head
		log.CreatedAt, log.Parent, log.Previous = head.CreatedAt, head.Parent, head.Previous
		log.Runs = append(slices.Clone(head.Runs), log.RunID)
		log.Divergence = head.Divergence
		return nil
	case rec.Resource != nil:
		r := &Resource{}
		log.Resources = append(log.Resources, r)
		return json.Unmarshal(rec.Resource.Log, r)
	case rec.Step != nil:
		step := &Step{}
		if err := json.Unmarshal(rec.Step.Log, step); err != nil {
			return err
		}
		if step.ArgsHash == "" { // they were not known yet
			step.Args = nil
		}
		if rec.Step.Base != nil {
			if err := p.setArgs(step, step.Args, rec.Step.Base); err != nil {
				return err
			}
		}
		log.Steps = append(log.Steps, step)
		p.steps[step.StepID] = step
		return nil
	case rec.Approval != nil:
		log.Approvals = append(log.Approvals, rec.Approval)
		if rec.Approval.Status == protocol.ApprovalPending {
			p.pending[rec.Approval.StepID] = rec.Approval
		}
		return nil
	case rec.Checkpoint != nil:
		var c Checkpoint
		err := json.Unmarshal(rec.Checkpoint, &c)
		log.Checkpoints = append(log.Checkpoints, c)
		return err
	case rec.Event != nil:
		return p.restoreEvent(rec.Event)
	default:
		return errors.New("the record is empty")
	}
}

func (p *Projector) restoreEvent(rec *protocol.RolledEvent) error {
	if rec.Run < 0 || rec.Run >= len(p.log.Runs) {
		return fmt.Errorf("there is no run %d", rec.Run)
	}
	p.log.Events = append(p.log.Events, Event{
		ExecutionID: p.log.ExecutionID, Seq: p.log.LatestSeq() + 1, Type: rec.Type, Payload: rec.Payload,
		OccurredAt: rec.At, RunID: p.log.Runs[rec.Run], HistoryEventID: rec.HistoryEventID,
	})
	p.log.subjects = append(p.log.subjects, subject{
		step: p.steps[rec.StepID], resource: p.log.Resource(rec.Key),
		decision: rec.Decision, refused: rec.Refused, ref: rec.Ref,
	})
	return nil
}

// resume takes up the coverage of a log that was restored.
func (c *coverage) resume() {
	for i := range c.log.subjects {
		step := c.log.subjects[i].step
		if c.log.Events[i].Type != StepExecuting || step.Replayed {
			continue
		}
		seq := c.log.Events[i].Seq
		c.began = append(c.began, seq)
		for _, key := range step.Resources {
			if step.affects(key) {
				c.wrote[key] = append(c.wrote[key], seq)
			}
		}
	}
	for i, checkpoint := range c.log.Checkpoints {
		if checkpoint.InvalidatedSeq == 0 {
			c.open[checkpoint.Key] = append(c.open[checkpoint.Key], i)
		}
	}
}

// Ended gives a log the end of the next run, which ended before it had loaded this log.
func (l *Log) Ended(next *Log) {
	l.Runs = append(l.Runs, next.RunID)
	l.Status, l.FailureReason, l.ClosedAt = next.Status, next.FailureReason, next.ClosedAt
	for _, e := range next.Events {
		e.Seq = l.LatestSeq() + 1
		l.Events = append(l.Events, e)
		l.subjects = append(l.subjects, subject{})
	}
}
