package e2b

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// secret is a credential that is not printed with what holds it.
type secret func() string

func hide(text string) secret { return func() string { return text } }

const (
	// maxSecrets is how many forms of credentials the driver remembers to keep out of errors.
	// The oldest go first: they belong to sandboxes and tokens of long ago.
	maxSecrets = 1024
	// minSecret is the length below which a text is too common to be taken for a credential.
	minSecret = 6
)

// secrets are the credentials that errors must not contain. The API key stays in for ever.
type secrets struct {
	mu    sync.Mutex
	fixed int
	known []secret // oldest first, behind the fixed ones
}

func newSecrets(fixed string) *secrets {
	s := &secrets{}
	s.add(fixed)
	s.fixed = len(s.known)
	return s
}

// add remembers a credential, which may be a header's value: "Bearer TOKEN" or the base64 of
// a name and a password.
func (s *secrets) add(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, form := range secretForms(value) {
		i := slices.IndexFunc(s.known, func(known secret) bool { return known() == form })
		switch {
		case i >= 0 && i < s.fixed:
			continue
		case i >= 0:
			s.known = slices.Delete(s.known, i, i+1)
		case len(s.known) >= maxSecrets:
			s.known = slices.Delete(s.known, s.fixed, s.fixed+1)
		}
		s.known = append(s.known, hide(form))
	}
}

// secretForms are the texts that would give value away.
func secretForms(value string) []string {
	parts := append([]string{value}, strings.Fields(value)...)
	if scheme, encoded, ok := strings.Cut(value, " "); ok && strings.EqualFold(scheme, "basic") {
		if decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded)); err == nil {
			_, password, _ := strings.Cut(string(decoded), ":")
			parts = append(parts, string(decoded), password)
		}
	}
	var forms []string
	for _, part := range parts {
		for _, form := range []string{part, url.QueryEscape(part), url.PathEscape(part), jsonEscape(part)} {
			if len(form) >= minSecret && !strings.EqualFold(form, "bearer") && !slices.Contains(forms, form) {
				forms = append(forms, form)
			}
		}
	}
	return forms
}

func jsonEscape(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		return text // never: a string can be encoded
	}
	return string(quoted[1 : len(quoted)-1])
}

const redacted = "[redacted]"

// redact replaces the secrets, and the forms in which texts from outside may hold them.
func (s *secrets) redact(text string) string {
	s.mu.Lock()
	known := slices.Clone(s.known)
	s.mu.Unlock()
	// A secret that contains another goes first, or a part of it would stay.
	slices.SortFunc(known, func(a, b secret) int { return len(b()) - len(a()) })
	for _, secret := range known {
		text = strings.ReplaceAll(text, secret(), redacted)
	}
	return text
}
