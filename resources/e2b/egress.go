package e2b

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Headers returns the headers that E2B's egress proxy sets on requests to one host. It is
// called each time that the driver connects to a sandbox, so a value may change. Each header has
// one value. Its error is quoted in the driver's, so it must not contain the credential.
type Headers func(ctx context.Context) (http.Header, error)

// BearerFromEnv returns "Authorization: Bearer " with the value of an environment variable.
func BearerFromEnv(variable string) Headers {
	return func(context.Context) (http.Header, error) {
		value, err := fromEnv(variable)
		if err != nil {
			return nil, err
		}
		return http.Header{"Authorization": {"Bearer " + value}}, nil
	}
}

// BasicFromEnv returns an Authorization header for user, with the value of an environment
// variable as the password. For git over HTTPS at GitHub the user is "x-access-token".
func BasicFromEnv(user, variable string) Headers {
	return func(context.Context) (http.Header, error) {
		value, err := fromEnv(variable)
		if err != nil {
			return nil, err
		}
		encoded := base64.StdEncoding.EncodeToString([]byte(user + ":" + value))
		return http.Header{"Authorization": {"Basic " + encoded}}, nil
	}
}

func fromEnv(variable string) (string, error) {
	value := os.Getenv(variable)
	if value == "" {
		return "", fmt.Errorf("%s is not set", variable)
	}
	return value, nil
}

// network is a sandbox's egress configuration. Setting it replaces all of it.
type network struct {
	AllowOut []string          `json:"allowOut,omitempty"`
	DenyOut  []string          `json:"denyOut,omitempty"`
	Rules    map[string][]rule `json:"rules,omitempty"`
}

type rule struct {
	Transform transform `json:"transform"`
}

type transform struct {
	Headers map[string]string `json:"headers"`
}

// checkEgress returns the rules' sources by host as the API spells it.
func checkEgress(egress map[string]Headers) (map[string]Headers, error) {
	byHost := map[string]Headers{}
	for host, headers := range egress {
		name := strings.ToLower(host)
		switch {
		case host == "" || strings.ContainsAny(host, "/: \t"):
			return nil, fmt.Errorf("Options.Egress: %q is no host; give a DNS name without scheme, port and path", host)
		case headers == nil:
			return nil, fmt.Errorf("Options.Egress: nothing gives the headers for %s", host)
		case byHost[name] != nil:
			return nil, fmt.Errorf("Options.Egress: %s is named twice", name)
		}
		byHost[name] = headers
	}
	return byHost, nil
}

// network builds what to set on a sandbox, with the credentials of now.
func (d *Driver) network(ctx context.Context, set settings) (network, error) {
	n := network{AllowOut: set.AllowOut, DenyOut: set.DenyOut, Rules: map[string][]rule{}}
	for _, host := range slices.Sorted(maps.Keys(d.egress)) {
		headers, err := d.egressHeaders(ctx, host)
		if err != nil {
			// What gives them may be a service that comes back.
			return network{}, &Error{Op: "egress credentials for " + host, Message: d.clean(err.Error()), cause: ctx.Err()}
		}
		n.Rules[host] = []rule{{Transform: transform{Headers: headers}}}
	}
	return n, nil
}

func (d *Driver) egressHeaders(ctx context.Context, host string) (map[string]string, error) {
	header, err := d.egress[host](ctx)
	if err != nil {
		return nil, err
	}
	headers := map[string]string{}
	for name, values := range header {
		for _, value := range values {
			d.secrets.add(value)
		}
		if len(values) != 1 {
			return nil, fmt.Errorf("header %s has %d values; it must have one", name, len(values))
		}
		headers[name] = values[0]
	}
	if len(headers) == 0 {
		return nil, errors.New("there are no headers")
	}
	return headers, nil
}
