package protocol_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/protocol"
)

func TestCombine(t *testing.T) {
	t.Parallel()
	asking := func(rule string, approvers ...string) protocol.Decision {
		return protocol.Decision{
			Decision: protocol.RequireApproval, RuleID: rule, Approval: &protocol.ApprovalConfig{Approvers: approvers},
		}
	}
	limited := protocol.Decision{
		Decision: protocol.Allow, RuleID: "l", Approval: &protocol.ApprovalConfig{Approvers: []string{"a"}},
		RateLimit: &protocol.RateLimit{MaxCalls: 1, Window: protocol.Duration(time.Second)}, Budget: &protocol.Budget{MaxTokens: 1},
	}
	denied := protocol.Decision{Decision: protocol.Deny, RuleID: "d"}
	for name, test := range map[string]struct {
		parts []protocol.Decision
		want  protocol.Decision
	}{
		"one, without its limits": {[]protocol.Decision{limited}, protocol.Decision{Decision: protocol.Allow, RuleID: "l"}},
		"the first of equals":     {[]protocol.Decision{{Decision: protocol.Allow, RuleID: "x"}, limited}, protocol.Decision{Decision: protocol.Allow, RuleID: "x"}},
		"approval before allow":   {[]protocol.Decision{limited, asking("q", "b")}, asking("q", "b")},
		"deny before approval":    {[]protocol.Decision{asking("q", "b"), denied}, denied},
		"who is on all lists":     {[]protocol.Decision{asking("p", "a", "b", "c"), asking("q", "c", "b"), asking("r", "b")}, asking("p", "b")},
		"nobody is on all": {
			[]protocol.Decision{asking("p", "a"), asking("q", "b")},
			protocol.Decision{Decision: protocol.Deny, RuleID: "p", Reason: "two policies require approval, and nobody is an approver of both"},
		},
		"what is no decision denies": {[]protocol.Decision{limited, {Decision: "maybe"}}, protocol.Decision{Decision: "maybe"}},
	} {
		require.Equal(t, test.want, protocol.Combine(test.parts), name)
	}
}

func TestBothKeepsLimitsApart(t *testing.T) {
	t.Parallel()
	plain := protocol.Decision{Decision: protocol.Allow, RuleID: "p"}
	once := protocol.Decision{Decision: protocol.Allow, RuleID: "o", RateLimit: &protocol.RateLimit{MaxCalls: 1, Window: 1}}
	twice := protocol.Decision{Decision: protocol.Allow, RuleID: "t", RateLimit: &protocol.RateLimit{MaxCalls: 2, Window: 1}}
	require.Equal(t, plain, protocol.Both(plain, plain))
	require.Equal(t, []protocol.Decision{plain, once}, protocol.Both(plain, once).Split())
	require.Equal(t, []protocol.Decision{twice, plain, once}, protocol.Both(twice, protocol.Both(plain, once)).Split())
	require.Equal(t, []protocol.Decision{once}, once.Split())
}

func TestLimiterID(t *testing.T) {
	t.Parallel()
	require.Equal(t, "tine-limiter/global/rule", protocol.LimiterID(protocol.PerGlobal, "rule"))
	require.Equal(t, "tine-limiter/agent/a/rule", protocol.LimiterID(protocol.PerAgent, "a", "rule"))
	require.NotEqual(t, protocol.LimiterID(protocol.PerAgent, "a/b", "c"), protocol.LimiterID(protocol.PerAgent, "a", "b/c"))
	long := string(make([]byte, 2000))
	require.Less(t, len(protocol.LimiterID(protocol.PerSession, long, "rule")), 1000)
	require.NotEqual(t, protocol.LimiterID(protocol.PerSession, long, "a"), protocol.LimiterID(protocol.PerSession, long, "b"))
}
