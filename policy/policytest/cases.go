package policytest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

// Case is a step and what a policy should decide of it.
type Case struct {
	Name    string
	AgentID string
	// Kind is tool_call, llm_call or local.
	Kind   string
	Target string
	// Args are the step's arguments. Empty means none.
	Args json.RawMessage
	// Expect is one of the policy's decisions, and ExpectRule the rule that should take it.
	// An empty one expects nothing.
	Expect     string
	ExpectRule string
	// Line is where the case begins in its file, from 1.
	Line int
}

// FileError says what is wrong with a case file.
type FileError struct {
	Problems []policy.Problem
}

func (e *FileError) Error() string {
	var lines []string
	for _, p := range e.Problems {
		lines = append(lines, fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Message))
	}
	return strings.Join(lines, "\n")
}

// Beside is the case file that belongs to a policy's file.
func Beside(policyFile string) string {
	stem := strings.TrimSuffix(policyFile, ".tar.gz")
	if stem == policyFile {
		stem = strings.TrimSuffix(policyFile, filepath.Ext(policyFile))
	}
	return stem + ".policytest.yaml"
}

// ReadFile reads a case file. One that is not as it should be is a *FileError.
func ReadFile(path string) ([]Case, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse reads what a case file holds. The name is that of the file, for errors.
func Parse(name string, data []byte) ([]Case, error) {
	f := &file{name: name}
	cases := f.read(data)
	if len(f.problems) > 0 {
		return nil, &FileError{f.problems}
	}
	return cases, nil
}

// file collects what is wrong with a case file while it is read.
type file struct {
	name     string
	problems []policy.Problem
}

func (f *file) problem(line int, format string, args ...any) {
	f.problems = append(f.problems, policy.Problem{File: f.name, Line: line, Message: fmt.Sprintf(format, args...)})
}

func (f *file) read(data []byte) []Case {
	root := f.document(data)
	if root == nil {
		return nil
	}
	fields := f.mapping(root, "the file", "agent_id", "cases")
	agent := f.text(fields["agent_id"], "agent_id")
	list := fields["cases"]
	switch {
	case len(f.problems) > 0 && list == nil:
		return nil
	case list == nil || list.Kind == yaml.SequenceNode && len(list.Content) == 0 || list.ShortTag() == "!!null":
		f.problem(root.Line, "the file has no cases")
		return nil
	case list.Kind != yaml.SequenceNode:
		f.problem(list.Line, "cases must be a list")
		return nil
	}
	var cases []Case
	for i, node := range list.Content {
		cases = append(cases, f.testCase(resolved(node), i+1, agent))
	}
	return cases
}

// document is the file's one document.
func (f *file) document(data []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, more yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) || err == nil && document.Content[0].ShortTag() == "!!null" {
		f.problem(1, "the file has no cases")
		return nil
	}
	if err == nil {
		err = decoder.Decode(&more)
		if err == nil {
			f.problem(more.Line, "a second document; a case file has one")
			return nil
		}
	}
	if !errors.Is(err, io.EOF) {
		line, message := syntax(err)
		f.problem(line, "%s", message)
		return nil
	}
	return resolved(document.Content[0])
}

// syntax takes the line out of an error of the YAML parser, which tells it in words only.
func syntax(err error) (line int, message string) {
	message = strings.TrimPrefix(err.Error(), "yaml: ")
	if n, _ := fmt.Sscanf(message, "line %d: ", &line); n == 1 {
		_, message, _ = strings.Cut(message, ": ")
	}
	return max(line, 1), "not valid YAML: " + message
}

func (f *file) testCase(node *yaml.Node, number int, agent string) Case {
	before := len(f.problems)
	fields := f.mapping(node, "a case", "name", "agent_id", "kind", "target", "args", "expect", "expect_rule")
	c := Case{
		Name: f.text(fields["name"], "name"), AgentID: f.text(fields["agent_id"], "agent_id"),
		Kind: f.text(fields["kind"], "kind"), Target: f.text(fields["target"], "target"),
		Expect: f.text(fields["expect"], "expect"), ExpectRule: f.text(fields["expect_rule"], "expect_rule"),
		Line: node.Line,
	}
	if fields["agent_id"] == nil {
		c.AgentID = agent
	}
	if c.Name == "" {
		c.Name = fmt.Sprintf("case %d", number)
	}
	if fields["kind"] == nil {
		c.Kind = protocol.KindTool
	}
	if args := fields["args"]; args != nil {
		raw, err := toJSON(args)
		if err != nil {
			f.problem(err.line, "args: %s", err.message)
		}
		c.Args = raw
	}
	if len(f.problems) == before { // one that cannot be read has no use for more
		f.check(c, fields)
	}
	return c
}

func (f *file) check(c Case, fields map[string]*yaml.Node) {
	if c.Target == "" {
		f.problem(c.Line, "%s: target is missing", c.Name)
	}
	switch c.Kind {
	case protocol.KindTool, protocol.KindLLM, protocol.KindLocal:
	default:
		f.problem(fields["kind"].Line, "%s: unknown kind %q; it is tool_call, llm_call or local", c.Name, c.Kind)
	}
	switch {
	case fields["expect"] == nil && c.ExpectRule != "":
	case fields["expect"] == nil:
		f.problem(c.Line, "%s: expects nothing; give expect, expect_rule or both", c.Name)
	case c.Expect != policy.Allow && c.Expect != policy.Deny && c.Expect != policy.RequireApproval:
		f.problem(fields["expect"].Line, "%s: unknown expect %q; it is allow, deny or require_approval", c.Name, c.Expect)
	}
}

// mapping gives the values of a mapping by key.
func (f *file) mapping(node *yaml.Node, what string, allowed ...string) map[string]*yaml.Node {
	if node.Kind != yaml.MappingNode {
		f.problem(node.Line, "%s must be a mapping with %s", what, strings.Join(allowed, ", "))
		return nil
	}
	fields := map[string]*yaml.Node{}
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], resolved(node.Content[i+1])
		switch known := isOneOf(key.Value, allowed); {
		case !known:
			f.problem(key.Line, "unknown key %q; %s has %s", key.Value, what, strings.Join(allowed, ", "))
		case fields[key.Value] != nil:
			f.problem(key.Line, "%s stands here twice", key.Value)
		default:
			fields[key.Value] = value
		}
	}
	return fields
}

func isOneOf(key string, allowed []string) bool {
	for _, name := range allowed {
		if key == name {
			return true
		}
	}
	return false
}

// text is a scalar as it is spelled: a target may be 7 or true. Null and none are empty.
func (f *file) text(node *yaml.Node, key string) string {
	switch {
	case node == nil || node.ShortTag() == "!!null":
		return ""
	case node.Kind != yaml.ScalarNode:
		f.problem(node.Line, "%s must be a text", key)
		return ""
	default:
		return node.Value
	}
}

// resolved is the node that an alias stands for.
func resolved(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}
