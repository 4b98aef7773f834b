package devserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// startAttempts is how often a start is tried when somebody takes a port that was free.
// Besides ours the server takes five, and processes that start together can collide.
const startAttempts = 4

// Server is a dev server that runs.
type Server struct {
	address   string
	uiAddress string
	process   *process
	output    *serverOutput
	lock      *fileLock // of the database file, or nil
	grace     time.Duration
	stopping  atomic.Bool
	done      chan struct{}
}

// Tuning gives the settings that every server gets and that are not Temporal's defaults.
func (s *Server) Tuning() map[string]any { return maps.Clone(tuning) }

// Start starts a dev server and returns when it is ready: it answers, the namespace exists and
// the search attributes can be used. ctx bounds the start; the server then runs until
// [Server.Stop] or the end of this process.
func Start(ctx context.Context, opts Options) (*Server, error) {
	s, err := start(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("start the Temporal dev server: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, opts Options) (*Server, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if opts.Program == "" {
		if opts.Program, err = Program(ctx, opts.Progress); err != nil {
			return nil, err
		}
	}
	var lock *fileLock
	if opts.DBFilename != "" {
		if lock, err = lockDatabase(opts.DBFilename); err != nil {
			return nil, err
		}
	}
	for attempt := 1; ; attempt++ {
		s, err := startOnce(ctx, opts)
		if err == nil {
			s.lock = lock
			go s.settle()
			return s, nil
		}
		if attempt == startAttempts || !errors.Is(err, errPortTaken) {
			if lock != nil {
				lock.release()
			}
			return nil, err
		}
	}
}

// errPortTaken marks a server that ended because it did not get a port.
var errPortTaken = errors.New("another process took one of its ports")

// startOnce chooses free ports anew each time.
func startOnce(ctx context.Context, opts Options) (*Server, error) {
	port, err := choosePort(opts.Port, portFlag)
	if err != nil {
		return nil, err
	}
	s := &Server{
		address: net.JoinHostPort(loopback, strconv.Itoa(port)),
		output:  &serverOutput{to: opts.LogWriter},
		grace:   opts.StopGrace,
		done:    make(chan struct{}),
	}
	uiPort := 0
	if !opts.Headless {
		if uiPort, err = choosePort(opts.UIPort, uiPortFlag); err != nil {
			return nil, err
		}
		s.uiAddress = "http://" + net.JoinHostPort(loopback, strconv.Itoa(uiPort))
	}
	args, err := opts.args(port, uiPort)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(opts.Program, args...)
	cmd.Env = serverEnv(os.Environ())
	cmd.Stdout, cmd.Stderr = s.output, s.output
	if s.process, err = launch(cmd); err != nil {
		return nil, fmt.Errorf("run %s: %w", opts.Program, err)
	}

	if err := s.awaitReady(ctx, opts); err != nil {
		s.output.mute()
		s.process.kill() // it has done nothing yet that would be worth a grace
		<-s.process.done
		return nil, err
	}
	return s, nil
}

// awaitReady waits until the server can be used, or has ended instead.
func (s *Server) awaitReady(ctx context.Context, opts Options) error {
	late := fmt.Errorf("it is not ready after %s", opts.ReadyTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, opts.ReadyTimeout, late)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- awaitReady(ctx, s.address, opts.Namespace, opts.SearchAttributes) }()
	var err error
	select {
	case err = <-ready:
	case <-s.process.done:
		cancel()
		<-ready
	}
	// What answered was another server, if this one ended: it did not get its port.
	if s.process.ended() {
		err = s.exitError()
		if strings.Contains(s.output.tail.String(), "address already in use") {
			return fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return err
	}
	if err != nil {
		return s.withOutput(err)
	}
	return nil
}

// lockDatabase keeps two servers from writing to one file, which each would take for its own.
func lockDatabase(file string) (*fileLock, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("database file %s: %w", file, err)
	}
	lock, err := tryLockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("lock database file %s: %w", file, err)
	}
	if lock == nil {
		return nil, fmt.Errorf("database file %s is in use by another dev server; stop that one or choose another file", file)
	}
	return lock, nil
}

// settle cleans up when the server has ended, for whatever reason.
func (s *Server) settle() {
	<-s.process.done
	if s.lock != nil {
		s.lock.release()
	}
	close(s.done)
}

// Address is the host and port for clients and workers.
func (s *Server) Address() string { return s.address }

// UIAddress is the URL of the UI, or empty if there is none.
func (s *Server) UIAddress() string { return s.uiAddress }

// Done is closed when the server has ended.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err says why the server ended by itself. It is nil while it runs, and after Stop.
func (s *Server) Err() error {
	select {
	case <-s.done:
	default:
		return nil
	}
	if s.stopping.Load() {
		return nil
	}
	return fmt.Errorf("the Temporal dev server at %s ended by itself: %w", s.address, s.exitError())
}

// Stop ends the server and returns when it has ended: it is asked to stop, and killed if it
// takes long. It may be called more than once, and at the same time.
func (s *Server) Stop() {
	select {
	case <-s.done:
		return // by itself, which Err goes on to tell
	default:
	}
	s.stopping.Store(true)
	// A server that stops warns of each of its own connections that breaks.
	s.output.mute()
	s.process.terminate()
	select {
	case <-s.done:
	case <-time.After(s.grace):
		s.process.kill()
		<-s.done
	}
}

// exitError describes a process that has ended.
func (s *Server) exitError() error {
	if s.process.err == nil {
		return s.withOutput(errors.New("exit status 0"))
	}
	return s.withOutput(s.process.err)
}

// withOutput adds the end of what the server printed to err.
func (s *Server) withOutput(err error) error {
	if said := s.output.tail.String(); said != "" {
		return fmt.Errorf("%w; its last output:\n%s", err, said)
	}
	return err
}

// serverOutput passes on what the server prints, and keeps the end of it.
type serverOutput struct {
	to    io.Writer
	tail  tail
	muted atomic.Bool
}

func (o *serverOutput) mute() { o.muted.Store(true) }

// Write does not fail: a reader that went away must not take the server along.
func (o *serverOutput) Write(p []byte) (int, error) {
	_, _ = o.tail.Write(p)
	if !o.muted.Load() {
		_, _ = o.to.Write(p)
	}
	return len(p), nil
}
