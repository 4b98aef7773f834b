package devserver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/tinerun/tine/internal/connect"
)

// Connection is a connection to a server, with the settings that it was made by.
type Connection struct {
	Client   client.Client
	Settings client.Options
	// Server is what was started for it. Nil if there was a server.
	Server *Server
}

// Dial connects to the Temporal that the environment names. Where it names none, and none is at the
// usual address, it starts one, which tells progress what it does.
func Dial(ctx context.Context, logger *slog.Logger, progress io.Writer) (*Connection, error) {
	settings, err := connect.Options(connect.Flags{})
	if err != nil {
		return nil, err
	}
	sdkLogger := log.NewStructuredLogger(logger)
	c, err := connect.Dial(ctx, settings, sdkLogger)
	var unreachable *connect.ServerError
	if err == nil {
		return &Connection{Client: c, Settings: settings}, nil
	}
	if !errors.As(err, &unreachable) || os.Getenv("TEMPORAL_ADDRESS") != "" {
		return nil, err
	}
	server, err := Start(ctx, Options{Progress: progress})
	if err != nil {
		return nil, err
	}
	settings.HostPort = server.Address()
	if c, err = connect.Dial(ctx, settings, sdkLogger); err != nil {
		server.Stop()
		return nil, err
	}
	return &Connection{Client: c, Settings: settings, Server: server}, nil
}

// Close closes the connection, and stops the server that was started for it.
func (c *Connection) Close() {
	c.Client.Close()
	if c.Server != nil {
		c.Server.Stop()
	}
}
