package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// payload is what events' payloads have, those of all types in one.
type payload struct {
	AgentID     string                      `json:"agent_id"`
	Session     string                      `json:"session"`
	Parent      string                      `json:"parent_execution_id"`
	ForkedFrom  string                      `json:"forked_from"`
	ForkSeq     int64                       `json:"fork_seq"`
	Restoration map[string]tine.Restoration `json:"restoration"`

	StepID    string          `json:"step_id"`
	StepType  string          `json:"step_type"`
	Target    string          `json:"target"`
	RuleID    string          `json:"rule_id"`
	Reason    string          `json:"reason"`
	Resources []string        `json:"resources"`
	Error     *tine.StepError `json:"error"`

	Approvers []string   `json:"approvers"`
	Message   string     `json:"message"`
	DecidedBy string     `json:"decided_by"`
	Identity  string     `json:"identity"`
	Rationale string     `json:"rationale"`
	ExpiresAt *time.Time `json:"expires_at"`
	Until     *time.Time `json:"until"`

	Key           string          `json:"key"`
	Driver        string          `json:"driver"`
	EverySteps    int             `json:"every_steps"`
	Binding       json.RawMessage `json:"binding"`
	CheckpointRef string          `json:"checkpoint_ref"`
	CoveredSeq    int64           `json:"covered_seq"`
	Cause         string          `json:"cause"`
}

// describer puts events into words. It remembers when steps began, for how long they took.
type describer struct {
	began map[string]time.Time
	// targets are those of the steps that approvals were asked for.
	targets map[string]string
}

func newDescriber() *describer {
	return &describer{began: map[string]time.Time{}, targets: map[string]string{}}
}

// describe says what the event is about and what there is to know of it.
func (d *describer) describe(e tine.Event) (subject, details string) {
	var p payload
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return "", compact(e.Payload)
	}
	subject = oneLine(cmp.Or(p.Target, p.Key))
	switch family, _, _ := strings.Cut(e.Type, "."); family {
	case "execution":
		details = executionDetails(e, p)
	case "step":
		details = d.stepDetails(e, p)
	case "resource":
		details = resourceDetails(e.Type, p)
	case "approval":
		subject, details = d.approvalDetails(e, p)
	default:
		details = compact(e.Payload)
	}
	return subject, oneLine(details)
}

func executionDetails(e tine.Event, p payload) string {
	switch e.Type {
	case eventlog.ExecutionCreated:
		return joined("agent "+p.AgentID, label("session", p.Session), label("to continue", p.Parent))
	case eventlog.ExecutionStarted:
		return label("continues", p.Parent)
	case eventlog.ExecutionForked:
		return joined(fmt.Sprintf("from %s at %d", p.ForkedFrom, p.ForkSeq), restored(p.Restoration))
	case eventlog.ExecutionDiverged:
		var d tine.Divergence
		if json.Unmarshal(e.Payload, &d) != nil {
			return compact(e.Payload)
		}
		return diverged(&d)
	default:
		return p.Reason
	}
}

// restored says in short what the resources of a fork start from.
func restored(restoration map[string]tine.Restoration) string {
	var uncovered []string
	for _, key := range slices.Sorted(maps.Keys(restoration)) {
		if !restoration[key].Covered {
			uncovered = append(uncovered, key)
		}
	}
	switch {
	case len(restoration) == 0:
		return ""
	case len(uncovered) == 0:
		return "all resources covered"
	default:
		return "not covered: " + strings.Join(uncovered, ", ")
	}
}

func diverged(d *tine.Divergence) string {
	got := "the handler ended"
	if d.Got != nil {
		got = "got " + d.Got.Kind + " " + d.Got.Target
	}
	return fmt.Sprintf("expected %s %s, %s; %s not asked for",
		d.Expected.Kind, d.Expected.Target, got, count(int64(d.Unused), "recorded step was", "recorded steps were"))
}

func (d *describer) stepDetails(e tine.Event, p payload) string {
	switch e.Type {
	case eventlog.StepProposed:
		return p.StepType
	case eventlog.StepExecuting:
		d.began[p.StepID] = e.OccurredAt
		return label("affects", strings.Join(p.Resources, ", "))
	case eventlog.StepRateLimited:
		return joined(label("rule", p.RuleID), p.Reason, parked(e, p))
	}
	return joined(label("rule", p.RuleID), p.Reason, stepError(p.Error), d.took(e, p))
}

// parked says how long a rate limit holds a step up, if it does not refuse it.
func parked(e tine.Event, p payload) string {
	if p.Until == nil {
		return "refused"
	}
	return "waits " + span(p.Until.Sub(e.OccurredAt))
}

// approvalDetails says what is asked of whom, or who has answered.
func (d *describer) approvalDetails(e tine.Event, p payload) (subject, details string) {
	if e.Type == eventlog.ApprovalRequested {
		d.targets[p.StepID] = p.Target
		who := "anyone"
		if len(p.Approvers) > 0 {
			who = strings.Join(p.Approvers, " or ")
		}
		expires := ""
		if p.ExpiresAt != nil {
			expires = "expires in " + span(p.ExpiresAt.Sub(e.OccurredAt).Round(time.Second))
		}
		return oneLine(p.Target), joined("of "+who, expires, p.Message)
	}
	return oneLine(d.targets[p.StepID]), joined(label("by", cmp.Or(p.DecidedBy, p.Identity)), p.Rationale)
}

// took says how long the step ran, if the event ends it.
func (d *describer) took(e tine.Event, p payload) string {
	began, ok := d.began[p.StepID]
	if !ok {
		return ""
	}
	return "in " + span(e.OccurredAt.Sub(began))
}

// stepError is an error and, where that tells more, what kind of error it is.
func stepError(err *tine.StepError) string {
	switch {
	case err == nil:
		return ""
	case err.Reason == "" || err.Reason == protocol.ReasonToolError || err.Reason == err.Message:
		return err.Message
	default:
		return err.Reason + ": " + err.Message
	}
}

func resourceDetails(typ string, p payload) string {
	switch typ {
	case eventlog.ResourceRegistered:
		return joined("driver "+p.Driver, cadence(p.EverySteps))
	case eventlog.ResourceInitialized:
		return "starts from " + cmp.Or(label("checkpoint", p.CheckpointRef), "its initial environment")
	case eventlog.ResourceBound:
		return compact(p.Binding)
	case eventlog.ResourceCheckpointed:
		return joined(fmt.Sprintf("covers from %d", p.CoveredSeq), p.Cause, p.CheckpointRef)
	default:
		return joined(p.Cause, stepError(p.Error))
	}
}

func cadence(every int) string {
	if every <= 1 {
		return "captured after every step"
	}
	return fmt.Sprintf("captured after every %d steps", every)
}

// label puts a word before text, if there is any.
func label(word, text string) string {
	if text == "" {
		return ""
	}
	return word + " " + text
}

// joined joins the texts that there are.
func joined(texts ...string) string {
	return strings.Join(nonEmpty(texts), ", ")
}

// eventStyle is the colour of an event's type.
func eventStyle(typ string) style {
	_, what, _ := strings.Cut(typ, ".")
	switch what {
	case "diverged", "checkpoint_failed":
		return red
	default:
		return statusStyle(what)
	}
}

func nonEmpty(texts []string) []string {
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}
