package protocol

import "encoding/json"

// MCPSeparator stands between an MCP server's name and its tool's in the target of a step. The
// name of a server has none.
const MCPSeparator = "."

// MCPTarget names a tool of an MCP server, or the server if Tool is empty.
type MCPTarget struct {
	Server string `json:"server"`
	Tool   string `json:"tool,omitempty"`
}

// ListMCPTools is the arguments of the local step that lists the tools of an MCP server. The
// server's name is the step's target.
type ListMCPTools struct {
	Method string `json:"method"`
}

// MethodListTools is the one Method of ListMCPTools.
const MethodListTools = "tools/list"

// MCPTool is a tool that an MCP server offers.
type MCPTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	// Idempotency is what the server says of the tool, as one of the idempotency modes.
	Idempotency string `json:"idempotency,omitempty"`
}
