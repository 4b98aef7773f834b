// Command coder shows Tine at work: a coding agent mends a failing test, then the
// execution is forked at the event before its first edit, with another instruction, and
// both results are shown side by side.
//
// It starts what is missing: a Temporal dev server, and a worker. See -help for
// how to run it on a repository of your own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/tinerun/tine/examples/coder/agent"
	"github.com/tinerun/tine/resources/directory"
)

// options are what the command line says.
type options struct {
	repository  string
	task        string
	instruction string
	data        string
	keep        bool
}

const usage = `Usage: go run ./examples/coder [--repo DIR --task TEXT] [--instruction TEXT] [--data DIR] [--keep]

Lets a coding agent work on a copy of a git repository, forks it at the event before its
first edit with another instruction, and shows both results.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "coder:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts, err := parse(args, stderr)
	if err != nil {
		return err
	}
	place, err := prepare(ctx, &opts, stderr)
	if err != nil {
		return err
	}
	defer place.close()
	if err := demonstrate(ctx, place, opts, stdout); err != nil {
		return err
	}
	return place.linger(ctx, opts.keep || isTerminal(stdout), stdout)
}

func parse(args []string, stderr io.Writer) (options, error) {
	var opts options
	root, err := directory.DefaultRoot()
	if err != nil {
		return opts, err
	}
	flags := flag.NewFlagSet("coder", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&opts.repository, "repo", "", "git repository to work on; it is copied, and never changed (default: a small Go module with a failing test)")
	flags.StringVar(&opts.task, "task", "", "what the agent is to do in it")
	flags.StringVar(&opts.instruction, "instruction", "", "what the fork is told besides")
	flags.StringVar(&opts.data, "data", root, "directory for workspaces and checkpoints")
	flags.BoolVar(&opts.keep, "keep", false, "keep the dev server running at the end, until interrupted (default when the output is a terminal)")
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	if (opts.repository == "") != (opts.task == "") {
		return opts, errors.New("--repo and --task go together: say where to work and what to do there")
	}
	if opts.instruction == "" {
		opts.instruction = "Make the smallest change that works, and add a test for it."
		if opts.repository == "" {
			opts.instruction = agent.ProjectInstruction
		}
	}
	return opts, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
