package workflows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// Tool refers to a tool with arguments A and result R. Its handler is bound to it
// in a worker. Both types are encoded as JSON, and A gives the schema that a model sees.
type Tool[A, R any] struct {
	name    string
	options options
}

// NewTool declares the tool called name. The name is recorded in histories and is the
// activity type that Temporal's UI shows. It panics on a name that is empty or
// is Tine's own.
func NewTool[A, R any](name string, opts ...Option) Tool[A, R] {
	checkName("tool", name)
	return Tool[A, R]{name: name, options: newOptions(options{}, opts)}
}

// Name is the tool's name.
func (t Tool[A, R]) Name() string { return t.name }

// Description is what a model is told of the tool.
func (t Tool[A, R]) Description() string { return t.options.description }

// Call runs the tool and returns its result: a *StepError if it failed, a *PolicyError if
// it was refused.
func (t Tool[A, R]) Call(ctx workflow.Context, args A, opts ...Option) (R, error) {
	raw, err := t.encode(args)
	if err != nil {
		var none R
		return none, err
	}
	return run[R](ctx, t.call(raw, opts))
}

// Start begins the tool and returns at once. The step's place among identical calls
// is fixed by the order of Start. While the execution has resources, tools
// run one at a time all the same.
func (t Tool[A, R]) Start(ctx workflow.Context, args A, opts ...Option) Future[R] {
	raw, err := t.encode(args)
	if err != nil {
		return failed[R](ctx, err)
	}
	return start[R](ctx, t.call(raw, opts))
}

func (t Tool[A, R]) encode(args A) (json.RawMessage, error) {
	raw, err := protocol.Encode(args)
	if err != nil {
		return nil, &StepError{Kind: protocol.KindTool, Target: t.name, Reason: ReasonInvalidArguments, Message: err.Error()}
	}
	return raw, nil
}

func (t Tool[A, R]) call(args json.RawMessage, opts []Option) call {
	return call{kind: protocol.KindTool, target: t.name, args: args, options: newOptions(t.options, opts)}
}

func (t Tool[A, R]) spec() (ToolSpec, bool) { return ToolSpec{}, false }

// AnyTool is a Tool of any types, or one of an MCP server.
type AnyTool interface {
	Name() string
	Description() string
	call(args json.RawMessage, opts []Option) call
	// spec describes the tool to a model where the worker cannot.
	spec() (ToolSpec, bool)
}

// Toolset calls tools by name, for a model that picks them.
type Toolset struct {
	names  []string
	byName map[string]AnyTool
}

// Tools makes a Toolset. It panics if two tools have the same name.
func Tools(tools ...AnyTool) Toolset {
	var set Toolset
	for _, tool := range tools {
		if !set.add(tool) {
			panic(fmt.Sprintf("workflows: tool %q is in the set twice", tool.Name()))
		}
	}
	return set
}

func (s *Toolset) add(tool AnyTool) bool {
	if s.byName[tool.Name()] != nil {
		return false
	}
	if s.byName == nil {
		s.byName = map[string]AnyTool{}
	}
	s.byName[tool.Name()] = tool
	s.names = append(s.names, tool.Name())
	return true
}

// With is the set with the tools of others after its own, such as those of an MCP server. A name
// that is in two of them is an error.
func (s Toolset) With(others ...Toolset) (Toolset, error) {
	var all Toolset
	for _, set := range append([]Toolset{s}, others...) {
		for _, name := range set.names {
			if !all.add(set.byName[name]) {
				return Toolset{}, configurationError("tool %q is in two sets", name)
			}
		}
	}
	return all, nil
}

// Names lists the tools' names in their order. They go into a GenerateRequest's Tools.
func (s Toolset) Names() []string { return slices.Clone(s.names) }

// Specs describes those of the tools that the worker does not know: an MCP server's. They go into a
// GenerateRequest's ToolSpecs.
func (s Toolset) Specs() []ToolSpec {
	var specs []ToolSpec
	for _, name := range s.names {
		if spec, ok := s.byName[name].spec(); ok {
			specs = append(specs, spec)
		}
	}
	return specs
}

// Call runs the tool called name with JSON arguments. A name that is not in the
// set and arguments that are not JSON are a *StepError that says so in words
// a model can act on, and nothing is recorded.
func (s Toolset) Call(ctx workflow.Context, name string, args json.RawMessage, opts ...Option) (json.RawMessage, error) {
	return s.Start(ctx, name, args, opts...).Get(ctx)
}

// Start is Call that returns at once.
func (s Toolset) Start(ctx workflow.Context, name string, args json.RawMessage, opts ...Option) Future[json.RawMessage] {
	tool := s.byName[name]
	if tool == nil {
		return failed[json.RawMessage](ctx, &StepError{
			Kind: protocol.KindTool, Target: name, Reason: ReasonUnknownTool,
			Message: fmt.Sprintf("there is no tool %q; there are: %s", name, strings.Join(s.names, ", ")),
		})
	}
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}") // what models send for a tool without parameters
	}
	if !protocol.IsJSON(args) {
		return failed[json.RawMessage](ctx, &StepError{
			Kind: protocol.KindTool, Target: name, Reason: ReasonInvalidArguments,
			Message: "the arguments are not valid JSON",
		})
	}
	return start[json.RawMessage](ctx, tool.call(args, opts))
}

func checkName(what, name string) {
	if name == "" {
		panic("workflows: a " + what + " needs a name")
	}
	if protocol.Reserved(name) {
		panic(fmt.Sprintf("workflows: %s %q: the name is Tine's own", what, name))
	}
}
