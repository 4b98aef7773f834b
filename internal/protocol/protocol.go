// Package protocol is Tine's wire format: the names and the JSON that workflow
// code and activities exchange through Temporal's history, and that the event
// log reads back. Histories written today must be readable by later versions,
// so types here change only by adding optional fields.
//
// The package imports nothing but the standard library, and does nothing.
package protocol

import (
	"encoding/json"
	"time"
)

// Start is an execution's second argument. The first is the agent's input. It
// is absent for executions that anything but Tine's client starts.
type Start struct {
	Session string `json:"session,omitempty"`
	Parent  string `json:"parent_execution_id,omitempty"`
	Fork    *Fork  `json:"fork,omitempty"`
	// Policy decides instead of the worker's own. Forks bring it, and forks of those inherit it.
	Policy *PolicyBundle `json:"policy,omitempty"`
	// Roll is set in all runs of the execution but the first.
	Roll *Roll `json:"roll,omitempty"`
}

// Fork says what an execution was forked from and what it starts with.
type Fork struct {
	ExecutionID string `json:"execution_id"`
	RunID       string `json:"run_id"`
	AtSeq       int64  `json:"at_seq"`
	// HistoryEvents is how much of the source's history the fork was planned from. Its
	// prefix is loaded from just so much, since a running source goes on.
	HistoryEvents int64                  `json:"history_events,omitempty"`
	Restoration   map[string]Restoration `json:"restoration,omitempty"`
	// Effects is one of the Effects constants. Empty, in old histories, means EffectsPolicy.
	Effects string `json:"effects,omitempty"`
	// Guarded are the effects of the source since the fork point. They need approval.
	Guarded []Effect `json:"guarded,omitempty"`
	// Page is the beginning of the prefix, so that a short one needs no loading.
	Page *PrefixPage `json:"page,omitempty"`
}

// Restoration is what one resource of a fork starts from. Without a checkpoint
// that is the driver's initial environment.
type Restoration struct {
	CheckpointRef string `json:"checkpoint_ref,omitempty"`
	// CheckpointSeq is the checkpoint's covered_seq in the source.
	CheckpointSeq int64 `json:"checkpoint_seq,omitempty"`
	Covered       bool  `json:"covered"`
	// Host names the host that holds the checkpoint, if only one does.
	Host string `json:"host,omitempty"`
}

// Begin is what an execution learns from the worker that runs it first. It is
// recorded once, so that workers with other settings replay it the same way.
type Begin struct {
	// SearchAttributes says that the namespace has Tine's search attributes.
	SearchAttributes bool `json:"search_attributes,omitempty"`
	// HeartbeatTimeout is the worker's default for activities, in nanoseconds.
	HeartbeatTimeout time.Duration `json:"heartbeat_timeout,omitempty"`
	// HostTimeout is how long a task waits for the one host that can run it.
	HostTimeout time.Duration `json:"host_timeout,omitempty"`
	// PolicyDigest names the policy that the worker has for the agent.
	PolicyDigest string `json:"policy_digest,omitempty"`
	// Unrestricted says that it has none, so that all steps are allowed.
	Unrestricted bool `json:"unrestricted,omitempty"`
	// Revision is that of the workflow code which began the execution. It goes on as that
	// did, so that histories replay.
	Revision int `json:"revision,omitempty"`
	// RolloverEvents is how long the history of a run may become. Zero leaves it to Temporal.
	RolloverEvents int `json:"rollover_events,omitempty"`
	// PayloadLimit is the most bytes of JSON that fit a payload. Zero means PayloadLimit.
	PayloadLimit int `json:"payload_limit,omitempty"`
}

// Revisions of the workflow code. What a later one does otherwise depends on Begin.Revision.
const (
	// RevisionCoalesced lists pending approvals at most once a workflow task, and lets a step
	// whose turn will not come, or that was refused, end without one.
	RevisionCoalesced = 1

	// RevisionRejoin has an execution tell its session again that it waits, should the session have
	// forgotten.
	RevisionRejoin = 2

	// RevisionRollover continues an execution as new before its history is too long.
	RevisionRollover = 3

	// RevisionMessages records a request to a model by what is new in it.
	RevisionMessages = 4

	Revision = RevisionMessages
)

// Step identifies one recorded effect and says how it was declared.
type Step struct {
	// ID is StepID(kind, target, args, occurrence).
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Target string `json:"target"`
	// Args stand here only if no activity follows that has them as its input.
	Args        json.RawMessage `json:"args,omitempty"`
	Occurrence  int             `json:"occurrence,omitempty"`
	Idempotency string          `json:"idempotency,omitempty"`
	Resources   []string        `json:"resources,omitempty"`
}

// Outcome is how a step ended: with a result or with an error.
type Outcome struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *StepError      `json:"error,omitempty"`
}

// StepError is a failed, denied or cancelled step's error. Reason is one of the Reason
// constants or a policy's own words; Type is the error type the handler gave.
type StepError struct {
	Message string `json:"message"`
	Reason  string `json:"reason,omitempty"`
	Type    string `json:"type,omitempty"`
}

// StepRecord is the result of the local activities of a step. A marker in history
// has no input, so the record describes itself.
type StepRecord struct {
	Step     Step      `json:"step"`
	Decision *Decision `json:"decision,omitempty"`
	// Executing says that the step has begun without an activity of its own: it waits in
	// the workflow, and a later record settles it.
	Executing bool     `json:"executing,omitempty"`
	Outcome   *Outcome `json:"outcome,omitempty"`
	// Undecided says that limits have yet to be applied to the decision. Another record has
	// the final one.
	Undecided bool `json:"undecided,omitempty"`
	// Limited says that a rate limit holds the step up, or refuses it.
	Limited *Limited `json:"limited,omitempty"`
	// Approval is when the approval that the decision requires was asked for.
	Approval *ApprovalWindow `json:"approval,omitempty"`
	// Closed ends the step's approval, which nobody has decided.
	Closed *ApprovalClosed `json:"closed,omitempty"`
}

// Limited is what a rate limit does to a step.
type Limited struct {
	RuleID       string `json:"rule_id"`
	Reason       string `json:"reason"`
	PolicyDigest string `json:"policy_digest,omitempty"`
	// Until is when a parked step goes on. A refused one has none.
	Until *time.Time `json:"until,omitempty"`
}

// StepVerdict is what workflow code reads of a StepRecord: it knows the step.
type StepVerdict struct {
	Decision  *Decision       `json:"decision"`
	Outcome   *Outcome        `json:"outcome"`
	Undecided bool            `json:"undecided"`
	Approval  *ApprovalWindow `json:"approval"`
}

// DecideRequest is the input of ActivityDecide and ActivityStep.
type DecideRequest struct {
	Step    Step   `json:"step"`
	AgentID string `json:"agent_id"`
	// Args are the step's arguments, for the policy and for a local step's body.
	Args json.RawMessage `json:"args,omitempty"`
	// Inline marks a step that waits in the workflow once it is allowed.
	Inline bool `json:"inline,omitempty"`
	// Timeout bounds a local step's body, in nanoseconds.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Result is the outcome of a step whose result the workflow knows already.
	Result json.RawMessage `json:"result,omitempty"`
	// Policy decides instead of the worker's own.
	Policy *PolicyBundle `json:"policy,omitempty"`
	// Session and ForkedFrom describe the execution to the policy.
	Session    string `json:"session,omitempty"`
	ForkedFrom string `json:"forked_from,omitempty"`
	// Guarded asks for approval if the policy allows the step: the source of the fork has
	// had such an effect.
	Guarded bool `json:"guarded,omitempty"`
	// Indeterminate refuses the step: how an identical one ended is not known.
	Indeterminate bool `json:"indeterminate,omitempty"`
	// Decided is the final decision of a local step that only has to run.
	Decided *Decision `json:"decided,omitempty"`
	// Now is the workflow's time. An approval expires by that clock, whatever the worker's says.
	Now time.Time `json:"now,omitzero"`
}

// LimitRequest is the input of ActivityLimit, which takes a token from a bucket that executions
// share.
type LimitRequest struct {
	// Bucket is the id of the workflow that keeps the bucket.
	Bucket string    `json:"bucket"`
	Limit  RateLimit `json:"limit"`
	// Request names this very call, so that a retry takes no second token.
	Request string `json:"request"`
}

// LimitGrant is the result of ActivityLimit. With Refused no token was taken.
type LimitGrant struct {
	Wait    Duration `json:"wait,omitempty"`
	Refused bool     `json:"refused,omitempty"`
}

// Call is the second argument of a step's activity; the first is its arguments.
type Call struct {
	Idempotency string `json:"idempotency,omitempty"`
	// Model names the model reference of an llm_call.
	Model string `json:"model,omitempty"`
	// Base has the first messages of an llm_call's request, which its arguments leave out.
	Base *MessagesBase `json:"base,omitempty"`
	// MCP names the MCP server that a step is for, and its tool.
	MCP *MCPTarget `json:"mcp,omitempty"`
	// Resources are all resources the execution has opened.
	Resources map[string]Bound `json:"resources,omitempty"`
}

// Bound is a resource's driver and binding.
type Bound struct {
	Driver  string          `json:"driver"`
	Binding json.RawMessage `json:"binding"`
}

// ResourceSpec is what an agent asks for when it opens a resource.
type ResourceSpec struct {
	Key          string          `json:"key"`
	Driver       string          `json:"driver"`
	Config       json.RawMessage `json:"config,omitempty"`
	EverySteps   int             `json:"every_steps"`
	OnCompletion bool            `json:"on_completion"`
	// Pause is one of the Pause constants.
	Pause string `json:"pause,omitempty"`
}

// CreateResource is the input of ActivityCreateResource.
type CreateResource struct {
	ResourceSpec
	// Checkpoint is what to start from; empty for the initial environment.
	Checkpoint string `json:"checkpoint_ref,omitempty"`
	// Registered says that the prefix of a fork has registered the resource.
	Registered bool `json:"registered,omitempty"`
}

// ResourceCreated is the result of ActivityCreateResource.
type ResourceCreated struct {
	Binding       json.RawMessage `json:"binding"`
	CoverageReuse bool            `json:"coverage_reuse,omitempty"`
	// Host names the host that holds the resource, if only one does.
	Host string `json:"host,omitempty"`
	// CanPause says that the driver can pause the resource.
	CanPause bool `json:"can_pause,omitempty"`
}

// Pause is the input of ActivityPause.
type Pause struct {
	Key string `json:"key"`
	Bound
}

// Checkpoint is the input of ActivityCheckpoint.
type Checkpoint struct {
	Key   string `json:"key"`
	Cause string `json:"cause"`
	// StepID is the step after which the checkpoint is taken, for CauseStep.
	StepID string `json:"step_id,omitempty"`
	Bound
}

// CheckpointTaken is the result of ActivityCheckpoint.
type CheckpointTaken struct {
	Ref string `json:"checkpoint_ref"`
}

// Divergence is the result of ActivityNote: a fork's handler stopped asking for
// recorded steps while some were left.
type Divergence struct {
	Expected DivergentStep  `json:"expected"`
	Got      *DivergentStep `json:"got,omitempty"` // absent: the handler ended
	// Unused counts the recorded steps that the handler did not ask for.
	Unused int `json:"unused"`
}

// DivergentStep names one side of a divergence.
type DivergentStep struct {
	StepID     string          `json:"step_id"`
	Kind       string          `json:"kind"`
	Target     string          `json:"target"`
	Args       json.RawMessage `json:"args,omitempty"`
	Occurrence int             `json:"occurrence,omitempty"`
}

// LoadPrefix is the input of ActivityLoadPrefix.
type LoadPrefix struct {
	ExecutionID string `json:"execution_id"`
	RunID       string `json:"run_id"`
	AtSeq       int64  `json:"at_seq"`
	// HistoryEvents bounds what is read of the source's history. Zero means all.
	HistoryEvents int64 `json:"history_events,omitempty"`
	// Offset counts the records that earlier pages held.
	Offset int `json:"offset,omitempty"`
}

// PrefixPage is a part of a fork's prefix: copied events in log order. It is compressed in
// JSON, since histories have a limit and prefixes repeat themselves.
type PrefixPage struct {
	Records []PrefixRecord
	// Next is the offset of the next page, or 0 after the last.
	Next int
}

// PrefixRecord is one copied event. The one that first names a step or a resource describes
// it. A step's outcome comes with the event that settled it, since it may be as large as a
// payload, like the arguments.
type PrefixRecord struct {
	Type string    `json:"type"`
	At   time.Time `json:"at"`
	// StepID names the step of a step.* event, and Step describes it once.
	StepID  string      `json:"step_id,omitempty"`
	Step    *PrefixStep `json:"step,omitempty"`
	Outcome *Outcome    `json:"outcome,omitempty"`
	// Decision is that of the event, where the step's final one is another.
	Decision *Decision `json:"decision,omitempty"`
	// Limited is the refusal of a step.rate_limited event. The fork's handler gets it again.
	Limited *Limited `json:"limited,omitempty"`
	// Key names the resource of a resource.* event.
	Key        string            `json:"key,omitempty"`
	Resource   *PrefixResource   `json:"resource,omitempty"`
	Checkpoint *PrefixCheckpoint `json:"checkpoint,omitempty"`
}

// PrefixStep is a copied step.
type PrefixStep struct {
	Step
	Decision *Decision `json:"decision,omitempty"`
	Attempts int       `json:"attempts,omitempty"`
	// Base has the first messages that the arguments leave out.
	Base *MessagesBase `json:"base,omitempty"`
}

// PrefixResource is a copied registration.
type PrefixResource struct {
	ResourceSpec
	CoverageReuse bool `json:"coverage_reuse,omitempty"`
}

// PrefixCheckpoint is a checkpoint of the source, with seqs of the fork's log.
type PrefixCheckpoint struct {
	Ref            string `json:"checkpoint_ref,omitempty"`
	CoveredSeq     int64  `json:"covered_seq,omitempty"`
	InvalidatedSeq int64  `json:"invalidated_seq,omitempty"`
	Cause          string `json:"cause,omitempty"`
}

// Usage counts the tokens of an llm_call.
type Usage struct {
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
}

// ResultUsage is what an llm_call's result says of tokens, or nil if it says nothing certain.
func ResultUsage(result json.RawMessage) *Usage {
	var r struct {
		Usage struct {
			Input  *int64 `json:"input_tokens"`
			Output *int64 `json:"output_tokens"`
		} `json:"usage"`
	}
	if err := Decode(result, &r); err != nil {
		return nil
	}
	in, out := r.Usage.Input, r.Usage.Output
	if in == nil || out == nil || *in < 0 || *out < 0 {
		return nil
	}
	return &Usage{InputTokens: *in, OutputTokens: *out}
}

// Tokens is how many tokens an llm_call's result says it used, both ways.
func Tokens(result json.RawMessage) int64 {
	if usage := ResultUsage(result); usage != nil {
		return usage.InputTokens + usage.OutputTokens
	}
	return 0
}
