// Package endpoint is what clients of model endpoints have in common: checks of their settings,
// and errors that tell what may be tried again and keep secrets.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tinerun/tine/activities"
)

const (
	// defaultTimeout leaves room for a reasoning model, which sends nothing until its whole
	// answer is ready. A worker that dies meanwhile is noticed by its heartbeats.
	defaultTimeout = 10 * time.Minute

	// secretLength tells a key from a placeholder such as "none" or "ollama".
	secretLength = 16
)

// Names are how errors speak of an endpoint: by the package of its client and the environment
// variables of its settings.
type Names struct {
	Package                string
	BaseURL, APIKey, Model string
}

// Settings are what an endpoint is made of.
type Settings struct {
	BaseURL, APIKey string
	Timeout         time.Duration // zero: 10 minutes
	HTTPClient      *http.Client  // nil: one with http.DefaultTransport
	Example         string        // a base URL for the error about one
}

// Endpoint makes errors about requests to one endpoint.
type Endpoint struct {
	names   Names
	timeout time.Duration
	client  http.Client
	// redact and redactAnswer cut the key out of errors and answers. As functions they also
	// keep it out of a printed Endpoint.
	redact, redactAnswer func(string) string
	host                 string
}

// New checks the settings. Values are not quoted in its errors, since one may be a key in the
// wrong place.
func New(names Names, s Settings) (*Endpoint, error) {
	base, err := url.Parse(s.BaseURL)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Hostname() == "" {
		return nil, fmt.Errorf("%s: the base URL (%s) must be an http or https URL, such as %s", names.Package, names.BaseURL, s.Example)
	}
	if base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("%s: the base URL (%s) must have no user, query or fragment: give credentials as the API key (%s)", names.Package, names.BaseURL, names.APIKey)
	}
	if strings.ContainsFunc(s.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%s: the API key (%s) has a character that no key has, such as a space or a newline at its end", names.Package, names.APIKey)
	}
	if s.Timeout < 0 {
		return nil, fmt.Errorf("%s: the timeout is negative: %v", names.Package, s.Timeout)
	}
	e := &Endpoint{names: names, timeout: s.Timeout, redact: unchanged, redactAnswer: unchanged, host: base.Hostname()}
	if e.timeout == 0 {
		e.timeout = defaultTimeout
	}
	if s.HTTPClient != nil {
		e.client = *s.HTTPClient
	}
	if e.client.CheckRedirect == nil {
		e.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	if s.APIKey != "" {
		e.redact = Redactor(s.APIKey)
	}
	if len(s.APIKey) >= secretLength {
		e.redactAnswer = e.redact
	}
	return e, nil
}

func unchanged(text string) string { return text }

// Host is the host of the base URL.
func (e *Endpoint) Host() string { return e.host }

// Timeout bounds one call of Generate.
func (e *Endpoint) Timeout() time.Duration { return e.timeout }

// Client makes the requests. It follows no redirects, unless the one in the settings says how:
// they turn a POST into a GET, or lead the API key elsewhere.
func (e *Endpoint) Client() *http.Client { return &e.client }

// Generate calls within the time limit. When ctx ends, its own error is returned, unmarked.
func (e *Endpoint) Generate(ctx context.Context, model string, call func(context.Context) (activities.GenerateResponse, error)) (activities.GenerateResponse, error) {
	attempt, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	resp, err := call(attempt)
	switch {
	case err == nil:
		return resp, nil
	case ctx.Err() != nil:
		return activities.GenerateResponse{}, ctx.Err()
	case attempt.Err() != nil:
		return activities.GenerateResponse{}, activities.Retryable(e.Errorf(model, "no answer within %v", e.timeout))
	}
	return activities.GenerateResponse{}, err
}

// Answer frees a text of an answer of the API key. A short key is a placeholder for local
// servers: an ordinary word, which a model may well say.
func (e *Endpoint) Answer(text string) string { return e.redactAnswer(text) }

// Errorf makes an error about model. Text from outside must have gone through Clean.
func (e *Endpoint) Errorf(model, format string, args ...any) error {
	return fmt.Errorf("%s: model %q: %s", e.names.Package, model, fmt.Sprintf(format, args...))
}

// Clean makes a text from outside fit for an error: on one line, valid, without the API
// key, and short.
func (e *Endpoint) Clean(text string) string { return Clean(text, e.redact) }

// RequestError describes a request that got no response.
func (e *Endpoint) RequestError(model string, err error) error {
	described := e.Errorf(model, "%s", e.Clean(err.Error()))
	// Everything that fails on the way has this type; the rest is the request itself.
	var onTheWay *url.Error
	if errors.As(err, &onTheWay) {
		return activities.Retryable(described)
	}
	return described
}
