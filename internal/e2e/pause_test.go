package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/resources/resourcetest"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

var (
	pausable = workflows.NewResource("sandbox")
	setting  = workflows.NewTool[settingArgs, bool]("set", workflows.WithResources("sandbox"))
	asking   = workflows.NewTool[settingArgs, bool]("ask", workflows.WithResources("sandbox"))
)

type settingArgs struct {
	Name string `json:"name"`
	MS   int    `json:"ms,omitempty"`
}

// set writes into the sandbox, and reports whether it is paused at the end.
func set(ctx context.Context, in settingArgs) (bool, error) {
	values, err := activities.Resource[*resourcetest.Values](ctx, "sandbox")
	if err != nil {
		return false, err
	}
	values.Set(in.Name, "x")
	time.Sleep(time.Duration(in.MS) * time.Millisecond)
	return values.Paused(), nil
}

// pausing asks for approval while another step runs beside it.
func pausing(ctx workflow.Context, mode workflows.PauseMode) ([]bool, error) {
	err := pausable.Open(ctx, workflows.ResourceOptions{Driver: "memory", Pause: mode})
	if err != nil {
		return nil, err
	}
	first := asking.Start(ctx, settingArgs{Name: "a"})
	beside := setting.Start(ctx, settingArgs{Name: "b", MS: 300})
	var paused []bool
	for _, future := range []workflows.Future[bool]{beside, first, setting.Start(ctx, settingArgs{Name: "c"})} {
		was, err := future.Get(ctx)
		if err != nil {
			return nil, err
		}
		paused = append(paused, was)
	}
	return paused, nil
}

func pausingItems(driver worker.Item) []worker.Item {
	return []worker.Item{worker.Agent("pausing", pausing), worker.Tool(setting, set), worker.Tool(asking, set), worker.Agent("pausing_many", pausingMany), driver}
}

// awaitEvent waits until the log has an event of a type.
func (b *bench) awaitEvent(t *testing.T, id, typ string) {
	t.Helper()
	require.Eventually(t, func() bool {
		log, err := b.Log(t.Context(), id)
		return err == nil && slices.Contains(types(log), typ)
	}, patience, 50*time.Millisecond)
}

// gone has a driver that cannot pause what it has made.
type gone struct{ *resourcetest.Memory }

func (gone) Pause(context.Context, json.RawMessage) error { return resources.ErrGone }

func TestPause(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mode             workflows.PauseMode
		whileBlocked, at int // how often it was paused while blocked, and in all
	}{
		{"", 1, 2},
		{workflows.PauseBlocked, 1, 2},
		{workflows.PauseCompleted, 0, 1},
		{workflows.PauseNever, 0, 0},
		{"gone", 0, 0},
	} {
		t.Run("mode "+string(test.mode), func(t *testing.T) {
			t.Parallel()
			memory := resourcetest.NewMemory()
			driver := worker.Driver(memory)
			if test.mode == "gone" {
				driver, test.mode = worker.Driver(gone{memory}), workflows.PauseBlocked
			}
			b := setup(t, withPolicy(t, "default_action: allow\nrules: [{id: ask, when: {target: ask}, then: {decision: require_approval}}]"),
				withItems(func(*directory.Driver) []worker.Item {
					return pausingItems(driver)
				}))
			input, err := json.Marshal(test.mode)
			require.NoError(t, err)
			e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "pausing", Input: input})
			require.NoError(t, err)
			a := b.waiting(t, e.ID, 1)[0]
			require.Eventually(t, func() bool {
				log, err := b.Log(t.Context(), e.ID)
				require.NoError(t, err)
				got, err := b.Get(t.Context(), e.ID)
				require.NoError(t, err)
				settled := 0
				for _, s := range log.Steps() {
					if s.Status == "succeeded" {
						settled++
					}
				}
				return settled == 2 && got.Resources[0].Paused == (test.whileBlocked > 0) && len(got.Pending) == 0
			}, patience, 50*time.Millisecond)
			b.grant(t, a.ID, "")
			log := b.end(t, e.ID)
			require.Equal(t, tine.StatusCompleted, log.Execution().Status)
			require.JSONEq(t, "[false,false,false]", string(log.Execution().Output))
			all := types(log)
			resumed := slices.Index(all, "execution.resumed")
			require.GreaterOrEqual(t, strings.Count(strings.Join(all[:resumed], " "), "resource.paused"), test.whileBlocked)
			paused := strings.Count(strings.Join(all, " "), "resource.paused")
			require.GreaterOrEqual(t, paused, test.at)
			require.Equal(t, test.at > 0, paused > 0)
			require.Equal(t, test.at > 0, log.Execution().Resources[0].Paused)
			if test.at > 0 {
				require.Equal(t, "resource.paused", all[len(all)-2], "the last thing before the end")
			}
			requireOutsideOfSteps(t, all)
		})
	}
}

// requireOutsideOfSteps checks that nothing was paused in the middle of a step.
func requireOutsideOfSteps(t *testing.T, events []string) {
	t.Helper()
	running := 0
	for _, typ := range events {
		switch typ {
		case "step.executing":
			running++
		case "step.succeeded", "step.failed", "step.cancelled":
			running--
		case "resource.paused":
			require.Zero(t, running)
		}
	}
}

// slow takes a while to pause.
type slow struct{ *resourcetest.Memory }

func (s slow) Pause(ctx context.Context, binding json.RawMessage) error {
	time.Sleep(2 * time.Second)
	return s.Memory.Pause(ctx, binding)
}

// pausingMany has three resources, and asks twice. A step runs beside what it asks for then.
func pausingMany(ctx workflow.Context, _ script.NoArgs) (string, error) {
	for _, r := range []workflows.Resource{pausable, workflows.NewResource("b"), workflows.NewResource("c")} {
		if err := r.Open(ctx, workflows.ResourceOptions{Driver: "memory"}); err != nil {
			return "", err
		}
	}
	_, err := asking.Call(ctx, settingArgs{Name: "first"})
	if ctx.Err() != nil {
		return "", err
	}
	second := asking.Start(ctx, settingArgs{Name: "second"})
	if err := workflows.Sleep(ctx, 300*time.Millisecond); err != nil { // until it waits
		return "", err
	}
	if _, err := setting.Call(ctx, settingArgs{Name: "beside"}); err != nil {
		return "", err
	}
	_, err = second.Get(ctx)
	return workflows.Reason(err), err
}

func pausingBench(t *testing.T, driver worker.Item) (*bench, string) {
	t.Helper()
	b := setup(t, withPolicy(t, "default_action: allow\nrules: [{id: ask, when: {target: ask}, then: {decision: require_approval}}]"),
		withItems(func(*directory.Driver) []worker.Item { return pausingItems(driver) }))
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "pausing_many", Input: json.RawMessage(`{}`)})
	require.NoError(t, err)
	return b, e.ID
}

func (b *bench) paused(t *testing.T, id string) int {
	t.Helper()
	log, err := b.Log(t.Context(), id)
	require.NoError(t, err)
	n := 0
	for _, r := range log.Execution().Resources {
		if r.Paused {
			n++
		}
	}
	return n
}

// TestPausedAgain: what a step beside the next approval has woken is paused again.
func TestPausedAgain(t *testing.T) {
	t.Parallel()
	b, e := pausingBench(t, worker.Driver(resourcetest.NewMemory()))
	first := b.waiting(t, e, 1)[0]
	require.Eventually(t, func() bool { return b.paused(t, e) == 3 }, patience, 50*time.Millisecond)
	_, err := b.Deny(t.Context(), first.ID, tine.ApprovalDecision{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		log, err := b.Log(t.Context(), e)
		require.NoError(t, err)
		done := slices.ContainsFunc(log.Steps(), func(s *tine.Step) bool { return s.Target == "set" && s.Status == "succeeded" })
		return done && b.paused(t, e) == 3
	}, patience, 50*time.Millisecond)
	b.grant(t, b.waiting(t, e, 1)[0].ID, "")
	require.Equal(t, tine.StatusCompleted, b.end(t, e).Execution().Status)
}

// TestPausingHoldsNobodyUp: a step that is approved waits for one resource at the most, and what is
// being paused when the execution is cancelled is paused in the end.
func TestPausingHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	b, e := pausingBench(t, worker.Driver(slow{resourcetest.NewMemory()}))
	first := b.waiting(t, e, 1)[0]
	time.Sleep(300 * time.Millisecond) // into the first pause
	b.grant(t, first.ID, "")
	granted := time.Now()
	b.awaitEvent(t, e, "step.executing")
	require.Less(t, time.Since(granted), 4*time.Second)
	b.waiting(t, e, 1)
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, b.Cancel(t.Context(), e))
	require.Equal(t, tine.StatusCancelled, b.end(t, e).Execution().Status)
	require.Equal(t, 3, b.paused(t, e))
}

// TestNextApprovalIsListed also if its worker stops in the very moment.
func TestNextApprovalIsListed(t *testing.T) {
	t.Parallel()
	b, e := pausingBench(t, worker.Driver(resourcetest.NewMemory()))
	first := b.waiting(t, e, 1)[0]
	_, err := b.Deny(t.Context(), first.ID, tine.ApprovalDecision{})
	require.NoError(t, err)
	b.stop()
	log, err := b.Log(t.Context(), e)
	require.NoError(t, err)
	pending := log.Execution().Approvals
	require.Equal(t, ids(pending), ids(b.eventuallyListed(t, e, len(pending))))
}
