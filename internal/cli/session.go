package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

func newSessionCmd(f *factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List and show sessions",
		Long: `A session is a chain of executions that continue one another, one at a time, in
the order in which they were created. "tine exec create --session" adds a turn.`,
		Example: `  tine session ls
  tine session get YourSession`,
		Args: cobra.ArbitraryArgs, RunE: group, SuggestionsMinimumDistance: nearEnough,
	}
	cmd.AddCommand(newSessionLsCmd(f, nil), newSessionGetCmd(f, nil))
	return cmd
}

type sessionOptions struct {
	f       *factory
	session string // of get
	limit   int
}

func newSessionLsCmd(f *factory, runF func(context.Context, *sessionOptions) error) *cobra.Command {
	opts := &sessionOptions{f: f}
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List sessions, the one with the newest turn first",
		Long: `Lists sessions, the one with the newest turn first. They come from Temporal's
visibility store, which may lag behind by a second or so.`,
		Example: `  tine session ls
  tine session ls -o json | jq -r '.[].session'`,
		Args:              arguments(nil),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              opts.run(runF, runSessionLs),
	}
	cmd.Flags().IntVar(&opts.limit, "limit", defaultListed, "at most `N`")
	return cmd
}

func newSessionGetCmd(f *factory, runF func(context.Context, *sessionOptions) error) *cobra.Command {
	opts := &sessionOptions{f: f}
	cmd := &cobra.Command{
		Use:   "get SESSION",
		Short: "Show a session and its turns",
		Long: `Shows a session and its newest turns, oldest first: how each stands, and which
one it continues.`,
		Example: `  tine session get YourSession
  tine session get YourSession -o json | jq '.executions[].output'`,
		Args:              arguments([]string{"SESSION"}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              opts.run(runF, runSessionGet),
	}
	cmd.Flags().IntVar(&opts.limit, "limit", defaultListed, "the newest `N` turns")
	return cmd
}

// run checks what ls and get have in common.
func (o *sessionOptions) run(runF, run func(context.Context, *sessionOptions) error) func(*cobra.Command, []string) error {
	if runF != nil {
		run = runF
	}
	return func(cmd *cobra.Command, args []string) error {
		if o.limit < 1 {
			return usagef("--limit must be at least 1")
		}
		if len(args) > 0 {
			o.session = args[0]
		}
		return run(cmd.Context(), o)
	}
}

func runSessionLs(ctx context.Context, opts *sessionOptions) error {
	c, err := opts.f.client(ctx)
	if err != nil {
		return err
	}
	found, err := c.Sessions(ctx, tine.SessionOptions{Limit: opts.limit})
	if err != nil {
		return err
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, append([]*tine.Session{}, found...))
	}
	if len(found) == 0 {
		fmt.Fprintln(opts.f.out, "no sessions")
		return nil
	}
	printSessions(opts.f, found)
	if len(found) == opts.limit {
		fmt.Fprintln(opts.f.out, opts.f.screen().paint(faint, fmt.Sprintf("the newest %d; --limit shows more", len(found))))
	}
	return nil
}

func printSessions(f *factory, found []*tine.Session) {
	t := table{screen: f.screen(), columns: []column{
		{title: "SESSION", shrinks: true}, {title: "AGENTS", shrinks: true}, {title: "TURNS", right: true},
		{title: "PENDING", right: true}, {title: "RUNNING"}, {title: "NEWEST", right: true},
	}}
	for _, s := range found {
		turns, pending := "", ""
		if s.Turns > 0 { // else the namespace does not tell
			turns = grouped(int64(s.Turns))
		}
		if s.Pending > 0 {
			pending = grouped(int64(s.Pending))
		}
		t.add(text(oneLine(s.Session)), text(oneLine(strings.Join(s.Agents, ", "))), text(turns), text(pending),
			text(t.screen.id(s.Running)), cell{age(f.now().Sub(s.UpdatedAt)), faint})
	}
	t.write(f.out)
}

func runSessionGet(ctx context.Context, opts *sessionOptions) error {
	c, err := opts.f.client(ctx)
	if err != nil {
		return err
	}
	s, err := c.Session(ctx, opts.session, tine.SessionOptions{Limit: opts.limit})
	if err != nil {
		return err
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, s)
	}
	p := page{w: opts.f.out, screen: opts.f.screen(), now: opts.f.now()}
	p.fact("Session", oneLine(s.Session))
	p.fact("Agents", oneLine(strings.Join(s.Agents, ", ")))
	p.fact("Created", p.when(s.CreatedAt))
	turns := count(int64(s.Turns), "turn", "turns")
	if s.Pending > 0 {
		turns += fmt.Sprintf(", %s of them pending", grouped(int64(s.Pending)))
	}
	p.fact("Turns", turns)
	if len(s.Executions) < s.Turns {
		p.heading(fmt.Sprintf("Newest %d turns", len(s.Executions)))
	} else {
		p.heading("Turns")
	}
	printTurns(opts.f, s.Executions)
	return nil
}

func printTurns(f *factory, turns []*tine.Execution) {
	t := table{screen: f.screen(), indent: indent, columns: []column{
		{title: "ID"}, {title: "AGENT", shrinks: true}, {title: "STATUS"}, {title: "AGE", right: true},
		{title: "TOOK", right: true}, {title: "CONTINUES"}, {title: "FORKED FROM"},
	}}
	id := shortener(t.screen, turns)
	for _, e := range turns {
		took, parent, from := "", "", ""
		if e.ClosedAt != nil {
			took = span(e.ClosedAt.Sub(e.CreatedAt))
		}
		if e.ParentExecutionID != "" {
			parent = id(e.ParentExecutionID)
		}
		if e.ForkedFrom != "" {
			from = fmt.Sprintf("%s at %d", id(e.ForkedFrom), e.ForkSeq)
		}
		t.add(text(id(e.ID)), text(oneLine(e.AgentID)), cell{e.Status, statusStyle(e.Status)},
			cell{age(f.now().Sub(e.CreatedAt)), faint}, text(took), text(parent), text(from))
	}
	t.write(f.out)
}
