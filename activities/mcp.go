package activities

import (
	"context"
	"encoding/json"

	"github.com/tinerun/tine/internal/protocol"
)

// MCPTool is a tool that an MCP server offers, as it stands in history.
type MCPTool = protocol.MCPTool

// MCPServer is a worker's connection to an MCP server. Package activities/mcp has one. Its methods
// are called from activities, so they may be called again after a crash, and concurrently, also after
// Close: a worker that starts again uses it again.
//
// Errors that another try may mend are marked with [Retryable], or with [Indeterminate] if the
// tool may have run. All others become the step's outcome.
type MCPServer interface {
	// ListTools gives the tools that the server offers now, each name once.
	ListTools(ctx context.Context) ([]MCPTool, error)
	// CallTool runs a tool with a JSON object. An error that the tool itself gives has its text.
	CallTool(ctx context.Context, tool string, args json.RawMessage) (json.RawMessage, error)
	// Close ends the connection, if there is one.
	Close()
}

// tineListMCPTools is the activity of the step that lists an MCP server's tools.
func (a *Activities) tineListMCPTools(ctx context.Context, _ json.RawMessage, envelope protocol.Call) (json.RawMessage, error) {
	return a.withMCP(ctx, envelope, func(ctx context.Context, server MCPServer) (any, error) {
		tools, err := server.ListTools(ctx)
		if tools == nil {
			tools = []MCPTool{}
		}
		return tools, err
	})
}

// tineCallMCPTool is the activity of a tool_call that an MCP server runs.
func (a *Activities) tineCallMCPTool(ctx context.Context, args json.RawMessage, envelope protocol.Call) (json.RawMessage, error) {
	return a.withMCP(ctx, envelope, func(ctx context.Context, server MCPServer) (any, error) {
		return server.CallTool(ctx, envelope.MCP.Tool, args)
	})
}

func (a *Activities) withMCP(ctx context.Context, envelope protocol.Call, body func(context.Context, MCPServer) (any, error)) (json.RawMessage, error) {
	if envelope.MCP == nil {
		envelope.MCP = &protocol.MCPTarget{}
	}
	server, ok := a.opts.MCPServers[envelope.MCP.Server]
	if !ok {
		return nil, errUnknownStep("MCP server", envelope.MCP.Server)
	}
	var result any
	err := supervise(ctx, envelope.Idempotency, func(ctx context.Context) (err error) {
		result, err = call(ctx, envelope.MCP.Server, body, server)
		return err
	})
	if err != nil {
		return nil, err
	}
	return a.fits(encodeResult(envelope.MCP.Server, result))
}
