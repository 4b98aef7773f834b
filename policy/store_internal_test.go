package policy

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/protocol"
)

// only is a policy that allows everything by one rule.
func only(id string) string {
	return "default_action: deny\nrules:\n  - id: " + id + "\n    then: {decision: allow}\n"
}

const garbage = "rules: [garbage\n"

// bench is a store whose polls the test drives, and what it reads.
type bench struct {
	t     *testing.T
	path  string
	store *Store
	log   bytes.Buffer
	clock time.Time
}

// newBench writes files into a directory. With the name of one of them, that is the store's path.
func newBench(t *testing.T, files map[string]string, path ...string) *bench {
	t.Helper()
	b := &bench{t: t, path: t.TempDir(), clock: time.Unix(1_700_000_000, 0)}
	for name, content := range files {
		b.write(name, content)
	}
	store, err := newStore(filepath.Join(append([]string{b.path}, path...)...), StoreOptions{
		Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
	})
	require.NoError(t, err)
	store.now = func() time.Time { return b.clock }
	b.store = store
	return b
}

// opened is a bench whose policies are loaded.
func opened(t *testing.T, files map[string]string, path ...string) *bench {
	t.Helper()
	b := newBench(t, files, path...)
	require.NoError(t, b.store.loadAll(t.Context()))
	b.log.Reset()
	return b
}

func (b *bench) file(name string) string { return filepath.Join(b.path, name) }

func (b *bench) write(name, content string) {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile(b.file(name), []byte(content), 0o644))
}

func (b *bench) remove(name string) {
	b.t.Helper()
	require.NoError(b.t, os.RemoveAll(b.file(name)))
}

func (b *bench) poll() { b.store.poll(b.t.Context()) }

// settle polls until what is on disk has been acted on.
func (b *bench) settle() {
	b.poll()
	b.poll()
}

// rule is the rule that decides for an agent.
func (b *bench) rule(agent string) string {
	b.t.Helper()
	decision, err := b.store.Decide(b.t.Context(), Input{AgentID: agent, StepKind: protocol.KindTool, Target: "shell"})
	require.NoError(b.t, err)
	return decision.RuleID
}

// logged takes the lines that have been logged at a level.
func (b *bench) logged(level string) []string {
	var lines []string
	for line := range strings.Lines(b.log.String()) {
		if strings.Contains(line, "level="+level+" ") {
			lines = append(lines, line)
		}
	}
	b.log.Reset()
	return lines
}

func (b *bench) status(name string) Status {
	b.t.Helper()
	for _, status := range b.store.Status() {
		if status.Name == name {
			return status
		}
	}
	require.Fail(b.t, "no such policy", name)
	return Status{}
}

func TestStoreOfAFile(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"shell.yaml": only("first"), "coder.yaml": only("second")}, "shell.yaml")
	require.Equal(t, "first", b.rule("coder"), "a file is for all agents")
	digest, unrestricted := b.store.Describe("coder")
	require.Equal(t, b.store.Bundle("any").Digest(), digest)
	require.False(t, unrestricted)
	require.Equal(t, []Status{{Name: DefaultName, Files: []string{b.file("shell.yaml")}, Digest: digest, LoadedAt: b.clock}}, b.store.Status())
}

func TestStoreOfADirectory(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{
		"default.yml": only("all"), "coder.yaml": only("coders"), "team%2Fcoder.yaml": only("teams"), "a b.yaml": only("spaced"),
		"coder.policytest.yaml": garbage, "coder_test.rego": "garbage", ".hidden.yaml": garbage, "README.md": "garbage",
	})
	require.NoError(t, os.Mkdir(b.file("nested.yaml"), 0o755))
	b.settle()
	require.Equal(t, "all", b.rule("writer"))
	require.Equal(t, "coders", b.rule("coder"))
	require.Equal(t, "teams", b.rule("team/coder"))
	require.Equal(t, "spaced", b.rule("a b"))
	require.Len(t, b.store.Status(), 4)
	require.Empty(t, b.logged("ERROR"))
}

func TestStoreWithoutAPolicyForTheAgent(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"coder.yaml": only("coders")})
	require.Equal(t, "coders", b.rule("coder"))
	require.Equal(t, protocol.RulePermissive, b.rule("writer"))
	_, unrestricted := b.store.Describe("writer")
	require.True(t, unrestricted)

	b.store.opts.Require = true
	decision, err := b.store.Decide(t.Context(), Input{AgentID: "writer", StepKind: protocol.KindLocal, Target: "now"})
	require.NoError(t, err)
	require.Equal(t, Decision{
		Decision: Deny, RuleID: protocol.RuleBundleError,
		Reason: `no policy is configured for agent "writer", and the worker requires one`,
	}, decision)
	_, unrestricted = b.store.Describe("writer")
	require.False(t, unrestricted)
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]string{"coder.yaml": garbage, "default.yaml": garbage, "empty.yaml": " \n", "good.yaml": only("good")})
	require.NoError(t, os.Symlink(b.file("nowhere"), b.file("broken.yaml")))
	require.NoError(t, syscall.Mkfifo(b.file("pipe.yaml"), 0o600))
	_, err := Open(t.Context(), b.path, StoreOptions{})
	var invalid *LoadError
	require.ErrorAs(t, err, &invalid)
	wrong := map[string]string{}
	for _, p := range invalid.Problems {
		wrong[filepath.Base(p.File)] = p.Message
	}
	require.Len(t, wrong, 5)
	require.Contains(t, wrong, "coder.yaml")
	require.Contains(t, wrong, "default.yaml")
	require.Equal(t, "the file is empty", wrong["empty.yaml"])
	require.Equal(t, "no such file or directory", wrong["broken.yaml"])
	require.Equal(t, "not a regular file", wrong["pipe.yaml"])

	_, err = Open(t.Context(), b.file("missing"), StoreOptions{})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Open(t.Context(), t.TempDir(), StoreOptions{})
	require.ErrorContains(t, err, "has no policy: name one default.yaml")
	_, err = Open(t.Context(), b.file("empty.yaml"), StoreOptions{})
	require.ErrorAs(t, err, &invalid)

	large := b.file("large.yaml")
	b.write("large.yaml", only("large"))
	require.NoError(t, os.Truncate(large, maxFileBytes+1))
	_, err = Open(t.Context(), large, StoreOptions{})
	require.ErrorAs(t, err, &invalid)
	require.Contains(t, invalid.Problems[0].Message, "at most")
}

func TestStoreReloadsWhatStaysTheSameForTwoPolls(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"default.yaml": only("old")})
	before := b.status(DefaultName)
	b.write("default.yaml", only("half"))
	b.poll()
	require.Equal(t, "old", b.rule("coder"), "it may be half written")
	b.write("default.yaml", only("whole"))
	b.poll()
	require.Equal(t, "old", b.rule("coder"), "it was still being written")
	b.clock = b.clock.Add(time.Second)
	b.poll()
	require.Equal(t, "whole", b.rule("coder"))
	after := b.status(DefaultName)
	require.NotEqual(t, before.Digest, after.Digest)
	require.Equal(t, time.Second, after.LoadedAt.Sub(before.LoadedAt))
	require.Len(t, b.logged("INFO"), 1)

	b.settle()
	require.Equal(t, after, b.status(DefaultName), "nothing has changed")
	require.Empty(t, b.log.String())
}

func TestStoreSeesAChangeThatTimesAndSizesHide(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"default.yaml": only("aaa")})
	info, err := os.Stat(b.file("default.yaml"))
	require.NoError(t, err)
	b.write("default.yaml", only("bbb"))
	require.NoError(t, os.Chtimes(b.file("default.yaml"), info.ModTime(), info.ModTime()))
	b.settle()
	require.Equal(t, "bbb", b.rule("coder"))
}

func TestStoreKeepsTheLastGoodPolicy(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*bench){
		"garbage":            func(b *bench) { b.write("coder.yaml", garbage) },
		"emptied":            func(b *bench) { b.write("coder.yaml", "") },
		"only white space":   func(b *bench) { b.write("coder.yaml", "\n\n") },
		"deleted":            func(b *bench) { b.remove("coder.yaml") },
		"became a directory": func(b *bench) { b.remove("coder.yaml"); require.NoError(b.t, os.Mkdir(b.file("coder.yaml"), 0o755)) },
		"became a pipe": func(b *bench) {
			b.remove("coder.yaml")
			require.NoError(b.t, syscall.Mkfifo(b.file("coder.yaml"), 0o600))
		},
		"a link to nowhere":   func(b *bench) { b.remove("coder.yaml"); require.NoError(b.t, os.Symlink("gone", b.file("coder.yaml"))) },
		"directory deleted":   func(b *bench) { b.remove("") },
		"directory is a file": func(b *bench) { b.remove(""); b.write("", "x") },
	} {
		for _, as := range []string{"file", "directory"} {
			t.Run(name+"/"+as, func(t *testing.T) {
				t.Parallel()
				var path []string
				policy := "coder"
				if as == "file" {
					path, policy = []string{"coder.yaml"}, DefaultName
				}
				b := opened(t, map[string]string{"coder.yaml": only("good")}, path...)
				good := b.status(policy)
				spoil(b)
				b.settle()
				require.Equal(t, "good", b.rule("coder"))
				told := b.logged("ERROR")
				require.Len(t, told, 1)
				require.Contains(t, told[0], "policy refused; the last good one stays in use")
				require.Contains(t, told[0], "policy="+policy)
				now := b.status(policy)
				require.NotEmpty(t, now.Problem)
				good.Problem = now.Problem
				require.Equal(t, good, now)

				b.settle()
				require.Empty(t, b.log.String(), "once is enough for a while")
				b.clock = b.clock.Add(remindEvery)
				b.settle()
				require.Len(t, b.logged("ERROR"), 1, "but not for ever")
				require.Equal(t, "good", b.rule("coder"))

				b.remove("")
				require.NoError(t, os.Mkdir(b.path, 0o755))
				b.write("coder.yaml", only("better"))
				b.settle()
				require.Equal(t, "better", b.rule("coder"))
				require.Empty(t, b.status(policy).Problem)
			})
		}
	}
}

func TestStoreTellsEachChangeForTheWorse(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"default.yaml": only("good")})
	for _, bad := range []string{garbage, garbage + "# more\n", garbage} {
		b.write("default.yaml", bad)
		b.settle()
		require.Len(t, b.logged("ERROR"), 1)
	}
	b.write("default.yaml", only("good"))
	b.poll()
	require.Empty(t, b.status(DefaultName).Problem, "what is in use is back on disk")
	require.Len(t, b.logged("INFO"), 1)
	b.write("default.yaml", garbage)
	b.settle()
	require.Len(t, b.logged("ERROR"), 1)
}

func TestStorePicksUpNewAgents(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"default.yaml": only("all")})
	b.write("coder.yaml", only("coders"))
	b.poll()
	require.Equal(t, "all", b.rule("coder"))
	require.Len(t, b.store.Status(), 1)
	b.poll()
	require.Equal(t, "coders", b.rule("coder"))
	require.Equal(t, "all", b.rule("writer"))

	b.write("writer.yaml", garbage)
	b.settle()
	require.Equal(t, protocol.RuleBundleError, b.rule("writer"))
	status := b.status("writer")
	require.NotEmpty(t, status.Problem)
	require.Empty(t, status.Digest)

	b.remove("writer.yaml")
	b.settle()
	require.Len(t, b.store.Status(), 2, "a policy that never was is gone with its file")
	b.write("writer.yaml", only("writers"))
	b.settle()
	require.Equal(t, "writers", b.rule("writer"))
}

// TestStoreDeniesWhatANewPolicyThatIsBrokenIsFor: somebody has restricted the agent, and thinks
// that it is.
func TestStoreDeniesWhatANewPolicyThatIsBrokenIsFor(t *testing.T) {
	t.Parallel()
	decide := func(b *bench, agent string) Decision {
		t.Helper()
		decision, err := b.store.Decide(t.Context(), Input{AgentID: agent, StepKind: protocol.KindLocal, Target: "now"})
		require.NoError(t, err)
		return decision
	}
	for name, tc := range map[string]struct {
		files         map[string]string
		broken, agent string
		before        string
	}{
		"an agent without any": {map[string]string{"coder.yaml": only("coders")}, "writer.yaml", "writer", protocol.RulePermissive},
		"an agent with the default": {
			map[string]string{"coder.yaml": only("coders"), "default.yaml": only("all")}, "writer.yaml", "writer", "all",
		},
		"the default": {map[string]string{"coder.yaml": only("coders")}, "default.yaml", "anyone", protocol.RulePermissive},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := opened(t, tc.files)
			b.write(tc.broken, "rules:")
			b.poll()
			require.Equal(t, tc.before, b.rule(tc.agent), "it may be half written")
			b.write(tc.broken, "rules:\n")
			b.poll()
			require.Equal(t, tc.before, b.rule(tc.agent))
			b.poll()
			denied := Decision{
				Decision: Deny, RuleID: protocol.RuleBundleError,
				Reason: "the policy of the agent cannot be used: " + tc.broken + ":1: rules must be a list",
			}
			require.Equal(t, denied, decide(b, tc.agent))
			require.Equal(t, "coders", b.rule("coder"), "others are not concerned")
			digest, unrestricted := b.store.Describe(tc.agent)
			require.Empty(t, digest)
			require.False(t, unrestricted)
			require.Nil(t, b.store.Bundle(tc.agent))
			told := b.logged("ERROR")
			require.Len(t, told, 1)
			require.Contains(t, told[0], "policy refused; until there is a good one all steps that it is for are denied")

			b.write(tc.broken, garbage)
			b.poll()
			require.Equal(t, denied, decide(b, tc.agent), "not yet steady")
			b.poll()
			require.Contains(t, decide(b, tc.agent).Reason, tc.broken+":1: not YAML")

			b.remove(tc.broken)
			b.poll()
			require.Equal(t, Deny, decide(b, tc.agent).Decision, "an editor may be about to write it again")
			b.poll()
			require.Equal(t, tc.before, b.rule(tc.agent))

			b.write(tc.broken, garbage)
			b.settle()
			require.Equal(t, protocol.RuleBundleError, b.rule(tc.agent))
			b.write(tc.broken, only("good"))
			b.settle()
			require.Equal(t, "good", b.rule(tc.agent))
			b.write(tc.broken, garbage)
			b.settle()
			require.Equal(t, "good", b.rule(tc.agent), "it was good once")
		})
	}
}

func TestStoreDeniesWithinBounds(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"coder.yaml": only("coders")})
	b.write("writer.yaml", "default_action: "+strings.Repeat("é", 100_000))
	require.NoError(t, os.Symlink("nowhere", b.file("gone.yaml")))
	b.settle()
	decision, err := b.store.Decide(t.Context(), Input{AgentID: "writer"})
	require.NoError(t, err)
	require.LessOrEqual(t, len(decision.Reason), protocol.MaxReason+len("…"))
	decision, err = b.store.Decide(t.Context(), Input{AgentID: "gone"})
	require.NoError(t, err)
	require.Equal(t, "the policy of the agent cannot be used: gone.yaml: no such file or directory", decision.Reason)
}

func TestStoreTakesFilesOfOneNameAsOnePolicy(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]string{"coder.yaml": only("rules"), "coder.rego": "package tine\n"})
	var compiled [][]string
	b.store.compile = func(ctx context.Context, files []Source, opts Options) (*Bundle, error) {
		var names []string
		for _, file := range files {
			names = append(names, filepath.Base(file.Name))
		}
		compiled = append(compiled, names)
		return Compile(ctx, []Source{{Name: "coder.yaml", Data: []byte(only("rules"))}}, opts)
	}
	require.NoError(t, b.store.loadAll(t.Context()))
	require.Equal(t, [][]string{{"coder.rego", "coder.yaml"}}, compiled)

	b.remove("coder.rego")
	b.settle()
	require.Len(t, compiled, 1, "without one of its files the policy might allow more")
	require.Contains(t, b.status("coder").Problem, "coder.rego")

	b.write("coder.rego", "package tine\n\n")
	b.settle()
	require.Len(t, compiled, 2)
	require.Empty(t, b.status("coder").Problem)
}

func TestStoreFollowsRenamesAndLinks(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	for _, version := range []string{"one", "two"} {
		require.NoError(t, os.Mkdir(b.file(".."+version), 0o755))
		b.write(".."+version+"/default.yaml", only(version))
	}
	// As a mounted ConfigMap has it: the file is a link into a directory that is a link itself.
	require.NoError(t, os.Symlink("..one", b.file("..data")))
	require.NoError(t, os.Symlink("..data/default.yaml", b.file("default.yaml")))
	require.NoError(t, b.store.loadAll(t.Context()))
	require.Equal(t, "one", b.rule("coder"))

	require.NoError(t, os.Symlink("..two", b.file("..next")))
	require.NoError(t, os.Rename(b.file("..next"), b.file("..data")))
	b.settle()
	require.Equal(t, "two", b.rule("coder"))

	b.write("next", only("three"))
	require.NoError(t, os.Rename(b.file("next"), b.file("default.yaml")))
	b.settle()
	require.Equal(t, "three", b.rule("coder"))
}

func TestDecisionsDoNotWaitForAReload(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"default.yaml": only("old")})
	compiling, compile := make(chan struct{}), make(chan struct{})
	b.store.compile = func(ctx context.Context, files []Source, opts Options) (*Bundle, error) {
		close(compiling)
		<-compile
		return Compile(ctx, files, opts)
	}
	b.write("default.yaml", only("new"))
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		b.settle()
	}()
	<-compiling
	require.Equal(t, "old", b.rule("coder"))
	require.Len(t, b.store.Status(), 1)
	close(compile)
	<-polled
	require.Equal(t, "new", b.rule("coder"))
}

func TestAnInterruptedReloadRefusesNothing(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"default.yaml": only("old")})
	ctx, cancel := context.WithCancel(t.Context())
	b.store.compile = func(context.Context, []Source, Options) (*Bundle, error) {
		cancel()
		return nil, context.Canceled
	}
	b.write("default.yaml", only("new"))
	b.store.poll(ctx)
	b.store.poll(ctx)
	require.Empty(t, b.logged("ERROR"))
	require.Empty(t, b.status(DefaultName).Problem)
}

func TestDecisionsDuringReloads(t *testing.T) {
	t.Parallel()
	b := opened(t, map[string]string{"default.yaml": only("v0")})
	done := make(chan struct{})
	var deciders sync.WaitGroup
	for range 4 {
		deciders.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				decision, err := b.store.Decide(t.Context(), Input{AgentID: "coder", StepKind: protocol.KindTool, Target: "shell"})
				if err != nil || decision.Decision != Allow || decision.PolicyDigest == "" {
					t.Errorf("%+v, %v", decision, err)
					return
				}
				b.store.Status()
			}
		})
	}
	for i := 1; i <= 20; i++ {
		b.write("default.yaml", only(fmt.Sprintf("v%d", i)))
		b.settle()
	}
	close(done)
	deciders.Wait()
	require.Equal(t, "v20", b.rule("coder"))
}
