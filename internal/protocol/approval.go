package protocol

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
)

// Names of the updates that decide an approval. Their argument is an ApprovalVerdict, their
// result an ApprovalDecided.
const (
	UpdateGrant = Prefix + "Grant"
	UpdateDeny  = Prefix + "Deny"
)

// MemoApprovals is the memo key of an execution's pending approvals: a PendingApprovals.
const MemoApprovals = "TineApprovals"

// Statuses of an approval.
const (
	ApprovalPending = "pending"
	ApprovalGranted = "granted"
	ApprovalDenied  = "denied"
	ApprovalExpired = "expired"
)

// Reasons of a step that an approval has settled, and rationales of one that nobody decided.
const (
	ReasonApprovalGranted = "approval_granted"
	ReasonApprovalDenied  = "approval_denied"
	ReasonApprovalTimeout = "approval_timeout"

	RationaleTimeout            = "timeout"
	RationaleExecutionCancelled = "execution_cancelled"
	RationaleStepCancelled      = "step_cancelled"
	RationaleExecutionClosed    = "execution_closed"
)

// Approval is a person's decision that a step waits for.
type Approval struct {
	// ID is ApprovalID of the execution and the step.
	ID          string `json:"id"`
	ExecutionID string `json:"execution_id"`
	AgentID     string `json:"agent_id"`
	StepID      string `json:"step_id"`
	StepKind    string `json:"step_type"`
	Target      string `json:"target"`
	// Args are left out where they are too large to be listed; the step has them.
	Args         json.RawMessage `json:"args,omitempty"`
	ArgsHash     string          `json:"args_hash"`
	PolicyDigest string          `json:"policy_digest,omitempty"`
	Status       string          `json:"status"`
	RuleID       string          `json:"rule_id"`
	Reason       string          `json:"reason,omitempty"`
	Message      string          `json:"message,omitempty"`
	// Approvers are the names that may decide. Empty means anyone.
	Approvers   []string   `json:"approvers,omitempty"`
	RequestedAt time.Time  `json:"requested_at"`
	ExpiresAt   time.Time  `json:"expires_at"`
	DecidedAt   *time.Time `json:"decided_at,omitempty"`
	DecidedBy   string     `json:"decided_by,omitempty"`
	// Identity is that of the connection which decided, and Principal who the server
	// says that it was, where it authenticates callers.
	Identity  string `json:"identity,omitempty"`
	Principal string `json:"principal,omitempty"`
	Rationale string `json:"rationale,omitempty"`
}

// ApprovalID names the approval of a step. It holds the execution's id, so that an approval is
// found without a search.
func ApprovalID(executionID, stepID string) string {
	return executionID + "/" + stepID[:min(len(stepID), 12)]
}

// ApprovalExecution is the execution that an approval's id names, or empty.
func ApprovalExecution(approvalID string) string {
	if i := strings.LastIndexByte(approvalID, '/'); i > 0 {
		return approvalID[:i]
	}
	return ""
}

// ApprovalStep is the beginning of the step's id that an approval's id ends with.
func ApprovalStep(approvalID string) string {
	return approvalID[strings.LastIndexByte(approvalID, '/')+1:]
}

// ApprovalWindow is when an approval was asked for, and when it expires.
type ApprovalWindow struct {
	RequestedAt time.Time `json:"requested_at"`
	ExpiresAt   time.Time `json:"expires_at"`
}

// PendingApprovals is what the memo lists. More counts those that it has no room for.
type PendingApprovals struct {
	Approvals []Approval `json:"approvals"`
	More      int        `json:"more,omitempty"`
}

// ApprovalVerdict is the argument of UpdateGrant and UpdateDeny.
type ApprovalVerdict struct {
	ApprovalID string `json:"approval_id"`
	// By is who decides, for the rule's list of approvers and for the record.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	// StepID, ArgsHash and PolicyDigest are what the decider has seen. Where they are given,
	// another step, other arguments and another policy are refused.
	StepID       string `json:"step_id,omitempty"`
	ArgsHash     string `json:"args_hash,omitempty"`
	PolicyDigest string `json:"policy_digest,omitempty"`
	// ValidUntil is when the verdict is void. The decider has given up waiting by then, and may
	// have told somebody that nothing was decided.
	ValidUntil *time.Time `json:"valid_until,omitempty"`
}

// ApprovalDecided is the result of UpdateGrant and UpdateDeny.
type ApprovalDecided struct {
	ApprovalID string    `json:"approval_id"`
	StepID     string    `json:"step_id"`
	Status     string    `json:"status"`
	DecidedBy  string    `json:"decided_by,omitempty"`
	Rationale  string    `json:"rationale,omitempty"`
	DecidedAt  time.Time `json:"decided_at"`
}

// ApprovalClosed says that nobody decided in time.
type ApprovalClosed struct {
	Rationale string `json:"rationale"`
}

// Approved is what becomes of a decision that required approval.
func (d Decision) Approved(status, rationale string) Decision {
	d.Approval = nil
	switch status {
	case ApprovalGranted:
		d.Decision, d.Reason = Allow, cmp.Or(rationale, ReasonApprovalGranted)
	case ApprovalDenied:
		d.Decision, d.Reason = Deny, cmp.Or(rationale, ReasonApprovalDenied)
	default:
		d.Decision, d.Reason = Deny, ReasonApprovalTimeout
		if rationale != RationaleTimeout {
			d.Reason = rationale
		}
	}
	return d
}

// Guarded is what becomes of a decision on an effect that the source of a fork has had: where
// the policy allows it, a person is asked.
func (d Decision) Guarded(source string) Decision {
	if d.Decision != Allow {
		return d
	}
	var config *ApprovalConfig
	return Decision{
		Decision: RequireApproval, RuleID: RuleForkEffect, Reason: ReasonEffect, PolicyDigest: d.PolicyDigest,
		Approval: config.Saying("execution " + source + ", which this one was forked from, has done this since the fork point; it may happen twice"),
	}
}

// Saying is the configuration with one more thing to tell those who decide.
func (c *ApprovalConfig) Saying(text string) *ApprovalConfig {
	said := ApprovalConfig{}
	if c != nil {
		said = *c
	}
	if said.Message != "" {
		text = said.Message + "\n" + text
	}
	said.Message = text
	return &said
}

// Window is the time that the decision's approval is open for, from now on.
func (d Decision) Window(now time.Time) *ApprovalWindow {
	timeout := DefaultApprovalTimeout
	if d.Approval != nil && d.Approval.Timeout > 0 {
		timeout = time.Duration(d.Approval.Timeout)
	}
	return &ApprovalWindow{RequestedAt: now, ExpiresAt: now.Add(timeout)}
}
