package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/tinerun/tine"
	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/resources/directory"
	"github.com/tinerun/tine/resources/e2b"
	"github.com/tinerun/tine/resources/e2b/e2btest"
	"github.com/tinerun/tine/worker"
	"github.com/tinerun/tine/workflows"
)

type shellArgs struct {
	Command string `json:"command"`
}

var (
	sandbox = workflows.NewResource("sandbox")
	shell   = workflows.NewTool[shellArgs, e2b.Result]("shell", workflows.WithResources(sandbox.Key()))
)

// sandboxed runs commands in an E2B sandbox, and returns what they print.
func sandboxed(ctx workflow.Context, commands []string) ([]string, error) {
	if err := sandbox.Open(ctx, workflows.ResourceOptions{Driver: "e2b"}); err != nil {
		return nil, err
	}
	var outputs []string
	for _, command := range commands {
		result, err := shell.Call(ctx, shellArgs{command})
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, result.Stdout)
	}
	return outputs, nil
}

func runShell(ctx context.Context, args shellArgs) (e2b.Result, error) {
	s, err := activities.Resource[*e2b.Sandbox](ctx, sandbox.Key())
	if err != nil {
		return e2b.Result{}, err
	}
	return s.Run(ctx, e2b.Command{Line: args.Command})
}

const egressToken = "egress-token-0123456789"

// setupE2B makes a bench whose worker has sandboxes of an emulator.
func setupE2B(t *testing.T, change func(*e2b.Options)) (*bench, *e2btest.Server) {
	t.Helper()
	server, err := e2btest.New(e2btest.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	options := e2b.Options{
		APIKey: server.APIKey(), APIURL: server.URL(), SandboxURL: server.URL(),
		Egress: map[string]e2b.Headers{"api.example.com": func(context.Context) (http.Header, error) {
			return http.Header{"Authorization": {"Bearer " + egressToken}}, nil
		}},
	}
	change(&options)
	driver, err := e2b.New(options)
	require.NoError(t, err)
	return setup(t, withItems(func(*directory.Driver) []worker.Item {
		return []worker.Item{worker.Agent("sandboxed", sandboxed), worker.Agent("every_fifth", everyFifth), worker.Tool(shell, runShell), worker.Driver(driver)}
	})), server
}

func (b *bench) sandboxed(t *testing.T, commands ...string) *tine.Log {
	t.Helper()
	input, err := json.Marshal(commands)
	require.NoError(t, err)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "sandboxed", Input: input})
	require.NoError(t, err)
	return b.end(t, e.ID)
}

func TestE2BFork(t *testing.T) {
	t.Parallel()
	b, server := setupE2B(t, func(*e2b.Options) {})
	source := b.sandboxed(t, "echo 1 >> log; cat log", "echo 2 >> log; cat log", "echo 3 >> log; cat log")
	require.JSONEq(t, `["1\n","1\n2\n","1\n2\n3\n"]`, string(source.Execution().Output), source.Execution().FailureReason)

	fork := b.fork(t, tine.ForkRequest{
		ExecutionID: source.Execution().ID, AtSeq: source.Steps()[1].SettledSeq,
		Input: json.RawMessage(`["echo 1 >> log; cat log", "echo 2 >> log; cat log", "echo fork >> log; cat log"]`),
	})
	require.JSONEq(t, `["1\n","1\n2\n","1\n2\nfork\n"]`, string(fork.Execution().Output), fork.Execution().FailureReason)
	sandboxes := server.Sandboxes()
	require.Len(t, sandboxes, 2)
	require.Equal(t, source.Execution().ID, sandboxes[0].Metadata["tine_execution_id"])
	require.Equal(t, fork.Execution().ID, sandboxes[1].Metadata["tine_execution_id"])

	for _, id := range []string{source.Execution().ID, fork.Execution().ID} {
		history := b.temporal.GetWorkflowHistory(t.Context(), id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		var text strings.Builder
		for history.HasNext() {
			event, err := history.Next()
			require.NoError(t, err)
			text.WriteString(prototext.Format(event)) // unlike JSON it has payloads in clear
		}
		require.Contains(t, text.String(), "log; cat log", "the payloads can be read")
		require.Contains(t, text.String(), "sandbox_id")
		require.NotContains(t, text.String(), egressToken)
		require.NotContains(t, text.String(), server.APIKey())
	}
}

func TestE2BWrongKeyIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	b, server := setupE2B(t, func(o *e2b.Options) { o.APIKey = "e2b_bad" })
	log := b.sandboxed(t, "true")
	require.Equal(t, tine.StatusFailed, log.Execution().Status)
	require.Contains(t, log.Execution().FailureReason, "check E2B_API_KEY")
	require.Len(t, server.Requests(), 1)
}

func TestE2BRateLimit(t *testing.T) {
	t.Parallel()
	b, server := setupE2B(t, func(*e2b.Options) {})
	server.Fail(e2btest.Fault{Method: http.MethodPost, Path: "/v2/sandboxes", Status: 429, RetryAfter: 3 * time.Second})
	began := time.Now()
	log := b.sandboxed(t, "echo here")
	require.JSONEq(t, `["here\n"]`, string(log.Execution().Output), log.Execution().FailureReason)
	require.Greater(t, time.Since(began), 3*time.Second, "Temporal's own first delay is 1 second")
	require.Len(t, server.Sandboxes(), 1)
}

// everyFifth runs commands in a sandbox that is captured after every fifth.
func everyFifth(ctx workflow.Context, commands []string) ([]string, error) {
	if err := sandbox.Open(ctx, workflows.ResourceOptions{Driver: "e2b", EverySteps: 5, SkipCompletion: true}); err != nil {
		return nil, err
	}
	var outputs []string
	for _, command := range commands {
		result, err := shell.Call(ctx, shellArgs{command})
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, result.Stdout)
	}
	return outputs, nil
}

// TestE2BCoverage forks where snapshots are, where none are, and where one is missing.
func TestE2BCoverage(t *testing.T) {
	t.Parallel()
	b, server := setupE2B(t, func(*e2b.Options) {})
	create := func(commands []string) *tine.Log {
		input, err := json.Marshal(commands)
		require.NoError(t, err)
		e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "every_fifth", Input: input})
		require.NoError(t, err)
		return b.end(t, e.ID)
	}
	var commands []string
	for i := range 12 {
		commands = append(commands, fmt.Sprintf("echo %d >> log; cat log", i+1))
	}
	source := create(commands)
	require.Equal(t, tine.StatusCompleted, source.Execution().Status, source.Execution().FailureReason)
	points := source.ForkPoints()
	steps := source.Steps()
	covered := []int64{}
	for _, c := range points.Checkpoints {
		covered = append(covered, c.CoveredSeq)
	}
	require.Equal(t, []int64{covered[0], steps[4].SettledSeq, steps[9].SettledSeq}, covered, "the baseline, and after the 5th and the 10th call")

	// What a fork starts with is what the log file in its sandbox holds.
	fork := func(step int) *tine.Log {
		input, err := json.Marshal(append(slices.Clone(commands[:step]), "cat log"))
		require.NoError(t, err)
		return b.fork(t, tine.ForkRequest{ExecutionID: id(source), AtSeq: steps[step-1].SettledSeq, Input: input})
	}
	for step, files := range map[int]int{5: 5, 10: 10, 7: 5, 12: 10, 3: 0} {
		log := fork(step)
		var outputs []string
		_ = json.Unmarshal(log.Execution().Output, &outputs)
		require.Len(t, outputs, step+1, log.Execution().FailureReason)
		require.Equal(t, files, strings.Count(outputs[step], "\n"), "fork after step %d", step)
		require.Equal(t, step == files, log.Execution().Restoration["sandbox"].Covered)
	}

	server.LoseSnapshot(points.Checkpoints[1].CheckpointRef)
	began := time.Now()
	log := fork(5)
	require.Equal(t, tine.StatusFailed, log.Execution().Status)
	require.Contains(t, log.Execution().FailureReason, "checkpoint unavailable")
	require.Less(t, time.Since(began), 10*time.Second, "at once, and not after attempts")
	require.Equal(t, tine.StatusCompleted, fork(10).Execution().Status, "others are as good as before")
}

// A tool that is safe to retry is, when its connection is cut.
func TestE2BCutStream(t *testing.T) {
	t.Parallel()
	b, server := setupE2B(t, func(*e2b.Options) {})
	server.Fail(e2btest.Fault{Path: "/process.Process/Start", CutAfter: -1})
	log := b.sandboxed(t, "echo here")
	require.JSONEq(t, `["here\n"]`, string(log.Execution().Output), log.Execution().FailureReason)
}

func TestE2BLostSandbox(t *testing.T) {
	t.Parallel()
	b, server := setupE2B(t, func(*e2b.Options) {})
	input := json.RawMessage(`["touch started; while [ ! -f go-on ]; do sleep 0.05; done", "true"]`)
	e, err := b.Create(t.Context(), tine.CreateRequest{Agent: "sandboxed", Input: input})
	require.NoError(t, err)
	running := func() string {
		for _, r := range server.Requests() {
			if r.Path == "/process.Process/Start" {
				return server.Sandboxes()[0].ID
			}
		}
		return ""
	}
	require.Eventually(t, func() bool { return running() != "" }, patience, 20*time.Millisecond)
	server.Lose(running())
	log := b.end(t, e.ID)
	require.Equal(t, tine.StatusFailed, log.Execution().Status)
	require.Contains(t, log.Execution().FailureReason, "resource is gone")
	require.Empty(t, server.Sandboxes())
}
