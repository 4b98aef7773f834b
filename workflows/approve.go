package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
)

// Bounds of what the memo lists of pending approvals, since each change of it is an event of
// the history. The log has all of it.
const (
	memoApprovals = 10
	memoText      = 512 // of arguments, which are left out if longer, and of texts, which are cut
)

// approvals are those that steps of the execution have asked for. They are found by the step's
// part of their id, since an execution that is replayed for a test has another id.
type approvals struct {
	byStep  map[string]*approval
	pending []*approval // in the order they were asked for
	// listedAt is how long the history was when they were last listed, and listings how often
	// they were then. Stale says that they will be once more.
	listedAt, listings int
	stale              bool
	// loading says that those of the run before are not known yet.
	loading bool
}

// approval is one of them. Its status changes once.
type approval struct {
	protocol.Approval
	decided workflow.Settable
	future  workflow.Future
	// resumed says that it was asked for in an earlier run, and waiting that its step waits.
	resumed, waiting bool
}

// approve asks for a person's decision and waits for it, or until it expires. Steps that run
// side by side with this one go on.
func (p *pending) approve(ctx workflow.Context, decision protocol.Decision, window *protocol.ApprovalWindow) (*protocol.Decision, error) {
	a, decided := p.x.askFor(ctx, p, decision, window)
	err := p.outside(ctx, func() (resume bool, err error) {
		a.waiting = true
		rationale := p.x.awaitDecision(ctx, a, decided)
		a.waiting = false
		p.x.withdraw(ctx, a)
		if rationale == "" {
			return a.Status == protocol.ApprovalGranted || !p.x.since(protocol.RevisionCoalesced), nil
		}
		final := decision.Approved(protocol.ApprovalExpired, rationale)
		if err := p.note(ctx, protocol.StepRecord{Decision: &final, Closed: &protocol.ApprovalClosed{Rationale: rationale}}); err != nil {
			return false, err
		}
		return !p.x.since(protocol.RevisionCoalesced), ctx.Err()
	})
	switch {
	case err != nil && a.Status == protocol.ApprovalGranted: // it was, but its turn will not come
		return nil, p.cancelled(ctx, "cancelled after it was approved")
	case err != nil:
		return nil, err
	}
	final := decision.Approved(a.Status, a.Rationale)
	if final.Decision == protocol.Allow && p.call.wait != nil {
		return &final, p.note(ctx, protocol.StepRecord{Executing: true})
	}
	return &final, nil
}

// askFor makes the approval and shows that it is pending.
func (x *execution) askFor(ctx workflow.Context, p *pending, decision protocol.Decision, window *protocol.ApprovalWindow) (*approval, workflow.Future) {
	config := protocol.ApprovalConfig{}
	if decision.Approval != nil {
		config = *decision.Approval
	}
	id := workflow.GetInfo(ctx).WorkflowExecution.ID
	if a := x.approvals.byStep[protocol.ApprovalStep(protocol.ApprovalID(id, p.step.ID))]; a != nil && a.resumed {
		x.pauseWhileBlocked(ctx)
		return a, a.future
	}
	decided, settable := workflow.NewFuture(ctx)
	a := &approval{decided: settable, future: decided, Approval: protocol.Approval{
		ID: protocol.ApprovalID(id, p.step.ID), ExecutionID: id, AgentID: x.agent,
		StepID: p.step.ID, StepKind: p.step.Kind, Target: p.step.Target, ArgsHash: p.argsHash,
		PolicyDigest: decision.PolicyDigest, Status: protocol.ApprovalPending,
		RuleID: decision.RuleID, Reason: decision.Reason,
		Message: config.Message, Approvers: config.Approvers,
		RequestedAt: window.RequestedAt, ExpiresAt: window.ExpiresAt,
	}}
	if len(p.call.args) <= memoText {
		a.Args = p.call.args
	}
	x.approvals.byStep[protocol.ApprovalStep(a.ID)] = a
	x.approvals.pending = append(x.approvals.pending, a)
	x.publishApprovals(ctx)
	x.pauseWhileBlocked(ctx)
	return a, decided
}

// awaitDecision waits until somebody has decided, and returns an empty rationale. Otherwise it
// closes the approval and says why.
func (x *execution) awaitDecision(ctx workflow.Context, a *approval, decided workflow.Future) (rationale string) {
	timerCtx, stop := workflow.WithCancel(ctx)
	defer stop()
	from := a.RequestedAt
	if a.resumed {
		from = workflow.Now(ctx)
	}
	timer := workflow.NewTimerWithOptions(timerCtx, max(a.ExpiresAt.Sub(from), 0), workflow.TimerOptions{
		Summary: "approval of " + a.Target,
	})
	workflow.NewSelector(ctx).
		AddFuture(decided, func(workflow.Future) {}).
		AddFuture(timer, func(workflow.Future) {}).
		AddReceive(ctx.Done(), func(workflow.ReceiveChannel, bool) {}).
		Select(ctx)
	switch {
	case a.Status != protocol.ApprovalPending:
		return ""
	case x.cancelled():
		rationale = protocol.RationaleExecutionCancelled
	case ctx.Err() != nil:
		rationale = protocol.RationaleStepCancelled
	default:
		rationale = protocol.RationaleTimeout
	}
	a.Status, a.Rationale = protocol.ApprovalExpired, rationale
	return rationale
}

// withdraw takes a closed approval from those that are pending.
func (x *execution) withdraw(ctx workflow.Context, a *approval) {
	x.approvals.pending = slices.DeleteFunc(x.approvals.pending, func(other *approval) bool { return other == a })
	x.publishApprovals(ctx)
}

// publishApprovals shows the pending approvals where they are found without a worker: in the
// memo, the status and the details that the UI shows. All that changes in one workflow task
// goes to the server at once, so what changes after the first few times waits a little.
func (x *execution) publishApprovals(ctx workflow.Context) {
	now := workflow.GetInfo(ctx).GetCurrentHistoryLength()
	if x.approvals.listedAt != now {
		x.approvals.listedAt, x.approvals.listings = now, 0
	}
	if !x.since(protocol.RevisionCoalesced) || x.approvals.listings < listingsAtOnce {
		x.listApprovals(ctx)
		return
	}
	if x.approvals.stale {
		return
	}
	x.approvals.stale = true
	workflow.Go(disconnected(ctx), func(ctx workflow.Context) {
		if workflow.Sleep(ctx, publishEvery) == nil && x.approvals.stale {
			x.listApprovals(ctx)
		}
	})
}

func (x *execution) listApprovals(ctx workflow.Context) {
	pending := x.approvals.pending
	x.approvals.listings++
	x.approvals.stale = false
	status := protocol.StatusRunning
	if len(pending) > 0 {
		status = protocol.StatusBlocked
	}
	if status != x.status {
		x.status = status
		x.upsert(ctx, statusAttribute.ValueSet(status))
	}
	listed := protocol.PendingApprovals{Approvals: []protocol.Approval{}}
	for _, a := range pending[:min(len(pending), memoApprovals)] {
		listed.Approvals = append(listed.Approvals, a.brief())
	}
	listed.More = len(pending) - len(listed.Approvals)
	if err := workflow.UpsertMemo(ctx, map[string]any{protocol.MemoApprovals: listed}); err != nil {
		workflow.GetLogger(ctx).Error("pending approvals not listed", "error", err)
	}
	x.describe(ctx)
}

// brief is the approval as the memo has it. One whose texts take too much room has no arguments
// there, which says that the log is to be read.
func (a *approval) brief() protocol.Approval {
	short := a.Approval
	size := len(a.Reason) + len(a.Message)
	for _, name := range a.Approvers {
		size += len(name)
	}
	if size > memoText {
		short.Args, short.Approvers = nil, nil
		short.Reason, short.Message = protocol.Cut(a.Reason, memoText/2), protocol.Cut(a.Message, memoText/2)
	}
	return short
}

// describe lists the pending approvals for Temporal's UI.
func (s *approvals) describe(b *strings.Builder) {
	if len(s.pending) == 0 {
		return
	}
	b.WriteString("\n**Waits for approval:**\n\n")
	for _, a := range s.pending[:min(len(s.pending), memoApprovals)] {
		b.WriteString(fmt.Sprintf("- `%s`, rule `%s`", a.Target, a.RuleID))
		if text := protocol.OneLine(cmp.Or(a.Message, a.Reason)); text != "" {
			b.WriteString(": " + text)
		}
		b.WriteString(fmt.Sprintf("\n  `tine approval grant %s`\n", a.ID))
	}
	if more := len(s.pending) - memoApprovals; more > 0 {
		b.WriteString(fmt.Sprintf("- and %d more\n", more))
	}
}

// serveApprovals takes the decisions of people, as updates.
func (x *execution) serveApprovals(ctx workflow.Context) error {
	if err := x.approvals.serve(ctx, protocol.UpdateGrant, protocol.ApprovalGranted); err != nil {
		return err
	}
	return x.approvals.serve(ctx, protocol.UpdateDeny, protocol.ApprovalDenied)
}

func (s *approvals) serve(ctx workflow.Context, update, status string) error {
	decide := func(ctx workflow.Context, verdict protocol.ApprovalVerdict) (protocol.ApprovalDecided, error) {
		return s.decide(ctx, verdict, status)
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, update, decide, workflow.UpdateHandlerOptions{
		Validator:   s.check,
		Description: "Decides a step that waits for approval. Its argument has approval_id, by and reason.",
	})
}

// decide settles an approval. What check refuses does not get here, except when the approval
// was settled in between.
func (s *approvals) decide(ctx workflow.Context, verdict protocol.ApprovalVerdict, status string) (protocol.ApprovalDecided, error) {
	if s.loading {
		if err := workflow.Await(ctx, func() bool { return !s.loading }); err != nil {
			return protocol.ApprovalDecided{}, err
		}
		if err := s.check(ctx, verdict); err != nil {
			return protocol.ApprovalDecided{}, err
		}
	}
	a, err := s.find(verdict.ApprovalID)
	if err != nil {
		return protocol.ApprovalDecided{}, err
	}
	now := workflow.Now(ctx)
	a.Status, a.DecidedBy, a.Rationale, a.DecidedAt = status, verdict.By, verdict.Reason, &now
	a.decided.SetValue(nil)
	return protocol.ApprovalDecided{
		ApprovalID: a.ID, StepID: a.StepID, Status: status,
		DecidedBy: verdict.By, Rationale: verdict.Reason, DecidedAt: now,
	}, nil
}

// check is the validator: what it refuses leaves no trace in the history.
func (s *approvals) check(ctx workflow.Context, verdict protocol.ApprovalVerdict) error {
	if s.loading {
		return nil // decide looks again
	}
	a, err := s.find(verdict.ApprovalID)
	switch {
	case err != nil:
		return err
	case a.ID != verdict.ApprovalID:
		return refusal(failure.TypeApprovalNotFound, "there is no approval %q", verdict.ApprovalID)
	case verdict.ValidUntil != nil && workflow.Now(ctx).After(*verdict.ValidUntil):
		return refusal(failure.TypeVerdictVoid, "the decision on approval %s came later than %s, when its sender gave up; send it again, and if that does not help compare the sender's clock with the server's",
			a.ID, verdict.ValidUntil.Format(time.RFC3339))
	case !workflow.Now(ctx).Before(a.ExpiresAt):
		return refusal(failure.TypeApprovalDecided, "approval %s expired at %s", a.ID, a.ExpiresAt.Format(time.RFC3339))
	case len(a.Approvers) > 0 && (verdict.By == "" || !slices.Contains(a.Approvers, verdict.By)):
		return refusal(failure.TypeApproverNotAllowed, "%s may not decide approval %s: rule %s lists %s",
			cmp.Or(verdict.By, "somebody without a name"), a.ID, a.RuleID, strings.Join(a.Approvers, ", "))
	case differ(verdict.StepID, a.StepID), differ(verdict.ArgsHash, a.ArgsHash), differ(verdict.PolicyDigest, a.PolicyDigest):
		return refusal(failure.TypeApprovalChanged, "approval %s is for another step, other arguments or another policy than was seen", a.ID)
	default:
		return nil
	}
}

func differ(seen, is string) bool { return seen != "" && seen != is }

// find gives a pending approval.
func (s *approvals) find(id string) (*approval, error) {
	a := s.byStep[protocol.ApprovalStep(id)]
	switch {
	case a == nil:
		return nil, refusal(failure.TypeApprovalNotFound, "there is no approval %q", id)
	case a.Status != protocol.ApprovalPending:
		by := ""
		if a.DecidedBy != "" {
			by = " by " + a.DecidedBy
		}
		return nil, refusal(failure.TypeApprovalDecided, "approval %s was %s already%s", id, a.Status, by)
	default:
		return a, nil
	}
}

func refusal(kind, format string, args ...any) error {
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf(format, args...), kind, nil)
}
