package e2btest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The users that every sandbox has. Their names only choose a home directory.
const (
	defaultUser = "user"
	rootUser    = "root"
	rootHome    = "/root"
)

// envdSandbox tells whether a request is for the envd of a sandbox, and of which one: by its headers, or by
// its host, as in URLs that are used without headers.
func envdSandbox(r *http.Request) (id string, ok bool) {
	if id := r.Header.Get("E2b-Sandbox-Id"); id != "" {
		return id, true
	}
	label, _, _ := strings.Cut(r.Host, ".")
	return strings.CutPrefix(label, envdPort+"-")
}

// goneBody is what the service's proxy says of a sandbox that cannot be reached.
type goneBody struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Code      int    `json:"code"`
}

func writeGone(w http.ResponseWriter, id string) {
	writeJSON(w, http.StatusBadGateway, goneBody{id, "The sandbox was not found", http.StatusBadGateway})
}

func (s *Server) serveEnvd(w http.ResponseWriter, r *http.Request, id string) {
	byHeader := r.Header.Get("E2b-Sandbox-Id") != ""
	if port := r.Header.Get("E2b-Sandbox-Port"); byHeader && port != envdPort {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			writeError(w, refuse(http.StatusBadRequest, "E2b-Sandbox-Port is missing or no port"))
			return
		}
		writeJSON(w, http.StatusBadGateway, goneBody{id, "The sandbox is running but port is not open", http.StatusBadGateway})
		return
	}
	sb, leave := s.enter(r, id)
	if sb == nil {
		writeGone(w, id)
		return
	}
	defer leave()
	switch {
	case r.URL.Path == "/health":
		if r.Method != http.MethodGet {
			writeError(w, refuse(http.StatusMethodNotAllowed, "there is no %s here", r.Method))
			return
		}
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == "/files":
		if err := s.serveFiles(w, r, sb); err != nil {
			writeError(w, err)
		}
	default:
		s.serveRPC(w, r, sb)
	}
}

// authorized checks the token in a request's header.
func (sb *sandbox) authorized(r *http.Request) bool {
	return !sb.secure || equal(r.Header.Get("X-Access-Token"), sb.token)
}

// signed checks the signature in a URL, which allows one operation on one path.
func (sb *sandbox) signed(query url.Values, operation string) bool {
	text := query.Get("path") + ":" + operation + ":" + query.Get("username") + ":" + sb.token
	if expiry := query.Get("signature_expiration"); expiry != "" {
		at, err := strconv.ParseInt(expiry, 10, 64)
		if err != nil || time.Now().Unix() > at {
			return false
		}
		text += ":" + expiry
	}
	sum := sha256.Sum256([]byte(text))
	return equal(query.Get("signature"), "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// home is the home directory of a user. There are no others than user and root.
func home(user string) (dir string, ok bool) {
	switch user {
	case "", defaultUser:
		return homeDir, true
	case rootUser:
		return rootHome, true
	}
	return "", false
}

// resolve makes an absolute path of the sandbox from one that a request has. A path of the host that
// lies inside the sandbox's directory is understood, too.
func (sb *sandbox) resolve(home, name string) string {
	switch {
	case name == "~" || strings.HasPrefix(name, "~/"):
		name = path.Join(home, name[1:])
	case !path.IsAbs(name):
		name = path.Join(home, name)
	}
	return sb.guestPath(path.Clean(name))
}

// guestPath takes a path of the host back to one of the sandbox; others stay as they are.
func (sb *sandbox) guestPath(name string) string {
	if rest, ok := strings.CutPrefix(name, sb.root); ok && (rest == "" || rest[0] == '/') {
		return path.Clean("/" + rest)
	}
	return name
}

// hostPath is where an absolute path of the sandbox is on disk.
func (sb *sandbox) hostPath(name string) string { return filepath.Join(sb.root, name) }

// mapText puts the directory that stands for /home/user in its place in a command's words. It leaves
// alone what only looks like it, such as the end of a longer path, and paths of the host that lead
// into the sandbox.
func (sb *sandbox) mapText(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); {
		if rest := text[i:]; strings.HasPrefix(rest, sb.root) {
			out.WriteString(sb.root)
			i += len(sb.root)
			if strings.HasPrefix(text[i:], homeDir) {
				out.WriteString(homeDir)
				i += len(homeDir)
			}
			continue
		}
		if strings.HasPrefix(text[i:], homeDir) && startsPath(text[:i]) && endsName(text[i+len(homeDir):]) {
			out.WriteString(sb.root + homeDir)
			i += len(homeDir)
			continue
		}
		out.WriteByte(text[i])
		i++
	}
	return out.String()
}

// startsPath tells whether an absolute path can start after a text.
func startsPath(before string) bool {
	if before == "" || strings.HasSuffix(before, "://") {
		return true
	}
	c := before[len(before)-1]
	return !isNameByte(c) && !strings.ContainsRune("/~})*?]+%$", rune(c))
}

// endsName tells whether a path's last name ends before a text.
func endsName(after string) bool { return after == "" || !isNameByte(after[0]) }

func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.' || c >= 0x80
}
