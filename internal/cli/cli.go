// Package cli is the tine command line.
//
// [Main] runs it as a program and [Run] in process. Each command has a file of its own: an
// options struct, a constructor that turns flags into options, and a run function that
// does the work. A run function talks to the server through the executions interface
// and writes to the factory's streams, so that it can be tested with neither.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main runs the command line on the process's arguments and streams, and returns the exit
// code. SIGINT and SIGTERM end what runs; a second one ends the process at once.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// Run runs one command and returns its exit code. The end of ctx interrupts it.
// Connection settings come from the process's environment, as everywhere with Temporal.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return execute(ctx, newFactory(stdin, stdout, stderr), args)
}

// execute runs one command with the factory's parts.
func execute(ctx context.Context, f *factory, args []string) int {
	defer f.close()
	root := newRootCmd(f)
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	seen := classify(ctx, err, f.started, ran.CommandPath())
	seen.write(f.errOut, f.json() || !f.started && asksForJSON(args))
	return seen.exit
}
