package agent

import (
	"encoding/json"
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/workflows"
	"github.com/tinerun/tine/workflows/loop"
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
	heeded := instruction{in: in}
	result, err := loop.Run(ctx, loop.Options{
		Model:      Model,
		Tools:      offered,
		System:     systemPrompt,
		Messages:   []workflows.Message{{Role: workflows.RoleUser, Content: in.Task}},
		MaxSteps:   maxTurns,
		Before:     heeded.news,
		ResultText: asJSON,
	})
	out := Output{
		Answer:       result.Output,
		Turns:        result.Steps,
		InputTokens:  result.Usage.InputTokens,
		OutputTokens: result.Usage.OutputTokens,
	}
	if err == nil && result.StopReason == loop.StopMaxSteps {
		err = temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("the model was not done after %d turns", maxTurns), "coder.TooManyTurns", nil)
	}
	return out, err
}

// instruction tells the model of the input's instruction, when a fork has changed it.
type instruction struct {
	in    Input
	known string
}

func (i *instruction) news(ctx workflow.Context) ([]workflows.Message, error) {
	now, err := workflows.Record(ctx, "instruction", i.in.Instruction)
	if err != nil || now == i.known {
		return nil, err
	}
	i.known = now
	return []workflows.Message{{Role: workflows.RoleUser, Content: now}}, nil
}

// asJSON tells the model of results as they are recorded. There are executions whose
// conversations have them so.
func asJSON(result json.RawMessage) string { return string(result) }
