package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// seed is what a fork replays: the steps that had ended at the fork point, with
// their outcomes, and the resources registered by then. An execution that is not a
// fork has an empty one.
type seed struct {
	order     []string // step ids in the order they were proposed
	described map[string]*recordedStep
	steps     map[string]*recordedStep // those with an outcome
	used      map[string]bool
	open      map[string]*openStep // those that the run before has left waiting
	left      int
	resources map[string]*seededResource
	tokens    int64 // that the copied model calls have used
	// live is the first step that was not in the seed while some were left.
	live *protocol.DivergentStep
	// noted says that the divergence is recorded.
	noted bool
}

// seededResource is a resource as the prefix left it.
type seededResource struct {
	protocol.PrefixResource
	restoration protocol.Restoration
	count       int
}

func newSeed() *seed {
	return &seed{
		described: map[string]*recordedStep{},
		steps:     map[string]*recordedStep{},
		used:      map[string]bool{},
		open:      map[string]*openStep{},
		resources: map[string]*seededResource{},
	}
}

// loadSeed reads a fork's prefix. Its first page came with the start; the others are loaded,
// one at a time, into the execution's own history, so that the source may be deleted
// afterwards.
func loadSeed(ctx workflow.Context, fork *protocol.Fork) (*seed, error) {
	s := newSeed()
	if fork == nil {
		return s, nil
	}
	offset := 0
	if page := fork.Page; page != nil {
		s.add(*page)
		offset = page.Next
	}
	if fork.Page == nil || offset != 0 {
		if err := s.load(ctx, fork, offset); err != nil {
			return nil, err
		}
	}
	for _, key := range workflow.DeterministicKeys(s.resources) {
		s.resources[key].restoration = fork.Restoration[key]
	}
	return s, nil
}

// load reads the pages from offset on.
func (s *seed) load(ctx workflow.Context, fork *protocol.Fork, offset int) error {
	loading := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: prefixTimeout,
		RetryPolicy:         retryPolicy(prefixAttempts),
		Summary:             "recorded steps of " + fork.ExecutionID,
	})
	for {
		var page protocol.PrefixPage
		err := workflow.ExecuteActivity(loading, protocol.ActivityLoadPrefix, protocol.LoadPrefix{
			ExecutionID: fork.ExecutionID, RunID: fork.RunID, AtSeq: fork.AtSeq,
			HistoryEvents: fork.HistoryEvents, Offset: offset,
		}).Get(ctx, &page)
		if err != nil {
			return err
		}
		s.add(page)
		if page.Next == 0 {
			return nil
		}
		offset = page.Next
	}
}

// recordedStep is a copied step with its outcome.
type recordedStep struct {
	protocol.PrefixStep
	outcome protocol.Outcome
	// began says that its body may have run.
	began bool
	// refusals are those of rate limits, which came before the outcome.
	refusals []protocol.Limited
}

func (s *seed) add(page protocol.PrefixPage) {
	for _, record := range page.Records {
		if record.Resource != nil {
			s.resources[record.Key] = &seededResource{PrefixResource: *record.Resource}
		}
		if record.Step != nil {
			s.described[record.Step.ID] = &recordedStep{PrefixStep: *record.Step}
			s.order = append(s.order, record.Step.ID)
		}
		step := s.described[record.StepID]
		if record.Limited != nil && step != nil {
			step.refusals = append(step.refusals, *record.Limited)
		}
		if record.Outcome != nil && step != nil {
			s.steps[record.StepID] = step
			s.left++
			s.settle(step, *record.Outcome)
		}
	}
}

// settle notes how a step ended. It counts towards every_steps if it ran: a denied one did not.
func (s *seed) settle(step *recordedStep, outcome protocol.Outcome) {
	step.outcome = outcome
	if step.Kind == protocol.KindLLM {
		s.tokens += protocol.Tokens(outcome.Result)
	}
	if step.Decision != nil && step.Decision.Decision == protocol.Deny || step.Kind == protocol.KindLLM {
		return
	}
	for _, key := range step.Resources {
		if r := s.resources[key]; r != nil {
			r.count++
		}
	}
}

// refusal gives the next refusal of the step, or nil if there is none left.
func (s *seed) refusal(step protocol.Step) *protocol.Limited {
	recorded := s.described[step.ID]
	if recorded == nil || len(recorded.refusals) == 0 {
		return nil
	}
	next := recorded.refusals[0]
	recorded.refusals = recorded.refusals[1:]
	return &next
}

// take gives the recorded step with this id, or nil if the step has to run.
func (s *seed) take(step protocol.Step, c call) *recordedStep {
	recorded := s.steps[step.ID]
	if recorded != nil && !s.used[step.ID] {
		s.used[step.ID] = true
		s.left--
		return recorded
	}
	if s.left > 0 && s.live == nil {
		s.live = divergent(step, c)
	}
	return nil
}

func divergent(step protocol.Step, c call) *protocol.DivergentStep {
	return &protocol.DivergentStep{
		StepID: step.ID, Kind: step.Kind, Target: step.Target, Args: c.args, Occurrence: step.Occurrence,
	}
}

// divergence describes what is left, or is nil if nothing is or that has been said.
func (s *seed) divergence() *protocol.Divergence {
	if s.left == 0 || s.noted {
		return nil
	}
	for _, id := range s.order {
		if s.used[id] || s.steps[id] == nil {
			continue
		}
		expected := s.steps[id]
		return &protocol.Divergence{
			Expected: *divergent(expected.Step, call{args: expected.Args}),
			Got:      s.live,
			Unused:   s.left,
		}
	}
	return nil
}

// noteDivergence records that the handler has left the recorded path. It is called once a
// live step has ended, and when the handler has: whatever could be asked for without that
// has been asked for by then, so recorded steps that are left will not come. While a
// resource is being opened that is not so.
func (x *execution) noteDivergence(ctx workflow.Context) {
	divergence := x.seed.divergence()
	if divergence == nil || x.opening > 0 || x.fatal != nil || ctx.Err() != nil {
		return
	}
	x.seed.noted = true
	if err := workflow.ExecuteLocalActivity(localOptions(ctx, localTimeout), protocol.ActivityNote, *divergence).Get(ctx, nil); err != nil {
		workflow.GetLogger(ctx).Error("divergence not recorded", "error", err)
	}
}
