package tine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/internal/protocol"
)

// visibility is a Temporal client that lists workflows, a page each, whatever the query says.
type visibility struct {
	client.Client
	lacksAttributes bool
	found           []*workflowpb.WorkflowExecutionInfo
	queries         []string
}

func (v *visibility) ListWorkflow(_ context.Context, req *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	v.queries = append(v.queries, req.GetQuery())
	if v.lacksAttributes && strings.Contains(req.GetQuery(), "TineSession") {
		return nil, serviceerror.NewInvalidArgument("invalid query: TineSession is not a valid search attribute")
	}
	at := len(req.GetNextPageToken())
	page := &workflowservice.ListWorkflowExecutionsResponse{Executions: v.found[at:min(at+1, len(v.found))]}
	if at+1 < len(v.found) {
		page.NextPageToken = make([]byte, at+1)
	}
	return page, nil
}

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// turnOf is what the visibility store has of a turn that is still open.
func turnOf(id, agent, session, status string, minute int) *workflowpb.WorkflowExecutionInfo {
	return &workflowpb.WorkflowExecutionInfo{
		Execution: &commonpb.WorkflowExecution{WorkflowId: id, RunId: "run"},
		Type:      &commonpb.WorkflowType{Name: agent},
		Status:    enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING,
		StartTime: timestamppb.New(noon.Add(time.Duration(minute) * time.Minute)),
		SearchAttributes: &commonpb.SearchAttributes{IndexedFields: map[string]*commonpb.Payload{
			protocol.AttributeSession: payloads(session).GetPayloads()[0],
			protocol.AttributeStatus:  payloads(status).GetPayloads()[0],
		}},
	}
}

func TestSessionsFoldTurns(t *testing.T) {
	t.Parallel()
	v := &visibility{found: []*workflowpb.WorkflowExecutionInfo{
		turnOf("4", "b", "new", "pending", 4), turnOf("3", "b", "old", "pending", 3),
		turnOf("2", "a", "old", "blocked", 2), turnOf("1", "a", "old", "completed", 1),
	}}
	c := tine.NewClient(v, tine.Options{})
	found, err := c.Sessions(t.Context(), tine.SessionOptions{})
	require.NoError(t, err)
	require.Equal(t, []*tine.Session{
		{Session: "new", Agents: []string{"b"}, Turns: 1, Pending: 1, Latest: "4", CreatedAt: noon.Add(4 * time.Minute), UpdatedAt: noon.Add(4 * time.Minute)},
		{
			Session: "old", Agents: []string{"a", "b"}, Turns: 3, Pending: 1, Running: "2", Latest: "3",
			CreatedAt: noon.Add(time.Minute), UpdatedAt: noon.Add(3 * time.Minute),
		},
	}, found)
	found, err = c.Sessions(t.Context(), tine.SessionOptions{Limit: 1})
	require.NoError(t, err)
	require.Len(t, found, 1)
}

func TestSessionsWithoutSearchAttributes(t *testing.T) {
	t.Parallel()
	kept := &workflowpb.WorkflowExecutionInfo{
		StartTime: timestamppb.New(noon),
		Memo:      &commonpb.Memo{Fields: map[string]*commonpb.Payload{protocol.MemoSession: payloads("a label").GetPayloads()[0]}},
	}
	v := &visibility{lacksAttributes: true, found: []*workflowpb.WorkflowExecutionInfo{kept, {}}}
	c := tine.NewClient(v, tine.Options{})
	found, err := c.Sessions(t.Context(), tine.SessionOptions{})
	require.NoError(t, err)
	require.Equal(t, []*tine.Session{{Session: "a label", CreatedAt: noon, UpdatedAt: noon}}, found)
	require.Equal(t, "WorkflowType = 'tine.Session'", v.queries[len(v.queries)-1])
	_, err = c.Session(t.Context(), "a label", tine.SessionOptions{})
	require.ErrorContains(t, err, "no Tine search attributes")
}

// TestListBySession has labels that the visibility store cannot compare.
func TestListBySession(t *testing.T) {
	t.Parallel()
	for label, condition := range map[string]string{
		"plain":    "TineSession = 'plain'",
		`it's`:     "TineSession STARTS_WITH 'it'",
		"a\n\"b\"": "TineSession STARTS_WITH 'a'",
		`\`:        "TineSession IS NOT NULL",
	} {
		v := &visibility{found: []*workflowpb.WorkflowExecutionInfo{
			turnOf("1", "a", label, "running", 1), turnOf("2", "a", label+"x", "running", 1), turnOf("3", "tine.Session", label, "running", 1),
		}}
		found, err := tine.NewClient(v, tine.Options{}).List(t.Context(), tine.ListOptions{Session: label})
		require.NoError(t, err)
		require.Len(t, found, 1)
		require.Equal(t, "1", found[0].ID)
		require.Equal(t, fmt.Sprintf("TineAgent IS NOT NULL AND %s AND ExecutionStatus = 'Running'", condition), v.queries[0])
	}
}
