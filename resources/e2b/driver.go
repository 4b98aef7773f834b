// Package e2b is a resource driver for E2B's cloud sandboxes, which can pause and resume,
// and whose snapshots hold files and memory.
//
// Make a driver with [FromEnv] or [New] and register it with the worker. Its handles are
// [*Sandbox], which runs commands and moves files. docs/e2b.md describes the configuration,
// what a checkpoint covers, and what E2B itself shows of credentials.
package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tinerun/tine/resources"
)

// Options configure a Driver.
type Options struct {
	// APIKey is the team's key. Required.
	APIKey string
	// APIURL is the base URL of the control plane. Empty means https://api.DOMAIN.
	APIURL string
	// SandboxURL is the base URL for calls into all sandboxes. Empty means what belongs to each
	// sandbox's domain.
	SandboxURL string
	// Domain is that of the service. Empty means e2b.app.
	Domain string
	// HTTPClient makes the requests, without its Timeout and its CheckRedirect: commands may
	// run for long, and the key must not follow a redirect. Nil means one of the driver's own.
	HTTPClient *http.Client
	// Egress gives headers that E2B's egress proxy sets on HTTPS requests from sandboxes, by
	// host, so that code in a sandbox can use credentials without having them. They are set
	// when a sandbox is created and each time the driver connects to it.
	Egress map[string]Headers
}

const (
	driverID      = "e2b"
	defaultDomain = "e2b.app"
)

// Driver makes, opens, pauses and captures sandboxes. It is safe for concurrent use.
type Driver struct {
	http       *http.Client
	key        secret
	apiURL     string
	sandboxURL string
	domain     string
	egress     map[string]Headers
	secrets    *secrets
	creating   ownerLocks

	// The service lacks the newest version of these endpoints.
	oldCreate, oldConnect atomic.Bool
}

var (
	_ resources.Driver[*Sandbox]  = (*Driver)(nil)
	_ resources.CoverageReuser    = (*Driver)(nil)
	_ resources.Pauser            = (*Driver)(nil)
	_ resources.Destroyer         = (*Driver)(nil)
	_ resources.CheckpointDeleter = (*Driver)(nil)
	_ resources.Lister            = (*Driver)(nil)
)

// FromEnv returns a driver with E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL and E2B_DOMAIN.
func FromEnv() (*Driver, error) {
	return New(OptionsFromEnv())
}

// OptionsFromEnv returns what the environment says, to add to before New.
func OptionsFromEnv() Options {
	return Options{
		APIKey:     os.Getenv("E2B_API_KEY"),
		APIURL:     os.Getenv("E2B_API_URL"),
		SandboxURL: os.Getenv("E2B_SANDBOX_URL"),
		Domain:     os.Getenv("E2B_DOMAIN"),
	}
}

// New returns a driver. It makes no request.
func New(options Options) (*Driver, error) {
	if options.APIKey == "" {
		return nil, errors.New("e2b: Options.APIKey is empty; set E2B_API_KEY")
	}
	d := &Driver{
		key:     hide(options.APIKey),
		domain:  options.Domain,
		secrets: newSecrets(options.APIKey),
	}
	if d.domain == "" {
		d.domain = defaultDomain
	}
	var err error
	if d.apiURL, err = baseURL("APIURL", options.APIURL); err != nil {
		return nil, err
	}
	if d.apiURL == "" {
		d.apiURL = "https://api." + d.domain
	}
	if d.sandboxURL, err = baseURL("SandboxURL", options.SandboxURL); err != nil {
		return nil, err
	}
	if d.egress, err = checkEgress(options.Egress); err != nil {
		return nil, fmt.Errorf("e2b: %w", err)
	}
	d.http = httpClient(options.HTTPClient)
	return d, nil
}

func baseURL(option, text string) (string, error) {
	if text == "" {
		return "", nil
	}
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http" || parsed.User != nil {
		return "", fmt.Errorf("e2b: Options.%s is no URL of a server, such as https://api.e2b.app", option)
	}
	return strings.TrimRight(text, "/"), nil
}

const (
	// idleConnections is how many unused connections are kept to one host; E2B serves all
	// sandboxes from one.
	idleConnections = 32
	pingAfter       = 30 * time.Second
	pingTimeout     = 15 * time.Second
)

func httpClient(given *http.Client) *http.Client {
	client := &http.Client{}
	if given != nil {
		*client = *given
	} else if transport, ok := http.DefaultTransport.(*http.Transport); ok {
		own := transport.Clone()
		own.MaxIdleConnsPerHost = idleConnections
		// A machine that was paused may leave its connections open, with nobody behind them.
		own.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
		client.Transport = own
	}
	client.Timeout = 0
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}

// ID returns "e2b".
func (d *Driver) ID() string { return driverID }

// CoverageReuse returns the field coverage_reuse of a configuration.
func (d *Driver) CoverageReuse(raw json.RawMessage) bool {
	cfg, err := parseConfig(raw)
	return err == nil && cfg.CoverageReuse
}

// binding says which sandbox it is. The team's key is what opens it.
type binding struct {
	SandboxID string `json:"sandbox_id"`
}

// sandboxID is the form of IDs. One becomes part of paths.
var sandboxID = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)?$`)

// parseBinding refuses what Create never returned. Such a binding names nothing that
// exists, so trying again cannot help.
func parseBinding(op string, raw json.RawMessage) (string, error) {
	var b binding
	strict := json.NewDecoder(bytes.NewReader(raw))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&b); err != nil || !sandboxID.MatchString(b.SandboxID) {
		return "", &Error{Op: op, cause: resources.ErrGone, Message: "the binding is not one of an E2B sandbox"}
	}
	return b.SandboxID, nil
}

func bindingOf(id string) (json.RawMessage, error) { return json.Marshal(binding{SandboxID: id}) }

// Create returns the owner's sandbox. If there is none yet, it is made from the request's
// snapshot or the configured template.
func (d *Driver) Create(ctx context.Context, req resources.CreateRequest) (*Sandbox, json.RawMessage, error) {
	const op = "create sandbox"
	cfg, err := parseConfig(req.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("e2b: %s: %w", op, err)
	}
	if req.Owner == (resources.Owner{}) {
		return nil, nil, &Error{Op: op, Status: http.StatusBadRequest, Message: "the request names no owner"}
	}
	// Two calls in one worker would both find nothing and make one each.
	release, err := d.creating.lock(ctx, req.Owner)
	if err != nil {
		return nil, nil, &Error{Op: op, cause: err}
	}
	defer release()

	s, err := d.adopt(ctx, req.Owner, cfg.settings())
	if err == nil && s == nil {
		s, err = d.make(ctx, req, cfg)
	}
	if err != nil {
		return nil, nil, err
	}
	raw, err := bindingOf(s.id)
	return s, raw, err
}

// adopt returns the sandbox that an earlier attempt made for the owner, or nil. If several
// did, the oldest stays: a slower attempt looks for it too.
func (d *Driver) adopt(ctx context.Context, owner resources.Owner, set settings) (*Sandbox, error) {
	found, err := d.list(ctx, ownerMetadata(owner))
	if err != nil {
		return nil, err
	}
	for i, one := range found {
		s, err := d.attach(ctx, one.SandboxID, set)
		if errors.Is(err, resources.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, more := range found[i+1:] {
			if err := d.kill(ctx, more.SandboxID); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
	return nil, nil
}

// make makes a sandbox. It removes nothing but that one: an attempt that was given up, and
// does not know it yet, must not take away what its successor returned.
func (d *Driver) make(ctx context.Context, req resources.CreateRequest, cfg config) (*Sandbox, error) {
	made, err := d.create(ctx, req, cfg)
	if err != nil {
		return nil, err
	}
	older, err := d.older(ctx, req.Owner, made.SandboxID)
	if err != nil {
		return nil, err
	}
	if older {
		if err := d.kill(ctx, made.SandboxID); err != nil {
			return nil, err
		}
		s, err := d.adopt(ctx, req.Owner, cfg.settings())
		if err == nil && s == nil {
			err = &Error{Op: "create sandbox", transient: true, Message: "the sandbox of another attempt ended meanwhile"}
		}
		return s, err
	}
	s := d.sandbox(made.SandboxID, cfg.settings())
	s.conn = d.connectionTo(made)
	if len(d.egress) == 0 {
		return s, nil
	}
	if err := d.setNetwork(ctx, s.id, s.settings); err != nil {
		// Another attempt would find the sandbox, but there will be none.
		if isFinal(err) {
			err = errors.Join(err, d.kill(context.WithoutCancel(ctx), s.id))
		}
		return nil, err
	}
	return s, nil
}

// older reports whether the owner has an older sandbox than the one with the id.
func (d *Driver) older(ctx context.Context, owner resources.Owner, id string) (bool, error) {
	found, err := d.list(ctx, ownerMetadata(owner))
	if err != nil {
		return false, err
	}
	for i, one := range found {
		if one.SandboxID == id {
			return i > 0, nil
		}
	}
	return false, nil
}

// Open connects to the sandbox that a binding names, which resumes it if it is paused.
func (d *Driver) Open(ctx context.Context, raw json.RawMessage) (*Sandbox, error) {
	id, err := parseBinding("open sandbox", raw)
	if err != nil {
		return nil, err
	}
	detail, err := d.get(ctx, id)
	if err != nil {
		return nil, err
	}
	set, err := settingsOf(detail.Metadata)
	if err != nil {
		return nil, &Error{Op: "open sandbox " + id, Status: http.StatusBadRequest, Message: err.Error()}
	}
	s, err := d.attach(ctx, id, set)
	if err == nil && len(d.egress) == 0 && len(detail.Network.Rules) > 0 {
		// Credentials that another worker gave it are not this one's to leave there.
		err = d.setNetwork(ctx, id, set)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// attach returns a connected handle.
func (d *Driver) attach(ctx context.Context, id string, set settings) (*Sandbox, error) {
	s := d.sandbox(id, set)
	conn, err := d.connect(ctx, id, set)
	if err != nil {
		return nil, err
	}
	s.conn = conn
	return s, nil
}

// Checkpoint takes a snapshot of a sandbox, with its files and memory. Connections into the
// sandbox drop; the handle connects again. The Run of a command that is running meanwhile
// fails, and kills it.
func (d *Driver) Checkpoint(ctx context.Context, s *Sandbox) (string, error) {
	conn, err := s.connection(ctx)
	if err != nil {
		return "", err
	}
	ref, err := d.snapshot(ctx, s.id)
	if hasStatus(err, http.StatusNotFound) {
		// The sandbox is gone or paused; connecting tells, and resumes it.
		if _, err := s.reconnect(ctx, conn); err != nil {
			return "", err
		}
		ref, err = d.snapshot(ctx, s.id)
	}
	if err != nil {
		return "", err
	}
	d.http.CloseIdleConnections()
	// The snapshot is durable. Whether the sandbox has come back is the next call's to find.
	s.disconnect()
	_, _ = s.connection(ctx)
	return ref, nil
}

// Pause puts a sandbox to rest with its files and memory. Open handles resume it with their
// next call.
func (d *Driver) Pause(ctx context.Context, raw json.RawMessage) error {
	id, err := parseBinding("pause sandbox", raw)
	if err != nil {
		return err
	}
	err = d.pause(ctx, id)
	if hasStatus(err, http.StatusConflict) || hasStatus(err, http.StatusNotFound) {
		// Both are said of a paused sandbox, the first also of one that changes its state.
		detail, getErr := d.get(ctx, id)
		if getErr != nil {
			return getErr
		}
		if detail.State == statePaused {
			return nil
		}
	}
	return err
}

// Destroy kills a sandbox. Its snapshots stay.
func (d *Driver) Destroy(ctx context.Context, raw json.RawMessage) error {
	id, err := parseBinding("kill sandbox", raw)
	if errors.Is(err, resources.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.kill(ctx, id)
}

// DeleteCheckpoint deletes a snapshot. E2B refuses that while sandboxes made from it exist.
func (d *Driver) DeleteCheckpoint(ctx context.Context, ref string) error {
	return d.deleteSnapshot(ctx, ref)
}

// List returns the sandboxes that exist, running or paused, of all executions. They are
// found by their label, so it takes the key of their team.
func (d *Driver) List(ctx context.Context) ([]resources.Listed, error) {
	found, err := d.list(ctx, map[string]string{metaManagedBy: managedBy})
	if err != nil {
		return nil, err
	}
	listed := make([]resources.Listed, 0, len(found))
	for _, one := range found {
		raw, err := bindingOf(one.SandboxID)
		if err != nil {
			return nil, err
		}
		listed = append(listed, resources.Listed{Owner: ownerOf(one.Metadata), Binding: raw})
	}
	return listed, nil
}

func (d *Driver) sandbox(id string, set settings) *Sandbox {
	return &Sandbox{driver: d, id: id, settings: set, turn: make(chan struct{}, 1)}
}

// halfLife is when a connection's hold on its sandbox is renewed.
func (s settings) halfLife() time.Duration { return time.Duration(s.Timeout) * time.Second / 2 }
