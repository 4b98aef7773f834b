// Package loop lets a model and its tools take turns: the model asks for tools, they run,
// their results go back to it, until it answers without asking for any.
//
//	result, err := loop.Run(ctx, loop.Options{
//		Model:    Writer,
//		Tools:    workflows.Tools(Search, Note),
//		System:   "You are a librarian.",
//		Messages: []workflows.Message{{Role: workflows.RoleUser, Content: question}},
//	})
//
// [Run] is workflow code that uses only what package workflows offers to everybody. An agent that needs
// another loop writes its own.
package loop

import (
	"encoding/json"
	"errors"
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/workflows"
)

// defaultMaxSteps ends the loop of a model that goes in circles.
const defaultMaxSteps = 50

// Options say who talks about what.
type Options struct {
	// Model answers. It is required.
	Model workflows.Model
	// Tools are offered to the model. None: it can only answer.
	Tools workflows.Toolset
	// System is said to the model before all else. It is no part of Result.Messages, so that
	// a conversation that goes on may have another. Empty: nothing is said.
	System string
	// Messages is the conversation so far. Its last one is usually the user's.
	Messages []workflows.Message
	// MaxSteps bounds the model's answers. Zero: 50.
	MaxSteps int
	// Final names tools that end the loop when one of them has succeeded: its result is the
	// output. Give a model such a tool to have its answer in a form of your own.
	Final []string

	// ModelID, Temperature and MaxTokens go into each request. Zero: the endpoint's own.
	ModelID     string
	Temperature *float64
	MaxTokens   int

	// Before is called before each answer, and gives messages to add to the conversation. It
	// may wait, and run steps. Nil: none are added.
	Before func(workflow.Context) ([]workflows.Message, error)
	// ResultText is what the model is told of a tool's result. Nil: a JSON string is told as the text
	// that it holds, everything else as JSON.
	ResultText func(result json.RawMessage) string
}

// StopReason says why a loop ended.
type StopReason string

// Reasons to stop.
const (
	StopDone     StopReason = "done"           // the model answered without asking for tools
	StopFinal    StopReason = "final_tool"     // a tool that ends the loop has succeeded
	StopMaxSteps StopReason = "max_steps"      // the model has given as many answers as it may
	StopLength   StopReason = "length"         // an answer was cut off at its token limit
	StopRefusal  StopReason = "content_filter" // the model, or a filter, refused to answer
)

// Result is how a loop ended. It is plain JSON.
type Result struct {
	// Messages is the whole conversation: Options.Messages, and what came after them. Each tool
	// call in it is answered, so it can go on with another message of the user's.
	Messages []workflows.Message `json:"messages"`
	// Output is the text of the last answer, or the result of the tool that ended the loop.
	Output string `json:"output"`
	// Usage is the sum over the answers, of those whose endpoint counts tokens.
	Usage      workflows.Usage `json:"usage"`
	StopReason StopReason      `json:"stop_reason"`
	// Steps counts the model's answers.
	Steps int `json:"steps"`
}

// Run runs the loop. An answer and the tools it asks for are one step. The tools that one
// answer asks for start together; while the execution has resources they run one at a time.
//
// What goes wrong with a tool is told to the model, which can act on it: its error, a policy's
// refusal, unknown tools and arguments that do not fit. A model call that fails or is denied,
// and a cancelled execution, end the loop with an error. The result then has what was said up
// to there, perhaps with tool calls that have no answer.
func Run(ctx workflow.Context, opts Options) (Result, error) {
	if opts.MaxSteps <= 0 {
		opts.MaxSteps = defaultMaxSteps
	}
	if opts.ResultText == nil {
		opts.ResultText = resultText
	}
	result := Result{Messages: slices.Clone(opts.Messages)}
	for result.StopReason == "" {
		if err := result.step(ctx, opts); err != nil {
			return result, err
		}
	}
	return result, nil
}

// step adds an answer and those of the tools it asks for, and says whether the loop ends.
func (r *Result) step(ctx workflow.Context, opts Options) error {
	if opts.Before != nil {
		added, err := opts.Before(ctx)
		if err != nil {
			return err
		}
		r.Messages = append(r.Messages, added...)
	}
	response, err := opts.Model.Generate(ctx, r.request(opts))
	if err != nil {
		return err
	}
	r.Steps++
	r.Output = response.Message.Content
	r.Messages = append(r.Messages, response.Message)
	if usage := response.Usage; usage != nil {
		r.Usage.InputTokens += usage.InputTokens
		r.Usage.OutputTokens += usage.OutputTokens
	}
	switch response.FinishReason {
	case workflows.FinishLength:
		r.leave(StopLength, response.Message.ToolCalls)
		return nil
	case workflows.FinishRefusal:
		r.leave(StopRefusal, response.Message.ToolCalls)
		return nil
	}
	if len(response.Message.ToolCalls) == 0 {
		r.StopReason = StopDone
		return nil
	}
	if err := r.callTools(ctx, opts, response.Message.ToolCalls); err != nil {
		return err
	}
	if r.StopReason == "" && r.Steps >= opts.MaxSteps {
		r.StopReason = StopMaxSteps
	}
	return nil
}

func (r *Result) request(opts Options) workflows.GenerateRequest {
	messages := r.Messages
	if opts.System != "" {
		messages = append([]workflows.Message{{Role: workflows.RoleSystem, Content: opts.System}}, messages...)
	}
	return workflows.GenerateRequest{
		Model:       opts.ModelID,
		Messages:    messages,
		Tools:       opts.Tools.Names(),
		ToolSpecs:   opts.Tools.Specs(),
		Temperature: opts.Temperature,
		MaxTokens:   opts.MaxTokens,
	}
}

// leave ends the loop with tool calls that must not run: the arguments of one that was cut
// off may be JSON all the same. Endpoints refuse conversations in which calls have no answer.
func (r *Result) leave(reason StopReason, calls []workflows.ToolCall) {
	r.StopReason = reason
	for _, call := range calls {
		r.answer(call, "error: not run: the answer that asks for it is not complete")
	}
}

func (r *Result) answer(call workflows.ToolCall, content string) {
	r.Messages = append(r.Messages, workflows.Message{Role: workflows.RoleTool, ToolCallID: call.ID, Content: content})
}

// callTools runs the tools and adds their answers in the order of the calls. It waits for all of
// them, also if one gives an error that ends the loop.
func (r *Result) callTools(ctx workflow.Context, opts Options, calls []workflows.ToolCall) error {
	futures := make([]workflows.Future[json.RawMessage], 0, len(calls))
	for _, call := range calls {
		futures = append(futures, opts.Tools.Start(ctx, call.Name, json.RawMessage(call.Arguments)))
	}
	var ends error
	for i, call := range calls {
		result, err := futures[i].Get(ctx)
		switch {
		case err == nil:
			text := opts.ResultText(result)
			r.answer(call, text)
			if slices.Contains(opts.Final, call.Name) && r.StopReason == "" {
				r.StopReason, r.Output = StopFinal, text
			}
		case forModel(err):
			r.answer(call, "error: "+err.Error())
		case ends == nil:
			ends = err
		}
	}
	return ends
}

// forModel reports whether err is how a tool call ended. Any other error, such as a
// cancellation, is the execution's.
func forModel(err error) bool {
	var step *workflows.StepError
	var policy *workflows.PolicyError
	return errors.As(err, &step) || errors.As(err, &policy)
}

// resultText is the text that a JSON string holds: models read it better without the quotes
// and escapes.
//
//workflowcheck:ignore encoding/json is deterministic, but works by reflection
func resultText(result json.RawMessage) string {
	var text string
	if json.Unmarshal(result, &text) == nil && len(result) > 0 && result[0] == '"' {
		return text
	}
	return string(result)
}
