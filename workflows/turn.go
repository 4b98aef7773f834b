package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// joinTimeout and joinAttempts bound how long an execution tries to join its session.
const (
	joinTimeout  = 10 * time.Second
	joinAttempts = 10

	// rejoinEvery is how often an execution that waits for its turn says so again. Somebody may have
	// ended the session's workflow, and the next one does not know of it.
	rejoinEvery = 10 * time.Minute
)

// enter waits for the execution's turn in its session, and loads what it continues.
func (x *execution) enter(ctx workflow.Context) error {
	parent := protocol.Admission{Parent: x.start.Parent}
	if label := x.start.Session; label != "" {
		if err := protocol.CheckSession(label); err != nil {
			return configurationError("%v", err)
		}
		admitted, err := x.admitted(ctx, label)
		if err != nil {
			return err
		}
		if x.start.Fork == nil { // a fork continues what its source does
			parent = admitted
		}
		x.status = protocol.StatusRunning
		x.upsert(ctx, statusAttribute.ValueSet(x.status))
		x.describe(ctx)
	}
	if parent.Parent == "" {
		return nil
	}
	return x.loadParent(ctx, parent)
}

// admitted joins the session and waits until it lets the execution run.
func (x *execution) admitted(ctx workflow.Context, label string) (protocol.Admission, error) {
	turn := protocol.Turn{
		ExecutionID: workflow.GetInfo(ctx).WorkflowExecution.ID,
		AgentID:     x.agent,
		CreatedAt:   workflow.GetInfo(ctx).WorkflowStartTime,
		Parent:      x.start.Parent,
		Change:      protocol.TurnWaiting,
	}
	joining := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: joinTimeout,
		RetryPolicy:         retryPolicy(joinAttempts),
	})
	signal := workflow.GetSignalChannel(ctx, protocol.SignalAdmit)
	tokens := map[string]bool{"": true} // a session of before gives none
	var admission protocol.Admission
	admitted := func() bool {
		for admission = (protocol.Admission{}); signal.ReceiveAsync(&admission); admission = (protocol.Admission{}) {
			if tokens[admission.Token] {
				return true
			}
		}
		return false
	}
	for {
		var joined protocol.Joined
		err := workflow.ExecuteLocalActivity(joining, protocol.ActivityJoin, protocol.JoinSession{Label: label, Turn: turn}).Get(ctx, &joined)
		if err != nil {
			return admission, err
		}
		tokens[joined.Token] = true
		if !x.since(protocol.RevisionRejoin) {
			return admission, workflow.Await(ctx, admitted)
		}
		if ok, err := workflow.AwaitWithTimeout(ctx, rejoinEvery, admitted); ok || err != nil {
			return admission, err
		}
	}
}

// leave tells the session that the execution is about to end. That nobody is there to be told
// is no concern of the execution.
func leave(ctx workflow.Context, start *protocol.Start) {
	if start == nil || start.Session == "" || protocol.CheckSession(start.Session) != nil {
		return
	}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	err := workflow.SignalExternalWorkflow(ctx, protocol.SessionWorkflowID(start.Session), "", protocol.SignalTurn, protocol.Turn{
		ExecutionID: workflow.GetInfo(ctx).WorkflowExecution.ID, Change: protocol.TurnEnded,
	}).Get(ctx, nil)
	if err != nil {
		workflow.GetLogger(ctx).Warn("session not told of the end", "session", start.Session, "error", err)
	}
}

// loadParent reads what the parent has left into the execution's own history, so that the
// parent may be deleted afterwards.
func (x *execution) loadParent(ctx workflow.Context, parent protocol.Admission) error {
	request := protocol.LoadParent{
		ExecutionID: parent.Parent, RunID: parent.ParentRunID, AgentID: x.agent, Session: x.start.Session, Left: parent.Left,
	}
	if fork := x.start.Fork; fork != nil {
		request.Source = &protocol.Source{ExecutionID: fork.ExecutionID, RunID: fork.RunID}
	}
	loading := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: prefixTimeout,
		HeartbeatTimeout:    x.begin.HeartbeatTimeout,
		RetryPolicy:         retryPolicy(prefixAttempts),
		Summary:             protocol.OneLine("state of " + parent.Parent),
	})
	previous := &protocol.Previous{}
	if err := workflow.ExecuteActivity(loading, protocol.ActivityLoadParent, request).Get(ctx, previous); err != nil {
		return err
	}
	x.previous = previous
	x.resources.inherit(previous.Resources)
	return nil
}

// SessionLabel is the label of the execution's session. An execution that was given none has
// one derived from its id; another that is started with that label and with this one as its parent continues
// this one.
func SessionLabel(ctx workflow.Context) string {
	return protocol.SessionOf(executionFrom(ctx).start.Session, workflow.GetInfo(ctx).WorkflowExecution.ID)
}

// Parent is the id of the execution that this one continues, or empty.
func Parent(ctx workflow.Context) string {
	if previous := executionFrom(ctx).previous; previous != nil {
		return previous.ExecutionID
	}
	return ""
}

// Previous is what the execution that this one continues has left: its state, or its output if
// it has set none. It is false if there is nothing to continue: no parent, or one that has left
// null.
func Previous[S any](ctx workflow.Context) (S, bool, error) {
	var state S
	previous := executionFrom(ctx).previous
	if previous == nil || isNull(previous.State) {
		return state, false, nil
	}
	if err := protocol.Decode(previous.State, &state); err != nil {
		return state, false, configurationError("what execution %s has left does not fit: %v", previous.ExecutionID, err)
	}
	return state, true, nil
}

// SetState sets what the execution leaves for the one that continues it, beside its output. It
// is recorded when the handler returns without an error; the last call counts, and a state
// that encodes as null is none. State has at most 1 MiB of JSON.
func SetState(ctx workflow.Context, state any) error {
	x := executionFrom(ctx)
	raw, err := protocol.Encode(state)
	switch {
	case err != nil:
		return configurationError("the state cannot be encoded: %v", err)
	case len(raw) > protocol.StateLimit:
		return configurationError("the state has %d bytes; at most %d fit. Keep less, or a reference to where the rest is", len(raw), protocol.StateLimit)
	}
	x.state = raw
	return nil
}

// recordState puts the execution's state into its history, where readers find it.
func (x *execution) recordState(ctx workflow.Context) error {
	if isNull(x.state) {
		return nil
	}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	return workflow.ExecuteLocalActivity(localOptions(ctx, localTimeout), protocol.ActivityState, protocol.State{State: x.state}).Get(ctx, nil)
}

func isNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }
