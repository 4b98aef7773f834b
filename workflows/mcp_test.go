package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

var longName = strings.Repeat("long", 20)

// Desk is a server of which not all tools are used.
var Desk = workflows.NewMCPServer("desk",
	workflows.MCPOnly("read*", "file.new", "file_new", longName),
	workflows.MCPTools("*", workflows.WithSummary("at the desk")),
	workflows.MCPTools("read_log", workflows.WithAtMostOnce(), workflows.WithDescription("Our own words.")),
	workflows.MCPTools("file?new", workflows.WithSafeToRetry()))

// desk is what is bound to it.
type desk struct {
	tools []activities.MCPTool
	lists atomic.Int32
	err   error
}

func (d *desk) ListTools(context.Context) ([]activities.MCPTool, error) {
	d.lists.Add(1)
	return d.tools, d.err
}

func (d *desk) CallTool(_ context.Context, tool string, args json.RawMessage) (json.RawMessage, error) {
	return json.Marshal(tool + " " + string(args))
}

func (d *desk) Close() {}

func described(name, idempotency string) activities.MCPTool {
	return activities.MCPTool{Name: name, Description: "Does " + name + ".", Parameters: json.RawMessage(`{"type":"object"}`), Idempotency: idempotency}
}

var deskTools = []activities.MCPTool{
	described("read_log", protocol.SafeToRetry), described("read", protocol.SafeToRetry), described("write", protocol.AtMostOnce),
	described("file.new", protocol.AtMostOnce), described("file_new", protocol.AtMostOnce), described(longName, protocol.AtMostOnce),
}

type deskResult struct {
	Names   []string             `json:"names"`
	Specs   []workflows.ToolSpec `json:"specs"`
	Results []string             `json:"results"`
	Clash   string               `json:"clash"`
	Error   string               `json:"error"`
}

// AtDesk calls each tool once.
func AtDesk(ctx workflow.Context, _ Line) (deskResult, error) {
	var out deskResult
	both := workflow.NewWaitGroup(ctx)
	for range 2 {
		both.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer both.Done()
			if _, err := Desk.Tools(ctx); err != nil {
				out.Error = err.Error()
			}
		})
	}
	both.Wait(ctx)
	tools, err := Desk.Tools(ctx)
	if err != nil {
		out.Error = err.Error()
		return out, nil
	}
	all, err := workflows.Tools(Search).With(tools, workflows.Toolset{})
	if err != nil {
		return out, err
	}
	out.Names, out.Specs = all.Names(), all.Specs()
	for _, name := range tools.Names() {
		result, err := all.Call(ctx, name, json.RawMessage(`{"a":1}`))
		if err != nil {
			result, _ = protocol.Encode("error: " + err.Error())
		}
		var text string
		if err := protocol.Decode(result, &text); err != nil {
			return out, err
		}
		out.Results = append(out.Results, text)
	}
	_, err = tools.With(workflows.Tools(Search), tools)
	if err != nil {
		out.Clash = err.Error()
	}
	return out, nil
}

func atDesk(t *testing.T, server activities.MCPServer, engine policy.Engine) deskResult {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	require.NoError(t, worker.Register(env, worker.Options{Policy: engine},
		worker.Agent("at_desk", AtDesk), worker.Tool(Search, search), worker.MCPServer(Desk, server)))
	env.ExecuteWorkflow("at_desk", Line{})
	require.NoError(t, env.GetWorkflowError())
	var out deskResult
	require.NoError(t, env.GetWorkflowResult(&out))
	return out
}

func TestMCPServer(t *testing.T) {
	t.Parallel()
	server := &desk{tools: deskTools}
	var mu sync.Mutex
	decided := map[string]policy.Input{}
	out := atDesk(t, server, Rules(func(in policy.Input) (policy.Decision, error) {
		mu.Lock()
		decided[in.Target] = in
		mu.Unlock()
		if in.Target == "desk.read" {
			return policy.Decision{Decision: policy.Deny, RuleID: "no", Reason: "private"}, nil
		}
		return policy.Decision{Decision: policy.Allow, RuleID: "rest"}, nil
	}))
	require.Empty(t, out.Error)
	// What looks the same to a model is told apart, and what is too long is cut.
	require.Equal(t, []string{
		"search", "desk__read_log", "desk__read", "desk__file_new", "desk__file_new_beef1f07",
		"desk__" + strings.Repeat("long", 12) + "l_" + out.Names[5][56:],
	}, out.Names)
	require.Len(t, out.Names[5], 64)
	require.Equal(t, []string{
		`read_log {"a":1}`, "error: desk.read not allowed by rule no: private", `file.new {"a":1}`, `file_new {"a":1}`, longName + ` {"a":1}`,
	}, out.Results)
	require.Len(t, out.Specs, 5)
	require.Equal(t, workflows.ToolSpec{Name: "desk__read_log", Description: "Our own words.", Parameters: json.RawMessage(`{"type":"object"}`)}, out.Specs[0])
	require.Equal(t, "Does read.", out.Specs[1].Description)
	require.Contains(t, out.Clash, `tool "desk__read_log" is in two sets`)

	require.Equal(t, protocol.KindLocal, decided["desk"].StepKind)
	require.JSONEq(t, `{"method":"tools/list"}`, string(decided["desk"].Arguments))
	require.Equal(t, protocol.KindTool, decided["desk.read_log"].StepKind)
	for target, want := range map[string]string{
		"desk.read_log": protocol.AtMostOnce, "desk.read": protocol.SafeToRetry,
		"desk.file.new": protocol.SafeToRetry, "desk." + longName: protocol.AtMostOnce,
	} {
		require.Equal(t, want, decided[target].Idempotency, target)
	}
}

func TestMCPServerWithoutTools(t *testing.T) {
	t.Parallel()
	out := atDesk(t, &desk{}, nil)
	require.Equal(t, []string{"search"}, out.Names)
	require.Empty(t, out.Specs)
}

func TestMCPListFails(t *testing.T) {
	t.Parallel()
	server := &desk{err: errors.New("closed today")}
	out := atDesk(t, server, nil)
	require.Equal(t, "desk: closed today", out.Error)
	require.EqualValues(t, 3, server.lists.Load(), "a list that failed is asked for again")

	out = atDesk(t, &desk{}, Rules(func(policy.Input) (policy.Decision, error) {
		return policy.Decision{Decision: policy.Deny, RuleID: "no", Reason: "not today"}, nil
	}))
	require.Equal(t, "desk not allowed by rule no: not today", out.Error)
}

func TestMCPDeclarations(t *testing.T) {
	t.Parallel()
	for name, declare := range map[string]func(){
		"no name":      func() { workflows.NewMCPServer("") },
		"own name":     func() { workflows.NewMCPServer("tine") },
		"separator":    func() { workflows.NewMCPServer("a.b") },
		"space":        func() { workflows.NewMCPServer("a b") },
		"bad pattern":  func() { workflows.MCPOnly("a", "[") },
		"bad pattern2": func() { workflows.MCPTools("[") },
	} {
		require.Panics(t, declare, name)
	}
	require.Equal(t, "a-b_C9", workflows.NewMCPServer("a-b_C9").Name())
	require.ErrorContains(t, worker.Register(nil, worker.Options{}, worker.MCPServer(Desk, &desk{}), worker.MCPServer(Desk, &desk{})), `two MCP servers are bound to "desk"`)
}

// Shelf is a server whose tools have slashes in their names.
var Shelf = workflows.NewMCPServer("shelf", workflows.MCPOnly("repo*"))

// AtShelf lists the tools in two coroutines at the same time.
func AtShelf(ctx workflow.Context, _ Line) ([][]string, error) {
	var all [][]string
	var failed error
	group := workflow.NewWaitGroup(ctx)
	for range 2 {
		group.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer group.Done()
			tools, err := Shelf.Tools(ctx)
			all, failed = append(all, tools.Names()), err
		})
	}
	group.Wait(ctx)
	return all, failed
}

// TestMCPListsOnce: what is offered must not depend on which of two lists came first.
func TestMCPListsOnce(t *testing.T) {
	t.Parallel()
	server := &desk{tools: []activities.MCPTool{described("repo/delete", protocol.AtMostOnce), described("other/read", "")}}
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	require.NoError(t, worker.Register(env, worker.Options{}, worker.Agent("at_shelf", AtShelf), worker.MCPServer(Shelf, server)))
	env.ExecuteWorkflow("at_shelf", Line{})
	require.NoError(t, env.GetWorkflowError())
	var out [][]string
	require.NoError(t, env.GetWorkflowResult(&out))
	require.Equal(t, [][]string{{"shelf__repo_delete"}, {"shelf__repo_delete"}}, out)
	require.EqualValues(t, 1, server.lists.Load())
}
