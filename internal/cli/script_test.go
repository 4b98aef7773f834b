package cli_test

import (
	"context"
	"flag"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tinerun/tine/internal/cli"
)

// TestMain sees to it that no test gets to a server of the developer's.
func TestMain(m *testing.M) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil { // nothing listens there from now on
		panic(err)
	}
	os.Setenv("TEMPORAL_ADDRESS", address)
	os.Setenv("TEMPORAL_CONFIG_FILE", os.DevNull)
	os.Exit(m.Run())
}

// TestScripts runs testdata/script/*.txtar, each a session of a user for whom no server runs.
// With -update, the help texts in them are written anew.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: flag.Lookup("update").Value.String() == "true",
		Cmds:          map[string]func(*testscript.TestScript, bool, []string){"tine": tine},
	})
}

// tine runs the command line in process and checks its exit code: tine [exits=CODE] ARG… [<FILE]
func tine(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("say which code: tine exits=CODE ARG…")
	}
	want := 0
	if len(args) > 0 && strings.HasPrefix(args[0], "exits=") {
		code, err := strconv.Atoi(strings.TrimPrefix(args[0], "exits="))
		ts.Check(err)
		want, args = code, args[1:]
	}
	var stdin io.Reader = strings.NewReader("")
	if last := len(args) - 1; last >= 0 && strings.HasPrefix(args[last], "<") {
		stdin = strings.NewReader(ts.ReadFile(args[last][1:]))
		args = args[:last]
	}
	if got := cli.Run(context.Background(), args, stdin, ts.Stdout(), ts.Stderr()); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
