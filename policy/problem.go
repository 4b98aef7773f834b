package policy

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with a policy.
type Problem struct {
	File string `json:"file"`
	// Line counts from 1. Zero means the file as a whole.
	Line int `json:"line,omitempty"`
	// Rule is the id of the rule that has the problem, if that is known.
	Rule    string `json:"rule,omitempty"`
	Message string `json:"message"`
}

func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	b.WriteString(": ")
	if p.Rule != "" {
		fmt.Fprintf(&b, "rule %s: ", p.Rule)
	}
	b.WriteString(p.Message)
	return b.String()
}

// LoadError says why a policy cannot be used: all that is wrong with it, in the order of its
// files and lines.
type LoadError struct {
	Problems []Problem
}

// maxShown is how many problems an error message has. Whoever must see more reads Problems.
const maxShown = 20

func (e *LoadError) Error() string {
	var b strings.Builder
	b.WriteString("the policy cannot be used:")
	for i, p := range e.Problems {
		if i == maxShown {
			fmt.Fprintf(&b, "\n  and %d more", len(e.Problems)-i)
			break
		}
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}
