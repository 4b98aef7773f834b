package e2btest

import (
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
)

// The limits of the service for rules that transform requests.
const (
	maxRuleHosts   = 10
	maxRuleHeaders = 20
	maxHost        = 128
	maxHeaderName  = 64
	maxHeaderValue = 2048
)

// allTraffic is the range that has to be denied for allowed domains to mean anything.
const allTraffic = "0.0.0.0/0"

// networkConfig is what a sandbox may reach, and what is added to its requests.
type networkConfig struct {
	AllowOut    []string                 `json:"allowOut,omitempty"`
	DenyOut     []string                 `json:"denyOut,omitempty"`
	Rules       map[string][]networkRule `json:"rules,omitempty"`
	EgressProxy *egressProxy             `json:"egressProxy,omitempty"`
}

type networkRule struct {
	Transform *struct {
		Headers map[string]string `json:"headers,omitempty"`
	} `json:"transform,omitempty"`
}

type egressProxy struct {
	Address  string `json:"address"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// createNetwork is the configuration in a request to create a sandbox.
type createNetwork struct {
	networkConfig
	AllowPublicTraffic *bool   `json:"allowPublicTraffic"`
	MaskRequestHost    *string `json:"maskRequestHost"`
	HTTPSPorts         []int   `json:"httpsPorts"`
}

// updateNetwork is the body of a request to replace the configuration.
type updateNetwork struct {
	networkConfig
	AllowInternetAccess *bool `json:"allow_internet_access"`
}

var (
	// domainForm is a DNS name of at least two labels. Its last label is not a number, so that
	// it is no address.
	domainForm      = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	headerNameForm  = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	headerValueForm = regexp.MustCompile(`^[^\x00-\x08\x0a-\x1f\x7f]*$`)
	// identityToken is the start of a placeholder, which takes an iam configuration.
	identityToken = "${e2b."
)

// isDomain tells whether a host is a DNS name, or one after a leading "*.".
func isDomain(host string) bool {
	return len(host) <= maxHost && domainForm.MatchString(strings.TrimPrefix(host, "*."))
}

func isAddress(entry string) bool {
	_, prefixErr := netip.ParsePrefix(entry)
	_, addrErr := netip.ParseAddr(entry)
	return prefixErr == nil || addrErr == nil
}

// check refuses what the service refuses, and brings hosts into lower case.
func (n *networkConfig) check() error {
	bad := func(format string, args ...any) error { return refuse(http.StatusBadRequest, format, args...) }
	denied := false
	for _, entry := range n.DenyOut {
		if !isAddress(entry) {
			return bad("invalid denied CIDR or IP address %q", entry)
		}
		denied = denied || entry == allTraffic
	}
	for _, entry := range n.AllowOut {
		switch {
		case isAddress(entry):
		case !isDomain(entry):
			return bad("invalid allowed destination %q", entry)
		case !denied:
			return bad("when allowing domains such as %q, you must include 'ALL_TRAFFIC' in deny out", entry)
		}
	}
	if n.EgressProxy != nil {
		if _, _, err := net.SplitHostPort(n.EgressProxy.Address); err != nil {
			return bad("invalid egress proxy address")
		}
	}
	if len(n.Rules) > maxRuleHosts {
		return bad("there are rules for more than %d hosts", maxRuleHosts)
	}
	lower := map[string][]networkRule{}
	for host, rules := range n.Rules {
		if !isDomain(host) {
			return bad("invalid host %q in rules", host)
		}
		if _, twice := lower[strings.ToLower(host)]; twice || len(rules) > 1 {
			return bad("more than one rule for host %q", host)
		}
		lower[strings.ToLower(host)] = rules
		for _, rule := range rules {
			if err := rule.check(host); err != nil {
				return err
			}
		}
	}
	if n.Rules != nil {
		n.Rules = lower
	}
	return nil
}

// check tells no values, since they are secrets.
func (r networkRule) check(host string) error {
	if r.Transform == nil {
		return nil
	}
	bad := func(format string, args ...any) error { return refuse(http.StatusBadRequest, format, args...) }
	if len(r.Transform.Headers) > maxRuleHeaders {
		return bad("the rule for host %q has more than %d headers", host, maxRuleHeaders)
	}
	for name, value := range r.Transform.Headers {
		switch {
		case len(name) > maxHeaderName || !headerNameForm.MatchString(name):
			return bad("invalid header name in the rule for host %q", host)
		case len(value) > maxHeaderValue || !headerValueForm.MatchString(value):
			return bad("invalid value of header %s in the rule for host %q", name, host)
		case strings.Contains(value, identityToken):
			return bad("header %s in the rule for host %q has a placeholder, and the emulator has no iam", name, host)
		}
	}
	return nil
}

// headers are what the rules add to a request to a host: those of the host's own rule, else of the
// longest wildcard that covers it.
func (n *networkConfig) headers(host string) map[string]string {
	host = strings.ToLower(host)
	rules, ok := n.Rules[host]
	for rest := host; !ok; {
		_, after, more := strings.Cut(rest, ".")
		if !more {
			return nil
		}
		rest = after
		rules, ok = n.Rules["*."+rest]
	}
	for _, rule := range rules {
		if rule.Transform != nil {
			return rule.Transform.Headers
		}
	}
	return nil
}

// allows tells whether a request to a host may leave: it is allowed by name, or not everything is denied.
func (n *networkConfig) allows(host string) bool {
	if n.allowsByName(host) {
		return true
	}
	for _, entry := range n.DenyOut {
		if entry == allTraffic || entry == host {
			return false
		}
	}
	return true
}

func (n *networkConfig) allowsByName(host string) bool {
	host = strings.ToLower(host)
	for _, entry := range n.AllowOut {
		entry = strings.ToLower(entry)
		suffix, wildcard := strings.CutPrefix(entry, "*")
		if entry == host || entry == allTraffic || wildcard && strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}
