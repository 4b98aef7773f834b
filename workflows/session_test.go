package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

var dawn = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// playedTurn is an execution as the test plays it for a session.
type playedTurn struct {
	agent  string
	parent string
	// takes is how long it runs once admitted, and ends the status it then has; completed if
	// empty. Zero is forever.
	takes time.Duration
	ends  string
	// silent ones end without telling the session.
	silent bool
	// leaves is how much it leaves, in bytes.
	leaves int
	// status is what Temporal says of it.
	status string
}

// played runs a session and its executions in Temporal's test environment.
type played struct {
	t     *testing.T
	env   *testsuite.TestWorkflowEnvironment
	turns map[string]*playedTurn
	// order has the admissions, as execution<parent.
	order []string
	// left are those that were given what their parent has left.
	left []string
	// renewEvery has the session continue as new after so many admissions. Zero is never.
	renewEvery int
	looks      int
	runs       int
}

func play(t *testing.T, turns map[string]*playedTurn) *played {
	t.Helper()
	for _, turn := range turns {
		turn.status = protocol.StatusRunning
		if turn.agent == "" {
			turn.agent = "a"
		}
		if turn.ends == "" {
			turn.ends = protocol.StatusCompleted
		}
	}
	return &played{t: t, turns: turns}
}

// at has something happen when the session has run for d.
func (p *played) at(d time.Duration, do func()) { p.env.RegisterDelayedCallback(do, d) }

func (p *played) tell(change, id string, created int) {
	turn := p.turns[id]
	p.env.SignalWorkflow(protocol.SignalTurn, protocol.Turn{
		ExecutionID: id, AgentID: turn.agent, Parent: turn.parent, Change: change,
		CreatedAt: dawn.Add(time.Duration(created) * time.Millisecond),
	})
}

// run runs the session, over all its runs, until the last one has nothing to do for a day.
func (p *played) run(script func()) {
	state := protocol.SessionState{Label: "s"}
	for {
		p.runs++
		var suite testsuite.WorkflowTestSuite
		suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
		p.env = suite.NewTestWorkflowEnvironment()
		p.env.SetTestTimeout(time.Minute)
		p.env.SetStartTime(dawn.Add(time.Duration(p.runs) * 24 * time.Hour))
		require.NoError(p.t, worker.Register(p.env, worker.Options{}, worker.Agent("calls", Calls)))
		p.env.OnActivity(protocol.ActivityTurn, mock.Anything, mock.Anything).Return(p.look)
		p.env.OnSignalExternalWorkflow(mock.Anything, mock.Anything, mock.Anything, mock.Anything, mock.Anything).Return(p.admit)
		if p.runs == 1 {
			script()
		} else if state.Running != nil {
			p.at(time.Millisecond, func() { p.end(state.Running.ExecutionID) })
		}
		p.env.RegisterDelayedCallback(p.env.CancelWorkflow, 24*time.Hour)
		p.env.ExecuteWorkflow(protocol.WorkflowSession, state)
		err := p.env.GetWorkflowError()
		var renewed *workflow.ContinueAsNewError
		if !errors.As(err, &renewed) {
			require.Error(p.t, err) // cancelled
			return
		}
		state = protocol.SessionState{}
		require.NoError(p.t, converter.GetDefaultDataConverter().FromPayloads(renewed.Input, &state))
	}
}

func (p *played) look(_ context.Context, query protocol.TurnQuery) (protocol.TurnStatus, error) {
	p.looks++
	turn := p.turns[query.ExecutionID]
	status := protocol.TurnStatus{Status: turn.status, RunID: "run"}
	if turn.leaves > 0 {
		status.Left, status.LeftBytes = &protocol.Previous{ExecutionID: query.ExecutionID}, turn.leaves
	}
	return status, nil
}

func (p *played) admit(_, id, _, signal string, arg any) error {
	require.Equal(p.t, protocol.SignalAdmit, signal)
	turn := p.turns[id]
	if turn.status != protocol.StatusRunning {
		return errors.New("closed")
	}
	admission := arg.(protocol.Admission)
	p.order = append(p.order, id+"<"+admission.Parent)
	if admission.Left != nil {
		require.Equal(p.t, admission.Parent, admission.Left.ExecutionID)
		p.left = append(p.left, id)
	}
	if p.renewEvery > 0 && len(p.order)%p.renewEvery == 0 {
		p.env.SetContinueAsNewSuggested(true)
	}
	if turn.takes > 0 {
		p.at(turn.takes, func() { p.end(id) })
	}
	return nil
}

func (p *played) end(id string) {
	turn := p.turns[id]
	if turn.status != protocol.StatusRunning {
		return
	}
	turn.status = turn.ends
	if !turn.silent {
		p.tell(protocol.TurnEnded, id, 0)
	}
}

func TestSession(t *testing.T) {
	t.Parallel()
	const second = time.Second
	// Times in scripts are far apart, so that what is admitted first is certain.
	for name, tc := range map[string]struct {
		turns  map[string]*playedTurn
		script func(*played)
		want   string
	}{
		"one at a time, each continues the one before": {
			turns: map[string]*playedTurn{"1": {takes: 30 * second}, "2": {takes: second}, "3": {takes: second}},
			script: func(p *played) {
				p.at(0, func() { p.tell(protocol.TurnWaiting, "1", 1); p.tell(protocol.TurnWaiting, "2", 2) })
				p.at(5*second, func() { p.tell(protocol.TurnWaiting, "3", 3) })
			},
			want: "1< 2<1 3<2",
		},
		"announced ones keep their order, whoever comes first": {
			turns: map[string]*playedTurn{"1": {takes: second}, "2": {takes: second}},
			script: func(p *played) {
				p.at(0, func() { p.tell(protocol.TurnAnnounced, "1", 1); p.tell(protocol.TurnAnnounced, "2", 2) })
				p.at(second, func() { p.tell(protocol.TurnWaiting, "2", 9) })
				p.at(20*second, func() { p.tell(protocol.TurnWaiting, "1", 8) })
			},
			want: "1< 2<1",
		},
		"an announced one that does not come gives way, and takes its place again": {
			turns: map[string]*playedTurn{"1": {takes: second}, "2": {takes: 30 * second}, "3": {takes: second}},
			script: func(p *played) {
				for i, id := range []string{"1", "2", "3"} {
					p.at(0, func() { p.tell(protocol.TurnAnnounced, id, i) })
				}
				p.at(second, func() { p.tell(protocol.TurnWaiting, "2", 1); p.tell(protocol.TurnWaiting, "3", 2) })
				p.at(70*second, func() { p.tell(protocol.TurnWaiting, "1", 0) })
			},
			want: "2< 1<2 3<2", // 2 is the newest completed one, though 1 ended later
		},
		"those that nobody has announced run by the time they were created": {
			turns: map[string]*playedTurn{"1": {takes: second}, "2": {takes: second}, "3": {takes: second}},
			script: func(p *played) {
				p.at(0, func() { p.tell(protocol.TurnWaiting, "3", 3) })
				p.at(second/4, func() { p.tell(protocol.TurnWaiting, "1", 1) })
				p.at(second/2, func() { p.tell(protocol.TurnWaiting, "2", 2) })
			},
			want: "1< 2<1 3<2",
		},
		"failed and cancelled ones are not continued": {
			turns: map[string]*playedTurn{
				"1": {takes: second}, "2": {takes: second, ends: protocol.StatusFailed},
				"3": {takes: second, ends: protocol.StatusCancelled}, "4": {takes: second},
			},
			script: func(p *played) {
				for i, id := range []string{"1", "2", "3", "4"} {
					p.at(0, func() { p.tell(protocol.TurnWaiting, id, i) })
				}
			},
			want: "1< 2<1 3<1 4<1",
		},
		"agents continue their own": {
			turns: map[string]*playedTurn{"1": {takes: second}, "2": {takes: second, agent: "b"}, "3": {takes: second}, "4": {takes: second, agent: "b"}},
			script: func(p *played) {
				for i, id := range []string{"1", "2", "3", "4"} {
					p.at(0, func() { p.tell(protocol.TurnWaiting, id, i) })
				}
			},
			want: "1< 2< 3<1 4<2",
		},
		"a parent that was asked for": {
			turns: map[string]*playedTurn{"1": {takes: second}, "2": {takes: second}, "3": {takes: second, parent: "1"}, "4": {takes: second}},
			script: func(p *played) {
				for i, id := range []string{"1", "2", "3", "4"} {
					p.at(0, func() { p.tell(protocol.TurnWaiting, id, i) })
				}
			},
			want: "1< 2<1 3<1 4<3",
		},
		"one that leaves the queue admits nobody": {
			turns: map[string]*playedTurn{"1": {takes: 60 * second}, "2": {}, "3": {takes: second}},
			script: func(p *played) {
				for i, id := range []string{"1", "2", "3"} {
					p.at(0, func() { p.tell(protocol.TurnWaiting, id, i) })
				}
				p.at(10*second, func() { p.tell(protocol.TurnEnded, "2", 0); p.turns["2"].status = protocol.StatusCancelled })
				p.at(30*second, func() { require.Len(p.t, p.order, 1) })
			},
			want: "1< 3<1",
		},
		"one that was terminated while it waited is passed over": {
			turns: map[string]*playedTurn{"1": {takes: 60 * second}, "2": {}, "3": {takes: second}},
			script: func(p *played) {
				for i, id := range []string{"1", "2", "3"} {
					p.at(0, func() { p.tell(protocol.TurnWaiting, id, i) })
				}
				p.at(10*second, func() { p.turns["2"].status = protocol.StatusCancelled })
			},
			want: "1< 3<1",
		},
		"one that ends without a word is noticed": {
			turns: map[string]*playedTurn{"1": {takes: 5 * time.Minute, silent: true, ends: protocol.StatusCancelled}, "2": {takes: second}},
			script: func(p *played) {
				p.at(0, func() { p.tell(protocol.TurnWaiting, "1", 1); p.tell(protocol.TurnWaiting, "2", 2) })
			},
			want: "1< 2<",
		},
		"who comes to wait has the session look soon": {
			turns: map[string]*playedTurn{"1": {takes: 6 * time.Hour, silent: true, ends: protocol.StatusCancelled}, "2": {takes: second}},
			script: func(p *played) {
				p.at(0, func() { p.tell(protocol.TurnWaiting, "1", 1) })
				p.at(6*time.Hour+5*second, func() { p.tell(protocol.TurnWaiting, "2", 2) })
				p.at(6*time.Hour+20*second, func() { require.Len(p.t, p.order, 2) })
			},
			want: "1< 2<",
		},
		"one that says it ends is waited for": {
			turns: map[string]*playedTurn{"1": {}, "2": {takes: second}},
			script: func(p *played) {
				p.at(0, func() { p.tell(protocol.TurnWaiting, "1", 1); p.tell(protocol.TurnWaiting, "2", 2) })
				p.at(5*second, func() { p.tell(protocol.TurnEnded, "1", 0) })
				p.at(7*second, func() { require.Len(p.t, p.order, 1); p.turns["1"].status = protocol.StatusCompleted })
			},
			want: "1< 2<1",
		},
		"what could not be started is withdrawn": {
			turns: map[string]*playedTurn{"1": {}, "2": {takes: second}},
			script: func(p *played) {
				p.at(0, func() { p.tell(protocol.TurnAnnounced, "1", 1); p.tell(protocol.TurnWithdrawn, "1", 1) })
				p.at(0, func() { p.tell(protocol.TurnAnnounced, "2", 2); p.tell(protocol.TurnWaiting, "2", 2) })
				p.at(second, func() { require.Len(p.t, p.order, 1) })
			},
			want: "2<",
		},
		"withdrawing does not concern one that waits": {
			turns: map[string]*playedTurn{"1": {takes: second}},
			script: func(p *played) {
				p.at(0, func() {
					p.tell(protocol.TurnAnnounced, "1", 1)
					p.tell(protocol.TurnWaiting, "1", 1)
					p.tell(protocol.TurnWithdrawn, "1", 1)
				})
			},
			want: "1<",
		},
		"the running one is admitted again if it asks": {
			turns: map[string]*playedTurn{"1": {}, "2": {takes: second}},
			script: func(p *played) {
				p.at(0, func() { p.tell(protocol.TurnWaiting, "1", 1); p.tell(protocol.TurnWaiting, "2", 2) })
				p.at(20*second, func() { p.tell(protocol.TurnWaiting, "1", 1) })
				p.at(40*second, func() { p.end("1") })
			},
			want: "1< 1< 2<1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := play(t, tc.turns)
			p.run(func() { tc.script(p) })
			require.Equal(t, tc.want, strings.Join(p.order, " "))
		})
	}
}

// TestSessionForgets has agents leave more than a session keeps.
func TestSessionForgets(t *testing.T) {
	t.Parallel()
	turns := map[string]*playedTurn{}
	for _, agent := range []string{"a", "b", "c", "d", "e"} {
		for _, n := range []string{"1", "2"} {
			turns[agent+n] = &playedTurn{agent: agent, takes: time.Second, leaves: protocol.KeptLimit}
		}
	}
	turns["c1"].leaves = 0
	p := play(t, turns)
	p.renewEvery = 3
	order := []string{"a1", "b1", "c1", "d1", "e1", "c2", "b2", "a2", "d2", "e2"}
	p.run(func() {
		for i, id := range order {
			p.at(0, func() { p.tell(protocol.TurnWaiting, id, i) })
		}
	})
	require.Equal(t, "a1< b1< c1< d1< e1< c2<c1 b2<b1 a2<a1 d2<d1 e2<e1", strings.Join(p.order, " "))
	// Four fit: when c2 has ended what a1 has left goes, then d1's for a2, and e1's for d2.
	require.Equal(t, []string{"b2"}, p.left)
}

// TestSessionSweep counts how often a session looks after a turn that runs for long.
func TestSessionSweep(t *testing.T) {
	t.Parallel()
	p := play(t, map[string]*playedTurn{"1": {takes: 12 * time.Hour}})
	p.run(func() { p.at(0, func() { p.tell(protocol.TurnWaiting, "1", 1) }) })
	require.InDelta(t, 12*60/5+5, p.looks, 5)
}

// TestLongSession queues 500 turns and has the session continue as new in between.
func TestLongSession(t *testing.T) {
	t.Parallel()
	const turns = 500
	all := map[string]*playedTurn{}
	var want []string
	for i := range turns {
		all[strconv.Itoa(i)] = &playedTurn{takes: time.Second}
		want = append(want, fmt.Sprintf("%d<%s", i, map[bool]string{true: strconv.Itoa(i - 1)}[i > 0]))
	}
	p := play(t, all)
	p.renewEvery = 40
	p.run(func() {
		for batch := range turns / 50 { // more at once do not fit the test environment's queue
			p.at(time.Duration(batch)*time.Millisecond, func() {
				for i := batch * 50; i < batch*50+50; i++ {
					p.tell(protocol.TurnAnnounced, strconv.Itoa(i), i)
				}
			})
			p.at(time.Duration(100+batch)*time.Millisecond, func() {
				for i := batch * 50; i < batch*50+50; i++ { // workers find them in some other order
					p.tell(protocol.TurnWaiting, strconv.Itoa(i*7%turns), 0)
				}
			})
		}
	})
	require.Equal(t, want, p.order)
	require.Greater(t, p.runs, turns/p.renewEvery)
}

func TestSessionLabels(t *testing.T) {
	t.Parallel()
	for label, ok := range map[string]bool{
		"": false, " \t\n": false, "a\x00b": false, "\xff": false, strings.Repeat("x", 257): false,
		strings.Repeat("x", 256): true, "naïve 🍴": true, "a/b'\\\"": true, " a ": true,
	} {
		require.Equal(t, ok, protocol.CheckSession(label) == nil, "%q", label)
	}
	ids := map[string]string{}
	for _, label := range []string{"a", "A", "a/b", "a b", "#", "ä", strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("x", 130)} {
		id := protocol.SessionWorkflowID(label)
		require.LessOrEqual(t, len(id), 200)
		require.Empty(t, ids[id], "%q and %q", label, ids[id])
		ids[id] = label
	}
	require.Equal(t, "tine-session/a", protocol.SessionWorkflowID("a"))
	require.Equal(t, "6f7a8b9c0d1e", protocol.SessionOf("", "0198c0de-1234-7abc-8def-6f7a8b9c0d1e"))
	require.Equal(t, "given", protocol.SessionOf("given", "x"))
	require.Equal(t, "short", protocol.SessionOf("", "short"))
}

// TestSessionThatDidNotBegin: the first turn of a fork's new session could not be started, so the
// label is free again.
func TestSessionThatDidNotBegin(t *testing.T) {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterWorkflow(workflows.Session)
	begin := env.Now()
	env.RegisterDelayedCallback(func() {
		env.SignalWorkflow(protocol.SignalTurn, protocol.Turn{ExecutionID: "fork", Change: protocol.TurnWithdrawn})
	}, time.Second)
	env.ExecuteWorkflow(workflows.Session, protocol.SessionState{
		Label: "s", Queue: []protocol.Turn{{ExecutionID: "fork", AgentID: "a", CreatedAt: begin, Announced: true}},
	})
	require.NoError(t, env.GetWorkflowError())
	require.Less(t, env.Now().Sub(begin), 10*time.Second)
}

// TestTurnJoinsAgain: a session that was ended and begun anew does not know who waits, and an admission
// of before a reset is none.
func TestTurnJoinsAgain(t *testing.T) {
	env := newEnvironment(t, nil)
	joins := 0
	env.OnActivity(protocol.ActivityJoin, mock.Anything, mock.Anything).Return(
		func(context.Context, protocol.JoinSession) (protocol.Joined, error) {
			joins++
			return protocol.Joined{Token: strconv.Itoa(joins)}, nil
		})
	env.OnSignalExternalWorkflow(mock.Anything, mock.Anything, mock.Anything, mock.Anything, mock.Anything).Return(nil)
	admit := func(after time.Duration, token string) {
		env.RegisterDelayedCallback(func() {
			env.SignalWorkflow(protocol.SignalAdmit, protocol.Admission{Token: token})
		}, after)
	}
	admit(time.Minute, "of before")
	admit(11*time.Minute, "1")
	env.ExecuteWorkflow("calls", []string{}, &protocol.Start{Session: "s"})
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, 2, joins)
	require.InDelta(t, 11*time.Minute, env.Now().Sub(env.begin), float64(time.Minute))
}
