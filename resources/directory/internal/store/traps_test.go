//go:build linux

package store

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The tests of this file are the ways in which stores of this kind are known to lose
// changes.

// editSilently changes a file's bytes and leaves its size and its mtime.
func editSilently(t *testing.T, path, content string) {
	t.Helper()
	before := inode(t, path)
	require.Len(t, content, int(before.Size))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(content)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	setMtime(t, path, before.Mtim.Sec, before.Mtim.Nsec)
}

func TestEditRightAfterCaptureIsSeen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := b.mkdir(t, "source")
	file := filepath.Join(dir, "file")
	write(t, file, "000")
	for round := range 40 {
		ref := b.capture(t, dir)
		content := fmt.Sprintf("%03d", round+1)
		editSilently(t, file, content)
		next := b.capture(t, dir)
		require.NotEqual(t, ref, next, "round %d", round)
		if round%20 == 0 {
			require.Equal(t, content, read(t, filepath.Join(b.restore(t, next, fmt.Sprint("copy", round)), "file")))
		}
	}
}

func TestEditRightAfterRestoreIsSeen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.mkdir(t, "source")
	write(t, filepath.Join(source, "file"), "old")
	ref := b.capture(t, source)
	for round := range 20 {
		fork := b.restore(t, ref, fmt.Sprint("fork", round))
		editSilently(t, filepath.Join(fork, "file"), "new")
		require.NotEqual(t, ref, b.capture(t, fork), "round %d", round)
	}
}

func TestSameSizeEditWithMtimePutBackIsSeen(t *testing.T) {
	t.Parallel()
	edits := map[string]func(t *testing.T, path string){
		"in place": func(t *testing.T, path string) { editSilently(t, path, "new") },
		"replaced by another file": func(t *testing.T, path string) {
			before := inode(t, path)
			write(t, path+".tmp", "new")
			setMtime(t, path+".tmp", before.Mtim.Sec, before.Mtim.Nsec)
			require.NoError(t, os.Rename(path+".tmp", path))
		},
		"two files swapped": func(t *testing.T, path string) {
			other := filepath.Join(filepath.Dir(path), "new")
			before := inode(t, path)
			setMtime(t, other, before.Mtim.Sec, before.Mtim.Nsec)
			require.NoError(t, unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE))
		},
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			dir := b.mkdir(t, "source")
			file := filepath.Join(dir, "file")
			write(t, file, "old")
			write(t, filepath.Join(dir, "new"), "new")
			settle()
			ref := b.capture(t, dir)
			require.Equal(t, ref, b.capture(t, dir))
			settle()
			edit(t, file)
			next := b.capture(t, dir)
			require.NotEqual(t, ref, next)
			require.Equal(t, "new", read(t, filepath.Join(b.restore(t, next, "copy"), "file")))
		})
	}
}

// TestFreshFilesAreNotTrusted does not depend on how coarse this kernel's timestamps
// are, as the tests of edits do.
func TestFreshFilesAreNotTrusted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := b.mkdir(t, "source")
	write(t, filepath.Join(dir, "old"), "old")
	settle()
	write(t, filepath.Join(dir, "fresh"), "fresh")
	b.capture(t, dir)
	require.Equal(t, []string{"old"}, indexedFiles(t, dir))
	settle()
	b.capture(t, dir)
	require.Equal(t, []string{"fresh", "old"}, indexedFiles(t, dir))

	now := time.Unix(100, 0)
	for ctime, want := range map[timestamp]bool{
		{sec: 99, nsec: 979_000_000}: true,
		{sec: 99, nsec: 981_000_000}: false,
		{sec: 100}:                   false,
		{sec: 200}:                   false,
	} {
		require.Equal(t, want, ctime.settled(now), "%v", ctime)
	}
}

// indexedFiles returns the files of a flat directory that its index knows as they are.
func indexedFiles(t *testing.T, dir string) (names []string) {
	t.Helper()
	index := loadStatIndex(indexOf(dir))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(filepath.Join(dir, entry.Name()), &st))
		if _, ok := index.lookup(statOf(&st)); ok {
			names = append(names, entry.Name())
		}
	}
	return names
}

func TestRestoreSeedsTheIndex(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := b.mkdir(t, "source")
	write(t, filepath.Join(source, "a"), "linked")
	require.NoError(t, os.Link(filepath.Join(source, "a"), filepath.Join(source, "b")))
	write(t, filepath.Join(source, "c"), "alone")
	require.NoError(t, unix.Setxattr(filepath.Join(source, "c"), "user.x", []byte("1"), 0))
	ref := b.capture(t, source)

	// As Restore does it, but so late that all files have settled.
	r := newRestore(b.store)
	defer r.close()
	parent, err := openDirAt(unix.AT_FDCWD, b.root)
	require.NoError(t, err)
	defer parent.release()
	root, err := b.store.loadRecord(ref)
	require.NoError(t, err)
	root.name = "copy"
	require.NoError(t, r.run(t.Context(), parent, root))
	settle()
	require.NoError(t, r.saveIndex(indexOf(b.path("copy"))))

	require.Equal(t, []string{"a", "b", "c"}, indexedFiles(t, b.path("copy")))
	require.Equal(t, ref, b.capture(t, b.path("copy")))
}

func TestUnchangedFilesAreNotRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := b.mkdir(t, "source")
	write(t, filepath.Join(dir, "file"), "true")
	write(t, filepath.Join(dir, "other"), "lies")
	settle()
	ref := b.capture(t, dir)
	// An index that lies shows that the capture believes it.
	index := loadStatIndex(indexOf(dir))
	require.Len(t, index.offsets, 2)
	st := inode(t, filepath.Join(dir, "file"))
	entry := decodeIndexed(index.records[index.offsets[fileKey{dev: st.Dev, ino: st.Ino}]:])
	entry.content = blobDomain.sum([]byte("lies"))
	writer, err := newIndexWriter(b.store.tmpDir(), indexOf(dir))
	require.NoError(t, err)
	require.NoError(t, writer.save(appendIndexed(nil, &entry)))
	require.NotEqual(t, ref, b.capture(t, dir))

	require.NoError(t, os.Remove(indexOf(dir)))
	require.Equal(t, ref, b.capture(t, dir), "without an index everything is read")
}

func TestIndexOfAnotherBootIsIgnored(t *testing.T) {
	t.Parallel()
	if bootID() == "" {
		t.Skip("this kernel has no boot ID")
	}
	b := setup(t)
	dir := b.mkdir(t, "source")
	write(t, filepath.Join(dir, "file"), "x")
	settle()
	b.capture(t, dir)
	require.Len(t, loadStatIndex(indexOf(dir)).offsets, 1)

	data := []byte(strings.Replace(read(t, indexOf(dir)), bootID(), "00000000-0000-0000-0000-000000000000", 1))
	data = appendChecksum(data[:len(data)-len(ID{})])
	require.NoError(t, os.WriteFile(indexOf(dir), data, 0o600))
	require.Empty(t, loadStatIndex(indexOf(dir)).offsets)
}

func TestDomainsAreSeparate(t *testing.T) {
	t.Parallel()
	emptyTree := appendTree(nil, nil)
	require.NotEqual(t, blobDomain.sum(nil), treeDomain.sum(nil))
	require.NotEqual(t, blobDomain.sum(emptyTree), treeDomain.sum(emptyTree))

	b := setup(t)
	dir := b.mkdir(t, "source")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empty-dir"), 0o755))
	write(t, filepath.Join(dir, "empty-file"), "")
	write(t, filepath.Join(dir, "file-like-a-tree"), string(emptyTree))
	copied := b.restore(t, b.capture(t, dir), "copy")
	require.Equal(t, factsOf(t, dir), factsOf(t, copied))
}

func TestConcurrentFirstCapturesStoreOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var dirs, refs [4]string
	var total int64
	for i := range dirs {
		dirs[i] = b.mkdir(t, fmt.Sprint("source", i))
		total = fillSame(t, dirs[i])
	}
	// A store each, as processes have.
	var captures sync.WaitGroup
	for i, dir := range dirs {
		s := openStore(t, b.root)
		captures.Go(func() { refs[i], _ = s.Capture(t.Context(), dir, indexOf(dir)) })
	}
	captures.Wait()
	for i, ref := range refs {
		require.Equal(t, refs[0], ref, "capture %d", i)
	}
	_, size := b.packs(t)
	require.Less(t, size, total+total/10, "the content is stored once")
	require.Equal(t, factsOf(t, dirs[0]), factsOf(t, b.restore(t, refs[0], "copy")))
}

// TestOverlappingCapturesStoreOnce has captures that share a part only, so packs have
// to be rewritten.
func TestOverlappingCapturesStoreOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := openStore(t, b.root)
	dir1, dir2 := b.mkdir(t, "source1"), b.mkdir(t, "source2")
	shared := fillSame(t, dir1)
	fillSame(t, dir2)
	write(t, filepath.Join(dir2, "own"), "of the second")

	// The second capture has read everything before the first one publishes.
	index, err := newIndexWriter(other.tmpDir(), indexOf(dir2))
	require.NoError(t, err)
	defer index.discard()
	late := newCapture(other, statIndex{}, index)
	root, err := walk(t.Context(), dir2, late)
	require.NoError(t, err)
	require.NoError(t, late.storeTree(root))
	b.capture(t, dir1)
	require.NoError(t, other.publish(t.Context(), late.pack))

	packs, size := b.packs(t)
	require.Len(t, packs, 2)
	require.Less(t, size, shared+shared/10)
	copied := b.restore(t, b.capture(t, dir2), "copy")
	require.Equal(t, factsOf(t, dir2), factsOf(t, copied))
}

// fillSame makes the same content in each directory, down to the mtimes, and returns
// its size.
func fillSame(t *testing.T, dir string) (size int64) {
	t.Helper()
	for i := range 200 {
		content := strings.Repeat(fmt.Sprintf("%04d", i), 1000)
		path := filepath.Join(dir, fmt.Sprintf("d%d/f%d", i%10, i))
		write(t, path, content)
		size += int64(len(content))
	}
	big := filepath.Join(dir, "big")
	write(t, big, strings.Repeat("big", inMemory))
	write(t, filepath.Join(dir, "big-too"), strings.Repeat("big", inMemory))
	size += 3 * inMemory
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		setMtime(t, path, 1_500_000_000, 5)
		return err
	}))
	return size
}

func TestWriteAfterRestoreLeavesCheckpointAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := b.mkdir(t, "source")
	write(t, filepath.Join(dir, "file"), "original")
	ref := b.capture(t, dir)
	for i := range 3 {
		fork := b.restore(t, ref, fmt.Sprint("fork", i))
		file := filepath.Join(fork, "file")
		require.Equal(t, "original", read(t, file))
		require.EqualValues(t, 1, inode(t, file).Nlink)
		require.NoError(t, os.WriteFile(file, []byte("CHANGED!"), 0o644))
	}
	require.Equal(t, "original", read(t, filepath.Join(dir, "file")))
}

func TestAttributeSetLaterIsSeen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := b.mkdir(t, "source")
	file := filepath.Join(dir, "file")
	write(t, file, "x")
	settle()
	ref := b.capture(t, dir)
	require.NoError(t, unix.Setxattr(file, "user.late", []byte("1"), 0))
	next := b.capture(t, dir)
	require.NotEqual(t, ref, next)
	settle()
	require.Equal(t, next, b.capture(t, dir), "an attribute that the index knows stays")
	require.Equal(t, factsOf(t, dir), factsOf(t, b.restore(t, next, "copy")))
}

func TestForkStoresOnlyItsChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := b.mkdir(t, "source")
	fillSame(t, dir)
	ref := b.capture(t, dir)
	_, before := b.packs(t)

	fork := b.restore(t, ref, "fork")
	settle()
	require.Equal(t, ref, b.capture(t, fork))
	packs, size := b.packs(t)
	require.Len(t, packs, 1, "an unchanged capture stores no pack")
	require.Equal(t, before, size)

	write(t, filepath.Join(fork, "d3/new"), "new")
	require.NotEqual(t, ref, b.capture(t, fork))
	packs, size = b.packs(t)
	require.Len(t, packs, 2)
	require.Less(t, size-before, int64(8<<10))
}

func TestChangingFileIsRetriedThenRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		times int
		ok    bool
	}{
		{"changes once", 1, true},
		{"changes in the middle of each read", 1 << 20, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			dir := b.mkdir(t, "source")
			log := filepath.Join(dir, "sub/log")
			write(t, log, strings.Repeat("x", 4*inMemory))

			// A large file is read in chunks, and the context is asked before each.
			changes := 0
			ctx := &askedContext{Context: t.Context(), asked: func() error {
				if changes++; changes > tt.times {
					return nil
				}
				file, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
				if err != nil {
					return err
				}
				defer file.Close()
				_, err = file.WriteString("more")
				return err
			}}
			ref, err := b.store.Capture(ctx, dir, indexOf(dir))
			if tt.ok {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, `"sub/log"`)
				require.ErrorContains(t, err, "keeps changing")
				ref = b.capture(t, dir)
			}
			require.Equal(t, factsOf(t, dir), factsOf(t, b.restore(t, ref, "copy")))
			_, size := b.packs(t)
			require.Less(t, size, int64(5*inMemory), "nothing of the failed reads is kept")
		})
	}
}
