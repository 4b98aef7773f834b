package eventlog

import (
	"encoding/json"
	"errors"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/proto"

	"github.com/tinerun/tine/internal/protocol"
)

// Payloads of events. Events that are copied into a fork get theirs from the same
// structs, so a copied event reads as the original does.
type (
	createdPayload struct {
		AgentID string `json:"agent_id"`
		Session string `json:"session,omitempty"`
		Parent  string `json:"parent_execution_id,omitempty"`
	}
	forkedPayload struct {
		ForkedFrom  string                          `json:"forked_from"`
		RunID       string                          `json:"run_id"`
		ForkSeq     int64                           `json:"fork_seq"`
		Restoration map[string]protocol.Restoration `json:"restoration"`
	}
	startedPayload struct {
		Parent string `json:"parent_execution_id,omitempty"`
	}
	closedPayload struct {
		Reason string `json:"reason,omitempty"`
	}

	stepPayload struct {
		StepID   string `json:"step_id"`
		StepType string `json:"step_type"`
		Target   string `json:"target"`
	}
	decisionPayload struct {
		stepPayload
		RuleID       string `json:"rule_id"`
		Reason       string `json:"reason"`
		PolicyDigest string `json:"policy_digest"`
	}
	awaitingPayload struct {
		decisionPayload
		// ApprovalID is absent in copied events: the approval is the source's.
		ApprovalID string `json:"approval_id,omitempty"`
	}
	limitedPayload struct {
		decisionPayload
		Until *time.Time `json:"until,omitempty"`
	}
	executingPayload struct {
		stepPayload
		Resources []string `json:"resources,omitempty"`
	}
	// settledPayload has no result: results may be large, and are on the step.
	settledPayload struct {
		stepPayload
		Error *protocol.StepError `json:"error,omitempty"`
	}

	requestedPayload struct {
		ApprovalID   string    `json:"approval_id"`
		StepID       string    `json:"step_id"`
		StepType     string    `json:"step_type"`
		Target       string    `json:"target"`
		ArgsHash     string    `json:"args_hash"`
		PolicyDigest string    `json:"policy_digest"`
		RuleID       string    `json:"rule_id"`
		Reason       string    `json:"reason"`
		Message      string    `json:"message,omitempty"`
		Approvers    []string  `json:"approvers,omitempty"`
		ExpiresAt    time.Time `json:"expires_at"`
	}
	resolvedPayload struct {
		ApprovalID string `json:"approval_id"`
		StepID     string `json:"step_id"`
		DecidedBy  string `json:"decided_by,omitempty"`
		Identity   string `json:"identity,omitempty"`
		Principal  string `json:"principal,omitempty"`
		Rationale  string `json:"rationale,omitempty"`
	}

	registeredPayload struct {
		Key          string          `json:"key"`
		Driver       string          `json:"driver"`
		Config       json.RawMessage `json:"config,omitempty"`
		EverySteps   int             `json:"every_steps"`
		OnCompletion bool            `json:"on_completion"`
		Pause        string          `json:"pause,omitempty"`
	}
	initializedPayload struct {
		Key           string `json:"key"`
		CheckpointRef string `json:"checkpoint_ref,omitempty"`
	}
	boundPayload struct {
		Key     string          `json:"key"`
		Driver  string          `json:"driver"`
		Binding json.RawMessage `json:"binding"`
	}
	checkpointedPayload struct {
		Key           string `json:"key"`
		CheckpointRef string `json:"checkpoint_ref"`
		CoveredSeq    int64  `json:"covered_seq"`
		Cause         string `json:"cause,omitempty"`
	}
	continuedPayload struct {
		RunID         string `json:"run_id"`
		PreviousRunID string `json:"previous_run_id"`
	}

	pausedPayload struct {
		Key string `json:"key"`
	}

	checkpointFailedPayload struct {
		Key   string             `json:"key"`
		Cause string             `json:"cause"`
		Error protocol.StepError `json:"error"`
	}
)

func (s *Step) payload() stepPayload {
	return stepPayload{StepID: s.StepID, StepType: s.Kind, Target: s.Target}
}

func (s *Step) decisionPayload() decisionPayload {
	return decisionPayload{
		stepPayload:  s.payload(),
		RuleID:       s.RuleID,
		Reason:       s.Reason,
		PolicyDigest: s.PolicyDigest,
	}
}

// Decoder reads payloads and failures. Its zero value uses the SDK's defaults;
// executions with encrypted payloads need the converters of their client.
type Decoder struct {
	Data    converter.DataConverter
	Failure converter.FailureConverter
	// Resolve puts payloads into an event that it only refers to. Nil if there are none.
	Resolve func(*historypb.HistoryEvent) error
}

func (d Decoder) withDefaults() Decoder {
	if d.Data == nil {
		d.Data = converter.GetDefaultDataConverter()
	}
	if d.Failure == nil {
		d.Failure = temporal.GetDefaultFailureConverter()
	}
	return d
}

var null = json.RawMessage("null")

// value is a user's payload as JSON. It never fails, since a log that shows one
// value oddly is worth more than no log.
func (d Decoder) value(p *commonpb.Payload) json.RawMessage {
	if p == nil {
		return null
	}
	// A RawValue has gone through the codecs, but not through a conversion.
	var raw converter.RawValue
	if err := d.Data.FromPayload(p, &raw); err == nil {
		switch data := raw.Payload().GetData(); string(raw.Payload().GetMetadata()[converter.MetadataEncoding]) {
		case converter.MetadataEncodingJSON:
			if json.Valid(data) {
				return data
			}
		case converter.MetadataEncodingNil:
			return null
		}
	}
	quoted, err := json.Marshal(d.Data.ToString(p))
	if err != nil {
		return null // not reached: a string always encodes
	}
	return quoted
}

var errNoPayload = errors.New("the payload is missing")

// decode reads the first of ps, which Tine itself has written, into v.
func (d Decoder) decode(ps *commonpb.Payloads, v any) error {
	p := first(ps)
	if p == nil {
		return errNoPayload
	}
	return d.Data.FromPayload(p, v)
}

// failure turns f into the error that workflow code gets. It is never nil.
func (d Decoder) failure(f *failurepb.Failure) error {
	// The SDK's converter decodes in place, and a history is not ours to change.
	if err := d.Failure.FailureToError(proto.Clone(f).(*failurepb.Failure)); err != nil {
		return err
	}
	return errors.New("unknown failure")
}

func first(ps *commonpb.Payloads) *commonpb.Payload { return nth(ps, 0) }

func nth(ps *commonpb.Payloads, n int) *commonpb.Payload {
	if list := ps.GetPayloads(); n < len(list) {
		return list[n]
	}
	return nil
}
