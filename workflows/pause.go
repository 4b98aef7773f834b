package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// PauseMode says when a resource rests. It matters for drivers that can pause one.
type PauseMode string

const (
	// PauseBlocked pauses the resource while the execution waits for an approval and no step
	// runs, and when the execution has ended. It is the default.
	PauseBlocked PauseMode = protocol.PauseBlocked
	// PauseCompleted pauses it when the execution has ended, however it did.
	PauseCompleted PauseMode = protocol.PauseCompleted
	// PauseNever leaves it running.
	PauseNever PauseMode = protocol.PauseNever
)

// pausePatience bounds pausing one resource. A step that has been approved meanwhile waits for
// it, and so does the end of an execution.
const pausePatience = 2 * time.Minute

// pauseWhileBlocked pauses resources for as long as approvals are pending. A step that runs beside
// the waiting ones resumes them, so they are paused again when it has ended.
func (x *execution) pauseWhileBlocked(ctx workflow.Context) {
	if x.pausing || !x.resources.pausable() {
		return
	}
	x.pausing = true
	workflow.GoNamed(disconnected(ctx), "pause", func(ctx workflow.Context) {
		defer func() { x.pausing = false }()
		for len(x.approvals.pending) > 0 {
			leave, err := x.gate.enter(ctx) // no step is in the middle of anything then
			if err != nil {
				return
			}
			x.underPause = true
			x.pause(ctx, PauseBlocked)
			x.underPause = false
			leave()
			err = workflow.Await(ctx, func() bool {
				return len(x.approvals.pending) == 0 || len(x.resources.restless(PauseBlocked)) > 0
			})
			if err != nil {
				return
			}
		}
	})
}

// pauseAtEnd pauses what the execution leaves behind. While a step still runs that the handler did
// not wait for, nothing is paused under it.
func (x *execution) pauseAtEnd(ctx workflow.Context) {
	if len(x.resources.restless(PauseCompleted)) == 0 {
		return
	}
	ctx = disconnected(ctx)
	if err := workflow.Await(ctx, func() bool { return !x.underPause }); err != nil {
		return
	}
	leave, ok := x.gate.try(ctx)
	if !ok {
		return
	}
	defer leave()
	x.pause(ctx, PauseCompleted)
}

// pause pauses the resources that rest now. That one could not be paused is recorded in history by
// the activity itself; it costs more, and the execution goes on.
func (x *execution) pause(ctx workflow.Context, now PauseMode) {
	for _, r := range x.resources.restless(now) {
		if now == PauseBlocked && len(x.approvals.pending) == 0 {
			break // the step that waited is to go on
		}
		opts := workflow.ActivityOptions{
			StartToCloseTimeout:    pausePatience,
			ScheduleToCloseTimeout: pausePatience,
			HeartbeatTimeout:       x.begin.HeartbeatTimeout,
			RetryPolicy:            retryPolicy(captureAttempts),
			Summary:                protocol.OneLine(r.Key + " (" + r.Driver + ")"),
		}
		x.route(&opts)
		r.resting = true // also if it fails: another attempt is due when it has been used again
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, opts), protocol.ActivityPause, protocol.Pause{
			Key: r.Key, Bound: r.bound,
		}).Get(ctx, nil)
		r.paused = err == nil
		if err != nil {
			workflow.GetLogger(ctx).Warn("resource not paused", "resource", r.Key, "error", err)
		}
	}
	x.describe(ctx)
}

// restless are the opened resources that could be paused now, and are not.
func (s *resourceSet) restless(now PauseMode) []*openResource {
	var found []*openResource
	for _, key := range s.keys {
		r := s.opened[key]
		if r.canPause && !r.resting && r.pausesWhen(now) {
			found = append(found, r)
		}
	}
	return found
}

// pausable reports whether an opened resource may be paused while approvals are pending.
func (s *resourceSet) pausable() bool {
	for _, key := range s.keys {
		if r := s.opened[key]; r.canPause && r.pausesWhen(PauseBlocked) {
			return true
		}
	}
	return false
}

func (r *openResource) pausesWhen(now PauseMode) bool {
	switch PauseMode(r.Pause) {
	case PauseNever:
		return false
	case PauseCompleted:
		return now == PauseCompleted
	default:
		return true
	}
}

// wake notes that a step may use, and so resume, all resources.
func (s *resourceSet) wake() {
	for _, key := range s.keys {
		s.opened[key].wake()
	}
}

func (r *openResource) wake() { r.resting, r.paused = false, false }
