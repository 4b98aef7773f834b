package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/mcp"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
	"github.com/tinerun/tine/workflows/loop"
)

// The contract, which agents and the worker share.
var (
	GitHub = workflows.NewMCPServer("github",
		workflows.MCPOnly("search_*", "issue_*"),
		workflows.MCPTools("search_*", workflows.WithSafeToRetry()),
		workflows.MCPTools("issue_write", workflows.WithAtMostOnce()))

	Reply  = workflows.NewTool[text, string]("reply", workflows.WithDescription("Answer the reporter."))
	Writer = workflows.NewModel("writer")
)

// An agent whose model has the server's tools beside one of its own.
func Triage(ctx workflow.Context, report string) (string, error) {
	issues, err := GitHub.Tools(ctx)
	if err != nil {
		return "", err
	}
	tools, err := workflows.Tools(Reply).With(issues)
	if err != nil {
		return "", err
	}
	result, err := loop.Run(ctx, loop.Options{
		Model:    Writer,
		Tools:    tools,
		Messages: []workflows.Message{{Role: workflows.RoleUser, Content: report}},
	})
	return result.Output, err
}

// An agent that calls a tool itself.
func Reopen(ctx workflow.Context, issue json.RawMessage) (json.RawMessage, error) {
	issues, err := GitHub.Tools(ctx)
	if err != nil {
		return nil, err
	}
	return issues.Call(ctx, "github__issue_write", issue)
}

// The worker has the credentials.
func Example_worker() {
	overNetwork, err := mcp.New(mcp.Options{
		URL:    "https://mcp.example.com/",
		Header: http.Header{"Authorization": {"Bearer " + os.Getenv("GITHUB_TOKEN")}},
	})
	if err != nil {
		panic(err)
	}
	asCommand, err := mcp.New(mcp.Options{
		Command: []string{"github-mcp-server", "stdio"},
		Env:     []string{"GITHUB_PERSONAL_ACCESS_TOKEN=" + os.Getenv("GITHUB_TOKEN")},
	})
	if err != nil {
		panic(err)
	}
	for _, server := range []*mcp.Server{overNetwork, asCommand} { // one or the other
		_ = worker.MCPServer(GitHub, server)
	}
}

func Example() {
	server := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return issueServer() }, nil))
	defer server.Close()
	github, err := mcp.New(mcp.Options{URL: server.URL})
	if err != nil {
		panic(err)
	}
	defer github.Close()

	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	err = worker.Register(env, worker.Options{},
		worker.Agent("triage", Triage),
		worker.Model(Writer, scripted{}),
		worker.Tool(Reply, func(_ context.Context, in text) (string, error) { return "ok", nil }),
		worker.MCPServer(GitHub, github))
	if err != nil {
		panic(err)
	}
	env.ExecuteWorkflow("triage", "It crashes.")
	var answer string
	fmt.Println(env.GetWorkflowResult(&answer), answer)
	// Output:
	// offered: reply, github__issue_write, github__search_issues
	// <nil> I know of this: #7 crashes at night
}

func issueServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "issues"}, nil)
	for name, says := range map[string]string{"search_issues": "#7 crashes at night", "issue_write": "#8", "gist_create": "no"} {
		sdk.AddTool(s, &sdk.Tool{Name: name}, func(context.Context, *sdk.CallToolRequest, text) (*sdk.CallToolResult, any, error) {
			return said(says), nil, nil
		})
	}
	return s
}

// scripted is a model for tests: it searches, and says what it found.
type scripted struct{}

func (scripted) Generate(_ context.Context, req activities.GenerateRequest, tools []activities.ToolSpec) (activities.GenerateResponse, error) {
	answer := activities.Message{Role: workflows.RoleAssistant}
	if len(req.Messages) == 1 {
		fmt.Printf("offered: %s, %s, %s\n", tools[0].Name, tools[1].Name, tools[2].Name)
		answer.ToolCalls = []activities.ToolCall{{ID: "1", Name: "github__search_issues", Arguments: `{"text":"crash"}`}}
	} else {
		answer.Content = "I know of this: " + req.Messages[2].Content
	}
	return activities.GenerateResponse{Message: answer}, nil
}
