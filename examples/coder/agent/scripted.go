package agent

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/openai"
)

// Project is a small Go module with a failing test, as a txtar archive.
//
//go:embed project.txtar
var Project []byte

// ProjectTask is what there is to do in it.
const ProjectTask = "The test of this Go module fails. Find out why and fix it."

// ProjectInstruction is what a fork may be told instead.
const ProjectInstruction = "Do it in a single pass over the runes, without splitting the title into words, and add a test for the empty title."

// Scripted is a model that only knows how to mend Project. In another repository it just
// writes a note. It plays its part step by step and heeds one instruction, so that the
// example runs without an account.
type Scripted struct{}

// Generate answers with the next action of its part.
func (Scripted) Generate(_ context.Context, req activities.GenerateRequest, _ []activities.ToolSpec) (activities.GenerateResponse, error) {
	part := partFor(req.Messages)
	turn := 0
	for _, m := range req.Messages {
		if m.Role == "assistant" {
			turn++
		}
	}
	if turn >= len(part) {
		return activities.GenerateResponse{}, fmt.Errorf("the scripted model has no turn %d; set LLM_BASE_URL, LLM_API_KEY and LLM_MODEL for a real one", turn+1)
	}
	message := part[turn].message(turn)
	return activities.GenerateResponse{
		Model:        "scripted",
		Message:      message,
		FinishReason: finishReason(message),
		Usage:        usage(req.Messages, message),
	}, nil
}

// partFor is the part to play for what the user has said: the task, and maybe an instruction.
func partFor(messages []activities.Message) []action {
	var said []string
	for _, m := range messages {
		if m.Role == "user" {
			said = append(said, m.Content)
		}
	}
	switch {
	case len(said) == 0 || said[0] != ProjectTask:
		return note(said)
	case len(said) > 1:
		return mendInOnePass
	default:
		return mend
	}
}

// note is the part in a repository that the model knows nothing of.
func note(said []string) []action {
	return []action{
		{say: "I am a scripted model and cannot do this task. I will look around and leave a note.", tool: "list_files", args: NoArgs{}},
		{tool: "shell", args: ShellArgs{Command: "git log --oneline -5"}},
		{tool: "write_file", args: WriteArgs{Path: "TINE-NOTE.md", Content: strings.Join(said, "\n\n") + "\n"}},
		{say: "I left the task in TINE-NOTE.md. Set LLM_BASE_URL, LLM_API_KEY and LLM_MODEL to have it done."},
	}
}

// action is one turn of the scripted model: a tool call, or words.
type action struct {
	say  string
	tool string
	args any
}

func (a action) message(turn int) activities.Message {
	m := activities.Message{Role: "assistant", Content: a.say}
	if a.tool == "" {
		return m
	}
	arguments, err := json.Marshal(a.args)
	if err != nil {
		panic(err) // the arguments are constants of this file
	}
	m.ToolCalls = []activities.ToolCall{{ID: fmt.Sprintf("call_%d", turn+1), Name: a.tool, Arguments: string(arguments)}}
	return m
}

func finishReason(m activities.Message) string {
	if len(m.ToolCalls) > 0 {
		return "tool_calls"
	}
	return "stop"
}

// usage counts a token for every four bytes, as a rule of thumb goes.
func usage(prompt []activities.Message, answer activities.Message) *activities.Usage {
	size := func(m activities.Message) int {
		n := len(m.Content)
		for _, call := range m.ToolCalls {
			n += len(call.Name) + len(call.Arguments)
		}
		return n
	}
	in := 0
	for _, m := range prompt {
		in += size(m)
	}
	return &activities.Usage{InputTokens: int64(in / 4), OutputTokens: int64(size(answer)/4) + 1}
}

var look = []action{
	{say: "I will look at what there is.", tool: "list_files", args: NoArgs{}},
	{tool: "read_file", args: ReadArgs{Path: "slug.go"}},
	{tool: "shell", args: ShellArgs{Command: "go test ./..."}},
}

var mend = append(look[:len(look):len(look)],
	action{say: "Only spaces are replaced, one by one. I will split the title into words of letters and digits.",
		tool: "write_file", args: WriteArgs{Path: "slug.go", Content: wordsFix}},
	action{tool: "shell", args: ShellArgs{Command: "go test ./..."}},
	action{say: "Make replaced each space by a hyphen and kept everything else. It now splits the title at whatever is neither a letter nor a digit and joins the words with single hyphens. The tests pass."},
)

var mendInOnePass = append(look[:len(look):len(look)],
	action{say: "I will build the slug in one pass over the runes.",
		tool: "write_file", args: WriteArgs{Path: "slug.go", Content: onePassFix}},
	action{say: "And a test for the empty title.",
		tool: "shell", args: ShellArgs{Command: `sed -i 's|^\t\t"Hello World":|\t\t"":                      "",\n&|' slug_test.go && gofmt -l . && go test ./...`}},
	action{say: "Make now builds the slug in a single pass: letters and digits are kept, and each run of anything else becomes one hyphen between words. I added the empty title to the tests, which pass."},
)

var wordsFix = code(`
// Package slug makes URL-friendly names from titles.
package slug

import (
	"strings"
	"unicode"
)

// Make turns a title into a slug: lower-case words of letters and digits, joined
// by single hyphens.
func Make(title string) string {
	words := strings.FieldsFunc(strings.ToLower(title), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	return strings.Join(words, "-")
}
`)

var onePassFix = code(`
// Package slug makes URL-friendly names from titles.
package slug

import (
	"strings"
	"unicode"
)

// Make turns a title into a slug: lower-case words of letters and digits, joined
// by single hyphens.
func Make(title string) string {
	var b strings.Builder
	gap := false
	for _, r := range title {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			gap = b.Len() > 0
			continue
		}
		if gap {
			b.WriteByte('-')
			gap = false
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
`)

func code(s string) string { return strings.TrimPrefix(s, "\n") }

// PickModel is the endpoint that LLM_BASE_URL, LLM_API_KEY and LLM_MODEL name, or else the
// scripted model. It says in words which.
func PickModel() (model activities.Model, described string, err error) {
	real, ok, err := openai.FromEnv()
	if err != nil {
		return nil, "", err
	}
	if !ok {
		return Scripted{}, "No LLM_BASE_URL, LLM_API_KEY and LLM_MODEL are set: a built-in SCRIPTED model plays the agent's part. It can mend the example's own project, and nothing else.", nil
	}
	return real, "The model is that of LLM_BASE_URL and LLM_MODEL.", nil
}
