package script

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
)

// Items is everything a worker needs to serve the agent.
func Items(driver *directory.Driver, model activities.Model) []worker.Item {
	return []worker.Item{
		worker.Agent(Name, Script),
		worker.Tool(WriteFile, writeFile),
		worker.Tool(AppendFile, appendFile),
		worker.Tool(RemoveFile, removeFile),
		worker.Tool(FailWrite, failWrite),
		worker.Tool(ReadFile, readFile),
		worker.Tool(ListFiles, listFiles),
		worker.Tool(Shell, shell),
		worker.Tool(Ledger, appendLine),
		worker.Tool(Tally, appendLine),
		worker.Tool(Sleep, sleep),
		worker.Tool(WriteOther, writeOther),
		worker.Step(Random, random),
		worker.Model(Model, model),
		worker.Driver(driver),
	}
}

func workspace(ctx context.Context) (*directory.Workspace, error) {
	return activities.Resource[*directory.Workspace](ctx, WorkspaceKey)
}

func writeFile(ctx context.Context, in WriteArgs) (Written, error) {
	return writeInto(ctx, WorkspaceKey, in.Path, in.Content)
}

func writeOther(ctx context.Context, in WriteOtherArgs) (Written, error) {
	return writeInto(ctx, in.Key, in.Path, in.Content)
}

func writeInto(ctx context.Context, key, path, content string) (Written, error) {
	ws, err := activities.Resource[*directory.Workspace](ctx, key)
	if err != nil {
		return Written{}, err
	}
	return Written{Path: path, Size: len(content)}, ws.WriteFile(path, []byte(content), 0o644)
}

func appendFile(ctx context.Context, in WriteArgs) (Written, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return Written{}, err
	}
	return Written{Path: in.Path, Size: len(in.Content)}, ws.AppendFile(in.Path, []byte(in.Content), 0o644)
}

func removeFile(ctx context.Context, in PathArgs) (NoArgs, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return NoArgs{}, err
	}
	return NoArgs{}, ws.Remove(in.Path)
}

func failWrite(ctx context.Context, in FailWriteArgs) (Written, error) {
	written, err := writeInto(ctx, WorkspaceKey, in.Path, in.Content)
	if err != nil {
		return written, err
	}
	return written, errors.New(in.Message)
}

func readFile(ctx context.Context, in PathArgs) (string, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return "", err
	}
	content, err := ws.ReadFile(in.Path)
	return string(content), err
}

func listFiles(ctx context.Context, _ NoArgs) ([]FileEntry, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := ws.List()
	if err != nil {
		return nil, err
	}
	files := make([]FileEntry, 0, len(entries))
	for _, e := range entries {
		files = append(files, FileEntry(e))
	}
	return files, nil
}

func shell(ctx context.Context, in ShellArgs) (ShellResult, error) {
	ws, err := workspace(ctx)
	if err != nil {
		return ShellResult{}, err
	}
	result, err := ws.Shell(ctx, in.Command)
	return ShellResult(result), err
}

// appendLine appends to a file outside of every resource, so that real runs can be counted.
func appendLine(_ context.Context, in LineArgs) (string, error) {
	f, err := os.OpenFile(in.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(in.Line + "\n")
	return in.Line, errors.Join(err, f.Close())
}

func sleep(ctx context.Context, in SleepArgs) (NoArgs, error) {
	select {
	case <-time.After(time.Duration(in.MS) * time.Millisecond):
		return NoArgs{}, nil
	case <-ctx.Done():
		return NoArgs{}, ctx.Err()
	}
}

func random(context.Context, NoArgs) (float64, error) { return rand.Float64(), nil }

// Echo is a model that answers with the last message.
type Echo struct{}

// Generate answers. It counts a token a word.
func (Echo) Generate(_ context.Context, req activities.GenerateRequest, _ []activities.ToolSpec) (activities.GenerateResponse, error) {
	if len(req.Messages) == 0 {
		return activities.GenerateResponse{}, fmt.Errorf("the request has no messages")
	}
	answer := "echo: " + req.Messages[len(req.Messages)-1].Content
	var prompt int
	for _, m := range req.Messages {
		prompt += len(strings.Fields(m.Content))
	}
	return activities.GenerateResponse{
		Model:        req.Model,
		Message:      activities.Message{Role: "assistant", Content: answer},
		FinishReason: "stop",
		Usage:        &activities.Usage{InputTokens: int64(prompt), OutputTokens: int64(len(strings.Fields(answer)))},
	}, nil
}
