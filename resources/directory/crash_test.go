//go:build linux

package directory_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/directory"
)

// The crash tests run this test binary again as a worker, kill it at random moments,
// and look at what it left.

const (
	workerModeEnv = "TINE_DIRECTORY_TEST_WORKER"
	workerRootEnv = "TINE_DIRECTORY_TEST_ROOT"
	workerRefEnv  = "TINE_DIRECTORY_TEST_REF"
)

func TestMain(m *testing.M) {
	mode := os.Getenv(workerModeEnv)
	if mode == "" {
		os.Exit(m.Run())
	}
	if err := runWorker(mode, os.Getenv(workerRootEnv), os.Getenv(workerRefEnv), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runWorker works until it is killed. It says what it did after each operation.
func runWorker(mode, root, ref string, out io.Writer) error {
	d, err := directory.New(directory.Options{Root: root})
	if err != nil {
		return err
	}
	ctx := context.Background()
	for i := 0; ; i++ {
		switch mode {
		case "capture":
			err = captureOnce(ctx, d, out)
		case "create":
			err = createOnce(ctx, d, crashFork(i), ref, out)
		}
		if err != nil {
			return err
		}
	}
}

func createOnce(ctx context.Context, d *directory.Driver, execution, ref string, out io.Writer) error {
	_, _, err := d.Create(ctx, resources.CreateRequest{Owner: owner(execution), Checkpoint: ref})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, execution)
	return err
}

func crashFork(i int) string { return fmt.Sprint("fork-", i) }

// captureOnce changes the workspace, captures it, and prints the reference with a
// digest of what it must restore.
func captureOnce(ctx context.Context, d *directory.Driver, out io.Writer) error {
	w, _, err := d.Create(ctx, resources.CreateRequest{Owner: owner("captured")})
	if err != nil {
		return err
	}
	for range 20 {
		path := fmt.Sprintf("d%d/f%d", rand.IntN(20), rand.IntN(10))
		content := bytes.Repeat([]byte(fmt.Sprint(rand.Uint64())), rand.IntN(500))
		if err := w.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	ref, err := d.Checkpoint(ctx, w)
	if err != nil {
		return err
	}
	digest, err := digestOf(w)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, ref, digest)
	return err
}

func digestOf(w *directory.Workspace) (string, error) {
	entries, err := w.List()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(entries)
	return fmt.Sprintf("%x", sha256.Sum256(text)), err
}

// runAndKill runs a worker for a while and returns the lines that it completed.
func runAndKill(t *testing.T, mode, root, ref string, after time.Duration) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), workerModeEnv+"="+mode, workerRootEnv+"="+root, workerRefEnv+"="+ref)
	var out, failure bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failure
	require.NoError(t, cmd.Start())
	time.Sleep(after)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Empty(t, failure.String(), "the worker failed before it was killed")
	complete := out.String()[:strings.LastIndexByte(out.String(), '\n')+1]
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(complete), " ", "="))
}

const crashRounds = 8

// killAfter spreads the kills over several operations of a worker. Later rounds last
// longer, so that a busy machine gets somewhere in the end.
func killAfter(round int) time.Duration {
	return 15*time.Millisecond + rand.N(120*time.Millisecond)*time.Duration(1+round/crashRounds)
}

func TestKilledWhileCapturing(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	digests := map[string]string{}
	for round := 0; round < crashRounds || len(digests) == 0; round++ {
		for _, line := range runAndKill(t, "capture", root, "", killAfter(round)) {
			ref, digest, _ := strings.Cut(line, "=")
			digests[ref] = digest
		}
	}
	n := 0
	for _, d := range []*directory.Driver{d, open(t, root)} {
		for ref, want := range digests {
			n++
			digest, err := digestOf(fork(t, d, fmt.Sprint("check-", n), ref))
			require.NoError(t, err)
			require.Equal(t, want, digest)
		}
	}
	require.Empty(t, unfinished(t, root))

	// The store goes on, and the workspace is whatever the last worker left.
	w, _ := create(t, d, request("captured", ""))
	require.Equal(t, list(t, w), list(t, fork(t, d, "last", checkpoint(t, d, w))))
}

func TestKilledWhileCreating(t *testing.T) {
	t.Parallel()
	d, root := setup(t)
	source, _ := create(t, d, request("source", ""))
	for i := range 300 {
		path := fmt.Sprintf("d%d/f%d", i%20, i)
		require.NoError(t, source.WriteFile(path, bytes.Repeat([]byte(path), 300), 0o644))
	}
	ref := checkpoint(t, d, source)
	want, err := digestOf(source)
	require.NoError(t, err)

	most := 0
	for round := range crashRounds {
		most = max(most, len(runAndKill(t, "create", root, ref, killAfter(round))))
	}
	// One more may have been under way.
	for i := range most + 1 {
		w := fork(t, d, crashFork(i), ref)
		digest, err := digestOf(w)
		require.NoError(t, err)
		require.Equal(t, want, digest, crashFork(i))
		require.Equal(t, ref, checkpoint(t, d, w))
	}
	open(t, root)
	require.Empty(t, unfinished(t, root))
	workspaces, err := os.ReadDir(root + "/workspaces")
	require.NoError(t, err)
	require.Len(t, workspaces, most+2, "the source and one workspace a fork")
}
