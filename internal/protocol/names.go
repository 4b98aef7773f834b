package protocol

import "strings"

// Names of Tine's own activities and local activities. They stand in histories,
// so they never change. A tool's activity type is the tool's own name, which is
// why names that begin with Prefix are refused for tools, steps and agents.
const (
	Prefix = "tine."

	// Local activities.
	ActivityBegin  = Prefix + "Begin"  // reads what the worker offers; result Begin
	ActivityDecide = Prefix + "Decide" // decides a step; result StepRecord
	ActivityStep   = Prefix + "Step"   // decides and runs a local step; result StepRecord
	ActivitySettle = Prefix + "Settle" // records the outcome of a step that waits in the workflow; result StepRecord
	ActivityNote   = Prefix + "Note"   // records a divergence; result Divergence
	ActivityState  = Prefix + "State"  // records the state that the execution leaves; result State
	ActivityJoin   = Prefix + "Join"   // tells a session that a turn waits; input JoinSession

	// Activities.
	ActivityGenerate       = Prefix + "Generate"       // an llm_call; input GenerateRequest, Call
	ActivityCreateResource = Prefix + "CreateResource" // input CreateResource, result ResourceCreated
	ActivityCheckpoint     = Prefix + "Checkpoint"     // input Checkpoint, result CheckpointTaken
	ActivityLoadPrefix     = Prefix + "LoadPrefix"     // input LoadPrefix, result PrefixPage
	ActivityLoadRun        = Prefix + "LoadRun"        // input LoadRun, result RolledPage
	ActivityPause          = Prefix + "PauseResource"  // input Pause
	ActivityListMCPTools   = Prefix + "ListMCPTools"   // a local step; input ListMCPTools, Call; result []MCPTool
	ActivityCallMCPTool    = Prefix + "CallMCPTool"    // a tool_call of an MCP server's tool; input its arguments, Call
	ActivityLimit          = Prefix + "Limit"          // takes a token of a shared rate limit; input LimitRequest, result LimitGrant
	ActivityLoadParent     = Prefix + "LoadParent"     // input LoadParent, result Previous
	ActivityOpenResource   = Prefix + "OpenResource"   // input OpenResource, result ResourceCreated
	ActivityTurn           = Prefix + "Turn"           // says how a turn of a session stands; input TurnQuery, result TurnStatus

	// WorkflowSession keeps a session. SignalTurn tells it of a turn, and it admits one with
	// SignalAdmit.
	WorkflowSession = Prefix + "Session" // argument SessionState
	SignalTurn      = Prefix + "Turn"    // argument Turn
	SignalAdmit     = Prefix + "Admit"   // argument Admission

	// WorkflowLimiter keeps a bucket that executions share. UpdateTake takes a token.
	WorkflowLimiter = Prefix + "Limiter"
	UpdateTake      = Prefix + "Take" // argument LimitRequest, result LimitGrant
)

// ReservedStep reports whether a name is kept for Tine's own local steps.
func ReservedStep(name string) bool {
	switch name {
	case StepNow, StepUUID, StepSleep, StepReceive:
		return true
	default:
		return Reserved(name)
	}
}

// Reserved reports whether a name is kept for Tine's own activities.
func Reserved(name string) bool {
	rest, ok := strings.CutPrefix(name, "tine")
	return ok && (rest == "" || rest[0] == '.' || 'A' <= rest[0] && rest[0] <= 'Z')
}

// PayloadLimit is the most bytes of JSON that Tine puts into one payload. Temporal
// refuses payloads of 2 MiB; the rest is for what stands around the JSON.
const PayloadLimit = 2<<20 - 64<<10

// StorageHint tells whoever meets a limit how it could be higher.
func StorageHint(limit int) string {
	if limit > PayloadLimit {
		return ""
	}
	return " (more with external storage, which TINE_STORAGE names)"
}

// Search attributes and memo keys of an execution.
const (
	AttributeStatus     = "TineStatus"     // Keyword: one of the Status constants
	AttributeAgent      = "TineAgent"      // Keyword
	AttributeSession    = "TineSession"    // Keyword
	AttributeForkedFrom = "TineForkedFrom" // Keyword: the source's execution id
	AttributeForkSeq    = "TineForkSeq"    // Int

	MemoSession = "TineSession" // of a session's workflow: its label
)

// HostQueue is the task queue of the workers on a host that serve taskQueue. Workers of other
// programs may share the host, and its store.
func HostQueue(host, taskQueue string) string { return host + "/" + taskQueue }

// Kinds of steps.
const (
	KindTool  = "tool_call"
	KindLLM   = "llm_call"
	KindLocal = "local"
)

// Idempotency modes of a step. The empty string in a record means SafeToRetry.
const (
	SafeToRetry = "safe_to_retry"
	AtMostOnce  = "at_most_once"
)

// Decisions of a policy.
const (
	Allow           = "allow"
	Deny            = "deny"
	RequireApproval = "require_approval"
)

// Rule ids that no policy writes.
const (
	RuleDefault            = "default"             // no rule matches
	RuleLocal              = "local"               // no rule matches a local step
	RulePermissive         = "permissive"          // there is no policy
	RuleBundleError        = "bundle-error"        // the policy could not decide
	RuleForkEffect         = "fork-effect"         // the source of the fork has had the effect
	RuleIndeterminateRetry = "indeterminate-retry" // how an identical step ended is not known
)

// Reasons of a failed or denied step that Tine itself gives. They are the
// machine-readable half of a StepError.
const (
	ReasonToolError        = "tool_error"             // the handler returned an error
	ReasonPolicyDenied     = "policy_denied"          // the policy refused the step
	ReasonIndeterminate    = "indeterminate"          // an at_most_once step whose end nobody saw
	ReasonTimeout          = "timeout"                // the step ran longer than it may
	ReasonPanic            = "panic"                  // the handler panicked
	ReasonInvalidArguments = "invalid_arguments"      // the arguments do not fit the tool's schema
	ReasonInvalidResult    = "invalid_result"         // the result cannot be encoded as JSON
	ReasonUnknownTool      = "unknown_tool"           // a model asked for a tool that is not offered
	ReasonResource         = "resource_error"         // a resource could not be created or opened
	ReasonHostUnavailable  = "host_unavailable"       // the host that holds the resource serves no tasks
	ReasonLLM              = "llm_error"              // the model's endpoint refused the request
	ReasonCancelled        = "cancelled"              // the step was cancelled while it ran
	ReasonUnavailable      = "checkpoint_unavailable" // the checkpoint a fork starts from is missing

	ReasonRateLimited        = "rate_limit_exceeded"
	ReasonLimiterUnavailable = "rate_limiter_unavailable"
	ReasonBudget             = "execution_token_budget_exceeded"
	ReasonEffect             = "effect_started_on_source"
	ReasonIndeterminateRetry = "prior attempt outcome unknown; retry refused"
	ReasonNoRule             = "no explicit allow rule matched"
)

// When a resource is paused. The empty string in a record means PauseBlocked.
const (
	PauseBlocked   = "blocked"
	PauseCompleted = "completed"
	PauseNever     = "never"
)

// Causes of a checkpoint.
const (
	CauseBaseline   = "baseline"
	CauseStep       = "step"
	CauseCompletion = "completion"
)

// Statuses of an execution.
const (
	StatusPending   = "pending"
	StatusRunning   = "running"
	StatusBlocked   = "blocked"
	StatusCompleted = "completed"
	StatusFailed    = "failed"
	StatusCancelled = "cancelled"
)

// Targets of the local steps that Tine offers itself.
const (
	StepNow     = "now"
	StepUUID    = "uuid"
	StepSleep   = "sleep"
	StepReceive = "receive"
)
