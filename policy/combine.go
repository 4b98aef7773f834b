package policy

import (
	"cmp"
	"slices"

	"github.com/tinerun/tine/internal/protocol"
)

// reasonNoApprover denies what two halves of a policy want approved by different people.
const reasonNoApprover = "the rules and the Rego both require approval, and nobody is an approver of both"

// stricter combines what rules and Rego decide of the same step: both must allow it. Neither
// denies. Of two that are equally strict the rules give id and reason.
func stricter(rules, rego Decision) Decision {
	d := rules
	switch {
	case rules.Decision == rego.Decision:
		if rules.Approval != nil || rego.Approval != nil {
			merged, ok := bothApprove(rules.Approval, rego.Approval)
			if !ok {
				return disagreed(rules, rego)
			}
			d.Approval = merged
		}
	case rego.Decision == RequireApproval:
		d = rego
	}
	d.RateLimit = stricterLimit(rules.RateLimit, rego.RateLimit)
	d.Budget = stricterBudget(rules.Budget, rego.Budget)
	return d
}

// disagreed is what comes of approvals that nobody could give.
func disagreed(rules, rego Decision) Decision {
	if rules.Decision == RequireApproval {
		return Decision{Decision: Deny, RuleID: rules.RuleID, Reason: reasonNoApprover}
	}
	// Only going over a budget needs the approval.
	d := rules
	d.Approval = nil
	d.RateLimit = stricterLimit(rules.RateLimit, rego.RateLimit)
	if budget := stricterBudget(rules.Budget, rego.Budget); budget != nil {
		denying := *budget
		denying.OnExceed = Deny
		d.Budget = &denying
	}
	return d
}

// bothApprove is an approval that counts for both. It is not ok if nobody could give it.
func bothApprove(a, b *ApprovalConfig) (merged *ApprovalConfig, ok bool) {
	a, b = cmp.Or(a, &ApprovalConfig{}), cmp.Or(b, &ApprovalConfig{})
	merged = &ApprovalConfig{Approvers: a.Approvers, Timeout: a.Timeout, Message: a.Message}
	switch {
	case len(a.Approvers) == 0:
		merged.Approvers = b.Approvers
	case len(b.Approvers) > 0:
		merged.Approvers = nil
		for _, name := range a.Approvers {
			if slices.Contains(b.Approvers, name) {
				merged.Approvers = append(merged.Approvers, name)
			}
		}
		if len(merged.Approvers) == 0 {
			return nil, false
		}
	}
	if timeout(b) < timeout(a) {
		merged.Timeout = b.Timeout
	}
	switch {
	case a.Message == "":
		merged.Message = b.Message
	case b.Message != "" && b.Message != a.Message:
		merged.Message = a.Message + "\n" + b.Message
	}
	return merged, true
}

func timeout(a *ApprovalConfig) Duration {
	return cmp.Or(a.Timeout, Duration(protocol.DefaultApprovalTimeout))
}

// stricterLimit is the limit with fewer calls for the time.
func stricterLimit(a, b *RateLimit) *RateLimit {
	switch {
	case b.Unlimited():
		return a
	case a.Unlimited():
		return b
	}
	if float64(b.MaxCalls)/float64(b.Window) < float64(a.MaxCalls)/float64(a.Window) {
		return b
	}
	return a
}

// stricterBudget is the budget with fewer tokens, or of equal ones that which denies.
func stricterBudget(a, b *Budget) *Budget {
	switch {
	case a == nil:
		return b
	case b == nil || a.MaxTokens < b.MaxTokens:
		return a
	case b.MaxTokens < a.MaxTokens || a.OnExceed == RequireApproval:
		return b
	}
	return a
}
