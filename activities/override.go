package activities

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/policy"
)

// maxOverrides bounds the policies of forks that a worker keeps compiled.
const maxOverrides = 16

// overrides are the policies that forks have brought with them, compiled.
type overrides struct {
	mu       sync.Mutex
	byDigest map[string]*override
	recent   []string // digests, the last used one last
}

type override struct {
	once   sync.Once
	bundle *policy.Bundle
	err    error
}

// get compiles a policy once. The digest is that of its files, which the fork was checked
// with, so a policy that does not compile here is one that another version wrote.
func (o *overrides) get(brought protocol.PolicyBundle) (*policy.Bundle, error) {
	own := o.entry(brought.Digest)
	own.once.Do(func() {
		// Not the caller's context: a decision may not take long, and compiling may.
		own.bundle, own.err = policy.Compile(context.Background(), brought.Files, policy.Options{})
		if own.err == nil && own.bundle.Digest() != brought.Digest {
			own.err = fmt.Errorf("the files have the digest %s", own.bundle.Digest())
		}
	})
	if own.err != nil {
		return nil, fmt.Errorf("the fork's own policy %s: %w", brought.Digest, own.err)
	}
	return own.bundle, nil
}

func (o *overrides) entry(digest string) *override {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byDigest == nil {
		o.byDigest = map[string]*override{}
	}
	if o.byDigest[digest] == nil {
		o.byDigest[digest] = &override{}
	}
	o.touch(digest)
	return o.byDigest[digest]
}

// touch makes the digest the last used one, and forgets the first used beyond the bound.
func (o *overrides) touch(digest string) {
	o.recent = append(slices.DeleteFunc(o.recent, func(other string) bool { return other == digest }), digest)
	if len(o.recent) > maxOverrides {
		delete(o.byDigest, o.recent[0])
		o.recent = o.recent[1:]
	}
}
