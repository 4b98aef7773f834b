package tine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/internal/session"
)

// Session describes a session: executions that continue one another, one at a time.
type Session struct {
	// Session is its label.
	Session string   `json:"session"`
	Agents  []string `json:"agents,omitempty"`
	// Turns counts the executions, and Pending those whose turn has yet to come.
	Turns   int `json:"turns"`
	Pending int `json:"pending,omitempty"`
	// Running is the execution whose turn it is, and Latest the newest.
	Running string `json:"running,omitempty"`
	Latest  string `json:"latest,omitempty"`
	// CreatedAt and UpdatedAt are when the first and the newest turn were created.
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// Executions are the newest turns, oldest first. Lists leave them out.
	Executions []*Execution `json:"executions,omitempty"`
}

// SessionOptions bound what is said of sessions.
type SessionOptions struct {
	// Limit bounds the number of sessions, or of a session's turns. Zero means 50.
	Limit int
}

// Sessions describes the sessions, the one with the newest turn first. What it says comes from
// Temporal's visibility store, which may lag behind by a second or so. In a namespace without
// Tine's search attributes only labels and times are known.
func (c *Client) Sessions(ctx context.Context, opts SessionOptions) ([]*Session, error) {
	found, err := c.foldTurns(ctx, protocol.AttributeSession+" IS NOT NULL")
	if lacksAttributes(err) {
		found, err = c.keptSessions(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	slices.SortFunc(found, func(a, b *Session) int {
		return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.Session, b.Session))
	})
	return found[:min(len(found), limitOf(opts))], nil
}

func limitOf(opts SessionOptions) int {
	if opts.Limit <= 0 {
		return defaultLimit
	}
	return opts.Limit
}

// foldTurns describes the sessions of the executions that a query selects.
func (c *Client) foldTurns(ctx context.Context, query string) ([]*Session, error) {
	var found []*Session
	byLabel := map[string]*Session{}
	err := c.eachListed(ctx, query, visibilityPage, func(info *workflowpb.WorkflowExecutionInfo) (bool, error) {
		turn := c.fromVisibility(info)
		s := byLabel[turn.Session]
		if s == nil {
			s = &Session{Session: turn.Session, CreatedAt: turn.CreatedAt}
			byLabel[turn.Session] = s
			found = append(found, s)
		}
		s.add(turn)
		return true, nil
	})
	return found, err
}

// visibilityPage is the most that the server gives at once.
const visibilityPage = 1000

func (s *Session) add(turn *Execution) {
	s.Turns++
	switch turn.Status {
	case StatusPending:
		s.Pending++
	case StatusRunning, StatusBlocked:
		s.Running = turn.ID
	}
	if turn.CreatedAt.Before(s.CreatedAt) {
		s.CreatedAt = turn.CreatedAt
	}
	if turn.CreatedAt.After(s.UpdatedAt) {
		s.UpdatedAt, s.Latest = turn.CreatedAt, turn.ID
	}
	if at, known := slices.BinarySearch(s.Agents, turn.AgentID); !known {
		s.Agents = slices.Insert(s.Agents, at, turn.AgentID)
	}
}

// keptSessions describes the sessions by the workflows that keep them.
func (c *Client) keptSessions(ctx context.Context) ([]*Session, error) {
	var found []*Session
	err := c.eachListed(ctx, "WorkflowType = "+quote(protocol.WorkflowSession), visibilityPage, func(info *workflowpb.WorkflowExecutionInfo) (bool, error) {
		var label string
		if payload := info.GetMemo().GetFields()[protocol.MemoSession]; payload == nil || c.rawJSON(payload, &label) != nil {
			return true, nil
		}
		at := info.GetStartTime().AsTime()
		found = append(found, &Session{Session: label, CreatedAt: at, UpdatedAt: at})
		return true, nil
	})
	return found, err
}

// Session describes a session and its newest turns, from their logs. One that has none is a
// *SessionNotFoundError. In a namespace without Tine's search attributes that is not known.
func (c *Client) Session(ctx context.Context, label string, opts SessionOptions) (*Session, error) {
	if err := checkSession(label); err != nil {
		return nil, err
	}
	var turns []*Execution
	s := &Session{Session: label}
	err := c.eachListed(ctx, sessionCondition(label), visibilityPage, func(info *workflowpb.WorkflowExecutionInfo) (bool, error) {
		turn := c.fromVisibility(info)
		if turn.Session != label {
			return true, nil
		}
		if s.Turns == 0 {
			s.CreatedAt = turn.CreatedAt
		}
		s.add(turn)
		if len(turns) < limitOf(opts) {
			turns = append(turns, turn)
		}
		return true, nil
	})
	switch {
	case lacksAttributes(err):
		return nil, errors.New("get session: the namespace has no Tine search attributes, so the turns of a session are not known; a worker that may registers them")
	case err != nil:
		return nil, fmt.Errorf("get session: %w", err)
	case s.Turns == 0:
		return nil, &SessionNotFoundError{Session: label}
	}
	for _, turn := range slices.Backward(turns) {
		log, err := c.read(ctx, turn.ID)
		var missing *NotFoundError
		switch {
		case errors.As(err, &missing): // the visibility store knows it for a little longer
		case err != nil:
			return nil, err
		default:
			turn = describeLog(log)
		}
		s.Executions = append(s.Executions, turn)
	}
	return s, nil
}

func checkSession(label string) error {
	if err := protocol.CheckSession(label); err != nil {
		return &SessionLabelError{Message: err.Error()}
	}
	return nil
}

// checkParent refuses a parent that cannot be continued, before anything waits for its turn.
func (c *Client) checkParent(ctx context.Context, req CreateRequest) error {
	described, err := c.temporal.DescribeWorkflow(ctx, req.Parent, "")
	if err != nil {
		return named(req.Parent, err)
	}
	status := closedStatus(described.Status)
	if problem := protocol.CheckParent(req.Agent, req.Parent, described.WorkflowType.Name, status); problem != "" {
		return &ParentError{ExecutionID: req.Parent, Message: problem}
	}
	return nil
}

// withdrawTimeout bounds the attempt to take back what was announced.
const withdrawTimeout = 5 * time.Second

// announce tells the session of an execution before it is started, so that executions run in the
// order in which they were created, whichever a worker picks up first. The function that it
// returns takes that back.
func (c *Client) announce(ctx context.Context, req CreateRequest, start *protocol.Start) (withdraw func(), err error) {
	if req.Session == "" {
		return func() {}, nil
	}
	if err := checkSession(req.Session); err != nil {
		return nil, err
	}
	turn := protocol.Turn{
		ExecutionID: req.ID, AgentID: req.Agent, CreatedAt: time.Now().UTC(), Parent: req.Parent, Change: protocol.TurnAnnounced,
	}
	begins := start != nil && start.Fork != nil
	if begins {
		err = session.Begin(ctx, c.temporal, req.Session, req.TaskQueue, turn)
	} else {
		err = session.Tell(ctx, c.temporal, req.Session, req.TaskQueue, turn)
	}
	var exists *serviceerror.WorkflowExecutionAlreadyStarted
	if errors.As(err, &exists) {
		return nil, &SessionExistsError{Session: req.Session}
	}
	if err != nil {
		return nil, fmt.Errorf("join session %q: %w", req.Session, err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
		defer cancel()
		// Should this fail, the session waits in vain for a minute. One that has had no turn but this
		// ends, so that its label is free again.
		turn.Change = protocol.TurnWithdrawn
		_ = session.Tell(ctx, c.temporal, req.Session, req.TaskQueue, turn)
	}, nil
}
