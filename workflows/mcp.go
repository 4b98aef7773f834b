package workflows

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/protocol"
)

// mcpListTimeout is how long one attempt to list a server's tools may take. It includes the
// start of a server that is a command.
const mcpListTimeout = 5 * time.Minute

// MCPServer refers to a server of the Model Context Protocol, whose tools an agent calls. The
// worker binds it to a connection, whose credentials stay there.
type MCPServer struct {
	name    string
	only    []string
	options []mcpToolOptions
}

type mcpToolOptions struct {
	pattern string
	opts    []Option
}

// MCPOption declares which of a server's tools are used, and how.
type MCPOption func(*MCPServer)

// MCPOnly leaves out the tools whose names match none of the patterns, which are those of
// path.Match, but that they match slashes. Without it all are used. Fewer tools make shorter histories: every model call
// records the descriptions of those it is offered.
func MCPOnly(patterns ...string) MCPOption {
	checkPatterns(patterns...)
	return func(s *MCPServer) { s.only = append(s.only, patterns...) }
}

// MCPTools declares how the tools behave whose names match the pattern, as for MCPOnly. Of
// several that match, the last one counts.
//
//	workflows.MCPTools("search_*", workflows.WithSafeToRetry())
func MCPTools(pattern string, opts ...Option) MCPOption {
	checkPatterns(pattern)
	return func(s *MCPServer) { s.options = append(s.options, mcpToolOptions{pattern: pattern, opts: opts}) }
}

func checkPatterns(patterns ...string) {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil {
			panic(fmt.Sprintf("workflows: pattern %q of tools: %v", pattern, err))
		}
	}
}

// NewMCPServer declares the MCP server called name. The name is recorded in histories, as the first
// part of its tools' targets, and is what a policy matches. It panics on a name that is Tine's
// own, or that has other characters than letters, digits, _ and -.
func NewMCPServer(name string, opts ...MCPOption) MCPServer {
	checkName("MCP server", name)
	if name != modelName(name) {
		panic(fmt.Sprintf("workflows: MCP server %q: the name may have letters, digits, _ and -", name))
	}
	s := MCPServer{name: name}
	for _, opt := range opts {
		opt(&s)
	}
	return s
}

// Name is the server's name.
func (s MCPServer) Name() string { return s.name }

// Tools gives the server's tools. An execution lists them once, as a local step whose target is
// the server's name. The list is recorded: it stays as it is when the server offers others later,
// also in forks. The error is that of the step, as for [Step.Run].
//
// A tool call's target is the server's name, a dot and the tool's name, such as github.create_issue. For
// models, which are strict about names, a tool is called github__create_issue. A tool that its server
// calls neither read-only nor idempotent is at most once, unless [MCPTools] says otherwise.
func (s MCPServer) Tools(ctx workflow.Context) (Toolset, error) {
	x := executionFrom(ctx)
	// One list is all there is, also for two coroutines that ask at the same time.
	if err := x.mcpListing.Lock(ctx); err != nil {
		return Toolset{}, err
	}
	defer x.mcpListing.Unlock()
	listed, known := x.mcpTools[s.name]
	if !known {
		var err error
		if listed, err = s.list(ctx); err != nil {
			return Toolset{}, err
		}
		x.mcpTools[s.name] = listed
	}
	var set Toolset
	for _, tool := range listed {
		if s.uses(tool.Name) {
			set.addMCP(s.tool(tool))
		}
	}
	return set, nil
}

func (s MCPServer) list(ctx workflow.Context) ([]protocol.MCPTool, error) {
	args, err := protocol.Encode(protocol.ListMCPTools{Method: protocol.MethodListTools})
	if err != nil {
		return nil, err
	}
	return run[[]protocol.MCPTool](ctx, call{
		kind: protocol.KindLocal, target: s.name, args: args,
		activity: protocol.ActivityListMCPTools, mcp: &protocol.MCPTarget{Server: s.name},
		options: options{startToClose: mcpListTimeout, summary: "tools of " + s.name},
	})
}

func (s MCPServer) uses(tool string) bool {
	return len(s.only) == 0 || slices.ContainsFunc(s.only, func(p string) bool { return matches(p, tool) })
}

// slashless makes * match slashes, as it does in policies.
var slashless = strings.NewReplacer("/", "\x00")

// matches is path.Match for a pattern that has been checked.
func matches(pattern, name string) bool {
	ok, _ := path.Match(slashless.Replace(pattern), slashless.Replace(name))
	return ok
}

func (s MCPServer) tool(listed protocol.MCPTool) mcpTool {
	target := s.name + protocol.MCPSeparator + listed.Name
	t := mcpTool{
		name:   modelName(s.name + "__" + listed.Name),
		target: target,
		listed: listed,
		server: s.name,
		options: options{
			description: listed.Description,
			idempotency: listed.Idempotency,
		},
	}
	for _, declared := range s.options {
		if matches(declared.pattern, listed.Name) {
			t.options = newOptions(t.options, declared.opts)
		}
	}
	return t
}

// mcpTool is a tool of an MCP server.
type mcpTool struct {
	name, target, server string
	listed               protocol.MCPTool
	options              options
}

// Name is what the tool is called for models.
func (t mcpTool) Name() string { return t.name }

// Description is what a model is told of the tool.
func (t mcpTool) Description() string { return t.options.description }

func (t mcpTool) spec() (ToolSpec, bool) {
	return ToolSpec{Name: t.name, Description: t.options.description, Parameters: t.listed.Parameters}, true
}

func (t mcpTool) call(args json.RawMessage, opts []Option) call {
	o := newOptions(t.options, opts)
	if o.summary == "" { // the activity's type does not name the tool
		o.summary = strings.TrimSpace(t.target + " " + protocol.FirstText(args))
	}
	return call{
		kind: protocol.KindTool, target: t.target, args: args, options: o,
		activity: protocol.ActivityCallMCPTool, mcp: &protocol.MCPTarget{Server: t.server, Tool: t.listed.Name},
	}
}

// modelNameLimit is how long endpoints let names of tools be.
const modelNameLimit = 64

// modelName puts a name into the form that endpoints want: letters, digits, _ and -.
func modelName(name string) string {
	plain := strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '_' || r == '-' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9') {
			return r
		}
		return '_'
	}, name)
	if len(plain) > modelNameLimit {
		return marked(plain, name)
	}
	return plain
}

// marked ends a name with a few digits of what it stands for, so that it differs from others.
func marked(plain, name string) string {
	const digits = 8
	sum := sha256.Sum256([]byte(name))
	end := "_" + hex.EncodeToString(sum[:])[:digits]
	return plain[:min(len(plain), modelNameLimit-len(end))] + end
}

// addMCP adds a tool of an MCP server, under a name that is free: a.b and a_b look the same to a
// model.
func (s *Toolset) addMCP(tool mcpTool) {
	if !s.add(tool) {
		tool.name = marked(tool.name, tool.target)
		s.add(tool)
	}
}
