package tine

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// ForkRequest asks for a fork.
type ForkRequest struct {
	// ExecutionID is the source. It may be running or closed, and stays as it is.
	ExecutionID string
	// AtSeq is the event after which the fork goes its own way, from 1.
	AtSeq int64
	// ID names the fork. Empty means a new UUID.
	ID string
	// Input replaces the source's input. Empty keeps it.
	Input json.RawMessage
	// TaskQueue is where the fork runs. Empty means where the source was started.
	TaskQueue string
	// Session is the label of a new session that the fork begins. One that exists is a
	// *SessionExistsError. Empty means that the fork is in none, wherever its source is.
	Session string
	// Policy decides in the fork, and in forks of it, instead of the worker's own. Nil keeps what the
	// source has brought with it, if anything. Copied outcomes stay as they are.
	Policy *PolicyBundle
	// Effects is EffectsGuard or EffectsPolicy. Empty means EffectsGuard: what at_most_once
	// steps of the source have done since AtSeq needs approval before the fork does it again.
	Effects string
}

// PolicyBundle is a policy that a fork brings with it.
type PolicyBundle = protocol.PolicyBundle

// Modes of a fork's effects guard.
const (
	EffectsGuard  = protocol.EffectsGuard
	EffectsPolicy = protocol.EffectsPolicy
)

// maxPolicy bounds the files of a policy that a fork brings: they stand in its history, and go
// to a worker with each decision.
const maxPolicy = 512 << 10

// Fork starts a new execution that has the source's steps up to AtSeq, and its resources
// as the matching checkpoints hold them. No worker need run. An AtSeq outside
// of the source's log is a *SeqError.
func (c *Client) Fork(ctx context.Context, req ForkRequest) (*Execution, error) {
	if err := checkFork(&req); err != nil {
		return nil, err
	}
	source, err := c.read(ctx, req.ExecutionID)
	if err != nil {
		return nil, err
	}
	plan, err := source.PlanFork(req.AtSeq)
	if err != nil {
		return nil, fmt.Errorf("execution %s: %w", req.ExecutionID, err)
	}
	create := CreateRequest{
		Agent: source.AgentID, Input: req.Input, ID: req.ID, TaskQueue: req.TaskQueue,
		Session: req.Session, Parent: source.Parent,
	}
	if len(create.Input) == 0 {
		create.Input = source.Input
	}
	if create.TaskQueue == "" {
		create.TaskQueue = source.TaskQueue
	}
	records, err := source.Prefix(req.AtSeq)
	if err != nil {
		return nil, fmt.Errorf("execution %s: %w", req.ExecutionID, err)
	}
	fork := &protocol.Fork{
		ExecutionID: source.ExecutionID, RunID: source.RunID, AtSeq: plan.AtSeq,
		HistoryEvents: plan.HistoryEvents, Restoration: plan.Restoration,
		Effects: req.Effects,
	}
	if req.Effects == EffectsGuard {
		fork.Guarded = plan.Effects
	}
	if req.Policy == nil {
		req.Policy = source.Policy
	}
	fork.Page = firstPage(records, inlineBytes-policySize(req.Policy))
	return c.start(ctx, create, &protocol.Start{
		Session: req.Session, Parent: source.Parent, Policy: req.Policy, Fork: fork,
	})
}

// checkFork checks what can be without the source, and fills in what is empty.
func checkFork(req *ForkRequest) error {
	switch req.Effects {
	case "":
		req.Effects = EffectsGuard
	case EffectsGuard, EffectsPolicy:
	default:
		return fmt.Errorf("fork: effects is %q; it may be %s or %s", req.Effects, EffectsGuard, EffectsPolicy)
	}
	if size := policySize(req.Policy); size > maxPolicy {
		return fmt.Errorf("fork: the policy has %d bytes; a fork may bring at most %d", size, maxPolicy)
	}
	return nil
}

func policySize(policy *PolicyBundle) int {
	size := 0
	if policy != nil {
		for _, file := range policy.Files {
			size += len(file.Data)
		}
	}
	return size
}

// inlineBytes is how much of a prefix and a policy come with a fork's start. It is enough for
// hundreds of steps, and leaves the rest of what one request may hold to the input.
const inlineBytes = 512 << 10

// firstPage is the page of at most size bytes that comes with a fork's start, or nil if already
// the first record is too large for that.
func firstPage(records []protocol.PrefixRecord, size int) *protocol.PrefixPage {
	page := eventlog.Pages(records, 0, size)
	if raw, err := json.Marshal(page); err != nil || len(raw) > size {
		return nil
	}
	return &page
}
