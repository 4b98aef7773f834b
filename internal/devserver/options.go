package devserver

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"

	"github.com/tinerun/tine/internal/attributes"
)

// The ports that `temporal server start-dev` uses, so tools find the server without settings.
const (
	DefaultPort   = 7233
	DefaultUIPort = 8233
)

const (
	loopback         = "127.0.0.1"
	defaultNamespace = "default"

	// readyTimeout is how long a server may take to be ready. It takes half a second.
	readyTimeout = time.Minute
	stopGrace    = 10 * time.Second
)

// Options say what server to start. The zero value is a server in memory, on free ports, with
// UI.
type Options struct {
	// Program is the temporal program. Empty means the one that [Program] finds or builds.
	Program string
	// Progress is told when and how the program is built. Nil means nobody is.
	Progress io.Writer

	// DBFilename is a file that keeps the server's state over restarts, made if it is not
	// there. Empty means that the state is in memory. One server at a time may use a file.
	DBFilename string
	// Port is where clients and workers connect. Zero means a free one.
	Port int
	// UIPort is the port of the UI. Zero means a free one.
	UIPort int
	// Headless leaves the UI out.
	Headless bool

	// Namespace is made and made ready, besides the namespace default, which a server always
	// has. Empty means default.
	Namespace string
	// SearchAttributes are registered in Namespace. Nil means those that executions use.
	SearchAttributes map[string]enumspb.IndexedValueType
	// DynamicConfig are settings of the server, over those that make it fast.
	DynamicConfig map[string]any

	// LogWriter gets what the server prints, until it is told to stop: warnings, unless
	// something is wrong. Nil means nobody does. Errors show the end of it in any case.
	LogWriter io.Writer
	// ReadyTimeout bounds the time from the server's start until it is ready. Zero means a
	// minute. Building the program does not count.
	ReadyTimeout time.Duration
	// StopGrace is how long Stop lets the server stop by itself, which takes about a second.
	// Zero means ten seconds.
	StopGrace time.Duration
}

// withDefaults fills in what is empty and refuses what cannot work.
func (o Options) withDefaults() (Options, error) {
	if o.Namespace == "" {
		o.Namespace = defaultNamespace
	}
	if o.SearchAttributes == nil {
		o.SearchAttributes = attributes.Types()
	}
	if o.LogWriter == nil {
		o.LogWriter = io.Discard
	}
	if o.ReadyTimeout <= 0 {
		o.ReadyTimeout = readyTimeout
	}
	if o.StopGrace <= 0 {
		o.StopGrace = stopGrace
	}
	for flag, port := range map[string]int{portFlag: o.Port, uiPortFlag: o.UIPort} {
		if port < 0 || port > 65535 {
			return o, fmt.Errorf("port %d does not exist; choose one from 1 to 65535 with %s, or 0 for a free one", port, flag)
		}
	}
	if o.DBFilename == "" {
		return o, nil
	}
	// The server puts the name into a URI as it is.
	if strings.ContainsAny(o.DBFilename, "?#%") {
		return o, fmt.Errorf("database file %s: the name may not have ?, # or %% in it", o.DBFilename)
	}
	if _, err := os.Stat(filepath.Dir(o.DBFilename)); err != nil {
		return o, fmt.Errorf("database file %s: %w; make its directory first", o.DBFilename, err)
	}
	return o, nil
}

// args are the arguments of the temporal program.
func (o Options) args(port, uiPort int) ([]string, error) {
	args := []string{
		"server", "start-dev",
		// Nothing of the user's own set-up of the CLI may change what is started here.
		"--env-file", os.DevNull,
		"--color", "never",
		"--ip", loopback, "--port", strconv.Itoa(port),
		"--namespace", o.Namespace,
	}
	if o.Headless {
		args = append(args, "--headless")
	} else {
		args = append(args, "--ui-ip", loopback, "--ui-port", strconv.Itoa(uiPort))
	}
	if o.DBFilename != "" {
		args = append(args, "--db-filename", o.DBFilename)
		for _, pragma := range filePragmas {
			args = append(args, "--sqlite-pragma", pragma)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.SearchAttributes)) {
		args = append(args, "--search-attribute", name+"="+o.SearchAttributes[name].String())
	}
	settings, err := dynamicConfig(o.DynamicConfig)
	if err != nil {
		return nil, err
	}
	return append(args, settings...), nil
}

// serverEnv is the environment for the temporal program: what configures a client (an address,
// a profile) has no say in a server, and some of it would make the program fail.
func serverEnv(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		return strings.HasPrefix(entry, "TEMPORAL_")
	})
}
