package agent

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/anthropic"
	"github.com/tinerun/tine/activities/openai"
	"github.com/tinerun/tine/resources/e2b"
)

// Settings are what a worker knows and the agent does not: where the repository is, and the
// credentials for it.
type Settings struct {
	driver  *e2b.Driver
	hub     *hub
	repoURL string
}

// githubUser is the name that GitHub takes a token as the password of.
const githubUser = "x-access-token"

var repositoryName = regexp.MustCompile(`^([A-Za-z0-9_.-]+)/([A-Za-z0-9_.-]+)$`)

// NewSettings reads E2B_API_KEY, REPO and GITHUB_TOKEN with getenv, and says of each that is missing
// what it is. GITHUB_SERVER_URL and GITHUB_API_URL are for a GitHub of your own, E2B_API_URL,
// E2B_SANDBOX_URL and E2B_DOMAIN for an E2B of your own.
func NewSettings(getenv func(string) string) (*Settings, error) {
	var problems []error
	need := func(variable, what string) string {
		value := getenv(variable)
		if value == "" {
			problems = append(problems, fmt.Errorf("%s is not set: %s", variable, what))
		}
		return value
	}
	key := need("E2B_API_KEY", "the key of your E2B team")
	repo := need("REPO", "the repository to work on, as owner/name")
	token := need("GITHUB_TOKEN", "a token with read and write access to the repository's contents and pull requests")
	name := repositoryName.FindStringSubmatch(repo)
	if repo != "" && name == nil {
		problems = append(problems, fmt.Errorf("REPO is %q; it has the form owner/name", repo))
	}
	server, err := serverURL(getenv("GITHUB_SERVER_URL"))
	if err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	hub, err := newHub(getenv("GITHUB_API_URL"), token, name[1], name[2])
	if err != nil {
		return nil, fmt.Errorf("GITHUB_API_URL: %w", err)
	}
	driver, err := e2b.New(e2b.Options{
		APIKey: key, APIURL: getenv("E2B_API_URL"), SandboxURL: getenv("E2B_SANDBOX_URL"), Domain: getenv("E2B_DOMAIN"),
		// git in the sandbox sends no credentials. The proxy outside adds them, for this host only:
		// the API that opens pull requests is another one.
		Egress: map[string]e2b.Headers{server.Hostname(): basic(token)},
	})
	if err != nil {
		return nil, err
	}
	return &Settings{driver: driver, hub: hub, repoURL: server.JoinPath(repo + ".git").String()}, nil
}

// basic is what git sends for a token.
func basic(token string) e2b.Headers {
	encoded := base64.StdEncoding.EncodeToString([]byte(githubUser + ":" + token))
	return func(context.Context) (http.Header, error) {
		return http.Header{"Authorization": {"Basic " + encoded}}, nil
	}
}

func serverURL(text string) (*url.URL, error) {
	if text == "" {
		text = "https://github.com"
	}
	server, err := url.Parse(strings.TrimRight(text, "/"))
	if err != nil || server.Hostname() == "" || server.User != nil {
		return nil, errors.New("GITHUB_SERVER_URL is no URL of a server, such as https://github.com")
	}
	return server, nil
}

// ModelFromEnv is the endpoint that the LLM_ variables name, or else the ANTHROPIC_ ones. It is nil
// if neither are set.
func ModelFromEnv() (activities.Model, error) {
	if model, ok, err := openai.FromEnv(); ok || err != nil {
		return model, err
	}
	model, ok, err := anthropic.FromEnv()
	if !ok {
		return nil, err
	}
	return model, nil
}

// ErrNoModel says that there is no model.
var ErrNoModel = errors.New("LLM_BASE_URL, LLM_MODEL and LLM_API_KEY are not set: an OpenAI-compatible endpoint, its model and your key for it; or set ANTHROPIC_API_KEY and ANTHROPIC_MODEL")
