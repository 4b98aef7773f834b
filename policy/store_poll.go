package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tinerun/tine/internal/protocol"
)

// remindEvery is how often a problem that stays is told again: often enough to be found in
// the last page of a log, seldom enough not to fill it.
const remindEvery = time.Minute

// entry is a policy as the poll knows it.
type entry struct {
	name     string
	bundle   *Bundle // the last good one; nil if there never was one
	files    []string
	loadedAt time.Time

	loaded  fingerprint // of what the bundle was compiled from
	seen    fingerprint // of the last look
	refused fingerprint // of what was found bad, while that is what is there

	problem string
	first   Problem // of those that problem tells
	toldAt  time.Time
}

// loadAll loads what is on disk, for Open.
func (s *Store) loadAll(ctx context.Context) error {
	found, err := s.find()
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("directory %s has no policy: name one default.yaml, or AGENT.yaml for one agent; .rego and .tar.gz will do as well", s.path)
	}
	var problems []Problem
	for _, name := range slices.Sorted(maps.Keys(found)) {
		seen := see(found[name])
		bundle, wrong := s.try(ctx, seen)
		if len(wrong) > 0 {
			problems = append(problems, wrong...)
			continue
		}
		e := &entry{name: name, seen: seen.print}
		s.entries[name] = e
		s.use(e, bundle, seen)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(problems) > 0 {
		return &LoadError{Problems: problems}
	}
	return nil
}

// follow polls until ctx ends. Polling works where notifications do not: on network file
// systems, and with links that are swapped somewhere up the path.
func (s *Store) follow(ctx context.Context) {
	defer close(s.done)
	ticker := time.NewTicker(s.opts.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.poll(ctx)
		}
	}
}

// poll looks at the files once and acts on what it sees. It reads all of them: times and sizes
// do not always tell that a file has changed, and policies are small.
func (s *Store) poll(ctx context.Context) {
	found, err := s.find()
	for name := range found {
		if s.entries[name] == nil {
			s.entries[name] = &entry{name: name}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		e := s.entries[name]
		if err != nil {
			s.consider(ctx, e, blind(s.path, err))
			continue
		}
		// A file of the policy in use that is gone counts: without it the policy might
		// allow more.
		paths := slices.Compact(slices.Sorted(slices.Values(slices.Concat(found[name], e.files))))
		seen := see(paths)
		if len(paths) == 0 { // it was never good, and is gone
			if seen.print == e.seen { // not only while somebody writes it anew
				delete(s.entries, name)
				s.publish()
			}
			e.seen = seen.print
			continue
		}
		s.consider(ctx, e, seen)
	}
}

// consider acts on what is on disk for a policy.
func (s *Store) consider(ctx context.Context, e *entry, seen sight) {
	steady := seen.print == e.seen
	e.seen = seen.print
	switch {
	case seen.print == e.loaded:
		s.restored(e)
	case !steady:
		// Perhaps somebody is still writing, and half a policy may be valid.
	case seen.print == e.refused:
		if s.now().Sub(e.toldAt) >= remindEvery {
			s.tell(e)
		}
	default:
		s.reload(ctx, e, seen)
	}
}

func (s *Store) reload(ctx context.Context, e *entry, seen sight) {
	bundle, problems := s.try(ctx, seen)
	switch {
	case ctx.Err() != nil: // the policy may be good
	case len(problems) > 0:
		e.refused, e.problem, e.first = seen.print, (&LoadError{Problems: problems}).Error(), problems[0]
		s.tell(e)
		s.publish()
	default:
		s.use(e, bundle, seen)
	}
}

// try compiles what was seen.
func (s *Store) try(ctx context.Context, seen sight) (*Bundle, []Problem) {
	if len(seen.problems) > 0 {
		return nil, seen.problems
	}
	bundle, err := s.compile(ctx, seen.files, s.opts.Compile)
	if err == nil {
		return bundle, nil
	}
	var invalid *LoadError
	if errors.As(err, &invalid) && len(invalid.Problems) > 0 {
		return nil, invalid.Problems
	}
	return nil, []Problem{{File: seen.files[0].Name, Message: err.Error()}}
}

// use has the agents' steps decided by a new bundle from now on.
func (s *Store) use(e *entry, bundle *Bundle, seen sight) {
	e.bundle, e.loaded, e.loadedAt = bundle, seen.print, s.now()
	e.refused, e.problem = fingerprint{}, ""
	e.files = nil
	for _, file := range seen.files {
		e.files = append(e.files, file.Name)
	}
	s.publish()
	s.log.Info("policy loaded", "policy", e.name, "digest", bundle.Digest())
}

// restored notes that what is on disk is what is in use.
func (s *Store) restored(e *entry) {
	if e.problem == "" {
		return
	}
	e.refused, e.problem = fingerprint{}, ""
	s.publish()
	s.log.Info("policy on disk is the one in use again", "policy", e.name, "digest", e.bundle.Digest())
}

// tell says that what is on disk is refused.
func (s *Store) tell(e *entry) {
	e.toldAt = s.now()
	if e.bundle == nil {
		s.log.Error("policy refused; until there is a good one all steps that it is for are denied", "policy", e.name, "problem", e.problem)
		return
	}
	s.log.Error("policy refused; the last good one stays in use", "policy", e.name, "problem", e.problem, "in_use", e.bundle.Digest())
}

// publish gives decisions and Status what the entries have.
func (s *Store) publish() {
	next := &snapshot{bundles: map[string]*Bundle{}, refused: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		e := s.entries[name]
		status := Status{Name: name, Files: e.files, LoadedAt: e.loadedAt, Problem: e.problem}
		if e.bundle != nil {
			next.bundles[name], status.Digest = e.bundle, e.bundle.Digest()
		} else if e.problem != "" {
			next.refused[name] = s.refusal(e.first)
		}
		if e.bundle != nil || e.problem != "" { // not one that was only seen once
			next.status = append(next.status, status)
		}
	}
	s.current.Store(next)
}

// refusal is why steps are denied whose policy was never good. It goes into histories, which the
// worker's directories are no business of.
func (s *Store) refusal(p Problem) string {
	dir := filepath.Clean(s.path)
	if p.File == s.path { // the directory cannot be read
		p.File = filepath.Base(dir)
	}
	p.File = strings.TrimPrefix(p.File, dir+string(filepath.Separator))
	return protocol.Cut("the policy of the agent cannot be used: "+p.String(), protocol.MaxReason)
}
