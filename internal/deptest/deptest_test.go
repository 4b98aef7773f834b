// Package deptest holds the directions in which packages may import one another, each
// with its reason.
package deptest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/tinerun/tine"

// rule forbids packages to import others.
type rule struct {
	packages string // the package with this path, and those below it
	forbids  []string
	direct   bool // only what the packages import themselves
	why      string
}

var rules = []rule{
	{
		packages: module + "/workflows",
		forbids:  []string{module + "/activities", module + "/resources", module + "/policy", module + "/worker"},
		why:      "workflow code is replayed; it must not be able to reach what has effects. Both sides meet in internal/protocol",
	},
	{
		packages: module + "/workflows",
		forbids:  []string{"github.com/open-policy-agent/opa"},
		why:      "a policy evaluated in workflow code would answer differently when it has changed and the workflow is replayed",
	},
	{
		packages: module + "/workflows",
		forbids:  []string{"os", "os/exec", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "time/tzdata", "sync", "io/fs"},
		direct:   true,
		why:      "workflow code does no I/O, draws no random numbers, and runs one coroutine at a time. The SDK imports these itself, so only direct imports count",
	},
	{
		packages: module + "/workflows/loop",
		forbids:  []string{module + "/internal/protocol", module + "/internal/failure"},
		direct:   true,
		why:      "the loop can do no more than an agent of somebody else's",
	},
	{
		packages: module + "/worker",
		forbids:  []string{module + "/activities/anthropic", module + "/activities/mcp", module + "/activities/openai"},
		why:      "who does not use a provider, or MCP, must not have to build its SDK",
	},
	{
		packages: module + "/activities",
		forbids:  []string{module + "/workflows", module + "/worker"},
		why:      "what has effects must not depend on what is replayed",
	},
	{
		packages: module + "/resources",
		forbids:  []string{"go.temporal.io", module + "/activities", module + "/workflows", module + "/worker", module + "/policy"},
		why:      "a driver is written and tested without Temporal",
	},
	{
		packages: module + "/policy",
		forbids:  []string{"go.temporal.io", module + "/activities", module + "/workflows", module + "/worker", module + "/resources"},
		why:      "policies are evaluated and tested without Temporal",
	},
	{
		packages: module + "/internal/protocol",
		forbids:  []string{"github.com", "go.temporal.io", "google.golang.org", "golang.org"},
		why:      "the wire format stands on nothing that may change",
	},
	{
		packages: module + "/internal/protocol",
		forbids:  []string{"os", "net", "net/http", "context", "time/tzdata", "log", "log/slog"},
		direct:   true,
		why:      "the wire format does nothing",
	},
	{
		packages: module + "/internal/eventlog",
		forbids:  []string{"os", "net/http", "go.temporal.io/sdk/client", "context"},
		direct:   true,
		why:      "the event log is a pure function of history",
	},
	{
		packages: module,
		forbids:  []string{"go.temporal.io/server"},
		why:      "the server's dependencies are not for our users; it is a program that we run",
	},
}

type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func TestImports(t *testing.T) {
	t.Parallel()
	packages := list(t)
	for _, r := range rules {
		matched := false
		for _, p := range packages {
			if !within(p.ImportPath, r.packages) {
				continue
			}
			matched = true
			imports := p.Deps
			if r.direct {
				imports = p.Imports
			}
			for _, imported := range imports {
				if slices.ContainsFunc(r.forbids, func(f string) bool { return forbidden(imported, f, r.direct) }) {
					t.Errorf("%s imports %s: %s", p.ImportPath, imported, r.why)
				}
			}
		}
		require.True(t, matched, "no package matches %s: the rule guards nothing", r.packages)
	}
}

// forbidden reports whether imported is what f forbids. Directly imported standard packages
// are named exactly: os does not forbid os/signal's neighbours by accident.
func forbidden(imported, f string, direct bool) bool {
	if direct {
		return imported == f
	}
	return within(imported, f)
}

func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", module+"/...")
	out, err := cmd.Output()
	require.NoError(t, err)
	dec := json.NewDecoder(strings.NewReader(string(out)))
	var packages []listed
	for {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		require.NoError(t, err)
		packages = append(packages, p)
	}
}
