package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-github/v92/github"

	"github.com/tinerun/tine/activities"
)

// apiTimeout bounds one request to GitHub.
const apiTimeout = 30 * time.Second

// hub opens and finds pull requests of one repository.
type hub struct {
	client      *github.Client
	owner, name string
	token       string
}

func newHub(apiURL, token, owner, name string) (*hub, error) {
	options := []github.ClientOptionsFunc{github.WithAuthToken(token), github.WithTimeout(apiTimeout)}
	if apiURL != "" {
		apiURL = strings.TrimRight(apiURL, "/") + "/"
		options = append(options, github.WithURLs(&apiURL, nil))
	}
	client, err := github.NewClient(options...)
	if err != nil {
		return nil, err
	}
	return &hub{client: client, owner: owner, name: name, token: token}, nil
}

// open opens a pull request into the repository's default branch. GitHub allows one for a branch; if
// there is one, open gives that.
func (h *hub) open(ctx context.Context, in OpenPRArgs) (PullRequest, error) {
	if !strings.HasPrefix(in.Branch, branchPrefix) {
		return PullRequest{}, fmt.Errorf("the branch must be yours, which begins with %s", branchPrefix)
	}
	repository, _, err := h.client.Repositories.Get(ctx, h.owner, h.name)
	if err != nil {
		return PullRequest{}, h.failed("look up the repository", err)
	}
	pr, response, err := h.client.PullRequests.Create(ctx, h.owner, h.name, github.CreatePullRequest{
		Title: &in.Title, Body: &in.Body, Head: in.Branch, Base: repository.GetDefaultBranch(),
	})
	switch {
	case err == nil:
		return PullRequest{Number: pr.GetNumber(), URL: pr.GetHTMLURL()}, nil
	case response == nil || response.StatusCode >= http.StatusInternalServerError:
		return PullRequest{}, activities.Indeterminate(h.failed("open the pull request", err))
	case response.StatusCode == http.StatusUnprocessableEntity:
		if found, findErr := h.find(ctx, BranchArgs{Branch: in.Branch}); findErr == nil && found.URL != "" {
			return found, nil
		}
	}
	return PullRequest{}, h.failed("open the pull request", err)
}

// find gives the open pull request of a branch, or none.
func (h *hub) find(ctx context.Context, in BranchArgs) (PullRequest, error) {
	found, response, err := h.client.PullRequests.List(ctx, h.owner, h.name, &github.PullRequestListOptions{
		State: "open", Head: h.owner + ":" + in.Branch,
	})
	if err != nil {
		err = h.failed("list pull requests", err)
		if response == nil || response.StatusCode >= http.StatusInternalServerError || response.StatusCode == http.StatusTooManyRequests {
			err = activities.Retryable(err)
		}
		return PullRequest{}, err
	}
	for _, pr := range found {
		if pr.GetHead().GetRef() == in.Branch {
			return PullRequest{Number: pr.GetNumber(), URL: pr.GetHTMLURL()}, nil
		}
	}
	return PullRequest{}, nil
}

// failed keeps the text of an error, without the token if something should have put it there.
func (h *hub) failed(what string, err error) error {
	return errors.New("GitHub: " + what + ": " + strings.ReplaceAll(err.Error(), h.token, "[redacted]"))
}
