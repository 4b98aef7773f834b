package protocol

import (
	"encoding/json"
	"time"
)

// Roll says what a run of an execution goes on with, that continues the run before as new.
type Roll struct {
	// RunID is the run before, whose history has the log so far.
	RunID string `json:"run_id"`
	// Status is what the status attribute says.
	Status string `json:"status,omitempty"`
	// Resources are those that the run before had open, in the order they were opened.
	Resources []RolledResource `json:"resources,omitempty"`
	// Buckets are when the execution's own rate limits are full again, by name.
	Buckets map[string]time.Time `json:"buckets,omitempty"`
	// Signals are those that came and that nobody has received, by name.
	Signals map[string][]json.RawMessage `json:"signals,omitempty"`
	// Diverged says that a divergence has been noted.
	Diverged bool `json:"diverged,omitempty"`
}

// RolledResource is an open resource as the run before left it.
type RolledResource struct {
	ResourceSpec
	Bound         Bound  `json:"bound"`
	CoverageReuse bool   `json:"coverage_reuse,omitempty"`
	Host          string `json:"host,omitempty"`
	Count         int    `json:"count,omitempty"`
	Covered       bool   `json:"covered,omitempty"`
	CanPause      bool   `json:"can_pause,omitempty"`
	Resting       bool   `json:"resting,omitempty"`
	Paused        bool   `json:"paused,omitempty"`
}

// LoadRun is the input of ActivityLoadRun.
type LoadRun struct {
	ExecutionID string `json:"execution_id"`
	RunID       string `json:"run_id"`
	// Offset counts the records that earlier pages held.
	Offset int `json:"offset,omitempty"`
}

// RolledPage is a part of the log that a run goes on with. It is compressed in JSON.
type RolledPage struct {
	Records []RolledRecord
	// Next is the offset of the next page, or 0 after the last.
	Next int
}

// MarshalJSON compresses the records.
func (p RolledPage) MarshalJSON() ([]byte, error) { return packPage(p.Records, p.Next) }

// UnmarshalJSON expands the records.
func (p *RolledPage) UnmarshalJSON(raw []byte) (err error) {
	p.Next, err = unpackPage(raw, &p.Records)
	return err
}

// RolledRecord is one part of a log: one of its fields is set. The head comes first, and the
// events last. What package eventlog alone reads is in its own JSON.
type RolledRecord struct {
	Head *RolledHead `json:"head,omitempty"`
	// Resource is a registered resource.
	Resource *RolledRegistration `json:"resource,omitempty"`
	Step     *RolledStep         `json:"step,omitempty"`
	Approval *Approval           `json:"approval,omitempty"`
	// Checkpoint and Event are entries of the log.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	Event      *RolledEvent    `json:"event,omitempty"`
}

// RolledHead is what a log says of the execution as a whole.
type RolledHead struct {
	CreatedAt time.Time `json:"created_at"`
	// Runs are the runs so far, oldest first.
	Runs         []string    `json:"runs"`
	Parent       string      `json:"parent_execution_id,omitempty"`
	Previous     *Previous   `json:"previous,omitempty"`
	PolicyDigest string      `json:"policy_digest,omitempty"`
	Unrestricted bool        `json:"unrestricted,omitempty"`
	Divergence   *Divergence `json:"divergence,omitempty"`
}

// RolledRegistration is a registered resource. Log is all that the log says of it.
type RolledRegistration struct {
	ResourceSpec
	CoverageReuse bool            `json:"coverage_reuse,omitempty"`
	Bound         bool            `json:"bound,omitempty"`
	Count         int             `json:"count,omitempty"`
	Covered       bool            `json:"covered,omitempty"`
	Log           json.RawMessage `json:"log"`
}

// RolledStep is a step. Log is what the log says of it.
type RolledStep struct {
	Log json.RawMessage `json:"log"`
	// Base has the first messages that the arguments in Log leave out.
	Base *MessagesBase `json:"base,omitempty"`
	// Began is when a step that waits in the workflow began to.
	Began *time.Time `json:"began,omitempty"`
	// Refusals are those of rate limits that came before its outcome.
	Refusals []Limited `json:"refusals,omitempty"`
}

// RolledEvent is an event of a log. Its seq is its place among the events.
type RolledEvent struct {
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload"`
	At      time.Time       `json:"at"`
	// Run is the index of its run.
	Run            int   `json:"run,omitempty"`
	HistoryEventID int64 `json:"id"`
	// StepID, Key, Decision, Refused and Ref say what the event is about.
	StepID   string    `json:"step,omitempty"`
	Key      string    `json:"key,omitempty"`
	Decision *Decision `json:"decision,omitempty"`
	Refused  *Limited  `json:"refused,omitempty"`
	Ref      string    `json:"ref,omitempty"`
}

// LoggedStep is what workflow code reads of RolledStep.Log.
type LoggedStep struct {
	StepID       string          `json:"step_id"`
	Kind         string          `json:"kind"`
	Target       string          `json:"target"`
	Args         json.RawMessage `json:"args"`
	Occurrence   int             `json:"occurrence"`
	Status       string          `json:"status"`
	Idempotency  string          `json:"idempotency"`
	Resources    []string        `json:"resources"`
	Decision     string          `json:"decision"`
	RuleID       string          `json:"rule_id"`
	Reason       string          `json:"reason"`
	PolicyDigest string          `json:"policy_digest"`
	Result       json.RawMessage `json:"result"`
	Error        *StepError      `json:"error"`
	ExecutingSeq int64           `json:"executing_seq"`
	SettledSeq   int64           `json:"settled_seq"`
}
