package eventlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	historypb "go.temporal.io/api/history/v1"

	"github.com/tinerun/tine/internal/protocol"
)

// The SDK's format of a local activity's marker. It is not documented; a test
// replays such a marker, so that an SDK with another format fails it.
const (
	localActivityMarker = "LocalActivity"
	markerDataKey       = "data"
	markerResultKey     = "result"
)

type markerData struct {
	ActivityType string
	Attempt      int
}

// marker reads the result of a local activity.
func (p *Projector) marker(s stamp, a *historypb.MarkerRecordedEventAttributes) error {
	if a.GetMarkerName() != localActivityMarker {
		return nil // of the SDK (Version, SideEffect) or of another one
	}
	var data markerData
	if err := p.dec.decode(a.GetDetails()[markerDataKey], &data); err != nil {
		return fmt.Errorf("marker data: %w", err)
	}
	if !strings.HasPrefix(data.ActivityType, protocol.Prefix) {
		return nil // a local activity of the agent
	}
	result := a.GetDetails()[markerResultKey]
	if result == nil && a.GetFailure() != nil {
		p.log.Ignored++ // the workflow asks again, or fails
		return nil
	}
	switch data.ActivityType {
	case protocol.ActivityDecide, protocol.ActivityStep, protocol.ActivitySettle:
		var rec protocol.StepRecord
		if err := p.dec.decode(result, &rec); err != nil {
			return fmt.Errorf("result of %s: %w", data.ActivityType, err)
		}
		return p.record(s, rec, data)
	case protocol.ActivityNote:
		var note protocol.Divergence
		if err := p.dec.decode(result, &note); err != nil {
			return fmt.Errorf("result of %s: %w", data.ActivityType, err)
		}
		return p.diverged(s, note)
	case protocol.ActivityBegin:
		var begin protocol.Begin
		if err := p.dec.decode(result, &begin); err != nil {
			return fmt.Errorf("result of %s: %w", data.ActivityType, err)
		}
		p.log.PolicyDigest, p.log.Unrestricted = begin.PolicyDigest, begin.Unrestricted
		return nil
	case protocol.ActivityState:
		var left protocol.State
		if err := p.dec.decode(result, &left); err != nil {
			return fmt.Errorf("result of %s: %w", data.ActivityType, err)
		}
		p.log.State = left.State
		return nil
	case protocol.ActivityJoin: // the session's answer is a signal
		var joined protocol.Joined
		if result != nil { // it had none once
			if err := p.dec.decode(result, &joined); err != nil {
				return fmt.Errorf("result of %s: %w", data.ActivityType, err)
			}
		}
		p.joins[joined.Token] = true
		return nil
	default:
		p.log.Ignored++
		return nil
	}
}

func (p *Projector) diverged(s stamp, note protocol.Divergence) error {
	p.log.Divergence = &note
	_, err := p.emit(s, ExecutionDiverged, note, subject{})
	return err
}

// record applies what a local activity says of a step. A step that is settled
// stays as it is, and what happens to one that waits for approval is an update's to say.
func (p *Projector) record(s stamp, rec protocol.StepRecord, data markerData) error {
	step, err := p.declared(s, rec.Step)
	if err != nil || step.settled() {
		return err
	}
	step.Replayed = false // also if a refusal of it was copied
	switch a := p.pending[step.StepID]; {
	case a != nil && rec.Closed != nil:
		return p.expired(s, a, rec.Closed.Rationale)
	case a != nil:
		return nil
	case rec.Undecided:
		p.askAgain(step)
		return nil
	case rec.Limited != nil:
		return p.limit(s, step, *rec.Limited)
	case rec.Decision != nil:
		if err := p.decide(s, step, rec); err != nil {
			return err
		}
	}
	return p.progress(s, step, rec, data)
}

// progress applies what a record says of a step's body. A step that waits for approval
// has none yet.
func (p *Projector) progress(s stamp, step *Step, rec protocol.StepRecord, data markerData) error {
	if step.Status == StepStatusAwaiting {
		return nil
	}
	if step.startable() && (rec.Executing || rec.Outcome != nil && !givenUp(rec, data)) {
		if err := p.begin(s, step); err != nil {
			return err
		}
	}
	if rec.Outcome == nil || step.settled() {
		return nil
	}
	if data.ActivityType == protocol.ActivityStep { // its body ran in the local activity
		step.Attempts = data.Attempt
	}
	return p.settle(s, step, settledType(*rec.Outcome), *rec.Outcome)
}

// givenUp says that the step was cancelled before its body could run: while it waited for its
// turn again, after a limit or an approval.
func givenUp(rec protocol.StepRecord, data markerData) bool {
	return data.ActivityType == protocol.ActivitySettle && settledType(*rec.Outcome) == StepCancelled
}

// declared is the step of a record, proposed now if it is new.
func (p *Projector) declared(s stamp, d protocol.Step) (*Step, error) {
	if d.ID == "" {
		return nil, errors.New("a step record names no step")
	}
	if step := p.steps[d.ID]; step != nil {
		if step.Args == nil && d.Args != nil {
			return step, step.setArgs(d.Args)
		}
		return step, nil
	}
	return p.propose(s, d)
}

func (p *Projector) propose(s stamp, d protocol.Step) (*Step, error) {
	step := &Step{
		StepID:      d.ID,
		Kind:        d.Kind,
		Target:      d.Target,
		Occurrence:  d.Occurrence,
		Status:      StepStatusProposed,
		Idempotency: d.Idempotency,
		Resources:   d.Resources,
		Replayed:    s.copied,
	}
	if step.Idempotency == "" {
		step.Idempotency = protocol.SafeToRetry
	}
	if d.Args != nil { // else they are the input of the activity to come
		if err := step.setArgs(d.Args); err != nil {
			return nil, err
		}
	}
	seq, err := p.emit(s, StepProposed, step.payload(), subject{step: step})
	if err != nil {
		return nil, err
	}
	step.ProposedSeq = seq
	p.steps[step.StepID] = step
	p.log.Steps = append(p.log.Steps, step)
	return step, nil
}

func (s *Step) setArgs(args json.RawMessage) error {
	hash, err := protocol.ArgsHash(args)
	if err != nil {
		return fmt.Errorf("arguments of step %s: %w", s.StepID, err)
	}
	s.Args, s.ArgsHash = args, hash
	return nil
}

// setArgs sets arguments that may build on those of an earlier step.
func (p *Projector) setArgs(step *Step, args json.RawMessage, base *protocol.MessagesBase) error {
	if base == nil {
		return step.setArgs(args)
	}
	earlier := p.steps[base.StepID]
	if earlier == nil {
		return fmt.Errorf("arguments of step %s build on step %s, which is not there", step.StepID, base.StepID)
	}
	whole, err := base.OnBase(args, protocol.Messages(earlier.Args))
	if err != nil {
		return fmt.Errorf("arguments of step %s: %w", step.StepID, err)
	}
	p.log.requests[step] = requestOnBase{base, args}
	return step.setArgs(whole)
}

// startable says that the step may begin: it is allowed, and has not begun.
func (s *Step) startable() bool {
	return s.Decision == protocol.Allow && s.Status == StepStatusProposed
}

// decide records a policy's decision, unless the step has one already: the record of
// an outcome may repeat it. A denial settles the step.
func (p *Projector) decide(s stamp, step *Step, rec protocol.StepRecord) error {
	if step.Decision != "" {
		return nil
	}
	switch d := *rec.Decision; d.Decision {
	case protocol.Allow:
		return p.allow(s, step, d)
	case protocol.RequireApproval:
		return p.request(s, step, d, rec.Approval)
	case protocol.Deny:
		return p.deny(s, step, d, rec.Outcome)
	default:
		return fmt.Errorf("step %s has the unknown decision %q", step.StepID, d.Decision)
	}
}

func (p *Projector) deny(s stamp, step *Step, d protocol.Decision, outcome *protocol.Outcome) error {
	if outcome == nil || outcome.Error == nil {
		message := d.Reason
		if message == "" {
			message = "denied by rule " + d.RuleID
		}
		outcome = &protocol.Outcome{Error: &protocol.StepError{Message: message, Reason: protocol.ReasonPolicyDenied}}
	}
	return p.denied(s, step, d, *outcome)
}

func (p *Projector) denied(s stamp, step *Step, d protocol.Decision, outcome protocol.Outcome) error {
	step.setDecision(d)
	seq, err := p.emit(s, StepDenied, step.decisionPayload(), subject{step: step})
	if err != nil {
		return err
	}
	return p.end(step, StepStatusDenied, seq, outcome)
}

func (p *Projector) allow(s stamp, step *Step, d protocol.Decision) error {
	step.setDecision(d)
	p.become(step, StepStatusProposed)
	_, err := p.emit(s, StepAllowed, step.decisionPayload(), subject{step: step})
	return err
}

// awaiting records that the step needs approval.
func (p *Projector) awaiting(s stamp, step *Step, d protocol.Decision) error {
	step.setDecision(d)
	decision := step.decision()
	payload := awaitingPayload{decisionPayload: step.decisionPayload(), ApprovalID: step.ApprovalID}
	_, err := p.emit(s, StepAwaitingApproval, payload, subject{step: step, decision: &decision})
	return err
}

func (s *Step) setDecision(d protocol.Decision) {
	s.Decision, s.RuleID, s.Reason, s.PolicyDigest = d.Decision, d.RuleID, d.Reason, d.PolicyDigest
}

// begin records that the step's body may have run. Only a live step changes what
// is captured: a copied one ran in the source.
func (p *Projector) begin(s stamp, step *Step) error {
	payload := executingPayload{stepPayload: step.payload(), Resources: step.Resources}
	seq, err := p.emit(s, StepExecuting, payload, subject{step: step})
	if err != nil {
		return err
	}
	step.ExecutingSeq = seq
	p.become(step, StepStatusExecuting)
	if !s.copied {
		p.coverage.executing(seq, step)
	}
	return nil
}

// settledType is the event that records an outcome.
func settledType(o protocol.Outcome) string {
	switch {
	case o.Error == nil:
		return StepSucceeded
	case o.Error.Reason == protocol.ReasonCancelled:
		return StepCancelled
	default:
		return StepFailed
	}
}

var settledStatus = map[string]string{
	StepSucceeded: StepStatusSucceeded,
	StepFailed:    StepStatusFailed,
	StepCancelled: StepStatusCancelled,
}

func (p *Projector) settle(s stamp, step *Step, typ string, outcome protocol.Outcome) error {
	payload := settledPayload{stepPayload: step.payload(), Error: outcome.Error}
	seq, err := p.emit(s, typ, payload, subject{step: step})
	if err != nil {
		return err
	}
	for _, r := range p.log.Resources {
		if step.ExecutingSeq != 0 && step.affects(r.Key) {
			r.Count++
		}
	}
	return p.end(step, settledStatus[typ], seq, outcome)
}

// end gives the step its last status and its outcome.
func (p *Projector) end(step *Step, status string, seq int64, outcome protocol.Outcome) error {
	p.become(step, status)
	step.SettledSeq = seq
	step.Error = outcome.Error
	if status == StepStatusSucceeded {
		step.Result = outcome.Result
		if step.Result == nil {
			step.Result = null
		}
		if step.Kind == protocol.KindLLM {
			step.Usage = protocol.ResultUsage(step.Result)
		}
	}
	if step.Args == nil { // no activity had them, so there are none
		return step.setArgs(null)
	}
	return nil
}

func (p *Projector) become(step *Step, status string) {
	step.Status = status
	step.ParkedUntil = nil
	p.setStatus()
}
