// Package testserver gives the tests of a package a real Temporal server: one for each test
// binary, started when a test first asks for it and stopped when all have run.
//
//	func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }
//
//	func TestFork(t *testing.T) {
//		c := testserver.Client(t)
//		...
//	}
//
// Tests share the server, its namespace and its search attributes. So each names its own task
// queue and workflow ids, and lists by what it made itself.
package testserver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/tinerun/tine/internal/devserver"
)

// dialTimeout bounds connecting to a server that is ready.
const dialTimeout = 30 * time.Second

// shared is the server of this process. Tests have no place of their own to keep it in.
var shared struct {
	hasMain bool
	start   sync.Once
	server  *devserver.Server
	err     error
}

// Main runs the tests, stops the server if they started one, and gives the exit code.
func Main(m *testing.M) int {
	shared.hasMain = true
	// The time limit of the tests begins with them. To build the program takes longer than some
	// of it, once.
	if _, err := devserver.Program(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if shared.server == nil {
		return code
	}
	if err := shared.server.Err(); err != nil {
		// Tests that failed for it saw no more than a lost connection.
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	shared.server.Stop()
	return code
}

// Address is the host and port of the server.
func Address(t testing.TB) string {
	t.Helper()
	if !shared.hasMain {
		t.Fatal("the package needs: func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }")
	}
	shared.start.Do(func() {
		// Not the test's context: the server is for the tests that follow as well.
		shared.server, shared.err = devserver.Start(context.Background(), devserver.Options{
			Headless: true,
			Progress: os.Stderr,
		})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server.Address()
}

// Client is a connection to the namespace default, closed at the end of the test.
func Client(t testing.TB) client.Client {
	t.Helper()
	address := Address(t)
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	c, err := client.DialContext(ctx, client.Options{
		HostPort: address,
		// What the SDK logs about workers that stop would drown what a test says.
		Logger: log.NewStructuredLogger(slog.New(slog.NewTextHandler(io.Discard, nil))),
	})
	if err != nil {
		t.Fatalf("connect to the test server at %s: %v", address, err)
	}
	t.Cleanup(c.Close)
	return c
}
