// Package policy decides which steps an agent may take. An [Engine] is asked
// before every step; [AllowAll] is the engine of a worker without a policy.
//
// Nothing here knows Temporal: the decision is taken in a local activity, recorded
// in history, and read back from there ever after.
package policy

import (
	"context"
	"encoding/json"

	"github.com/tinerun/tine/internal/protocol"
)

// Decision is what an engine says of a step. Decision is one of the constants
// Allow and Deny; anything else counts as Deny.
type Decision = protocol.Decision

// Values of Decision.Decision.
const (
	Allow = protocol.Allow
	Deny  = protocol.Deny
)

// Input describes the step to decide.
type Input struct {
	ExecutionID string          `json:"execution_id"`
	AgentID     string          `json:"agent_id"`
	StepID      string          `json:"step_id"`
	StepKind    string          `json:"step_kind"` // tool_call, llm_call or local
	Target      string          `json:"target"`
	Arguments   json.RawMessage `json:"arguments,omitempty"`
	Idempotency string          `json:"idempotency"`
	Resources   []string        `json:"resources,omitempty"`
}

// Engine decides steps. It is called once a step, from a local activity, and
// concurrently; it must be quick, since a workflow task waits for it. An error
// denies the step under the rule "bundle-error".
type Engine interface {
	Decide(ctx context.Context, in Input) (Decision, error)
}

// AllowAll allows every step under the rule "permissive".
type AllowAll struct{}

// Decide allows.
func (AllowAll) Decide(context.Context, Input) (Decision, error) {
	return Decision{Decision: Allow, RuleID: protocol.RulePermissive}, nil
}
