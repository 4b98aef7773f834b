// Package anthropic answers llm_calls with Anthropic's Messages API, or a gateway that speaks it.
//
// Start with [FromEnv], which reads ANTHROPIC_API_KEY, ANTHROPIC_MODEL and ANTHROPIC_BASE_URL, or
// with [New]. Each call makes one request. Temporal does the retries, because an attempt that it knows
// of survives the worker and shows in history. Nothing else is read from the environment, and no
// OpenTelemetry spans are made: they can hold conversations.
//
// # Conversations
//
// The API keeps the system's words apart from the conversation, so all system messages go
// there, in their order. Messages of the user and of tools that follow one another are sent as one,
// which the API wants for the results of parallel tool calls. Texts that are empty are left out,
// since it refuses them.
//
// Stop reasons are given as stop, tool_calls, length and content_filter, like those of other
// endpoints. Input tokens are those read from and written to the prompt cache as well.
//
// # What is retried
//
// The statuses 408, 409, 429 and 5xx, 529 for an overloaded API among them, failed connections, answers
// that are cut off or malformed, and answers that take longer than the timeout are marked with
// [activities.RetryableAfter]. The delay is what the server asks for in Retry-After-Ms or
// Retry-After, at most 5 minutes, or else Temporal's own. Everything else is the step's outcome
// at once. When the context given to Generate ends, its own error is returned, unmarked.
//
// # Secrets
//
// The API key is cut out of every error, whose texts from outside are also bounded and
// freed of control characters. Errors don't wrap the SDK's, which hold the request and
// its headers. Answers are freed of the key too if it has 16 characters or more: a shorter one
// is a placeholder for a gateway.
package anthropic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/internal/endpoint"
)

const (
	// defaultBaseURL is Anthropic's own API.
	defaultBaseURL = "https://api.anthropic.com"

	// defaultMaxTokens is what an answer may have where a request does not say. The API wants a
	// number, and all its models but the oldest can give this many.
	defaultMaxTokens = 8192
)

var names = endpoint.Names{Package: "anthropic", BaseURL: "ANTHROPIC_BASE_URL", APIKey: "ANTHROPIC_API_KEY", Model: "ANTHROPIC_MODEL"}

// Options configure a [Model].
type Options struct {
	// BaseURL is what /v1/messages is appended to. It has no user, query or fragment. Empty:
	// https://api.anthropic.com.
	BaseURL string
	// APIKey is sent as X-Api-Key. Empty: none is sent, which is for a gateway that has its own.
	APIKey string
	// Model is the model id for requests that name none. Empty: each must name one.
	Model string
	// MaxTokens bounds the answers to requests that do not say. Zero: 8192.
	MaxTokens int
	// Timeout bounds one call of Generate. Zero: 10 minutes.
	Timeout time.Duration
	// HTTPClient makes the requests. Nil: one with http.DefaultTransport. Unless it has
	// a CheckRedirect, redirects are errors: they turn a POST into a GET, or lead the
	// API key elsewhere.
	HTTPClient *http.Client
}

// Model is an [activities.Model]. It may be used concurrently.
type Model struct {
	messages  sdk.MessageService
	model     string
	maxTokens int
	endpoint  *endpoint.Endpoint
}

var _ activities.Model = (*Model)(nil)

// FromEnv makes a Model from ANTHROPIC_API_KEY, ANTHROPIC_MODEL and, for a gateway,
// ANTHROPIC_BASE_URL. If neither the key nor the model is set, ok is false without an error, and
// the caller may do without a real model. A key needs a model. A model without a key needs a base
// URL, whose gateway has a key of its own.
func FromEnv() (m *Model, ok bool, err error) {
	opts := Options{
		BaseURL: os.Getenv("ANTHROPIC_BASE_URL"),
		APIKey:  os.Getenv("ANTHROPIC_API_KEY"),
		Model:   os.Getenv("ANTHROPIC_MODEL"),
	}
	switch {
	case opts.APIKey == "" && opts.Model == "":
		return nil, false, nil
	case opts.Model == "":
		return nil, false, errors.New("anthropic: ANTHROPIC_MODEL not set: set it beside ANTHROPIC_API_KEY, or neither")
	case opts.APIKey == "" && opts.BaseURL == "":
		return nil, false, errors.New("anthropic: ANTHROPIC_API_KEY not set: set it beside ANTHROPIC_MODEL, or neither")
	}
	m, err = New(opts)
	return m, err == nil, err
}

// New checks opts and makes a Model of them. It does not connect.
func New(opts Options) (*Model, error) {
	if opts.BaseURL == "" {
		opts.BaseURL = defaultBaseURL
	}
	if opts.MaxTokens < 0 {
		return nil, fmt.Errorf("anthropic: the token limit is negative: %d", opts.MaxTokens)
	}
	if opts.MaxTokens == 0 {
		opts.MaxTokens = defaultMaxTokens
	}
	e, err := endpoint.New(names, endpoint.Settings{
		BaseURL: opts.BaseURL, APIKey: opts.APIKey, Timeout: opts.Timeout, HTTPClient: opts.HTTPClient,
		Example: defaultBaseURL,
	})
	if err != nil {
		return nil, err
	}
	requestOptions := []option.RequestOption{
		option.WithBaseURL(opts.BaseURL),
		option.WithHTTPClient(e.Client()),
		option.WithMaxRetries(0),
		// Else the SDK refuses token limits of which it thinks that they take too long.
		option.WithRequestTimeout(e.Timeout()),
		option.WithoutOpenTelemetry(),
	}
	if opts.APIKey != "" {
		requestOptions = append(requestOptions, option.WithAPIKey(opts.APIKey))
	}
	return &Model{
		// Not a whole client: that one takes credentials, a base URL and headers from the
		// environment and from files.
		messages:  sdk.NewMessageService(requestOptions...),
		model:     opts.Model,
		maxTokens: opts.MaxTokens,
		endpoint:  e,
	}, nil
}

// Generate asks the endpoint for one answer. A refusal is an answer, whose finish reason
// is content_filter and whose content, if the model has said nothing, is the API's explanation.
func (m *Model) Generate(ctx context.Context, req activities.GenerateRequest, tools []activities.ToolSpec) (activities.GenerateResponse, error) {
	if req.Model == "" {
		req.Model = m.model
	}
	if req.Model == "" {
		return activities.GenerateResponse{}, errors.New("anthropic: neither the request nor the worker names a model: set ANTHROPIC_MODEL, or the request's model")
	}
	params, err := m.params(req, tools)
	if err != nil {
		return activities.GenerateResponse{}, fmt.Errorf("anthropic: %w", err)
	}
	return m.endpoint.Generate(ctx, req.Model, func(ctx context.Context) (activities.GenerateResponse, error) {
		return m.call(ctx, params)
	})
}

// call makes the one request.
func (m *Model) call(ctx context.Context, params sdk.MessageNewParams) (activities.GenerateResponse, error) {
	model := string(params.Model)
	// The answer is read here and not by the SDK, which reports a cut answer like a
	// malformed one, and loses the status of an error that is not in Anthropic's form.
	var res *http.Response
	_, err := m.messages.New(ctx, params, option.WithResponseBodyInto(&res))
	if res == nil {
		return activities.GenerateResponse{}, m.endpoint.RequestError(model, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return activities.GenerateResponse{}, m.endpoint.StatusError(model, res, body)
	}
	if err != nil {
		return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(model, "the answer was cut off: %s", m.endpoint.Clean(err.Error())))
	}
	return m.answer(model, res.Header, body)
}
