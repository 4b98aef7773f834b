// Package agent is a coding agent: a model in a loop with tools that read, write, list and run
// commands in a workspace made from a git repository.
//
// contract.go declares what the agent can do, agent.go is the agent, tools.go has what
// runs outside of the workflow, and scripted.go a model for those who have none.
package agent

import "github.com/tinerun/tine/workflows"

// Name is the agent's name.
const Name = "coder"

// Input says what to do, and where.
type Input struct {
	Task string `json:"task"`
	// Repository is the directory of a git repository on the worker's host. It is
	// copied, and never changed.
	Repository string `json:"repository"`
	// Instruction is more to heed. It is read anew before each answer of the model,
	// so a fork can change it from the fork point on.
	Instruction string `json:"instruction,omitempty"`
}

// Output is what came of it.
type Output struct {
	Answer string `json:"answer"`
	// Diff is what the agent changed, as git shows it.
	Diff         string `json:"diff"`
	Turns        int    `json:"turns"`
	InputTokens  int64  `json:"input_tokens"`
	OutputTokens int64  `json:"output_tokens"`
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
		Command string `json:"command" jsonschema:"command for sh -c, run in the repository"`
	}
	DiffArgs struct {
		From string `json:"from"`
	}
	NoArgs struct{}

	ShellResult struct {
		ExitCode int    `json:"exit_code"`
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
	}
)

// Workspace holds the agent's copy of the repository.
var Workspace = workflows.NewResource("workspace")

// What the agent can call.
var (
	changesFiles = workflows.WithResources(Workspace.Key())

	ReadFile = workflows.NewTool[ReadArgs, string]("read_file",
		workflows.WithDescription("Read a text file of the repository."))
	WriteFile = workflows.NewTool[WriteArgs, string]("write_file", changesFiles,
		workflows.WithDescription("Create a file of the repository, or replace its content."))
	ListFiles = workflows.NewTool[NoArgs, []string]("list_files",
		workflows.WithDescription("List the files of the repository."))
	Shell = workflows.NewTool[ShellArgs, ShellResult]("shell", changesFiles,
		workflows.WithDescription("Run a shell command in the repository, such as its tests."))

	// SnapshotTree and Diff are the agent's own: the model is not offered them.
	SnapshotTree = workflows.NewTool[NoArgs, string]("snapshot_tree", changesFiles)
	Diff         = workflows.NewTool[DiffArgs, string]("diff", changesFiles)

	Model = workflows.NewModel("coder")
)

var offered = workflows.Tools(ReadFile, WriteFile, ListFiles, Shell)
