package cli

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/eventlog"
)

func TestTurnInWords(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{
		`{}`:                          "",
		`{"parent_execution_id":"p"}`: "continues p",
	} {
		_, details := newDescriber().describe(tine.Event{Type: eventlog.ExecutionStarted, Payload: json.RawMessage(payload)})
		require.Equal(t, want, details)
	}
	_, details := newDescriber().describe(tine.Event{Type: eventlog.ExecutionCreated, Payload: json.RawMessage(`{"agent_id":"a","session":"s","parent_execution_id":"p"}`)})
	require.Equal(t, "agent a, session s, to continue p", details)
}
