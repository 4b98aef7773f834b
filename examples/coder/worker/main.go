// Command worker serves the coder agent, for a Temporal server that you have started.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/tinerun/tine/examples/coder/agent"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "coder worker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	root, err := directory.DefaultRoot()
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	var opts worker.Options
	flags.StringVar(&opts.TaskQueue, "task-queue", worker.DefaultTaskQueue, "task queue to serve")
	flags.StringVar(&opts.PolicyPath, "policy", "", "file or directory of policies, which are followed as they change; without it all is allowed")
	flags.BoolVar(&opts.RequirePolicy, "require-policy", false, "refuse all steps of agents that have no policy")
	data := flags.String("data", root, "directory for workspaces and checkpoints")
	if err := flags.Parse(args); err != nil {
		if err == flag.ErrHelp {
			return nil
		}
		return err
	}
	driver, err := directory.New(directory.Options{Root: *data})
	if err != nil {
		return err
	}
	model, described, err := agent.PickModel()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, described)
	return worker.Run(ctx, opts, agent.Items(driver, model)...)
}
