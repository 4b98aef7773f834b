package policy

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// DefaultName is the name of the policy for agents that have none of their own.
const DefaultName = "default"

// DefaultInterval is how often a Store looks at its files.
const DefaultInterval = time.Second

// StoreOptions configure Open.
type StoreOptions struct {
	// Require denies every step of an agent that has no policy. Without it such an agent is
	// unrestricted.
	Require bool
	// Interval is the time between two looks at the files. Zero means DefaultInterval.
	Interval time.Duration
	// Compile is how each policy is compiled.
	Compile Options
	// Logger is told what was loaded and, as errors, what was refused. Nil means slog's default.
	Logger *slog.Logger
}

// Store is the policies of a worker's agents. It follows their files: a policy that changes
// on disk is compiled and takes the place of the one in use. What cannot be used is refused, and
// the last good policy stays; if there never was one, the steps that the policy is for are denied
// while it is there. Decisions never wait for any of it.
type Store struct {
	path    string
	isDir   bool
	opts    StoreOptions
	log     *slog.Logger
	now     func() time.Time
	compile func(context.Context, []Source, Options) (*Bundle, error)

	// entries belong to the goroutine that polls.
	entries map[string]*entry
	current atomic.Pointer[snapshot]

	stop context.CancelFunc
	done chan struct{}
}

var (
	_ Engine    = (*Store)(nil)
	_ Describer = (*Store)(nil)
)

// snapshot is what decisions are taken by. It never changes.
type snapshot struct {
	bundles map[string]*Bundle
	// refused says why steps are denied that would be a policy's that was never good.
	refused map[string]string
	status  []Status
}

// of is the policy of an agent, or why all its steps are denied, or neither.
func (s *snapshot) of(agentID string) (bundle *Bundle, refusal string) {
	for _, name := range []string{agentID, DefaultName} {
		if bundle, refusal = s.bundles[name], s.refused[name]; bundle != nil || refusal != "" {
			return bundle, refusal
		}
	}
	return nil, ""
}

// Open reads the policies of a file or a directory, and follows them until Close or the end
// of ctx. A file is one policy for all agents. In a directory, default.yaml is for the agents
// that have none of their own, and AGENT.yaml for one agent, whose name is escaped as by
// url.PathEscape. Files may also end in .yml, .rego or .tar.gz; those that differ in the ending
// only are one policy. Subdirectories, *.policytest.yaml, *_test.rego and names that begin with a
// dot are left out.
//
// The error is a *LoadError with all problems if policies are at fault.
func Open(ctx context.Context, path string, opts StoreOptions) (*Store, error) {
	s, err := newStore(path, opts)
	if err != nil {
		return nil, fmt.Errorf("policies: %w", err)
	}
	if err := s.loadAll(ctx); err != nil {
		return nil, fmt.Errorf("policies: %w", err)
	}
	ctx, s.stop = context.WithCancel(ctx)
	go s.follow(ctx)
	return s, nil
}

func newStore(path string, opts StoreOptions) (*Store, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if opts.Interval <= 0 {
		opts.Interval = DefaultInterval
	}
	s := &Store{
		path: path, isDir: info.IsDir(), opts: opts, log: opts.Logger, now: time.Now, compile: Compile,
		entries: map[string]*entry{}, done: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	return s, nil
}

// Close stops following the files. The store goes on deciding by what it has.
func (s *Store) Close() {
	s.stop()
	<-s.done
}

// Bundle is the policy of an agent: its own, or else the default one. Nil means that there is
// none that was ever good.
func (s *Store) Bundle(agentID string) *Bundle {
	bundle, _ := s.current.Load().of(agentID)
	return bundle
}

// Decide decides a step by the policy of its agent.
func (s *Store) Decide(ctx context.Context, in Input) (Decision, error) {
	bundle, refusal := s.current.Load().of(in.AgentID)
	switch {
	case bundle != nil:
		return bundle.Decide(ctx, in)
	case refusal != "":
		return Decision{Decision: Deny, RuleID: protocol.RuleBundleError, Reason: refusal}, nil
	case s.opts.Require:
		return Decision{
			Decision: Deny, RuleID: protocol.RuleBundleError,
			Reason: fmt.Sprintf("no policy is configured for agent %q, and the worker requires one", in.AgentID),
		}, nil
	default:
		return AllowAll{}.Decide(ctx, in)
	}
}

// Describe gives the digest of the policy of an agent. There is none if the agent is unrestricted,
// or if all its steps are denied.
func (s *Store) Describe(agentID string) (digest string, unrestricted bool) {
	bundle, refusal := s.current.Load().of(agentID)
	if bundle != nil {
		return bundle.Digest(), false
	}
	return "", refusal == "" && !s.opts.Require
}

// Status is the state of one policy of a Store.
type Status struct {
	// Name is the agent's, or DefaultName.
	Name string `json:"name"`
	// Files are the paths of the policy in use. Digest is empty, and LoadedAt zero, if none
	// was ever good.
	Files    []string  `json:"files"`
	Digest   string    `json:"digest"`
	LoadedAt time.Time `json:"loaded_at"`
	// Problem says why what is on disk is not in use. Empty if it is.
	Problem string `json:"problem,omitempty"`
}

// Status describes the policies, by name.
func (s *Store) Status() []Status {
	return append([]Status(nil), s.current.Load().status...)
}
