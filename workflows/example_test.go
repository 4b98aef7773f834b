package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/resources/resourcetest"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

// The contract: what agents can call. Agents and the worker share it, and it does no I/O.
type (
	Query struct {
		Text string `json:"text" jsonschema:"what to look for"`
	}
	Line struct {
		Text string `json:"text"`
	}
	None struct{}
)

var (
	Search = workflows.NewTool[Query, []string]("search",
		workflows.WithDescription("Search the archive. Gives the titles that match."))

	Note = workflows.NewTool[Line, int]("take_note",
		workflows.WithDescription("Add a line to the notebook. Gives its number."),
		workflows.WithResources(Notebook.Key()))

	Send = workflows.NewTool[Line, None]("send",
		workflows.WithAtMostOnce(),
		workflows.WithStartToCloseTimeout(time.Minute))

	Count    = workflows.NewStep[[]string, int]("count")
	Writer   = workflows.NewModel("writer")
	Notebook = workflows.NewResource("notebook")
)

// A model that picks tools: the loop is ordinary code.
func Research(ctx workflow.Context, question string) (string, error) {
	tools := workflows.Tools(Search, Note)
	err := Notebook.Open(ctx, workflows.ResourceOptions{Driver: "memory"})
	if err != nil {
		return "", err
	}
	messages := []workflows.Message{{Role: workflows.RoleUser, Content: question}}
	for range 20 {
		response, err := Writer.Generate(ctx, workflows.GenerateRequest{Messages: messages, Tools: tools.Names()})
		if err != nil {
			return "", err
		}
		messages = append(messages, response.Message)
		if len(response.Message.ToolCalls) == 0 {
			return response.Message.Content, nil
		}
		for _, call := range response.Message.ToolCalls {
			result, err := tools.Call(ctx, call.Name, json.RawMessage(call.Arguments))
			if temporal.IsCanceledError(err) {
				return "", err
			}
			answer := workflows.Message{Role: workflows.RoleTool, ToolCallID: call.ID, Content: string(result)}
			if err != nil {
				answer.Content = "error: " + err.Error() // a model can act on it
			}
			messages = append(messages, answer)
		}
	}
	return "", errors.New("the model was not done after 20 answers")
}

func ExampleTools() {
	fmt.Println(run("research", "What happened in 1976?",
		worker.Agent("research", Research),
		worker.Tool(Search, search),
		worker.Tool(Note, note),
		worker.Model(Writer, scripted{}),
		worker.Driver(resourcetest.NewMemory())))
	// Output: "It is in the notebook, on line 1."
}

// Survey searches for several things at once, and has a local step sum up.
func Survey(ctx workflow.Context, topics []string) (int, error) {
	var searches []workflows.Future[[]string]
	for _, topic := range topics {
		searches = append(searches, Search.Start(ctx, Query{Text: topic}))
	}
	var titles []string
	for _, search := range searches {
		found, err := search.Get(ctx)
		if err != nil {
			return 0, err
		}
		titles = append(titles, found...)
	}
	return Count.Run(ctx, titles)
}

func ExampleTool_Start() {
	fmt.Println(run("survey", []string{"apples", "pears", "quinces"},
		worker.Agent("survey", Survey),
		worker.Tool(Search, search),
		worker.Step(Count, func(_ context.Context, titles []string) (int, error) { return len(titles), nil })))
	// Output: 3
}

// Announcement is what a fork may change from the fork point on: Wording is recorded each time
// it is read, so the fork has the source's up to there, and its own afterwards.
type Announcement struct {
	Wording string `json:"wording"`
	Groups  int    `json:"groups"`
}

func Announce(ctx workflow.Context, in Announcement) (int, error) {
	for group := range in.Groups {
		wording, err := workflows.Record(ctx, "wording", in.Wording)
		if err != nil {
			return group, err
		}
		if _, err := Send.Call(ctx, Line{Text: fmt.Sprintf("group %d: %s", group, wording)}); err != nil {
			return group, err
		}
	}
	return in.Groups, nil
}

func ExampleRecord() {
	fmt.Println(run("announce", Announcement{Wording: "closed on Monday", Groups: 2},
		worker.Agent("announce", Announce),
		worker.Tool(Send, send)))
	// Output:
	// sent: group 0: closed on Monday
	// sent: group 1: closed on Monday
	// 2
}

// Remind uses the recorded forms of time, randomness, waiting and signals.
func Remind(ctx workflow.Context, text string) (string, error) {
	began, err := workflows.Now(ctx)
	if err != nil {
		return "", err
	}
	id, err := workflows.NewUUID(ctx)
	if err != nil {
		return "", err
	}
	if err := workflows.Sleep(ctx, 24*time.Hour); err != nil {
		return "", err
	}
	answer, err := workflows.Receive[string](ctx, "answer")
	if err != nil {
		return "", err
	}
	_, err = Send.Call(ctx, Line{Text: fmt.Sprintf("%s of %s: %s %s", id, began, text, answer)})
	return answer, err
}

// Deliver looks at what kind of error a step's is.
func Deliver(ctx workflow.Context, in Line) (string, error) {
	_, err := Send.Call(ctx, in)
	switch {
	case err == nil:
		return "sent", nil
	case workflows.IsDenied(err): // the policy's reason
		return "refused: " + workflows.Reason(err), nil
	case workflows.IsIndeterminate(err): // nobody saw how it ended, and it was not run again
		return "look in the outbox whether it was sent", nil
	case workflows.Reason(err) == workflows.ReasonTimeout:
		return "too slow", nil
	default: // also a cancellation, which has to end the agent
		return "", err
	}
}

// officeHours is a policy that refuses one tool.
type officeHours struct{}

func (officeHours) Decide(_ context.Context, in policy.Input) (policy.Decision, error) {
	if in.Target == Send.Name() {
		return policy.Decision{Decision: policy.Deny, RuleID: "office-hours", Reason: "the office is closed"}, nil
	}
	return policy.Decision{Decision: policy.Allow, RuleID: "rest"}, nil
}

func ExampleReason() {
	fmt.Println(runWith(worker.Options{Policy: officeHours{}}, "deliver", Line{Text: "hello"},
		worker.Agent("deliver", Deliver),
		worker.Tool(Send, send)))
	// Output: "refused: the office is closed"
}

// The bodies: what a worker runs.

func search(_ context.Context, in Query) ([]string, error) {
	return []string{"On " + in.Text}, nil
}

func send(_ context.Context, in Line) (None, error) {
	fmt.Println("sent:", in.Text)
	return None{}, nil
}

func note(ctx context.Context, in Line) (int, error) {
	notes, err := activities.Resource[*resourcetest.Values](ctx, Notebook.Key())
	if err != nil {
		return 0, err
	}
	line := len(notes.All()) + 1
	notes.Set(fmt.Sprint(line), in.Text)
	return line, nil
}

// scripted is a model for tests: it searches, notes what it found, and ends.
type scripted struct{}

func (scripted) Generate(_ context.Context, req activities.GenerateRequest, _ []activities.ToolSpec) (activities.GenerateResponse, error) {
	last := req.Messages[len(req.Messages)-1].Content
	answer := activities.Message{Role: workflows.RoleAssistant}
	switch len(req.Messages) {
	case 1:
		answer.ToolCalls = []activities.ToolCall{{ID: "1", Name: "search", Arguments: `{"text":"1976"}`}}
	case 3:
		answer.ToolCalls = []activities.ToolCall{{ID: "2", Name: "take_note", Arguments: `{"text":` + strings.Trim(last, "[]") + `}`}}
	default:
		answer.Content = "It is in the notebook, on line " + last + "."
	}
	return activities.GenerateResponse{Message: answer}, nil
}

// run runs an agent in Temporal's test environment, which skips time and needs no server.
func run(agent string, input any, items ...worker.Item) string {
	return runWith(worker.Options{}, agent, input, items...)
}

func runWith(opts worker.Options, agent string, input any, items ...worker.Item) string {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	if err := worker.Register(env, opts, items...); err != nil {
		return err.Error()
	}
	env.ExecuteWorkflow(agent, input)
	var output json.RawMessage
	if err := env.GetWorkflowResult(&output); err != nil {
		return err.Error()
	}
	return string(output)
}

// Conversation is what a turn of a chat leaves for the next one.
type Conversation struct {
	Lines []string `json:"lines"`
}

// Chat answers with all that its session has said so far.
func Chat(ctx workflow.Context, line string) (string, error) {
	talk, continues, err := workflows.Previous[Conversation](ctx)
	if err != nil {
		return "", err
	}
	talk.Lines = append(talk.Lines, line)
	if err := workflows.SetState(ctx, talk); err != nil {
		return "", err
	}
	if !continues {
		return "a new conversation: " + line, nil
	}
	return fmt.Sprintf("%d lines so far", len(talk.Lines)), nil
}

func ExampleSetState() {
	fmt.Println(run("chat", "hello", worker.Agent("chat", Chat)))
	// Output: "a new conversation: hello"
}
