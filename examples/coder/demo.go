package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/coder/agent"
)

// demonstrate runs the agent, forks it, and compares.
func demonstrate(ctx context.Context, p *place, opts options, out io.Writer) error {
	fmt.Fprintf(out, "%s\n\nRepository: %s (worked on in a copy)\nTask: %s\n\n", p.model, p.repository, opts.task)

	input := agent.Input{Task: opts.task, Repository: p.repository}
	source, err := p.execute(ctx, input, out)
	if err != nil {
		return err
	}
	at, why := forkPoint(source)
	fmt.Fprintf(out, "\n%s\nFork at event %d with the instruction: %s\n", why, at, opts.instruction)

	input.Instruction = opts.instruction
	fork, err := p.fork(ctx, source, at, input, out)
	if err != nil {
		return err
	}
	compare(out, source, fork)
	p.whereToLook(out, source, fork)
	return failedOne(source, fork)
}

// finished is an execution that has ended, with its log.
type finished struct {
	*tine.Execution
	steps  []*tine.Step
	output agent.Output
}

func (p *place) execute(ctx context.Context, input agent.Input, out io.Writer) (*finished, error) {
	raw, err := json.Marshal(input)
	if err != nil {
		return nil, err
	}
	e, err := p.client.Create(ctx, tine.CreateRequest{Agent: agent.Name, Input: raw})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "Execution %s\n", e.ID)
	return p.follow(ctx, e.ID, 0, out)
}

func (p *place) fork(ctx context.Context, source *finished, at int64, input agent.Input, out io.Writer) (*finished, error) {
	raw, err := json.Marshal(input)
	if err != nil {
		return nil, err
	}
	e, err := p.client.Fork(ctx, tine.ForkRequest{ExecutionID: source.ID, AtSeq: at, Input: raw})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "\nFork %s\n", e.ID)
	for key, r := range e.Restoration {
		switch {
		case r.CheckpointRef == "":
			fmt.Fprintf(out, "  %s starts from the repository as it was at first\n", key)
		case r.Covered:
			fmt.Fprintf(out, "  %s starts from checkpoint %.19s…, which holds the files exactly as they were at event %d\n", key, r.CheckpointRef, at)
		default:
			fmt.Fprintf(out, "  %s starts from checkpoint %.19s… of event %d, the newest before event %d\n", key, r.CheckpointRef, r.CheckpointSeq, at)
		}
	}
	return p.follow(ctx, e.ID, 0, out)
}

// follow shows an execution's events as they happen, until it has ended.
func (p *place) follow(ctx context.Context, id string, after int64, out io.Writer) (*finished, error) {
	show := newShow(out)
	for event, err := range p.client.Follow(ctx, id, after) {
		if err != nil {
			return nil, err
		}
		show.event(event)
	}
	log, err := p.client.Log(ctx, id)
	if err != nil {
		return nil, err
	}
	f := &finished{Execution: log.Execution(), steps: log.Steps()}
	if len(f.Output) > 0 {
		if err := json.Unmarshal(f.Output, &f.output); err != nil {
			return nil, fmt.Errorf("output of execution %s: %w", id, err)
		}
	}
	return f, nil
}

// forkPoint is the last event before the turn in which the agent first edits a file: the
// model has not been asked yet, so another instruction can change its mind.
func forkPoint(source *finished) (at int64, why string) {
	turn := int64(0)
	for _, step := range source.steps {
		if step.Target == "instruction" {
			turn = step.ProposedSeq - 1
		}
		if step.Target == agent.WriteFile.Name() {
			return turn, fmt.Sprintf("The first edit is event %d, and the model was asked for it after event %d.", step.ProposedSeq, turn)
		}
	}
	return max(turn, 1), "The agent wrote no file; its last turn will do."
}

func failedOne(executions ...*finished) error {
	for _, e := range executions {
		if e.Status != tine.StatusCompleted {
			return fmt.Errorf("execution %s has %s: %s", e.ID, e.Status, e.FailureReason)
		}
	}
	return nil
}
