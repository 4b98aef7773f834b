// Command worker serves the script agent.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/openai"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "script worker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var opts worker.Options
	root, err := directory.DefaultRoot()
	if err != nil {
		return err
	}
	var store directory.Options
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	flags.StringVar(&opts.TaskQueue, "task-queue", worker.DefaultTaskQueue, "task queue to serve")
	flags.DurationVar(&opts.HeartbeatTimeout, "heartbeat-timeout", activities.DefaultHeartbeatTimeout, "how long a worker may be silent before its steps count as lost")
	flags.StringVar(&store.Root, "data", root, "directory for workspaces and checkpoints")
	flags.BoolVar(&store.Shared, "shared", false, "all workers of the task queue share the data directory, so any of them may run any step")
	flags.StringVar(&opts.PolicyPath, "policy", "", "file or directory of policies, which are followed as they change; without it all is allowed")
	flags.BoolVar(&opts.RequirePolicy, "require-policy", false, "refuse all steps of agents that have no policy")
	flags.IntVar(&opts.RolloverEvents, "rollover-events", 0, "how many events a run's history may have before the execution continues as new; 0 leaves that to Temporal")
	if err := flags.Parse(args); err != nil {
		if err == flag.ErrHelp {
			return nil
		}
		return err
	}
	driver, err := directory.New(store)
	if err != nil {
		return err
	}
	model, err := pickModel()
	if err != nil {
		return err
	}
	return worker.Run(ctx, opts, script.Items(driver, model)...)
}

// pickModel is the endpoint that the environment names, or else the echo.
func pickModel() (activities.Model, error) {
	model, ok, err := openai.FromEnv()
	if err != nil {
		return nil, err
	}
	if !ok {
		return script.Echo{}, nil
	}
	return model, nil
}
