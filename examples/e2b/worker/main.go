// Command worker serves the e2b agent, for a Temporal server that you have started. It needs
// E2B_API_KEY, REPO, GITHUB_TOKEN, LLM_BASE_URL, LLM_MODEL and LLM_API_KEY.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/tinerun/tine/examples/e2b/agent"
	"github.com/tinerun/tine/worker"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "e2b worker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	opts := worker.Options{RequirePolicy: true}
	flags.StringVar(&opts.TaskQueue, "task-queue", worker.DefaultTaskQueue, "task queue to serve")
	flags.StringVar(&opts.PolicyPath, "policy", "examples/e2b/policy.yaml", "file or directory of policies, which are followed as they change")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	settings, err := agent.NewSettings(os.Getenv)
	model, modelErr := agent.ModelFromEnv()
	if modelErr == nil && model == nil {
		modelErr = agent.ErrNoModel
	}
	if err := errors.Join(err, modelErr); err != nil {
		return err
	}
	return worker.Run(ctx, opts, agent.Items(settings, model)...)
}
