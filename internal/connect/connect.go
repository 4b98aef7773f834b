// Package connect opens connections to Temporal, configured as Temporal's own tools are: by the
// TEMPORAL_* environment variables, a profile file, and flags over both.
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.temporal.io/sdk/log"

	"github.com/tinerun/tine/worker/storage"
)

// dialTimeout is how long a server may take to answer. A local one answers at once.
const dialTimeout = 10 * time.Second

// Flags override what environment and profile file say. Empty ones do not.
type Flags struct {
	Address   string
	Namespace string
	Profile   string
	// Storage is where payloads go that are too large for a history.
	Storage string
}

// ServerError says that the server cannot be reached.
type ServerError struct {
	Address string
	Err     error
}

func (e *ServerError) Error() string {
	return fmt.Sprintf("cannot reach Temporal at %s: %v", e.Address, e.Err)
}

func (e *ServerError) Unwrap() error { return e.Err }

// Options gives the client options that flags, environment and profile file make.
func Options(flags Flags) (client.Options, error) {
	opts, err := envconfig.LoadClientOptions(envconfig.LoadClientOptionsRequest{ConfigFileProfile: flags.Profile})
	if err != nil {
		return client.Options{}, fmt.Errorf("connection settings: %w", err)
	}
	if flags.Address != "" {
		opts.HostPort = flags.Address
	}
	if flags.Namespace != "" {
		opts.Namespace = flags.Namespace
	}
	if opts.HostPort == "" {
		opts.HostPort = client.DefaultHostPort
	}
	if opts.Namespace == "" {
		opts.Namespace = client.DefaultNamespace
	}
	if location := cmp.Or(flags.Storage, os.Getenv(storage.Env)); location != "" {
		if opts.ExternalStorage, err = storage.Open(location); err != nil {
			return client.Options{}, err
		}
	}
	return opts, nil
}

// Dial connects, and fails with a *ServerError if nothing answers in time.
func Dial(ctx context.Context, opts client.Options, logger log.Logger) (client.Client, error) {
	opts.Logger = logger
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.DialContext(dialing, opts)
	if err != nil {
		if ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
		return nil, &ServerError{Address: opts.HostPort, Err: err}
	}
	return c, nil
}
