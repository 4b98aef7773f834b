package e2b

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tinerun/tine/resources"
)

const (
	// requestTimeout is for calls that a service answers at once or not at all.
	requestTimeout = time.Minute
	// startTimeout is for calls that start or resume a machine.
	startTimeout = 3 * time.Minute
	// memoryTimeout is for calls that write a machine's memory to disk.
	memoryTimeout = 10 * time.Minute

	// maxAnswer is how much of a JSON answer is read.
	maxAnswer = 32 << 20

	userAgent = "tine-e2b"
)

const (
	statePaused = "paused"
	// listStates has a literal comma: the service splits the raw value.
	listStates = "running,paused"
	listLimit  = "100"
	nextToken  = "X-Next-Token"
)

// running is what create and connect say of a sandbox.
type running struct {
	SandboxID          string `json:"sandboxID"`
	Domain             string `json:"domain"`
	EnvdVersion        string `json:"envdVersion"`
	EnvdAccessToken    string `json:"envdAccessToken"`
	TrafficAccessToken string `json:"trafficAccessToken"`
}

// listed is what list and get say.
type listed struct {
	SandboxID string            `json:"sandboxID"`
	StartedAt time.Time         `json:"startedAt"`
	State     string            `json:"state"`
	Metadata  map[string]string `json:"metadata"`
	Network   struct {
		Rules map[string]json.RawMessage `json:"rules"`
	} `json:"network"`
}

type createBody struct {
	TemplateID string            `json:"templateID"`
	Timeout    int               `json:"timeout"`
	AutoPause  bool              `json:"autoPause"`
	Metadata   map[string]string `json:"metadata"`
	EnvVars    map[string]string `json:"envVars,omitempty"`
	Network    *network          `json:"network,omitempty"`
	// Secure gives the sandbox an access token. The newest version always does.
	Secure bool `json:"secure,omitempty"`
}

type timeoutBody struct {
	Timeout int `json:"timeout"`
}

func (d *Driver) create(ctx context.Context, req resources.CreateRequest, cfg config) (running, error) {
	const op = "create sandbox"
	metadata, err := cfg.metadata(req.Owner)
	if err != nil {
		return running{}, err
	}
	body := createBody{
		TemplateID: cmp.Or(req.Checkpoint, cfg.Template),
		Timeout:    cfg.Timeout,
		AutoPause:  cfg.OnTimeout == onTimeoutPause,
		Metadata:   metadata,
		EnvVars:    cfg.Env,
	}
	if len(cfg.Network.AllowOut)+len(cfg.Network.DenyOut) > 0 {
		// Already when it starts, the sandbox reaches nothing that it may not.
		body.Network = &network{AllowOut: cfg.Network.AllowOut, DenyOut: cfg.Network.DenyOut}
	}
	var made running
	err = d.newest(&d.oldCreate, func(old bool) error {
		body.Secure = old
		return d.call(ctx, op, http.MethodPost, versioned(old, "/sandboxes"), startTimeout, body, &made)
	})
	missing := resources.ErrInvalidConfig
	if req.Checkpoint != "" {
		missing = resources.ErrCheckpointUnavailable
	}
	if err := means(err, http.StatusNotFound, missing); err != nil {
		return running{}, err
	}
	return made, d.checkRunning(op, made)
}

// connect resumes the sandbox if it is paused, keeps it for the timeout from now at least,
// and sets its network.
func (d *Driver) connect(ctx context.Context, id string, set settings) (*connection, error) {
	const op = "connect to sandbox"
	var found running
	err := d.newest(&d.oldConnect, func(old bool) error {
		path := versioned(old, "/sandboxes/"+id+"/connect")
		return d.call(ctx, op, http.MethodPost, path, startTimeout, timeoutBody{set.Timeout}, &found)
	})
	if err := means(err, http.StatusNotFound, resources.ErrGone); err != nil {
		return nil, err
	}
	if err := d.checkRunning(op, found); err != nil {
		return nil, err
	}
	if len(d.egress) > 0 {
		if err := d.setNetwork(ctx, id, set); err != nil {
			return nil, err
		}
	}
	return d.connectionTo(found), nil
}

func (d *Driver) checkRunning(op string, r running) error {
	if !sandboxID.MatchString(r.SandboxID) {
		return d.malformed(op, http.StatusOK, errors.New("it names no sandbox"))
	}
	return nil
}

// versioned is the path of an endpoint in its newest or in its old version.
func versioned(old bool, path string) string {
	if old {
		return path
	}
	return "/v2" + path
}

// newest calls the newest version of an endpoint, or the old one if the service lacks that,
// and remembers it.
func (d *Driver) newest(old *atomic.Bool, call func(old bool) error) error {
	if old.Load() {
		return call(true)
	}
	err := call(false)
	if !isNoPath(err) {
		return err
	}
	err = call(true)
	if !isNoPath(err) {
		old.Store(true)
	}
	return err
}

func (d *Driver) get(ctx context.Context, id string) (listed, error) {
	var detail listed
	err := d.call(ctx, "open sandbox", http.MethodGet, "/sandboxes/"+id, requestTimeout, nil, &detail)
	return detail, means(err, http.StatusNotFound, resources.ErrGone)
}

// list returns the sandboxes with all the metadata, oldest first.
func (d *Driver) list(ctx context.Context, metadata map[string]string) ([]listed, error) {
	var all []listed
	token := ""
	for {
		var page []listed
		header, err := d.callHeader(ctx, "list sandboxes", http.MethodGet, listPath(metadata, token), requestTimeout, nil, &page)
		if err != nil {
			return nil, err
		}
		for _, sandbox := range page {
			if sandbox.labelled(metadata) { // whatever the service has made of the filter
				all = append(all, sandbox)
			}
		}
		if token = header.Get(nextToken); token == "" {
			break
		}
	}
	slices.SortStableFunc(all, func(a, b listed) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), strings.Compare(a.SandboxID, b.SandboxID))
	})
	return all, nil
}

// labelled reports whether a sandbox has all of the metadata.
func (l listed) labelled(metadata map[string]string) bool {
	for name, value := range metadata {
		if l.Metadata[name] != value {
			return false
		}
	}
	return true
}

func listPath(metadata map[string]string, token string) string {
	query := url.Values{"metadata": {encodeMetadata(metadata)}, "limit": {listLimit}}
	if token != "" {
		query.Set("nextToken", token)
	}
	return "/v2/sandboxes?" + query.Encode() + "&state=" + listStates
}

// encodeMetadata escapes names and values twice, and the query does so once more: the service
// unescapes the query, the whole filter, and then each name and value.
func encodeMetadata(metadata map[string]string) string {
	filter := url.Values{}
	for name, value := range metadata {
		filter.Set(escape(name), escape(value))
	}
	return filter.Encode()
}

// escape is url.QueryEscape with a space as "%20", as E2B's own clients write it.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// kill removes a sandbox, running or paused. One that is gone is no error.
func (d *Driver) kill(ctx context.Context, id string) error {
	err := d.call(ctx, "kill sandbox", http.MethodDelete, "/sandboxes/"+id, requestTimeout, nil, nil)
	if hasStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

func (d *Driver) pause(ctx context.Context, id string) error {
	return d.call(ctx, "pause sandbox", http.MethodPost, "/sandboxes/"+id+"/pause", memoryTimeout, struct{}{}, nil)
}

func (d *Driver) snapshot(ctx context.Context, id string) (string, error) {
	const op = "snapshot sandbox"
	var taken struct {
		SnapshotID string `json:"snapshotID"`
	}
	err := d.call(ctx, op, http.MethodPost, "/sandboxes/"+id+"/snapshots", memoryTimeout, struct{}{}, &taken)
	if err == nil && taken.SnapshotID == "" {
		err = d.malformed(op, http.StatusCreated, errors.New("it names no snapshot"))
	}
	return taken.SnapshotID, err
}

// deleteSnapshot deletes a snapshot. One that is gone is no error.
func (d *Driver) deleteSnapshot(ctx context.Context, ref string) error {
	// A snapshot's ID has a colon, and a slash if it has a name.
	path := "/templates/" + strings.ReplaceAll(url.PathEscape(ref), ":", "%3A")
	err := d.call(ctx, "delete snapshot", http.MethodDelete, path, requestTimeout, nil, nil)
	if hasStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// extend keeps a running sandbox for the timeout from now. Unlike connect it leaves a paused
// one alone.
func (d *Driver) extend(ctx context.Context, id string, set settings) error {
	path := "/sandboxes/" + id + "/timeout"
	return d.call(ctx, "extend sandbox", http.MethodPost, path, requestTimeout, timeoutBody{set.Timeout}, nil)
}

// setNetwork replaces a running sandbox's network configuration, also where it is the same:
// what is left out is cleared.
func (d *Driver) setNetwork(ctx context.Context, id string, set settings) error {
	body, err := d.network(ctx, set)
	if err != nil {
		return err
	}
	err = d.call(ctx, "set network of sandbox", http.MethodPut, "/sandboxes/"+id+"/network", requestTimeout, body, nil)
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusNotFound && !e.noPath {
		// It ran a moment ago, and was paused or killed since. The next attempt finds out.
		e.transient = true
	}
	return err
}

// call makes a call to the control plane. A nil in sends no body; a nil out expects none.
func (d *Driver) call(ctx context.Context, op, method, path string, timeout time.Duration, in, out any) error {
	_, err := d.callHeader(ctx, op, method, path, timeout, in, out)
	return err
}

func (d *Driver) callHeader(ctx context.Context, op, method, path string, timeout time.Duration, in, out any) (http.Header, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()
	req, err := jsonRequest(ctx, method, d.apiURL+path, in)
	if err != nil {
		return nil, d.failure(ctx, op, err)
	}
	req.Header.Set("X-API-Key", d.key())
	return d.exchange(op, req, out)
}

func jsonRequest(ctx context.Context, method, target string, in any) (*http.Request, error) {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// exchange sends a request and decodes its answer.
func (d *Driver) exchange(op string, req *http.Request, out any) (http.Header, error) {
	res, err := d.send(op, req)
	if err != nil {
		return nil, err
	}
	return res.Header, d.decode(req.Context(), op, res, out)
}

// decode reads an answer, and closes it.
func (d *Driver) decode(ctx context.Context, op string, res *http.Response, out any) error {
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return d.failure(ctx, op, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return d.malformed(op, res.StatusCode, err)
	}
	return nil
}

// send sends a request. Its answer is a success, and must be closed.
func (d *Driver) send(op string, req *http.Request) (*http.Response, error) {
	req.Header.Set("User-Agent", userAgent)
	res, err := d.http.Do(req)
	if err != nil {
		return nil, d.failure(req.Context(), op, err)
	}
	if res.StatusCode < http.StatusOK || res.StatusCode >= http.StatusMultipleChoices {
		return nil, d.refusal(op, res)
	}
	return res, nil
}
