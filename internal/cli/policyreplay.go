package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy/policytest"
)

// timeSpan is a flag like 12h or 7d.
type timeSpan time.Duration

func (s *timeSpan) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

func (s *timeSpan) Type() string { return "DURATION" }

func (s *timeSpan) Set(value string) error {
	span, err := time.ParseDuration(value)
	if days, ok := strings.CutSuffix(value, "d"); ok {
		var n int
		n, err = strconv.Atoi(days)
		span = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || span <= 0 {
		return errors.New("must be a duration like 90m, 12h or 7d")
	}
	*s = timeSpan(span)
	return nil
}

// policyReplayDocument is the JSON of a policy's differences to past executions.
type policyReplayDocument struct {
	// Executions is how many were read.
	Executions int `json:"executions"`
	policytest.Comparison
}

func runPolicyReplay(ctx context.Context, opts *policyTestOptions, loaded *loadedPolicies) error {
	if opts.since > 0 && loaded.unrestricted(opts.agent) {
		return noPolicy(loaded.directory, opts.agent)
	}
	c, ids, err := opts.replayed(ctx)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return fmt.Errorf("agent %s has no executions of the last %s", opts.agent, span(time.Duration(opts.since)))
	}
	document := policyReplayDocument{Comparison: policytest.Comparison{
		SkippedBy: map[policytest.Reason]int{}, Differences: []policytest.Difference{},
	}}
	for _, id := range ids {
		log, err := c.Log(ctx, id)
		var gone *tine.NotFoundError
		if errors.As(err, &gone) && opts.since > 0 {
			continue // deleted since it was listed
		}
		if err != nil {
			return err
		}
		if agent := log.Execution().AgentID; loaded.unrestricted(agent) {
			return noPolicy(loaded.directory, agent)
		}
		steps, err := recordedSteps(id, log)
		if err != nil {
			return err
		}
		compared, err := policytest.Replay(ctx, loaded.engine, steps)
		if err != nil {
			return err
		}
		document.Executions++
		document.Add(compared)
	}
	if opts.f.json() {
		if err := writeDocument(opts.f.out, document); err != nil {
			return err
		}
	} else {
		printReplay(opts.f, document)
		if opts.since > 0 && len(ids) == opts.limit {
			fmt.Fprintln(opts.f.out, opts.f.screen().paint(faint, fmt.Sprintf("the newest %d; --limit reads more", len(ids))))
		}
	}
	if len(document.Differences) == 0 {
		return nil
	}
	return failWith(opts.f, "policy_differs", document.summary(), "")
}

// replayed gives the ids of the executions to read.
func (o *policyTestOptions) replayed(ctx context.Context) (executions, []string, error) {
	if o.execution != "" {
		c, id, err := o.f.resolve(ctx, o.execution)
		return c, []string{id}, err
	}
	c, err := o.f.client(ctx)
	if err != nil {
		return nil, nil, err
	}
	listed, err := c.List(ctx, tine.ListOptions{Agent: o.agent, Limit: o.limit})
	if err != nil {
		return nil, nil, err
	}
	var ids []string
	oldest := o.f.now().Add(-time.Duration(o.since))
	for _, e := range listed {
		if !e.CreatedAt.Before(oldest) {
			ids = append(ids, e.ID)
		}
	}
	return c, ids, nil
}

// firstDecision is the payload of an event that decides a step.
type firstDecision struct {
	StepID   string `json:"step_id"`
	RuleID   string `json:"rule_id"`
	Reason   string `json:"reason"`
	decision string
}

// decisionOf maps the events that decide a step to what they decide.
var decisionOf = map[string]string{
	eventlog.StepAllowed:          protocol.Allow,
	eventlog.StepDenied:           protocol.Deny,
	eventlog.StepAwaitingApproval: protocol.RequireApproval,
}

// recordedSteps are the steps of an execution as they were first decided. A step itself
// has what became of its decision, such as what a person approved.
func recordedSteps(id string, log executionLog) ([]policytest.Step, error) {
	about := log.Execution()
	ownPolicy := about.Policy != nil && about.Policy.Source == "fork"
	first := map[string]firstDecision{}
	events := log.Events()
	for _, e := range events {
		decision, decides := decisionOf[e.Type]
		if !decides {
			continue
		}
		d := firstDecision{decision: decision}
		if err := json.Unmarshal(e.Payload, &d); err != nil {
			return nil, fmt.Errorf("event %d of execution %s: %w", e.Seq, id, err)
		}
		if _, decided := first[d.StepID]; !decided {
			first[d.StepID] = d
		}
	}
	var steps []policytest.Step
	for _, s := range log.Steps() {
		d, decided := first[s.StepID]
		if !decided { // but perhaps refused by a rate limit
			d.RuleID, d.Reason = s.RuleID, s.Reason
		}
		steps = append(steps, policytest.Step{
			ExecutionID: id, AgentID: about.AgentID, Session: about.Session, ForkedFrom: about.ForkedFrom,
			Seq: s.ProposedSeq, Time: events[s.ProposedSeq-1].OccurredAt,
			StepID: s.StepID, Kind: s.Kind, Target: s.Target, Args: s.Args, Idempotency: s.Idempotency, Resources: s.Resources,
			Copied: s.Replayed, ForkPolicy: ownPolicy,
			Decision: d.decision, RuleID: d.RuleID, Reason: d.Reason,
		})
	}
	return steps, nil
}

// leftOut says in words why steps are not compared.
var leftOut = []struct {
	reason policytest.Reason
	words  string
}{
	{policytest.Copied, "copied by a fork"},
	{policytest.ForkPolicy, "decided by a fork's own policy"},
	{policytest.Guard, "held back by a fork's guard"},
	{policytest.Limit, "refused by a limit"},
	{policytest.Retry, "refused as a retry"},
	{policytest.PolicyFailed, "denied since the policy failed"},
	{policytest.Undecided, "not decided"},
}

func (d policyReplayDocument) summary() string {
	summary := fmt.Sprintf("%s among %s in %s", count(int64(len(d.Differences)), "difference", "differences"),
		count(int64(d.Compared), "compared step", "compared steps"), count(int64(d.Executions), "execution", "executions"))
	if d.Skipped == 0 {
		return summary
	}
	var why []string
	for _, known := range leftOut {
		if n := d.SkippedBy[known.reason]; n > 0 {
			why = append(why, fmt.Sprintf("%s %s", grouped(int64(n)), known.words))
		}
	}
	return summary + "; left out: " + strings.Join(why, ", ")
}

func printReplay(f *factory, d policyReplayDocument) {
	if len(d.Differences) > 0 {
		t := table{screen: f.screen(), columns: []column{
			{title: "EXECUTION"}, {title: "SEQ", right: true}, {title: "KIND"}, {title: "TARGET", shrinks: true}, {title: "RECORDED"}, {title: "NOW"},
		}}
		for _, diff := range d.Differences {
			row := t.add(text(t.screen.id(diff.ExecutionID)), text(strconv.FormatInt(diff.Seq, 10)), text(diff.Kind), text(oneLine(diff.Target)),
				text(diff.RecordedDecision), text(diff.Decision))
			rules := fmt.Sprintf("by %s, now by %s", oneLine(diff.RecordedRuleID), oneLine(diff.RuleID))
			row.below = cell{joined(rules, oneLine(diff.Reason), compact(diff.Args)), faint}
		}
		t.write(f.out)
	}
	fmt.Fprintln(f.out, d.summary())
}
