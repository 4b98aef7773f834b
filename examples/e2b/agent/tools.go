package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/resources/e2b"
	"github.com/tinerun/tine/worker"
)

// Items is everything a worker needs to serve the agent.
func Items(s *Settings, model activities.Model) []worker.Item {
	return []worker.Item{
		worker.Agent(Name, Coder),
		worker.Tool(Shell, shell),
		worker.Tool(ReadFile, readFile),
		worker.Tool(WriteFile, writeFile),
		worker.Tool(Checkout, s.checkout),
		worker.Tool(OpenPR, s.hub.open),
		worker.Tool(FindPR, s.hub.find),
		worker.Model(Model, model),
		worker.Driver(s.driver),
	}
}

const (
	// workDir is the clone in the sandbox.
	workDir = "/home/user/repo"
	// A model's context is small; this leaves it room for more than one answer.
	maxOutput = 32 << 10
	// commandTimeout is how long a command of the model may run.
	commandTimeout = 10 * time.Minute
)

func sandbox(ctx context.Context) (*e2b.Sandbox, error) {
	return activities.Resource[*e2b.Sandbox](ctx, Sandbox.Key())
}

func shell(ctx context.Context, in ShellArgs) (ShellResult, error) {
	s, err := sandbox(ctx)
	if err != nil {
		return ShellResult{}, err
	}
	r, err := s.Run(ctx, e2b.Command{Line: in.Command, Dir: workDir, Timeout: commandTimeout, MaxOutput: maxOutput})
	return ShellResult{ExitCode: r.ExitCode, Stdout: r.Stdout, Stderr: r.Stderr, TimedOut: r.TimedOut}, err
}

func readFile(ctx context.Context, in ReadArgs) (string, error) {
	s, err := sandbox(ctx)
	if err != nil {
		return "", err
	}
	content, err := s.ReadFile(ctx, path.Join(workDir, in.Path))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no file %s", in.Path)
	}
	if more := len(content) - maxOutput; more > 0 {
		return strings.ToValidUTF8(string(content[:maxOutput]), "") + fmt.Sprintf("\n… %d more bytes", more), err
	}
	return string(content), err
}

func writeFile(ctx context.Context, in WriteArgs) (string, error) {
	s, err := sandbox(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %d bytes", len(in.Content)), s.WriteFile(ctx, path.Join(workDir, in.Path), []byte(in.Content))
}

// checkoutScript clones the repository unless it is there, and switches to the branch: the one of
// that name, here or at the origin, or a new one. It may run again, also while an attempt of a worker
// that has died is still at it, and after one that was killed and has left git's locks.
const checkoutScript = `set -eu
cd
if [ ! -d repo/.git ]; then
	clone=$(mktemp -d ./clone.XXXXXX)
	git clone --quiet "$REPO_URL" "$clone/repo"
	git -C "$clone/repo" config user.name Tine
	git -C "$clone/repo" config user.email tine@example.com
	[ -z "$FROM" ] || git -C "$clone/repo" switch --quiet "$FROM" || true
	[ -d repo/.git ] || mv "$clone/repo" repo
	rm -rf "$clone"
fi
cd repo
find .git -name '*.lock' -delete
git switch --quiet "$BRANCH" 2>/dev/null || git switch --quiet --create "$BRANCH"
git log -1 --format='%h %s'`

// checkout gives the newest commit. git asks nobody for credentials: E2B's egress proxy adds them.
func (s *Settings) checkout(ctx context.Context, in CheckoutArgs) (string, error) {
	sb, err := sandbox(ctx)
	if err != nil {
		return "", err
	}
	r, err := sb.Run(ctx, e2b.Command{
		Line: checkoutScript, Timeout: commandTimeout, MaxOutput: maxOutput,
		Env: map[string]string{"REPO_URL": s.repoURL, "BRANCH": in.Branch, "FROM": in.From, "GIT_TERMINAL_PROMPT": "0"},
	})
	switch {
	case err != nil:
		return "", err
	case r.TimedOut:
		return "", activities.Retryable(fmt.Errorf("the clone took longer than %s", commandTimeout))
	case r.ExitCode != 0:
		return "", fmt.Errorf("git: exit code %d: %s", r.ExitCode, strings.TrimSpace(r.Stderr))
	}
	return strings.TrimSpace(r.Stdout), nil
}
