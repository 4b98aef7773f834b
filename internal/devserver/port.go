package devserver

import (
	"fmt"
	"net"
	"strconv"
	"time"
)

// The flags that change a port, for errors.
const (
	portFlag   = "--port"
	uiPortFlag = "--ui-port"
)

// PortError says that a port cannot be used.
type PortError struct {
	Port int
	Flag string // the flag of `tine dev` that chooses another
	Err  error
}

func (e *PortError) Error() string {
	return fmt.Sprintf("cannot use port %d: %v; stop what uses it, or choose another with %s", e.Port, e.Err, e.Flag)
}

func (e *PortError) Unwrap() error { return e.Err }

// choosePort gives port if it can be used, or a free one if it is zero.
func choosePort(port int, flag string) (int, error) {
	address := net.JoinHostPort(loopback, strconv.Itoa(port))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return 0, &PortError{Port: port, Flag: flag, Err: err}
	}
	chosen := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return 0, &PortError{Port: chosen, Flag: flag, Err: err}
	}
	if port == 0 {
		return chosen, nil
	}
	// Some systems let a port be shared with a server that listens on all addresses. Clients
	// that say localhost could then get to the other one.
	if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
		_ = conn.Close()
		return 0, &PortError{Port: port, Flag: flag, Err: fmt.Errorf("something answers at %s", address)}
	}
	return port, nil
}
