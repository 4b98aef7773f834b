package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/rogpeppe/go-internal/txtar"
	sdkworker "go.temporal.io/sdk/worker"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/coder/agent"
	"github.com/tinerun/tine/internal/devserver"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
)

// place is where the demonstration happens: a repository, a server and a worker.
type place struct {
	client     *tine.Client
	namespace  string
	repository string
	model      string
	uiAddress  string // empty if the server is not ours
	ours       bool
	closers    []func()
}

func (p *place) close() {
	for i := len(p.closers) - 1; i >= 0; i-- {
		p.closers[i]()
	}
}

// prepare starts what is missing.
func prepare(ctx context.Context, opts *options, progress io.Writer) (_ *place, err error) {
	p := &place{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	model, described, err := agent.PickModel()
	if err != nil {
		return nil, err
	}
	p.model = described
	if err := p.prepareRepository(ctx, opts); err != nil {
		return nil, err
	}
	connection, err := devserver.Dial(ctx, quiet(progress), progress)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, connection.Close)
	if connection.Server != nil {
		p.ours, p.uiAddress = true, connection.Server.UIAddress()
	}
	temporal, settings := connection.Client, connection.Settings
	p.namespace = settings.Namespace
	// A queue of its own: workers of another program must not take these executions.
	queue := "coder-" + uuid.NewString()[:8]
	driver, err := directory.New(directory.Options{Root: opts.data})
	if err != nil {
		return nil, err
	}
	w, err := worker.New(temporal, worker.Options{
		TaskQueue: queue, Namespace: settings.Namespace,
		DataConverter: settings.DataConverter, FailureConverter: settings.FailureConverter,
		ExternalStorage: settings.ExternalStorage,
		Logger:          quiet(progress),
	}, agent.Items(driver, model)...)
	if err != nil {
		return nil, err
	}
	if err := startWorker(p, w); err != nil {
		return nil, err
	}
	p.client = tine.NewClient(temporal, tine.Options{
		Namespace: settings.Namespace, TaskQueue: queue,
		DataConverter: settings.DataConverter, FailureConverter: settings.FailureConverter,
		ExternalStorage: settings.ExternalStorage,
	})
	return p, nil
}

func startWorker(p *place, w sdkworker.Worker) error {
	if err := w.Start(); err != nil {
		return err
	}
	p.closers = append(p.closers, w.Stop)
	return nil
}

// quiet logs warnings and errors only: the events are what is to be seen.
func quiet(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// prepareRepository names the repository to work on, and makes the example's own if none is given.
func (p *place) prepareRepository(ctx context.Context, opts *options) error {
	if opts.repository == "" {
		opts.task = agent.ProjectTask
		return p.makeProject(ctx)
	}
	repository, err := filepath.Abs(opts.repository)
	if err != nil {
		return err
	}
	if err := git(ctx, repository, "rev-parse", "--git-dir"); err != nil {
		return fmt.Errorf("--repo %s is not a git repository: %w", opts.repository, err)
	}
	p.repository = repository
	return nil
}

func (p *place) makeProject(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "tine-coder-")
	if err != nil {
		return err
	}
	p.closers = append(p.closers, func() { _ = os.RemoveAll(dir) })
	for _, file := range txtar.Parse(agent.Project).Files {
		if err := os.WriteFile(filepath.Join(dir, file.Name), file.Data, 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"},
		{"add", "--all"},
		{"-c", "user.name=Tine", "-c", "user.email=tine@example.com", "commit", "--quiet", "--no-gpg-sign", "--message=Start"},
	} {
		if err := git(ctx, dir, args...); err != nil {
			return err
		}
	}
	p.repository = dir
	return nil
}

func git(ctx context.Context, dir string, args ...string) error {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("git: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// linger keeps the server up, so that its UI can be looked at.
func (p *place) linger(ctx context.Context, keep bool, out io.Writer) error {
	switch {
	case !p.ours:
		return nil
	case !keep:
		fmt.Fprintln(out, "\nThe dev server stops now, and its histories go with it. Run with --keep to look at them in the UI.")
		return nil
	}
	fmt.Fprintln(out, "\nThe dev server keeps running. Press Ctrl-C to stop it.")
	<-ctx.Done()
	return nil
}
