//go:build linux

package store

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tinerun/tine/resources"
)

// damaged makes a checkpoint of a small tree and returns it with the location of its
// pack and its record.
func damaged(t *testing.T) (b *testbed, dir, ref, pack, record string) {
	t.Helper()
	b = setup(t)
	dir = b.mkdir(t, "source")
	write(t, filepath.Join(dir, "sub/small"), "the small file")
	write(t, filepath.Join(dir, "large"), strings.Repeat("large", inMemory))
	require.NoError(t, unix.Setxattr(filepath.Join(dir, "large"), "user.note", []byte("an attribute"), 0))
	ref = b.capture(t, dir)
	packs, _ := b.packs(t)
	require.Len(t, packs, 1)
	return b, dir, ref, packs[0], filepath.Join(b.store.recordsDir(), ref)
}

// flip inverts a bit of a file, at an offset or where text is found.
func flip(t *testing.T, path string, offset int) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[offset] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

func offsetOf(t *testing.T, path, text string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	offset := bytes.Index(data, []byte(text))
	require.GreaterOrEqual(t, offset, 0)
	return offset
}

// restoreError restores in a process of its own, so to speak, and returns the error.
func restoreError(t *testing.T, b *testbed, ref string) error {
	t.Helper()
	dir := b.path("copy")
	err := openStore(t, b.root).Restore(t.Context(), ref, dir, indexOf(dir))
	require.NoError(t, os.RemoveAll(dir))
	return err
}

func TestDamageIsDetected(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		damage func(t *testing.T, b *testbed, pack, record string)
		want   string
	}{
		{"small blob", func(t *testing.T, _ *testbed, pack, _ string) {
			flip(t, pack, offsetOf(t, pack, "the small file"))
		}, `"sub/small"`},
		{"large blob", func(t *testing.T, _ *testbed, pack, _ string) {
			flip(t, pack, offsetOf(t, pack, "largelarge")+2*inMemory)
		}, `"large"`},
		{"attributes", func(t *testing.T, _ *testbed, pack, _ string) {
			flip(t, pack, offsetOf(t, pack, "an attribute"))
		}, "attributes"},
		{"root tree", func(t *testing.T, _ *testbed, pack, _ string) {
			flip(t, pack, offsetOf(t, pack, "\x03sub"))
		}, "tree"},
		{"tree of a subdirectory", func(t *testing.T, _ *testbed, pack, _ string) {
			flip(t, pack, offsetOf(t, pack, "\x05small")+1)
		}, `"sub"`},
		{"truncated pack", func(t *testing.T, _ *testbed, pack, _ string) {
			require.NoError(t, os.Truncate(pack, 1000))
		}, "missing from the store"},
		{"empty pack", func(t *testing.T, _ *testbed, pack, _ string) {
			require.NoError(t, os.Truncate(pack, 0))
		}, "missing from the store"},
		{"missing pack", func(t *testing.T, _ *testbed, pack, _ string) {
			require.NoError(t, os.Remove(pack))
		}, "missing from the store"},
		{"damaged index", func(t *testing.T, _ *testbed, pack, _ string) {
			flip(t, strings.TrimSuffix(pack, packSuffix)+indexSuffix, 30)
		}, "missing from the store"},
		{"missing index", func(t *testing.T, _ *testbed, pack, _ string) {
			require.NoError(t, os.Remove(strings.TrimSuffix(pack, packSuffix)+indexSuffix))
		}, "missing from the store"},
		{"damaged record", func(t *testing.T, _ *testbed, _, record string) {
			flip(t, record, 20)
		}, "record is damaged"},
		{"empty record", func(t *testing.T, _ *testbed, _, record string) {
			require.NoError(t, os.Truncate(record, 0))
		}, "record is damaged"},
		{"missing record", func(t *testing.T, _ *testbed, _, record string) {
			require.NoError(t, os.Remove(record))
		}, "no record"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, dir, ref, pack, record := damaged(t)
			tt.damage(t, b, pack, record)
			err := restoreError(t, b, ref)
			require.ErrorIs(t, err, resources.ErrCheckpointUnavailable)
			require.ErrorContains(t, err, tt.want)
			require.ErrorContains(t, err, ref)

			// The rest of the store goes on, and what is missing is stored again.
			b.store = openStore(t, b.root)
			other := b.mkdir(t, "other")
			write(t, filepath.Join(other, "file"), "unrelated")
			require.Equal(t, factsOf(t, other), factsOf(t, b.restore(t, b.capture(t, other), "other-copy")))
			require.Equal(t, ref, b.capture(t, dir))
			if tt.want == "missing from the store" || strings.Contains(tt.want, "record") {
				require.NoError(t, restoreError(t, b, ref))
			}
		})
	}
}

func TestDamageWhileRunningIsDetected(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(pack string) error{
		"truncated": func(pack string) error { return os.Truncate(pack, 1000) },
		"removed":   os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, ref, pack, _ := damaged(t)
			require.NoError(t, damage(pack))
			err := b.store.Restore(t.Context(), ref, b.path("copy"), b.path("copy.index"))
			require.ErrorIs(t, err, resources.ErrCheckpointUnavailable)
		})
	}
}

func TestInvalidReferences(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, ref := range []string{
		"", "x", "v1-", "v1-../../id", "v1-" + strings.Repeat("0", 63), "v1-" + strings.Repeat("0", 65),
		"v1-" + strings.Repeat("A", 64), "v2-" + strings.Repeat("0", 64), "v1-" + strings.Repeat("0", 64),
	} {
		err := b.store.Restore(t.Context(), ref, b.path("copy"), b.path("copy.index"))
		require.ErrorIs(t, err, resources.ErrCheckpointUnavailable, "%q", ref)
	}
	require.NoFileExists(t, b.path("copy"))
}

// TestLeftoversAreIgnored opens a store that a crash left with a pack that has no index
// and with temporary files.
func TestLeftoversAreIgnored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := b.mkdir(t, "source")
	write(t, filepath.Join(dir, "file"), "x")
	ref := b.capture(t, dir)
	write(t, filepath.Join(b.store.packsDir(), "orphan"+packSuffix), packMagic+"half a pa")
	write(t, filepath.Join(b.store.tmpDir(), "pack.123"), "half a pack")

	b.store = openStore(t, b.root)
	require.NoFileExists(t, filepath.Join(b.store.tmpDir(), "pack.123"), "Open sweeps temporary files")
	require.Equal(t, ref, b.capture(t, dir))
	require.Equal(t, factsOf(t, dir), factsOf(t, b.restore(t, ref, "copy")))
}

func TestOpenLeavesRunningCapturesAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	release, err := b.store.share(t.Context())
	require.NoError(t, err)
	defer release()
	write(t, filepath.Join(b.store.tmpDir(), "pack.123"), "being written")
	openStore(t, b.root)
	require.FileExists(t, filepath.Join(b.store.tmpDir(), "pack.123"))
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() {
		// A process that another test starts has this one's files open until it is its own program.
		require.Eventually(t, func() bool { return unix.Unmount(root, 0) == nil }, 10*time.Second, 10*time.Millisecond)
	})
	b := &testbed{store: openStore(t, root), root: root}

	dir := b.mkdir(t, "source")
	write(t, filepath.Join(dir, "file"), "kept")
	kept := b.capture(t, dir)
	want := factsOf(t, dir)

	filler := make([]byte, 5<<20)
	for i := range filler {
		filler[i] = byte(i * i >> 8)
	}
	write(t, filepath.Join(dir, "big"), string(filler))
	_, err := b.store.Capture(t.Context(), dir, indexOf(dir))
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorContains(t, err, "free some space")
	require.NotErrorIs(t, err, resources.ErrCheckpointUnavailable)
	leftovers, err := os.ReadDir(b.store.tmpDir())
	require.NoError(t, err)
	require.Empty(t, leftovers, "a failed capture gives its space back")
	packs, _ := b.packs(t)
	require.Len(t, packs, 1)

	require.Equal(t, want, factsOf(t, b.restore(t, kept, "copy")))
	require.NoError(t, os.Truncate(filepath.Join(dir, "big"), 1<<20))
	ref := b.capture(t, dir)

	// A restore that runs out of space says nothing about the checkpoint.
	require.NoError(t, os.Remove(filepath.Join(dir, "file")))
	write(t, filepath.Join(root, "hog"), string(filler))
	err = b.store.Restore(t.Context(), ref, b.path("too-big"), b.path("too-big.index"))
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NotErrorIs(t, err, resources.ErrCheckpointUnavailable)
}

func TestUnreadableForOtherUsers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		runAsNobody(t)
		return
	}
	b := setup(t)
	dir := b.mkdir(t, "source")
	secret := filepath.Join(dir, "sub/secret")
	write(t, secret, "x")
	require.NoError(t, os.Chmod(secret, 0))
	_, err := b.store.Capture(t.Context(), dir, indexOf(dir))
	require.ErrorIs(t, err, unix.EACCES)
	require.ErrorContains(t, err, `"sub/secret"`)
	require.ErrorContains(t, err, "make it readable")

	require.NoError(t, os.Chmod(secret, 0o600))
	require.NoError(t, os.Chmod(filepath.Join(dir, "sub"), 0))
	_, err = b.store.Capture(t.Context(), dir, indexOf(dir))
	require.ErrorContains(t, err, `"sub"`)
	require.ErrorContains(t, err, "make it readable")

	// Read-only is no obstacle, and comes back read-only.
	require.NoError(t, os.Chmod(filepath.Join(dir, "sub"), 0o700))
	require.NoError(t, os.Chmod(secret, 0o400))
	require.NoError(t, os.Chmod(filepath.Join(dir, "sub"), 0o500))
	require.NoError(t, os.Chmod(dir, 0o500))
	require.Equal(t, factsOf(t, dir), factsOf(t, b.restore(t, b.capture(t, dir), "copy")))

	// What was readable when it was captured is restored without being readable.
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.Chmod(filepath.Join(dir, "sub"), 0o700))
	settle()
	b.capture(t, dir)
	ref := b.capture(t, dir)
	require.Equal(t, ref, b.capture(t, b.restore(t, ref, "copy2")))
}

// TestCancelledCapture cancels at each of the moments when a capture looks.
func TestCancelledCapture(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := b.mkdir(t, "source")
	fillSame(t, dir)
	for patience := range 20 {
		asked := 0
		ctx := &askedContext{Context: t.Context(), asked: func() error {
			if asked++; asked > patience {
				return context.Canceled
			}
			return nil
		}}
		ref, err := b.store.Capture(ctx, dir, indexOf(dir))
		if err == nil {
			require.Equal(t, ref, b.capture(t, dir))
			break
		}
		require.ErrorIs(t, err, context.Canceled)
		leftovers, err := os.ReadDir(b.store.tmpDir())
		require.NoError(t, err)
		require.Empty(t, leftovers)
	}
	require.Equal(t, factsOf(t, dir), factsOf(t, b.restore(t, b.capture(t, dir), "copy")))
}
