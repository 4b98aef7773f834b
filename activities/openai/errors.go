package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tinerun/tine/activities"
)

const (
	// textLimit bounds what an error quotes from outside: it ends in a history.
	textLimit = 500

	// maxRetryAfter bounds the wait that a server may ask for. A limit that lasts longer
	// answers the next attempt with its time again.
	maxRetryAfter = 5 * time.Minute

	// insufficientQuota is the type and the code of OpenAI's error when the account has
	// run out of money. It comes with a 429, like a rate limit.
	insufficientQuota = "insufficient_quota"
)

// errorf makes an error about model. Text from outside must have gone through clean.
func (m *Model) errorf(model, format string, args ...any) error {
	return fmt.Errorf("openai: model %q: %s", model, fmt.Sprintf(format, args...))
}

// clean makes a text from outside fit for an error: on one line, valid, without the API
// key, and short.
func (m *Model) clean(text string) string {
	words := strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	})
	// Redacted before it is cut, so that the cut cannot leave a part of the key.
	runes := []rune(m.redact(strings.Join(words, " ")))
	if len(runes) > textLimit {
		return string(runes[:textLimit]) + "…"
	}
	return string(runes)
}

// requestError describes a request that got no response.
func (m *Model) requestError(model string, err error) error {
	described := m.errorf(model, "%s", m.clean(err.Error()))
	// Everything that fails on the way has this type; the rest is the request itself.
	var onTheWay *url.Error
	if errors.As(err, &onTheWay) {
		return activities.Retryable(described)
	}
	return described
}

// statusError describes a response that is not a success.
func (m *Model) statusError(model string, res *http.Response, body []byte) error {
	text, quota := errorText(body)
	if location := res.Header.Get("Location"); location != "" {
		text = location
	}

	message := strconv.Itoa(res.StatusCode)
	if name := http.StatusText(res.StatusCode); name != "" {
		message += " " + name
	}
	if text = m.clean(text); text != "" {
		message += ": " + text
	}
	if advice := advice(res.StatusCode, quota); advice != "" {
		message += " (" + advice + ")"
	}
	err := m.errorf(model, "%s", message)

	switch {
	case quota:
		return err
	case res.StatusCode == http.StatusRequestTimeout,
		res.StatusCode == http.StatusConflict,
		res.StatusCode == http.StatusTooManyRequests,
		res.StatusCode >= http.StatusInternalServerError:
		return activities.RetryableAfter(err, retryAfter(res.Header))
	}
	return err
}

// advice says what to do about a response, where its status tells.
func advice(status int, quota bool) string {
	switch {
	case quota, status == http.StatusPaymentRequired:
		return "check the plan and billing of the account"
	case status < http.StatusBadRequest:
		return "redirects are not followed: check the base URL (LLM_BASE_URL)"
	case status == http.StatusUnauthorized:
		return "check the API key (LLM_API_KEY)"
	case status == http.StatusForbidden:
		return "check that the API key (LLM_API_KEY) may use this model"
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return "check the base URL (LLM_BASE_URL) and the model (LLM_MODEL)"
	case status == http.StatusRequestEntityTooLarge:
		return "shorten the conversation"
	}
	return ""
}

// errorText finds what an error body says, and whether it says that the account's quota
// is used up. Servers agree less on errors than on answers: besides OpenAI's
// {"error": {"message", "type", "code"}} there are {"error": "…"}, {"message": "…"},
// {"detail": …} and plain text.
func errorText(body []byte) (text string, quota bool) {
	var document any
	if json.Unmarshal(body, &document) != nil {
		return string(body), false
	}
	if object, ok := document.(map[string]any); ok {
		if inner, ok := object["error"].(map[string]any); ok {
			object = inner
		}
		quota = object["type"] == insufficientQuota || object["code"] == insufficientQuota
		for _, key := range []string{"message", "error", "detail"} {
			if value := object[key]; value != nil {
				document = value
				break
			}
		}
	}
	if text, ok := document.(string); ok {
		return text, quota
	}
	// Encoded anew, because escapes in the original could hide the API key. What was
	// decoded can be encoded.
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(document)
	return out.String(), quota
}

// retryAfter is how long the server asks to be left alone, 0 if it does not say.
func retryAfter(header http.Header) time.Duration {
	for _, form := range []struct {
		header string
		unit   time.Duration
	}{
		{"Retry-After-Ms", time.Millisecond}, // the finer of the two, so it goes first
		{"Retry-After", time.Second},
	} {
		n, err := strconv.ParseFloat(header.Get(form.header), 64)
		if err == nil && n >= 0 {
			return time.Duration(min(n*float64(form.unit), float64(maxRetryAfter)))
		}
	}
	if at, err := http.ParseTime(header.Get("Retry-After")); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return 0
}
