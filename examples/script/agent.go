package script

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/workflows"
)

// Script performs the operations one after another.
func Script(ctx workflow.Context, in Input) (Output, error) {
	results, err := runAll(ctx, in.Ops)
	return Output{Results: results}, err
}

// runAll runs the operations in order. Its error ends the script.
func runAll(ctx workflow.Context, ops []Op) ([]Result, error) {
	results := make([]Result, 0, len(ops))
	for i, op := range ops {
		result, err := runOne(ctx, op)
		if err != nil {
			return results, fmt.Errorf("op %d (%s): %w", i, op.Op, err)
		}
		results = append(results, result)
	}
	return results, nil
}

// errScript is an error that ends the script: a fatal operation's, or that of "fail".
type errScript struct{ cause error }

func (e *errScript) Error() string { return e.cause.Error() }
func (e *errScript) Unwrap() error { return e.cause }

// runOne runs an operation. An ordinary error of it becomes its result.
func runOne(ctx workflow.Context, op Op) (Result, error) {
	value, err := perform(ctx, op)
	var ends *errScript
	switch {
	case err == nil:
		raw, err := json.Marshal(value) //workflowcheck:ignore deterministic, but done by reflection
		return Result{OK: raw}, err
	case errors.As(err, &ends), temporal.IsCanceledError(err):
		return Result{}, err
	case op.Fatal:
		return Result{}, &errScript{err}
	default:
		return Result{Error: describe(err)}, nil
	}
}

func perform(ctx workflow.Context, op Op) (any, error) {
	switch op.Op {
	case "open":
		return nil, open(ctx, op)
	case "tool":
		return callTool(ctx, op)
	case "step":
		return runStep(ctx, op)
	case "llm":
		return generate(ctx, op)
	case "wait":
		return nil, workflows.Sleep(ctx, time.Duration(op.MS)*time.Millisecond)
	case "signal":
		return workflows.Receive[json.RawMessage](ctx, op.Name)
	case "parallel":
		return parallel(ctx, op.Ops)
	case "repeat":
		return repeat(ctx, op)
	case "fail":
		return nil, &errScript{errors.New(op.Message)}
	default:
		return nil, fmt.Errorf("unknown op %q", op.Op)
	}
}

func open(ctx workflow.Context, op Op) error {
	options := workflows.ResourceOptions{Driver: op.Driver}
	if len(op.Config) > 0 {
		options.Config = op.Config
	}
	if op.EverySteps != nil {
		if *op.EverySteps < 1 {
			return fmt.Errorf("every_steps is %d; it must be 1 or more", *op.EverySteps)
		}
		options.EverySteps = *op.EverySteps
	}
	options.SkipCompletion = op.OnCompletion != nil && !*op.OnCompletion
	return workflows.NewResource(op.Key).Open(ctx, options)
}

func callTool(ctx workflow.Context, op Op) (json.RawMessage, error) {
	var options []workflows.Option
	if op.Name == WriteOther.Name() {
		var args WriteOtherArgs
		err := json.Unmarshal(op.Args, &args) //workflowcheck:ignore deterministic, but done by reflection
		if err == nil && args.Key != "" {
			options = append(options, workflows.WithResources(args.Key))
		}
	}
	return tools.Call(ctx, op.Name, op.Args, options...)
}

func runStep(ctx workflow.Context, op Op) (any, error) {
	switch op.Name {
	case "now":
		return workflows.Now(ctx)
	case "uuid":
		return workflows.NewUUID(ctx)
	case "random":
		return Random.Run(ctx, NoArgs{})
	default:
		return nil, fmt.Errorf("unknown step %q; there are now, uuid and random", op.Name)
	}
}

func generate(ctx workflow.Context, op Op) (string, error) {
	response, err := Model.Generate(ctx, workflows.GenerateRequest{
		Model:    op.Model,
		Messages: []workflows.Message{{Role: workflows.RoleUser, Content: op.Prompt}},
	})
	return response.Message.Content, err
}

// parallel runs the operations side by side.
func parallel(ctx workflow.Context, ops []Op) ([]Result, error) {
	results := make([]Result, len(ops))
	ends := make([]error, len(ops))
	group := workflow.NewWaitGroup(ctx)
	for i, op := range ops {
		group.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer group.Done()
			results[i], ends[i] = runOne(ctx, op)
		})
	}
	group.Wait(ctx)
	for _, err := range ends {
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}

func repeat(ctx workflow.Context, op Op) ([]Result, error) {
	results := []Result{}
	for round := range op.Times {
		more, err := runAll(ctx, inRound(op.Ops, round))
		if err != nil {
			return nil, err
		}
		results = append(results, more...)
	}
	return results, nil
}

// inRound puts the round into string arguments, in place of {i}. The operations of a repeat
// within have rounds of their own.
func inRound(ops []Op, round int) []Op {
	number := strconv.Itoa(round)
	filled := make([]Op, len(ops))
	for i, op := range ops {
		fill := func(s string) string { return strings.ReplaceAll(s, "{i}", number) }
		op.Key, op.Name, op.Prompt, op.Message = fill(op.Key), fill(op.Name), fill(op.Prompt), fill(op.Message)
		// Within JSON text, {i} can only stand in a string: as a value it would not be JSON.
		op.Args = json.RawMessage(fill(string(op.Args)))
		if op.Op != "repeat" {
			op.Ops = inRound(op.Ops, round)
		}
		filled[i] = op
	}
	return filled
}

func describe(err error) *Error {
	var step *workflows.StepError
	var policy *workflows.PolicyError
	var app *temporal.ApplicationError
	switch {
	case errors.As(err, &step):
		return &Error{Message: step.Message, Reason: step.Reason, Type: step.Type}
	case errors.As(err, &policy):
		return &Error{Message: policy.Error(), Reason: policy.Reason, Type: "PolicyError"}
	case errors.As(err, &app):
		return &Error{Message: app.Message(), Type: app.Type()}
	default:
		return &Error{Message: err.Error()}
	}
}
