package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/openai"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/resources/resourcetest"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

type Text struct {
	Text string `json:"text"`
}

var (
	Store  = workflows.NewResource("store")
	Save   = workflows.NewTool[Text, int]("save", workflows.WithResources(Store.Key()))
	Writer = workflows.NewModel("writer")
)

func Clerk(ctx workflow.Context, in Text) (int, error) {
	if err := Store.Open(ctx, workflows.ResourceOptions{Driver: "memory"}); err != nil {
		return 0, err
	}
	return Save.Call(ctx, in)
}

func save(ctx context.Context, in Text) (int, error) {
	values, err := activities.Resource[*resourcetest.Values](ctx, Store.Key())
	if err != nil {
		return 0, err
	}
	values.Set("text", in.Text)
	return len(in.Text), nil
}

// A program that is nothing but a worker.
func ExampleRun() {
	root, err := directory.DefaultRoot()
	if err != nil {
		exit(err)
	}
	workspaces, err := directory.New(directory.Options{Root: root})
	if err != nil {
		exit(err)
	}
	model, err := openai.New(openai.Options{BaseURL: os.Getenv("LLM_BASE_URL"), Model: os.Getenv("LLM_MODEL")})
	if err != nil {
		exit(err)
	}
	err = worker.Run(context.Background(), worker.Options{},
		worker.Agent("clerk", Clerk),
		worker.Tool(Save, save),
		worker.Model(Writer, model),
		worker.Driver(workspaces))
	if err != nil {
		exit(err)
	}
}

// A Temporal worker that you have already, with workflows of its own.
func ExampleNewPlugin() {
	temporal, err := client.Dial(envconfig.MustLoadDefaultClientOptions())
	if err != nil {
		exit(err)
	}
	plugin, err := worker.NewPlugin(temporal, worker.Options{}, worker.Agent("clerk", Clerk), worker.Tool(Save, save))
	if err != nil {
		exit(err)
	}
	w := sdkworker.New(temporal, "your-queue", sdkworker.Options{Plugins: []sdkworker.Plugin{plugin}})
	if err := w.Run(sdkworker.InterruptCh()); err != nil {
		exit(err)
	}
}

// In a test: that today's code still replays the histories that you keep.
func ExampleRegisterWorkflows() {
	replayer := sdkworker.NewWorkflowReplayer()
	if err := worker.RegisterWorkflows(replayer, worker.Agent("clerk", Clerk)); err != nil {
		exit(err)
	}
	if err := replayer.ReplayWorkflowHistoryFromJSONFile(nil, "testdata/clerk.json"); err != nil {
		exit(err)
	}
}

// In a test: an agent in Temporal's test environment, with any bodies you like.
func ExampleRegister() {
	values := resourcetest.NewMemory()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	err := worker.Register(env, worker.Options{},
		worker.Agent("clerk", Clerk), worker.Tool(Save, save), worker.Driver(values))
	if err != nil {
		exit(err)
	}

	env.ExecuteWorkflow("clerk", Text{Text: "hello"})
	var saved int
	fmt.Println(env.GetWorkflowResult(&saved), saved)
	// Output: <nil> 5
}

func exit(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
