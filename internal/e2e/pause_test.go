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
	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/resources/resourcetest"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

var (
	sandbox = workflows.NewResource("sandbox")
	setting = workflows.NewTool[settingArgs, bool]("set", workflows.WithResources("sandbox"))
	asking  = workflows.NewTool[settingArgs, bool]("ask", workflows.WithResources("sandbox"))
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
	err := sandbox.Open(ctx, workflows.ResourceOptions{Driver: "memory", Pause: mode})
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
	return []worker.Item{worker.Agent("pausing", pausing), worker.Tool(setting, set), worker.Tool(asking, set), driver}
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
