package e2b

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RPCs that answer with a stream use the Connect protocol with JSON: each message is in an
// envelope of a byte with flags, its length in 4 bytes, and the JSON.
const (
	streamType     = "application/connect+json"
	envelopeHeader = 5
	flagCompressed = 0x01
	flagEnd        = 0x02

	// maxEnvelope is far above the 32 KiB of output that the daemon puts into one.
	maxEnvelope = 16 << 20

	// pingInterval is how often the daemon shows that it is there, in seconds.
	pingInterval = 50
)

// stream is the answer of an RPC: envelopes, and an error or io.EOF at the end.
type stream struct {
	conn *connection
	op   string
	body io.ReadCloser
	r    *bufio.Reader
}

// open calls a method that answers with a stream. The stream ends with ctx. The daemon ends
// what it has started after limit, if that is above 0.
func (c *connection) open(ctx context.Context, op, method string, in any, limit time.Duration) (*stream, error) {
	message, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+method, bytes.NewReader(envelope(0, message)))
	if err != nil {
		return nil, c.driver.failure(ctx, op, err)
	}
	req.Header.Set("Content-Type", streamType)
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("Keepalive-Ping-Interval", strconv.Itoa(pingInterval))
	if limit > 0 {
		req.Header.Set("Connect-Timeout-Ms", strconv.FormatInt(max(limit.Milliseconds(), 1), 10))
	}
	res, err := c.send(op, req)
	if err != nil {
		return nil, err
	}
	if kind := res.Header.Get("Content-Type"); !strings.HasPrefix(kind, streamType) {
		res.Body.Close()
		return nil, c.driver.malformed(op, res.StatusCode, fmt.Errorf("its type is %q", kind))
	}
	return &stream{conn: c, op: op, body: res.Body, r: bufio.NewReader(res.Body)}, nil
}

func envelope(flags byte, message []byte) []byte {
	header := make([]byte, envelopeHeader, envelopeHeader+len(message))
	header[0] = flags
	binary.BigEndian.PutUint32(header[1:], uint32(len(message)))
	return append(header, message...)
}

// next decodes the next message into out. At the end of the stream it returns io.EOF.
func (s *stream) next(ctx context.Context, out any) error {
	flags, message, err := s.envelope()
	d := s.conn.driver
	if err != nil {
		return d.failure(ctx, s.op, err)
	}
	switch {
	case flags&flagCompressed != 0:
		err = errors.New("it is compressed")
	case flags&flagEnd == 0:
		err = json.Unmarshal(message, out)
	default:
		var end struct {
			Error *rpcError `json:"error"`
		}
		if err = json.Unmarshal(message, &end); err == nil {
			if end.Error != nil {
				return d.rpcFailure(s.op, end.Error)
			}
			return io.EOF
		}
	}
	if err != nil {
		return d.malformed(s.op, http.StatusOK, err)
	}
	return nil
}

func (s *stream) envelope() (flags byte, message []byte, err error) {
	var header [envelopeHeader]byte
	if _, err := io.ReadFull(s.r, header[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size > maxEnvelope {
		return 0, nil, fmt.Errorf("a message of %d bytes is too large", size)
	}
	message = make([]byte, size)
	_, err = io.ReadFull(s.r, message)
	return header[0], message, err
}
