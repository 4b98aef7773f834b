package directory

import (
	"fmt"
	"os"
	"path/filepath"
)

// DefaultRoot is a root for a single user's host: tine/directory in $XDG_DATA_HOME, which is
// .local/share in the home directory unless it is set.
func DefaultRoot() (string, error) {
	data := os.Getenv("XDG_DATA_HOME")
	if data == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("directory for workspaces: %w; set XDG_DATA_HOME", err)
		}
		data = filepath.Join(home, ".local", "share")
	}
	return filepath.Join(data, "tine", "directory"), nil
}
