package eventlog_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// brief writes records as "type subject", with the interval of a checkpoint.
func brief(t testingT, records []protocol.PrefixRecord) []string {
	t.Helper()
	out := []string{}
	for _, r := range records {
		switch c := r.Checkpoint; {
		case r.StepID != "":
			out = append(out, r.Type+" "+r.StepID[:4])
		case r.Type == eventlog.ResourceCheckpointed:
			out = append(out, fmt.Sprintf("%s %s %s [%d,%d)", r.Type, r.Key, c.Ref, c.CoveredSeq, c.InvalidatedSeq))
		case c != nil:
			out = append(out, r.Type+" "+r.Key+" "+c.Ref)
		default:
			out = append(out, r.Type+" "+r.Key)
		}
	}
	return out
}

func prefix(t testingT, log *eventlog.Log, atSeq int64) []protocol.PrefixRecord {
	t.Helper()
	records, err := log.Prefix(atSeq)
	require.NoError(t, err)
	return records
}

func requirePrefix(t *testing.T, log *eventlog.Log, atSeq int64, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), brief(t, prefix(t, log, atSeq))); diff != "" {
		t.Fatalf("prefix at %d (-want +got):\n%s", atSeq, diff)
	}
}

// all are the events of a step that ran.
func all(c call, last string) []string {
	return steps(c, eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting, last)
}

func steps(c call, types ...string) []string {
	var out []string
	for _, typ := range types {
		out = append(out, typ+" "+c.ID[:4])
	}
	return out
}

func TestPrefixOfSteps(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	ok := h.run(h.tool()) // 3 to 6
	bad := h.tool()
	h.fail(h.begin(bad), errors.New("x")) // 7 to 10
	denied := h.tool()
	h.decide(denied, deny) // 11, 12
	waits := h.tool()
	h.decide(waits, approval)    // 13 to 16
	h.cancel(h.begin(h.tool()))  // 17 to 20: cancelled
	h.begin(h.tool())            // 21 to 23: open
	h.grant(waits)               // 24 to 26
	h.complete(h.execute(waits)) // 27, 28
	h.completed(nil)             // 29 cancels the open one; 30
	log := h.log()
	require.Equal(t, int64(30), log.LatestSeq())

	requirePrefix(t, log, 1)
	requirePrefix(t, log, 2)
	requirePrefix(t, log, 5)
	requirePrefix(t, log, 6, all(ok, eventlog.StepSucceeded)...)
	settled := append(all(ok, eventlog.StepSucceeded), all(bad, eventlog.StepFailed)...)
	requirePrefix(t, log, 10, settled...)
	settled = append(settled, steps(denied, eventlog.StepProposed, eventlog.StepDenied)...)
	for _, seq := range []int64{12, 16, 20, 27} {
		requirePrefix(t, log, seq, settled...)
	}
	settled = append(settled, steps(waits, eventlog.StepProposed, eventlog.StepAwaitingApproval, eventlog.StepAllowed, eventlog.StepExecuting, eventlog.StepSucceeded)...)
	requirePrefix(t, log, 28, settled...)
	requirePrefix(t, log, 30, settled...)
}

func TestPrefixRecords(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.open("ws", true, "c0") // 3 to 5
	c := h.call(protocol.KindTool, "write", map[string]int{"n": 1}, "ws")
	c.Idempotency = protocol.AtMostOnce
	scheduled := h.begin(c) // 6 to 9
	h.attempt(scheduled, 2)
	h.complete(scheduled, "ok")
	d := h.tool()
	h.decide(d, deny) // 10, 11
	log := h.log()
	records := prefix(t, log, log.LatestSeq())
	at := func(seq int64) protocol.PrefixRecord {
		return protocol.PrefixRecord{Type: log.Events[seq-1].Type, At: log.Events[seq-1].OccurredAt}
	}

	registered := at(3)
	registered.Key = "ws"
	registered.Resource = &protocol.PrefixResource{
		ResourceSpec: protocol.ResourceSpec{
			Key: "ws", Driver: "dir", Config: json.RawMessage(`{"size":1}`), EverySteps: 1, OnCompletion: true,
		},
		CoverageReuse: true,
	}
	proposed := at(6)
	proposed.StepID = c.ID
	proposed.Step = &protocol.PrefixStep{
		Step: protocol.Step{
			ID: c.ID, Kind: protocol.KindTool, Target: "write", Args: json.RawMessage(`{"n":1}`),
			Idempotency: protocol.AtMostOnce, Resources: []string{"ws"},
		},
		Decision: &allow, Attempts: 1,
	}
	allowed, executing, succeeded := at(7), at(8), at(9)
	allowed.StepID, executing.StepID, succeeded.StepID = c.ID, c.ID, c.ID
	succeeded.Outcome = &protocol.Outcome{Result: json.RawMessage(`"ok"`)}
	refused := at(10)
	refused.StepID = d.ID
	refused.Step = &protocol.PrefixStep{
		Step:     protocol.Step{ID: d.ID, Kind: protocol.KindTool, Target: "write", Args: json.RawMessage(`null`), Idempotency: protocol.SafeToRetry},
		Decision: &deny,
	}
	denied := at(11)
	denied.StepID = d.ID
	denied.Outcome = &protocol.Outcome{Error: &protocol.StepError{Message: "no", Reason: protocol.ReasonPolicyDenied}}
	initialized := protocol.PrefixRecord{Type: eventlog.ResourceInitialized, At: denied.At, Key: "ws", Checkpoint: &protocol.PrefixCheckpoint{Ref: "c0"}}
	checkpointed := at(5)
	checkpointed.Key = "ws"
	checkpointed.Checkpoint = &protocol.PrefixCheckpoint{Ref: "c0", CoveredSeq: 3, InvalidatedSeq: 6, Cause: "baseline"}

	want := []protocol.PrefixRecord{registered, proposed, allowed, executing, succeeded, refused, denied, initialized, checkpointed}
	if diff := cmp.Diff(want, records); diff != "" {
		t.Fatalf("records (-want +got):\n%s", diff)
	}
}

func TestPrefixOfResources(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.open("b", false, "b0") // 3 registered, 4 bound, 5 checkpointed: covers 4
	h.open("a", false, "a0") // 6 registered, 7 bound, 8 checkpointed: covers 7
	s := h.run(h.tool("a"))  // 9 proposed, 10 allowed, 11 executing, 12 succeeded
	// Both are captured after it: one as of its outcome, one later.
	h.checkpoint("a", protocol.CauseStep, s.ID, "a1")       // 13: covers 12
	h.checkpoint("b", protocol.CauseCompletion, "", "b1")   // 14: covers 13
	h.begin(h.llm())                                        // 15 to 17: ends both, and is not copied
	h.checkpoint("a", protocol.CauseCompletion, "", "a2")   // 18: covers 17
	h.checkpoint("a", protocol.CauseCompletion, "", "late") // 19: covers 18
	log := h.log()

	registered := []string{"resource.registered b"}
	requirePrefix(t, log, 3, append(registered, "resource.initialized b")...)
	// Between registered and bound nothing is captured; bound itself is not copied.
	requirePrefix(t, log, 4, append(registered, "resource.initialized b b0", "resource.checkpointed b b0 [3,0)")...)
	requirePrefix(t, log, 6, append(registered,
		"resource.registered a",
		"resource.initialized b b0", "resource.initialized a",
		"resource.checkpointed b b0 [3,0)")...)
	registered = append(registered, "resource.registered a")
	requirePrefix(t, log, 10, append(registered,
		"resource.initialized b b0", "resource.initialized a a0",
		"resource.checkpointed b b0 [3,0)", "resource.checkpointed a a0 [4,0)")...)
	// The step executes, but is not settled: intervals are empty.
	requirePrefix(t, log, 11, append(registered,
		"resource.initialized b b0", "resource.initialized a a0",
		"resource.checkpointed b b0 [3,4)", "resource.checkpointed a a0 [4,4)")...)
	registered = append(registered, all(s, eventlog.StepSucceeded)...) // 5 to 8 of the fork
	requirePrefix(t, log, 12, append(registered,
		"resource.initialized b b0", "resource.initialized a a1",
		"resource.checkpointed b b0 [3,7)", "resource.checkpointed a a0 [4,7)", "resource.checkpointed a a1 [8,0)")...)
	requirePrefix(t, log, 16, append(registered,
		"resource.initialized b b1", "resource.initialized a a1",
		"resource.checkpointed b b0 [3,7)", "resource.checkpointed a a0 [4,7)",
		"resource.checkpointed b b1 [8,0)", "resource.checkpointed a a1 [8,0)")...)
	requirePrefix(t, log, 17, append(registered,
		"resource.initialized b b1", "resource.initialized a a2",
		"resource.checkpointed b b0 [3,7)", "resource.checkpointed a a0 [4,7)",
		"resource.checkpointed b b1 [8,8)", "resource.checkpointed a a2 [8,0)")...)
	// Of the three that map to one seq the newest stays.
	requirePrefix(t, log, 19, append(registered,
		"resource.initialized b b1", "resource.initialized a late",
		"resource.checkpointed b b0 [3,7)", "resource.checkpointed a a0 [4,7)",
		"resource.checkpointed b b1 [8,8)", "resource.checkpointed a late [8,0)")...)
}

// TestPrefixOrdersCheckpoints has a capture that ends after a later one did.
func TestPrefixOrdersCheckpoints(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.create("ws", true)     // 3, 4
	a := h.run(h.tool("ws")) // 5 to 8
	scheduled := h.scheduleCheckpoint("ws", protocol.CauseStep, a.ID)
	b := h.run(h.llm())                                           // 9 to 12
	h.checkpoint("ws", protocol.CauseCompletion, "", "newer")     // 13, covers 12
	h.complete(scheduled, protocol.CheckpointTaken{Ref: "older"}) // 14, covers 8
	requirePrefix(t, h.log(), 14, slices.Concat([]string{"resource.registered ws"},
		all(a, eventlog.StepSucceeded), all(b, eventlog.StepSucceeded),
		[]string{"resource.initialized ws newer", "resource.checkpointed ws older [7,0)", "resource.checkpointed ws newer [11,0)"})...)
}

func TestPrefixOfInterleavedSteps(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	a, b := h.tool("ws"), h.llm()
	h.open("ws", true, "c0") // 3 to 5: covers 4
	first := h.begin(a)      // 6, 7, 8 executing
	second := h.begin(b)     // 9, 10, 11 executing
	h.complete(second, "b")  // 12
	h.complete(first, "a")   // 13
	log := h.log()
	// At 12 only the model call is settled. Of the events before it the tool's are left
	// out, so the end of c0's coverage falls on the registration.
	requirePrefix(t, log, 12, slices.Concat([]string{"resource.registered ws"}, all(b, eventlog.StepSucceeded),
		[]string{"resource.initialized ws c0", "resource.checkpointed ws c0 [3,3)"})...)
	requirePrefix(t, log, 13, slices.Concat([]string{"resource.registered ws"},
		steps(a, eventlog.StepProposed, eventlog.StepAllowed, eventlog.StepExecuting),
		all(b, eventlog.StepSucceeded),
		steps(a, eventlog.StepSucceeded),
		[]string{"resource.initialized ws c0", "resource.checkpointed ws c0 [3,6)"})...)
}

func TestForkOfForkOfFork(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.open("ws", false, "c0")                          // 3 to 5
	a := h.run(h.tool("ws"))                           // 6 to 9
	h.checkpoint("ws", protocol.CauseStep, a.ID, "c1") // 10
	b := h.run(h.tool("ws"))                           // 11 to 14: not captured

	f1 := forkOf(t, h.log(), 14, 300) // copied: 3 registered, 4 to 7 a, 8 to 11 b
	log1 := f1.log()
	requirePrefix(t, log1, 7, append(append([]string{"resource.registered ws"}, all(a, eventlog.StepSucceeded)...),
		"resource.initialized ws c1", "resource.checkpointed ws c0 [3,6)", "resource.checkpointed ws c1 [7,0)")...)
	require.Equal(t, "c1", log1.Resource("ws").CheckpointRef)
	require.False(t, log1.Resource("ws").Covered)
	require.Equal(t, 2, log1.Resource("ws").Count)
	f1.open("ws", false, "base")                        // bound at 16, base at 17
	c := f1.run(f1.tool("ws"))                          // 18 to 21
	f1.checkpoint("ws", protocol.CauseStep, c.ID, "c2") // 22
	log1 = f1.log()
	require.Equal(t, int64(22), log1.LatestSeq())

	copied := append([]string{"resource.registered ws"}, append(all(a, eventlog.StepSucceeded), all(b, eventlog.StepSucceeded)...)...)
	f2 := forkOf(t, log1, 17, 1)
	log2 := f2.log()
	// The start of the first fork is copied; its baseline falls on it.
	requirePrefix(t, log1, 17, append(copied,
		"resource.initialized ws c1", "resource.initialized ws base",
		"resource.checkpointed ws c0 [3,6)", "resource.checkpointed ws c1 [7,10)", "resource.checkpointed ws base [12,0)")...)
	require.Equal(t, "base", log2.Resource("ws").CheckpointRef)
	require.True(t, log2.Covered(log2.LatestSeq()))
	require.Equal(t, int64(1+1+9+2+3+1), log2.LatestSeq())

	f3 := forkOf(t, log2, log2.LatestSeq(), 1<<20)
	log3 := f3.log()
	require.Equal(t, log2.Steps, log3.Steps)
	require.Equal(t, 2, log3.Resource("ws").Count)
	requirePrefix(t, log2, log2.LatestSeq(), append(copied,
		"resource.initialized ws c1", "resource.initialized ws base", "resource.initialized ws base",
		"resource.checkpointed ws c0 [3,6)", "resource.checkpointed ws c1 [7,10)", "resource.checkpointed ws base [12,0)")...)
	require.Equal(t, prefix(t, log1, 11), prefix(t, log3, 11), "the same cut gives the same seed")
}

// TestForkIsTheSame has a fork whose log and steps read as those of its source.
func TestForkIsTheSame(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.run(h.call(protocol.KindTool, "write", map[string]string{"path": "<a>"}))
	h.fail(h.begin(h.tool()), errors.New("x"))
	h.decide(h.tool(), deny)
	h.complete(h.begin(h.llm()), json.RawMessage(`{"usage":{"input_tokens":7,"output_tokens":2}}`))
	source := h.log()
	f := forkOf(t, source, source.LatestSeq(), 700)
	log := f.log()

	require.Equal(t, source.LatestSeq()+1, log.LatestSeq())
	for i, ev := range source.Events[2:] { // after created and started
		got := log.Events[2+i]
		require.Equal(t, ev.Type, got.Type)
		require.Equal(t, string(ev.Payload), string(got.Payload))
		require.Equal(t, ev.OccurredAt, got.OccurredAt)
	}
	require.Equal(t, eventlog.ExecutionStarted, log.Events[log.LatestSeq()-1].Type)
	for i, step := range source.Steps {
		want := *step
		want.Replayed = true
		require.Equal(t, &want, log.Steps[i], "their seqs are the same, since a fork has two events of its own too")
	}
	require.Equal(t, protocol.StatusRunning, log.Status)
}

func TestPages(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	for range 5 {
		h.run(h.tool())
	}
	records := prefix(t, h.log(), h.log().LatestSeq())
	require.Len(t, records, 20)

	t.Run("one page", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, protocol.PrefixPage{Records: records}, eventlog.Pages(records, 0, 1<<20))
	})
	t.Run("at least one record", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, protocol.PrefixPage{Records: records[7:8], Next: 8}, eventlog.Pages(records, 7, 0))
		require.Equal(t, protocol.PrefixPage{Records: records[19:]}, eventlog.Pages(records, 19, 0))
	})
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		for _, page := range []protocol.PrefixPage{
			eventlog.Pages(nil, 0, 100), eventlog.Pages(records, 20, 100), eventlog.Pages(records, -1, 100),
		} {
			require.Equal(t, protocol.PrefixPage{Records: []protocol.PrefixRecord{}}, page)
		}
	})
	t.Run("within the limit", func(t *testing.T) {
		t.Parallel()
		const limit = 1000
		for offset := 0; ; {
			page := eventlog.Pages(records, offset, limit)
			raw, err := json.Marshal(page.Records)
			require.NoError(t, err)
			require.LessOrEqual(t, len(raw), limit)
			if page.Next == 0 {
				break
			}
			require.Greater(t, page.Next, offset)
			offset = page.Next
		}
	})
	t.Run("as JSON", func(t *testing.T) {
		t.Parallel()
		page := eventlog.Pages(records, 3, 1000)
		raw, err := json.Marshal(page)
		require.NoError(t, err)
		var read protocol.PrefixPage
		require.NoError(t, json.Unmarshal(raw, &read))
		require.Equal(t, page, read)
		require.Error(t, json.Unmarshal([]byte(`{"gzip":"bm90IGd6aXA="}`), &read))
	})
	t.Run("exactly the limit", func(t *testing.T) {
		t.Parallel()
		page := eventlog.Pages(records, 0, 1000)
		raw, err := json.Marshal(page.Records)
		require.NoError(t, err)
		next, err := json.Marshal(records[page.Next])
		require.NoError(t, err)
		require.Greater(t, len(raw)+len(next)+1, 1000, "one more record does not fit")
	})
}
