// Package script is an agent that performs the operations its input lists, one after
// another. It is how to see a rule of Tine at work, and what tests and
// benchmarks drive. It uses nothing but Tine's public API.
//
// contract.go declares what the agent can do, agent.go is the agent, and tools.go has what runs
// outside of the workflow. worker/ serves it.
package script

import (
	"encoding/json"

	"github.com/tinerun/tine/workflows"
)

// Name is the agent's name.
const Name = "script"

// WorkspaceKey is the resource that the file tools work on.
const WorkspaceKey = "workspace"

// Input lists what to do.
type Input struct {
	Ops []Op `json:"ops"`
}

// Output has one result for each operation.
type Output struct {
	Results []Result `json:"results"`
}

// Op is one operation. Which fields count depends on Op.
type Op struct {
	Op    string `json:"op"`
	Fatal bool   `json:"fatal,omitempty"` // an error ends the script

	// open
	Key          string          `json:"key,omitempty"`
	Driver       string          `json:"driver,omitempty"`
	Config       json.RawMessage `json:"config,omitempty"`
	EverySteps   *int            `json:"every_steps,omitempty"`
	OnCompletion *bool           `json:"on_completion,omitempty"`

	// tool, step and signal
	Name string          `json:"name,omitempty"`
	Args json.RawMessage `json:"args,omitempty"`

	// llm
	Model  string `json:"model,omitempty"`
	Prompt string `json:"prompt,omitempty"`

	// wait
	MS int64 `json:"ms,omitempty"`

	// parallel and repeat
	Ops   []Op `json:"ops,omitempty"`
	Times int  `json:"times,omitempty"`

	// fail
	Message string `json:"message,omitempty"`
}

// Result is an operation's value or error.
type Result struct {
	OK    json.RawMessage `json:"ok,omitempty"`
	Error *Error          `json:"error,omitempty"`
}

// Error describes how an operation failed.
type Error struct {
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Type    string `json:"type"`
}

// Arguments and results of the tools.
type (
	PathArgs struct {
		Path string `json:"path" jsonschema:"path within the workspace"`
	}
	WriteArgs struct {
		Path    string `json:"path" jsonschema:"path within the workspace"`
		Content string `json:"content"`
	}
	FailWriteArgs struct {
		Path    string `json:"path"`
		Content string `json:"content"`
		Message string `json:"message"`
	}
	WriteOtherArgs struct {
		Key     string `json:"key" jsonschema:"key of the resource to write into"`
		Path    string `json:"path"`
		Content string `json:"content"`
	}
	ShellArgs struct {
		Command string `json:"command" jsonschema:"command for sh -c"`
	}
	LineArgs struct {
		File string `json:"file" jsonschema:"host file outside of every resource"`
		Line string `json:"line"`
	}
	SleepArgs struct {
		MS int64 `json:"ms"`
	}
	NoArgs struct{}

	Written struct {
		Path string `json:"path"`
		Size int    `json:"size"`
	}
	ShellResult struct {
		ExitCode int    `json:"exit_code"`
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
	}
	FileEntry struct {
		Path   string `json:"path"`
		Mode   string `json:"mode"`
		Size   int64  `json:"size"`
		SHA256 string `json:"sha256,omitempty"`
		Link   string `json:"link,omitempty"`
	}
)

// What the agent can call.
var (
	affectsWorkspace = workflows.WithResources(WorkspaceKey)

	WriteFile  = workflows.NewTool[WriteArgs, Written]("write_file", affectsWorkspace)
	AppendFile = workflows.NewTool[WriteArgs, Written]("append_file", affectsWorkspace)
	RemoveFile = workflows.NewTool[PathArgs, NoArgs]("remove_file", affectsWorkspace)
	FailWrite  = workflows.NewTool[FailWriteArgs, Written]("fail_write", affectsWorkspace)
	ReadFile   = workflows.NewTool[PathArgs, string]("read_file")
	ListFiles  = workflows.NewTool[NoArgs, []FileEntry]("list_files")
	Shell      = workflows.NewTool[ShellArgs, ShellResult]("shell", affectsWorkspace)
	Ledger     = workflows.NewTool[LineArgs, string]("ledger", workflows.WithAtMostOnce())
	Tally      = workflows.NewTool[LineArgs, string]("tally")
	Sleep      = workflows.NewTool[SleepArgs, NoArgs]("sleep")
	WriteOther = workflows.NewTool[WriteOtherArgs, Written]("write_other")

	Random = workflows.NewStep[NoArgs, float64]("random")

	Model = workflows.NewModel("script")
)

var tools = workflows.Tools(WriteFile, AppendFile, RemoveFile, FailWrite, ReadFile, ListFiles,
	Shell, Ledger, Tally, Sleep, WriteOther)
