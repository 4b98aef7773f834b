package endpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tinerun/tine/activities"
)

const (
	// maxRetryAfter bounds the wait that a server may ask for. A limit that lasts longer
	// answers the next attempt with its time again.
	maxRetryAfter = 5 * time.Minute

	// The types of errors that last until somebody pays: OpenAI's, which comes with a 429 like a
	// rate limit, and Anthropic's.
	insufficientQuota = "insufficient_quota"
	billingError      = "billing_error"
)

// StatusError describes a response that is not a success. The statuses 408, 409, 429 and
// 5xx are marked as retryable. A 409 counts because an answer has no state of the
// caller's to conflict with, so that only the server's own lock can be meant.
func (e *Endpoint) StatusError(model string, res *http.Response, body []byte) error {
	text, quota := ErrorText(body)
	if location := res.Header.Get("Location"); location != "" {
		text = location
	}

	message := strconv.Itoa(res.StatusCode)
	if name := http.StatusText(res.StatusCode); name != "" {
		message += " " + name
	}
	if text = e.Clean(text); text != "" {
		message += ": " + text
	}
	if advice := e.advice(res.StatusCode, quota); advice != "" {
		message += " (" + advice + ")"
	}
	err := e.Errorf(model, "%s", message)

	switch {
	case quota:
		return err
	case res.StatusCode == http.StatusRequestTimeout,
		res.StatusCode == http.StatusConflict,
		res.StatusCode == http.StatusTooManyRequests,
		res.StatusCode >= http.StatusInternalServerError:
		return activities.RetryableAfter(err, RetryAfter(res.Header))
	}
	return err
}

// advice says what to do about a response, where its status tells.
func (e *Endpoint) advice(status int, quota bool) string {
	switch {
	case quota, status == http.StatusPaymentRequired:
		return "check the plan and billing of the account"
	case status < http.StatusBadRequest:
		return fmt.Sprintf("redirects are not followed: check the base URL (%s)", e.names.BaseURL)
	case status == http.StatusUnauthorized:
		return fmt.Sprintf("check the API key (%s)", e.names.APIKey)
	case status == http.StatusForbidden:
		return fmt.Sprintf("check that the API key (%s) may use this model", e.names.APIKey)
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return fmt.Sprintf("check the base URL (%s) and the model (%s)", e.names.BaseURL, e.names.Model)
	case status == http.StatusRequestEntityTooLarge:
		return "shorten the conversation"
	}
	return ""
}

// ErrorText finds what an error body says, and whether it says that the account's quota
// is used up. Servers agree less on errors than on answers: besides OpenAI's and Anthropic's
// {"error": {"message", "type"}} there are {"error": "…"}, {"message": "…"},
// {"detail": …} and plain text.
func ErrorText(body []byte) (text string, quota bool) {
	var document any
	if json.Unmarshal(body, &document) != nil {
		return string(body), false
	}
	if object, ok := document.(map[string]any); ok {
		if inner, ok := object["error"].(map[string]any); ok {
			object = inner
		}
		quota = object["type"] == insufficientQuota || object["code"] == insufficientQuota || object["type"] == billingError
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

// RetryAfter is how long the server asks to be left alone, 0 if it does not say.
func RetryAfter(header http.Header) time.Duration {
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
