package e2btest

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxPage is the size of a page, unless a request asks for less.
const maxPage = 100

// The size that all sandboxes say they have.
const (
	cpuCount   = 2
	memoryMB   = 512
	diskSizeMB = 1024
)

type listedSandbox struct {
	TemplateID  string            `json:"templateID"`
	Alias       string            `json:"alias,omitempty"`
	SandboxID   string            `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int               `json:"memoryMB"`
	DiskSizeMB  int               `json:"diskSizeMB"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	State       string            `json:"state"`
	EnvdVersion string            `json:"envdVersion"`
}

type sandboxDetail struct {
	listedSandbox
	EnvdAccessToken     string         `json:"envdAccessToken,omitempty"`
	Domain              *string        `json:"domain"`
	AllowInternetAccess *bool          `json:"allowInternetAccess,omitempty"`
	Network             *networkConfig `json:"network,omitempty"`
	Lifecycle           lifecycle      `json:"lifecycle"`
}

type lifecycle struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

func (sb *sandbox) listed() listedSandbox {
	return listedSandbox{
		TemplateID: sb.template.id, Alias: sb.template.alias, SandboxID: sb.id, ClientID: clientID,
		StartedAt: sb.startedAt.UTC(), EndAt: sb.endAt.UTC(),
		CPUCount: cpuCount, MemoryMB: memoryMB, DiskSizeMB: diskSizeMB,
		Metadata: sb.metadata, State: sb.reportedState(), EnvdVersion: envdVersion,
	}
}

func (s *Server) get(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.find(c.id)
	if err != nil {
		return err
	}
	detail := sandboxDetail{
		listedSandbox: sb.listed(), AllowInternetAccess: sb.internet,
		Lifecycle: lifecycle{OnTimeout: "kill", AutoResume: sb.autoResume},
	}
	if sb.secure {
		detail.EnvdAccessToken = sb.token
	}
	if sb.autoPause {
		detail.Lifecycle.OnTimeout = "pause"
	}
	if sb.rawNetwork != nil {
		network := sb.network // with the values of rules, as the service has it, but without the password
		if network.EgressProxy != nil {
			proxy := *network.EgressProxy
			proxy.Password = ""
			network.EgressProxy = &proxy
		}
		detail.Network = &network
	}
	writeJSON(c.w, http.StatusOK, detail)
	return nil
}

// filter is what a request to list sandboxes asks for.
type filter struct {
	metadata     map[string]string
	states       []string
	startedAfter time.Time
	template     string
	ascending    bool
}

func (s *Server) list(c *call) error {
	query := c.r.URL.Query()
	f, err := parseFilter(query)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*sandbox
	for _, sb := range s.sandboxes {
		if f.matches(sb) {
			found = append(found, sb)
		}
	}
	if slices.Contains(f.states, running) {
		count := 0
		for _, sb := range found {
			if sb.reportedState() == running {
				count++
			}
		}
		c.w.Header().Set("X-Total-Running", strconv.Itoa(count))
	}
	found, err = page(c, found, f.ascending, func(sb *sandbox) pageKey { return pageKey{sb.startedAt, sb.id} })
	if err != nil {
		return err
	}
	listed := make([]listedSandbox, len(found))
	for i, sb := range found {
		listed[i] = sb.listed()
	}
	writeJSON(c.w, http.StatusOK, listed)
	return nil
}

func parseFilter(query url.Values) (filter, error) {
	f := filter{states: []string{running, paused}, template: query.Get("template")}
	var err error
	if query.Has("metadata") {
		if f.metadata, err = parseMetadata(query.Get("metadata")); err != nil {
			return f, err
		}
	}
	if query.Has("state") {
		f.states = strings.Split(query.Get("state"), ",")
	}
	for _, state := range f.states {
		if state != running && state != paused {
			return f, refuse(http.StatusBadRequest, "unknown state %q", state)
		}
	}
	if query.Has("startedAfter") {
		if f.startedAfter, err = time.Parse(time.RFC3339Nano, query.Get("startedAfter")); err != nil {
			return f, refuse(http.StatusBadRequest, "startedAfter: %v", err)
		}
	}
	switch order := query.Get("order"); order {
	case "", "desc":
	case "asc":
		f.ascending = true
	default:
		return f, refuse(http.StatusBadRequest, "unknown order %q", order)
	}
	return f, nil
}

// parseMetadata decodes the filter, from which the query's own encoding has been taken already. That
// leaves two: of the text as a whole, and of each key and value.
func parseMetadata(text string) (map[string]string, error) {
	text, err := url.QueryUnescape(text)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "metadata: %v", err)
	}
	metadata := map[string]string{}
	for _, pair := range strings.Split(text, "&") {
		parts := strings.Split(pair, "=")
		if len(parts) != 2 {
			return nil, refuse(http.StatusBadRequest, "metadata: %q is not one key and one value", pair)
		}
		for i := range parts {
			if parts[i], err = url.QueryUnescape(parts[i]); err != nil {
				return nil, refuse(http.StatusBadRequest, "metadata: %v", err)
			}
		}
		metadata[parts[0]] = parts[1]
	}
	return metadata, nil
}

func (f filter) matches(sb *sandbox) bool {
	for key, value := range f.metadata {
		if got, ok := sb.metadata[key]; !ok || got != value {
			return false
		}
	}
	return slices.Contains(f.states, sb.reportedState()) &&
		(f.template == "" || f.template == sb.template.id || f.template == sb.template.alias) &&
		(f.startedAfter.IsZero() || sb.startedAt.After(f.startedAfter))
}

// pageKey is what a list is ordered by.
type pageKey struct {
	at time.Time
	id string
}

func (k pageKey) compare(other pageKey) int {
	return cmp.Or(k.at.Compare(other.at), strings.Compare(k.id, other.id))
}

// token is what a request gives for the page that follows the key.
func (k pageKey) token() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", k.at.UnixNano(), k.id))
}

func parseToken(token string) (pageKey, error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	at, id, ok := strings.Cut(string(text), " ")
	nanos, numErr := strconv.ParseInt(at, 10, 64)
	if err != nil || !ok || numErr != nil {
		return pageKey{}, refuse(http.StatusBadRequest, "invalid nextToken")
	}
	return pageKey{time.Unix(0, nanos), id}, nil
}

// page orders a list and cuts it to what a request asks for, and says in a header how to ask for the
// rest.
func page[T any](c *call, all []T, ascending bool, key func(T) pageKey) ([]T, error) {
	query := c.r.URL.Query()
	limit := maxPage
	if query.Has("limit") {
		var err error
		if limit, err = strconv.Atoi(query.Get("limit")); err != nil || limit < 1 || limit > maxPage {
			return nil, refuse(http.StatusBadRequest, "limit must be from 1 to %d", maxPage)
		}
	}
	compare := func(a, b pageKey) int {
		if ascending {
			return a.compare(b)
		}
		return b.compare(a)
	}
	if query.Has("nextToken") {
		last, err := parseToken(query.Get("nextToken"))
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(item T) bool { return compare(key(item), last) <= 0 })
	}
	slices.SortFunc(all, func(a, b T) int { return compare(key(a), key(b)) })
	if len(all) > limit {
		all = all[:limit]
		c.w.Header().Set("X-Next-Token", key(all[limit-1]).token())
	}
	return all, nil
}

func (s *Server) listSnapshots(c *call) error {
	query := c.r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.allSnapshots()
	found = slices.DeleteFunc(found, func(sn snapshot) bool {
		name := query.Get("name")
		return query.Has("sandboxID") && query.Get("sandboxID") != sn.build.sandboxID ||
			name != "" && !sn.template.hasName(name)
	})
	found, err := page(c, found, false, func(sn snapshot) pageKey { return pageKey{sn.build.createdAt, sn.id()} })
	if err != nil {
		return err
	}
	answers := make([]snapshotAnswer, len(found))
	for i, sn := range found {
		answers[i] = sn.answer()
	}
	writeJSON(c.w, http.StatusOK, answers)
	return nil
}
