// Package agent is a coding agent whose tools run in an E2B sandbox. It works on a repository of
// GitHub, pushes to a branch of its session, and opens a pull request once a person approves.
//
// contract.go declares what the agent can do, agent.go is the agent, tools.go and github.go have
// what runs outside of the workflow, settings.go reads the environment, and scripted.go is a
// model for those who have none.
package agent

import "github.com/tinerun/tine/workflows"

// Name is the agent's name.
const Name = "e2b"

// Input says what to do. Where to do it is the worker's affair, and which session it belongs to
// the execution's.
type Input struct {
	Task string `json:"task"`
}

// Output is what came of it.
type Output struct {
	Answer  string `json:"answer"`
	Session string `json:"session"`
	// Branch is where the session's commits go.
	Branch string `json:"branch"`
	// PullRequest is the URL of the branch's open pull request, or empty.
	PullRequest string `json:"pull_request,omitempty"`
}

// State is what a turn leaves for the next one of its session.
type State struct {
	Messages []workflows.Message `json:"messages"`
	Branch   string              `json:"branch"`
}

// Arguments and results of the tools.
type (
	ReadArgs struct {
		Path string `json:"path" jsonschema:"path of the file, relative to the repository"`
	}
	WriteArgs struct {
		Path    string `json:"path" jsonschema:"path of the file, relative to the repository"`
		Content string `json:"content" jsonschema:"the file's whole new content"`
	}
	ShellArgs struct {
		Command string `json:"command" jsonschema:"command for bash, run in the repository"`
	}
	ShellResult struct {
		ExitCode int    `json:"exit_code"`
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
		TimedOut bool   `json:"timed_out,omitempty"`
	}
	OpenPRArgs struct {
		Title  string `json:"title"`
		Body   string `json:"body" jsonschema:"what the change does and why, as Markdown"`
		Branch string `json:"branch" jsonschema:"the branch that you have pushed"`
		// Attempt makes another attempt another call: the same one is denied while nobody knows
		// what became of it.
		Attempt int `json:"attempt,omitempty" jsonschema:"leave this out"`
	}
	PullRequest struct {
		Number int    `json:"number,omitempty"`
		URL    string `json:"url,omitempty"`
	}
	CheckoutArgs struct {
		Branch string `json:"branch"`
		// From is the branch to begin at in a new clone, if it exists there. Empty is the default one.
		From string `json:"from,omitempty"`
	}
	BranchArgs struct {
		Branch string `json:"branch"`
	}
)

// Sandbox is where the tools run.
var Sandbox = workflows.NewResource("sandbox")

// What the agent can call.
var (
	changesSandbox = workflows.WithResources(Sandbox.Key())

	Shell = workflows.NewTool[ShellArgs, ShellResult]("shell", changesSandbox,
		workflows.WithDescription("Run a shell command in the repository, such as its tests or git."))
	ReadFile = workflows.NewTool[ReadArgs, string]("read_file",
		workflows.WithDescription("Read a text file of the repository."))
	WriteFile = workflows.NewTool[WriteArgs, string]("write_file", changesSandbox,
		workflows.WithDescription("Create a file of the repository, or replace its content."))
	OpenPR = workflows.NewTool[OpenPRArgs, PullRequest]("open_pr", workflows.WithAtMostOnce(),
		workflows.WithDescription("Open a pull request from the branch that you have pushed. A person has to approve it. One that is open already follows your pushes by itself."))

	// Checkout and FindPR are the agent's own: the model is not offered them.
	Checkout = workflows.NewTool[CheckoutArgs, string]("checkout", changesSandbox)
	FindPR   = workflows.NewTool[BranchArgs, PullRequest]("find_pr")

	Model = workflows.NewModel("coder")
)

var offered = workflows.Tools(Shell, ReadFile, WriteFile, OpenPR)
