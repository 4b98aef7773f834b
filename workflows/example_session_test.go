package workflows_test

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

// Conversation is what a turn of a chat leaves for the next one.
type Conversation struct {
	Lines []string `json:"lines"`
}

// Chat answers with all that its session has said so far.
func Chat(ctx workflow.Context, line string) (string, error) {
	talk, continues, err := workflows.Previous[Conversation](ctx)
	if err != nil {
		return "", err
	}
	talk.Lines = append(talk.Lines, line)
	if err := workflows.SetState(ctx, talk); err != nil {
		return "", err
	}
	if !continues {
		return "a new conversation: " + line, nil
	}
	return fmt.Sprintf("%d lines so far", len(talk.Lines)), nil
}

func ExampleSetState() {
	fmt.Println(run("chat", "hello", worker.Agent("chat", Chat)))
	// Output: "a new conversation: hello"
}
