package policy

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/tinerun/tine/internal/protocol"
)

// reader takes a policy document apart and collects all that is wrong with it.
type reader struct {
	file string
	// rule is the id of the rule that is being read.
	rule string
	// strict refuses numbers and booleans as text, which in YAML are just words without quotes.
	strict   bool
	problems []Problem
	warnings []Problem
	// visited counts the nodes read, those behind aliases each time.
	visited int
	// instructions counts those that all regular expressions compile to.
	instructions int
}

const (
	// maxVisited is more than a file of maxRules has nodes, so that only aliases of aliases can
	// get there.
	maxVisited = 1 << 20
	// maxProblems is more than anybody reads, and little enough to keep.
	maxProblems = 1000
	// maxMessage is in bytes. Messages quote the file, which may have a megabyte on one line.
	maxMessage = 500
	// maxInstructions takes some 100 MB. A few characters of a regular expression can stand for
	// thousands.
	maxInstructions = 1 << 20
	// maxMerges is how deep mappings may be merged (<<) into mappings. One merged into itself
	// has no end.
	maxMerges = 16
)

func (r *reader) problem(n *yaml.Node, format string, args ...any) {
	r.problems = r.tell(r.problems, n, format, args...)
}

// warn tells of something that is no problem, and hardly meant.
func (r *reader) warn(n *yaml.Node, format string, args ...any) {
	r.warnings = r.tell(r.warnings, n, format, args...)
}

func (r *reader) tell(told []Problem, n *yaml.Node, format string, args ...any) []Problem {
	switch {
	case len(told) > maxProblems:
		return told
	case len(told) == maxProblems:
		format, args = "from here on there are more problems than %d", []any{maxProblems}
	}
	message := fmt.Sprintf(format, args...)
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	return append(told, Problem{File: r.file, Line: n.Line, Rule: r.rule, Message: message})
}

// at gives the node that n stands for.
func (r *reader) at(n *yaml.Node) *yaml.Node {
	r.visited++
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// exhausted reports whether aliases have blown the document up. It says so once.
func (r *reader) exhausted(n *yaml.Node) bool {
	if r.visited == maxVisited {
		r.visited++
		r.problem(n, "with its aliases written out the file has more than %d values", maxVisited)
	}
	return r.visited > maxVisited
}

// field is a key of a mapping with its value.
type field struct {
	key   *yaml.Node
	value *yaml.Node
}

// mapping gives the fields of a mapping in their order, those that are merged into it last.
func (r *reader) mapping(n *yaml.Node, what string) []field {
	return r.merged(n, what, map[string]int{}, 0)
}

// merged leaves out the keys that seen has, with their lines, from mappings that merge n.
func (r *reader) merged(n *yaml.Node, what string, seen map[string]int, depth int) []field {
	n = r.at(n)
	if r.exhausted(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.problem(n, "%s must be a mapping", what)
		return nil
	}
	var fields []field
	var merges []*yaml.Node
	own := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := r.at(n.Content[i]), n.Content[i+1]
		switch {
		case r.exhausted(key):
			return nil
		case key.Kind != yaml.ScalarNode:
			r.problem(key, "a key in %s must be a word", what)
		case key.ShortTag() == "!!merge":
			merges = append(merges, value)
		case own[key.Value] > 0:
			r.problem(key, "%s has %s twice; the first is on line %d", what, key.Value, own[key.Value])
		default:
			own[key.Value] = max(key.Line, 1)
			if _, hidden := seen[key.Value]; !hidden {
				fields = append(fields, field{key, value})
			}
		}
	}
	for key, line := range own {
		seen[key] = line
	}
	for _, merge := range merges {
		if depth == maxMerges {
			r.problem(merge, "mappings are merged (<<) more than %d deep", maxMerges)
			return fields
		}
		sources := []*yaml.Node{merge}
		if list := r.at(merge); list.Kind == yaml.SequenceNode {
			sources = list.Content
		}
		for _, source := range sources {
			fields = append(fields, r.merged(source, "what is merged (<<) into "+what, seen, depth+1)...)
		}
	}
	return fields
}

// fields gives the values of a mapping that may have the allowed keys and no others.
func (r *reader) fields(n *yaml.Node, what string, allowed ...string) map[string]*yaml.Node {
	values := map[string]*yaml.Node{}
	for _, f := range r.mapping(n, what) {
		if !slices.Contains(allowed, f.key.Value) {
			r.problem(f.key, "unknown key %q in %s; allowed: %s", f.key.Value, what, strings.Join(allowed, ", "))
			continue
		}
		values[f.key.Value] = f.value
	}
	return values
}

// list gives the items of a sequence, which must have some.
func (r *reader) list(n *yaml.Node, what string) []*yaml.Node {
	n = r.at(n)
	switch {
	case r.exhausted(n):
		return nil
	case n.Kind != yaml.SequenceNode:
		r.problem(n, "%s must be a list", what)
		return nil
	case len(n.Content) == 0:
		r.problem(n, "%s is an empty list; leave it out or name something", what)
	}
	return n.Content
}

// text gives a string, or a number or boolean as it is spelled. The problem of anything else
// names the words that are allowed, if only some are.
func (r *reader) text(n *yaml.Node, what string, allowed ...string) (text string, ok bool) {
	n = r.at(n)
	if r.exhausted(n) {
		return "", false
	}
	if n.Kind == yaml.ScalarNode {
		switch n.ShortTag() {
		case "!!str":
			return n.Value, true
		case "!!int", "!!float", "!!bool", "!!timestamp":
			if !r.strict {
				return n.Value, true
			}
		case "!!null":
			if len(allowed) == 0 {
				r.problem(n, `%s has no value; write "" for an empty text, "null" in quotes for the word`, what)
				return "", false
			}
		}
	}
	if len(allowed) == 0 {
		r.problem(n, "%s must be a text", what)
		return "", false
	}
	r.problem(n, "%s must be a text; allowed: %s", what, strings.Join(allowed, ", "))
	return "", false
}

// name gives a text that is not empty.
func (r *reader) name(n *yaml.Node, what string) (name string, ok bool) {
	name, ok = r.text(n, what)
	if ok && name == "" {
		r.problem(n, "%s is empty", what)
		return "", false
	}
	return name, ok
}

// names gives a list of texts that are not empty.
func (r *reader) names(n *yaml.Node, what string) []string {
	var names []string
	for _, item := range r.list(n, what) {
		if name, ok := r.name(item, "an item of "+what); ok {
			names = append(names, name)
		}
	}
	return names
}

// short refuses a text of more than most bytes.
func (r *reader) short(n *yaml.Node, what, text string, most int) bool {
	if len(text) > most {
		r.problem(n, "%s has %d bytes; at most %d are allowed", what, len(text), most)
	}
	return len(text) <= most
}

// prose gives a text for people. Rego may have quoted a step's arguments in it, so that it is
// cut where it is too long.
func (r *reader) prose(n *yaml.Node, what string) string {
	text, ok := r.text(n, what)
	if ok && !r.strict {
		r.short(n, what, text, protocol.MaxReason)
	}
	return protocol.Cut(text, protocol.MaxReason)
}

// id gives the id of a rule. It stands in a line of its own in logs and tables.
func (r *reader) id(n *yaml.Node, what string) (id string, ok bool) {
	id, ok = r.name(n, what)
	if !ok || !r.short(n, what, id, protocol.MaxRuleID) {
		return "", false
	}
	if strings.ContainsFunc(id, func(c rune) bool { return unicode.In(c, unicode.Cc, unicode.Zl, unicode.Zp) }) {
		r.problem(n, "the %s %q has line breaks or control characters; neither is allowed", what, id)
		return "", false
	}
	return id, true
}

// approvers gives the names of those who may decide an approval.
func (r *reader) approvers(n *yaml.Node) []string {
	items := r.list(n, "approvers")
	if len(items) > protocol.MaxApprovers {
		r.problem(n, "approvers has %d names; at most %d are allowed", len(items), protocol.MaxApprovers)
		return nil
	}
	var names []string
	for _, item := range items {
		const what = "an item of approvers"
		if name, ok := r.name(item, what); ok && r.short(item, what, name, protocol.MaxApprover) {
			names = append(names, name)
		}
	}
	return names
}

// choice gives one of the words that are allowed.
func (r *reader) choice(n *yaml.Node, what string, allowed ...string) string {
	word, ok := r.text(n, what, allowed...)
	if ok && !slices.Contains(allowed, word) {
		r.problem(n, "unknown %s %q; allowed: %s", what, word, strings.Join(allowed, ", "))
	}
	return word
}

// integer gives a whole number of at least least.
func (r *reader) integer(n *yaml.Node, what string, least int64) int64 {
	n = r.at(n)
	value, err := strconv.ParseInt(n.Value, 10, 64)
	switch {
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil:
		r.problem(n, "%s must be a whole number in decimal digits", what)
	case value < least:
		r.problem(n, "%s is %d; it must be at least %d", what, value, least)
	}
	return value
}

// duration gives a time that is not negative.
func (r *reader) duration(n *yaml.Node, what string) Duration {
	value, word, ok := r.parseDuration(n, what)
	if ok && value < 0 {
		r.problem(n, "%s is %s; it must be at least 0s", what, word)
	}
	return value
}

// time gives a time of which there is some. Zero stands for a default or for no limit in a
// Decision, and whoever writes it down hardly means that.
func (r *reader) time(n *yaml.Node, what, instead string) Duration {
	value, word, ok := r.parseDuration(n, what)
	if ok && value <= 0 {
		r.problem(n, "%s is %s; it must be more than 0: %s", what, word, instead)
	}
	return value
}

func (r *reader) parseDuration(n *yaml.Node, what string) (value Duration, word string, ok bool) {
	word, ok = r.text(n, what)
	if !ok {
		return 0, "", false
	}
	parsed, err := time.ParseDuration(word)
	if err != nil {
		r.problem(n, "%s: %q is not a duration like 30s, 15m or 1h30m", what, word)
	}
	return Duration(parsed), word, err == nil
}

// regex compiles a regular expression.
func (r *reader) regex(n *yaml.Node) *regexp.Regexp {
	pattern, ok := r.name(n, "regex")
	if !ok || r.instructions > maxInstructions {
		return nil
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		r.problem(n, "%q is not a regular expression (RE2): %s", pattern, strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		return nil
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		r.problem(n, "%q is not a regular expression (RE2): %v", pattern, err)
		return nil
	}
	if r.instructions += len(program.Inst); r.instructions > maxInstructions {
		r.problem(n, "the regular expressions up to here are too big together; repeat less in them, as with {1000}")
		return nil
	}
	return regexp.MustCompile(pattern) // it does what has just been done, and more
}
