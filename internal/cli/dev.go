package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	"golang.org/x/term"

	"github.com/tinerun/tine/internal/devserver"
)

// devServer is what tine dev needs of a devserver.Server.
type devServer interface {
	Address() string
	UIAddress() string
	Done() <-chan struct{}
	Err() error
	Stop()
	// Tuning is the settings that are not Temporal's defaults.
	Tuning() map[string]any
}

func startDevServer(ctx context.Context, opts devserver.Options) (devServer, error) {
	server, err := devserver.Start(ctx, opts)
	if err != nil {
		return nil, err // not an interface that holds a nil *devserver.Server
	}
	return server, nil
}

type devOptions struct {
	f       *factory
	server  devserver.Options
	command []string // empty: none, serve until interrupted
}

const maxPort = 65535

func newDevCmd(f *factory, runF func(context.Context, *devOptions) error) *cobra.Command {
	opts := &devOptions{f: f}
	cmd := &cobra.Command{
		Use:   "dev [-- COMMAND ARG...]",
		Short: "Run a Temporal dev server",
		Long: `Runs a Temporal server for development, with UI, on this machine only. Its settings
make steps that follow one another fast. It keeps executions in memory, or with
--db-filename in a file.

Without a command it runs until it is interrupted. With one, it runs that against
the server, passes signals on to it, stops when it ends, and exits with its exit
code.

The server is the temporal program on PATH. Where there is none, it is built with
Go once, which takes some minutes.`,
		Example: `  tine dev
  tine dev --db-filename tine.db
  tine dev --port 0 -- go test ./...`,
		Args:              devArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, port := range []int{opts.server.Port, opts.server.UIPort} {
				if port < 0 || port > maxPort {
					return usagef("port %d does not exist; ports go from 1 to %d, and 0 takes a free one", port, maxPort)
				}
			}
			opts.server.Namespace = f.flags.Namespace
			opts.command = args
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runDev(cmd.Context(), opts)
		},
	}
	cmd.Flags().StringVar(&opts.server.DBFilename, "db-filename", "", "`FILE` that keeps the executions; made if it is not there")
	cmd.Flags().IntVar(&opts.server.Port, "port", devserver.DefaultPort, "`PORT` for clients and workers; 0 takes a free one")
	cmd.Flags().IntVar(&opts.server.UIPort, "ui-port", devserver.DefaultUIPort, "`PORT` of the UI; 0 takes a free one")
	return cmd
}

// devArguments allows a command after -- only: before it a mistyped flag would be run.
func devArguments(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case dash == 0 && len(args) == 0:
		return usagef("%s: COMMAND is missing after --", cmd.CommandPath())
	case dash != 0 && len(args) > 0:
		return usagef("%s: unexpected argument %q; a command to run goes after --", cmd.CommandPath(), args[0])
	default:
		return nil
	}
}

func runDev(ctx context.Context, opts *devOptions) error {
	if len(opts.command) > 0 {
		if _, err := exec.LookPath(opts.command[0]); err != nil {
			return usagef("cannot run %s: %v", opts.command[0], err)
		}
	}
	// Before the start, so that a signal that comes then is not missed.
	signals, stop := opts.f.signals()
	defer stop()
	opts.server.Progress = opts.f.errOut
	server, err := opts.f.startServer(ctx, opts.server)
	if err != nil {
		return err
	}
	defer server.Stop()
	if err := announce(opts, server); err != nil {
		return err
	}
	if len(opts.command) > 0 {
		return runAgainst(ctx, opts, server, signals)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-server.Done():
		return server.Err()
	}
}

// devDocument is the JSON of tine dev.
type devDocument struct {
	Address    string `json:"address"`
	UIAddress  string `json:"ui_address"`
	Namespace  string `json:"namespace"`
	DBFilename string `json:"db_filename,omitempty"`
	// Settings are the server's dynamic configuration, where it is not Temporal's default.
	Settings map[string]any `json:"settings,omitempty"`
}

// announce says that the server is ready. Stdout belongs to the command, if there is one,
// unless JSON was asked for.
func announce(opts *devOptions, server devServer) error {
	d := devDocument{
		Address: server.Address(), UIAddress: server.UIAddress(),
		Namespace: cmp.Or(opts.server.Namespace, client.DefaultNamespace), DBFilename: opts.server.DBFilename,
		Settings: server.Tuning(),
	}
	if opts.f.json() {
		return writeDocument(opts.f.out, d)
	}
	w, s := opts.f.out, opts.f.screen()
	if len(opts.command) > 0 {
		w, s = opts.f.errOut, screen{}
	}
	fmt.Fprintf(w, "The Temporal dev server is ready.\n\n")
	p := page{w: w, screen: s, now: opts.f.now()}
	p.fact("Address", d.Address)
	p.fact("UI", d.UIAddress)
	p.fact("Namespace", d.Namespace)
	p.fact("Executions", cmp.Or(label("kept in", d.DBFilename), "kept in memory, until it stops"))
	for i, key := range slices.Sorted(maps.Keys(d.Settings)) {
		name := ""
		if i == 0 {
			name = "Tuned"
		}
		p.fact(name, fmt.Sprintf("%s=%v", key, d.Settings[key]))
	}
	if len(opts.command) > 0 {
		fmt.Fprintln(w)
		return nil
	}
	fmt.Fprintf(w, "\nTo connect, in another terminal:\n  export TEMPORAL_ADDRESS=%s\n", d.Address)
	return nil
}

// How long to wait, when the command line is interrupted, for the signal that did it; and, when the
// command has ended, for what it has left running to let go of its output.
const (
	signalGrace = 100 * time.Millisecond
	outputGrace = 2 * time.Second
)

// runAgainst runs the command against the server, and gives its exit code as an error.
func runAgainst(ctx context.Context, opts *devOptions, server devServer, signals <-chan os.Signal) error {
	cmd := exec.Command(opts.command[0], opts.command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = opts.f.in, opts.f.out, opts.f.errOut
	cmd.Env = commandEnv(os.Environ(), server.Address(), cmp.Or(opts.server.Namespace, client.DefaultNamespace))
	cmd.WaitDelay = outputGrace
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", opts.command[0], err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the process's state says it all
	}()
	// A terminal sends its Ctrl-C to the command as well, and to many programs a second one
	// means to stop at once.
	r := relay{command: cmd.Process, ended: ended, withoutInterrupt: onTerminal(opts.f)}
	r.run(ctx, signals, server.Done())
	if err := server.Err(); err != nil {
		return err
	}
	if code := exitCode(cmd.ProcessState); code != 0 {
		return &childError{code}
	}
	return nil
}

// relay passes signals on to a command.
type relay struct {
	command          *os.Process
	ended            <-chan struct{}
	withoutInterrupt bool
}

// run passes signals on until the command has ended. If ctx ends without a signal, or the server
// ends, it asks the command to stop.
func (r relay) run(ctx context.Context, signals <-chan os.Signal, server <-chan struct{}) {
	interrupted, signalled := ctx.Done(), false
	for {
		select {
		case <-r.ended:
			return
		case sig := <-signals:
			signalled = true
			r.pass(sig)
		case <-interrupted:
			interrupted = nil
			if !signalled {
				r.pass(awaitSignal(signals))
			}
		case <-server:
			server = nil
			r.pass(syscall.SIGTERM)
		}
	}
}

func (r relay) pass(sig os.Signal) {
	if sig != os.Interrupt || !r.withoutInterrupt {
		_ = r.command.Signal(sig) // fails if it has ended, which is what is wanted
	}
}

// awaitSignal gives the signal that has ended a context: it may arrive a moment later.
// Without one it asks to terminate.
func awaitSignal(signals <-chan os.Signal) os.Signal {
	select {
	case sig := <-signals:
		return sig
	case <-time.After(signalGrace):
		return syscall.SIGTERM
	}
}

func onTerminal(f *factory) bool {
	for _, stream := range []any{f.in, f.out, f.errOut} {
		if file, ok := stream.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
			return true
		}
	}
	return false
}

// exitCode is the code of a process that has ended, as shells have it: that of a signal
// counts from 128.
func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// otherServer are the variables that say how to connect to another server than the one that has
// just been started, and would fail there.
var otherServer = []string{
	"TEMPORAL_ADDRESS=", "TEMPORAL_NAMESPACE=", "TEMPORAL_API_KEY=", "TEMPORAL_CLIENT_AUTHORITY=",
	"TEMPORAL_TLS", "TEMPORAL_CODEC_", "TEMPORAL_GRPC_META_", "TEMPORAL_PROFILE=", "TEMPORAL_CONFIG_FILE=",
}

// commandEnv is the environment for a command that is to use the server, whatever the
// user's own is.
func commandEnv(environ []string, address, namespace string) []string {
	env := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		return slices.ContainsFunc(otherServer, func(name string) bool { return strings.HasPrefix(entry, name) })
	})
	return append(env, "TEMPORAL_ADDRESS="+address, "TEMPORAL_NAMESPACE="+namespace, "TEMPORAL_CONFIG_FILE="+os.DevNull)
}
