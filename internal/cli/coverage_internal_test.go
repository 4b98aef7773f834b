package cli

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	tine "github.com/tinerun/tine"
)

// randomPoints are fork points as logs have them: resources that are registered on the way, and
// intervals that overlap, are empty, or are open.
func randomPoints(random *rand.Rand) tine.ForkPoints {
	points := tine.ForkPoints{LatestSeq: 1 + random.Int64N(200), Resources: map[string]int64{}}
	for i := range random.IntN(4) {
		key := fmt.Sprintf("r%d", i)
		points.Resources[key] = 1 + random.Int64N(points.LatestSeq)
		for range random.IntN(20) {
			c := tine.Checkpoint{Key: key, CoveredSeq: 1 + random.Int64N(points.LatestSeq)}
			if random.IntN(3) > 0 {
				c.InvalidatedSeq = c.CoveredSeq + random.Int64N(points.LatestSeq-c.CoveredSeq+1)
			}
			points.Checkpoints = append(points.Checkpoints, c)
		}
	}
	return points
}

// coveredAt is what coverage means, in the plainest words.
func coveredAt(points tine.ForkPoints, key string, seq int64) bool {
	for _, c := range points.Checkpoints {
		if c.Key == key && c.CoveredSeq <= seq && (c.InvalidatedSeq == 0 || seq < c.InvalidatedSeq) {
			return true
		}
	}
	return false
}

func TestCoverageLinesMeanWhatCheckpointsCover(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		points := randomPoints(random)
		for _, l := range coverageLines(points) {
			for seq := l.registered; seq <= points.LatestSeq; seq++ {
				want := true
				for key, registered := range points.Resources {
					if (l.name == key || l.name == "all") && registered <= seq && !coveredAt(points, key, seq) {
						want = false
					}
				}
				require.Equal(t, want, l.covers(seq), "%s at %d of %+v", l.name, seq, points)
			}
		}
	}
}

func TestTimelineHasEveryEventOnce(t *testing.T) {
	t.Parallel()
	for _, latest := range []int64{1, 9, 23, 24, 69, 70, 71, 5000, 123457} {
		tl := newTimeline(latest, 69)
		next := int64(1)
		for mark := range tl.marks {
			first, last := tl.events(mark)
			require.Equal(t, next, first)
			require.GreaterOrEqual(t, last, first)
			next = last + 1
		}
		require.Equal(t, latest+1, next)
		require.LessOrEqual(t, tl.marks*tl.width, 69)
		require.LessOrEqual(t, cells(tl.axis()), 69+len("123457"))
	}
}

func TestTimelineShades(t *testing.T) {
	t.Parallel()
	tl := timeline{latest: 50, width: 1, marks: 5}
	l := coverageLine{registered: 11, latest: 50, stretches: []stretch{{21, 29}, {31, 40}, {50, 50}}}
	require.Equal(t, " ·▓█░", tl.draw(l))
}

func TestStretchesInWords(t *testing.T) {
	t.Parallel()
	l := coverageLine{registered: 3, latest: 30, stretches: []stretch{{4, 7}, {9, 9}, {12, 20}}}
	require.Equal(t, "covered at 4-7, 9, 12-20", l.words(0))
	require.Equal(t, "covered at 4-7, 9, 12-20", l.words(24))
	require.Equal(t, "covered at 14 of 28 events, the last 12-20", l.words(23))
	require.Equal(t, "covered nowhere", coverageLine{}.words(80))
}
