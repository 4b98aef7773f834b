package tine_test

import (
	"context"
	"encoding/json"
	"fmt"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

type Place struct {
	City string `json:"city"`
}

// Forecast refers to a tool by name. Its body is bound to it in the worker.
var Forecast = workflows.NewTool[Place, string]("forecast")

// Plan is the agent: workflow code whose effects are steps.
func Plan(ctx workflow.Context, journey []Place) (map[string]string, error) {
	plan := map[string]string{}
	for _, place := range journey {
		weather, err := Forecast.Call(ctx, place)
		if err != nil {
			return nil, err
		}
		plan[place.City] = weather
	}
	return plan, nil
}

// forecast is the tool's body: an ordinary function, run as an activity.
func forecast(_ context.Context, in Place) (string, error) {
	fmt.Println("looked up", in.City)
	return "sunny", nil
}

func Example() {
	ctx := context.Background()
	temporal := must(client.Dial(envconfig.MustLoadDefaultClientOptions()))
	w := must(worker.New(temporal, worker.Options{TaskQueue: "trips"},
		worker.Agent("plan", Plan), worker.Tool(Forecast, forecast)))
	check(w.Start())
	defer w.Stop()

	c := tine.NewClient(temporal, tine.Options{TaskQueue: "trips"})
	journey := json.RawMessage(`[{"city":"Oslo"},{"city":"Rome"}]`)
	source := must(c.Create(ctx, tine.CreateRequest{Agent: "plan", Input: journey}))
	must(c.Wait(ctx, source.ID)) // looked up Oslo, looked up Rome

	// Event 6 ends the step for Oslo. The fork has its outcome, and looks up Bonn only.
	other := json.RawMessage(`[{"city":"Oslo"},{"city":"Bonn"}]`)
	fork := must(c.Fork(ctx, tine.ForkRequest{ExecutionID: source.ID, AtSeq: 6, Input: other}))
	fmt.Println(string(must(c.Wait(ctx, fork.ID)).Output)) // {"Bonn":"sunny","Oslo":"sunny"}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
