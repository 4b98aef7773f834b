// Package activities is what runs outside of workflow code: the bodies of tools and local steps, model
// calls, resources, policy decisions, and the loading of a fork's prefix.
//
// A tool's body is a plain function
//
//	func search(ctx context.Context, args SearchArgs) ([]Hit, error)
//
// that a worker binds to its reference (worker.Tool). An error it returns is the step's
// outcome: recorded, given to the agent, and replayed in forks. Mark it with
// [Retryable] if another attempt may mend it. [Resource] gives a body the handle
// of a resource that its execution has opened.
//
// Bodies need not heartbeat. Their context ends when the step is cancelled, times
// out, or the worker stops.
package activities
