package directory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/tinerun/tine/resources"
)

// config is what an agent may say about a workspace.
type config struct {
	template      string
	coverageReuse bool
}

// parseConfig reads a configuration; none at all, or null, is the empty one.
func parseConfig(raw json.RawMessage) (config, error) {
	var cfg config
	if len(raw) == 0 {
		return cfg, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return cfg, invalidConfig("it must be a JSON object with the fields template and coverage_reuse, or be left out: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if err := cfg.set(name, fields[name]); err != nil {
			return config{}, err
		}
	}
	return cfg, nil
}

func (c *config) set(name string, value json.RawMessage) error {
	switch name {
	case "template":
		if !decodeField(value, &c.template) {
			return invalidConfig("template must be a string, not %s; give the absolute path of a directory", value)
		}
		if !filepath.IsAbs(c.template) {
			return invalidConfig("template %q is not an absolute path; workers may run in any directory, so give the whole path", c.template)
		}
	case "coverage_reuse":
		if !decodeField(value, &c.coverageReuse) {
			return invalidConfig("coverage_reuse must be true or false, not %s", value)
		}
	default:
		return invalidConfig("unknown field %q; remove it, or use template or coverage_reuse", name)
	}
	return nil
}

func decodeField(value json.RawMessage, to any) bool {
	return !bytes.Equal(value, []byte("null")) && json.Unmarshal(value, to) == nil
}

// resolveTemplate returns the directory that a template's path leads to.
func resolveTemplate(template, root string) (string, error) {
	path, err := filepath.EvalSymlinks(template)
	if errors.Is(err, fs.ErrNotExist) {
		return "", invalidConfig("template %q does not exist on this host; create it, or correct the path", template)
	}
	if err != nil {
		return "", invalidConfig("template %q cannot be used: %w", template, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", invalidConfig("template %q is not a directory; name the directory whose content to copy", template)
	}
	// A template around the root would hold the workspace that is made from it.
	root, err = filepath.EvalSymlinks(root)
	if err != nil {
		return "", err
	}
	if inside, err := filepath.Rel(path, root); err == nil && filepath.IsLocal(inside) {
		return "", invalidConfig("template %q contains the driver's root; choose a directory beside it", template)
	}
	return path, nil
}

func invalidConfig(format string, args ...any) error {
	return fmt.Errorf("%w: %w", resources.ErrInvalidConfig, fmt.Errorf(format, args...))
}
