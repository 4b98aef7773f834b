package eventlog

import (
	"fmt"

	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"

	"github.com/tinerun/tine/internal/protocol"
)

// signalled notes that the execution's turn in its session has come. Other signals are the
// agent's business.
func (p *Projector) signalled(s stamp, a *historypb.WorkflowExecutionSignaledEventAttributes) error {
	if a.GetSignalName() != protocol.SignalAdmit || !p.waiting {
		return nil
	}
	var admission protocol.Admission
	if err := p.dec.decode(a.GetInput(), &admission); err != nil {
		return nil //nolint:nilerr // anybody can send such a signal; workflow code skips what it can't read
	}
	if admission.Token != "" && !p.joins[admission.Token] {
		return nil // of the run that was reset to this one
	}
	p.waiting = false
	if p.log.Fork == nil { // a fork continues what its source does
		p.log.Parent = admission.Parent
	}
	return p.begun(s)
}

// completed notes what the parent has left, and registers the resources that the execution goes
// on with.
func (parentTask) completed(p *Projector, s stamp, _ int, result *commonpb.Payloads) error {
	var previous protocol.Previous
	if err := p.dec.decode(result, &previous); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	p.log.Previous = &previous
	for _, left := range previous.Resources {
		r, err := p.register(s, left.ResourceSpec)
		if err != nil {
			return err
		}
		r.CoverageReuse = left.CoverageReuse
		if left.Binding == nil {
			continue
		}
		bound := protocol.ResourceCreated{Binding: left.Binding, CoverageReuse: left.CoverageReuse, Host: left.Host}
		if err := p.bind(s, r, bound); err != nil {
			return err
		}
	}
	return nil
}

// failed says nothing: the execution fails.
func (parentTask) failed(*Projector, stamp, int, error) error { return nil }

// reopened notes the cadence that the handler asks for: the parent's may have been another.
func (p *Projector) reopened(input *commonpb.Payloads) error {
	var request protocol.OpenResource
	if err := p.dec.decode(input, &request); err != nil {
		return fmt.Errorf("input: %w", err)
	}
	if r := p.log.Resource(request.Key); r != nil {
		r.EverySteps, r.OnCompletion = request.EverySteps, request.OnCompletion
	}
	return nil
}
