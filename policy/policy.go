// Package policy decides which steps an agent may take. An [Engine] is asked
// before every step; [AllowAll] is the engine of a worker without a policy, a [Bundle] is a
// policy compiled from files, and a [Store] holds the bundles of a worker's agents.
//
// Nothing here knows Temporal: the decision is taken in a local activity, recorded
// in history, and read back from there ever after.
package policy

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// Decision is what an engine says of a step. Decision is one of the constants
// Allow, Deny and RequireApproval; anything else counts as Deny.
type (
	Decision       = protocol.Decision
	ApprovalConfig = protocol.ApprovalConfig
	RateLimit      = protocol.RateLimit
	Budget         = protocol.Budget
	Duration       = protocol.Duration
)

// Values of Decision.Decision.
const (
	Allow           = protocol.Allow
	Deny            = protocol.Deny
	RequireApproval = protocol.RequireApproval
)

// Input describes the step to decide. It is the input document of policies in Rego.
type Input struct {
	ExecutionID string          `json:"execution_id"`
	AgentID     string          `json:"agent_id"`
	StepID      string          `json:"step_id"`
	StepKind    string          `json:"step_kind"` // tool_call, llm_call or local
	Target      string          `json:"target"`
	Arguments   json.RawMessage `json:"arguments,omitempty"`
	Idempotency string          `json:"idempotency"`
	Resources   []string        `json:"resources,omitempty"`
	Session     string          `json:"session,omitempty"`
	// ForkedFrom is the execution that this one was forked from.
	ForkedFrom string `json:"forked_from,omitempty"`
	// Time is when the decision is taken. Policies have no other clock.
	Time time.Time `json:"time"`
}

// Engine decides steps. It is called once a step, from a local activity, and
// concurrently; it must be quick, since a workflow task waits for it. An error
// denies the step under the rule "bundle-error".
type Engine interface {
	Decide(ctx context.Context, in Input) (Decision, error)
}

// Describer is an Engine that says which policy it has for an agent.
type Describer interface {
	// Describe gives the digest of the agent's policy, if it has one. Unrestricted says that it
	// has none and may do anything.
	Describe(agentID string) (digest string, unrestricted bool)
}

// AllowAll allows every step under the rule "permissive".
type AllowAll struct{}

// Decide allows.
func (AllowAll) Decide(context.Context, Input) (Decision, error) {
	return Decision{Decision: Allow, RuleID: protocol.RulePermissive}, nil
}

// Describe says that no agent is restricted.
func (AllowAll) Describe(string) (digest string, unrestricted bool) { return "", true }
