// Package openai answers llm_calls with an endpoint that speaks OpenAI's chat
// completions protocol: OpenAI itself, a gateway, or a local server such as vLLM,
// llama.cpp or Ollama.
//
// Start with [FromEnv], which reads LLM_BASE_URL, LLM_API_KEY, LLM_MODEL and LLM_STREAM, or with
// [New]. Each call makes one request. Temporal does the retries, because an attempt that
// it knows of survives the worker and shows in history.
//
// With Options.Stream the endpoint sends its answer piece by piece, and Generate returns
// it whole. It is for gateways that can only stream, or that cut connections on which nothing
// comes for a while.
//
// # What is retried
//
// The statuses 408, 409, 429 and 5xx, failed connections, answers that are cut off or
// malformed or hold no choice, and answers that take longer than the timeout are marked
// with [activities.RetryableAfter]. The delay is what the server asks for in
// Retry-After-Ms or Retry-After, at most 5 minutes, or else Temporal's own. A 409 counts
// because a chat completion has no state of the caller's to conflict with, so that only
// the server's own lock can be meant.
//
// Everything else is the step's outcome at once: the other 4xx statuses, redirects, a
// 200 that is a web page instead of JSON, and a 429 of type insufficient_quota, which
// lasts until somebody pays. When the context given to Generate ends, its own error is
// returned, unmarked.
//
// # Secrets
//
// The API key is cut out of every error, whose texts from outside are also bounded and
// freed of control characters. Errors don't wrap the SDK's, which hold the request and
// its Authorization header. Answers are freed of the key too if it has 16 characters or
// more: the placeholders that local servers are given are ordinary words, which a model
// may well say.
package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/internal/endpoint"
)

var names = endpoint.Names{Package: "openai", BaseURL: "LLM_BASE_URL", APIKey: "LLM_API_KEY", Model: "LLM_MODEL"}

// Options configure a [Model].
type Options struct {
	// BaseURL is what /chat/completions is appended to, such as
	// http://127.0.0.1:8080/v1. It is required, and has no user, query or fragment.
	BaseURL string
	// APIKey is sent as a bearer token. Empty: no Authorization header is sent.
	APIKey string
	// Model is the model id for requests that name none. Empty: each must name one.
	Model string
	// Stream asks for the answer piece by piece. A whole one is taken as well. False: the answer
	// comes whole.
	Stream bool
	// Timeout bounds one call of Generate. Zero: 10 minutes.
	Timeout time.Duration
	// HTTPClient makes the requests. Nil: one with http.DefaultTransport. Unless it has
	// a CheckRedirect, redirects are errors: they turn a POST into a GET, or lead the
	// API key elsewhere.
	HTTPClient *http.Client
}

// Model is an [activities.Model]. It may be used concurrently.
type Model struct {
	completions sdk.ChatCompletionService
	model       string
	stream      bool
	endpoint    *endpoint.Endpoint
	// maxCompletionTokens chooses between the two names of the token limit.
	maxCompletionTokens bool
}

var _ activities.Model = (*Model)(nil)

// FromEnv makes a Model from LLM_BASE_URL, LLM_MODEL, unless the endpoint needs none
// LLM_API_KEY, and LLM_STREAM, which is true or false. If none of the first three is set, ok is
// false without an error, and the caller may do without a real model. To set only some of
// what is needed is an error.
func FromEnv() (m *Model, ok bool, err error) {
	opts := Options{
		BaseURL: os.Getenv("LLM_BASE_URL"),
		APIKey:  os.Getenv("LLM_API_KEY"),
		Model:   os.Getenv("LLM_MODEL"),
	}
	if opts == (Options{}) {
		return nil, false, nil
	}
	var missing []string
	if opts.BaseURL == "" {
		missing = append(missing, "LLM_BASE_URL")
	}
	if opts.Model == "" {
		missing = append(missing, "LLM_MODEL")
	}
	if len(missing) > 0 {
		return nil, false, fmt.Errorf("openai: %s not set: set LLM_BASE_URL and LLM_MODEL, or none of the LLM_ variables", strings.Join(missing, " and "))
	}
	if stream := os.Getenv("LLM_STREAM"); stream != "" {
		if opts.Stream, err = strconv.ParseBool(stream); err != nil {
			return nil, false, errors.New("openai: LLM_STREAM must be true or false")
		}
	}
	m, err = New(opts)
	return m, err == nil, err
}

// New checks opts and makes a Model of them. It does not connect.
func New(opts Options) (*Model, error) {
	e, err := endpoint.New(names, endpoint.Settings{
		BaseURL: opts.BaseURL, APIKey: opts.APIKey, Timeout: opts.Timeout, HTTPClient: opts.HTTPClient,
		Example: "http://127.0.0.1:8080/v1",
	})
	if err != nil {
		return nil, err
	}
	requestOptions := []option.RequestOption{
		option.WithBaseURL(opts.BaseURL),
		option.WithHTTPClient(e.Client()),
		option.WithMaxRetries(0),
	}
	if opts.APIKey != "" {
		requestOptions = append(requestOptions, option.WithAPIKey(opts.APIKey))
	}
	return &Model{
		// Not a whole client: that one takes OPENAI_API_KEY and other defaults from the
		// environment, and would send that key to whatever endpoint this is.
		completions:         sdk.NewChatCompletionService(requestOptions...),
		model:               opts.Model,
		stream:              opts.Stream,
		endpoint:            e,
		maxCompletionTokens: strings.HasSuffix("."+e.Host(), ".api.openai.com"),
	}, nil
}

// Generate asks the endpoint for one answer. A refusal is an answer, whose finish reason
// is content_filter and whose content says why. Other finish reasons, and the arguments
// of tool calls, are as the endpoint gives them.
func (m *Model) Generate(ctx context.Context, req activities.GenerateRequest, tools []activities.ToolSpec) (activities.GenerateResponse, error) {
	if req.Model == "" {
		req.Model = m.model
	}
	if req.Model == "" {
		return activities.GenerateResponse{}, errors.New("openai: neither the request nor the worker names a model: set LLM_MODEL, or the request's model")
	}
	params, err := m.params(req, tools)
	if err != nil {
		return activities.GenerateResponse{}, fmt.Errorf("openai: %w", err)
	}

	return m.endpoint.Generate(ctx, req.Model, func(ctx context.Context) (activities.GenerateResponse, error) {
		return m.call(ctx, params)
	})
}

// call makes the one request.
func (m *Model) call(ctx context.Context, params sdk.ChatCompletionNewParams) (activities.GenerateResponse, error) {
	// The answer is read here and not by the SDK, which reports a cut answer like a
	// malformed one, and loses the status of an error that is not in OpenAI's form.
	var res *http.Response
	options := []option.RequestOption{option.WithResponseBodyInto(&res)}
	if m.stream {
		options = append(options, option.WithJSONSet("stream", true))
	}
	_, err := m.completions.New(ctx, params, options...)
	if res == nil {
		return activities.GenerateResponse{}, m.endpoint.RequestError(params.Model, err)
	}
	defer func() { _ = res.Body.Close() }()
	if streams(res) {
		return m.streamed(params.Model, res)
	}
	body, err := io.ReadAll(res.Body)
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return activities.GenerateResponse{}, m.endpoint.StatusError(params.Model, res, body)
	}
	if err != nil {
		return activities.GenerateResponse{}, activities.Retryable(m.endpoint.Errorf(params.Model, "the answer was cut off: %s", m.endpoint.Clean(err.Error())))
	}
	return m.answer(params.Model, res.Header, body)
}
