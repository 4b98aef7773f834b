//go:build linux

package directory_test

import (
	"context"
	"fmt"
	"os"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/directory"
)

// A fork starts from a checkpoint, whatever its source does later.
func Example() {
	if err := forkWorkspace(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// main.go -rw-r--r-- 12
	// package fix
	// package main
}

func forkWorkspace(ctx context.Context) error {
	root, err := os.MkdirTemp("", "tine-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	driver, err := directory.New(directory.Options{Root: root})
	if err != nil {
		return err
	}
	source, _, err := driver.Create(ctx, resources.CreateRequest{
		Owner: resources.Owner{ExecutionID: "source", RunID: "run-1", Key: "workspace"},
	})
	if err != nil {
		return err
	}
	if err := source.WriteFile("main.go", []byte("package main"), 0o644); err != nil {
		return err
	}
	ref, err := driver.Checkpoint(ctx, source)
	if err != nil {
		return err
	}
	if err := source.WriteFile("main.go", []byte("package fix"), 0o644); err != nil {
		return err
	}

	fork, _, err := driver.Create(ctx, resources.CreateRequest{
		Owner:      resources.Owner{ExecutionID: "fork", RunID: "run-2", Key: "workspace"},
		Checkpoint: ref,
	})
	if err != nil {
		return err
	}
	entries, err := fork.List()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		fmt.Println(entry.Path, entry.Mode, entry.Size)
	}
	for _, w := range []*directory.Workspace{source, fork} {
		content, err := w.ReadFile("main.go")
		if err != nil {
			return err
		}
		fmt.Println(string(content))
	}
	return nil
}
