package eventlog_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// TestLimits has the events of one step to which limits apply, after execution.created
// and started.
func TestLimits(t *testing.T) {
	t.Parallel()
	until := window.ExpiresAt
	tests := map[string]struct {
		build  func(*history, call)
		types  []string
		status string
	}{
		"undecided": {
			func(h *history, c call) { h.propose(c, allow) },
			[]string{eventlog.StepProposed}, eventlog.StepStatusProposed,
		},
		"an undecided step is not run": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.complete(h.execute(c), "ok")
			},
			[]string{eventlog.StepProposed}, eventlog.StepStatusProposed,
		},
		"within the limit": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.settle(record(c, allow))
				h.complete(h.execute(c), "ok")
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded}, eventlog.StepStatusSucceeded,
		},
		"within the limit, and waits in the workflow": {
			func(h *history, c call) {
				h.propose(c, allow)
				rec := record(c, allow)
				rec.Executing = true
				h.settle(rec)
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting}, eventlog.StepStatusExecuting,
		},
		"over budget": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.settle(record(c, deny))
			},
			[]string{eventlog.StepProposed, eventlog.StepDenied}, eventlog.StepStatusDenied,
		},
		"over budget, which asks": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.settle(record(c, approval))
			},
			asked(), eventlog.StepStatusAwaiting,
		},
		"cancelled before it was decided": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.settle(givenUp(c))
			},
			[]string{eventlog.StepProposed, eventlog.StepCancelled}, eventlog.StepStatusCancelled,
		},
		"cancelled while it is parked": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, &until)
				h.settle(givenUp(c))
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited, eventlog.StepCancelled}, eventlog.StepStatusCancelled,
		},
		"parked": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, &until)
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited}, eventlog.StepStatusLimited,
		},
		"parked, then allowed": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, &until)
				h.settle(record(c, allow))
				h.complete(h.execute(c), "ok")
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded},
			eventlog.StepStatusSucceeded,
		},
		"parked, then refused": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, &until)
				h.limit(c, nil)
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited, eventlog.StepRateLimited}, eventlog.StepStatusLimited,
		},
		"parked, and cancelled": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, &until)
				h.settle(protocol.StepRecord{Step: c.Step, Outcome: &protocol.Outcome{
					Error: &protocol.StepError{Message: "cancelled", Reason: protocol.ReasonCancelled},
				}})
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited, eventlog.StepCancelled}, eventlog.StepStatusCancelled,
		},
		"cancelled before it is decided": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.settle(protocol.StepRecord{Step: c.Step, Outcome: &protocol.Outcome{
					Error: &protocol.StepError{Message: "cancelled", Reason: protocol.ReasonCancelled},
				}})
			},
			[]string{eventlog.StepProposed, eventlog.StepCancelled}, eventlog.StepStatusCancelled,
		},
		"parked when the execution ends": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, &until)
				h.completed(nil)
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited, eventlog.StepCancelled, eventlog.ExecutionCompleted},
			eventlog.StepStatusCancelled,
		},
		"refused": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, nil)
				h.complete(h.execute(c), "ok")
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited}, eventlog.StepStatusLimited,
		},
		"refused when the execution ends": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, nil)
				h.completed(nil)
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited, eventlog.ExecutionCompleted}, eventlog.StepStatusLimited,
		},
		"refused, asked for again": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, nil)
				h.propose(c, allow)
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited}, eventlog.StepStatusProposed,
		},
		"refused, asked for again when the execution ends": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, nil)
				h.propose(c, allow)
				h.completed(nil)
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited, eventlog.StepCancelled, eventlog.ExecutionCompleted},
			eventlog.StepStatusCancelled,
		},
		"refused twice, then allowed": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, nil)
				h.propose(c, allow)
				h.limit(c, nil)
				h.propose(c, allow)
				h.settle(record(c, allow))
				h.complete(h.execute(c), "ok")
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited, eventlog.StepRateLimited, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded},
			eventlog.StepStatusSucceeded,
		},
		"refused, then decided by another policy": {
			func(h *history, c call) {
				h.propose(c, allow)
				h.limit(c, nil)
				h.decide(c, deny)
			},
			[]string{eventlog.StepProposed, eventlog.StepRateLimited, eventlog.StepDenied}, eventlog.StepStatusDenied,
		},
		"limits come before the decision": {
			func(h *history, c call) {
				h.decide(c, allow)
				h.limit(c, nil)
				h.propose(c, deny)
			},
			[]string{eventlog.StepProposed, eventlog.StepAllowed}, eventlog.StepStatusProposed,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			tt.build(h, h.tool())
			log := h.log()
			requireTypes(t, log, append([]string{eventlog.ExecutionCreated, eventlog.ExecutionStarted}, tt.types...)...)
			require.Len(t, log.Steps, 1)
			requireConsistent(t, log, log.Steps[0], tt.status)
			if tt.status != eventlog.StepStatusLimited {
				require.Nil(t, log.Steps[0].ParkedUntil)
			}
		})
	}
}

// givenUp is the record of a step that was cancelled before its body could run.
func givenUp(c call) protocol.StepRecord {
	cancelled := protocol.StepError{Message: "cancelled", Reason: protocol.ReasonCancelled}
	return protocol.StepRecord{Step: c.Step, Outcome: &protocol.Outcome{Error: &cancelled}}
}

// TestGivenUpAfterApproval: a step that was approved and then cancelled had no effect.
func TestGivenUpAfterApproval(t *testing.T) {
	t.Parallel()
	h, c := waiting(t)
	h.grant(c)
	h.settle(givenUp(c))
	log := h.log()
	require.Equal(t, eventlog.StepStatusCancelled, log.Steps[0].Status)
	require.Zero(t, log.Steps[0].ExecutingSeq)
}

func TestLimitPayloads(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	c := h.tool()
	h.propose(c, allow)
	h.limit(c, &window.ExpiresAt)
	log := h.log()
	about := `{"step_id":"` + c.ID + `","step_type":"tool_call","target":"write",`
	require.Equal(t, about+`"rule_id":"r4","reason":"rate_limit_exceeded","policy_digest":"d1","until":"2025-06-01T12:15:00Z"}`,
		payload(t, log, 4, eventlog.StepRateLimited))
	step := log.Steps[0]
	require.Equal(t, &window.ExpiresAt, step.ParkedUntil)
	require.Equal(t, "r4", step.RuleID)
	require.Empty(t, step.Decision, "there is none yet")
	require.Equal(t, protocol.StatusRunning, log.Status)

	h.limit(c, nil)
	log = h.log()
	require.Equal(t, about+`"rule_id":"r4","reason":"rate_limit_exceeded","policy_digest":"d1"}`, payload(t, log, 5, eventlog.StepRateLimited))
	require.Nil(t, log.Steps[0].ParkedUntil)
	require.Equal(t, `null`, string(log.Steps[0].Args))
}

// TestLimitsInForks has a step that was parked, and one that was refused.
func TestLimitsInForks(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	parked, refused := h.tool(), h.tool()
	h.propose(parked, allow)
	h.limit(parked, &window.ExpiresAt)
	h.settle(record(parked, allow))
	h.complete(h.execute(parked), "ok")
	h.propose(refused, allow)
	h.limit(refused, nil)
	source := h.log()
	copied := append(all(parked, eventlog.StepSucceeded),
		eventlog.StepProposed+" "+refused.ID[:4], eventlog.StepRateLimited+" "+refused.ID[:4])
	requirePrefix(t, source, source.LatestSeq(), copied...)

	// A refused step that the fork asks for again is its own.
	fork := forkOf(t, source, source.LatestSeq(), 0)
	require.Equal(t, eventlog.StepStatusLimited, fork.log().Steps[1].Status)
	fork.settle(record(refused, allow))
	step := fork.log().Steps[1]
	require.Equal(t, protocol.Allow, step.Decision)
	require.False(t, step.Replayed)
}

func TestLimiterIsNoStep(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	c := h.tool()
	h.decide(c, allow)
	// Even with a step's id: the limiter's activity never runs a step.
	h.complete(h.schedule(protocol.ActivityLimit, c.ID, protocol.LimitRequest{Bucket: "b"}), protocol.LimitGrant{})
	requireTypes(t, h.log(), eventlog.ExecutionCreated, eventlog.ExecutionStarted, eventlog.StepProposed, eventlog.StepAllowed)
}
