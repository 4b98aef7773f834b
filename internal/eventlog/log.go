package eventlog

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// Log is what a history says of an execution. Only a [Projector] makes one.
type Log struct {
	ExecutionID string
	RunID       string
	AgentID     string
	// TaskQueue is the task queue that the execution was started on.
	TaskQueue string
	Status    string // one of protocol's Status constants
	Input     json.RawMessage
	Output    json.RawMessage // nil unless the execution has completed
	// FailureReason is set for failed executions only.
	FailureReason string
	Session       string
	// Waiting says that a worker has the execution, and that its turn in the session has yet to
	// come.
	Waiting bool
	Parent  string // the execution this one continues
	// Previous is what the parent has left, or nil as long as that is not loaded. State is what
	// this execution leaves beside its output, or nil.
	Previous *protocol.Previous
	State    json.RawMessage
	Fork     *protocol.Fork // nil unless the execution is a fork
	// Runs are the runs of the execution up to this one, oldest first. Loading names the one
	// before as long as this one has yet to load what that has left.
	Runs    []string
	Loading string
	// Policy is the policy that the execution has brought with it, or nil. PolicyDigest names
	// the one that the worker had for the agent; Unrestricted says that it had none.
	Policy       *protocol.PolicyBundle
	PolicyDigest string
	Unrestricted bool
	CreatedAt    time.Time
	ClosedAt     time.Time // zero while the execution is open
	// HistoryEvents counts the history events that the log is read from.
	HistoryEvents int64
	// Ignored counts the history events that could not be understood: types that are
	// newer than this package, and local activities of Tine that failed.
	Ignored int64

	Events      []Event
	Steps       []*Step              // in the order they were proposed
	Approvals   []*protocol.Approval // in the order they were requested
	Resources   []*Resource          // in the order they were registered
	Checkpoints []Checkpoint         // in the order of their resource.checkpointed events
	Divergence  *protocol.Divergence

	// requests has the arguments that are recorded by what is new in them.
	requests map[*Step]requestOnBase
	// subjects says what each of Events is about.
	subjects []subject
}

// requestOnBase is how a request to a model is recorded: the messages of an earlier step, and what is
// new.
type requestOnBase struct {
	base *protocol.MessagesBase
	rest json.RawMessage
}

// subject is what an event is about: a step, a resource, or neither.
type subject struct {
	step     *Step
	resource *Resource
	// decision is that of a step.awaiting_approval event: the step has its final one.
	decision *protocol.Decision
	// refused is the rate limit's refusal of a step.rate_limited event.
	refused *protocol.Limited
	// ref is the checkpoint that a resource.initialized event names.
	ref string
}

// LatestSeq is the seq of the last event, or 0 when there is none.
func (l *Log) LatestSeq() int64 { return int64(len(l.Events)) }

// Step is the step with the id, or nil.
func (l *Log) Step(id string) *Step {
	i := slices.IndexFunc(l.Steps, func(s *Step) bool { return s.StepID == id })
	if i < 0 {
		return nil
	}
	return l.Steps[i]
}

// Resource is the resource registered under key, or nil.
func (l *Log) Resource(key string) *Resource {
	i := slices.IndexFunc(l.Resources, func(r *Resource) bool { return r.Key == key })
	if i < 0 {
		return nil
	}
	return l.Resources[i]
}

// PendingApprovals are the approvals that nobody has decided yet.
func (l *Log) PendingApprovals() []*protocol.Approval {
	var pending []*protocol.Approval
	for _, a := range l.Approvals {
		if a.Status == protocol.ApprovalPending {
			pending = append(pending, a)
		}
	}
	return pending
}

// affects says whether a step of this declaration may change the resource. Model
// calls change nothing, whatever they declare.
func (s *Step) affects(key string) bool {
	return (s.Kind == protocol.KindTool || s.Kind == protocol.KindLocal) && slices.Contains(s.Resources, key)
}

func (s *Step) settled() bool { return s.SettledSeq != 0 }

// refused says that a rate limit has turned the step away. It is neither open nor
// settled; the handler may ask for it again.
func (s *Step) refused() bool { return s.Status == StepStatusLimited && s.ParkedUntil == nil }

// decision is the latest decision on the step.
func (s *Step) decision() protocol.Decision {
	return protocol.Decision{
		Decision:     s.Decision,
		RuleID:       s.RuleID,
		Reason:       s.Reason,
		PolicyDigest: s.PolicyDigest,
	}
}
