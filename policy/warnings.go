package policy

import (
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"go.yaml.in/yaml/v3"

	"github.com/tinerun/tine/internal/protocol"
)

var kinds = []string{protocol.KindTool, protocol.KindLLM, protocol.KindLocal}

func (r *reader) warnKind(n *yaml.Node, kind string) {
	if kind != "" && !slices.Contains(kinds, kind) {
		r.warn(n, "unknown step_kind %q, so the rule never matches; known: %s", kind, strings.Join(kinds, ", "))
	}
}

// warnNever tells of conditions that exclude each other. It looks at what is easy to see only.
func (r *reader) warnNever(n *yaml.Node, when conditions) {
	if len(when.targets) == 2 && !mayOverlap(when.targets[0], when.targets[1]) {
		r.warn(r.at(n), "no target matches both target and targets, so the rule never matches")
	}
	if len(when.agents) == 2 && !slices.Contains(when.agents[1], when.agents[0][0]) {
		r.warn(r.at(n), "agent_ids does not have the agent of agent_id, so the rule never matches")
	}
}

func mayOverlap(some, others []target) bool {
	return slices.ContainsFunc(some, func(one target) bool {
		return slices.ContainsFunc(others, func(other target) bool { return one.glob.mayOverlap(other.glob) })
	})
}

// warnUnreached tells of the rules behind the first one that always matches.
func (r *reader) warnUnreached(rules []rule) {
	all := slices.IndexFunc(rules, func(one rule) bool { return one.when.everything() })
	if all < 0 || all == len(rules)-1 {
		return
	}
	catch, first, more := rules[all], rules[all+1], len(rules)-all-2
	r.rule = first.ID
	defer func() { r.rule = "" }()
	at := &yaml.Node{Line: first.Line}
	if more == 0 {
		r.warn(at, "the rule is never reached: rule %s on line %d matches every step", catch.ID, catch.Line)
		return
	}
	r.warn(at, "this rule and the %d behind it are never reached: rule %s on line %d matches every step", more, catch.ID, catch.Line)
}

// everything reports whether the conditions match every step.
func (w conditions) everything() bool {
	for _, targets := range w.targets {
		if !slices.ContainsFunc(targets, func(t target) bool { return t.glob.everything() }) {
			return false
		}
	}
	return w.kind == "" && len(w.agents) == 0 && len(w.arguments) == 0
}

// notObjects warns of decision documents that are no objects whatever the step. A policy that
// has them may be good otherwise, so they are no problem.
func notObjects(file string, rules []*ast.Rule) []Problem {
	var warnings []Problem
	for _, rule := range rules {
		for ; rule != nil; rule = rule.Else {
			if is := notObject(rule.Head); is != "" {
				warnings = append(warnings, regoProblems(file, ast.NewError(ast.CompileErr, rule.Location,
					`decision is %s; it must be an object such as {"decision": "deny"}, or the step is denied under %s`,
					is, protocol.RuleBundleError))...)
			}
		}
	}
	return warnings
}

func notObject(head *ast.Head) string {
	if head.Value == nil {
		return "a set"
	}
	switch head.Value.Value.(type) {
	case ast.String:
		return "a string"
	case ast.Boolean:
		return "a boolean"
	case ast.Number:
		return "a number"
	case ast.Null:
		return "null"
	case *ast.Array:
		return "an array"
	case ast.Set:
		return "a set"
	default:
		return ""
	}
}
