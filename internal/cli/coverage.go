package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	tine "github.com/tinerun/tine"
)

// stretch is events that are covered: from the first to the last.
type stretch struct{ first, last int64 }

// coverageLine says where one resource is covered, or all are.
type coverageLine struct {
	name       string
	registered int64
	latest     int64
	stretches  []stretch // ascending, with gaps between
}

// coverageLines has a line for each resource, in the order they were registered, and one for all
// of them if there are several.
func coverageLines(points tine.ForkPoints) []coverageLine {
	var lines []coverageLine
	for key, registered := range points.Resources {
		lines = append(lines, coverageLine{
			name: oneLine(key), registered: registered, latest: points.LatestSeq,
			stretches: stretchesOf(points, key, registered),
		})
	}
	slices.SortFunc(lines, func(a, b coverageLine) int {
		if a.registered != b.registered {
			return int(a.registered - b.registered)
		}
		return strings.Compare(a.name, b.name)
	})
	if len(lines) > 1 {
		lines = append(lines, intersection(lines))
	}
	return lines
}

// stretchesOf merges what a resource's checkpoints cover.
func stretchesOf(points tine.ForkPoints, key string, registered int64) []stretch {
	var all []stretch
	for _, c := range points.Checkpoints {
		if c.Key != key {
			continue
		}
		s := stretch{max(c.CoveredSeq, registered), points.LatestSeq}
		if c.InvalidatedSeq != 0 {
			s.last = c.InvalidatedSeq - 1
		}
		if s.first <= s.last {
			all = append(all, s)
		}
	}
	return merge(all)
}

func merge(all []stretch) []stretch {
	slices.SortFunc(all, func(a, b stretch) int { return int(a.first - b.first) })
	var merged []stretch
	for _, s := range all {
		if n := len(merged); n > 0 && s.first <= merged[n-1].last+1 {
			merged[n-1].last = max(merged[n-1].last, s.last)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// intersection is where every resource that is registered by then is covered.
func intersection(lines []coverageLine) coverageLine {
	all := coverageLine{name: "all", registered: lines[0].registered, latest: lines[0].latest}
	for seq := all.registered; seq <= all.latest; seq++ {
		if !slices.ContainsFunc(lines, func(l coverageLine) bool { return seq >= l.registered && !l.covers(seq) }) {
			all.stretches = append(all.stretches, stretch{seq, seq})
		}
	}
	all.stretches = merge(all.stretches)
	return all
}

func (l coverageLine) covers(seq int64) bool {
	_, found := slices.BinarySearchFunc(l.stretches, seq, func(s stretch, seq int64) int {
		switch {
		case s.last < seq:
			return -1
		case s.first > seq:
			return 1
		default:
			return 0
		}
	})
	return found
}

// share says how many events from first to last are the resource's, and how many of
// those are covered.
func (l coverageLine) share(first, last int64) (registered, covered int64) {
	for seq := max(first, l.registered); seq <= last; seq++ {
		registered++
		if l.covers(seq) {
			covered++
		}
	}
	return registered, covered
}

// timeline draws events as characters: one or more characters for an event, or one for
// several events.
type timeline struct {
	latest int64
	width  int // of an event, in characters, if there are few
	marks  int // characters, if there are many
}

// Few enough events get room for their seqs; and lines longer than this are hard to compare.
const (
	wideEvent   = 3
	longestLine = 120
)

func newTimeline(latest int64, room int) timeline {
	room = min(max(room, narrowest), longestLine)
	switch {
	case latest*wideEvent <= int64(room):
		return timeline{latest, wideEvent, int(latest)}
	case latest <= int64(room):
		return timeline{latest, 1, int(latest)}
	default:
		return timeline{latest, 1, room}
	}
}

// events are the seqs that a mark stands for.
func (t timeline) events(mark int) (first, last int64) {
	n := int64(t.marks)
	return int64(mark)*t.latest/n + 1, (int64(mark) + 1) * t.latest / n
}

// shades go from nothing that is covered to everything.
var shades = []string{"·", "░", "▒", "▓", "█"}

func (t timeline) draw(l coverageLine) string {
	var b strings.Builder
	for mark := range t.marks {
		registered, covered := l.share(t.events(mark))
		shade := " "
		switch {
		case registered == 0:
		case covered == registered:
			shade = shades[len(shades)-1]
		case covered > 0: // only what is covered wholly, or not at all, looks so
			shade = shades[1+covered*int64(len(shades)-2)/registered]
		default:
			shade = shades[0]
		}
		b.WriteString(strings.Repeat(shade, max(1, t.width-1)))
		if t.width > 1 {
			b.WriteString(" ")
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// axis names the seq that a mark begins with, for as many marks as have room.
func (t timeline) axis() string {
	const every = 10
	var b strings.Builder
	for mark := range t.marks {
		at := mark * t.width
		if b.Len() > at || t.width == 1 && mark%every != 0 {
			continue
		}
		first, _ := t.events(mark)
		label := strconv.FormatInt(first, 10)
		b.WriteString(strings.Repeat(" ", at-b.Len()) + label + " ")
	}
	return strings.TrimRight(b.String(), " ")
}

// words lists the stretches, or as many of the newest as fit.
func (l coverageLine) words(room int) string {
	if len(l.stretches) == 0 {
		return "covered nowhere"
	}
	var parts []string
	for _, s := range l.stretches {
		parts = append(parts, seqs(s.first, s.last))
	}
	const before = "covered at "
	words := before + strings.Join(parts, ", ")
	if room <= 0 || cells(words) <= room {
		return words
	}
	_, covered := l.share(l.registered, l.latest)
	words = fmt.Sprintf("covered at %s of %s, the last ", grouped(covered), count(l.latest-l.registered+1, "event", "events"))
	list := parts[len(parts)-1]
	for i := len(parts) - 2; i >= 0 && cells(words)+cells(parts[i])+2+cells(list) <= room; i-- {
		list = parts[i] + ", " + list
	}
	return words + list
}

func seqs(first, last int64) string {
	if first == last {
		return strconv.FormatInt(first, 10)
	}
	return fmt.Sprintf("%d-%d", first, last)
}
