package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// Step refers to a local step: a short, recorded piece of work with arguments A
// and result R. It runs as a local activity, unless it affects a resource or is
// at_most_once, and then as an activity. Only in that second form may its handler use
// a resource.
type Step[A, R any] struct {
	name    string
	options options
}

// NewStep declares the local step called name. It panics on a name that is empty
// or is Tine's own.
func NewStep[A, R any](name string, opts ...Option) Step[A, R] {
	checkName("step", name)
	if protocol.ReservedStep(name) {
		panic("workflows: step " + name + ": there is workflows.Now, NewUUID, Sleep or Receive for that")
	}
	return Step[A, R]{name: name, options: newOptions(options{}, opts)}
}

// Name is the step's name.
func (s Step[A, R]) Name() string { return s.name }

// Run runs the step and returns its result: a *StepError if it failed, a
// *PolicyError if it was refused.
func (s Step[A, R]) Run(ctx workflow.Context, args A, opts ...Option) (R, error) {
	raw, err := protocol.Encode(args)
	if err != nil {
		var none R
		return none, &StepError{Kind: protocol.KindLocal, Target: s.name, Reason: ReasonInvalidArguments, Message: err.Error()}
	}
	return run[R](ctx, call{kind: protocol.KindLocal, target: s.name, args: raw, options: newOptions(s.options, opts)})
}
