package worker

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/workflows"
)

// Item is something that a worker serves.
type Item interface {
	add(*items) error
}

type items struct {
	agents       []workflows.Agent
	tools, steps []activities.Handler
	descriptions map[string]string
	models       map[string]activities.Model
	mcpServers   map[string]activities.MCPServer
	drivers      []resources.AnyDriver
}

type itemFunc func(*items) error

func (f itemFunc) add(i *items) error { return f(i) }

// collect gathers the items and reports every mistake among them.
func collect(all []Item) (*items, error) {
	i := &items{descriptions: map[string]string{}, models: map[string]activities.Model{}, mcpServers: map[string]activities.MCPServer{}}
	var mistakes []error
	for _, item := range all {
		if err := item.add(i); err != nil {
			mistakes = append(mistakes, err)
		}
	}
	return i, errors.Join(mistakes...)
}

// Agent serves an agent. Its name is the workflow type. The handler must be a declared
// function, so that Temporal's workflowcheck finds it.
func Agent[In, Out any](name string, handler func(workflow.Context, In) (Out, error)) Item {
	return itemFunc(func(i *items) error {
		for _, other := range i.agents {
			if other.Name() == name {
				return fmt.Errorf("two agents are called %q", name)
			}
		}
		i.agents = append(i.agents, workflows.NewAgent(name, handler))
		return nil
	})
}

// Tool binds a tool to its body.
func Tool[A, R any](ref workflows.Tool[A, R], body func(context.Context, A) (R, error)) Item {
	return itemFunc(func(i *items) error {
		h, err := activities.NewHandler(ref.Name(), body)
		if err != nil {
			return fmt.Errorf("tool %w", err)
		}
		i.tools = append(i.tools, h)
		i.descriptions[ref.Name()] = ref.Description()
		return nil
	})
}

// Step binds a local step to its body.
func Step[A, R any](ref workflows.Step[A, R], body func(context.Context, A) (R, error)) Item {
	return itemFunc(func(i *items) error {
		h, err := activities.NewHandler(ref.Name(), body)
		if err != nil {
			return fmt.Errorf("local step %w", err)
		}
		i.steps = append(i.steps, h)
		return nil
	})
}

// Model binds a model reference to what answers for it.
func Model(ref workflows.Model, model activities.Model) Item {
	return itemFunc(func(i *items) error {
		if i.models[ref.Name()] != nil {
			return fmt.Errorf("two models are bound to %q", ref.Name())
		}
		i.models[ref.Name()] = model
		return nil
	})
}

// MCPServer binds a reference to an MCP server to the connection that the worker has with it, such
// as one of package activities/mcp. It is closed with the worker.
func MCPServer(ref workflows.MCPServer, server activities.MCPServer) Item {
	return itemFunc(func(i *items) error {
		if i.mcpServers[ref.Name()] != nil {
			return fmt.Errorf("two MCP servers are bound to %q", ref.Name())
		}
		i.mcpServers[ref.Name()] = server
		return nil
	})
}

// Driver serves the resources of a driver.
func Driver[H any](driver resources.Driver[H]) Item {
	return itemFunc(func(i *items) error {
		i.drivers = append(i.drivers, resources.Erase(driver))
		return nil
	})
}
