package e2btest

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
)

// egressHosts parses Options.Egress.
func egressHosts(targets map[string]string) (map[string]*url.URL, error) {
	hosts := map[string]*url.URL{}
	for host, target := range targets {
		u, err := url.Parse(target)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("e2btest: egress to %s: %q is no base URL", host, target)
		}
		hosts[strings.ToLower(host)] = u
	}
	return hosts, nil
}

// proxyEnvironment leads a process's HTTP requests to the egress proxy. The credentials tell it the
// sandbox.
func (s *Server) proxyEnvironment(sb *sandbox) map[string]string {
	if len(s.egressHosts) == 0 {
		return nil
	}
	proxy := url.URL{Scheme: "http", User: url.UserPassword(sb.id, sb.token), Host: s.address}
	const local = "localhost,127.0.0.1"
	return map[string]string{"http_proxy": proxy.String(), "no_proxy": local, "NO_PROXY": local}
}

// proxy forwards a request of a sandbox to what stands for its host, with the headers of the sandbox's network
// rules.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request) {
	id, token := proxyCredentials(r)
	s.mu.Lock()
	sb := s.sandboxes[id]
	known := sb != nil && sb.state == running && equal(token, sb.token)
	var network networkConfig
	denied := false
	if known {
		network = sb.network
		denied = sb.internet != nil && !*sb.internet
	}
	s.mu.Unlock()

	host := strings.ToLower(r.URL.Host)
	name := host
	if split, port, err := net.SplitHostPort(host); err == nil {
		name = split
		if port == "80" {
			host = split
		}
	}
	target := s.egressHosts[host]
	switch {
	case !known:
		w.Header().Set("Proxy-Authenticate", `Basic realm="e2btest"`)
		http.Error(w, "the egress proxy is for running sandboxes", http.StatusProxyAuthRequired)
		return
	case r.Method == http.MethodConnect || r.URL.Scheme != "http":
		http.Error(w, "the egress proxy is for plain HTTP", http.StatusMethodNotAllowed)
		return
	case !network.allows(name) || denied && !network.allowsByName(name):
		http.Error(w, "the sandbox's network configuration does not allow "+name, http.StatusForbidden)
		return
	case target == nil:
		http.Error(w, "nothing stands for "+host, http.StatusBadGateway)
		return
	}
	forward := httputil.ReverseProxy{
		Transport:     s.copies,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
		Rewrite: func(out *httputil.ProxyRequest) {
			out.SetURL(target)
			out.Out.Host = r.URL.Host
			out.Out.Header.Del("Proxy-Authorization")
			for header, value := range network.headers(name) {
				out.Out.Header.Set(header, value)
			}
		},
	}
	forward.ServeHTTP(w, r)
}

// proxyCredentials are the id and token that http_proxy has.
func proxyCredentials(r *http.Request) (id, token string) {
	as := http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	id, token, _ = as.BasicAuth()
	return id, token
}
