package agent

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tinerun/tine/activities"
)

// Project is a small repository with a failing test, as a txtar archive.
//
//go:embed project.txtar
var Project []byte

// What there is to do in it, turn by turn.
const (
	FixTask  = "The tests are failing. Fix the bug and open a pull request."
	MoreTask = "Also add a test for a title of punctuation only."
)

// Scripted is a model that only knows how to mend Project. It plays its part step by step, so that
// the example runs without an account.
type Scripted struct{}

// Generate answers with the next action of its part.
func (Scripted) Generate(_ context.Context, req activities.GenerateRequest, _ []activities.ToolSpec) (activities.GenerateResponse, error) {
	s := sceneOf(req.Messages)
	part := s.part()
	if s.answers >= len(part) {
		return activities.GenerateResponse{}, fmt.Errorf("the scripted model can only mend the example's own project; set LLM_BASE_URL, LLM_API_KEY and LLM_MODEL for a real one")
	}
	message := part[s.answers].message(len(req.Messages))
	finish := "stop"
	if len(message.ToolCalls) > 0 {
		finish = "tool_calls"
	}
	return activities.GenerateResponse{
		Model: "scripted", Message: message, FinishReason: finish,
		Usage: &activities.Usage{InputTokens: int64(100 * len(req.Messages)), OutputTokens: 100},
	}, nil
}

// scene is where the conversation stands.
type scene struct {
	task    string
	branch  string
	moved   bool   // to another branch, within the task
	answers int    // since the task
	last    string // what a tool or the user has said last
}

func sceneOf(messages []activities.Message) scene {
	var s scene
	for _, m := range messages {
		branch, noted := strings.CutPrefix(m.Content, branchNote)
		switch {
		case m.Role == "assistant":
			s.answers++
		case m.Role == "user" && noted:
			s.moved = s.answers > 0
			s.branch = branch
		case m.Role == "user":
			s.task, s.answers, s.moved = m.Content, 0, false
		}
		s.last = m.Content
	}
	return s
}

func (s scene) part() []action {
	switch s.task {
	case FixTask:
		return s.fix()
	case MoreTask:
		return s.more()
	default:
		return nil
	}
}

// action is one answer of the model: a tool call, or words.
type action struct {
	say  string
	tool string
	args any
}

func (a action) message(id int) activities.Message {
	m := activities.Message{Role: "assistant", Content: a.say}
	if a.tool == "" {
		return m
	}
	arguments, err := json.Marshal(a.args)
	if err != nil {
		panic(err) // the arguments are texts
	}
	m.ToolCalls = []activities.ToolCall{{ID: fmt.Sprintf("call_%d", id), Name: a.tool, Arguments: string(arguments)}}
	return m
}

func run(command string) action { return action{tool: "shell", args: ShellArgs{Command: command}} }

// push commits and pushes. It does so, too, if it was cut off on its way before: a git that was
// killed leaves its locks.
func push(subject string) action {
	return run("find .git -name '*.lock' -delete; git add --all && (git diff --cached --quiet || git commit --quiet --message '" + subject + "') && git push --quiet origin HEAD && git log --oneline -3")
}

// fix mends slug.sh. A fork, whose branch is another one from some answer on, does it its own way.
func (s scene) fix() []action {
	way, how := trFix, "I squeeze whatever is neither a letter nor a digit into one hyphen."
	if s.moved {
		way, how = sedFix, "I replace each run of anything but letters and digits by one hyphen, with sed alone."
	}
	ending := "slug.sh kept punctuation and repeated hyphens. It now joins words of letters and digits with single hyphens, and the tests pass. "
	if strings.HasPrefix(s.last, "error:") {
		ending += "There is no pull request, since I may not open one; the branch " + s.branch + " is pushed."
	} else {
		ending += "The pull request is open."
	}
	return []action{
		{say: "I will look at what there is.", tool: "shell", args: ShellArgs{Command: "ls && sh test.sh"}},
		{tool: "read_file", args: ReadArgs{Path: "slug.sh"}},
		{say: how, tool: "write_file", args: WriteArgs{Path: "slug.sh", Content: way}},
		run("sh test.sh"),
		push("Join words with single hyphens"),
		{tool: "open_pr", args: OpenPRArgs{
			Title: "Join words with single hyphens", Body: "Punctuation and repeated spaces made bad slugs.\n\n" + how, Branch: s.branch,
		}},
		{say: ending},
	}
}

func (s scene) more() []action {
	return []action{
		// A command may run again when a worker has died, so it must not add the case twice.
		run(`grep -qF "check '?!'" test.sh || sed -i.bak "s/^\[ \$failed = 0 .*/check '?!' ''\n&/" test.sh ; rm -f test.sh.bak; sh test.sh`),
		push("Test a title of punctuation only"),
		{say: "A title of punctuation only has an empty slug. test.sh has that case now, it passes, and the pull request has the commit."},
	}
}

const slugHead = `#!/bin/sh
# Prints a slug of a title: lower-case words of letters and digits, joined by single hyphens.
`

const trFix = slugHead + `printf '%s\n' "$*" | tr 'A-Z' 'a-z' | tr -cs 'a-z0-9\n' '-' | sed 's/^-//; s/-$//'
`

const sedFix = slugHead + `printf '%s\n' "$*" | tr 'A-Z' 'a-z' | sed 's/[^a-z0-9]\{1,\}/-/g; s/^-//; s/-$//'
`
