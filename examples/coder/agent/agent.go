package agent

import (
	"encoding/json"
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/workflows"
)

// maxTurns bounds the model's answers. A model that has not finished by then goes in circles.
const maxTurns = 40

const systemPrompt = `You are a careful software engineer working in a copy of a git repository.
Look at the code before you change it. Run the tests before and after a change.
When the task is done, answer with one short paragraph that says what you changed and why.`

// Coder works on the task until the model asks for no more tools.
func Coder(ctx workflow.Context, in Input) (Output, error) {
	if in.Task == "" || in.Repository == "" {
		return Output{}, temporal.NewNonRetryableApplicationError("task and repository are required", "coder.Input", nil)
	}
	err := Workspace.Open(ctx, workflows.ResourceOptions{
		Driver: "directory",
		Config: map[string]string{"template": in.Repository},
	})
	if err != nil {
		return Output{}, err
	}
	before, err := SnapshotTree.Call(ctx, NoArgs{})
	if err != nil {
		return Output{}, err
	}
	out, err := converse(ctx, in)
	if err != nil {
		return out, err
	}
	out.Diff, err = Diff.Call(ctx, DiffArgs{From: before})
	return out, err
}

// converse lets the model and its tools take turns.
func converse(ctx workflow.Context, in Input) (Output, error) {
	var out Output
	var heeded string
	messages := []workflows.Message{
		{Role: workflows.RoleSystem, Content: systemPrompt},
		{Role: workflows.RoleUser, Content: in.Task},
	}
	for out.Turns = 1; out.Turns <= maxTurns; out.Turns++ {
		instruction, err := workflows.Record(ctx, "instruction", in.Instruction)
		if err != nil {
			return out, err
		}
		if instruction != heeded {
			messages = append(messages, workflows.Message{Role: workflows.RoleUser, Content: instruction})
			heeded = instruction
		}
		response, err := Model.Generate(ctx, workflows.GenerateRequest{Messages: messages, Tools: offered.Names()})
		if err != nil {
			return out, err
		}
		if usage := response.Usage; usage != nil {
			out.InputTokens += usage.InputTokens
			out.OutputTokens += usage.OutputTokens
		}
		messages = append(messages, response.Message)
		if len(response.Message.ToolCalls) == 0 {
			out.Answer = response.Message.Content
			return out, nil
		}
		answers, err := callTools(ctx, response.Message.ToolCalls)
		if err != nil {
			return out, err
		}
		messages = append(messages, answers...)
	}
	return out, temporal.NewNonRetryableApplicationError(
		fmt.Sprintf("the model was not done after %d turns", maxTurns), "coder.TooManyTurns", nil)
}

// callTools runs what the model asks for. What goes wrong is told to the model, which
// can do something about it; only a cancelled execution ends here.
func callTools(ctx workflow.Context, calls []workflows.ToolCall) ([]workflows.Message, error) {
	answers := make([]workflows.Message, 0, len(calls))
	for _, call := range calls {
		result, err := offered.Call(ctx, call.Name, json.RawMessage(call.Arguments))
		content := string(result)
		if temporal.IsCanceledError(err) {
			return nil, err
		}
		if err != nil {
			content = "error: " + err.Error()
		}
		answers = append(answers, workflows.Message{Role: workflows.RoleTool, ToolCallID: call.ID, Content: content})
	}
	return answers, nil
}
