package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/examples/e2b/agent"
)

// story is what the demonstration has shown.
type story struct {
	first, second, fork *finished
	pulls               []int // how many pull requests there were after each of them
	secrets             search
}

// finished is an execution that has ended, with its log.
type finished struct {
	*tine.Execution
	log     *tine.Log
	output  agent.Output
	sandbox string
	// approvals are what a person had to decide, and resting the states of the sandbox meanwhile.
	approvals []*tine.Approval
	resting   []string
}

// demonstrate lets the agent work for two turns of a session, and a fork of the first one in a
// session of its own.
func demonstrate(ctx context.Context, p *place, out io.Writer) (*story, error) {
	s := &story{}
	session := "slug-" + uuid.NewString()[:8]
	chapter := func(title string) { fmt.Fprintf(out, "\n── %s\n", title) }
	shown := func(f *finished) {
		pulls := p.world.hub.Pulls()
		s.pulls = append(s.pulls, len(pulls))
		fmt.Fprintf(out, "\n%s\nSandbox %s of session %s is %s. Pull requests: %d\n", f.output.Answer, f.sandbox, f.output.Session, p.world.state(f.sandbox), len(pulls))
		for _, pull := range pulls {
			fmt.Fprintf(out, "  #%d %q from %s at %.7s\n", pull.Number, pull.Title, pull.Branch, pull.Head)
		}
	}
	var err error

	chapter("First turn: " + agent.FixTask)
	if s.first, err = p.turn(ctx, session, agent.FixTask, out); err != nil {
		return s, err
	}
	shown(s.first)

	chapter("Second turn in the same session: " + agent.MoreTask)
	if s.second, err = p.turn(ctx, session, agent.MoreTask, out); err != nil {
		return s, err
	}
	shown(s.second)

	at := beforeFix(s.first)
	chapter(fmt.Sprintf("Fork of the first turn at event %d, before the fix, in a session of its own", at))
	if s.fork, err = p.fork(ctx, s.first, at, session+"-fork", out); err != nil {
		return s, err
	}
	shown(s.fork)

	chapter("Credentials")
	if s.secrets, err = p.searchFor(ctx, p.world.token, s.first, s.second, s.fork); err != nil {
		return s, err
	}
	fmt.Fprintln(out, s.secrets)
	return s, nil
}

func (p *place) turn(ctx context.Context, session, task string, out io.Writer) (*finished, error) {
	input, err := json.Marshal(agent.Input{Task: task})
	if err != nil {
		return nil, err
	}
	e, err := p.Create(ctx, tine.CreateRequest{Agent: agent.Name, Session: session, Input: input})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "Execution %s\n", e.ID)
	return p.follow(ctx, e.ID, p.Grant, out)
}

// fork starts a fork. Its pull request is not wanted: one is enough for a bug.
func (p *place) fork(ctx context.Context, source *finished, at int64, session string, out io.Writer) (*finished, error) {
	e, err := p.Fork(ctx, tine.ForkRequest{ExecutionID: source.ID, AtSeq: at, Session: session})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "Fork %s\n", e.ID)
	return p.follow(ctx, e.ID, p.Deny, out)
}

// verdict grants or denies an approval.
type verdict func(ctx context.Context, id string, decision tine.ApprovalDecision) (*tine.Approval, error)

// follow shows an execution's events as they happen, until it has ended, and what it asks a person
// for.
func (p *place) follow(ctx context.Context, id string, decide verdict, out io.Writer) (*finished, error) {
	f := &finished{}
	for event, err := range p.Follow(ctx, id, 0) {
		if err != nil {
			return nil, err
		}
		show(out, event)
		if event.Type == "approval.requested" {
			if err := p.ask(ctx, f, event, decide, out); err != nil {
				return nil, err
			}
		}
	}
	var err error
	if f.log, err = p.Log(ctx, id); err != nil {
		return nil, err
	}
	f.Execution, f.sandbox = f.log.Execution(), sandboxOf(f.log)
	if f.Status != tine.StatusCompleted {
		return f, fmt.Errorf("execution %s has %s: %s", id, f.Status, f.FailureReason)
	}
	return f, json.Unmarshal(f.Output, &f.output)
}

// restPatience is how long a blocked execution may take to put its sandbox to rest.
const restPatience = 30 * time.Second

// ask shows what waits for a person. Where all is local it waits until the sandbox rests, and
// then decides in the person's stead.
func (p *place) ask(ctx context.Context, f *finished, asked tine.Event, decide verdict, out io.Writer) error {
	state := "about to be paused"
	for began := time.Now(); p.world != nil; time.Sleep(20 * time.Millisecond) {
		log, err := p.Log(ctx, asked.ExecutionID)
		if err != nil {
			return err
		}
		state = p.world.state(sandboxOf(log))
		if rests(log, asked.Seq) || time.Since(began) > restPatience {
			break
		}
	}
	pending, err := p.Approvals(ctx, tine.ApprovalOptions{Execution: asked.ExecutionID, Status: tine.ApprovalPending})
	if err != nil {
		return err
	}
	for _, a := range pending {
		fmt.Fprintf(out, "\nThe execution waits for a person, and the sandbox is %s:\n  %s(%s)\nLook at the branch, and run one of\n  %stine approval grant %s\n  %stine approval deny %s\n",
			state, a.Target, a.Args, p.setting, a.ID, p.setting, a.ID)
		if p.world == nil {
			continue
		}
		decided, err := decide(ctx, a.ID, tine.ApprovalDecision{Reason: "decided by the example"})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "The example has decided in your stead: %s\n\n", decided.Status)
		f.approvals, f.resting = append(f.approvals, decided), append(f.resting, state)
	}
	return nil
}

// rests reports whether the log says, after an event, that the sandbox was put to rest.
func rests(log *tine.Log, after int64) bool {
	return slices.ContainsFunc(log.Events()[after:], func(e tine.Event) bool { return e.Type == "resource.paused" })
}

// sandboxOf is the id of an execution's sandbox.
func sandboxOf(log *tine.Log) string {
	id := ""
	for _, e := range log.Events() {
		var p struct {
			Binding struct {
				SandboxID string `json:"sandbox_id"`
			} `json:"binding"`
		}
		if json.Unmarshal(e.Payload, &p) == nil && p.Binding.SandboxID != "" {
			id = p.Binding.SandboxID
		}
	}
	return id
}

// beforeFix is the last event before the answer in which the model first edits a file: what is asked
// of it next is live in a fork.
func beforeFix(f *finished) int64 {
	turn := int64(1)
	for _, step := range f.log.Steps() {
		switch step.Target {
		case "branch":
			turn = step.ProposedSeq - 1
		case agent.WriteFile.Name():
			return turn
		}
	}
	return turn
}

// show prints an event. Of a step it shows how it ended, and what goes without saying not at all.
func show(out io.Writer, e tine.Event) {
	switch e.Type {
	case "step.proposed", "step.allowed", "step.executing":
		return
	}
	var p struct {
		Target string          `json:"target"`
		Key    string          `json:"key"`
		Cause  string          `json:"cause"`
		Error  *tine.StepError `json:"error"`
	}
	_ = json.Unmarshal(e.Payload, &p) // a payload of another shape just shows no details
	details := p.Target
	if p.Key != "" {
		details = strings.TrimSpace(p.Key + " " + p.Cause)
	}
	if p.Error != nil {
		details += ": " + p.Error.Message
	}
	fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%5d  %-28s %s", e.Seq, e.Type, details), " "))
}
