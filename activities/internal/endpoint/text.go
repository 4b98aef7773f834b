package endpoint

import (
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// textLimit bounds what an error quotes from outside: it ends in a history.
const textLimit = 500

// Redactor cuts secrets out of a text, as they are and as they look within JSON, a Go error or a
// URL.
func Redactor(secrets ...string) func(string) string {
	var pairs []string
	for _, secret := range secrets {
		quoted := strconv.Quote(secret)
		for _, form := range []string{secret, quoted[1 : len(quoted)-1], url.QueryEscape(secret)} {
			pairs = append(pairs, form, "[redacted]")
		}
	}
	return strings.NewReplacer(pairs...).Replace
}

// Clean makes a text from outside fit for an error: on one line, valid, redacted, and short.
func Clean(text string, redact func(string) string) string {
	words := strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	})
	// Redacted before it is cut, so that the cut cannot leave a part of a secret.
	runes := []rune(redact(strings.Join(words, " ")))
	if len(runes) > textLimit {
		return string(runes[:textLimit]) + "…"
	}
	return string(runes)
}
