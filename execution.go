package tine

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/tinerun/tine/internal/eventlog"
	"github.com/tinerun/tine/internal/protocol"
)

// What an execution's history says, in the shapes of the command line's JSON.
type (
	Event       = eventlog.Event
	Step        = eventlog.Step
	Resource    = eventlog.Resource
	Checkpoint  = eventlog.Checkpoint
	ForkPoints  = eventlog.ForkPoints
	Divergence  = protocol.Divergence
	Restoration = protocol.Restoration
	StepError   = protocol.StepError
)

// Statuses of an execution.
const (
	StatusPending   = protocol.StatusPending
	StatusRunning   = protocol.StatusRunning
	StatusBlocked   = protocol.StatusBlocked
	StatusCompleted = protocol.StatusCompleted
	StatusFailed    = protocol.StatusFailed
	StatusCancelled = protocol.StatusCancelled
)

// Execution describes one run of an agent on an input.
type Execution struct {
	ID      string `json:"id"`
	RunID   string `json:"run_id,omitempty"`
	AgentID string `json:"agent_id"`
	// Status is one of the Status constants.
	Status            string          `json:"status"`
	Input             json.RawMessage `json:"input,omitempty"`
	Output            json.RawMessage `json:"output,omitempty"`
	FailureReason     string          `json:"failure_reason,omitempty"`
	Session           string          `json:"session,omitempty"`
	ParentExecutionID string          `json:"parent_execution_id,omitempty"`
	// ForkedFrom, ForkSeq and Restoration are set for forks.
	ForkedFrom    string                 `json:"forked_from,omitempty"`
	ForkSeq       int64                  `json:"fork_seq,omitempty"`
	Restoration   map[string]Restoration `json:"restoration,omitempty"`
	CreatedAt     time.Time              `json:"created_at"`
	ClosedAt      *time.Time             `json:"closed_at,omitempty"`
	LatestSeq     int64                  `json:"latest_seq,omitempty"`
	HistoryEvents int64                  `json:"history_events,omitempty"`
	// Runs are the run ids of the workflow, oldest first.
	Runs      []string    `json:"runs,omitempty"`
	TaskQueue string      `json:"task_queue,omitempty"`
	Resources []*Resource `json:"resources,omitempty"`
	// Approvals are the pending ones.
	Approvals []*Approval `json:"approvals,omitempty"`
	// Policy is what decides the execution's steps, as far as that is known.
	Policy *PolicyInfo `json:"policy,omitempty"`
	// GuardedEffects are what a fork may not do again unasked: its source has done it.
	GuardedEffects []Effect    `json:"guarded_effects,omitempty"`
	Divergence     *Divergence `json:"divergence,omitempty"`
	// Pending are the activities under way, with what Temporal knows of their attempts.
	Pending []PendingActivity `json:"pending,omitempty"`
	// Notes say in words what keeps the execution from going on.
	Notes []string `json:"notes,omitempty"`
}

// Effect names what at_most_once steps have done.
type Effect = protocol.Effect

// PolicyInfo says which policy decides an execution's steps.
type PolicyInfo struct {
	Digest string `json:"digest,omitempty"`
	// Source is "worker", or "fork" for one that the execution has brought with it.
	Source string `json:"source"`
	// Unrestricted says that there is none, so that every step is allowed.
	Unrestricted bool `json:"unrestricted,omitempty"`
}

// describePolicy says which policy decided last, or would have first. It is nil if the log
// does not say.
func describePolicy(log *eventlog.Log) *PolicyInfo {
	if log.Policy != nil {
		return &PolicyInfo{Digest: log.Policy.Digest, Source: "fork"}
	}
	for _, step := range slices.Backward(log.Steps) {
		switch {
		case step.Replayed:
		case step.RuleID == protocol.RulePermissive:
			return &PolicyInfo{Source: "worker", Unrestricted: true}
		case step.PolicyDigest != "":
			return &PolicyInfo{Digest: step.PolicyDigest, Source: "worker"}
		}
	}
	if log.PolicyDigest == "" && !log.Unrestricted {
		return nil
	}
	return &PolicyInfo{Digest: log.PolicyDigest, Source: "worker", Unrestricted: log.Unrestricted}
}

// Closed reports whether the execution has ended.
func (e *Execution) Closed() bool {
	switch e.Status {
	case StatusCompleted, StatusFailed, StatusCancelled:
		return true
	default:
		return false
	}
}

// PendingActivity is an activity that has not ended.
type PendingActivity struct {
	// StepID is set if the activity is a step's.
	StepID      string     `json:"step_id,omitempty"`
	Type        string     `json:"type"`
	State       string     `json:"state"` // scheduled, started or cancel_requested
	Attempt     int32      `json:"attempt"`
	LastFailure string     `json:"last_failure,omitempty"`
	ScheduledAt *time.Time `json:"scheduled_at,omitempty"`
	NextAttempt *time.Time `json:"next_attempt_at,omitempty"`
}

func describeLog(log *eventlog.Log) *Execution {
	e := &Execution{
		ID: log.ExecutionID, RunID: log.RunID, AgentID: log.AgentID, Status: log.Status,
		Input: log.Input, Output: log.Output, FailureReason: log.FailureReason,
		Session: log.Session, ParentExecutionID: log.Parent,
		CreatedAt: log.CreatedAt, LatestSeq: log.LatestSeq(), HistoryEvents: log.HistoryEvents,
		Runs: log.Runs, TaskQueue: log.TaskQueue,
		Resources: log.Resources, Divergence: log.Divergence,
		Approvals: log.PendingApprovals(), Policy: describePolicy(log),
	}
	if !log.ClosedAt.IsZero() {
		e.ClosedAt = &log.ClosedAt
	}
	if fork := log.Fork; fork != nil {
		e.ForkedFrom, e.ForkSeq, e.Restoration = fork.ExecutionID, fork.AtSeq, fork.Restoration
		e.GuardedEffects = fork.Guarded
	}
	return e
}
