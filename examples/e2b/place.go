package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/google/uuid"
	"go.temporal.io/sdk/client"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/examples/e2b/agent"
	"github.com/tinerun/tine/examples/e2b/internal/hub"
	"github.com/tinerun/tine/internal/devserver"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/resources/e2b/e2btest"
	"github.com/tinerun/tine/worker"
)

//go:embed policy.yaml
var policyYAML []byte

// place is where the agent works: a server, a worker, and what they talk to.
type place struct {
	*tine.Client
	temporal  client.Client
	queue     string
	uiAddress string // empty if the server is not ours
	setting   string // what a command needs before it to find the server, if it is ours
	world     *world // nil with real accounts
	// logged is all that worker and client have logged.
	logged  *record
	closers []func()
}

func (p *place) close() {
	for i := len(p.closers) - 1; i >= 0; i-- {
		p.closers[i]()
	}
	p.closers = nil
}

// prepare starts what is missing: a server, a worker and, for local, E2B and GitHub.
func prepare(ctx context.Context, local bool, progress io.Writer) (_ *place, described string, err error) {
	p := &place{logged: &record{}}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	model, err := agent.ModelFromEnv()
	if err != nil {
		return nil, "", err
	}
	described = "The model is the one that the environment names."
	getenv := os.Getenv
	if local {
		if model == nil {
			model = agent.Scripted{}
			described = "No LLM_BASE_URL, LLM_API_KEY and LLM_MODEL are set: a built-in SCRIPTED model plays the agent's part. It can mend the example's own project, and nothing else."
		}
		if p.world, err = newWorld(); err != nil {
			return nil, "", err
		}
		p.closers = append(p.closers, p.world.close)
		getenv = p.world.getenv
	}
	settings, err := agent.NewSettings(getenv)
	if model == nil {
		err = errors.Join(err, agent.ErrNoModel)
	}
	if err != nil {
		return nil, "", err
	}
	logger := slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(p.logged, &slog.HandlerOptions{Level: slog.LevelDebug}),
		slog.NewTextHandler(progress, &slog.HandlerOptions{Level: slog.LevelWarn})))
	connection, err := devserver.Dial(ctx, logger, progress)
	if err != nil {
		return nil, "", err
	}
	p.temporal = connection.Client
	p.closers = append(p.closers, connection.Close)
	if server := connection.Server; server != nil {
		p.uiAddress, p.setting = server.UIAddress(), "TEMPORAL_ADDRESS="+server.Address()+" "
	}
	return p, described, p.serve(ctx, connection.Settings, logger, settings, model)
}

// serve starts a worker.
func (p *place) serve(ctx context.Context, options client.Options, logger *slog.Logger, settings *agent.Settings, model activities.Model) error {
	bundle, err := policy.Compile(ctx, []policy.Source{{Name: "policy.yaml", Data: policyYAML}}, policy.Options{})
	if err != nil {
		return err
	}
	p.connect(options)
	w, err := worker.New(p.temporal, worker.Options{
		TaskQueue: p.queue, Namespace: options.Namespace, Policy: bundle, Logger: logger,
		DataConverter: options.DataConverter, FailureConverter: options.FailureConverter,
		ExternalStorage: options.ExternalStorage,
	}, agent.Items(settings, model)...)
	if err != nil {
		return err
	}
	if err := w.Start(); err != nil {
		return err
	}
	p.closers = append(p.closers, w.Stop)
	return nil
}

// connect makes the client, for a queue of its own: workers of another program must not take these
// executions.
func (p *place) connect(options client.Options) {
	p.queue = "e2b-" + uuid.NewString()[:8]
	p.Client = tine.NewClient(p.temporal, tine.Options{
		Namespace: options.Namespace, TaskQueue: p.queue, Identity: "you",
		DataConverter: options.DataConverter, FailureConverter: options.FailureConverter,
		ExternalStorage: options.ExternalStorage,
	})
}

// record keeps what is written to it.
type record struct {
	mu   sync.Mutex
	text []byte
}

func (r *record) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, text...)
	return len(text), nil
}

func (r *record) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]byte(nil), r.text...)
}

// world stands for E2B and GitHub, on loopback.
type world struct {
	dir      string
	token    string // GitHub's
	hub      *hub.Hub
	emulator *e2btest.Server
}

// hubHost is what sandboxes know the git server as. There is no such host: only the egress proxy
// of the emulator leads there, and adds the credentials.
const hubHost = "github.test"

func newWorld() (_ *world, err error) {
	secret := make([]byte, 20)
	_, _ = rand.Read(secret)
	w := &world{token: "ghp_" + hex.EncodeToString(secret)}
	if w.dir, err = os.MkdirTemp("", "tine-e2b-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.hub, err = hub.New(filepath.Join(w.dir, "hub"), w.token, agent.Project); err != nil {
		return nil, err
	}
	w.emulator, err = e2btest.New(e2btest.Options{
		Dir:    filepath.Join(w.dir, "sandboxes"),
		Egress: map[string]string{hubHost: w.hub.URL()},
	})
	return w, err
}

func (w *world) close() {
	if w.emulator != nil {
		_ = w.emulator.Close()
	}
	if w.hub != nil {
		w.hub.Close()
	}
	_ = os.RemoveAll(w.dir)
}

// environment is what a worker in this world is told.
func (w *world) environment() map[string]string {
	return map[string]string{
		"E2B_API_KEY": w.emulator.APIKey(), "E2B_API_URL": w.emulator.URL(), "E2B_SANDBOX_URL": w.emulator.URL(),
		"REPO": hub.Owner + "/" + hub.Name, "GITHUB_TOKEN": w.token,
		"GITHUB_SERVER_URL": "http://" + hubHost, "GITHUB_API_URL": w.hub.APIURL(),
	}
}

func (w *world) getenv(variable string) string { return w.environment()[variable] }

// state is that of the sandbox with the id.
func (w *world) state(sandboxID string) string {
	for _, s := range w.emulator.Sandboxes() {
		if s.ID == sandboxID {
			return s.State
		}
	}
	return "gone"
}

// linger keeps the server up, so that its UI can be looked at.
func (p *place) linger(ctx context.Context, keep bool, out io.Writer) {
	switch {
	case p.uiAddress == "":
	case !keep:
		fmt.Fprintln(out, "\nThe dev server stops now, and its histories go with it. Run with --keep to look at them in the UI.")
	default:
		fmt.Fprintf(out, "\nThe dev server keeps running: %s. Press Ctrl-C to stop it.\n", p.uiAddress)
		<-ctx.Done()
	}
}
