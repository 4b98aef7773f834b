package agent

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/workflows"
)

func TestBranchOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, "tine/fix-42_b", BranchOf("fix-42_b"))
	seen := map[string]string{}
	for _, session := range []string{
		"a b", "a/b", "a..b", "ä", "-", "a.lock", "a@{b", "a\\b", "a~b", "?", strings.Repeat("x", 256), strings.Repeat("x", 255), "#slug's",
	} {
		branch := BranchOf(session)
		require.NoError(t, exec.Command("git", "check-ref-format", "--branch", branch).Run(), branch)
		require.Empty(t, seen[branch], "%q has the branch of another session", session)
		seen[branch] = session
	}
}

func TestNewest(t *testing.T) {
	t.Parallel()
	say := func(role string, bytes int) workflows.Message {
		return workflows.Message{Role: role, Content: strings.Repeat("x", bytes)}
	}
	short := []workflows.Message{say("user", 1), say("assistant", 2)}
	require.Equal(t, short, newest(short))

	turn := []workflows.Message{say("user", 3), say("user", 1), say("assistant", 1), say("tool", maxState/2)}
	long := append(append(append([]workflows.Message{}, turn...), turn...), short...)
	require.Equal(t, append(append([]workflows.Message{}, turn...), short...), newest(long), "the oldest turn goes first")

	single := []workflows.Message{say("user", 1), say("assistant", 1), say("tool", maxState), say("assistant", 4)}
	require.Equal(t, []workflows.Message{single[0], single[3]}, newest(single))
	require.Less(t, maxState*2, 1<<20, "it fits into a state, also when half of it takes escapes")
}

func TestScene(t *testing.T) {
	t.Parallel()
	note := func(branch string) activities.Message {
		return activities.Message{Role: "user", Content: branchNote + branch}
	}
	said := activities.Message{Role: "assistant"}
	s := sceneOf([]activities.Message{{Role: "user", Content: FixTask}, note("tine/a"), said, said})
	require.Equal(t, scene{task: FixTask, branch: "tine/a", answers: 2}, s)
	s = sceneOf([]activities.Message{{Role: "user", Content: FixTask}, note("tine/a"), said, note("tine/b"), said})
	require.True(t, s.moved)
	require.Equal(t, "tine/b", s.branch)
	s = sceneOf([]activities.Message{{Role: "user", Content: FixTask}, note("tine/a"), said, note("tine/b"), {Role: "user", Content: MoreTask}, said})
	require.Equal(t, scene{task: MoreTask, branch: "tine/b", answers: 1}, s)

	_, err := Scripted{}.Generate(t.Context(), activities.GenerateRequest{Messages: []activities.Message{{Role: "user", Content: "write a compiler"}}}, nil)
	require.ErrorContains(t, err, "only mend the example's own project")
}
