package eventlog

import "slices"

// Covered says whether every resource registered by seq has a checkpoint that
// holds its state as of seq. It is advice: any event can be forked.
func (l *Log) Covered(seq int64) bool {
	for _, r := range l.Resources {
		if r.RegisteredSeq <= seq && !l.CoveredResource(r.Key, seq) {
			return false
		}
	}
	return true
}

// CoveredResource says whether a checkpoint holds the resource's state as of seq.
func (l *Log) CoveredResource(key string, seq int64) bool {
	for i := range l.Checkpoints {
		if c := &l.Checkpoints[i]; c.covers(seq) && c.Key == key {
			return true
		}
	}
	return false
}

func (c *Checkpoint) covers(seq int64) bool {
	return c.CoveredSeq <= seq && (c.InvalidatedSeq == 0 || seq < c.InvalidatedSeq)
}

// ForkPoints is the coverage of the whole log.
func (l *Log) ForkPoints() ForkPoints {
	points := ForkPoints{
		LatestSeq:   l.LatestSeq(),
		Resources:   make(map[string]int64, len(l.Resources)),
		Checkpoints: append([]Checkpoint{}, l.Checkpoints...),
	}
	for _, r := range l.Resources {
		points.Resources[r.Key] = r.RegisteredSeq
	}
	return points
}

// coverage ends the coverage of checkpoints as steps begin, while the log is read.
//
// A checkpoint may appear in the log after a step that ends its coverage: its
// capture was under way when a model call began. So the steps that have begun are kept.
type coverage struct {
	log   *Log
	began []int64            // seqs of live step.executing events
	wrote map[string][]int64 // those of steps that affect a resource
	open  map[string][]int   // a resource's checkpoints that still cover, as indexes
}

func newCoverage(log *Log) coverage {
	return coverage{log: log, wrote: map[string][]int64{}, open: map[string][]int{}}
}

// executing records that a live step has begun.
func (c *coverage) executing(seq int64, step *Step) {
	c.began = append(c.began, seq)
	for _, key := range step.Resources {
		if step.affects(key) {
			c.wrote[key] = append(c.wrote[key], seq)
		}
	}
	for key, open := range c.open {
		if c.reuses(key) && !step.affects(key) {
			continue
		}
		for _, i := range open {
			c.log.Checkpoints[i].InvalidatedSeq = seq
		}
		c.open[key] = open[:0]
		c.mark(key)
	}
}

// checkpointed adds a checkpoint. Its InvalidatedSeq is set if it is a copied one
// whose coverage ended in the source.
func (c *coverage) checkpointed(checkpoint Checkpoint) {
	if checkpoint.InvalidatedSeq == 0 {
		ends := c.began
		if c.reuses(checkpoint.Key) {
			ends = c.wrote[checkpoint.Key]
		}
		if i, _ := slices.BinarySearch(ends, checkpoint.CoveredSeq+1); i < len(ends) {
			checkpoint.InvalidatedSeq = ends[i]
		}
	}
	c.log.Checkpoints = append(c.log.Checkpoints, checkpoint)
	if checkpoint.InvalidatedSeq == 0 {
		c.open[checkpoint.Key] = append(c.open[checkpoint.Key], len(c.log.Checkpoints)-1)
		c.mark(checkpoint.Key)
	}
}

// reuses says whether the resource's checkpoints stay valid while steps run that
// do not affect it.
func (c *coverage) reuses(key string) bool {
	r := c.log.Resource(key)
	return r != nil && r.CoverageReuse
}

// mark sets whether the resource is covered as of now.
func (c *coverage) mark(key string) {
	if r := c.log.Resource(key); r != nil {
		r.Covered = len(c.open[key]) > 0
	}
}
