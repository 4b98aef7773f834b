package eventlog

import "github.com/tinerun/tine/internal/protocol"

// limit records that a rate limit holds a step up, or refuses it. Limits come before
// the decision, so they have nothing to say of a step that is decided.
func (p *Projector) limit(s stamp, step *Step, l protocol.Limited) error {
	if step.Decision != "" {
		return nil
	}
	step.RuleID, step.Reason, step.PolicyDigest = l.RuleID, l.Reason, l.PolicyDigest
	p.become(step, StepStatusLimited)
	step.ParkedUntil = l.Until
	about := subject{step: step}
	if l.Until == nil {
		about.refused = &l
	}
	payload := limitedPayload{decisionPayload: step.decisionPayload(), Until: l.Until}
	_, err := p.emit(s, StepRateLimited, payload, about)
	return err
}

// askAgain opens a step again that a rate limit has refused: the handler has asked for it
// once more.
func (p *Projector) askAgain(step *Step) {
	if !step.refused() {
		return
	}
	step.RuleID, step.Reason, step.PolicyDigest = "", "", ""
	p.become(step, StepStatusProposed)
}
