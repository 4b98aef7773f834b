// Package eventlog reads an execution's event log out of its Temporal history,
// and plans forks from it.
//
// Start with [Project], which turns a history into a [Log]: events, steps,
// resources and checkpoints. To follow a history that still grows, feed a
// [Projector]. [Log.ForkPoints] and [Log.Covered] say what checkpoints cover,
// [Log.PlanFork] what a fork at an event starts from, and [Log.Prefix] with [Pages]
// what is copied into it.
//
// The package is pure: the same history gives the same log, and a prefix of a
// history gives a prefix of its log. Nothing here dials, waits or reads a clock,
// so a log can be read when no worker runs and after the agent has changed.
package eventlog
