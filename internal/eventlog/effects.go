package eventlog

import (
	"cmp"
	"slices"

	"github.com/tinerun/tine/internal/protocol"
)

// EffectsSince are the effects that a fork at an event could repeat: those of
// at_most_once steps that have begun, and whose outcomes the fork would not copy. It does
// not matter when they began or how they ended, since each may have had its effect. A
// fork that guards effects passes on those of its source.
func (l *Log) EffectsSince(atSeq int64) []protocol.Effect {
	var effects []protocol.Effect
	for _, s := range l.Steps {
		if s.Idempotency == protocol.AtMostOnce && s.ExecutingSeq != 0 && !s.copiedAt(atSeq) {
			effects = append(effects, protocol.Effect{Kind: s.Kind, Target: s.Target})
		}
	}
	if l.Fork != nil && l.Fork.Effects == protocol.EffectsGuard {
		effects = append(effects, l.Fork.Guarded...)
	}
	slices.SortFunc(effects, func(a, b protocol.Effect) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Target, b.Target))
	})
	return slices.Compact(effects)
}
