// Command e2b shows a coding agent that works in an E2B sandbox: it clones a repository there with
// credentials that stay outside, mends a failing test, pushes a branch, and waits for a person to
// approve its pull request while the sandbox is paused. A second turn of the session continues in
// the same sandbox, branch and conversation.
//
//	go run ./examples/e2b --local
//
// does that on this machine alone, without any account: a Temporal dev server unless one runs,
// an emulator of E2B, a git server that wants credentials, an API of GitHub's kind, and a scripted
// model. It also forks the first turn from before its fix, and searches all that was recorded for
// the credentials.
//
//	go run ./examples/e2b [--session LABEL] [--task TEXT]
//
// runs one turn for real. It needs E2B_API_KEY, REPO (as owner/name), GITHUB_TOKEN, LLM_BASE_URL,
// LLM_MODEL and LLM_API_KEY. Command worker beside it serves the agent for good.
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

	"github.com/google/uuid"
	"golang.org/x/term"

	"github.com/tinerun/tine/examples/e2b/agent"
)

// options are what the command line says.
type options struct {
	local   bool
	task    string
	session string
	keep    bool
}

const usage = `Usage: go run ./examples/e2b --local [--keep]
       go run ./examples/e2b [--session LABEL] [--task TEXT]

With --local a coding agent mends a small repository in an emulated E2B sandbox, on this
machine alone. Without it the agent works on the repository REPO at GitHub in a sandbox of
E2B's, and opens a pull request when you have approved that. That takes E2B_API_KEY, REPO (as
owner/name), GITHUB_TOKEN, LLM_BASE_URL, LLM_MODEL and LLM_API_KEY.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "e2b:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts, err := parse(args, stderr)
	if err != nil {
		return err
	}
	p, described, err := prepare(ctx, opts.local, stderr)
	if err != nil {
		if !opts.local {
			return fmt.Errorf("%w\nSet what is missing, or see it without accounts: go run ./examples/e2b --local", err)
		}
		return err
	}
	defer p.close()
	fmt.Fprintln(stdout, described)
	if opts.local {
		fmt.Fprintf(stdout, "E2B is emulated at %s. GitHub is %s for sandboxes, and wants a token that only the worker has.\n", p.world.emulator.URL(), hubHost)
		if _, err := demonstrate(ctx, p, stdout); err != nil {
			return err
		}
		p.linger(ctx, opts.keep || isTerminal(stdout), stdout)
		return nil
	}
	return p.forReal(ctx, opts, stdout)
}

// forReal runs one turn. A person approves what it asks for, by another command.
func (p *place) forReal(ctx context.Context, opts options, out io.Writer) error {
	if opts.session == "" {
		opts.session = "e2b-" + uuid.NewString()[:8]
	}
	f, err := p.turn(ctx, opts.session, opts.task, out)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\nBranch: %s\nPull request: %s\n", f.output.Answer, f.output.Branch, f.output.PullRequest)
	if p.uiAddress == "" {
		fmt.Fprintf(out, "Go on with: go run ./examples/e2b --session %s --task '…'\n", opts.session)
	} else {
		fmt.Fprintln(out, "The dev server ends with this command, and the session with it. To go on with one, run tine dev beside it.")
	}
	return nil
}

func parse(args []string, stderr io.Writer) (options, error) {
	var opts options
	flags := flag.NewFlagSet("e2b", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.BoolVar(&opts.local, "local", false, "use nothing but this machine")
	flags.StringVar(&opts.task, "task", agent.FixTask, "what the agent is to do")
	flags.StringVar(&opts.session, "session", "", "session to begin or to go on with (default: a new one)")
	flags.BoolVar(&opts.keep, "keep", false, "with --local, keep the dev server running at the end, until interrupted (default when the output is a terminal)")
	err := flags.Parse(args)
	return opts, err
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
