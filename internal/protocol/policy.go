package protocol

import (
	"fmt"
	"time"
)

// Decision is what a policy says of a step.
type Decision struct {
	Decision     string `json:"decision"`
	RuleID       string `json:"rule_id"`
	Reason       string `json:"reason,omitempty"`
	PolicyDigest string `json:"policy_digest,omitempty"`
	// Approval says who may approve, for RequireApproval.
	Approval *ApprovalConfig `json:"approval,omitempty"`
	// RateLimit and Budget bound how often and for how much the decision holds.
	RateLimit *RateLimit `json:"rate_limit,omitempty"`
	Budget    *Budget    `json:"budget,omitempty"`
	// Parts are what the halves of a policy decide, where any of them has a limit. Each limit
	// goes by its own half, so all of them apply, and then the halves are combined.
	Parts []Decision `json:"parts,omitempty"`
}

// Bounds of a decision's texts, in bytes. They stand in histories, memos and approvals, and a
// policy may quote a step's arguments in them.
const (
	MaxReason    = 1000
	MaxRuleID    = 128
	MaxApprovers = 50
	MaxApprover  = 256
)

// Limited reports whether limits have yet to be applied to the decision. That is the workflow's
// part: it knows what came before.
func (d Decision) Limited() bool {
	if len(d.Parts) > 0 {
		return true
	}
	return !d.RateLimit.Unlimited() || d.Budget != nil && d.Decision != Deny
}

// ApprovalConfig says who may approve a step, and until when.
type ApprovalConfig struct {
	// Approvers are the names that may decide. Empty means anyone.
	Approvers []string `json:"approvers,omitempty"`
	// Timeout is how long the step waits. Zero means DefaultApprovalTimeout.
	Timeout Duration `json:"timeout,omitempty"`
	Message string   `json:"message,omitempty"`
}

// DefaultApprovalTimeout is how long a step waits for a person unless its rule says otherwise.
const DefaultApprovalTimeout = 15 * time.Minute

// RateLimit is a token bucket: MaxCalls at once, refilled evenly over Window. With either at
// zero or below there is no limit.
type RateLimit struct {
	MaxCalls int64    `json:"max_calls"`
	Window   Duration `json:"window"`
	// PerWhat says what shares the bucket: one of the Per constants. Empty means PerExecution.
	PerWhat string `json:"per_what,omitempty"`
	// MaxWait is how long a step may wait for its turn. Zero refuses it at once.
	MaxWait Duration `json:"max_wait,omitempty"`
	// OnLimiterError is Allow or Deny, for when a shared bucket can't be reached. Empty means
	// Allow.
	OnLimiterError string `json:"on_limiter_error,omitempty"`
}

// What shares a rate limit's bucket.
const (
	PerExecution = "execution"
	PerSession   = "session" // that of the execution, if it is in none
	PerAgent     = "agent"
	PerGlobal    = "global"
)

// Unlimited reports whether the limit limits nothing.
func (l *RateLimit) Unlimited() bool { return l == nil || l.MaxCalls <= 0 || l.Window <= 0 }

// Budget bounds the tokens that an execution's model calls may use before a step is allowed.
// Tokens of copied steps count.
type Budget struct {
	MaxTokens int64 `json:"max_tokens"`
	// Scope is whose tokens count: PerExecution. Empty means the same.
	Scope string `json:"scope,omitempty"`
	// OnExceed is Deny or RequireApproval. Empty means Deny.
	OnExceed string `json:"on_exceed,omitempty"`
}

// Duration is a time.Duration that JSON writes as "1m30s".
type Duration time.Duration

// MarshalText writes the duration as Go does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration does.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration like 30s, 15m or 1h30m", text)
	}
	*d = Duration(parsed)
	return nil
}

// PolicyBundle is a policy that a fork brings with it: the files it was compiled from.
type PolicyBundle struct {
	Digest string       `json:"digest"`
	Files  []PolicyFile `json:"files"`
}

// PolicyFile is a file of a policy: YAML rules, Rego, or an OPA bundle archive. The name's
// ending says which.
type PolicyFile struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// Effect names what at_most_once steps have done, for the guard of forks.
type Effect struct {
	Kind   string `json:"kind"`
	Target string `json:"target"`
}

// Modes of a fork's effects guard.
const (
	EffectsGuard  = "guard"  // what the source has done since the fork point needs approval
	EffectsPolicy = "policy" // the policy alone decides
)
