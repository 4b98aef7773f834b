package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/workflows"
	"github.com/tinerun/tine/workflows/loop"
)

// maxTurns bounds the model's answers. A model that has not finished by then goes in circles.
const maxTurns = 40

const systemPrompt = `You are a careful software engineer. Your tools work in a sandbox that holds a clone of a git repository.
Look at the code before you change it. Run the tests before and after a change.
Commit to the branch that you are told, and push it with: git push origin HEAD
If you are asked for a pull request, open it when you have pushed. When the task is done, answer with one short paragraph that says what you changed and why.`

// Coder works on the task until the model asks for no more tools. It continues the conversation,
// the sandbox and the branch of the session's last turn.
func Coder(ctx workflow.Context, in Input) (Output, error) {
	if in.Task == "" {
		return Output{}, temporal.NewNonRetryableApplicationError("a task is required", "e2b.Input", nil)
	}
	before, _, err := workflows.Previous[State](ctx)
	if err != nil {
		return Output{}, err
	}
	err = Sandbox.Open(ctx, workflows.ResourceOptions{
		Driver: "e2b",
		// Nothing goes on in the sandbox between the steps that say they change it.
		Config: map[string]any{"coverage_reuse": true},
	})
	if err != nil {
		return Output{}, err
	}
	w := &work{branch: before.Branch}
	result, err := loop.Run(ctx, loop.Options{
		Model:    Model,
		Tools:    offered,
		System:   systemPrompt,
		Messages: append(before.Messages, workflows.Message{Role: workflows.RoleUser, Content: in.Task}),
		MaxSteps: maxTurns,
		Before:   w.switchBranch,
		OnError:  w.settle,
	})
	if err != nil {
		return Output{}, err
	}
	if result.StopReason != loop.StopDone {
		return Output{}, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("the model was not done: %s after %d turns", result.StopReason, result.Steps), "e2b.NotDone", nil)
	}
	pr, err := FindPR.Call(ctx, BranchArgs{Branch: w.branch})
	if err != nil {
		return Output{}, err
	}
	out := Output{Answer: result.Output, Session: workflows.SessionLabel(ctx), Branch: w.branch, PullRequest: pr.URL}
	return out, workflows.SetState(ctx, State{Messages: newest(result.Messages), Branch: w.branch})
}

// work is what the turn is about.
type work struct {
	branch string
}

// switchBranch has the sandbox on the session's branch before the model answers. The branch is
// recorded each time, so a fork follows its source's up to the fork point and then takes that of
// its own session, with all that is in the sandbox. Fork an execution before an answer: tools that
// the answer before the fork point has asked for still run on the source's branch.
func (w *work) switchBranch(ctx workflow.Context) ([]workflows.Message, error) {
	branch, err := workflows.Record(ctx, "branch", BranchOf(workflows.SessionLabel(ctx)))
	if err != nil || branch == w.branch {
		return nil, err
	}
	if _, err := Checkout.Call(ctx, CheckoutArgs{Branch: branch, From: w.branch}); err != nil {
		return nil, err
	}
	w.branch = branch
	return []workflows.Message{{Role: workflows.RoleUser, Content: branchNote + branch}}, nil
}

// branchNote is what the model is told of its branch.
const branchNote = "The repository is checked out on your branch "

// settle finds out what became of a pull request when nobody saw how opening it ended, such as when
// the worker died. If there is none, it is asked for again, and so is a person's approval.
func (w *work) settle(ctx workflow.Context, call workflows.ToolCall, err error) (json.RawMessage, error) {
	if call.Name != OpenPR.Name() {
		return nil, err
	}
	args := openPRArgs(call)
	for workflows.IsIndeterminate(err) {
		pr, findErr := FindPR.Call(ctx, BranchArgs{Branch: w.branch})
		if findErr != nil {
			return nil, findErr
		}
		err = nil
		if pr.URL == "" {
			args.Attempt++
			pr, err = OpenPR.Call(ctx, args)
		}
		if err == nil {
			return resultOf(pr), nil
		}
	}
	return nil, err
}

// openPRArgs are those of a call that has run, so they fit.
//
//workflowcheck:ignore encoding/json is deterministic, but works by reflection
func openPRArgs(call workflows.ToolCall) OpenPRArgs {
	var args OpenPRArgs
	_ = json.Unmarshal([]byte(call.Arguments), &args)
	args.Attempt = max(args.Attempt, 1)
	return args
}

//workflowcheck:ignore encoding/json is deterministic, but works by reflection
func resultOf(pr PullRequest) json.RawMessage {
	raw, _ := json.Marshal(pr)
	return raw
}

// branchPrefix is before the names of all branches that the agent pushes.
const branchPrefix = "tine/"

// BranchOf is the branch of a session. What git might not take in a name is replaced, and a hash
// keeps such sessions apart.
func BranchOf(session string) string {
	name := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, session)
	const longest = 64
	if name == session && len(name) <= longest {
		return branchPrefix + name
	}
	sum := sha256.Sum256([]byte(session))
	return branchPrefix + name[:min(len(name), longest)] + "-" + hex.EncodeToString(sum[:4])
}

// maxState is how many bytes of a conversation a turn leaves to the next one: more would not fit
// into a model's context for long.
const maxState = 256 << 10

// newest leaves out the oldest turns of a conversation that has become too long. Of a single turn it
// leaves what was asked and answered.
func newest(messages []workflows.Message) []workflows.Message {
	for size(messages) > maxState {
		next := 1
		for next < len(messages) && messages[next].Role != workflows.RoleUser {
			next++
		}
		if next == len(messages) {
			return []workflows.Message{messages[0], messages[len(messages)-1]}
		}
		messages = messages[next:]
	}
	return messages
}

func size(messages []workflows.Message) int {
	n := 0
	for _, m := range messages {
		n += len(m.Content)
		for _, call := range m.ToolCalls {
			n += len(call.Arguments)
		}
	}
	return n
}
