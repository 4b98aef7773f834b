package e2b_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/e2b"
	"github.com/tinerun/tine/resources/e2b/e2btest"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

type ShellArgs struct {
	Command string `json:"command"`
}

var (
	Workspace = workflows.NewResource("workspace")
	Shell     = workflows.NewTool[ShellArgs, e2b.Result]("shell",
		workflows.WithDescription("Run a shell command in the sandbox. Gives its output and exit code."),
		workflows.WithResources(Workspace.Key()))
)

// Fix is an agent whose tools work in a sandbox.
func Fix(ctx workflow.Context, task string) (string, error) {
	err := Workspace.Open(ctx, workflows.ResourceOptions{
		Driver:     "e2b",
		Config:     map[string]any{"template": "base", "timeout": 900},
		EverySteps: 5,
	})
	if err != nil {
		return "", err
	}
	result, err := Shell.Call(ctx, ShellArgs{Command: task})
	return result.Stdout, err
}

// A worker with the account of E2B_API_KEY. Its sandboxes can push to GitHub, and the token
// is not in them.
func ExampleNew() {
	options := e2b.OptionsFromEnv()
	options.Egress = map[string]e2b.Headers{
		"github.com": e2b.BasicFromEnv("x-access-token", "GITHUB_TOKEN"),
	}
	driver, err := e2b.New(options)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = worker.Run(context.Background(), worker.Options{},
		worker.Agent("fix", Fix),
		worker.Tool(Shell, shell),
		worker.Driver(driver))
	fmt.Println(err)
}

// shell is the handler of a tool. That the command fails is a result for the model.
func shell(ctx context.Context, args ShellArgs) (e2b.Result, error) {
	sandbox, err := activities.Resource[*e2b.Sandbox](ctx, "workspace")
	if err != nil {
		return e2b.Result{}, err
	}
	return sandbox.Run(ctx, e2b.Command{Line: args.Command, Timeout: 10 * time.Minute, MaxOutput: 64 << 10})
}

// Without an account, the emulator stands in for E2B.
func Example() {
	server, err := e2btest.New(e2btest.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	driver, err := e2b.New(e2b.Options{APIKey: server.APIKey(), APIURL: server.URL(), SandboxURL: server.URL()})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := forkSandbox(context.Background(), driver); err != nil {
		fmt.Println(err)
	}
	// Output:
	// package fix
	// package main
}

// A fork starts from a snapshot, whatever its source does later.
func forkSandbox(ctx context.Context, driver *e2b.Driver) error {
	source, _, err := driver.Create(ctx, resources.CreateRequest{
		Owner:  resources.Owner{ExecutionID: "source", RunID: "run-1", Key: "workspace"},
		Config: json.RawMessage(`{"timeout": 300}`),
	})
	if err != nil {
		return err
	}
	if err := source.WriteFile(ctx, "main.go", []byte("package main\n")); err != nil {
		return err
	}
	ref, err := driver.Checkpoint(ctx, source)
	if err != nil {
		return err
	}
	if err := source.WriteFile(ctx, "main.go", []byte("package fix\n")); err != nil {
		return err
	}
	fork, _, err := driver.Create(ctx, resources.CreateRequest{
		Owner:      resources.Owner{ExecutionID: "fork", RunID: "run-2", Key: "workspace"},
		Checkpoint: ref,
	})
	if err != nil {
		return err
	}
	for _, sandbox := range []*e2b.Sandbox{source, fork} {
		result, err := sandbox.Run(ctx, e2b.Command{Line: "cat main.go"})
		if err != nil {
			return err
		}
		fmt.Print(result.Stdout)
	}
	return nil
}
