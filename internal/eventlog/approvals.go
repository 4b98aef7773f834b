package eventlog

import (
	"cmp"
	"fmt"

	historypb "go.temporal.io/api/history/v1"

	"github.com/tinerun/tine/internal/protocol"
)

// request asks for the approval that a decision requires.
func (p *Projector) request(s stamp, step *Step, d protocol.Decision, window *protocol.ApprovalWindow) error {
	a := p.approval(s, step, d, window)
	step.ApprovalID = a.ID
	p.log.Approvals = append(p.log.Approvals, a)
	p.pending[step.StepID] = a
	p.become(step, StepStatusAwaiting)
	if err := p.awaiting(s, step, d); err != nil {
		return err
	}
	_, err := p.emit(s, ApprovalRequested, requestedPayload{
		ApprovalID:   a.ID,
		StepID:       a.StepID,
		StepType:     a.StepKind,
		Target:       a.Target,
		ArgsHash:     a.ArgsHash,
		PolicyDigest: a.PolicyDigest,
		RuleID:       a.RuleID,
		Reason:       a.Reason,
		Message:      a.Message,
		Approvers:    a.Approvers,
		ExpiresAt:    a.ExpiresAt,
	}, subject{})
	if err != nil || len(p.pending) > 1 {
		return err
	}
	_, err = p.emit(s, ExecutionBlocked, struct{}{}, subject{})
	return err
}

func (p *Projector) approval(s stamp, step *Step, d protocol.Decision, window *protocol.ApprovalWindow) *protocol.Approval {
	if window == nil { // a log that guesses is worth more than none
		window = &protocol.ApprovalWindow{RequestedAt: s.at, ExpiresAt: s.at.Add(protocol.DefaultApprovalTimeout)}
	}
	a := &protocol.Approval{
		ID:           protocol.ApprovalID(p.log.ExecutionID, step.StepID),
		ExecutionID:  p.log.ExecutionID,
		AgentID:      p.log.AgentID,
		StepID:       step.StepID,
		StepKind:     step.Kind,
		Target:       step.Target,
		Args:         step.Args,
		ArgsHash:     step.ArgsHash,
		PolicyDigest: d.PolicyDigest,
		Status:       protocol.ApprovalPending,
		RuleID:       d.RuleID,
		Reason:       d.Reason,
		RequestedAt:  window.RequestedAt,
		ExpiresAt:    window.ExpiresAt,
	}
	if d.Approval != nil {
		a.Message, a.Approvers = d.Approval.Message, d.Approval.Approvers
	}
	return a
}

// updateCompleted decides an approval, if the update has. A grant that comes too late
// changes nothing; nor does an update that failed.
func (p *Projector) updateCompleted(s stamp, u *historypb.WorkflowExecutionUpdateCompletedEventAttributes) error {
	by, ours := p.updates.complete(u.GetAcceptedEventId())
	success := u.GetOutcome().GetSuccess()
	if !ours || success == nil {
		return nil
	}
	var decided protocol.ApprovalDecided
	if err := p.dec.decode(success, &decided); err != nil {
		return fmt.Errorf("result of %s: %w", by.update, err)
	}
	a := p.pending[decided.StepID]
	if a == nil {
		return nil
	}
	if decided.Status != protocol.ApprovalGranted && decided.Status != protocol.ApprovalDenied {
		return fmt.Errorf("approval %s has the unknown status %q", a.ID, decided.Status)
	}
	a.Status, a.DecidedAt = decided.Status, &decided.DecidedAt
	a.DecidedBy, a.Rationale = decided.DecidedBy, decided.Rationale
	a.Identity, a.Principal = by.identity, by.principal
	if err := p.resolve(s, a); err != nil {
		return err
	}
	return p.resume(s)
}

// expired ends an approval that nobody has decided in time.
func (p *Projector) expired(s stamp, a *protocol.Approval, rationale string) error {
	if err := p.expire(s, a, cmp.Or(rationale, protocol.RationaleTimeout)); err != nil {
		return err
	}
	return p.resume(s)
}

func (p *Projector) expire(s stamp, a *protocol.Approval, rationale string) error {
	a.Status, a.Rationale = protocol.ApprovalExpired, rationale
	return p.resolve(s, a)
}

var resolvedType = map[string]string{
	protocol.ApprovalGranted: ApprovalGranted,
	protocol.ApprovalDenied:  ApprovalDenied,
	protocol.ApprovalExpired: ApprovalExpired,
}

// resolve records how an approval ended, and what that makes of its step.
func (p *Projector) resolve(s stamp, a *protocol.Approval) error {
	delete(p.pending, a.StepID)
	_, err := p.emit(s, resolvedType[a.Status], resolvedPayload{
		ApprovalID: a.ID,
		StepID:     a.StepID,
		DecidedBy:  a.DecidedBy,
		Identity:   a.Identity,
		Principal:  a.Principal,
		Rationale:  a.Rationale,
	}, subject{})
	if err != nil {
		return err
	}
	step := p.steps[a.StepID]
	d := step.decision().Approved(a.Status, a.Rationale)
	if d.Decision == protocol.Allow {
		return p.allow(s, step, d)
	}
	return p.deny(s, step, d, nil)
}

// resume records that the execution goes on, once no step waits for approval.
func (p *Projector) resume(s stamp) error {
	if len(p.pending) > 0 {
		return nil
	}
	_, err := p.emit(s, ExecutionResumed, struct{}{}, subject{})
	return err
}
