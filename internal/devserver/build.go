package devserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// buildReport is how often a build says that it goes on.
const buildReport = 15 * time.Second

// goInstall builds the temporal program with the go command and puts it into dir.
func goInstall(ctx context.Context, dir string, progress io.Writer) error {
	return install{
		target:   programPackage + "@" + programVersion,
		ldflags:  "-s -w -X github.com/temporalio/cli/temporalcli.Version=" + strings.TrimPrefix(programVersion, "v"),
		dir:      dir,
		progress: progress,
	}.run(ctx)
}

// install is one run of `go install`.
type install struct {
	target   string
	ldflags  string
	dir      string // empty, and where the program goes
	progress io.Writer
}

func (i install) run(ctx context.Context) error {
	tool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("it takes Go (https://go.dev/dl), and there is no go command: %w", err)
	}
	env, err := buildEnv(ctx, tool, i.dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(i.progress, "tine: go install %s: about 5 minutes on two cores, most of it compiling\n", i.target)

	log := &buildLog{}
	// -v names each package as it is compiled, which is the only sign of life that go gives.
	cmd := exec.Command(tool, "install", "-v", "-ldflags="+i.ldflags, i.target)
	cmd.Dir = i.dir
	cmd.Env = append(env, "GOBIN="+i.dir)
	cmd.Stdout, cmd.Stderr = log, log
	began := time.Now()
	p, err := launch(cmd)
	if err != nil {
		return fmt.Errorf("run %s: %w", tool, err)
	}
	report := time.NewTicker(buildReport)
	defer report.Stop()
	for {
		select {
		case <-report.C:
			fmt.Fprintf(i.progress, "tine: building for %s: %s\n", time.Since(began).Round(time.Second), log.summary())
		case <-ctx.Done():
			p.kill()
			<-p.done
			return fmt.Errorf("go install %s: %w", i.target, ctx.Err())
		case <-p.done:
			if p.err == nil {
				return nil
			}
			return fmt.Errorf("go install %s: %w after %s (%s):\n%s\nmake a Go module proxy reachable (GOPROXY)",
				i.target, p.err, time.Since(began).Round(time.Second), log.summary(), log.tail.String())
		}
	}
}

// fetchSettings are the settings of Go that say how modules are fetched and where things are
// kept. They are all that a build takes over.
var fetchSettings = []string{
	"GOAUTH", "GOCACHE", "GOCACHEPROG", "GODEBUG", "GOINSECURE", "GOMODCACHE", "GONOPROXY", "GONOSUMDB",
	"GOPATH", "GOPRIVATE", "GOPROXY", "GOSUMDB", "GOTMPDIR", "GOTOOLCHAIN", "GOVCS",
}

// buildEnv is the environment to build in: this one, with every setting of Go that could
// change what is built (a target system, -mod or -tags in GOFLAGS, a workspace, C) taken out,
// whether it comes from the environment or from `go env -w`.
func buildEnv(ctx context.Context, tool, dir string) ([]string, error) {
	cmd := exec.CommandContext(ctx, tool, "env", "-json")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var settings map[string]string
	if err := json.Unmarshal(out, &settings); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}

	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if _, ofGo := settings[name]; !ofGo {
			env = append(env, entry)
		}
	}
	for _, name := range fetchSettings {
		if value := settings[name]; value != "" {
			env = append(env, name+"="+value)
		}
	}
	return append(env,
		"GOENV=off", "GOWORK=off", "GOFLAGS="+keepFlags(settings["GOFLAGS"]),
		// Temporal's SQLite is pure Go, so no C compiler is needed.
		"CGO_ENABLED=0",
	), nil
}

// keepFlags keeps the flags of GOFLAGS that are about the machine and not about what is built.
func keepFlags(goflags string) string {
	var kept []string
	for _, flag := range strings.Fields(goflags) {
		switch name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "="); name {
		case "modcacherw", "p":
			kept = append(kept, flag)
		}
	}
	return strings.Join(kept, " ")
}

// buildLog counts what go does and keeps the end of what else it says.
type buildLog struct {
	mu       sync.Mutex
	partial  []byte
	fetched  int
	compiled int
	tail     tail
}

func (l *buildLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	for {
		line, rest, whole := bytes.Cut(l.partial, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.partial = rest
		switch text := string(line); {
		case strings.HasPrefix(text, "go: downloading "):
			l.fetched++
		case text != "" && !strings.ContainsAny(text, " \t:"):
			l.compiled++ // a package's path
		default:
			_, _ = l.tail.Write([]byte(text + "\n"))
		}
	}
}

func (l *buildLog) summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d modules downloaded, %d packages compiled", l.fetched, l.compiled)
}
