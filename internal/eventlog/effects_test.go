package eventlog_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// once is an at_most_once call of a tool.
func (h *history) once(target string) call {
	c := h.call(protocol.KindTool, target, nil)
	c.Idempotency = protocol.AtMostOnce
	return c
}

func tools(targets ...string) []protocol.Effect {
	var effects []protocol.Effect
	for _, target := range targets {
		effects = append(effects, protocol.Effect{Kind: protocol.KindTool, Target: target})
	}
	return effects
}

func requireEffects(t *testing.T, log *eventlog.Log, atSeq int64, want []protocol.Effect) {
	t.Helper()
	require.Equal(t, want, log.EffectsSince(atSeq), "at %d", atSeq)
	plan, err := log.PlanFork(atSeq)
	require.NoError(t, err)
	require.Equal(t, want, plan.Effects)
}

func TestEffectsSince(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.run(h.once("mail")) // 3 to 6
	log := h.log()
	requireEffects(t, log, 2, tools("mail"))
	requireEffects(t, log, 5, tools("mail")) // it has begun, but a fork would run it again
	requireEffects(t, log, 6, nil)           // a fork copies its outcome

	h.run(h.tool())                                                             // 7 to 10: safe to retry
	h.run(h.once("mail"))                                                       // 11 to 14
	h.run(h.once("ledger"))                                                     // 15 to 18
	h.cancel(h.begin(h.once("cancelled")))                                      // 19 to 22
	h.timeOut(h.begin(h.once("indeterminate")), enumspb.TIMEOUT_TYPE_HEARTBEAT) // 23 to 26
	h.fail(h.begin(h.once("failed")), errors.New("no"))                         // 27 to 30
	h.decide(h.once("allowed"), allow)                                          // 31, 32
	h.decide(h.once("denied"), deny)                                            // 33, 34
	h.decide(h.once("awaiting"), approval)                                      // 35 to 38
	h.propose(h.once("undecided"), allow)                                       // 39
	h.begin(h.once("open"))                                                     // 40 to 42
	h.runLocal(h.call(protocol.KindLocal, "retried", 1), protocol.Outcome{})    // 43 to 46
	log = h.log()
	requireEffects(t, log, 2, tools("cancelled", "failed", "indeterminate", "ledger", "mail", "open"))
	requireEffects(t, log, 10, tools("cancelled", "failed", "indeterminate", "ledger", "mail", "open"))
	requireEffects(t, log, 18, tools("cancelled", "failed", "indeterminate", "open"))
	requireEffects(t, log, 30, tools("cancelled", "open")) // forks copy neither, whenever they ended
	requireEffects(t, log, log.LatestSeq(), tools("cancelled", "open"))
}

// TestEffectsOfKinds sorts by kind, then by target.
func TestEffectsOfKinds(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.run(h.once("b"))
	h.run(h.once("a"))
	for _, kind := range []string{protocol.KindLocal, protocol.KindLLM} {
		c := h.call(kind, "c", nil)
		c.Idempotency = protocol.AtMostOnce
		h.run(c)
	}
	requireEffects(t, h.log(), 2, append([]protocol.Effect{
		{Kind: protocol.KindLLM, Target: "c"}, {Kind: protocol.KindLocal, Target: "c"},
	}, tools("a", "b")...))
}

func TestEffectsOfForks(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.run(h.once("copied")) // 3 to 6
	h.run(h.once("ledger")) // 7 to 10
	source := h.log()

	f := forkOf(t, source, 6, 1<<20) // copied: 3 to 6; 7 started
	log := f.log()
	requireEffects(t, log, 7, tools("ledger"))           // its own source's
	requireEffects(t, log, 4, tools("copied", "ledger")) // cut before the copied step has ended
	f.run(f.once("mail"))                                // 8 to 11
	log = f.log()
	requireEffects(t, log, 7, tools("ledger", "mail"))
	requireEffects(t, log, 11, tools("ledger"))

	for _, mode := range []string{protocol.EffectsPolicy, ""} {
		f = emptyHistory(t)
		f.started(nil, &protocol.Start{Fork: &protocol.Fork{
			ExecutionID: "src", Effects: mode, Guarded: tools("ledger"), Page: &protocol.PrefixPage{},
		}})
		f.workflowTask()
		requireEffects(t, f.log(), 3, nil) // what is not guarded is not passed on
	}
}
