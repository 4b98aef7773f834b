package workflows

import (
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// bucket is a token bucket as one point in time: when it would be full again if nobody took
// another token. Tokens can be taken ahead of time, which is how a step waits for its turn.
type bucket struct {
	full time.Time
}

// take takes a token and says how long to wait until it is there. If that is longer than the
// limit's MaxWait it takes none, and ok is false.
func (b *bucket) take(now time.Time, limit protocol.RateLimit) (wait time.Duration, ok bool) {
	window := time.Duration(limit.Window)
	each := window / time.Duration(limit.MaxCalls)
	full := b.full
	if full.Before(now) {
		full = now
	}
	full = full.Add(each)
	wait = max(full.Sub(now)-each*time.Duration(limit.MaxCalls), 0)
	if wait > time.Duration(limit.MaxWait) {
		return wait, false
	}
	b.full = full
	return wait, true
}
