package e2b

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tinerun/tine/resources"
)

const (
	defaultTemplate = "base"
	// defaultTimeout is in seconds. Long enough for a model to think between two commands,
	// short enough that a sandbox nobody uses costs little.
	defaultTimeout = 600
)

// config is what an agent may say about a sandbox.
type config struct {
	Template      string            `json:"template"`
	Timeout       int               `json:"timeout"`
	OnTimeout     string            `json:"on_timeout"`
	Env           map[string]string `json:"env"`
	Metadata      map[string]string `json:"metadata"`
	Network       networkConfig     `json:"network"`
	CoverageReuse bool              `json:"coverage_reuse"`
}

type networkConfig struct {
	AllowOut []string `json:"allow_out,omitempty"`
	DenyOut  []string `json:"deny_out,omitempty"`
}

const (
	onTimeoutPause = "pause"
	onTimeoutKill  = "kill"
)

// parseConfig reads a configuration; none at all, or null, is the empty one.
func parseConfig(raw json.RawMessage) (config, error) {
	cfg := config{Template: defaultTemplate, Timeout: defaultTimeout, OnTimeout: onTimeoutPause}
	if len(raw) > 0 {
		strict := json.NewDecoder(bytes.NewReader(raw))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&cfg); err != nil {
			return config{}, invalidConfig("%w", err)
		}
		if _, err := strict.Token(); !errors.Is(err, io.EOF) {
			return config{}, invalidConfig("there is something behind the JSON object")
		}
	}
	return cfg, cfg.check()
}

func (c config) check() error {
	switch {
	case c.Template == "":
		return invalidConfig("template is empty; name one, or leave it out for %q", defaultTemplate)
	case c.Timeout <= 0:
		return invalidConfig("timeout must be a number of seconds above 0, not %d", c.Timeout)
	case c.OnTimeout != onTimeoutPause && c.OnTimeout != onTimeoutKill:
		return invalidConfig("on_timeout must be %q or %q, not %q", onTimeoutPause, onTimeoutKill, c.OnTimeout)
	}
	for name := range c.Metadata {
		if name == metaManagedBy || strings.HasPrefix(name, metaPrefix) {
			return invalidConfig("metadata %q is the driver's own; choose another name", name)
		}
	}
	return nil
}

func invalidConfig(format string, args ...any) error {
	return fmt.Errorf("%w: %w", resources.ErrInvalidConfig, fmt.Errorf(format, args...))
}

// Metadata that the driver gives to each sandbox. Sandboxes are found by it, so the names and
// the form of the values never change.
const (
	metaPrefix    = "tine_"
	metaManagedBy = "managed_by"
	metaExecution = "tine_execution_id"
	metaRun       = "tine_run_id"
	metaKey       = "tine_key"
	metaSettings  = "tine_settings"

	managedBy = "tine"
)

// settings are the parts of a configuration that connecting to a sandbox takes. A binding
// does not hold them, so the sandbox's metadata does.
type settings struct {
	Timeout int `json:"timeout"`
	networkConfig
}

func (c config) settings() settings { return settings{Timeout: c.Timeout, networkConfig: c.Network} }

func ownerMetadata(owner resources.Owner) map[string]string {
	return map[string]string{
		metaManagedBy: managedBy,
		metaExecution: owner.ExecutionID,
		metaRun:       owner.RunID,
		metaKey:       owner.Key,
	}
}

func ownerOf(metadata map[string]string) resources.Owner {
	return resources.Owner{
		ExecutionID: metadata[metaExecution], RunID: metadata[metaRun], Key: metadata[metaKey],
	}
}

// metadata is what a new sandbox is labelled with.
func (c config) metadata(owner resources.Owner) (map[string]string, error) {
	all := ownerMetadata(owner)
	encoded, err := json.Marshal(c.settings())
	if err != nil {
		return nil, err
	}
	all[metaSettings] = string(encoded)
	for name, value := range c.Metadata {
		all[name] = value
	}
	return all, nil
}

// settingsOf reads a sandbox's settings. One that this driver did not make has none.
func settingsOf(metadata map[string]string) (settings, error) {
	set := settings{Timeout: defaultTimeout}
	encoded, ok := metadata[metaSettings]
	if !ok {
		return set, nil
	}
	if err := json.Unmarshal([]byte(encoded), &set); err != nil || set.Timeout <= 0 {
		return settings{}, fmt.Errorf("metadata %s of the sandbox is not what the driver wrote there", metaSettings)
	}
	return set, nil
}
