package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/protocol"
)

func TestBucket(t *testing.T) {
	type call struct {
		at   time.Duration
		wait time.Duration
		ok   bool
	}
	for name, test := range map[string]struct {
		limit protocol.RateLimit
		calls []call
	}{
		"a full bucket gives all its tokens at once, then none": {
			protocol.RateLimit{MaxCalls: 3, Window: protocol.Duration(30 * time.Second)},
			[]call{{0, 0, true}, {0, 0, true}, {0, 0, true}, {0, 10 * time.Second, false}},
		},
		"it refills evenly": {
			protocol.RateLimit{MaxCalls: 2, Window: protocol.Duration(20 * time.Second)},
			[]call{{0, 0, true}, {0, 0, true}, {9 * time.Second, time.Second, false}, {10 * time.Second, 0, true}, {19 * time.Second, time.Second, false}, {20 * time.Second, 0, true}},
		},
		"never above its capacity": {
			protocol.RateLimit{MaxCalls: 1, Window: protocol.Duration(10 * time.Second)},
			[]call{{0, 0, true}, {time.Hour, 0, true}, {time.Hour, 10 * time.Second, false}},
		},
		"a refused call takes no token": {
			protocol.RateLimit{MaxCalls: 1, Window: protocol.Duration(10 * time.Second)},
			[]call{{0, 0, true}, {time.Second, 9 * time.Second, false}, {2 * time.Second, 8 * time.Second, false}, {10 * time.Second, 0, true}},
		},
		"waiting calls queue up, up to max_wait": {
			protocol.RateLimit{MaxCalls: 1, Window: protocol.Duration(10 * time.Second), MaxWait: protocol.Duration(20 * time.Second)},
			[]call{{0, 0, true}, {0, 10 * time.Second, true}, {0, 20 * time.Second, true}, {0, 30 * time.Second, false}, {5 * time.Second, 25 * time.Second, false}, {10 * time.Second, 20 * time.Second, true}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b bucket
			start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			for i, c := range test.calls {
				wait, ok := b.take(start.Add(c.at), test.limit)
				require.Equal(t, c.ok, ok, "call %d", i)
				require.Equal(t, c.wait, wait, "call %d", i)
			}
		})
	}
}
