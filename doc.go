// Package tine is the caller's side of Tine: it starts executions of agents, reads their
// event logs, and forks them at any event.
//
// An execution is a Temporal workflow, and Temporal's history is its only log. So
// everything here but progress itself works while no worker runs, and on executions that
// have closed.
//
//	c := tine.NewClient(temporalClient, tine.Options{})
//	execution, err := c.Create(ctx, tine.CreateRequest{Agent: "coder", Input: input})
//	log, err := c.Log(ctx, execution.ID)
//	fork, err := c.Fork(ctx, tine.ForkRequest{ExecutionID: execution.ID, AtSeq: 39})
//
// A fork differs from Temporal's reset: it is a new execution with an id of its own, it
// leaves its source alone, and it starts with the source's files as well as its steps.
//
// Agents are written with package workflows and served with package worker.
package tine
