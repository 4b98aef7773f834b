package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/proto"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

// turnBytes makes 100 turns some 200,000 tokens of four bytes.
const turnBytes = 4000

// echoing answers with the number of messages, and as much text as was asked.
type echoing struct{}

func (echoing) Generate(_ context.Context, req activities.GenerateRequest, _ []activities.ToolSpec) (activities.GenerateResponse, error) {
	last := req.Messages[len(req.Messages)-1].Content
	return activities.GenerateResponse{Message: activities.Message{
		Role: "assistant", Content: fmt.Sprintf("%d %s", len(req.Messages), strings.ToUpper(last)),
	}}, nil
}

var talker = workflows.NewModel("talker")

// talk has as many turns as it is told, each of which has the whole conversation as its request.
func talk(ctx workflow.Context, turns int) (int, error) {
	var said []workflows.Message
	for i := range turns {
		said = append(said, workflows.Message{Role: "user", Content: distinct(i)})
		answer, err := talker.Generate(ctx, workflows.GenerateRequest{Model: "m", Messages: said})
		if err != nil {
			return 0, err
		}
		if want := fmt.Sprintf("%d ", len(said)); !strings.HasPrefix(answer.Message.Content, want) {
			return 0, fmt.Errorf("turn %d: the model saw %.10q messages, want %s", i, answer.Message.Content, want)
		}
		said = append(said, answer.Message)
	}
	return len(said), nil
}

// distinct is a text that hardly compresses together with those of other turns.
func distinct(turn int) string {
	var b strings.Builder
	for n := uint64(turn)*2654435761 + 1; b.Len() < turnBytes; n = n*6364136223846793005 + 1442695040888963407 {
		b.WriteString(strconv.FormatUint(n>>16, 16) + " ")
	}
	return b.String()[:turnBytes]
}

func talking(*directory.Driver) []worker.Item {
	return []worker.Item{worker.Agent("talk", talk), worker.Model(talker, echoing{})}
}

// TestConversation has a conversation of 100 turns and some 200,000 tokens. Its history grows by what
// is new in each turn, and the log shows whole requests, also in a fork and without the worker that
// has seen the conversation.
func TestConversation(t *testing.T) {
	t.Parallel()
	const turns = 100
	b := setup(t, withItems(talking))
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "talk", Input: json.RawMessage(fmt.Sprint(turns))})
	require.NoError(t, err)
	log := b.end(t, e.ID)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
	require.Len(t, log.Steps(), turns)
	whole := 0
	for i, s := range log.Steps() {
		var request workflows.GenerateRequest
		require.NoError(t, json.Unmarshal(s.Args, &request))
		require.Len(t, request.Messages, 2*i+1)
		require.Equal(t, distinct(i), request.Messages[2*i].Content)
		whole += len(s.Args)
	}

	grown := b.growth(t, log)
	total, first, last := 0, 0, 0
	for i, bytes := range grown {
		total += bytes
		if i < 10 {
			first += bytes
		}
		if i >= turns-10 {
			last += bytes
		}
	}
	t.Logf("requests as a whole %d bytes, history %d, first ten turns %d, last ten %d", whole, total, first, last)
	require.Less(t, total, 5<<20)
	require.LessOrEqual(t, float64(last), 1.2*float64(first))
	require.Greater(t, whole, 10*total)

	b.stop() // the next worker has seen nothing
	b.start(t)
	at := log.Steps()[turns/2].SettledSeq
	fork := b.fork(t, tine.ForkRequest{ExecutionID: e.ID, AtSeq: at})
	require.Equal(t, tine.StatusCompleted, fork.Execution().Status, fork.Execution().FailureReason)
	require.Len(t, fork.Steps(), turns)
	for i, s := range fork.Steps() {
		require.Equal(t, log.Steps()[i].ArgsHash, s.ArgsHash)
		require.Equal(t, i <= turns/2, s.Replayed)
	}
}

// TestConversationRolls has a conversation continue as new.
func TestConversationRolls(t *testing.T) {
	t.Parallel()
	b := setup(t, withItems(talking), rolling(80))
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "talk", Input: json.RawMessage("60")})
	require.NoError(t, err)
	log := b.end(t, e.ID)
	require.Equal(t, tine.StatusCompleted, log.Execution().Status, log.Execution().FailureReason)
	require.Greater(t, len(log.Execution().Runs), 2)
	for i, s := range log.Steps() {
		var request workflows.GenerateRequest
		require.NoError(t, json.Unmarshal(s.Args, &request))
		require.Len(t, request.Messages, 2*i+1)
	}
}

// growth is how many bytes of history each step's events take.
func (b *bench) growth(t *testing.T, log *tine.Log) []int {
	t.Helper()
	var grown []int
	events := b.temporal.GetWorkflowHistory(t.Context(), id(log), log.Execution().RunID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	size := 0
	for events.HasNext() {
		event, err := events.Next()
		require.NoError(t, err)
		size += proto.Size(event)
		if event.GetEventType() == enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED {
			grown = append(grown, size)
			size = 0
		}
	}
	return grown
}
