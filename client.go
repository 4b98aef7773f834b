package tine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/history"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/worker/storage"
)

// DefaultTaskQueue is where executions run unless they are created for another one.
const DefaultTaskQueue = "tine"

// Options configure a Client.
type Options struct {
	// Namespace is the Temporal client's. Empty means "default".
	Namespace string
	// TaskQueue is where executions run. Empty means "tine".
	TaskQueue string
	// DataConverter and FailureConverter are the Temporal client's. Nil means Temporal's own.
	DataConverter    converter.DataConverter
	FailureConverter converter.FailureConverter
	// ExternalStorage is the Temporal client's, for payloads that are too large for a history.
	ExternalStorage converter.ExternalStorage
	// Identity is who decides approvals, unless a decision names somebody. It should be that of
	// the Temporal client's connection.
	Identity string
}

// Client starts, reads and forks executions.
type Client struct {
	temporal client.Client
	opts     Options
	decoder  eventlog.Decoder
}

// NewClient makes a Client from a Temporal client, which stays the caller's to close.
func NewClient(c client.Client, opts Options) *Client {
	if opts.Namespace == "" {
		opts.Namespace = client.DefaultNamespace
	}
	if opts.TaskQueue == "" {
		opts.TaskQueue = DefaultTaskQueue
	}
	return &Client{
		temporal: c, opts: opts,
		decoder: eventlog.Decoder{
			Data: opts.DataConverter, Failure: opts.FailureConverter, Resolve: storage.Resolver(opts.ExternalStorage),
		},
	}
}

// CreateRequest asks for a new execution.
type CreateRequest struct {
	// Agent is the agent's name. Required.
	Agent string
	// Input is the agent's input, as JSON. Empty means null.
	Input json.RawMessage
	// ID names the execution. Empty means a new UUID, whose order is that of time.
	ID string
	// TaskQueue is where it runs. Empty means the client's.
	TaskQueue string
	// Session is the label of the session that the execution belongs to. Executions of a session
	// run one at a time, in the order in which they were created, and continue the newest
	// completed one of their agent.
	Session string
	// Parent is the id of an execution to continue instead: a completed one of the same agent.
	Parent string
}

// Create starts an execution and returns at once, also if no worker runs. An id
// that has been used is an *ExistsError, and a parent that cannot be continued a *ParentError.
func (c *Client) Create(ctx context.Context, req CreateRequest) (*Execution, error) {
	if req.Agent == "" {
		return nil, errors.New("create execution: an agent is required")
	}
	if req.Parent != "" {
		if err := c.checkParent(ctx, req); err != nil {
			return nil, err
		}
	}
	var start *protocol.Start
	if req.Session != "" || req.Parent != "" {
		start = &protocol.Start{Session: req.Session, Parent: req.Parent}
	}
	return c.start(ctx, req, start)
}

func (c *Client) start(ctx context.Context, req CreateRequest, start *protocol.Start) (*Execution, error) {
	if len(req.Input) == 0 {
		req.Input = json.RawMessage("null")
	}
	if !json.Valid(req.Input) {
		return nil, errors.New("create execution: the input is not valid JSON")
	}
	if limit := cmp.Or(storage.Limit(c.opts.ExternalStorage), protocol.PayloadLimit); len(req.Input) > limit {
		return nil, fmt.Errorf("create execution: the input has %d bytes; at most %d fit%s", len(req.Input), limit, protocol.StorageHint(limit))
	}
	if req.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("create execution: %w", err)
		}
		req.ID = id.String()
	}
	if req.TaskQueue == "" {
		req.TaskQueue = c.opts.TaskQueue
	}
	withdraw, err := c.announce(ctx, req, start)
	if err != nil {
		return nil, err
	}
	run, err := c.startWorkflow(ctx, req, start)
	if err != nil {
		withdraw()
		return nil, err
	}
	log, err := history.Read(ctx, c.temporal, req.ID, run.GetRunID(), 0, c.decoder)
	if err != nil {
		return nil, fmt.Errorf("read execution %s: %w", req.ID, err)
	}
	return describeLog(log), nil
}

func (c *Client) startWorkflow(ctx context.Context, req CreateRequest, start *protocol.Start) (client.WorkflowRun, error) {
	opts := client.StartWorkflowOptions{
		ID:                                       req.ID,
		TaskQueue:                                req.TaskQueue,
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		StaticSummary:                            protocol.OneLine(protocol.FirstText(req.Input)),
		TypedSearchAttributes:                    attributes(req, start),
	}
	args := []any{req.Input}
	if start != nil {
		args = append(args, start)
	}
	run, err := c.temporal.ExecuteWorkflow(ctx, opts, req.Agent, args...)
	if lacksAttributes(err) {
		// The worker sets them once it has registered them.
		opts.TypedSearchAttributes = temporal.SearchAttributes{}
		run, err = c.temporal.ExecuteWorkflow(ctx, opts, req.Agent, args...)
	}
	var exists *serviceerror.WorkflowExecutionAlreadyStarted
	if errors.As(err, &exists) {
		return nil, &ExistsError{ExecutionID: req.ID}
	}
	if err != nil {
		return nil, fmt.Errorf("create execution: %w", err)
	}
	return run, nil
}

func attributes(req CreateRequest, start *protocol.Start) temporal.SearchAttributes {
	set := []temporal.SearchAttributeUpdate{
		temporal.NewSearchAttributeKeyKeyword(protocol.AttributeAgent).ValueSet(req.Agent),
		temporal.NewSearchAttributeKeyKeyword(protocol.AttributeStatus).ValueSet(StatusPending),
	}
	if req.Session != "" {
		set = append(set, temporal.NewSearchAttributeKeyKeyword(protocol.AttributeSession).ValueSet(req.Session))
	}
	if start != nil && start.Fork != nil {
		set = append(set,
			temporal.NewSearchAttributeKeyKeyword(protocol.AttributeForkedFrom).ValueSet(start.Fork.ExecutionID),
			temporal.NewSearchAttributeKeyInt64(protocol.AttributeForkSeq).ValueSet(start.Fork.AtSeq))
	}
	return temporal.NewSearchAttributes(set...)
}

// lacksAttributes reports whether the server refused Tine's search attributes because
// the namespace does not have them.
func lacksAttributes(err error) bool {
	var invalid *serviceerror.InvalidArgument
	return errors.As(err, &invalid) && containsAttribute(invalid.Message)
}

// Log reads an execution's whole event log as it is now.
func (c *Client) Log(ctx context.Context, id string) (*Log, error) {
	log, err := c.read(ctx, id)
	if err != nil {
		return nil, err
	}
	return &Log{log}, nil
}

func (c *Client) read(ctx context.Context, id string) (*eventlog.Log, error) {
	runID, err := c.run(ctx, id)
	if err != nil {
		return nil, err
	}
	log, err := history.Read(ctx, c.temporal, id, runID, 0, c.decoder)
	return log, named(id, err)
}

// run is the run id of an execution.
func (c *Client) run(ctx context.Context, id string) (string, error) {
	described, err := c.temporal.DescribeWorkflow(ctx, id, "")
	if err != nil {
		return "", named(id, err)
	}
	return described.WorkflowExecution.RunID, nil
}

// Cancel asks an execution to stop. Its running step is told; its handler
// decides what to do. One that has ended is a *ClosedError.
func (c *Client) Cancel(ctx context.Context, id string) error {
	described, err := c.temporal.DescribeWorkflow(ctx, id, "")
	if err != nil {
		return named(id, err)
	}
	if described.Status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return &ClosedError{ExecutionID: id, Status: closedStatus(described.Status)}
	}
	return named(id, c.temporal.CancelWorkflow(ctx, id, ""))
}

func closedStatus(status enumspb.WorkflowExecutionStatus) string {
	switch status {
	case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:
		return StatusRunning
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
		return StatusCompleted
	case enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED:
		return StatusCancelled
	default:
		return StatusFailed
	}
}

// rawJSON decodes a payload that holds JSON.
func (c *Client) rawJSON(payload *commonpb.Payload, into any) error {
	dc := c.opts.DataConverter
	if dc == nil {
		dc = converter.GetDefaultDataConverter()
	}
	return dc.FromPayload(payload, into)
}
