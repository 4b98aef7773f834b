package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
)

// Items is everything a worker needs to serve the agent.
func Items(driver *directory.Driver, model activities.Model) []worker.Item {
	return []worker.Item{
		worker.Agent(Name, Coder),
		worker.Tool(ReadFile, readFile),
		worker.Tool(WriteFile, writeFile),
		worker.Tool(ListFiles, listFiles),
		worker.Tool(Shell, shell),
		worker.Tool(SnapshotTree, snapshotTree),
		worker.Tool(Diff, diff),
		worker.Model(Model, model),
		worker.Driver(driver),
	}
}

// A model's context is small; these bounds leave it room for more than one answer.
const (
	maxFileBytes = 64 << 10
	maxFiles     = 500
	maxDiffBytes = 512 << 10
)

func workspace(ctx context.Context) (*directory.Workspace, error) {
	return activities.Resource[*directory.Workspace](ctx, Workspace.Key())
}

func readFile(ctx context.Context, in ReadArgs) (string, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return "", err
	}
	content, err := ws.ReadFile(in.Path)
	return truncate(string(content), maxFileBytes), err
}

func writeFile(ctx context.Context, in WriteArgs) (string, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %d bytes", len(in.Content)), ws.WriteFile(in.Path, []byte(in.Content), 0o644)
}

func listFiles(ctx context.Context, _ NoArgs) ([]string, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return nil, err
	}
	listed, err := git(ctx, ws, nil, "ls-files", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	files := strings.Split(strings.TrimSuffix(listed, "\n"), "\n")
	if len(files) > maxFiles {
		more := fmt.Sprintf("… and %d more", len(files)-maxFiles)
		files = append(files[:maxFiles:maxFiles], more)
	}
	return files, nil
}

func shell(ctx context.Context, in ShellArgs) (ShellResult, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return ShellResult{}, err
	}
	result, err := ws.Shell(ctx, in.Command)
	return ShellResult{
		ExitCode: result.ExitCode,
		Stdout:   truncate(result.Stdout, maxFileBytes),
		Stderr:   truncate(result.Stderr, maxFileBytes),
	}, err
}

// snapshotTree writes the files as they are into git's object store, and leaves the
// repository's own index alone.
func snapshotTree(ctx context.Context, _ NoArgs) (string, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return "", err
	}
	return writeTree(ctx, ws)
}

func writeTree(ctx context.Context, ws *directory.Workspace) (string, error) {
	scratch, err := os.MkdirTemp("", "coder-index-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	env := []string{"GIT_INDEX_FILE=" + filepath.Join(scratch, "index")}
	if _, err := git(ctx, ws, env, "add", "--all"); err != nil {
		return "", err
	}
	tree, err := git(ctx, ws, env, "write-tree")
	return strings.TrimSpace(tree), err
}

// diff shows what has changed since a tree was written.
func diff(ctx context.Context, in DiffArgs) (string, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return "", err
	}
	tree, err := writeTree(ctx, ws)
	if err != nil {
		return "", err
	}
	changed, err := git(ctx, ws, nil, "diff", "--no-color", "--no-ext-diff", in.From, tree)
	return truncate(changed, maxDiffBytes), err
}

func git(ctx context.Context, ws *directory.Workspace, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = ws.Path()
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + fmt.Sprintf("\n… %d more bytes", len(s)-limit)
}
