// Package workflows is what an agent's author uses in workflow code. All of it
// is deterministic: every function that waits takes a workflow.Context.
//
// An agent is a declared function
//
//	func Research(ctx workflow.Context, in Question) (Report, error)
//
// whose effects are steps. Declare each kind of step once, as a package
// variable, and call it from agents:
//
//	var (
//		Search    = workflows.NewTool[SearchArgs, []Hit]("search")
//		Outline   = workflows.NewStep[[]Hit, []string]("outline")
//		Writer    = workflows.NewModel("writer")
//		Workspace = workflows.NewResource("workspace")
//	)
//
// [NewTool] declares a tool call, which runs as an activity; start there.
// [NewStep] declares a local step, for short work that needs no activity of its own.
// [NewModel] declares a language model, and [NewResource] external state that
// is checkpointed and restored in forks. [Tools] calls tools by name, for a
// model that picks them; package loop lets it take turns with them. [NewMCPServer] declares a server
// whose tools are called like one's own. Handlers are bound to these references in a worker
// (package worker), so workflow code can't reach an implementation.
//
// Every step is recorded. A fork of the execution returns the recorded outcomes
// of the steps before the fork point without running them again. What is not a
// step would run again, or differ: use [Now], [NewUUID], [Sleep], [Receive] and
// [Record] instead of workflow.Now, workflow.SideEffect, workflow.Sleep, signal channels and
// decisions that depend on the input alone.
//
// A step's error is a [*StepError], a refusal by the policy a [*PolicyError].
// Cancellation is Temporal's CanceledError.
package workflows
