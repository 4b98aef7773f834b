package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/connect"
)

func TestCreateAsks(t *testing.T) {
	t.Parallel()
	var asked tine.CreateRequest
	c := &fake{
		create: func(req tine.CreateRequest) (*tine.Execution, error) {
			asked = req
			return newScript(sourceID).execution, nil
		},
		resolve: func(prefix string) (string, error) { return prefix + "-whole", nil },
	}
	h := newHarness(c, 0)
	h.f.in = strings.NewReader("{\n  \"task\": \"x\"\n}\n")
	require.Equal(t, exitOK, h.run(t.Context(), "exec", "create", "coder", "-", "--id", "mine", "--session", "s", "--parent", "p", "--task-queue", "q"))
	want := tine.CreateRequest{
		Agent: "coder", Input: json.RawMessage("{\n  \"task\": \"x\"\n}\n"), ID: "mine", Session: "s", Parent: "p-whole", TaskQueue: "q",
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
}

func TestForkAsks(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]tine.ForkRequest{
		"--at 3": {ExecutionID: "x-whole", AtSeq: 3, Effects: "guard"},
		"--at 3 --id y --session s --task-queue q --input [1]": {
			ExecutionID: "x-whole", AtSeq: 3, ID: "y", Session: "s", TaskQueue: "q", Input: json.RawMessage("[1]"), Effects: "guard",
		},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			var asked tine.ForkRequest
			c := &fake{
				fork: func(req tine.ForkRequest) (*tine.Execution, error) {
					asked = req
					return forked().execution, nil
				},
				resolve: func(prefix string) (string, error) { return prefix + "-whole", nil },
			}
			h := newHarness(c, 0)
			require.Equal(t, exitOK, h.run(t.Context(), append([]string{"exec", "fork", "x"}, strings.Fields(args)...)...))
			if diff := cmp.Diff(want, asked); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLsAsks(t *testing.T) {
	t.Parallel()
	var asked tine.ListOptions
	c := &fake{
		list: func(opts tine.ListOptions) ([]*tine.Execution, error) {
			asked = opts
			return nil, nil
		},
		resolve: func(prefix string) (string, error) { return prefix + "-whole", nil },
	}
	h := newHarness(c, 0)
	require.Equal(t, exitOK, h.run(t.Context(), "exec", "ls", "--agent", "a", "--status", "blocked", "--forked-from", "x", "--limit", "3"))
	require.Equal(t, tine.ListOptions{Agent: "a", Status: "blocked", ForkedFrom: "x-whole", Limit: 3}, asked)
}

func TestLsOfForksOfASourceThatIsGone(t *testing.T) {
	t.Parallel()
	var asked tine.ListOptions
	c := listed()
	list := c.list
	c.list = func(opts tine.ListOptions) ([]*tine.Execution, error) {
		asked = opts
		return list(opts)
	}
	c.resolve = func(prefix string) (string, error) { return "", &tine.NotFoundError{ExecutionID: prefix} }
	h := newHarness(c, 0)
	require.Equal(t, exitOK, h.run(t.Context(), "exec", "ls", "--forked-from", sourceID))
	require.Equal(t, sourceID, asked.ForkedFrom)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	cases := []struct {
		err  error
		exit int
		code string
		hint string
	}{
		{&tine.NotFoundError{ExecutionID: "x"}, 4, "not_found", "tine exec ls"},
		{&tine.AmbiguousError{Prefix: "x", Matches: []string{"x1", "x2"}}, 2, "ambiguous_id", "more of the id"},
		{fmt.Errorf("execution x: %w", &tine.SeqError{AtSeq: 9, Latest: 3}), 2, "no_such_event", "tine exec events"},
		{&tine.ExistsError{ExecutionID: "x"}, 1, "exists", "--id"},
		{&tine.ClosedError{ExecutionID: "x", Status: "completed"}, 1, "closed", "tine exec get x"},
		{&connect.ServerError{Address: "a:1", Err: io.EOF}, 5, "unreachable", "tine dev"},
		{serviceerror.NewUnavailable("gone"), 5, "unreachable", "try again"},
		{fmt.Errorf("list: %w", context.DeadlineExceeded), 5, "unreachable", "try again"},
		{serviceerror.NewPermissionDenied("no", "key"), 5, "not_authorized", "TEMPORAL_API_KEY"},
		{serviceerror.NewNamespaceNotFound("n"), 4, "namespace_not_found", "--namespace"},
		{&tine.SessionLabelError{Message: "blank"}, 2, "session_label", "another label"},
		{&tine.SessionNotFoundError{Session: "s"}, 4, "session_not_found", "tine session ls"},
		{&tine.SessionExistsError{Session: "s"}, 1, "session_exists", "new --session"},
		{&tine.ParentError{ExecutionID: "x", Message: "it is failed"}, 1, "parent", "tine exec get x"},
		{&tine.ApprovalNotFoundError{ID: "x/1"}, 4, "approval_not_found", `"tine approval ls" lists the pending ones`},
		{&tine.ApprovalDecidedError{Approval: &tine.Approval{ID: "x/1", Status: "granted", DecidedBy: "ann"}}, 1, "approval_decided", `"tine approval get x/1" shows it`},
		{&tine.NotAllowedError{Message: "bob may not"}, 3, "not_allowed", "one of those listed has to decide, with their own connection or --by"},
		{&tine.ApprovalChangedError{ID: "x/1"}, 1, "approval_changed", `look again: "tine approval get x/1"`},
		{&tine.NoWorkerError{ID: "x/1", TaskQueue: "q"}, 1, "no_worker", `start a worker of task queue "q" and try again; "tine approval get x/1" shows where it stands`},
		{&tine.UnknownOutcomeError{ID: "x/1", Err: context.DeadlineExceeded}, 1, "outcome_unknown", `"tine approval get x/1" shows whether it was`},
		{errors.New("something else"), 1, "failed", ""},
	}
	for _, tc := range cases {
		t.Run(tc.code+"/"+tc.err.Error(), func(t *testing.T) {
			t.Parallel()
			c := &fake{resolve: func(string) (string, error) { return "", tc.err }}

			h := newHarness(c, 0)
			require.Equal(t, tc.exit, h.run(t.Context(), "exec", "get", "x"))
			require.Empty(t, h.out.String())
			require.Contains(t, h.err.String(), tc.err.Error()+"\n")
			require.Contains(t, h.err.String(), tc.hint)

			h = newHarness(c, 0)
			require.Equal(t, tc.exit, h.run(t.Context(), "exec", "get", "x", "-o", "json"))
			require.Empty(t, h.out.String())
			var document struct {
				Error struct{ Code, Message, Hint string }
			}
			require.NoError(t, json.Unmarshal(h.err.Bytes(), &document))
			require.Equal(t, tc.code, document.Error.Code)
			require.Contains(t, document.Error.Message, tc.err.Error())
			require.Contains(t, document.Error.Hint, tc.hint)
		})
	}
}

func TestWatchTellsTheOutcomeOnStderrAsJSON(t *testing.T) {
	t.Parallel()
	h := newHarness(coder().client(), 0)
	require.Equal(t, exitFailed, h.run(t.Context(), "exec", "watch", sourceID, "-o", "json"))
	require.JSONEq(t, `{"error":{
		"code": "execution_failed",
		"message": "execution `+sourceID+` failed: tests: they do not pass",
		"hint": "see its steps: tine exec steps `+sourceID+`; try again from an event: tine exec fork `+sourceID+` --at SEQ"
	}}`, h.err.String())
	for line := range strings.Lines(h.out.String()) {
		require.Contains(t, line, `"event_seq":`)
	}
}

// quiet is a client whose execution has one event and then nothing, until ctx ends or the
// time comes.
func quiet(s *script, until time.Duration, get func() (*tine.Execution, error)) *fake {
	return &fake{
		get: func(context.Context, string) (*tine.Execution, error) { return get() },
		follow: func(ctx context.Context, _ string, _ int64) iter.Seq2[tine.Event, error] {
			return func(yield func(tine.Event, error) bool) {
				if !yield(s.events[0], nil) {
					return
				}
				select {
				case <-ctx.Done():
					yield(tine.Event{}, ctx.Err())
				case <-time.After(until):
					yield(s.events[len(s.events)-1], nil)
				}
			}
		},
	}
}

func TestWaitingTellsWhatKeepsTheExecution(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := short()
		looks := 0
		c := quiet(s, 5*time.Minute, func() (*tine.Execution, error) {
			looks++
			switch {
			case looks == 1:
				return nil, serviceerror.NewUnavailable("restarting")
			case looks < 6:
				return &tine.Execution{Status: "pending", Notes: []string{"no worker has picked it up yet"}}, nil
			default:
				return s.execution, nil
			}
		})
		h := newHarness(c, 0)
		require.Equal(t, exitOK, h.run(t.Context(), "exec", "watch", sourceID))
		require.Equal(t, "note: the server does not answer: restarting\nnote: no worker has picked it up yet\n", h.err.String())
		require.Less(t, looks, 20, "it looks less often while nothing happens")
	})
}

func TestAnApprovalIsToldAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := blocked()
		s.close(tine.StatusCompleted, "", "")
		open := *s.execution
		open.Status, open.Notes = tine.StatusBlocked, []string{`open_pr waits for approval; "tine approval grant x/1" lets it run`}
		var looked time.Duration
		began := time.Now()
		c := &fake{get: func(context.Context, string) (*tine.Execution, error) {
			if looked == 0 {
				looked = time.Since(began) + 1
				return &open, nil
			}
			return s.execution, nil
		}, follow: func(context.Context, string, int64) iter.Seq2[tine.Event, error] {
			return func(yield func(tine.Event, error) bool) {
				for _, e := range s.events {
					if e.Type == "execution.blocked" {
						time.Sleep(time.Second)
					}
					if !yield(e, nil) {
						return
					}
				}
			}
		}}
		h := newHarness(c, 0)
		require.Equal(t, exitOK, h.run(t.Context(), "exec", "watch", sourceID))
		require.Less(t, looked, time.Second)
		require.Equal(t, `note: open_pr waits for approval; "tine approval grant x/1" lets it run`+"\n", h.err.String())
	})
}

func TestApprovalLsAsks(t *testing.T) {
	t.Parallel()
	var asked tine.ApprovalOptions
	c := &fake{
		approvals: func(opts tine.ApprovalOptions) ([]*tine.Approval, error) {
			asked = opts
			return nil, nil
		},
		resolve: func(prefix string) (string, error) { return prefix + "-whole", nil },
	}
	h := newHarness(c, 0)
	require.Equal(t, exitOK, h.run(t.Context(), "approval", "ls", "--execution", "x", "--agent", "a", "--status", "denied", "--limit", "3"))
	require.Equal(t, tine.ApprovalOptions{Execution: "x-whole", Agent: "a", Status: "denied", Limit: 3}, asked)
	h = newHarness(c, 0)
	require.Equal(t, exitOK, h.run(t.Context(), "approval", "ls"))
	require.Equal(t, tine.ApprovalOptions{}, asked)
}

func TestDecidingAsks(t *testing.T) {
	t.Parallel()
	for word, status := range map[string]string{"grant": tine.ApprovalGranted, "deny": tine.ApprovalDenied} {
		var asked []any
		c := asks()
		decide := c.decide
		c.decide = func(status, id string, decision tine.ApprovalDecision) (*tine.Approval, error) {
			asked = []any{status, id, decision}
			return decide(status, id, decision)
		}
		h := newHarness(c, 0)
		require.Equal(t, exitOK, h.run(t.Context(), "approval", word, "x", "--by", "ann", "--reason", "fine"))
		require.Equal(t, []any{status, "x", tine.ApprovalDecision{By: "ann", Reason: "fine"}}, asked)
		require.Contains(t, h.out.String(), status+" "+sourceID+"/0123456789ab: open_pr")
	}
}

// TestApproversReadAllArguments: what a terminal cuts elsewhere has to be read before it is
// approved.
func TestApproversReadAllArguments(t *testing.T) {
	t.Parallel()
	a := openPR()
	lines := make([]string, 100)
	for i := range lines {
		lines[i] = fmt.Sprintf("line %d", i)
	}
	args, err := json.Marshal(map[string][]string{"lines": lines})
	require.NoError(t, err)
	a.Args = args
	h := newHarness(&fake{approval: func(string) (*tine.Approval, error) { return a, nil }}, 80)
	require.Equal(t, exitOK, h.run(t.Context(), "approval", "get", "x"))
	require.Contains(t, h.out.String(), `"line 99"`)
	require.NotContains(t, h.out.String(), "…")
}

func TestNotesAsJSON(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := short()
		c := quiet(s, 3*time.Second, func() (*tine.Execution, error) {
			e := *s.execution
			e.Notes = []string{"its workflow task fails"}
			return &e, nil
		})
		c.create = func(tine.CreateRequest) (*tine.Execution, error) { return s.execution, nil }
		h := newHarness(c, 0)
		require.Equal(t, exitOK, h.run(t.Context(), "exec", "create", "coder", "--wait", "-o", "json"))
		require.Equal(t, `{"note":"its workflow task fails"}`+"\n", h.err.String())
		require.True(t, json.Valid(h.out.Bytes()), "stdout is one document")
	})
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	never := func() (*tine.Execution, error) { return &tine.Execution{}, nil }
	cases := []struct {
		args   []string
		exit   int
		stderr string
	}{
		{[]string{"exec", "watch", "x"}, exitFailed, "error: interrupted; execution x goes on\nhint: \"tine exec watch x\" follows it again\n"},
		{[]string{"exec", "events", "x", "--follow"}, exitOK, ""},
	}
	for _, tc := range cases {
		t.Run(tc.args[1], func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, interrupt)
				h := newHarness(quiet(short(), time.Hour, never), 0)
				require.Equal(t, tc.exit, h.run(ctx, tc.args...))
				require.Equal(t, tc.stderr, h.err.String())
			})
		})
	}
}

func TestCancelOfAClosedExecution(t *testing.T) {
	t.Parallel()
	c := &fake{cancel: func(id string) error { return &tine.ClosedError{ExecutionID: id, Status: "completed"} }}
	h := newHarness(c, 0)
	require.Equal(t, exitFailed, h.run(t.Context(), "exec", "cancel", "x"))
	require.Contains(t, h.err.String(), "has ended already: completed")
}

func TestClosesTheConnection(t *testing.T) {
	t.Parallel()
	closed := 0
	h := newHarness(nil, 0)
	h.f.dial = func(context.Context) (executions, func(), error) { return listed(), func() { closed++ }, nil }
	require.Equal(t, exitOK, h.run(t.Context(), "exec", "ls"))
	require.Equal(t, 1, closed)
}
