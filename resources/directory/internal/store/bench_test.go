//go:build linux

package store

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The benchmarks compare the store with the least that could be done, in the same run
// and on the same tree. Each iteration measures both, in turns; what is reported are
// medians of the iterations and of their ratios:
//
//	go test -run '^$' -bench . -benchtime 11x ./resources/directory/internal/store
//
// They run on a new file system, if they may mount one, and remove nothing before the
// end: creating files gets many times slower where many were removed.

// benchFiles is the size of the tree.
const benchFiles = 20_000

// benchSetup returns a store on a file system of its own, or else beside other files.
func benchSetup(b *testing.B) *testbed {
	b.Helper()
	root := b.TempDir()
	image, mount := filepath.Join(root, "image"), filepath.Join(root, "mount")
	require.NoError(b, os.Mkdir(mount, 0o755))
	require.NoError(b, os.WriteFile(image, nil, 0o600))
	require.NoError(b, os.Truncate(image, 32<<30)) // It takes what is used.
	if output, err := exec.Command("sh", "-c", `mkfs.ext4 -q "$0" && mount -o loop "$0" "$1"`, image, mount).CombinedOutput(); err != nil {
		b.Logf("no file system for the benchmark, so it uses the one of TMPDIR: %v: %s", err, output)
		return &testbed{store: openStore(b, root), root: root}
	}
	b.Cleanup(func() { require.NoError(b, exec.Command("umount", mount).Run()) })
	return &testbed{store: openStore(b, mount), root: mount}
}

// buildBenchTree makes a tree with the sizes of a project with its dependencies: many
// small files, a few large ones.
func buildBenchTree(b *testing.B, dir string) (size int64) {
	b.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 4<<20)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	for i := range benchFiles {
		sub := filepath.Join(dir, fmt.Sprintf("pkg%03d/lib%d/src%d", i%200, i%3, i%4))
		require.NoError(b, os.MkdirAll(sub, 0o755))
		length := fileSize(random)
		start := random.IntN(len(noise) - length)
		require.NoError(b, os.WriteFile(filepath.Join(sub, fmt.Sprintf("file%05d.txt", i)), noise[start:start+length], 0o644))
		size += int64(length)
	}
	return size
}

func fileSize(random *rand.Rand) int {
	switch p := random.Float64(); {
	case p < 0.55:
		return random.IntN(2 << 10)
	case p < 0.90:
		return random.IntN(16 << 10)
	case p < 0.995:
		return random.IntN(100 << 10)
	default:
		return random.IntN(2 << 20)
	}
}

// statWalk is the yardstick of a capture: list and stat everything, as parallel as the
// store does it.
func statWalk(b *testing.B, dir string) (files int64) {
	b.Helper()
	var count atomic.Int64
	bufs := make([][direntBufSize]byte, workerCount())
	visit := func(worker int, path string, push func(string)) error {
		fd, err := unix.Open(path, openDirFlags, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		names, err := readNames(fd, bufs[worker][:])
		if err != nil {
			return err
		}
		for _, name := range names {
			var st unix.Stat_t
			if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				push(path + "/" + name)
			} else {
				count.Add(1)
			}
		}
		return nil
	}
	require.NoError(b, visitAll(b.Context(), dir, visit, func(string) {}))
	return count.Load()
}

// paired collects the times of an operation and of its yardstick.
type paired struct {
	operation, yardstick []time.Duration
}

// measure runs both, the one that is first in odd rounds second in even ones.
func (p *paired) measure(operation, yardstick func()) {
	if len(p.operation)%2 == 0 {
		p.yardstick = append(p.yardstick, timeOf(yardstick))
		p.operation = append(p.operation, timeOf(operation))
		return
	}
	p.operation = append(p.operation, timeOf(operation))
	p.yardstick = append(p.yardstick, timeOf(yardstick))
}

func timeOf(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func (p *paired) report(b *testing.B, operation, yardstick string) {
	ratios := make([]float64, len(p.operation))
	for i := range ratios {
		ratios[i] = float64(p.operation[i]) / float64(p.yardstick[i])
	}
	b.ReportMetric(0, "ns/op") // It would mix both.
	b.ReportMetric(float64(median(p.operation).Microseconds())/1000, operation+"-ms")
	b.ReportMetric(float64(median(p.yardstick).Microseconds())/1000, yardstick+"-ms")
	b.ReportMetric(median(ratios), operation+"/"+yardstick)
}

func median[T int64 | float64 | time.Duration](values []T) T {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

func BenchmarkCapture(b *testing.B) {
	bed := benchSetup(b)
	dir := bed.mkdir(b, "source")
	buildBenchTree(b, dir)
	bed.capture(b, dir)
	settle()
	bed.capture(b, dir)

	changed := filepath.Join(dir, "pkg100/lib1/src0/file00100.txt")
	for _, changes := range []int{1, 0} {
		b.Run(fmt.Sprintf("%d changed", changes), func(b *testing.B) {
			var p paired
			for i := 0; b.Loop(); i++ {
				if changes > 0 {
					write(b, changed, fmt.Sprint("content ", time.Now().UnixNano()))
				}
				p.measure(func() { bed.capture(b, dir) }, func() { require.GreaterOrEqual(b, statWalk(b, dir), int64(benchFiles)) })
			}
			p.report(b, "capture", "statwalk")
		})
	}
}

func BenchmarkRestore(b *testing.B) {
	bed := benchSetup(b)
	dir := bed.mkdir(b, "source")
	size := buildBenchTree(b, dir)
	ref := bed.capture(b, dir)

	var p paired
	for i := 0; b.Loop(); i++ {
		copied := bed.path(fmt.Sprint("cp", i))
		p.measure(
			func() { bed.restore(b, ref, fmt.Sprint("restored", i)) },
			func() { require.NoError(b, exec.Command("cp", "-a", dir, copied).Run()) },
		)
		// What the kernel still has to write would slow down the next round.
		unix.Sync()
	}
	p.report(b, "restore", "cp")
	b.ReportMetric(float64(size)/(1<<20), "MiB")
}
