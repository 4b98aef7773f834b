package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

// remark is the input of an agent that keeps a conversation: it remembers what was said.
type remark struct {
	Say string `json:"say"`
	// Note is added to the file "notes" of a workspace, which Template configures.
	Note     string `json:"note,omitempty"`
	Template string `json:"template,omitempty"`
	// Wait has the turn wait for a signal "go", Fail has it fail, and Stateless leave no state.
	Wait      bool `json:"wait,omitempty"`
	Fail      bool `json:"fail,omitempty"`
	Stateless bool `json:"stateless,omitempty"`
}

type reply struct {
	Session string   `json:"session"`
	Parent  string   `json:"parent,omitempty"`
	Heard   []string `json:"heard"` // what earlier turns have said
	Notes   string   `json:"notes,omitempty"`
}

// conversation is the state of a session.
type conversation struct {
	Said []string `json:"said"`
}

func converse(ctx workflow.Context, in remark) (reply, error) {
	known, _, err := workflows.Previous[conversation](ctx)
	if err != nil {
		return reply{}, err
	}
	out := reply{Session: workflows.SessionLabel(ctx), Parent: workflows.Parent(ctx), Heard: known.Said}
	if in.Note != "" {
		if out.Notes, err = takeNote(ctx, in); err != nil {
			return out, err
		}
	}
	if in.Wait {
		if _, err := workflows.Receive[json.RawMessage](ctx, "go"); err != nil {
			return out, err
		}
	}
	if in.Fail {
		return out, errors.New("on purpose")
	}
	if in.Stateless {
		return out, nil
	}
	known.Said = append(known.Said, in.Say)
	return out, workflows.SetState(ctx, known)
}

func takeNote(ctx workflow.Context, in remark) (string, error) {
	options := workflows.ResourceOptions{Driver: "directory"}
	if in.Template != "" {
		options.Config = map[string]string{"template": in.Template}
	}
	if err := workflows.NewResource(script.WorkspaceKey).Open(ctx, options); err != nil {
		return "", err
	}
	if _, err := script.AppendFile.Call(ctx, script.WriteArgs{Path: "notes", Content: in.Note}); err != nil {
		return "", err
	}
	return script.ReadFile.Call(ctx, script.PathArgs{Path: "notes"})
}

func sessionItems(driver *directory.Driver) []worker.Item {
	return append(script.Items(driver, script.Echo{}), worker.Agent("converse", converse), worker.Agent("other", converse))
}

// sweep is how soon sessions of these tests look after a turn that does not end.
const sweep = 500 * time.Millisecond

// parley is a bench with one session.
type parley struct {
	*bench
	session string
}

func newParley(t *testing.T) *parley {
	t.Helper()
	b := setup(t, withItems(sessionItems), withOptions(func(o *worker.Options) { o.SessionSweep = sweep }))
	return &parley{bench: b, session: "s-" + uuid.NewString()}
}

// say starts a turn.
func (p *parley) say(t *testing.T, in remark, change ...func(*tine.CreateRequest)) string {
	t.Helper()
	raw, err := json.Marshal(in)
	require.NoError(t, err)
	req := tine.CreateRequest{Agent: "converse", Input: raw, Session: p.session}
	for _, c := range change {
		c(&req)
	}
	e, err := p.Create(t.Context(), req)
	require.NoError(t, err)
	return e.ID
}

// hear waits for the end of a turn that completes.
func (p *parley) hear(t *testing.T, id string) (reply, *tine.Log) {
	t.Helper()
	log := p.end(t, id)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
	var out reply
	require.NoError(t, json.Unmarshal(log.Execution().Output, &out))
	require.Equal(t, out.Parent, log.Execution().ParentExecutionID)
	return out, log
}

// reach waits until an execution has a status.
func (p *parley) reach(t *testing.T, id, status string) {
	t.Helper()
	require.Eventually(t, func() bool {
		e, err := p.Get(t.Context(), id)
		return err == nil && e.Status == status
	}, patience, 20*time.Millisecond, "%s is to be %s", id, status)
}

// waits waits until an execution waits for its turn.
func (p *parley) waits(t *testing.T, id string) {
	t.Helper()
	require.Eventually(t, func() bool {
		e, err := p.Get(t.Context(), id)
		return err == nil && len(e.Notes) == 1 && strings.Contains(e.Notes[0], "waits for its turn")
	}, patience, 20*time.Millisecond)
}

// workspace opens the workspace that an execution has left.
func (p *parley) workspace(t *testing.T, log *tine.Log) *directory.Workspace {
	t.Helper()
	ws, err := p.driver.Open(t.Context(), log.Execution().Resources[0].Binding)
	require.NoError(t, err)
	return ws
}

func (p *parley) goOn(t *testing.T, id string) {
	t.Helper()
	require.NoError(t, p.temporal.SignalWorkflow(t.Context(), id, "", "go", true))
}

// TestSessionOrder has turns run one at a time, in order, each with the state of the one before.
func TestSessionOrder(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	first := p.say(t, remark{Say: "1", Wait: true})
	p.reach(t, first, tine.StatusRunning)
	second := p.say(t, remark{Say: "2"})
	third := p.say(t, remark{Say: "3", Stateless: true})
	fourth := p.say(t, remark{Say: "4"})
	other := p.say(t, remark{Say: "o"}, func(r *tine.CreateRequest) { r.Agent = "other" })

	for _, id := range []string{second, third, fourth, other} {
		p.waits(t, id)
	}
	waiting, err := p.Get(t.Context(), second)
	require.NoError(t, err)
	require.Equal(t, tine.StatusPending, waiting.Status)
	require.EqualValues(t, 1, waiting.LatestSeq)
	require.Eventually(t, func() bool {
		listed, err := p.List(t.Context(), tine.ListOptions{Session: p.session, Status: tine.StatusPending})
		return err == nil && len(listed) == 4
	}, patience, 50*time.Millisecond)
	p.sessionIs(t, 5, 4, first)

	p.goOn(t, first)
	out, log := p.hear(t, second)
	require.Equal(t, reply{Session: p.session, Parent: first, Heard: []string{"1"}}, out)
	require.Equal(t, []string{"execution.created", "execution.started", "execution.completed"}, types(log))
	require.JSONEq(t, fmt.Sprintf(`{"agent_id":"converse","session":%q}`, p.session), string(log.Events()[0].Payload))
	require.JSONEq(t, fmt.Sprintf(`{"parent_execution_id":%q}`, first), string(log.Events()[1].Payload))
	require.True(t, log.Events()[1].OccurredAt.After(log.Events()[0].OccurredAt))

	out, log = p.hear(t, third)
	require.Equal(t, reply{Session: p.session, Parent: second, Heard: []string{"1", "2"}}, out)
	require.NotContains(t, string(log.Execution().Output), "said")
	out, _ = p.hear(t, fourth)
	require.Equal(t, reply{Session: p.session, Parent: third}, out, "what has no state leaves its output")
	out, _ = p.hear(t, other)
	require.Equal(t, reply{Session: p.session}, out)
	p.sessionIs(t, 5, 0, "")

	s, err := p.Session(t.Context(), p.session, tine.SessionOptions{})
	require.NoError(t, err)
	var turns []string
	for _, e := range s.Executions {
		turns = append(turns, e.ID+"<"+e.ParentExecutionID)
	}
	require.Equal(t, []string{first + "<", second + "<" + first, third + "<" + second, fourth + "<" + third, other + "<"}, turns)
	require.Equal(t, []string{"converse", "other"}, s.Agents)
	var missing *tine.SessionNotFoundError
	_, err = p.Session(t.Context(), "nosuch-"+p.session, tine.SessionOptions{})
	require.ErrorAs(t, err, &missing)
}

// sessionIs waits until the list of sessions says so of this one.
func (p *parley) sessionIs(t *testing.T, turns, pending int, running string) {
	t.Helper()
	var found *tine.Session
	require.Eventually(t, func() bool {
		sessions, err := p.Sessions(t.Context(), tine.SessionOptions{Limit: 1000})
		require.NoError(t, err)
		for _, s := range sessions {
			if s.Session == p.session {
				found = s
			}
		}
		return found != nil && found.Turns == turns && found.Pending == pending && found.Running == running
	}, patience, 50*time.Millisecond)
}

// TestSessionParents follows which turns are continued.
func TestSessionParents(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	first := p.say(t, remark{Say: "1"})
	p.hear(t, first)

	failed := p.say(t, remark{Say: "fails", Fail: true})
	require.Equal(t, tine.StatusFailed, p.end(t, failed).Execution().Status)
	require.Equal(t, first, p.end(t, failed).Execution().ParentExecutionID)

	cancelled := p.say(t, remark{Say: "cancelled", Wait: true})
	p.reach(t, cancelled, tine.StatusRunning)
	require.NoError(t, p.Cancel(t.Context(), cancelled))
	require.Equal(t, tine.StatusCancelled, p.end(t, cancelled).Execution().Status)

	out, _ := p.hear(t, p.say(t, remark{Say: "2"}))
	require.Equal(t, reply{Session: p.session, Parent: first, Heard: []string{"1"}}, out)

	explicit := p.say(t, remark{Say: "3"}, func(r *tine.CreateRequest) { r.Parent = first })
	out, _ = p.hear(t, explicit)
	require.Equal(t, reply{Session: p.session, Parent: first, Heard: []string{"1"}}, out)
	out, _ = p.hear(t, p.say(t, remark{Say: "4"}))
	require.Equal(t, reply{Session: p.session, Parent: explicit, Heard: []string{"1", "3"}}, out)

	out, log := p.hear(t, p.say(t, remark{Say: "alone"}, func(r *tine.CreateRequest) { r.Session, r.Parent, r.ID = "", first, uuid.NewString() }))
	id := log.Execution().ID
	require.Equal(t, reply{Session: id[len(id)-12:], Parent: first, Heard: []string{"1"}}, out)
	out, _ = p.hear(t, p.say(t, remark{Say: "branch"}, func(r *tine.CreateRequest) { r.Session, r.Parent = "branch-"+p.session, first }))
	require.Equal(t, reply{Session: "branch-" + p.session, Parent: first, Heard: []string{"1"}}, out)

	for name, tc := range map[string]struct{ agent, parent, want string }{
		"another agent's":    {"other", first, `is one of agent "converse"`},
		"a failed one":       {"converse", failed, "only a completed one can be continued"},
		"a cancelled one":    {"converse", cancelled, "only a completed one can be continued"},
		"one there is not":   {"converse", "nosuch", "no execution"},
		"one there is not 2": {"converse", uuid.NewString(), "no execution"},
	} {
		_, err := p.Create(t.Context(), tine.CreateRequest{Agent: tc.agent, Parent: tc.parent})
		require.ErrorContains(t, err, tc.want, name)
		// Whoever starts it without Tine's client hears the same, later.
		run, err := p.temporal.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: p.queue}, tc.agent, remark{}, protocol.Start{Parent: tc.parent})
		require.NoError(t, err)
		log := p.end(t, run.GetID())
		require.Equal(t, tine.StatusFailed, log.Execution().Status, name)
		require.Equal(t, []string{"execution.created", "execution.started", "execution.failed"}, types(log))
	}
	var parent *tine.ParentError
	_, err := p.Create(t.Context(), tine.CreateRequest{Agent: "other", Parent: first})
	require.ErrorAs(t, err, &parent)
}

// TestSessionEndings ends turns in all ways while others wait.
func TestSessionEndings(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	first := p.say(t, remark{Say: "1"})
	p.hear(t, first)
	running := p.say(t, remark{Say: "terminated", Wait: true})
	cancelled := p.say(t, remark{Say: "cancelled"})
	gone := p.say(t, remark{Say: "gone"})
	last := p.say(t, remark{Say: "last"})
	p.reach(t, running, tine.StatusRunning)
	for _, id := range []string{cancelled, gone, last} {
		p.waits(t, id)
	}

	require.NoError(t, p.Cancel(t.Context(), cancelled))
	log := p.end(t, cancelled)
	require.Equal(t, []string{"execution.created", "execution.cancelled"}, types(log))
	require.NoError(t, p.temporal.TerminateWorkflow(t.Context(), gone, "", "test"))
	e, err := p.Get(t.Context(), last)
	require.NoError(t, err)
	require.Equal(t, tine.StatusPending, e.Status, "cancelling one that waits admits nobody")

	require.NoError(t, p.temporal.TerminateWorkflow(t.Context(), running, "", "test"))
	out, _ := p.hear(t, last)
	require.Equal(t, reply{Session: p.session, Parent: first, Heard: []string{"1"}}, out)
}

// TestSessionCancelledUnseen cancels a turn that no worker has seen yet: others need not wait for it.
func TestSessionCancelledUnseen(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	p.stop()
	first, second := p.say(t, remark{Say: "1"}), p.say(t, remark{Say: "2"})
	require.NoError(t, p.Cancel(t.Context(), first))
	_, err := p.Create(t.Context(), tine.CreateRequest{Agent: "converse", Session: p.session, ID: second})
	var exists *tine.ExistsError
	require.ErrorAs(t, err, &exists)
	began := time.Now()
	p.start(t)
	out, _ := p.hear(t, second)
	require.Equal(t, reply{Session: p.session}, out)
	require.Less(t, time.Since(began), 40*time.Second)
	require.Equal(t, tine.StatusCancelled, p.end(t, first).Execution().Status)
}

// TestSessionResources follows a workspace through the turns of a session.
func TestSessionResources(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	template := t.TempDir()
	first := p.say(t, remark{Say: "1", Note: "a"})
	out, firstLog := p.hear(t, first)
	require.Equal(t, "a", out.Notes)
	binding := firstLog.Execution().Resources[0].Binding

	// A turn that does not open the workspace passes it on.
	out, log := p.hear(t, p.say(t, remark{Say: "2"}))
	require.Empty(t, out.Notes)
	require.Equal(t, []string{"execution.created", "execution.started", "resource.registered", "resource.bound", "execution.completed"}, types(log))

	out, log = p.hear(t, p.say(t, remark{Say: "3", Note: "b"}))
	require.Equal(t, "ab", out.Notes)
	require.Equal(t, []string{"execution.created", "execution.started", "resource.registered", "resource.bound", "resource.checkpointed"}, types(log)[:5])
	require.Equal(t, 1, log.Execution().Resources[0].Count)
	require.JSONEq(t, string(binding), string(log.Execution().Resources[0].Binding))
	require.EqualValues(t, 4, log.ForkPoints().Checkpoints[0].CoveredSeq)
	require.False(t, log.Covered(3))
	require.True(t, log.Covered(4))
	third := log

	// What a failed turn has done stays done.
	failed := p.say(t, remark{Say: "4", Note: "x", Fail: true})
	p.end(t, failed)
	out, _ = p.hear(t, p.say(t, remark{Say: "5", Note: "c"}))
	require.Equal(t, "abxc", out.Notes)

	changed := p.end(t, p.say(t, remark{Say: "6", Note: "d", Template: template}))
	require.Contains(t, changed.Execution().FailureReason, "cannot change it")

	// Other agents, other sessions and forks have their own.
	out, _ = p.hear(t, p.say(t, remark{Note: "o"}, func(r *tine.CreateRequest) { r.Agent = "other" }))
	require.Equal(t, "o", out.Notes)
	out, log = p.hear(t, p.say(t, remark{Note: "n"}, func(r *tine.CreateRequest) { r.Session, r.Parent = "", id(third) }))
	require.Equal(t, "n", out.Notes)
	require.Equal(t, []string{"1", "2"}, out.Heard[:2])
	require.NotEqual(t, string(binding), string(log.Execution().Resources[0].Binding))

	fork := p.fork(t, tine.ForkRequest{ExecutionID: id(third), AtSeq: third.Steps()[0].SettledSeq, Session: "fork-" + p.session})
	require.Equal(t, tine.StatusCompleted, fork.Execution().Status, fork.Execution().FailureReason)
	require.NotEqual(t, string(binding), string(fork.Execution().Resources[0].Binding))
	require.Equal(t, "ab", p.files(t, fork)["notes"])
	require.Equal(t, third.Execution().ParentExecutionID, fork.Execution().ParentExecutionID)
	var forked, original reply
	require.NoError(t, json.Unmarshal(fork.Execution().Output, &forked))
	require.NoError(t, json.Unmarshal(third.Execution().Output, &original))
	require.Equal(t, original.Heard, forked.Heard)
	require.Equal(t, "fork-"+p.session, fork.Execution().Session)

	// The fork's session goes on from the fork.
	out, _ = p.hear(t, p.say(t, remark{Say: "f", Note: "f"}, func(r *tine.CreateRequest) { r.Session = "fork-" + p.session }))
	require.Equal(t, reply{Session: "fork-" + p.session, Parent: id(fork), Heard: []string{"1", "2", "3"}, Notes: "abf"}, out)
	_, err := p.Fork(t.Context(), tine.ForkRequest{ExecutionID: id(third), AtSeq: 3, Session: p.session})
	var exists *tine.SessionExistsError
	require.ErrorAs(t, err, &exists)
	plain := p.fork(t, tine.ForkRequest{ExecutionID: id(third), AtSeq: 3})
	require.Empty(t, plain.Execution().Session)

	// What is gone is not continued with something empty.
	ws := p.workspace(t, firstLog)
	require.NoError(t, os.RemoveAll(ws.Path()))
	lost := p.end(t, p.say(t, remark{Say: "7", Note: "d"}))
	require.Contains(t, lost.Execution().FailureReason, "resource is gone")
	require.NoDirExists(t, ws.Path())
}

// TestSessionDerived continues an execution that was in no session by the label it has told.
func TestSessionDerived(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	first := p.say(t, remark{Say: "1", Note: "a"}, func(r *tine.CreateRequest) { r.Session = "" })
	out, _ := p.hear(t, first)
	require.Equal(t, first[len(first)-12:], out.Session)
	out, _ = p.hear(t, p.say(t, remark{Say: "2", Note: "b"}, func(r *tine.CreateRequest) { r.Session, r.Parent = out.Session, first }))
	require.Equal(t, reply{Session: first[len(first)-12:], Parent: first, Heard: []string{"1"}, Notes: "ab"}, out)
}

// TestSessionSurvivesParents deletes turns: what they have left is in the histories of those
// that continue them.
func TestSessionSurvivesParents(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	first := p.say(t, remark{Say: "1"})
	p.hear(t, first)
	_, second := p.hear(t, p.say(t, remark{Say: "2"}))
	p.delete(t, first)
	fork := p.fork(t, tine.ForkRequest{ExecutionID: id(second), AtSeq: 2})
	require.Equal(t, tine.StatusCompleted, fork.Execution().Status, fork.Execution().FailureReason)
	require.JSONEq(t, strings.Replace(string(second.Execution().Output), p.session, id(fork)[len(id(fork))-12:], 1), string(fork.Execution().Output))

	// The session itself keeps what is small.
	p.delete(t, id(second))
	out, third := p.hear(t, p.say(t, remark{Say: strings.Repeat("3", protocol.KeptLimit)}))
	require.Equal(t, []string{"1", "2"}, out.Heard)
	p.hear(t, p.say(t, remark{Say: "other"}, func(r *tine.CreateRequest) { r.Agent = "other" })) // the session is done with the third
	p.delete(t, id(third))
	lost := p.end(t, p.say(t, remark{Say: "4"}))
	require.Equal(t, tine.StatusFailed, lost.Execution().Status)
	require.Contains(t, lost.Execution().FailureReason, "which this one continues, is gone")
}

func (p *parley) delete(t *testing.T, id string) {
	t.Helper()
	_, err := p.temporal.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
		Namespace: client.DefaultNamespace, WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: id},
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := p.Get(t.Context(), id)
		var missing *tine.NotFoundError
		return errors.As(err, &missing)
	}, patience, 50*time.Millisecond)
}

// TestSessionPlainStart starts turns as Temporal's own tools do.
func TestSessionPlainStart(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	start := func(in remark, session string) string {
		run, err := p.temporal.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: p.queue}, "converse", in, map[string]string{"session": session})
		require.NoError(t, err)
		return run.GetID()
	}
	first := start(remark{Say: "1", Wait: true}, p.session)
	p.reach(t, first, tine.StatusRunning)
	second := start(remark{Say: "2"}, p.session)
	third := p.say(t, remark{Say: "3"})
	p.goOn(t, first)
	out, _ := p.hear(t, third)
	require.Equal(t, reply{Session: p.session, Parent: second, Heard: []string{"1", "2"}}, out)
	p.sessionIs(t, 3, 0, "")
	for _, label := range []string{" ", "a\x00b", strings.Repeat("x", 257)} {
		_, err := p.Create(t.Context(), tine.CreateRequest{Agent: "converse", Session: label})
		var wrong *tine.SessionLabelError
		require.ErrorAs(t, err, &wrong)
		refused := p.end(t, start(remark{}, label))
		require.Equal(t, tine.StatusFailed, refused.Execution().Status)
		require.Contains(t, refused.Execution().FailureReason, "label")
	}
}

// TestSessionLabel has a session whose label is neither an id nor a query.
func TestSessionLabel(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	p.session = "it's \"naïve\" \\ 🍴\n" + uuid.NewString()
	first := p.say(t, remark{Say: "1"})
	p.hear(t, first)
	out, _ := p.hear(t, p.say(t, remark{Say: "2"}))
	require.Equal(t, reply{Session: p.session, Parent: first, Heard: []string{"1"}}, out)
	p.sessionIs(t, 2, 0, "")
	s, err := p.Session(t.Context(), p.session, tine.SessionOptions{Limit: 1})
	require.NoError(t, err)
	require.Len(t, s.Executions, 1)
	require.Equal(t, 2, s.Turns)
}

// TestSessionStateLimits has state that does not fit.
func TestSessionStateLimits(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	fits := strings.Repeat("x", protocol.StateLimit-1024)
	first := p.say(t, remark{Say: fits})
	p.hear(t, first)
	out, _ := p.hear(t, p.say(t, remark{Say: "2", Stateless: true}))
	require.Equal(t, []string{fits}, out.Heard)
	over := p.end(t, p.say(t, remark{Say: strings.Repeat("x", protocol.StateLimit)}))
	require.Equal(t, tine.StatusFailed, over.Execution().Status)
	require.Contains(t, over.Execution().FailureReason, "at most 1048576 fit")
}

// TestSessionQueue queues turns while no worker runs, and kills one worker after the other while
// they run.
func TestSessionQueue(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	p.stop()
	const turns = 50
	var ids []string
	for i := range turns {
		ids = append(ids, p.say(t, remark{Say: fmt.Sprint(i)}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	w := p.process(t, p.spec())
	for _, i := range []int{5, 30} {
		_, err := p.Wait(ctx, ids[i])
		require.NoError(t, err)
		w.kill()
		w = p.process(t, p.spec())
	}
	for i, id := range ids {
		_, err := p.Wait(ctx, id)
		require.NoError(t, err)
		out, _ := p.hear(t, id)
		require.Len(t, out.Heard, i)
		if i > 0 {
			require.Equal(t, ids[i-1], out.Parent)
		}
	}
}

// TestResetTurnWaits: a turn that is reset to before its admission waits for its turn again.
func TestResetTurnWaits(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	first := p.say(t, remark{Say: "1"})
	p.hear(t, first)
	second := p.say(t, remark{Say: "2", Wait: true})
	p.reach(t, second, tine.StatusRunning)
	_, err := p.temporal.ResetWorkflowExecution(t.Context(), &workflowservice.ResetWorkflowExecutionRequest{
		Namespace: "default", WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: first},
		Reason: "test", WorkflowTaskFinishEventId: 3, RequestId: uuid.NewString(),
	})
	require.NoError(t, err)
	time.Sleep(2 * time.Second)
	require.Equal(t, tine.StatusPending, p.status(t, first))
	p.goOn(t, second)
	p.end(t, second)
	require.Equal(t, tine.StatusCompleted, p.end(t, first).Execution().Status)
}

// TestCancelledSessionGoesOn: what is cancelled is turns.
func TestCancelledSessionGoesOn(t *testing.T) {
	t.Parallel()
	p := newParley(t)
	first := p.say(t, remark{Say: "1", Wait: true})
	p.reach(t, first, tine.StatusRunning)
	require.NoError(t, p.temporal.CancelWorkflow(t.Context(), protocol.SessionWorkflowID(p.session), ""))
	second := p.say(t, remark{Say: "2"})
	p.waits(t, second)
	p.goOn(t, first)
	p.hear(t, second)
}
