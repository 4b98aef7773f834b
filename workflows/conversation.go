package workflows

import (
	"encoding/json"

	"github.com/tinerun/tine/internal/protocol"
)

// keptRequests is how many requests to models are remembered, to record later ones by what is new in
// them. More than one, for agents that have several conversations side by side.
const keptRequests = 4

// conversation remembers the last requests to models.
type conversation struct {
	requests []request // the newest last
}

type request struct {
	stepID   string
	messages []json.RawMessage
}

// remember keeps the messages of a recorded request.
func (c *conversation) remember(stepID string, messages []json.RawMessage) {
	if len(c.requests) == keptRequests {
		c.requests = append([]request{}, c.requests[1:]...)
	}
	c.requests = append(c.requests, request{stepID, messages})
}

// shorten gives what is new in a request, and the request on which that builds, if there is one.
func (c *conversation) shorten(args json.RawMessage, messages []json.RawMessage) (json.RawMessage, *protocol.MessagesBase) {
	best, base := args, (*protocol.MessagesBase)(nil)
	for _, earlier := range c.requests {
		short, common := protocol.SinceBase(args, messages, earlier.messages)
		if common > 0 && len(short) < len(best) {
			best, base = short, &protocol.MessagesBase{StepID: earlier.stepID, Count: common}
		}
	}
	return best, base
}
