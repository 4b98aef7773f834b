package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/history"
	"github.com/tinerun/tine/internal/protocol"
)

// maxConversations bounds the requests that a worker remembers, each with its whole conversation.
const maxConversations = 32

// conversations remembers the messages of requests to models, by run and step, so that the next
// request, which builds on one, is whole without a look at the history.
type conversations struct {
	mu       sync.Mutex
	keys     []string // the oldest first
	messages map[string][]json.RawMessage
}

func (c *conversations) get(key string) ([]json.RawMessage, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	messages, ok := c.messages[key]
	return messages, ok
}

func (c *conversations) put(key string, messages []json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.messages == nil {
		c.messages = map[string][]json.RawMessage{}
	}
	if _, known := c.messages[key]; known {
		return
	}
	c.messages[key] = messages
	c.keys = append(c.keys, key)
	if len(c.keys) > maxConversations {
		delete(c.messages, c.keys[0])
		c.keys = c.keys[1:]
	}
}

// request is the whole request of an llm_call, of which the activity has what is new.
func (a *Activities) request(ctx context.Context, raw json.RawMessage, base *protocol.MessagesBase) (GenerateRequest, error) {
	var request GenerateRequest
	if base != nil {
		earlier, err := a.earlier(ctx, base.StepID)
		if err != nil {
			return request, err
		}
		if raw, err = base.OnBase(raw, earlier); err != nil {
			return request, err
		}
	}
	info := activity.GetInfo(ctx)
	a.conversations.put(info.WorkflowExecution.RunID+"/"+info.ActivityID, protocol.Messages(raw))
	if err := protocol.Decode(raw, &request); err != nil {
		return request, temporal.NewNonRetryableApplicationError("the request does not fit: "+err.Error(), failure.TypeInvalidArguments, nil)
	}
	return request, nil
}

// earlier are the messages of an earlier request of the execution.
func (a *Activities) earlier(ctx context.Context, stepID string) ([]json.RawMessage, error) {
	execution := activity.GetInfo(ctx).WorkflowExecution
	if messages, ok := a.conversations.get(execution.RunID + "/" + stepID); ok {
		return messages, nil
	}
	log, err := history.Read(ctx, activity.GetClient(ctx), execution.ID, execution.RunID, 0, a.opts.Decoder)
	if err != nil {
		return nil, fmt.Errorf("read the conversation so far: %w", err)
	}
	step := log.Step(stepID)
	if step == nil {
		return nil, fmt.Errorf("the history of execution %s has no step %s, on whose messages this request builds", execution.ID, stepID)
	}
	return protocol.Messages(step.Args), nil
}
