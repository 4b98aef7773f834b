package policy

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tinerun/tine/internal/protocol"
)

// Rule is a rule of a bundle's YAML.
type Rule struct {
	ID   string `json:"id"`
	File string `json:"file"`
	Line int    `json:"line"`
}

// ruleset is a YAML file: the first rule that matches a step decides it.
type ruleset struct {
	defaultAction string
	rules         []rule
	warnings      []Problem
}

type rule struct {
	Rule
	when     conditions
	decision Decision
}

// conditions match a step if all of them do.
type conditions struct {
	kind string
	// targets and agents have a list for each key, of which one item must match.
	targets   [][]target
	agents    [][]string
	arguments []argument
}

type target struct {
	pattern string
	glob    glob
}

// argument is what must hold for the text of the argument at path.
type argument struct {
	path     string
	equals   *string
	contains string
	oneOf    []string
	regex    *regexp.Regexp
}

// reserved are rule ids that Tine decides under. A rule with such an id could not be told apart.
var reserved = []string{
	protocol.RuleDefault, protocol.RuleLocal, protocol.RulePermissive,
	protocol.RuleBundleError, protocol.RuleForkEffect, protocol.RuleIndeterminateRetry,
}

// reservedInRules has the id of Rego that gives none, too.
var reservedInRules = append(slices.Clone(reserved), regoRule)

// readRules reads a YAML file. What it gives is of use only if there are no problems.
func readRules(file Source) (ruleset, []Problem) {
	r := &reader{file: file.Name}
	if len(file.Data) > maxRules {
		r.problem(&yaml.Node{}, "the file has %d bytes; at most %d are allowed", len(file.Data), maxRules)
		return ruleset{}, r.problems
	}
	document := r.document(file.Data)
	if document == nil {
		return ruleset{}, r.problems
	}
	set := r.ruleset(document)
	r.warnUnreached(set.rules)
	byLine := func(a, b Problem) int { return a.Line - b.Line }
	slices.SortStableFunc(r.problems, byLine)
	slices.SortStableFunc(r.warnings, byLine)
	set.warnings = r.warnings
	return set, r.problems
}

// document parses the one document that a file must have. An empty file is refused: it is more
// likely an accident than a policy.
func (r *reader) document(data []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	err := decoder.Decode(&document)
	switch {
	case errors.Is(err, io.EOF), err == nil && isNull(document.Content[0]):
		r.problem(&yaml.Node{}, "the file is empty; a policy needs at least default_action: deny (or allow)")
		return nil
	case err != nil:
		r.syntax(err)
		return nil
	}
	switch err := decoder.Decode(&second); {
	case errors.Is(err, io.EOF):
		return document.Content[0]
	case err != nil:
		r.syntax(err)
	default:
		r.problem(&second, "a second document begins here; only one is allowed")
	}
	return nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// isEmpty reports whether nothing is written behind a key, or an empty text.
func isEmpty(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Value == "" }

var yamlErrorLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntax takes the line out of the message of a YAML error, if it has one.
func (r *reader) syntax(err error) {
	n, message := &yaml.Node{}, strings.TrimPrefix(err.Error(), "yaml: ")
	if found := yamlErrorLine.FindStringSubmatch(err.Error()); found != nil {
		n.Line, _ = strconv.Atoi(found[1]) // digits, and too many of them give a line that is there neither
		message = strings.TrimPrefix(err.Error(), found[0])
	}
	r.problem(n, "not YAML: %s", message)
}

func (r *reader) ruleset(n *yaml.Node) ruleset {
	set := ruleset{defaultAction: Deny}
	fields := r.fields(n, "the file", "default_action", "rules")
	if action := fields["default_action"]; action != nil && !isEmpty(r.at(action)) {
		set.defaultAction = r.choice(action, "default_action", Allow, Deny)
	}
	list := fields["rules"]
	if list == nil || r.emptyList(list) {
		return set // a policy may consist of its default action
	}
	lines := map[string]int{}
	for _, item := range r.list(list, "rules") {
		rule := r.readRule(item)
		if first, taken := lines[rule.ID]; taken && rule.ID != "" {
			r.rule = rule.ID
			r.problem(r.at(item), "the rule on line %d has the same id; ids must differ", first)
		} else {
			lines[rule.ID] = rule.Line
		}
		set.rules = append(set.rules, rule)
	}
	r.rule = ""
	return set
}

func (r *reader) readRule(n *yaml.Node) rule {
	r.rule = ""
	line, before := r.at(n).Line, len(r.problems)
	fields := r.fields(n, "a rule", "id", "when", "then")
	if id := fields["id"]; id == nil {
		r.problem(r.at(n), "the rule has no id; every rule needs one of its own")
	} else if name, ok := r.id(id, "id"); ok {
		r.rule = name
		for i := range r.problems[before:] {
			r.problems[before+i].Rule = name // found before the name was
		}
		if slices.Contains(reservedInRules, name) {
			r.problem(id, "the id %s is reserved; not allowed: %s", name, strings.Join(reservedInRules, ", "))
		}
	}
	read := rule{Rule: Rule{ID: r.rule, File: r.file, Line: line}}
	if when := fields["when"]; when != nil && !isNull(r.at(when)) {
		read.when = r.readWhen(when)
	}
	if then := fields["then"]; then != nil && !isNull(r.at(then)) {
		read.decision = r.readThen(then)
	} else {
		r.problem(r.at(n), "the rule has no decision; allowed in then: decision: %s", strings.Join(decisions, ", "))
	}
	read.decision.RuleID = r.rule
	return read
}

func (r *reader) readWhen(n *yaml.Node) conditions {
	var when conditions
	fields := r.fields(n, "when", "step_kind", "target", "targets", "agent_id", "agent_ids", "arguments")
	if kind := fields["step_kind"]; kind != nil {
		// Kinds that this version does not know match nothing.
		when.kind, _ = r.name(kind, "step_kind")
		r.warnKind(kind, when.kind)
	}
	if one := fields["target"]; one != nil {
		when.targets = append(when.targets, r.readTargets("target", one))
	}
	if list := fields["targets"]; list != nil {
		when.targets = append(when.targets, r.readTargets("an item of targets", r.list(list, "targets")...))
	}
	if one := fields["agent_id"]; one != nil {
		name, _ := r.name(one, "agent_id")
		when.agents = append(when.agents, []string{name})
	}
	if list := fields["agent_ids"]; list != nil {
		when.agents = append(when.agents, r.names(list, "agent_ids"))
	}
	if arguments := fields["arguments"]; arguments != nil {
		when.arguments = r.readArguments(arguments)
	}
	r.warnNever(n, when)
	return when
}

func (r *reader) readTargets(what string, nodes ...*yaml.Node) []target {
	var targets []target
	for _, n := range nodes {
		pattern, ok := r.name(n, what)
		if !ok {
			continue
		}
		g, err := parseGlob(pattern)
		if err != nil {
			r.problem(n, "%s %q is not a pattern: %v", what, pattern, err)
		}
		if g.braces {
			r.warn(n, `braces in %s %q stand for themselves; name each in targets, or write \{ and \} for the characters`, what, pattern)
		}
		targets = append(targets, target{pattern, g})
	}
	return targets
}

func (r *reader) readArguments(n *yaml.Node) []argument {
	var arguments []argument
	paths := r.mapping(n, "arguments")
	if len(paths) == 0 && r.at(n).Kind == yaml.MappingNode {
		r.problem(r.at(n), "arguments is empty; leave it out to match any arguments")
	}
	for _, path := range paths {
		if path.key.Value == "" {
			r.problem(path.key, "the path of an argument is empty")
		}
		arguments = append(arguments, r.readArgument(path))
	}
	return arguments
}

var predicates = []string{"equals", "contains", "one_of", "regex"}

func (r *reader) readArgument(f field) argument {
	what := "the predicate of " + strconv.Quote(f.key.Value)
	a := argument{path: f.key.Value}
	if n := r.at(f.value); isNull(n) || n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		r.problem(f.key, "%s is empty; allowed: %s", what, strings.Join(predicates, ", "))
		return a
	}
	fields := r.fields(f.value, what, predicates...)
	if equals := fields["equals"]; equals != nil {
		if text, ok := r.text(equals, "equals"); ok {
			a.equals = &text
		}
	}
	if contains := fields["contains"]; contains != nil {
		a.contains, _ = r.name(contains, "contains")
	}
	if list := fields["one_of"]; list != nil {
		for _, item := range r.list(list, "one_of") {
			if text, ok := r.text(item, "an item of one_of"); ok {
				a.oneOf = append(a.oneOf, text)
			}
		}
	}
	if pattern := fields["regex"]; pattern != nil {
		a.regex = r.regex(pattern)
	}
	return a
}
