package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/tinerun/tine/internal/protocol"
)

// Options configure Compile.
type Options struct {
	// VerificationKeys are PEM files or secrets by key id. With any of them an OPA bundle has to be
	// signed with one. Without, a signed bundle is refused, since nothing could check it.
	VerificationKeys map[string]string
}

// Bundle is a compiled policy: rules in YAML, Rego, or both. With both, a step must be allowed by
// both, and the stricter decision counts. It is safe for concurrent use.
type Bundle struct {
	digest  string
	rules   *chain   // nil without YAML
	program *program // nil without Rego

	warnings []Problem
}

var (
	_ Engine    = (*Bundle)(nil)
	_ Describer = (*Bundle)(nil)
)

// Compile checks and compiles a policy. It may have one YAML file, and beside it either Rego
// files, which may be libraries of each other, or one OPA bundle archive; the order does not
// matter. Nothing is read from disk or network. The error is a *LoadError, with all problems
// that were found, if the policy is at fault.
func Compile(ctx context.Context, files []Source, opts Options) (*Bundle, error) {
	byKind, problems := sortOut(files)
	if len(problems) > 0 {
		return nil, &LoadError{Problems: problems}
	}
	b := &Bundle{digest: Digest(files)}
	var set ruleset
	if rules := byKind[kindRules]; len(rules) > 0 {
		set, problems = readRules(rules[0])
	}
	var regoProblems []Problem
	b.program, regoProblems = loadProgram(ctx, byKind, opts)
	if err := ctx.Err(); err != nil {
		return nil, err // whatever failed need not be the policy's fault
	}
	if problems = append(problems, regoProblems...); len(problems) > 0 {
		return nil, &LoadError{Problems: problems}
	}
	b.warnings = set.warnings
	if b.program != nil {
		b.warnings = append(b.warnings, b.program.warnings...)
	}
	if len(byKind[kindRules]) > 0 {
		var err error
		if b.rules, err = compileChain(ctx, set); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// sortOut checks which files there are.
func sortOut(files []Source) (map[kind][]Source, []Problem) {
	var problems []Problem
	refuse := func(file, message string) {
		problems = append(problems, Problem{File: file, Message: message})
	}
	byKind := map[kind][]Source{}
	for _, f := range files {
		k := kindOf(f.Name)
		switch {
		case k == "":
			refuse(f.Name, notAPolicy)
		case isTest(f.Name):
			refuse(f.Name, "the file tests a policy; it is not part of one")
		}
		byKind[k] = append(byKind[k], f)
	}
	if rules := byKind[kindRules]; len(rules) > 1 {
		refuse(rules[1].Name, "a policy has one YAML file, and "+rules[0].Name+" is that; put all rules into one, since their order matters")
	}
	archives := byKind[kindArchive]
	if len(archives) > 1 {
		refuse(archives[1].Name, "a policy has one OPA bundle, and "+archives[0].Name+" is that")
	}
	if rego := byKind[kindRego]; len(archives) > 0 && len(rego) > 0 {
		refuse(rego[0].Name, "Rego goes into the OPA bundle "+archives[0].Name+", not beside it")
	}
	if len(files) == 0 {
		refuse("policy", "there are no files")
	}
	return byKind, problems
}

// loadProgram compiles what there is of Rego.
func loadProgram(ctx context.Context, byKind map[kind][]Source, opts Options) (*program, []Problem) {
	var modules map[string]*ast.Module
	var data map[string]any
	var problems []Problem
	if archives := byKind[kindArchive]; len(archives) > 0 {
		modules, data, problems = readArchive(archives[0], opts.VerificationKeys)
		if len(problems) > 0 {
			return nil, problems
		}
		program, problems := compileProgram(ctx, "", modules, data)
		if program != nil {
			program.warnings = within(archives[0].Name, program.warnings)
		}
		return program, within(archives[0].Name, problems)
	}
	files := byKind[kindRego]
	if len(files) == 0 {
		return nil, nil
	}
	if modules, problems = parseRego(files); len(problems) > 0 {
		return nil, problems
	}
	return compileProgram(ctx, files[0].Name, modules, nil)
}

// Decide decides a step, in the time that ctx leaves. Where it gives an error, the decision is
// the deny that follows from it.
func (b *Bundle) Decide(ctx context.Context, in Input) (d Decision, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the policy engine panicked: %v", r)
		}
		if err != nil {
			d = Decision{Decision: Deny, RuleID: protocol.RuleBundleError, Reason: err.Error()}
		}
		d.PolicyDigest = b.digest
		for i := range d.Parts {
			d.Parts[i].PolicyDigest = b.digest
		}
	}()
	switch {
	case b.rules == nil && b.program == nil:
		return Decision{}, errors.New("the policy is empty: it did not come from Compile")
	case b.program == nil:
		return b.rules.decide(ctx, in)
	case b.rules == nil:
		return b.program.decide(ctx, in)
	}
	rules, err := b.rules.decide(ctx, in)
	if err != nil || rules.Decision == Deny {
		return rules, err
	}
	rego, err := b.program.decide(ctx, in)
	if err != nil || rego.Decision == Deny {
		return rego, err
	}
	return protocol.Both(rules, rego), nil
}

// Digest names the policy by the content of its files: "sha256:" and hex digits.
func (b *Bundle) Digest() string { return b.digest }

// Describe gives the digest, for every agent.
func (b *Bundle) Describe(string) (digest string, unrestricted bool) { return b.digest, false }

// Warnings are what is allowed in a policy, and most likely not meant: rules that never match or
// are never reached, and the like.
func (b *Bundle) Warnings() []Problem { return slices.Clone(b.warnings) }

// Rules are the YAML rules, in their order.
func (b *Bundle) Rules() []Rule {
	if b.rules == nil {
		return nil
	}
	rules := make([]Rule, 0, len(b.rules.set.rules))
	for _, r := range b.rules.set.rules {
		rules = append(rules, r.Rule)
	}
	return rules
}
