package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"go.yaml.in/yaml/v3"

	"github.com/tinerun/tine/internal/protocol"
)

// program is a policy that its author wrote in Rego. Its input document is Input as JSON, and
// its decision document, which must be an object, is data.tine.decision:
//
//	decision    allow, deny or require_approval
//	rule_id     which rule decided; "rego" if it does not say
//	reason      why
//	approval    approvers, timeout ("15m") and message
//	rate_limit  max_calls, window ("1m"), per_what, max_wait, on_limiter_error
//	budget      max_tokens, scope, on_exceed
//
// Only decision must be there. Anything else in it, and anything of the wrong type, is an error.
// So is an id or an approver that is too long for a rule; a reason or message that is too long is
// cut.
type program struct {
	query    rego.PreparedEvalQuery
	warnings []Problem
}

const (
	decisionQuery = "data.tine.decision"
	regoRule      = "rego"
)

var decisionRef = ast.MustParseRef(decisionQuery)

// alsoRefused depends on the clock without OPA saying so.
const alsoRefused = "crypto.x509.parse_and_verify_certificates"

// capabilities are what OPA offers without the functions that may give something else next
// time, and without any host to reach.
var capabilities, refused = deterministic()

func deterministic() (offered *ast.Capabilities, refused map[string]bool) {
	offered = ast.CapabilitiesForThisVersion()
	refused = map[string]bool{}
	offered.Builtins = slices.DeleteFunc(offered.Builtins, func(b *ast.Builtin) bool {
		if b.Nondeterministic || b.Name == alsoRefused {
			refused[b.Name] = true
		}
		return refused[b.Name]
	})
	offered.AllowNet = []string{} // nil would be any
	return offered, refused
}

// parseRego parses modules. Together they may have maxRego bytes.
func parseRego(files []Source) (map[string]*ast.Module, []Problem) {
	modules := map[string]*ast.Module{}
	var problems []Problem
	size := 0
	for i, file := range files {
		if size += len(file.Data); size > maxRego {
			return nil, []Problem{{File: file.Name, Message: fmt.Sprintf("the Rego of the policy has more than %d bytes, which is the most allowed", maxRego)}}
		}
		module, err := ast.ParseModuleWithOpts(file.Name, string(file.Data),
			ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: capabilities})
		if err != nil {
			problems = append(problems, regoProblems(file.Name, err)...)
		}
		modules[strconv.Itoa(i)] = module // two files may have one name
	}
	return modules, problems
}

// compileProgram compiles modules. file is named by problems that have no place of their own.
func compileProgram(ctx context.Context, file string, modules map[string]*ast.Module, data map[string]any) (*program, []Problem) {
	if problems := longChains(file, modules); len(problems) > 0 {
		return nil, problems
	}
	compiler := ast.NewCompiler().WithCapabilities(capabilities).SetErrorLimit(maxProblems)
	if compiler.Compile(modules); compiler.Failed() {
		return nil, regoProblems(file, compiler.Errors)
	}
	if len(compiler.GetRulesWithPrefix(decisionRef)) == 0 {
		return nil, []Problem{{File: file, Message: "no rule defines " + decisionQuery + "; write package tine and in it a rule named decision"}}
	}
	var store storage.Store = inmem.NewWithOpts()
	if len(data) > 0 {
		store = inmem.NewFromObjectWithOpts(data, inmem.OptReturnASTValuesOnRead(true))
	}
	// A function that fails, as contains on a number does, fails the decision. As OPA has it by
	// default it would be undefined, and a rule that denies would silently not apply.
	query, err := rego.New(rego.Compiler(compiler), rego.Store(store), rego.StrictBuiltinErrors(true),
		rego.Query(decisionQuery)).PrepareForEval(ctx)
	if err != nil {
		return nil, []Problem{{File: file, Message: err.Error()}}
	}
	return &program{query, notObjects(file, compiler.GetRulesExact(decisionRef))}, nil
}

// maxElse is how many branches an else chain may have. OPA's time to compile one grows with the
// square of its length at least: 4,000 branches take half a minute, and nothing stops it.
const maxElse = 500

func longChains(file string, modules map[string]*ast.Module) []Problem {
	var problems []Problem
	for _, key := range slices.Sorted(maps.Keys(modules)) {
		for _, rule := range modules[key].Rules {
			length := 0
			for branch := rule.Else; branch != nil; branch = branch.Else {
				length++
			}
			if length > maxElse {
				problems = append(problems, regoProblems(file, ast.NewError(ast.CompileErr, rule.Location,
					"%s has %d else branches, which takes too long to compile; at most %d are allowed",
					rule.Head.Name, length, maxElse))...)
			}
		}
	}
	return problems
}

// regoProblems takes OPA's errors apart.
func regoProblems(file string, err error) []Problem {
	var all ast.Errors
	var one *ast.Error
	switch {
	case errors.As(err, &all):
	case errors.As(err, &one):
		all = ast.Errors{one}
	default:
		return []Problem{{File: file, Message: err.Error()}}
	}
	var problems []Problem
	for _, e := range all {
		p := Problem{File: file, Message: e.Message}
		if e.Location != nil {
			p.Line = e.Location.Row
			if e.Location.File != "" {
				p.File = e.Location.File
			}
		}
		if name, ok := strings.CutPrefix(e.Message, "undefined function "); ok && refused[name] {
			p.Message = name + " is not allowed: it may give something else for the same step; not allowed: " +
				strings.Join(slices.Sorted(maps.Keys(refused)), ", ")
		}
		problems = append(problems, p)
	}
	return problems
}

func (p *program) decide(ctx context.Context, in Input) (Decision, error) {
	document, err := json.Marshal(in)
	if err != nil {
		return Decision{}, fmt.Errorf("the input of the policy: %w", err)
	}
	input, err := ast.ValueFromReader(strings.NewReader(string(document)))
	if err != nil {
		return Decision{}, fmt.Errorf("the input of the policy: %w", err)
	}
	// Some functions of OPA take the time from here, and no clock must.
	value, found, err := evaluate(ctx, p.query, rego.EvalParsedInput(input), rego.EvalTime(in.Time))
	if err != nil {
		return Decision{}, err
	}
	if !found {
		return Decision{}, errors.New(decisionQuery + " is undefined for this step; give decision a default")
	}
	return readDecision(value)
}

// readDecision reads a decision document.
func readDecision(value any) (Decision, error) {
	r := &reader{strict: true}
	n := node(value)
	fields := r.fields(n, decisionQuery, "decision", "rule_id", "reason", "approval", "rate_limit", "budget")
	var d Decision
	if n.Kind == yaml.MappingNode {
		d = r.readOutcome(n, fields, "approval")
	}
	d.RuleID = regoRule
	if id := fields["rule_id"]; id != nil {
		d.RuleID, _ = r.id(id, "rule_id")
		if slices.Contains(reserved, d.RuleID) {
			r.problem(id, "the rule_id %s is reserved; not allowed: %s", d.RuleID, strings.Join(reserved, ", "))
		}
	}
	if len(r.problems) == 0 {
		return d, nil
	}
	messages := make([]string, len(r.problems))
	for i, p := range r.problems {
		messages[i] = p.Message
	}
	return Decision{}, errors.New(protocol.Cut(decisionQuery+" is not a decision: "+strings.Join(messages, "; "), protocol.MaxReason))
}

// node makes a JSON value what YAML would have made of it, so that both are read alike.
func node(value any) *yaml.Node {
	switch v := value.(type) {
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			n.Content = append(n.Content, node(key), node(v[key]))
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range v {
			n.Content = append(n.Content, node(item))
		}
		return n
	case string:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: v}
	case json.Number:
		tag := "!!int"
		if strings.ContainsAny(string(v), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: string(v)}
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v)}
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
	}
}

// noMetrics saves the time that counting takes.
var noMetrics = metrics.NoOp()

// evaluate runs a query that has at most one result, until the end of ctx.
func evaluate(ctx context.Context, query rego.PreparedEvalQuery, opts ...rego.EvalOption) (value any, found bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, fmt.Errorf("no decision in time: %w", err)
	}
	cancel := topdown.NewCancel()
	defer context.AfterFunc(ctx, cancel.Cancel)()
	results, err := query.Eval(ctx, append(opts, rego.EvalExternalCancel(cancel), rego.EvalMetrics(noMetrics))...)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, false, fmt.Errorf("no decision in time: %w", ctx.Err())
	case err != nil:
		return nil, false, errors.New(protocol.Cut("evaluate the policy: "+err.Error(), protocol.MaxReason)) // it may quote arguments
	case len(results) == 0:
		return nil, false, nil
	}
	return results[0].Expressions[0].Value, true, nil
}
