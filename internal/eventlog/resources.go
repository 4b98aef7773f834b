package eventlog

import "github.com/tinerun/tine/internal/protocol"

func (p *Projector) register(s stamp, spec protocol.ResourceSpec) (*Resource, error) {
	r := &Resource{
		Key:          spec.Key,
		Driver:       spec.Driver,
		Config:       spec.Config,
		EverySteps:   spec.EverySteps,
		OnCompletion: spec.OnCompletion,
	}
	seq, err := p.emit(s, ResourceRegistered, registeredPayload(spec), subject{resource: r})
	if err != nil {
		return nil, err
	}
	r.RegisteredSeq = seq
	p.log.Resources = append(p.log.Resources, r)
	return r, nil
}

// initialized records what a resource of a fork starts from. The host that holds
// the checkpoint is the resource's until it is bound.
func (p *Projector) initialized(s stamp, r *Resource, ref string) error {
	r.CheckpointRef = ref
	if p.log.Fork != nil {
		r.Host = p.log.Fork.Restoration[r.Key].Host
	}
	payload := initializedPayload{Key: r.Key, CheckpointRef: ref}
	_, err := p.emit(s, ResourceInitialized, payload, subject{resource: r, ref: ref})
	return err
}

func (p *Projector) bind(s stamp, r *Resource, created protocol.ResourceCreated) error {
	payload := boundPayload{Key: r.Key, Driver: r.Driver, Binding: created.Binding}
	seq, err := p.emit(s, ResourceBound, payload, subject{resource: r})
	if err != nil {
		return err
	}
	r.BoundSeq = seq
	r.Binding = created.Binding
	r.CoverageReuse = created.CoverageReuse
	r.Host = created.Host
	return nil
}

func (p *Projector) checkpointed(s stamp, c Checkpoint) error {
	payload := checkpointedPayload{
		Key:           c.Key,
		CheckpointRef: c.CheckpointRef,
		CoveredSeq:    c.CoveredSeq,
		Cause:         c.Cause,
	}
	if _, err := p.emit(s, ResourceCheckpointed, payload, subject{resource: p.log.Resource(c.Key)}); err != nil {
		return err
	}
	p.coverage.checkpointed(c)
	return nil
}
