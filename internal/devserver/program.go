package devserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	// programVersion is the version that is built where none is installed: the newest whose
	// go.mod has no replace directives, which `go install` refuses.
	programVersion = "v1.5.1"

	programPackage = "github.com/temporalio/cli/cmd/temporal"

	// probeTimeout bounds `temporal --version`. It takes a tenth of a second, but the first
	// run of a program this size on a busy machine reads it all from disk.
	probeTimeout = time.Minute
)

// minServer is the oldest server inside a temporal program that is used. Older ones lack
// flags or features that Tine relies on, or nobody has tried Tine with them.
var minServer = [2]int{1, 28}

// Program gives the path of a temporal program that can run the dev server: the one on PATH
// if it is new enough, else one that Tine built into the user's cache, which it builds now if
// it is not there. Building takes minutes, happens once, and says so on progress, which may be
// nil. Processes that need it at the same time wait for the one that builds.
func Program(ctx context.Context, progress io.Writer) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the temporal program: no cache directory to build it in: %w; "+
			"set HOME or XDG_CACHE_HOME, or put temporal on PATH", err)
	}
	if progress == nil {
		progress = io.Discard
	}
	f := &finder{
		dir:      filepath.Join(cache, "tine", "bin"),
		progress: progress,
		lookPath: exec.LookPath,
		probe:    probe,
		build:    goInstall,
	}
	return f.find(ctx)
}

// finder holds what Program depends on, so that tests can do without a build of minutes.
type finder struct {
	dir      string
	progress io.Writer
	lookPath func(name string) (string, error)
	// probe says why the program at path cannot be used, or nil.
	probe func(ctx context.Context, path string) error
	// build puts the program into dir, under the name programName.
	build func(ctx context.Context, dir string, progress io.Writer) error
}

func (f *finder) find(ctx context.Context) (string, error) {
	// LookPath refuses what it finds through a relative PATH entry, so a temporal that lies
	// about in the current directory is not run.
	why := "there is no temporal on PATH"
	if installed, err := f.lookPath("temporal"); err == nil {
		if err = f.probe(ctx, installed); err == nil {
			return installed, nil
		}
		why = fmt.Sprintf("%s cannot be used: %v", installed, err)
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("find the temporal program: %w", err)
	}
	cached := f.cached()
	switch err := f.probe(ctx, cached); {
	case err == nil:
		return cached, nil
	case !errors.Is(err, fs.ErrNotExist):
		why = fmt.Sprintf("%s, and what was built before cannot be used: %v", why, err)
	}

	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return "", fmt.Errorf("find the temporal program: %s, and no directory to build it in: %w", why, err)
	}
	lock, err := lockFile(ctx, cached+".lock", func(elapsed time.Duration) {
		f.say("waiting for another process that is building temporal %s (%s)", programVersion, elapsed.Round(time.Second))
	})
	if err != nil {
		return "", fmt.Errorf("wait for another process that builds temporal: %w", err)
	}
	defer lock.release()
	if f.probe(ctx, cached) == nil {
		return cached, nil // built by the process that had the lock
	}
	f.say("%s, so temporal %s is built with Go, once", why, programVersion)
	if err := f.install(ctx, cached); err != nil {
		return "", err
	}
	return cached, nil
}

// install builds the program and moves it to path when it is whole and runs. The caller holds
// the lock.
func (f *finder) install(ctx context.Context, path string) (err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("build temporal %s: %w", programVersion, err)
		} else if err != nil {
			err = fmt.Errorf("build temporal %s: %w; or install temporal (https://docs.temporal.io/cli) and put it on PATH",
				programVersion, err)
		}
	}()
	// Whoever holds the lock is the only one who builds, so what lies here was left by a
	// process that was killed.
	const pattern = ".building-*"
	left, err := filepath.Glob(filepath.Join(f.dir, pattern))
	if err != nil {
		return err
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(f.dir, pattern)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	began := time.Now()
	if err := f.build(ctx, dir, f.progress); err != nil {
		return err
	}
	built := filepath.Join(dir, programName())
	if err := f.probe(ctx, built); err != nil {
		return fmt.Errorf("the program that was built does not run: %w", err)
	}
	if err := os.Rename(built, path); err != nil {
		return err
	}
	f.say("built in %s: %s", time.Since(began).Round(time.Second), path)
	return nil
}

func (f *finder) cached() string {
	return filepath.Join(f.dir, strings.Replace(programName(), "temporal", "temporal-"+programVersion, 1))
}

func (f *finder) say(format string, args ...any) {
	fmt.Fprintf(f.progress, "tine: "+format+"\n", args...)
}

func programName() string {
	if runtime.GOOS == "windows" {
		return "temporal.exe"
	}
	return "temporal"
}

// versionLine has the version of the server within, whatever the program's own version looks
// like: `go install` leaves that at 0.0.0-DEV.
var versionLine = regexp.MustCompile(`(?i)\btemporal version \S+ \(server v?(\d+)\.(\d+)\.(\d+)`)

// probe runs the program. That also finds programs that are truncated or made for another
// machine.
func probe(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = serverEnv(os.Environ())
	cmd.WaitDelay = time.Second // a script at this path may leave children that hold the pipe
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("run %s --version: %w", path, errors.Join(ctx.Err(), err))
	}
	found := versionLine.FindSubmatch(out)
	if found == nil {
		return fmt.Errorf("%s --version does not answer as Temporal's CLI does", path)
	}
	major, _ := strconv.Atoi(string(found[1]))
	minor, _ := strconv.Atoi(string(found[2]))
	if major < minServer[0] || major == minServer[0] && minor < minServer[1] {
		return fmt.Errorf("it has Temporal server %d.%d, and Tine needs %d.%d or newer",
			major, minor, minServer[0], minServer[1])
	}
	return nil
}
