package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown/cache"

	"github.com/tinerun/tine/internal/protocol"
)

// chain is a ruleset compiled to Rego. Its module says for each rule, by its place in the file,
// when it matches, and that the first one decides:
//
//	package tine.rules
//	first := min(match)
//	match contains 0 if { input.target == "shell"; contains(input.args["command"], "rm ") }
//	match contains 1 if { 0 in input.globs }
//
// OPA finds the rules whose equations hold by looking the input up in an index, whatever their
// number. An else chain would be indexed as well, and could stop at the first match, but the time
// that OPA takes to compile one grows with the square of its length.
//
// OPA cannot index globs, and its documents forget how numbers are spelled and how members are
// ordered. So the input has what was made of the step before:
//
//	target, agent_id, step_kind  as they are
//	args                         the text of each argument that the rules name, by its path
//	globs                        which of the rules' lists of target patterns match, by number
type chain struct {
	set   ruleset
	query rego.PreparedEvalQuery
	paths []string
	globs [][]target
	cache regexCache
}

const chainQuery = "data.tine.rules.first"

func compileChain(ctx context.Context, set ruleset) (*chain, error) {
	c := &chain{set: set, cache: regexCache{}}
	module, err := ast.ParseModuleWithOpts("rules.rego", c.module(), ast.ParserOptions{RegoVersion: ast.RegoV1})
	if err != nil {
		return nil, fmt.Errorf("compile rules: %w", err)
	}
	compiler := ast.NewCompiler().WithCapabilities(capabilities)
	if compiler.Compile(map[string]*ast.Module{"rules.rego": module}); compiler.Failed() {
		return nil, fmt.Errorf("compile rules: %w", compiler.Errors)
	}
	c.query, err = rego.New(rego.Compiler(compiler), rego.Query(chainQuery)).PrepareForEval(ctx)
	if err != nil {
		return nil, fmt.Errorf("compile rules: %w", err)
	}
	return c, nil
}

// module writes the rules as Rego.
func (c *chain) module() string {
	var b strings.Builder
	b.WriteString("package tine.rules\n\nfirst := min(match)\n\n")
	b.WriteString("match contains 0 if false\n") // there may be no rules, and OPA must know the name

	numbers := map[string]int{} // of lists of patterns, by their text
	for i, rule := range c.set.rules {
		terms := c.terms(rule.when, numbers)
		fmt.Fprintf(&b, "match contains %d if {\n", i)
		for _, term := range terms {
			b.WriteString("\t" + term + "\n")
		}
		if len(terms) == 0 {
			b.WriteString("\ttrue\n}\n")
			break // the rules behind one that always matches are never asked
		}
		b.WriteString("}\n")
	}
	slices.Sort(c.paths)
	c.paths = slices.Compact(c.paths)
	return b.String()
}

// terms are conditions as Rego, those that OPA can look up first.
func (c *chain) terms(when conditions, numbers map[string]int) []string {
	var terms []string
	for _, targets := range when.targets {
		if term := c.targetTerm(targets, numbers); term != "" {
			terms = append(terms, term)
		}
	}
	for _, agents := range when.agents {
		terms = append(terms, oneOf("input.agent_id", agents))
	}
	if when.kind != "" {
		terms = append(terms, oneOf("input.step_kind", []string{when.kind}))
	}
	for _, a := range when.arguments {
		c.paths = append(c.paths, a.path)
		ref := "input.args[" + quote(a.path) + "]"
		if a.equals != nil {
			terms = append(terms, oneOf(ref, []string{*a.equals}))
		}
		if len(a.oneOf) > 0 {
			terms = append(terms, oneOf(ref, a.oneOf))
		}
		if a.contains != "" {
			terms = append(terms, fmt.Sprintf("contains(%s, %s)", ref, quote(a.contains)))
		}
		if a.regex != nil {
			c.cache[a.regex.String()] = a.regex
			terms = append(terms, fmt.Sprintf("regex.match(%s, %s)", quote(a.regex.String()), ref))
		}
	}
	return terms
}

// targetTerm is empty for targets of which one matches everything.
func (c *chain) targetTerm(targets []target, numbers map[string]int) string {
	var exact []string
	patterns := make([]string, 0, len(targets))
	for _, t := range targets {
		if t.glob.everything() {
			return ""
		}
		if one, ok := t.glob.exact(); ok {
			exact = append(exact, one)
		}
		patterns = append(patterns, quote(t.pattern))
	}
	if len(exact) == len(targets) {
		return oneOf("input.target", exact)
	}
	list := strings.Join(patterns, ", ")
	number, known := numbers[list]
	if !known {
		number = len(c.globs)
		numbers[list] = number
		c.globs = append(c.globs, targets)
	}
	return fmt.Sprintf("%d in input.globs", number)
}

func oneOf(ref string, values []string) string {
	quoted := make([]string, len(values))
	for i, value := range values {
		quoted[i] = quote(value)
	}
	if len(quoted) == 1 {
		return ref + " == " + quoted[0]
	}
	return ref + " in {" + strings.Join(quoted, ", ") + "}"
}

// quote writes a string as Rego does, which is as JSON does.
func quote(s string) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(s) // a string always has an encoding
	return strings.TrimSuffix(b.String(), "\n")
}

func (c *chain) decide(ctx context.Context, in Input) (Decision, error) {
	input, err := c.input(in)
	if err != nil {
		return Decision{}, err
	}
	first, found, err := evaluate(ctx, c.query, rego.EvalParsedInput(input), rego.EvalInterQueryBuiltinValueCache(c.cache))
	if err != nil {
		return Decision{}, err
	}
	if found {
		number, ok := first.(json.Number)
		if !ok {
			return Decision{}, fmt.Errorf("%s is a %T", chainQuery, first)
		}
		i, err := number.Int64()
		if err != nil {
			return Decision{}, fmt.Errorf("%s: %w", chainQuery, err)
		}
		return c.set.rules[i].decision, nil
	}
	switch {
	case in.StepKind == protocol.KindLocal:
		return Decision{Decision: Allow, RuleID: protocol.RuleLocal}, nil
	case c.set.defaultAction == Allow:
		return Decision{Decision: Allow, RuleID: protocol.RuleDefault}, nil
	default:
		return Decision{Decision: Deny, RuleID: protocol.RuleDefault, Reason: protocol.ReasonNoRule}, nil
	}
}

var (
	keyTarget = ast.StringTerm("target")
	keyAgent  = ast.StringTerm("agent_id")
	keyKind   = ast.StringTerm("step_kind")
	keyArgs   = ast.StringTerm("args")
	keyGlobs  = ast.StringTerm("globs")
)

func (c *chain) input(in Input) (ast.Value, error) {
	args, err := c.arguments(in.Arguments)
	if err != nil {
		return nil, err
	}
	var globs []*ast.Term
	for i, targets := range c.globs {
		if slices.ContainsFunc(targets, func(t target) bool { return t.glob.matches(in.Target) }) {
			globs = append(globs, ast.InternedTerm(i))
		}
	}
	return ast.NewObject(
		[2]*ast.Term{keyTarget, ast.StringTerm(in.Target)},
		[2]*ast.Term{keyAgent, ast.StringTerm(in.AgentID)},
		[2]*ast.Term{keyKind, ast.StringTerm(in.StepKind)},
		[2]*ast.Term{keyArgs, ast.NewTerm(args)},
		[2]*ast.Term{keyGlobs, ast.ArrayTerm(globs...)},
	), nil
}

// arguments are the texts of the arguments that the rules name, as far as they are there.
func (c *chain) arguments(raw json.RawMessage) (ast.Value, error) {
	texts := ast.NewObject()
	if len(c.paths) == 0 {
		return texts, nil
	}
	arguments, err := readObject(raw)
	if err != nil {
		return nil, err
	}
	for _, path := range c.paths {
		value, ok := arguments.find(path)
		if !ok {
			continue
		}
		text, err := argumentText(value)
		if err != nil {
			return nil, fmt.Errorf("argument %s: %w", path, err)
		}
		texts.Insert(ast.StringTerm(path), ast.StringTerm(text))
	}
	return texts, nil
}

// regexCache has the regular expressions of the rules. OPA's own cache forgets all but a hundred.
type regexCache map[string]*regexp.Regexp

var _ cache.InterQueryValueCache = regexCache{}

// Get finds a pattern.
func (c regexCache) Get(key ast.Value) (any, bool) {
	pattern, ok := key.(ast.String)
	if !ok {
		return nil, false
	}
	re, ok := c[string(pattern)]
	return re, ok
}

// Insert does nothing: the cache is complete, and read by many at once.
func (c regexCache) Insert(ast.Value, any) int { return 0 }

// Delete does nothing.
func (c regexCache) Delete(ast.Value) {}

// GetCache gives the cache itself: nothing but regular expressions is ever asked for.
func (c regexCache) GetCache(string) cache.InterQueryValueCacheBucket { return c }

// UpdateConfig does nothing.
func (c regexCache) UpdateConfig(*cache.Config) {}
