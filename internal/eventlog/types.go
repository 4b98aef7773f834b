package eventlog

import (
	"encoding/json"
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// Types of events: a closed set. docs/events.md describes each one's payload.
const (
	ExecutionCreated   = "execution.created"
	ExecutionForked    = "execution.forked"
	ExecutionStarted   = "execution.started"
	ExecutionBlocked   = "execution.blocked"
	ExecutionResumed   = "execution.resumed"
	ExecutionContinued = "execution.continued"
	ExecutionDiverged  = "execution.diverged"
	ExecutionCompleted = "execution.completed"
	ExecutionFailed    = "execution.failed"
	ExecutionCancelled = "execution.cancelled"

	StepProposed         = "step.proposed"
	StepAllowed          = "step.allowed"
	StepDenied           = "step.denied"
	StepAwaitingApproval = "step.awaiting_approval"
	StepRateLimited      = "step.rate_limited"
	StepExecuting        = "step.executing"
	StepSucceeded        = "step.succeeded"
	StepFailed           = "step.failed"
	StepCancelled        = "step.cancelled"

	ApprovalRequested = "approval.requested"
	ApprovalGranted   = "approval.granted"
	ApprovalDenied    = "approval.denied"
	ApprovalExpired   = "approval.expired"

	ResourceRegistered       = "resource.registered"
	ResourceInitialized      = "resource.initialized"
	ResourceBound            = "resource.bound"
	ResourceCheckpointed     = "resource.checkpointed"
	ResourceCheckpointFailed = "resource.checkpoint_failed"
	ResourcePaused           = "resource.paused"
)

// Event is one entry of an execution's log.
type Event struct {
	ExecutionID string `json:"execution_id"`
	// Seq counts the execution's events from 1.
	Seq        int64           `json:"event_seq"`
	Type       string          `json:"type"`
	Payload    json.RawMessage `json:"payload"`
	OccurredAt time.Time       `json:"occurred_at"`
	RunID      string          `json:"run_id"`
	// HistoryEventID is the event of Temporal's history that this one is read from.
	HistoryEventID int64 `json:"history_event_id"`
}

// Statuses of a step.
const (
	StepStatusProposed  = "proposed" // decided, not yet begun
	StepStatusExecuting = "executing"
	StepStatusSucceeded = "succeeded"
	StepStatusFailed    = "failed"
	StepStatusDenied    = "denied"
	StepStatusCancelled = "cancelled"
	StepStatusAwaiting  = "awaiting_approval"
	StepStatusLimited   = "rate_limited" // parked, or refused for now
)

// Step is one recorded effect with its arguments and outcome.
type Step struct {
	StepID       string          `json:"step_id"`
	Kind         string          `json:"kind"`
	Target       string          `json:"target"`
	Args         json.RawMessage `json:"args"`
	ArgsHash     string          `json:"args_hash"`
	Occurrence   int             `json:"occurrence"`
	Status       string          `json:"status"`
	Idempotency  string          `json:"idempotency"`
	Resources    []string        `json:"resources,omitempty"`
	Decision     string          `json:"decision,omitempty"`
	RuleID       string          `json:"rule_id,omitempty"`
	Reason       string          `json:"reason,omitempty"`
	PolicyDigest string          `json:"policy_digest,omitempty"`
	// ApprovalID names the approval that the step waits or has waited for. Copied steps have
	// none: their approval is the source's.
	ApprovalID string `json:"approval_id,omitempty"`
	// ParkedUntil is when a step that a rate limit holds up goes on. One that is refused has none.
	ParkedUntil  *time.Time          `json:"parked_until,omitempty"`
	Result       json.RawMessage     `json:"result,omitempty"`
	Error        *protocol.StepError `json:"error,omitempty"`
	Usage        *protocol.Usage     `json:"usage,omitempty"`
	Attempts     int                 `json:"attempts,omitempty"`
	ProposedSeq  int64               `json:"proposed_seq"`
	ExecutingSeq int64               `json:"executing_seq,omitempty"`
	SettledSeq   int64               `json:"settled_seq,omitempty"`
	// Replayed says that the step was copied from the source of a fork.
	Replayed bool `json:"replayed,omitempty"`
}

// Resource is a resource that an execution has registered.
type Resource struct {
	Key           string          `json:"key"`
	Driver        string          `json:"driver"`
	Config        json.RawMessage `json:"config,omitempty"`
	EverySteps    int             `json:"every_steps"`
	OnCompletion  bool            `json:"on_completion"`
	CoverageReuse bool            `json:"coverage_reuse,omitempty"`
	RegisteredSeq int64           `json:"registered_seq"`
	BoundSeq      int64           `json:"bound_seq,omitempty"`
	Binding       json.RawMessage `json:"binding,omitempty"`
	// CheckpointRef is what the resource started from in a fork.
	CheckpointRef string `json:"checkpoint_ref,omitempty"`
	// Host names the one host that holds the resource, if only one does.
	Host string `json:"host,omitempty"`
	// Paused says that the resource rests. Its next use resumes it.
	Paused bool `json:"paused,omitempty"`
	// Count is how many settled live or copied steps have affected the resource.
	Count int `json:"count"`
	// Covered says that a checkpoint holds the resource's state as of the last event.
	Covered bool `json:"covered"`
}

// Checkpoint covers the events from CoveredSeq up to, not including,
// InvalidatedSeq, or to the end of the log while that is 0.
type Checkpoint struct {
	Key            string `json:"key"`
	CheckpointRef  string `json:"checkpoint_ref"`
	CoveredSeq     int64  `json:"covered_seq"`
	InvalidatedSeq int64  `json:"invalidated_seq,omitempty"`
	// Cause is baseline, step or completion.
	Cause string `json:"cause,omitempty"`
}

// ForkPoints is an execution's coverage over its log.
type ForkPoints struct {
	LatestSeq int64 `json:"latest_seq"`
	// Resources maps keys to the seq that registered them.
	Resources   map[string]int64 `json:"resources"`
	Checkpoints []Checkpoint     `json:"checkpoints"`
}
