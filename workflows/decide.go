package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// clear takes the policy's verdict to a decision that stands, and returns it if it allows the
// step: limits are applied to it, and a person is asked where it says so. Most verdicts stand
// already. The error is a *PolicyError or a cancellation.
func (p *pending) clear(ctx workflow.Context, verdict protocol.StepVerdict) (*protocol.Decision, error) {
	decision, err := p.final(ctx, verdict)
	if err != nil {
		return nil, err
	}
	if decision.Decision != protocol.Allow {
		return nil, policyError(p.step, *decision)
	}
	return decision, nil
}

func (p *pending) final(ctx workflow.Context, verdict protocol.StepVerdict) (*protocol.Decision, error) {
	decision := verdict.Decision
	if verdict.Undecided {
		limited, window, err := p.limit(ctx, *decision)
		if err != nil {
			return nil, err
		}
		decision, verdict.Approval = &limited, window
	}
	if decision.Decision != protocol.RequireApproval {
		return decision, nil
	}
	return p.approve(ctx, *decision, verdict.Approval)
}

// guarded reports whether the source of this fork has had such an effect since the fork point.
// The fork must not have it again unasked, whatever its mode is now.
func (p *pending) guarded() bool {
	fork := p.x.start.Fork
	if fork == nil {
		return false
	}
	for _, effect := range fork.Guarded {
		if effect.Kind == p.step.Kind && effect.Target == p.step.Target {
			return true
		}
	}
	return false
}
