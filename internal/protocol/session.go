package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxSession is how many bytes a session's label may have.
const MaxSession = 256

// StateLimit is the most bytes of JSON that an execution may leave as its state. State and
// output end one workflow task together, whose limit is 4 MiB.
const StateLimit = 1 << 20

// CheckSession says what is wrong with a session's label.
func CheckSession(label string) error {
	switch {
	case strings.TrimSpace(label) == "":
		return errors.New("a session's label must not be blank")
	case len(label) > MaxSession:
		return fmt.Errorf("a session's label has at most %d bytes; this one has %d", MaxSession, len(label))
	case !utf8.ValidString(label):
		return errors.New("a session's label must be UTF-8")
	case strings.ContainsRune(label, 0):
		return errors.New("a session's label must not contain a NUL character")
	default:
		return nil
	}
}

// KeptLimit is the most bytes of JSON that a session keeps of what a turn has left, so that the
// session outlives the turn's history. Of all agents together it keeps KeptTotal.
const (
	KeptLimit = 128 << 10
	KeptTotal = 512 << 10
)

// derivedSession is how many characters of an execution's id make a label. Those at the end of
// a UUIDv7 are random; it begins with the time.
const derivedSession = 12

// SessionOf is the session of an execution: the one it was given, or else a label derived from
// its id.
func SessionOf(session, executionID string) string {
	if session != "" {
		return session
	}
	id := []rune(executionID)
	return string(id[max(0, len(id)-derivedSession):])
}

// SessionWorkflowID is the id of the workflow that keeps a session. Labels that stores of
// workflows might cut, fold or refuse are hashed.
func SessionWorkflowID(label string) string {
	if len(label) <= 128 && strings.IndexFunc(label, unsafe) < 0 {
		return "tine-session/" + label
	}
	sum := sha256.Sum256([]byte(label))
	return "tine-session/#" + hex.EncodeToString(sum[:16])
}

func unsafe(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '.', c == '-':
		return false
	default: // capitals too: some databases take them for small letters
		return true
	}
}

// Turn is an execution in its session: what SignalTurn brings, and what the session keeps.
type Turn struct {
	ExecutionID string `json:"execution_id"`
	AgentID     string `json:"agent_id,omitempty"`
	// CreatedAt orders the turns. As long as a turn is but announced it is by the client's clock.
	CreatedAt time.Time `json:"created_at"`
	// Parent is the execution that the turn was told to continue.
	Parent string `json:"parent_execution_id,omitempty"`
	// Change is one of the Turn constants.
	Change string `json:"change,omitempty"`
	// Token is the execution's latest join. The admission has it, so that one that a reset finds in
	// the history of before does not count.
	Token string `json:"token,omitempty"`
	// Sweep is how soon the session looks for a turn that runs and does not end.
	Sweep Duration `json:"sweep,omitempty"`

	// Announced says that the client which creates the execution has told its place; Waiting
	// that the execution itself has come; Since when the session has known that.
	Announced bool      `json:"announced,omitempty"`
	Waiting   bool      `json:"waiting,omitempty"`
	Since     time.Time `json:"since,omitzero"`
}

// What happens to a turn.
const (
	TurnAnnounced = "announced" // a client is about to create it
	TurnWithdrawn = "withdrawn" // the client could not
	TurnWaiting   = "waiting"   // the execution has begun, and waits for its turn
	TurnEnded     = "ended"     // the execution is about to end
)

// SessionState is the argument of WorkflowSession: what it goes on from.
type SessionState struct {
	Label string `json:"label"`
	// Newest has the newest completed turn of each agent.
	Newest map[string]CompletedTurn `json:"newest,omitempty"`
	// Running is the turn that has been admitted, and Queue has those that have not, in order.
	Running *Turn  `json:"running,omitempty"`
	Queue   []Turn `json:"queue,omitempty"`
}

// CompletedTurn is a turn that others may continue.
type CompletedTurn struct {
	ExecutionID string    `json:"execution_id"`
	RunID       string    `json:"run_id"`
	CreatedAt   time.Time `json:"created_at"`
	// Left is what the turn has left, if that is small, and LeftBytes its size.
	Left      *Previous `json:"left,omitempty"`
	LeftBytes int       `json:"left_bytes,omitempty"`
}

// Admission is what SignalAdmit tells an execution: its turn has come. Without a parent it is
// the first of its agent.
type Admission struct {
	Parent      string `json:"parent_execution_id,omitempty"`
	ParentRunID string `json:"parent_run_id,omitempty"`
	// Left is what the parent has left, if the session has kept it.
	Left *Previous `json:"left,omitempty"`
	// Token is that of the turn which is admitted.
	Token string `json:"token,omitempty"`
}

// Joined is the result of ActivityJoin.
type Joined struct {
	Token string `json:"token,omitempty"`
}

// JoinSession is the input of ActivityJoin.
type JoinSession struct {
	Label string `json:"label"`
	Turn  Turn   `json:"turn"`
}

// TurnQuery is the input of ActivityTurn. Ending says that the turn is about to end, which the
// answer may wait for.
type TurnQuery struct {
	ExecutionID string `json:"execution_id"`
	Ending      bool   `json:"ending,omitempty"`
}

// TurnStatus is the result of ActivityTurn: one of the Status constants. An execution that is
// not there counts as cancelled.
type TurnStatus struct {
	Status string `json:"status"`
	RunID  string `json:"run_id,omitempty"`
	// Left is what a completed turn has left, if that is small, and LeftBytes its size.
	Left      *Previous `json:"left,omitempty"`
	LeftBytes int       `json:"left_bytes,omitempty"`
}

// LoadParent is the input of ActivityLoadParent.
type LoadParent struct {
	ExecutionID string `json:"execution_id"`
	RunID       string `json:"run_id,omitempty"`
	AgentID     string `json:"agent_id"`
	// Session is that of the execution that continues the parent. Only within one session
	// resources are carried over.
	Session string `json:"session,omitempty"`
	// Left is what the session has kept of the parent. Then there is nothing to read.
	Left *Previous `json:"left,omitempty"`
	// Source is the execution from which a fork copies what it continues.
	Source *Source `json:"source,omitempty"`
}

// Source names one run of an execution.
type Source struct {
	ExecutionID string `json:"execution_id"`
	RunID       string `json:"run_id,omitempty"`
}

// CheckParent says why an execution of an agent cannot continue another one. It is empty if it
// can.
func CheckParent(agentID, parentID, parentAgent, parentStatus string) string {
	switch {
	case parentAgent != agentID:
		return fmt.Sprintf("execution %s is one of agent %q; one of agent %q cannot continue it", parentID, parentAgent, agentID)
	case parentStatus != StatusCompleted:
		return fmt.Sprintf("execution %s is %s; only a completed one can be continued", parentID, parentStatus)
	default:
		return ""
	}
}

// Previous is the result of ActivityLoadParent: what the parent has left.
type Previous struct {
	ExecutionID string `json:"execution_id"`
	RunID       string `json:"run_id,omitempty"`
	// State is the parent's, or else its output.
	State     json.RawMessage    `json:"state,omitempty"`
	Resources []PreviousResource `json:"resources,omitempty"`
}

// PreviousResource is a resource of the parent that the execution goes on with. One without a
// binding was registered, but never created.
type PreviousResource struct {
	ResourceSpec
	Binding       json.RawMessage `json:"binding,omitempty"`
	CoverageReuse bool            `json:"coverage_reuse,omitempty"`
	Host          string          `json:"host,omitempty"`
}

// OpenResource is the input of ActivityOpenResource, which opens a resource that the parent has
// left. Its result is ResourceCreated.
type OpenResource struct {
	ResourceSpec
	Binding json.RawMessage `json:"binding"`
}

// State is the result of ActivityState: what the execution leaves for the one that continues it.
type State struct {
	State json.RawMessage `json:"state"`
}
