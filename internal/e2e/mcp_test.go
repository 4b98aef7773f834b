package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/activities/mcp"
	"github.com/tinerun/tine/examples/script"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
	"github.com/tinerun/tine/workflows/loop"
)

var library = workflows.NewMCPServer("library",
	workflows.MCPOnly("find", "lend", "burn", "new.tool"),
	workflows.MCPTools("l*", workflows.WithDescription("Lend a book.")))

// mcpCalls is what the agent patron does: an operation of its own, and calls of the library's
// tools, which it lists before each.
type mcpCalls struct {
	First bool      `json:"first"` // a recorded value before the list
	Calls []mcpCall `json:"calls"`
}

type mcpCall struct {
	Name string          `json:"name"`
	Args json.RawMessage `json:"args"`
}

type mcpResults struct {
	Names   []string          `json:"names"`
	Results []json.RawMessage `json:"results"`
	Reasons []string          `json:"reasons"`
}

func patron(ctx workflow.Context, in mcpCalls) (mcpResults, error) {
	var out mcpResults
	if in.First {
		if _, err := workflows.NewUUID(ctx); err != nil {
			return out, err
		}
	}
	for _, c := range in.Calls {
		tools, err := library.Tools(ctx)
		if err != nil {
			return out, err
		}
		out.Names = tools.Names()
		result, err := tools.Call(ctx, c.Name, c.Args)
		if temporal.IsCanceledError(err) {
			return out, err
		}
		reason := workflows.Reason(err)
		if err != nil && reason == workflows.ReasonToolError {
			reason = err.Error()
		}
		out.Results, out.Reasons = append(out.Results, result), append(out.Reasons, reason)
	}
	return out, nil
}

// reader is an agent whose model has the library's tools beside one of its own.
func reader(ctx workflow.Context, question string) (loop.Result, error) {
	books, err := library.Tools(ctx)
	if err != nil {
		return loop.Result{}, err
	}
	tools, err := workflows.Tools(shout).With(books)
	if err != nil {
		return loop.Result{}, err
	}
	return loop.Run(ctx, loop.Options{
		Model: speaker, Tools: tools,
		Messages: []workflows.Message{{Role: workflows.RoleUser, Content: question}},
	})
}

type book struct {
	Title string `json:"title"`
}

// librarySite is an MCP server on the network, whose process can be replaced.
type librarySite struct {
	*httptest.Server
	mu      sync.Mutex
	handler http.Handler
	lists   atomic.Int32
	lent    atomic.Int32
	found   atomic.Int32
	drops   atomic.Int32 // how many of the next calls lose their connection while they run
}

func newLibrary(t *testing.T) *librarySite {
	t.Helper()
	site := &librarySite{}
	site.restart("find", "lend", "burn", "other")
	site.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site.mu.Lock()
		handler := site.handler
		site.mu.Unlock()
		if handler == nil {
			panic(http.ErrAbortHandler)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(site.Close)
	return site
}

// restart replaces the process by one that offers other tools, or none.
func (l *librarySite) restart(names ...string) {
	var handler http.Handler
	if len(names) > 0 {
		s := l.server(names)
		handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handler = handler
}

func (l *librarySite) server(names []string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "library"}, nil)
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method == "tools/list" {
				l.lists.Add(1)
			}
			return next(ctx, method, req)
		}
	})
	for _, name := range names {
		tool := &sdk.Tool{Name: name, Description: "Does " + name + "."}
		if name == "find" {
			tool.Annotations = &sdk.ToolAnnotations{ReadOnlyHint: true}
		}
		sdk.AddTool(s, tool, func(ctx context.Context, _ *sdk.CallToolRequest, in book) (*sdk.CallToolResult, any, error) {
			return l.run(name, in)
		})
	}
	return s
}

func (l *librarySite) run(name string, in book) (*sdk.CallToolResult, any, error) {
	if l.drops.Load() > 0 {
		defer func() {
			if l.drops.Add(-1) >= 0 {
				l.CloseClientConnections()
			}
		}()
	}
	switch name {
	case "find":
		l.found.Add(1)
	case "lend":
		l.lent.Add(1)
	case "burn":
		return nil, nil, errors.New("books are not burned")
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: name + " " + in.Title}}}, nil, nil
}

// libraryItems are the connection to the site and, if there is one, the model server.
func libraryItems(t *testing.T, site *librarySite, model *modelServer) []worker.Item {
	t.Helper()
	connection, err := mcp.New(mcp.Options{URL: site.URL})
	require.NoError(t, err)
	items := []worker.Item{worker.MCPServer(library, connection)}
	if model != nil {
		items = append(items, modelItems(t, model)...)
	}
	return items
}

// visiting makes a bench whose worker serves patron and reader.
func visiting(t *testing.T, site *librarySite, model *modelServer, options ...benchOption) *bench {
	t.Helper()
	items := append(libraryItems(t, site, model), worker.Agent("patron", patron), worker.Agent("reader", reader))
	return setup(t, append([]benchOption{withItems(func(*directory.Driver) []worker.Item { return items })}, options...)...)
}

// patronRun has a list and calls.
func (b *bench) patronRun(t *testing.T) *tine.Log {
	t.Helper()
	log, _ := b.visit(t, mcpCalls{First: true, Calls: []mcpCall{findBook("Emma"), lendBook("Emma"), findBook("Persuasion")}})
	return log
}

func (b *bench) visit(t *testing.T, calls mcpCalls) (*tine.Log, mcpResults) {
	t.Helper()
	input, err := json.Marshal(calls)
	require.NoError(t, err)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "patron", Input: input})
	require.NoError(t, err)
	log := b.end(t, e.ID)
	return log, visited(t, log)
}

func visited(t *testing.T, log *tine.Log) mcpResults {
	t.Helper()
	require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
	var out mcpResults
	require.NoError(t, json.Unmarshal(log.Execution().Output, &out))
	return out
}

func findBook(title string) mcpCall { return ofLibrary("find", title) }
func lendBook(title string) mcpCall { return ofLibrary("lend", title) }

func ofLibrary(tool, title string) mcpCall {
	return mcpCall{Name: "library__" + tool, Args: json.RawMessage(`{"title":"` + title + `"}`)}
}

func TestMCP(t *testing.T) {
	t.Parallel()
	site := newLibrary(t)
	b := visiting(t, site, nil)
	log, out := b.visit(t, mcpCalls{Calls: []mcpCall{findBook("Emma"), ofLibrary("burn", "Emma"), lendBook("Emma"), {Name: "library__find", Args: json.RawMessage(`{"name":"x"}`)}, ofLibrary("other", "x")}})
	require.Equal(t, []string{"library__burn", "library__find", "library__lend"}, out.Names)
	require.JSONEq(t, `"find Emma"`, string(out.Results[0]))
	require.Equal(t, "library.burn: books are not burned", out.Reasons[1])
	require.JSONEq(t, `"lend Emma"`, string(out.Results[2]))
	require.Contains(t, out.Reasons[3], `library.find: validating "arguments"`)
	require.Equal(t, "unknown_tool", out.Reasons[4], "it is not among those that the agent uses")
	require.EqualValues(t, 1, site.lists.Load(), "one list an execution")

	var steps []string
	for _, s := range log.Steps() {
		steps = append(steps, s.Kind+" "+s.Target+" "+s.Status+" "+s.Idempotency)
	}
	require.Equal(t, []string{
		"local library succeeded safe_to_retry",
		"tool_call library.find succeeded safe_to_retry",
		"tool_call library.burn failed at_most_once",
		"tool_call library.lend succeeded at_most_once",
		"tool_call library.find failed safe_to_retry",
	}, steps)
	require.JSONEq(t, `{"title":"Emma"}`, string(log.Steps()[1].Args))
	require.Contains(t, string(log.Steps()[0].Result), `"name":"other"`)
}

func TestMCPPolicy(t *testing.T) {
	t.Parallel()
	site := newLibrary(t)
	b := visiting(t, site, nil, withPolicy(t, `
default_action: deny
rules:
  - {id: look, when: {target: library.find}, then: {decision: allow}}
  - {id: no-fire, when: {target: "library.b*"}, then: {decision: deny, reason: no fire}}
  - {id: ask, when: {target: "library.*"}, then: {decision: require_approval}}
`))
	input, err := json.Marshal(mcpCalls{Calls: []mcpCall{findBook("Emma"), ofLibrary("burn", "Emma"), lendBook("Emma")}})
	require.NoError(t, err)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "patron", Input: input})
	require.NoError(t, err)
	asked := b.waiting(t, e.ID, 1)[0]
	require.Equal(t, "library.lend", asked.Target)
	require.JSONEq(t, `{"title":"Emma"}`, string(asked.Args))
	require.Zero(t, site.lent.Load())
	b.grant(t, asked.ID, "alice")
	log := b.end(t, e.ID)
	require.Equal(t, []string{"", "no fire", ""}, visited(t, log).Reasons)
	require.Equal(t, "local", log.Steps()[0].RuleID, "the list is the agent's own step")
	require.Equal(t, "no-fire", log.Steps()[2].RuleID)
	require.EqualValues(t, 1, site.lent.Load())
}

func TestMCPFork(t *testing.T) {
	t.Parallel()
	site := newLibrary(t)
	b := visiting(t, site, nil)
	log, out := b.visit(t, mcpCalls{First: true, Calls: []mcpCall{findBook("Emma"), findBook("Persuasion")}})
	listed := log.Steps()[1]
	require.Equal(t, "library", listed.Target)

	site.restart("lend", "new.tool")
	fork := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: log.Steps()[2].SettledSeq})
	again := visited(t, fork)
	require.Equal(t, out.Names, again.Names, "a fork has the list of its source")
	require.Equal(t, out.Results[0], again.Results[0])
	require.Contains(t, again.Reasons[1], "library.find: ", "but a tool that is gone is gone")
	require.True(t, fork.Steps()[1].Replayed)
	require.False(t, fork.Steps()[3].Replayed)
	require.EqualValues(t, 1, site.lists.Load())
	require.NotContains(t, types(fork), "execution.diverged")

	// A fork before the list has that of now.
	early := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: log.Steps()[0].SettledSeq})
	require.Equal(t, []string{"library__lend", "library__new_tool"}, visited(t, early).Names)
	require.Equal(t, []string{"unknown_tool", "unknown_tool"}, visited(t, early).Reasons)
	require.EqualValues(t, 2, site.lists.Load())
}

func TestMCPServerRestarts(t *testing.T) {
	t.Parallel()
	site := newLibrary(t)
	b := visiting(t, site, nil)
	b.visit(t, mcpCalls{Calls: []mcpCall{findBook("Emma")}})

	site.restart("find", "lend")
	_, out := b.visit(t, mcpCalls{Calls: []mcpCall{lendBook("Emma")}})
	require.Equal(t, []string{""}, out.Reasons)

	// It is away, and comes back.
	site.restart()
	input, err := json.Marshal(mcpCalls{Calls: []mcpCall{findBook("Emma")}})
	require.NoError(t, err)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "patron", Input: input})
	require.NoError(t, err)
	b.awaitStep(t, e.ID, "library")
	site.restart("find", "lend")
	require.Equal(t, []string{""}, visited(t, b.end(t, e.ID)).Reasons)

	// So does the worker.
	b.stop()
	b.start(t)
	_, out = b.visit(t, mcpCalls{Calls: []mcpCall{lendBook("Emma")}})
	require.Equal(t, []string{""}, out.Reasons)
}

func TestMCPLostCall(t *testing.T) {
	t.Parallel()
	site := newLibrary(t)
	b := visiting(t, site, nil)
	site.drops.Store(1)
	log, out := b.visit(t, mcpCalls{Calls: []mcpCall{findBook("Emma")}})
	require.Equal(t, []string{""}, out.Reasons)
	require.EqualValues(t, 2, site.found.Load())
	require.Equal(t, 2, log.Steps()[1].Attempts)

	site.drops.Store(1)
	_, out = b.visit(t, mcpCalls{Calls: []mcpCall{lendBook("Emma"), lendBook("Emma"), lendBook("Persuasion")}})
	require.Equal(t, []string{"indeterminate", "prior attempt outcome unknown; retry refused", ""}, out.Reasons)
	require.EqualValues(t, 2, site.lent.Load())
}

func TestMCPServerNotBound(t *testing.T) {
	t.Parallel()
	b := setup(t, withItems(func(d *directory.Driver) []worker.Item {
		return append(script.Items(d, script.Echo{}), worker.Agent("patron", patron))
	}))
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "patron", Input: json.RawMessage(`{"calls":[{"name":"x"}]}`)})
	require.NoError(t, err)
	ended := b.end(t, e.ID).Execution()
	require.Equal(t, tine.StatusFailed, ended.Status)
	require.Contains(t, ended.FailureReason, `no MCP server "library" is registered with this worker`)
}

// TestMCPCommand: an agent with a server that the worker starts.
func TestMCPCommand(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	require.NoError(t, err)
	connection, err := mcp.New(mcp.Options{Command: []string{exe}, Env: []string{mcpEnv + "=1"}})
	require.NoError(t, err)
	b := setup(t, withItems(func(*directory.Driver) []worker.Item {
		return []worker.Item{worker.Agent("patron", patron), worker.MCPServer(library, connection)}
	}))
	_, out := b.visit(t, mcpCalls{Calls: []mcpCall{findBook("Emma")}})
	require.JSONEq(t, `"find Emma"`, string(out.Results[0]))
}

// mcpEnv makes the test binary an MCP server over its standard input and output.
const mcpEnv = "TINE_E2E_MCP"

func serveMCP() error {
	return (&librarySite{}).server([]string{"find"}).Run(context.Background(), &sdk.StdioTransport{})
}

func TestLoopWithMCP(t *testing.T) {
	t.Parallel()
	site := newLibrary(t)
	model := &modelServer{answers: []modelAnswer{
		{finish: "tool_calls", calls: []activityCall{{"library__find", `{"title":"Emma"}`}, {"shout", `{"text":"hey"}`}, {"library__burn", `{"title":"Emma"}`}}},
		{finish: "stop", content: "Found."},
	}}
	b := visiting(t, site, model)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "reader", Input: json.RawMessage(`"Emma?"`)})
	require.NoError(t, err)
	log := b.end(t, e.ID)
	result := loopResult(t, log)
	require.Equal(t, "Found.", result.Output)
	require.Equal(t, "find Emma", result.Messages[2].Content)
	require.Equal(t, "HEY!", result.Messages[3].Content)
	require.Equal(t, "error: library.burn: books are not burned", result.Messages[4].Content)

	offered := map[string]string{}
	for _, tool := range model.asked[0].Tools {
		offered[tool.Function.Name] = tool.Function.Description
		require.Contains(t, string(tool.Function.Parameters), `"type":"object"`)
	}
	require.Equal(t, map[string]string{
		"shout": "Say it loud.", "library__find": "Does find.", "library__burn": "Does burn.", "library__lend": "Lend a book.",
	}, offered)

	// Its fork offers the model the same, whatever the server has become.
	site.restart("new.tool")
	model.mu.Lock()
	model.answers = []modelAnswer{{finish: "stop", content: "Found it."}}
	model.mu.Unlock()
	last := log.Steps()[len(log.Steps())-1]
	fork := b.fork(t, tine.ForkRequest{ExecutionID: id(log), AtSeq: last.ProposedSeq - 1})
	require.Equal(t, "Found it.", loopResult(t, fork).Output)
	require.Equal(t, model.asked[1], model.asked[2])
}
