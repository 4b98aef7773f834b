package protocol

import (
	"cmp"
	"slices"
)

// reasonNoApprover denies what two halves of a policy want approved by different people.
const reasonNoApprover = "two policies require approval, and nobody is an approver of both"

// Both is the decision of two halves of a policy on the same step: both must allow it. Where a
// half has limits the halves stay apart in Parts until those are applied.
func Both(a, b Decision) Decision {
	d := Stricter(a, b)
	if d.Decision != Deny && (a.Limited() || b.Limited()) {
		d.Parts = slices.Concat(a.parts(), b.parts())
	}
	return d
}

// Split gives the parts that limits apply to, each on its own.
func (d Decision) Split() []Decision { return slices.Clone(d.parts()) }

func (d Decision) parts() []Decision {
	if len(d.Parts) > 0 {
		return d.Parts
	}
	return []Decision{d}
}

// Combine is Stricter of all parts.
func Combine(parts []Decision) Decision {
	d := parts[0].unlimited()
	for _, part := range parts[1:] {
		d = Stricter(d, part)
	}
	return d
}

// Stricter combines two decisions on the same step: deny comes before require_approval before
// allow. Of two that are equally strict the first gives id and reason. Limits are left out.
func Stricter(a, b Decision) Decision {
	d := a
	switch {
	case a.Decision == RequireApproval && b.Decision == RequireApproval:
		merged, ok := bothApprove(a.Approval, b.Approval)
		if !ok {
			return Decision{Decision: Deny, RuleID: a.RuleID, Reason: reasonNoApprover, PolicyDigest: a.PolicyDigest}
		}
		d.Approval = merged
	case strictness(b.Decision) > strictness(a.Decision):
		d = b
	}
	return d.unlimited()
}

// unlimited is the decision once limits are applied.
func (d Decision) unlimited() Decision {
	if d.Decision != RequireApproval {
		d.Approval = nil
	}
	d.RateLimit, d.Budget, d.Parts = nil, nil, nil
	return d
}

func strictness(decision string) int {
	switch decision {
	case Allow:
		return 0
	case RequireApproval:
		return 1
	default:
		return 2
	}
}

// bothApprove is an approval that counts for both. It is not ok if nobody could give it.
func bothApprove(a, b *ApprovalConfig) (merged *ApprovalConfig, ok bool) {
	if a == nil && b == nil {
		return nil, true
	}
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
	return cmp.Or(a.Timeout, Duration(DefaultApprovalTimeout))
}
