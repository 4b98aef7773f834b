package cli

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"runtime/debug"
	"syscall"
	"time"

	"go.temporal.io/sdk/log"
	"golang.org/x/term"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/connect"
	"github.com/tinerun/tine/internal/devserver"
)

// executions is what commands need of tine.Client.
type executions interface {
	Create(context.Context, tine.CreateRequest) (*tine.Execution, error)
	Fork(context.Context, tine.ForkRequest) (*tine.Execution, error)
	Get(ctx context.Context, id string) (*tine.Execution, error)
	List(context.Context, tine.ListOptions) ([]*tine.Execution, error)
	Log(ctx context.Context, id string) (executionLog, error)
	Follow(ctx context.Context, id string, afterSeq int64) iter.Seq2[tine.Event, error]
	Cancel(ctx context.Context, id string) error
	Resolve(ctx context.Context, prefix string) (string, error)
	Sessions(context.Context, tine.SessionOptions) ([]*tine.Session, error)
	Session(ctx context.Context, label string, opts tine.SessionOptions) (*tine.Session, error)
	Approvals(context.Context, tine.ApprovalOptions) ([]*tine.Approval, error)
	Approval(ctx context.Context, id string) (*tine.Approval, error)
	Grant(ctx context.Context, id string, decision tine.ApprovalDecision) (*tine.Approval, error)
	Deny(ctx context.Context, id string, decision tine.ApprovalDecision) (*tine.Approval, error)
}

// executionLog is what commands need of tine.Log.
type executionLog interface {
	Execution() *tine.Execution
	Events() []tine.Event
	Steps() []*tine.Step
	ForkPoints() tine.ForkPoints
}

// tineClient is a tine.Client as an executions.
type tineClient struct{ *tine.Client }

func (c tineClient) Log(ctx context.Context, id string) (executionLog, error) {
	read, err := c.Client.Log(ctx, id)
	if err != nil {
		return nil, err // not an interface that holds a nil *tine.Log
	}
	return read, nil
}

// factory gives commands what they work with. Nothing is opened before it is asked for, so
// that help needs no server. Tests replace its functions.
type factory struct {
	in     io.Reader
	out    io.Writer
	errOut io.Writer

	// The persistent flags.
	flags     connect.Flags
	taskQueue string
	output    choice

	// started says that flags and arguments were in order and a command has begun.
	started bool

	now    func() time.Time
	screen func() screen
	dial   func(context.Context) (executions, func(), error)
	// startServer starts a dev server.
	startServer func(context.Context, devserver.Options) (devServer, error)
	// signals gives the process's SIGINT and SIGTERM until the function is called.
	signals func() (<-chan os.Signal, func())
	// build is what the binary says of itself.
	build func() (*debug.BuildInfo, bool)

	closers []func()
}

func newFactory(in io.Reader, out, errOut io.Writer) *factory {
	f := &factory{
		in: in, out: out, errOut: errOut,
		output:      choice{value: outputText, allowed: []string{outputText, outputJSON}, name: "text|json"},
		now:         time.Now,
		startServer: startDevServer,
		signals:     processSignals,
		build:       debug.ReadBuildInfo,
	}
	f.screen = f.detectScreen
	f.dial = f.dialServer
	return f
}

// client connects to the server.
func (f *factory) client(ctx context.Context) (executions, error) {
	c, closeClient, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	f.closers = append(f.closers, closeClient)
	return c, nil
}

// resolve connects and finds the execution that an ID argument means.
func (f *factory) resolve(ctx context.Context, prefix string) (executions, string, error) {
	c, err := f.client(ctx)
	if err != nil {
		return nil, "", err
	}
	id, err := c.Resolve(ctx, prefix)
	return c, id, err
}

func (f *factory) dialServer(ctx context.Context) (executions, func(), error) {
	settings, err := connect.Options(f.flags)
	if err != nil {
		return nil, nil, &usageError{
			code: "settings", message: err.Error(),
			hint: "check --profile, the TEMPORAL_* variables and the file that TEMPORAL_CONFIG_FILE names",
		}
	}
	settings.Identity = userName()
	// What the SDK logs is either in the errors it returns or of no use to a user.
	c, err := connect.Dial(ctx, settings, log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, nil, err
	}
	return tineClient{tine.NewClient(c, tine.Options{
		Namespace: settings.Namespace, TaskQueue: f.taskQueue,
		DataConverter: settings.DataConverter, FailureConverter: settings.FailureConverter,
		Identity: settings.Identity, ExternalStorage: settings.ExternalStorage,
	})}, c.Close, nil
}

// userName is who uses the command line, and so who decides approvals and starts executions.
func userName() string {
	if name := os.Getenv("USER"); name != "" {
		return name
	}
	if known, err := user.Current(); err == nil {
		return known.Username
	}
	return "tine"
}

func (f *factory) close() {
	for _, c := range f.closers {
		c()
	}
}

func (f *factory) json() bool { return f.output.value == outputJSON }

func processSignals() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 4) // a burst of an impatient user's
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	return ch, func() { signal.Stop(ch) }
}

// screen is what output has to fit.
type screen struct {
	// width is the terminal's. Zero means that the output is no terminal, so that nothing
	// need be cut or coloured.
	width  int
	colour bool
}

// unknownWidth is for a terminal that does not tell.
const unknownWidth = 80

func (f *factory) detectScreen() screen {
	file, ok := f.out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return screen{}
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 {
		width = unknownWidth
	}
	return screen{width: width, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}
