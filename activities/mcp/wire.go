package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os/exec"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/internal/endpoint"
	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// errorLimit bounds the text of a tool's error, which is for the model to read.
const errorLimit = 8 << 10

// describe puts a tool into the form of a history.
func describe(tool *sdk.Tool) (activities.MCPTool, error) {
	described := activities.MCPTool{Name: tool.Name, Description: tool.Description, Idempotency: protocol.AtMostOnce}
	if hints := tool.Annotations; hints != nil && (hints.ReadOnlyHint || hints.IdempotentHint) {
		described.Idempotency = protocol.SafeToRetry
	}
	var err error
	if described.Parameters, err = json.Marshal(tool.InputSchema); err != nil {
		return described, fmt.Errorf("schema of tool %s: %w", tool.Name, err)
	}
	return described, nil
}

// result is what a tool gives.
func (s *Server) result(result *sdk.CallToolResult) (json.RawMessage, error) {
	text := s.redact(textOf(result.Content))
	switch {
	case result.NeedsInput():
		return nil, errors.New("the tool asks for input, which nobody is there to give")
	case result.IsError:
		if text == "" {
			text = "the tool gives no reason"
		}
		return nil, errors.New(shorten(text))
	case result.StructuredContent == nil:
		return json.Marshal(text)
	}
	structured, err := json.Marshal(result.StructuredContent)
	return json.RawMessage(s.redact(string(structured))), err
}

// textOf is what a model can read of a result. It says of the rest that it is there.
func textOf(blocks []sdk.Content) string {
	texts := make([]string, 0, len(blocks))
	for _, block := range blocks {
		texts = append(texts, textOfBlock(block))
	}
	return strings.Join(texts, "\n")
}

func textOfBlock(block sdk.Content) string {
	switch b := block.(type) {
	case *sdk.TextContent:
		return b.Text
	case *sdk.ImageContent:
		return fmt.Sprintf("[image of type %s, %d bytes, left out]", b.MIMEType, len(b.Data))
	case *sdk.AudioContent:
		return fmt.Sprintf("[audio of type %s, %d bytes, left out]", b.MIMEType, len(b.Data))
	case *sdk.ResourceLink:
		return fmt.Sprintf("[resource %s: %s]", b.Name, b.URI)
	case *sdk.EmbeddedResource:
		if b.Resource == nil {
			return "[resource, left out]"
		}
		if b.Resource.Text != "" {
			return b.Resource.Text
		}
		return fmt.Sprintf("[resource %s of type %s, %d bytes, left out]", b.Resource.URI, b.Resource.MIMEType, len(b.Resource.Blob))
	default:
		return "[content of a type that is not known, left out]"
	}
}

func shorten(text string) string {
	if len(text) <= errorLimit {
		return text
	}
	return strings.ToValidUTF8(text[:errorLimit], "") + "…"
}

func invalidArguments(text string) error {
	return temporal.NewNonRetryableApplicationError(text, failure.TypeInvalidArguments, nil)
}

// Codes of the SDK's own errors, which no server has sent: rejected by the transport, server
// and client closing. It does not export them.
const (
	codeRejected      = -32005
	codeServerClosing = -32004
	codeClientClosing = -32003
)

// answered reports whether err is what the server has answered.
func answered(err error) (*jsonrpc.Error, bool) {
	var answer *jsonrpc.Error
	if !errors.As(err, &answer) {
		return nil, false
	}
	switch answer.Code {
	case codeRejected, codeServerClosing, codeClientClosing:
		return nil, false
	}
	return answer, true
}

// broken reports whether err ends a session, and not just a call.
func broken(err error) bool {
	var wire *jsonrpc.Error
	return !errors.As(err, &wire) || wire.Code == codeServerClosing || wire.Code == codeClientClosing
}

// connectError describes why there is no session. Nothing has run then.
func (s *Server) connectError(err error) error {
	described := fmt.Errorf("mcp: not connected: %s", s.clean(err))
	if _, ok := answered(err); ok || errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return described
	}
	if refused, ok := refusal(err, described); ok {
		return refused
	}
	return activities.Retryable(described)
}

// callError describes why a call gave no result.
func (s *Server) callError(err error) error {
	if answer, ok := answered(err); ok {
		return errors.New(endpoint.Clean(answer.Message, s.redact))
	}
	described := fmt.Errorf("mcp: %s", s.clean(err))
	if refused, ok := refusal(err, described); ok {
		return refused
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return activities.Retryable(described) // it was not sent
	}
	return activities.Indeterminate(described)
}

// refusal gives what a status says of trying again.
func refusal(err, described error) (error, bool) {
	var refused *statusError
	if !errors.As(err, &refused) {
		return nil, false
	}
	switch refused.status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return activities.RetryableAfter(described, refused.after), true
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: check the credentials", described), true
	default:
		return fmt.Errorf("%w: redirects are not followed: check the URL", described), true
	}
}

func (s *Server) clean(err error) string { return endpoint.Clean(err.Error(), s.redact) }
