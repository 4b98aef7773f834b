package policy

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tinerun/tine/internal/protocol"
)

var decisions = []string{Allow, Deny, RequireApproval}

// readThen reads what a rule decides. What could never have an effect is refused, since somebody
// relies on it.
func (r *reader) readThen(n *yaml.Node) Decision {
	fields := r.fields(n, "then", "decision", "reason", "approval_config", "rate_limit", "budget")
	d := r.readOutcome(n, fields, "approval_config")
	onExceed := d.Budget != nil && d.Budget.OnExceed == RequireApproval
	if config := fields["approval_config"]; config != nil && d.Decision != RequireApproval && !onExceed {
		r.problem(config, "approval_config has no effect here; allowed with decision: %s, or on_exceed: %s in budget",
			RequireApproval, RequireApproval)
	}
	if budget := fields["budget"]; budget != nil && d.Decision != Allow {
		r.problem(budget, "budget has no effect here; allowed with decision: %s", Allow)
	}
	return d
}

// readOutcome reads the fields of a decision that rules and Rego have in common.
func (r *reader) readOutcome(n *yaml.Node, fields map[string]*yaml.Node, approval string) Decision {
	var d Decision
	if decision := fields["decision"]; decision != nil {
		d.Decision = r.choice(decision, "decision", decisions...)
	} else {
		r.problem(r.at(n), "there is no decision; allowed: %s", strings.Join(decisions, ", "))
	}
	if reason := fields["reason"]; reason != nil {
		d.Reason = r.prose(reason, "reason")
	}
	if d.Reason == "" && d.Decision == Deny {
		d.Reason = protocol.ReasonPolicyDenied
	}
	if config := fields[approval]; config != nil {
		d.Approval = r.readApproval(config, approval)
	}
	if limit := fields["rate_limit"]; limit != nil {
		d.RateLimit = r.readRateLimit(limit)
	}
	if budget := fields["budget"]; budget != nil {
		d.Budget = r.readBudget(budget)
	}
	return d
}

// defaultTimeout is the protocol's default as people write it.
var defaultTimeout = strings.TrimSuffix(protocol.DefaultApprovalTimeout.String(), "0s")

func (r *reader) readApproval(n *yaml.Node, what string) *ApprovalConfig {
	config := &ApprovalConfig{}
	fields := r.fields(n, what, "approvers", "timeout", "message")
	// An empty list means anyone, as in the protocol.
	if approvers := fields["approvers"]; approvers != nil && !r.emptyList(approvers) {
		config.Approvers = r.approvers(approvers)
	}
	if timeout := fields["timeout"]; timeout != nil {
		config.Timeout = r.time(timeout, "timeout", "leave it out for "+defaultTimeout)
	}
	if message := fields["message"]; message != nil {
		config.Message = r.prose(message, "message")
	}
	return config
}

// readRateLimit wants both numbers that make a limit, so that a forgotten one is not no limit. Zero
// calls that are written down do mean that there is none.
func (r *reader) readRateLimit(n *yaml.Node) *RateLimit {
	limit := &RateLimit{}
	fields := r.fields(n, "rate_limit", "max_calls", "window", "per_what", "max_wait", "on_limiter_error")
	if calls := fields["max_calls"]; calls != nil {
		limit.MaxCalls = r.integer(calls, "max_calls", 0)
	} else {
		r.problem(r.at(n), "rate_limit has no max_calls; it needs max_calls and window")
	}
	if window := fields["window"]; window != nil {
		limit.Window = r.time(window, "window", "leave rate_limit out for no limit")
	} else {
		r.problem(r.at(n), "rate_limit has no window; it needs max_calls and window")
	}
	if what := fields["per_what"]; what != nil {
		limit.PerWhat = r.choice(what, "per_what",
			protocol.PerExecution, protocol.PerSession, protocol.PerAgent, protocol.PerGlobal)
	}
	if wait := fields["max_wait"]; wait != nil {
		limit.MaxWait = r.duration(wait, "max_wait")
	}
	if action := fields["on_limiter_error"]; action != nil {
		limit.OnLimiterError = r.choice(action, "on_limiter_error", Allow, Deny)
	}
	return limit
}

func (r *reader) readBudget(n *yaml.Node) *Budget {
	budget := &Budget{}
	fields := r.fields(n, "budget", "max_tokens", "scope", "on_exceed")
	if tokens := fields["max_tokens"]; tokens != nil {
		// Some would take zero for nothing at all, and some for no limit.
		budget.MaxTokens = r.integer(tokens, "max_tokens", 1)
	} else {
		r.problem(r.at(n), "budget has no max_tokens")
	}
	if scope := fields["scope"]; scope != nil {
		word, ok := r.text(scope, "scope", protocol.PerExecution)
		switch {
		case word == protocol.PerSession:
			r.problem(scope, "scope session is not there in this version; allowed: %s", protocol.PerExecution)
		case ok && word != protocol.PerExecution:
			r.problem(scope, "unknown scope %q; allowed: %s", word, protocol.PerExecution)
		}
		budget.Scope = word
	}
	if action := fields["on_exceed"]; action != nil {
		budget.OnExceed = r.choice(action, "on_exceed", Deny, RequireApproval)
	}
	return budget
}

// emptyList reports whether n is a list without items.
func (r *reader) emptyList(n *yaml.Node) bool {
	n = r.at(n)
	return n.Kind == yaml.SequenceNode && len(n.Content) == 0
}
