package eventlog

import (
	"fmt"

	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// activity is an open activity of Tine.
type activity struct {
	task    task
	attempt int
}

// task is what an activity of Tine does for the execution.
type task interface {
	completed(p *Projector, s stamp, attempt int, result *commonpb.Payloads) error
	failed(p *Projector, s stamp, attempt int, err error) error
}

type (
	prefixTask     struct{}
	rolledTask     struct{}
	parentTask     struct{}
	createTask     struct{ resource *Resource }
	checkpointTask struct{ request protocol.Checkpoint }
	pauseTask      struct{ resource *Resource }
	stepTask       struct{ step *Step }
)

func (p *Projector) activityScheduled(s stamp, a *historypb.ActivityTaskScheduledEventAttributes) error {
	t, err := p.taskOf(s, a)
	if err != nil || t == nil {
		return err
	}
	p.activities[s.historyID] = &activity{task: t}
	return nil
}

// taskOf is nil for activities that are not Tine's.
func (p *Projector) taskOf(s stamp, a *historypb.ActivityTaskScheduledEventAttributes) (task, error) {
	switch a.GetActivityType().GetName() {
	case protocol.ActivityLoadPrefix:
		return prefixTask{}, nil
	case protocol.ActivityLoadRun:
		return rolledTask{}, nil
	case protocol.ActivityLoadParent:
		return parentTask{}, nil
	case protocol.ActivityOpenResource:
		return nil, p.reopened(a.GetInput())
	case protocol.ActivityCreateResource:
		return p.createScheduled(s, a.GetInput())
	case protocol.ActivityCheckpoint:
		return p.checkpointScheduled(a.GetInput())
	case protocol.ActivityPause:
		return p.pauseScheduled(a.GetInput())
	case protocol.ActivityLimit: // a step's record says what the limit did
		return nil, nil
	default: // a tool's or a model's; the id says which step it runs
		return p.stepScheduled(s, a)
	}
}

func (p *Projector) activityStarted(a *historypb.ActivityTaskStartedEventAttributes) {
	if act := p.activities[a.GetScheduledEventId()]; act != nil {
		act.attempt = int(a.GetAttempt())
	}
}

func (p *Projector) activityCompleted(s stamp, scheduledID int64, result *commonpb.Payloads) error {
	act := p.activities[scheduledID]
	if act == nil {
		return nil
	}
	delete(p.activities, scheduledID)
	return act.task.completed(p, s, act.attempt, result)
}

func (p *Projector) activityFailed(s stamp, scheduledID int64, cause error) error {
	act := p.activities[scheduledID]
	if act == nil {
		return nil
	}
	delete(p.activities, scheduledID)
	return act.task.failed(p, s, act.attempt, cause)
}

func (p *Projector) stepScheduled(s stamp, a *historypb.ActivityTaskScheduledEventAttributes) (task, error) {
	step := p.steps[a.GetActivityId()]
	if step == nil || !step.startable() {
		return nil, nil
	}
	var envelope protocol.Call
	if second := nth(a.GetInput(), 1); second != nil && step.Kind == protocol.KindLLM {
		if err := p.dec.Data.FromPayload(second, &envelope); err != nil {
			return nil, fmt.Errorf("second argument: %w", err)
		}
	}
	if err := p.setArgs(step, p.dec.value(first(a.GetInput())), envelope.Base); err != nil {
		return nil, err
	}
	if step.Kind != protocol.KindLLM {
		for _, r := range p.log.Resources {
			r.Paused = false // the step may use any of them
		}
	}
	return stepTask{step}, p.begin(s, step)
}

func (t stepTask) completed(p *Projector, s stamp, attempt int, result *commonpb.Payloads) error {
	return t.settle(p, s, attempt, protocol.Outcome{Result: p.dec.value(first(result))})
}

func (t stepTask) failed(p *Projector, s stamp, attempt int, err error) error {
	stepErr := failure.StepError(err, t.step.Idempotency)
	return t.settle(p, s, attempt, protocol.Outcome{Error: &stepErr})
}

func (t stepTask) settle(p *Projector, s stamp, attempt int, outcome protocol.Outcome) error {
	if t.step.settled() { // by a record that came first
		return nil
	}
	t.step.Attempts = attempt
	return p.settle(s, t.step, settledType(outcome), outcome)
}

func (p *Projector) createScheduled(s stamp, input *commonpb.Payloads) (task, error) {
	var request protocol.CreateResource
	if err := p.dec.decode(input, &request); err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	// The key is known where a prefix has registered it, or an attempt that failed.
	resource := p.log.Resource(request.Key)
	if resource == nil {
		var err error
		if resource, err = p.register(s, request.ResourceSpec); err != nil {
			return nil, err
		}
	}
	// A fork's code may ask for another cadence than its source's did.
	resource.EverySteps, resource.OnCompletion = request.EverySteps, request.OnCompletion
	return createTask{resource}, nil
}

func (t createTask) completed(p *Projector, s stamp, _ int, result *commonpb.Payloads) error {
	var created protocol.ResourceCreated
	if err := p.dec.decode(result, &created); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return p.bind(s, t.resource, created)
}

// failed says nothing: the handler gets the error, and the resource stays unbound.
func (createTask) failed(*Projector, stamp, int, error) error { return nil }

func (p *Projector) checkpointScheduled(input *commonpb.Payloads) (task, error) {
	var request protocol.Checkpoint
	if err := p.dec.decode(input, &request); err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	if r := p.log.Resource(request.Key); r != nil {
		r.Paused = false
	}
	return checkpointTask{request}, nil
}

func (p *Projector) pauseScheduled(input *commonpb.Payloads) (task, error) {
	var request protocol.Pause
	if err := p.dec.decode(input, &request); err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	resource := p.log.Resource(request.Key)
	if resource == nil {
		return nil, fmt.Errorf("resource %q has not been registered", request.Key)
	}
	return pauseTask{resource}, nil
}

func (t pauseTask) completed(p *Projector, s stamp, _ int, _ *commonpb.Payloads) error {
	t.resource.Paused = true
	_, err := p.emit(s, ResourcePaused, pausedPayload{Key: t.resource.Key}, subject{resource: t.resource})
	return err
}

// failed says nothing: the resource costs more, and the execution goes on.
func (pauseTask) failed(*Projector, stamp, int, error) error { return nil }

func (t checkpointTask) completed(p *Projector, s stamp, _ int, result *commonpb.Payloads) error {
	var taken protocol.CheckpointTaken
	if err := p.dec.decode(result, &taken); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return p.checkpointed(s, Checkpoint{
		Key:           t.request.Key,
		CheckpointRef: taken.Ref,
		CoveredSeq:    p.capturedSeq(t.request),
		Cause:         t.request.Cause,
	})
}

// capturedSeq is the event whose state a capture that ends now has taken. Other
// steps may have been recorded since its own step settled.
func (p *Projector) capturedSeq(request protocol.Checkpoint) int64 {
	if request.Cause == protocol.CauseStep {
		if step := p.steps[request.StepID]; step != nil && step.settled() {
			return step.SettledSeq
		}
	}
	return p.log.LatestSeq()
}

func (t checkpointTask) failed(p *Projector, s stamp, _ int, err error) error {
	stepErr := failure.StepError(err, protocol.SafeToRetry)
	if stepErr.Reason == protocol.ReasonToolError { // no tool ran: the error is the driver's
		stepErr.Reason = protocol.ReasonResource
	}
	payload := checkpointFailedPayload{Key: t.request.Key, Cause: t.request.Cause, Error: stepErr}
	_, emitErr := p.emit(s, ResourceCheckpointFailed, payload, subject{resource: p.log.Resource(t.request.Key)})
	return emitErr
}

func (prefixTask) completed(p *Projector, s stamp, _ int, result *commonpb.Payloads) error {
	var page protocol.PrefixPage
	if err := p.dec.decode(result, &page); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	if err := p.page(s, page); err != nil || page.Next != 0 {
		return err
	}
	p.loading = false
	return p.begun(s)
}

// failed says nothing: the workflow asks again, or fails.
func (prefixTask) failed(*Projector, stamp, int, error) error { return nil }
