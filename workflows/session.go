package workflows

import (
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

const (
	// announcedPatience is how long a turn that a client has announced may take to come
	// forward before others go first. Its worker may be down, or its client have died.
	announcedPatience = time.Minute

	// strangerPatience is how long a turn that nobody has announced waits for older ones, where
	// none is running. Workers that come up find the turns in any order.
	strangerPatience = time.Second

	// sweepFirst is how soon a session looks after a turn that does not end: one that was
	// terminated cannot say so. Then it waits ever longer, up to sweepFactor times that.
	sweepFirst  = 10 * time.Second
	sweepFactor = 30

	// turnTimeout bounds one look at a turn. One that is about to end may be waited for.
	turnTimeout = 10 * time.Second
)

// Session is the workflow that keeps a session: it admits one execution at a time, in order.
// Executions tell it of themselves by a signal. It does not end, since what comes next
// continues what it knows. Package worker registers it.
func Session(ctx workflow.Context, state protocol.SessionState) error {
	ctx = disconnected(ctx) // turns are cancelled, and not what keeps their order
	s := session{SessionState: state, turns: workflow.GetSignalChannel(ctx, protocol.SignalTurn)}
	if s.Newest == nil {
		s.Newest = map[string]protocol.CompletedTurn{}
	}
	if s.Running != nil {
		s.watch(ctx)
	}
	for i := range s.Queue {
		if s.Queue[i].Since.IsZero() { // it came with the start
			s.Queue[i].Since = workflow.Now(ctx)
		}
	}
	for {
		rest, err := s.step(ctx)
		if err != nil {
			return err
		}
		if s.over() {
			return nil
		}
		// What has arrived is in the state by then; the server refuses to continue as new while
		// there is more.
		if s.turns.Len() == 0 && workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			return workflow.NewContinueAsNewError(ctx, protocol.WorkflowSession, s.SessionState)
		}
		if err := s.await(ctx, rest); err != nil {
			return err
		}
	}
}

type session struct {
	protocol.SessionState
	turns workflow.ReceiveChannel
	// ending says that the running turn has said it ends. sweepAt is when to look
	// after it otherwise, and sweep how long to wait from then on.
	ending  bool
	sweepAt time.Time
	sweep   time.Duration
	// withdrawn says that a turn has been.
	withdrawn bool
}

// await waits for a message, and at most for rest unless that is zero.
func (s *session) await(ctx workflow.Context, rest time.Duration) error {
	arrived := func() bool { return s.turns.Len() > 0 }
	if rest == 0 {
		return workflow.Await(ctx, arrived)
	}
	_, err := workflow.AwaitWithTimeout(ctx, rest, arrived)
	return err
}

func (s *session) receive(ctx workflow.Context) {
	var turn protocol.Turn
	for s.turns.ReceiveAsync(&turn) {
		s.hear(ctx, turn)
		turn = protocol.Turn{} // decoding leaves what is absent
	}
}

// hear takes note of what has happened to a turn.
func (s *session) hear(ctx workflow.Context, turn protocol.Turn) {
	if s.Running != nil && s.Running.ExecutionID == turn.ExecutionID {
		switch turn.Change {
		case protocol.TurnEnded:
			s.ending = true
		case protocol.TurnWaiting: // it has been reset to before its admission
			again := *s.Running
			again.Token = turn.Token
			s.Queue = append([]protocol.Turn{again}, s.Queue...)
			s.Running = nil
		}
		return
	}
	i := slices.IndexFunc(s.Queue, func(t protocol.Turn) bool { return t.ExecutionID == turn.ExecutionID })
	switch turn.Change {
	case protocol.TurnAnnounced:
		if i < 0 {
			turn.Announced = true
			s.queue(ctx, turn)
		}
	case protocol.TurnWaiting:
		turn.Waiting = true
		s.hurry(ctx)
		if i < 0 {
			s.queue(ctx, turn)
			return
		}
		// It stays where it was announced, but from now on Temporal's time counts, not the client's.
		turn.Announced, turn.Since = s.Queue[i].Announced, s.Queue[i].Since
		s.Queue[i] = turn
	case protocol.TurnEnded:
		if i >= 0 {
			s.Queue = slices.Delete(s.Queue, i, i+1)
		}
	case protocol.TurnWithdrawn:
		if i >= 0 && !s.Queue[i].Waiting {
			s.Queue = slices.Delete(s.Queue, i, i+1)
			s.withdrawn = true
		}
	}
}

// over reports whether the session has not begun: its first turn has been withdrawn.
func (s *session) over() bool {
	return s.withdrawn && len(s.Queue) == 0 && s.Running == nil && len(s.Newest) == 0 && s.turns.Len() == 0
}

// queue puts a turn behind those that were created before it.
func (s *session) queue(ctx workflow.Context, turn protocol.Turn) {
	turn.Change, turn.Since = "", workflow.Now(ctx)
	i := len(s.Queue)
	for i > 0 && turn.CreatedAt.Before(s.Queue[i-1].CreatedAt) {
		i--
	}
	s.Queue = slices.Insert(s.Queue, i, turn)
}

// step does what there is to do, and says after how long there may be more. Zero means that
// only a message brings more.
func (s *session) step(ctx workflow.Context) (time.Duration, error) {
	for {
		s.receive(ctx)
		if s.Running != nil {
			now := workflow.Now(ctx)
			if !s.ending && now.Before(s.sweepAt) {
				return s.sweepAt.Sub(now), nil
			}
			if err := s.look(ctx); err != nil {
				return 0, err
			}
			continue
		}
		if len(s.Queue) == 0 {
			return 0, nil
		}
		if rest := patience(s.Queue[0], workflow.Now(ctx)); rest > 0 {
			return rest, nil
		}
		turn := s.Queue[0]
		s.Queue = slices.Delete(s.Queue, 0, 1)
		if !turn.Waiting {
			continue // if it comes yet, it takes its place again
		}
		if err := s.admit(ctx, turn); err != nil {
			return 0, err
		}
	}
}

// patience is how long the session waits before the first turn of the queue goes, or loses
// its place.
func patience(turn protocol.Turn, now time.Time) time.Duration {
	switch {
	case !turn.Waiting:
		return turn.Since.Add(announcedPatience).Sub(now)
	case !turn.Announced:
		return turn.Since.Add(strangerPatience).Sub(now)
	default:
		return 0
	}
}

// admit lets a turn run. One that has ended meanwhile cannot be told.
func (s *session) admit(ctx workflow.Context, turn protocol.Turn) error {
	admission := protocol.Admission{Parent: turn.Parent}
	if newest, ok := s.Newest[turn.AgentID]; ok && turn.Parent == "" {
		admission = protocol.Admission{Parent: newest.ExecutionID, ParentRunID: newest.RunID, Left: newest.Left}
	}
	admission.Token = turn.Token
	err := workflow.SignalExternalWorkflow(ctx, turn.ExecutionID, "", protocol.SignalAdmit, admission).Get(ctx, nil)
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		workflow.GetLogger(ctx).Info("turn has gone", "execution", turn.ExecutionID, "error", err)
		return nil
	}
	s.Running = &turn
	s.watch(ctx)
	return nil
}

// watch begins to look after the running turn.
func (s *session) watch(ctx workflow.Context) {
	s.ending = false
	s.sweep = s.shortest()
	s.sweepAt = workflow.Now(ctx).Add(s.sweep)
}

// hurry has the session look after the running turn soon: somebody has come to wait for its end.
func (s *session) hurry(ctx workflow.Context) {
	if s.Running == nil {
		return
	}
	s.sweep = s.shortest()
	if at := workflow.Now(ctx).Add(s.sweep); at.Before(s.sweepAt) {
		s.sweepAt = at
	}
}

func (s *session) shortest() time.Duration {
	if own := time.Duration(s.Running.Sweep); own > 0 {
		return own
	}
	return sweepFirst
}

// look asks how the running turn stands, and notes its end. What Temporal says counts: a turn
// that says it ends may yet be terminated.
func (s *session) look(ctx workflow.Context) error {
	asking := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: turnTimeout,
		RetryPolicy:         retryPolicy(0), // without an answer nobody may go on
		Summary:             protocol.OneLine(s.Running.ExecutionID),
	})
	var status protocol.TurnStatus
	err := workflow.ExecuteActivity(asking, protocol.ActivityTurn, protocol.TurnQuery{
		ExecutionID: s.Running.ExecutionID, Ending: s.ending,
	}).Get(ctx, &status)
	if ctx.Err() != nil {
		return err
	}
	if err != nil { // only a worker's mistake gets here
		workflow.GetLogger(ctx).Error("turn not looked after", "execution", s.Running.ExecutionID, "error", err)
	}
	s.ending = false
	switch status.Status {
	case protocol.StatusCompleted:
		s.complete(status)
		s.Running = nil
	case protocol.StatusFailed, protocol.StatusCancelled:
		s.Running = nil
	default:
		s.sweepAt = workflow.Now(ctx).Add(s.sweep)
		s.sweep = min(2*s.sweep, sweepFactor*s.shortest())
	}
	return nil
}

// complete makes the running turn one that others continue, unless a newer one of its agent is.
func (s *session) complete(status protocol.TurnStatus) {
	turn := s.Running
	if newest, ok := s.Newest[turn.AgentID]; ok && turn.CreatedAt.Before(newest.CreatedAt) {
		return
	}
	s.Newest[turn.AgentID] = protocol.CompletedTurn{
		ExecutionID: turn.ExecutionID, RunID: status.RunID, CreatedAt: turn.CreatedAt,
		Left: status.Left, LeftBytes: status.LeftBytes,
	}
	s.forget()
}

// forget drops the oldest of what turns have left, until the rest fits the session's state.
func (s *session) forget() {
	for {
		total, oldest := 0, ""
		for _, agent := range workflow.DeterministicKeys(s.Newest) {
			turn := s.Newest[agent]
			total += turn.LeftBytes
			if turn.Left != nil && (oldest == "" || turn.CreatedAt.Before(s.Newest[oldest].CreatedAt)) {
				oldest = agent
			}
		}
		if total <= protocol.KeptTotal {
			return
		}
		turn := s.Newest[oldest]
		turn.Left, turn.LeftBytes = nil, 0
		s.Newest[oldest] = turn
	}
}
