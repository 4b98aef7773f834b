package eventlog

import (
	"errors"
	"fmt"

	"github.com/tinerun/tine/internal/protocol"
)

// page turns a page of a fork's prefix into events.
func (p *Projector) page(s stamp, page protocol.PrefixPage) error {
	for i := range page.Records {
		rec := &page.Records[i]
		from := stamp{at: rec.At, historyID: s.historyID, copied: true}
		if err := p.copied(from, rec); err != nil {
			return fmt.Errorf("record %d (%s): %w", i, rec.Type, err)
		}
	}
	return nil
}

func (p *Projector) copied(s stamp, rec *protocol.PrefixRecord) error {
	switch rec.Type {
	case ResourceRegistered:
		return p.copiedResource(s, rec)
	case ResourceInitialized, ResourceCheckpointed:
		return p.copiedCheckpoint(s, rec)
	case StepProposed:
		return p.copiedProposal(s, rec)
	default:
		return p.copiedStep(s, rec)
	}
}

func (p *Projector) copiedResource(s stamp, rec *protocol.PrefixRecord) error {
	if rec.Resource == nil {
		return errors.New("the record does not describe its resource")
	}
	r, err := p.register(s, rec.Resource.ResourceSpec)
	if err != nil {
		return err
	}
	r.CoverageReuse = rec.Resource.CoverageReuse
	return nil
}

func (p *Projector) copiedCheckpoint(s stamp, rec *protocol.PrefixRecord) error {
	r := p.log.Resource(rec.Key)
	if r == nil {
		return fmt.Errorf("resource %q has not been registered", rec.Key)
	}
	var c protocol.PrefixCheckpoint
	if rec.Checkpoint != nil {
		c = *rec.Checkpoint
	}
	if rec.Type == ResourceInitialized {
		return p.initialized(s, r, c.Ref)
	}
	return p.checkpointed(s, Checkpoint{
		Key:            r.Key,
		CheckpointRef:  c.Ref,
		CoveredSeq:     c.CoveredSeq,
		InvalidatedSeq: c.InvalidatedSeq,
		Cause:          c.Cause,
	})
}

func (p *Projector) copiedProposal(s stamp, rec *protocol.PrefixRecord) error {
	if rec.Step == nil || rec.Step.ID != rec.StepID {
		return errors.New("the record does not describe its step")
	}
	p.seeds[rec.StepID] = rec.Step
	proposed := rec.Step.Step
	if rec.Step.Base != nil {
		proposed.Args = nil
	}
	step, err := p.propose(s, proposed)
	if err != nil || rec.Step.Base == nil {
		return err
	}
	return p.setArgs(step, rec.Step.Args, rec.Step.Base)
}

// copiedStep replays an event of a step, whose final decision came with the record that
// proposed it. A copied step waits for nobody: it has been decided in the source.
func (p *Projector) copiedStep(s stamp, rec *protocol.PrefixRecord) error {
	step, seed := p.steps[rec.StepID], p.seeds[rec.StepID]
	if seed == nil {
		return fmt.Errorf("step %q has not been proposed", rec.StepID)
	}
	var decision protocol.Decision
	if seed.Decision != nil {
		decision = *seed.Decision
	}
	if rec.Decision != nil {
		decision = *rec.Decision
	}
	var outcome protocol.Outcome
	if rec.Outcome != nil {
		outcome = *rec.Outcome
	}
	switch rec.Type {
	case StepRateLimited:
		if rec.Limited == nil {
			return errors.New("the record does not say what refused the step")
		}
		return p.limit(s, step, *rec.Limited)
	case StepAllowed:
		return p.allow(s, step, decision)
	case StepAwaitingApproval:
		return p.awaiting(s, step, decision)
	case StepDenied:
		return p.denied(s, step, decision, outcome)
	case StepExecuting:
		return p.begin(s, step)
	case StepSucceeded, StepFailed:
		step.Attempts = seed.Attempts
		return p.settle(s, step, rec.Type, outcome)
	default:
		return errors.New("events of this type are never copied")
	}
}
