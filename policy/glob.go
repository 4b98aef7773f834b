package policy

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// glob is a pattern that a whole target must match, case-sensitively. In it * stands for any run
// of characters, slashes and none at all included, ? for exactly one character, [a-c] for one
// of a class, [^a-c] for one that is not in it, and \ takes its meaning from the character that
// follows. Everything else, braces included, stands for itself.
type glob struct {
	prefix string // what a target has to begin with; all of it, if there are no parts
	parts  []globPart
	// braces says that there are some, and that nothing shows that they are meant as such.
	braces bool
}

// globPart matches one character, unless star is set: then any run of them.
type globPart struct {
	star    bool
	negated bool
	ranges  []runeRange
}

type runeRange struct{ low, high rune }

var anyRune = []runeRange{{0, utf8.MaxRune}}

func (p globPart) matches(r rune) bool {
	for _, c := range p.ranges {
		if c.low <= r && r <= c.high {
			return !p.negated
		}
	}
	return p.negated
}

func parseGlob(pattern string) (glob, error) {
	var g glob
	var prefix strings.Builder
	rest := []rune(pattern)
	for len(rest) > 0 {
		r := rest[0]
		rest = rest[1:]
		var part globPart
		g.braces = g.braces || r == '{' || r == '}'
		switch r {
		case '*':
			part.star = true
		case '?':
			part.ranges = anyRune
		case '[':
			var err error
			if part, rest, err = parseClass(rest); err != nil {
				return glob{}, err
			}
		case '\\':
			if len(rest) == 0 {
				return glob{}, errors.New(`it ends with a \ that escapes nothing`)
			}
			r = rest[0]
			rest = rest[1:]
			fallthrough
		default:
			if len(g.parts) == 0 {
				prefix.WriteRune(r)
				continue
			}
			part.ranges = []runeRange{{r, r}}
		}
		if part.star && len(g.parts) > 0 && g.parts[len(g.parts)-1].star {
			continue // ** is no more than *
		}
		g.parts = append(g.parts, part)
	}
	g.prefix = prefix.String()
	return g, nil
}

// parseClass reads a class behind its [.
func parseClass(rest []rune) (part globPart, after []rune, err error) {
	if len(rest) > 0 && rest[0] == '^' {
		part.negated = true
		rest = rest[1:]
	}
	for {
		switch {
		case len(rest) == 0:
			return part, nil, errors.New(`a [ is never closed; write \[ for the character itself`)
		case rest[0] == ']' && len(part.ranges) == 0:
			return part, nil, errors.New(`a class in [] is empty; write \] for the character itself`)
		case rest[0] == ']':
			return part, rest[1:], nil
		}
		var c runeRange
		if c.low, rest, err = classRune(rest); err != nil {
			return part, nil, err
		}
		c.high = c.low
		if len(rest) > 0 && rest[0] == '-' {
			if c.high, rest, err = classRune(rest[1:]); err != nil {
				return part, nil, err
			}
		}
		if c.high < c.low {
			return part, nil, fmt.Errorf("the range %c-%c in a class is backwards", c.low, c.high)
		}
		part.ranges = append(part.ranges, c)
	}
}

// classRune reads one end of a range.
func classRune(rest []rune) (r rune, after []rune, err error) {
	switch {
	case len(rest) == 0:
		return 0, nil, errors.New(`a [ is never closed; write \[ for the character itself`)
	case rest[0] == '-' || rest[0] == ']':
		return 0, nil, errors.New(`a - in a class stands between two characters; write \- for the character itself`)
	case rest[0] != '\\':
		return rest[0], rest[1:], nil
	case len(rest) == 1:
		return 0, nil, errors.New(`it ends with a \ that escapes nothing`)
	default:
		return rest[1], rest[2:], nil
	}
}

// exact is the one target that the glob matches, if there is just one.
func (g glob) exact() (target string, ok bool) { return g.prefix, len(g.parts) == 0 }

// mayOverlap is false only if no target matches both globs. It does not look into patterns
// behind their beginnings.
func (g glob) mayOverlap(other glob) bool {
	if one, ok := g.exact(); ok {
		return other.matches(one)
	}
	if one, ok := other.exact(); ok {
		return g.matches(one)
	}
	return strings.HasPrefix(g.prefix, other.prefix) || strings.HasPrefix(other.prefix, g.prefix)
}

// everything reports whether the glob matches every target.
func (g glob) everything() bool { return g.prefix == "" && len(g.parts) == 1 && g.parts[0].star }

// matches takes at most len(target) steps for each part: only the latest star is ever
// reconsidered, since what an earlier one could take the latest one can take as well.
func (g glob) matches(target string) bool {
	target, ok := strings.CutPrefix(target, g.prefix)
	if !ok {
		return false
	}
	part, at := 0, 0           // the part to match next, and where
	starPart, starEnd := -1, 0 // the part after the latest star, and where its run ends
	for at < len(target) {
		if part < len(g.parts) && g.parts[part].star {
			part++
			starPart, starEnd = part, at
			continue
		}
		r, size := utf8.DecodeRuneInString(target[at:])
		if part < len(g.parts) && g.parts[part].matches(r) {
			part++
			at += size
			continue
		}
		if starPart < 0 {
			return false
		}
		if starPart == len(g.parts) {
			return true // the star takes all that is left
		}
		_, size = utf8.DecodeRuneInString(target[starEnd:])
		starEnd += size
		part, at = starPart, starEnd
	}
	for part < len(g.parts) && g.parts[part].star {
		part++
	}
	return part == len(g.parts)
}
