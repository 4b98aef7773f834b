// Package worker puts agents, tools, models and drivers together into a Temporal worker.
//
// [Run] is for a program that is nothing but a worker: it connects, serves until it
// is told to stop, and drains. [New] makes a worker from a client you have.
// [NewPlugin] adds Tine to a worker of yours. All three take the same items:
//
//	worker.Run(ctx, worker.Options{},
//		worker.Agent("research", Research),
//		worker.Tool(Search, search),
//		worker.Model(Writer, model),
//		worker.Driver(workspaces))
package worker
