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

// ForkPolicy says what a worker does with the policies that forks bring with them.
type ForkPolicy string

const (
	// ForkPolicyReplaces has a fork's own policy decide instead of the worker's. It is the default.
	ForkPolicyReplaces ForkPolicy = ""
	// ForkPolicyBoth wants a step allowed by both, so that a fork can only be held shorter.
	ForkPolicyBoth ForkPolicy = "both"
	// ForkPolicyRefused denies all steps of a fork that brings a policy.
	ForkPolicyRefused ForkPolicy = "refused"
)

// engine is what decides for an execution that has brought a policy, or none.
func (a *Activities) engine(own policy.Engine) policy.Engine {
	switch {
	case own == nil:
		return a.policy
	case a.opts.ForkPolicy == ForkPolicyBoth:
		return both{a.policy, own}
	default:
		return own
	}
}

// both wants a step allowed by two engines.
type both [2]policy.Engine

func (b both) Decide(ctx context.Context, in policy.Input) (policy.Decision, error) {
	worker, err := b[0].Decide(ctx, in)
	if err != nil || worker.Decision == policy.Deny {
		return worker, err
	}
	own, err := b[1].Decide(ctx, in)
	if err != nil || own.Decision == policy.Deny {
		return own, err
	}
	return protocol.Both(worker, own), nil
}

// overrides are the policies that forks have brought with them, compiled, by what their files
// hold. What a fork claims that to be is checked, so that no fork can pass off another's.
type overrides struct {
	mode ForkPolicy
	opts policy.Options

	mu       sync.Mutex
	compiled map[string]*override
	recent   []string // digests, the last used one last
}

type override struct {
	once   sync.Once
	bundle *policy.Bundle
	err    error
}

// get compiles a policy once. Without one it gives no engine.
func (o *overrides) get(brought *protocol.PolicyBundle) (policy.Engine, error) {
	if brought == nil {
		return nil, nil
	}
	if o.mode == ForkPolicyRefused {
		return nil, fmt.Errorf("the fork brings the policy %s, and the worker allows no fork one of its own", brought.Digest)
	}
	if digest := policy.Digest(brought.Files); digest != brought.Digest {
		return nil, fmt.Errorf("the fork's own policy claims the digest %s; its files have %s", brought.Digest, digest)
	}
	own := o.entry(brought.Digest)
	own.once.Do(func() {
		// Not the caller's context: a decision may not take long, and compiling may.
		own.bundle, own.err = policy.Compile(context.Background(), brought.Files, o.opts)
	})
	if own.err != nil {
		return nil, fmt.Errorf("the fork's own policy %s: %w", brought.Digest, own.err)
	}
	return own.bundle, nil
}

func (o *overrides) entry(digest string) *override {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.compiled == nil {
		o.compiled = map[string]*override{}
	}
	if o.compiled[digest] == nil {
		o.compiled[digest] = &override{}
	}
	o.touch(digest)
	return o.compiled[digest]
}

// touch makes the digest the last used one, and forgets the first used beyond the bound.
func (o *overrides) touch(digest string) {
	o.recent = append(slices.DeleteFunc(o.recent, func(other string) bool { return other == digest }), digest)
	if len(o.recent) > maxOverrides {
		delete(o.compiled, o.recent[0])
		o.recent = o.recent[1:]
	}
}
