package loop_test

import (
	"context"
	"fmt"
	"log/slog"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
	"github.com/tinerun/tine/workflows/loop"
)

// The loop in an agent.
func Librarian(ctx workflow.Context, question string) (string, error) {
	result, err := loop.Run(ctx, loop.Options{
		Model:    Writer,
		Tools:    workflows.Tools(Shout),
		System:   "You are a librarian.",
		Messages: []workflows.Message{{Role: workflows.RoleUser, Content: question}},
	})
	if err != nil {
		return "", err
	}
	if result.StopReason != loop.StopDone {
		return "", fmt.Errorf("no answer: %s", result.StopReason)
	}
	return result.Output, nil
}

// An agent whose answer has a form: the result of the tool submit, which ends the loop.
func Clerk(ctx workflow.Context, letter string) (string, error) {
	result, err := loop.Run(ctx, loop.Options{
		Model:    Writer,
		Tools:    workflows.Tools(Submit),
		System:   "Read the letter, and submit what it asks for.",
		Messages: []workflows.Message{{Role: workflows.RoleUser, Content: letter}},
		Final:    []string{Submit.Name()},
	})
	return result.Output, err
}

// Conversation is what is kept between the questions of a user.
type Conversation struct {
	Messages []workflows.Message `json:"messages"`
	Question string              `json:"question"`
}

// An agent that goes on with a conversation.
func Chatter(ctx workflow.Context, in Conversation) (Conversation, error) {
	result, err := loop.Run(ctx, loop.Options{
		Model:    Writer,
		Messages: append(in.Messages, workflows.Message{Role: workflows.RoleUser, Content: in.Question}),
	})
	return Conversation{Messages: result.Messages}, err
}

func Example() {
	model := &script{answers: []activities.GenerateResponse{asks(`shout {"text":"quiet"}`), says("I have told them.", "stop")}}
	env := example(
		worker.Agent("librarian", Librarian),
		worker.Model(Writer, model),
		worker.Tool(Shout, func(_ context.Context, in Text) (string, error) { fmt.Println("-", in.Text); return "ok", nil }))
	env.ExecuteWorkflow("librarian", "Can you make it quiet?")
	var answer string
	fmt.Println(env.GetWorkflowResult(&answer), answer)
	// Output:
	// - quiet
	// <nil> I have told them.
}

func Example_final() {
	env := example(
		worker.Agent("clerk", Clerk),
		worker.Model(Writer, &script{answers: []activities.GenerateResponse{asks(`submit {"text":"a refund"}`)}}),
		worker.Tool(Submit, func(_ context.Context, in Text) (Text, error) { return in, nil }))
	env.ExecuteWorkflow("clerk", "Dear shop, the vase came in pieces.")
	var answer string
	fmt.Println(env.GetWorkflowResult(&answer), answer)
	// Output: <nil> {"text":"a refund"}
}

func Example_conversation() {
	said := Conversation{}
	for i, question := range []string{"How are you?", "And now?"} {
		env := example(worker.Agent("chatter", Chatter),
			worker.Model(Writer, &script{answers: []activities.GenerateResponse{says([]string{"Fine.", "Still fine."}[i], "stop")}}))
		said.Question = question
		env.ExecuteWorkflow("chatter", said)
		if err := env.GetWorkflowResult(&said); err != nil {
			fmt.Println(err)
		}
	}
	for _, message := range said.Messages {
		fmt.Println(message.Role+":", message.Content)
	}
	// Output:
	// user: How are you?
	// assistant: Fine.
	// user: And now?
	// assistant: Still fine.
}

func example(items ...worker.Item) *testsuite.TestWorkflowEnvironment {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	if err := worker.Register(env, worker.Options{}, items...); err != nil {
		panic(err)
	}
	return env
}
