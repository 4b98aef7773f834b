package e2btest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources/e2b/e2btest"
)

func TestEnvdStrictness(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	sb.write("f", "x")
	call := map[string]string{"Content-Type": "application/json", "Connect-Protocol-Version": "1"}
	with := func(changes ...string) map[string]string {
		all := map[string]string{}
		for k, v := range call {
			all[k] = v
		}
		for i := 0; i < len(changes); i += 2 {
			all[changes[i]] = changes[i+1]
		}
		return all
	}
	octets := map[string]string{"Content-Type": "application/octet-stream"}
	const stat = "/filesystem.Filesystem/Stat"
	for name, r := range map[string]struct {
		status       int
		method, path string
		header       map[string]string
		body         string
	}{
		"health without a token":     {204, "GET", "/health", map[string]string{"X-Access-Token": ""}, ""},
		"no port":                    {400, "GET", "/health", map[string]string{"E2b-Sandbox-Port": ""}, ""},
		"port that is not open":      {502, "GET", "/", map[string]string{"E2b-Sandbox-Port": "3000"}, ""},
		"unknown sandbox":            {502, "GET", "/health", map[string]string{"E2b-Sandbox-Id": "inope"}, ""},
		"unknown path":               {404, "GET", "/nope", nil, ""},
		"file without a token":       {401, "GET", "/files?path=f", map[string]string{"X-Access-Token": ""}, ""},
		"file with a wrong token":    {401, "GET", "/files?path=f", map[string]string{"X-Access-Token": "x"}, ""},
		"file of nobody":             {401, "GET", "/files?path=f&username=nobody", nil, ""},
		"parameter":                  {400, "GET", "/files?path=f&x=y", nil, ""},
		"missing file":               {404, "GET", "/files?path=nope", nil, ""},
		"below a file":               {404, "GET", "/files?path=f/g", nil, ""},
		"directory":                  {400, "GET", "/files?path=/home/user", nil, ""},
		"no path":                    {400, "GET", "/files", nil, ""},
		"deleting":                   {405, "DELETE", "/files?path=f", nil, ""},
		"no encoding":                {406, "GET", "/files?path=f", map[string]string{"Accept-Encoding": "identity;q=0, br"}, ""},
		"upload without a type":      {400, "POST", "/files?path=f", nil, "x"},
		"upload of JSON":             {400, "POST", "/files?path=f", map[string]string{"Content-Type": "application/json"}, "x"},
		"upload to nowhere":          {400, "POST", "/files", octets, "x"},
		"upload to a directory":      {400, "POST", "/files?path=/home", octets, "x"},
		"upload that is not gzip":    {400, "POST", "/files?path=f", map[string]string{"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}, "x"},
		"upload in another encoding": {400, "POST", "/files?path=f", map[string]string{"Content-Type": "application/octet-stream", "Content-Encoding": "br"}, "x"},
		"form without parts":         {400, "POST", "/files?path=f", map[string]string{"Content-Type": "multipart/form-data; boundary=b"}, "--b--\r\n"},
		"call":                       {200, "POST", stat, call, `{"path":"f"}`},
		"call with a charset":        {200, "POST", stat, with("Content-Type", "application/json; charset=utf-8"), `{"path":"f"}`},
		"call as root":               {404, "POST", stat, with("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("root:"))), `{"path":"f"}`},
		"call as nobody":             {401, "POST", stat, with("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("nobody:"))), `{"path":"f"}`},
		"call of a bearer":           {401, "POST", stat, with("Authorization", "Bearer x"), `{"path":"f"}`},
		"call with a wrong token":    {401, "POST", stat, with("X-Access-Token", "x"), `{"path":"f"}`},
		"call by GET":                {405, "GET", stat, call, ""},
		"call as a stream":           {415, "POST", stat, with("Content-Type", "application/connect+json"), `{"path":"f"}`},
		"call in protobuf":           {415, "POST", stat, with("Content-Type", "application/proto"), ``},
		"call without a version":     {400, "POST", stat, with("Connect-Protocol-Version", ""), `{"path":"f"}`},
		"call with a bad timeout":    {400, "POST", stat, with("Connect-Timeout-Ms", "1s"), `{"path":"f"}`},
		"compressed call":            {501, "POST", stat, with("Content-Encoding", "gzip"), `{"path":"f"}`},
		"call with unknown field":    {400, "POST", stat, call, `{"Path":"f"}`},
		"call without a body":        {400, "POST", stat, call, ``},
		"call for what is missing":   {404, "POST", stat, call, `{"path":"nope"}`},
		"list of a file":             {400, "POST", "/filesystem.Filesystem/ListDir", call, `{"path":"f"}`},
		"directory over a file":      {400, "POST", "/filesystem.Filesystem/MakeDir", call, `{"path":"f"}`},
		"directory that is there":    {409, "POST", "/filesystem.Filesystem/MakeDir", call, `{"path":"/home"}`},
		"move of what is missing":    {404, "POST", "/filesystem.Filesystem/Move", call, `{"source":"nope","destination":"x"}`},
		"watching":                   {501, "POST", "/filesystem.Filesystem/WatchDir", with("Content-Type", "application/connect+json"), ``},
		"unknown call":               {404, "POST", "/filesystem.Filesystem/Nope", call, `{}`},
		"signal to nobody":           {404, "POST", "/process.Process/SendSignal", call, `{"process":{"pid":1},"signal":"SIGNAL_SIGKILL"}`},
		"signal without a process":   {400, "POST", "/process.Process/SendSignal", call, `{"signal":"SIGNAL_SIGKILL"}`},
		"stream as a call":           {415, "POST", "/process.Process/Start", call, `{"process":{"cmd":"true"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			sb := &sandbox{&client{t, c.server, c.http}, sb.id, sb.token}
			a := sb.envd(r.method, r.path, r.header, []byte(r.body))
			require.Equal(t, r.status, a.status, "%s", a.body)
			if r.status >= 400 {
				require.NotEmpty(t, a.object(t)["code"])
				require.NotEmpty(t, a.object(t)["message"])
				require.NotContains(t, string(a.body), sb.info().Dir)
			}
		})
	}
	require.Equal(t, object{"sandboxId": "inope", "message": "The sandbox was not found", "code": 502.0},
		sb.envd("GET", "/health", map[string]string{"E2b-Sandbox-Id": "inope"}, nil).object(t))
	require.Equal(t, object{"code": "not_found", "message": "file not found: /home/user/nope"},
		sb.call("filesystem.Filesystem/Stat", `{"path":"nope"}`).object(t))
}

// TestStreamErrors checks errors of streams, which are told in the stream.
func TestStreamErrors(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	header := map[string]string{"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
	const good = `{"process":{"cmd":"true"}}`
	for name, r := range map[string]struct {
		code string
		body []byte
	}{
		"no envelope":         {"invalid_argument", []byte(good)},
		"two envelopes":       {"invalid_argument", append(envelope(0, good), envelope(0, good)...)},
		"envelope with flags": {"invalid_argument", envelope(1, good)},
		"end envelope":        {"invalid_argument", append(envelope(0, good), envelope(2, "{}")...)},
		"cut envelope":        {"invalid_argument", envelope(0, good)[:10]},
		"unknown field":       {"invalid_argument", envelope(0, `{"process":{"command":"true"}}`)},
		"no command":          {"invalid_argument", envelope(0, `{"process":{}}`)},
		"missing cwd":         {"invalid_argument", envelope(0, `{"process":{"cmd":"true","cwd":"/nope"}}`)},
		"terminal":            {"unimplemented", envelope(0, `{"process":{"cmd":"true"},"pty":{"size":{"cols":80,"rows":24}}}`)},
	} {
		a := sb.envd("POST", "/process.Process/Start", header, r.body)
		require.Equal(t, 200, a.status, name)
		require.Equal(t, "application/connect+json", a.header.Get("Content-Type"))
		end := (&stream{t: t, body: io.NopCloser(bytes.NewReader(a.body))})
		event, last, err := end.next()
		require.NoError(t, err, name)
		require.Nil(t, event, name)
		require.Equal(t, r.code, last["error"].(object)["code"], "%s: %v", name, last)
	}
	a := sb.envd("POST", "/process.Process/Start", header, envelope(0, `{"process":{"cmd":"true","cwd":"nope"}}`))
	require.Contains(t, string(a.body), "cwd '/home/user/nope' does not exist")
	a = sb.envd("POST", "/process.Process/Connect", header, envelope(0, `{"process":{"pid":1}}`))
	require.Contains(t, string(a.body), "not_found")
	require.Equal(t, 401, sb.envd("POST", "/process.Process/Start",
		map[string]string{"Content-Type": "application/connect+json", "X-Access-Token": "x"}, nil).status)
}

func TestFiles(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	octets := map[string]string{"Content-Type": "application/octet-stream"}
	a := sb.envd("POST", "/files?path="+url.QueryEscape("d/ü n.txt"), octets, []byte("content"))
	require.Equal(t, `[{"path":"/home/user/d/ü n.txt","name":"ü n.txt","type":"file"}]`, string(a.body))
	require.NotContains(t, a.header.Get("Content-Type"), "json")
	require.Equal(t, "content", sb.read("~/d/%C3%BC%20n.txt"))
	require.Equal(t, "content", sb.read(url.QueryEscape(sb.home("d/ü n.txt"))), "a path of the host")
	on, err := os.ReadFile(sb.home("d/ü n.txt"))
	require.NoError(t, err)
	require.Equal(t, "content", string(on))

	a = sb.envd("GET", "/files?path=d/%C3%BC+n.txt", nil, nil)
	require.Equal(t, "Accept-Encoding", a.header.Get("Vary"))
	require.True(t, strings.HasPrefix(a.header.Get("Content-Disposition"), "inline"))
	require.True(t, strings.HasPrefix(a.header.Get("Content-Type"), "text/plain"))
	a = sb.envd("GET", "/files?path=d/%C3%BC+n.txt", map[string]string{"Range": "bytes=1-3"}, nil)
	require.Equal(t, 206, a.status)
	require.Equal(t, "ont", string(a.body))
	// Set by hand, the encoding is not undone by Go.
	a = sb.envd("GET", "/files?path=d/%C3%BC+n.txt", map[string]string{"Accept-Encoding": "br, gzip;q=0.5"}, nil)
	require.Equal(t, "gzip", a.header.Get("Content-Encoding"))
	unpacked, err := gzip.NewReader(bytes.NewReader(a.body))
	require.NoError(t, err)
	text, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	require.Equal(t, "content", string(text))
	sb.write("empty", "")
	require.Equal(t, "0", sb.envd("GET", "/files?path=empty", map[string]string{"Accept-Encoding": "gzip"}, nil).header.Get("Content-Length"))

	// Nothing leads out of the sandbox.
	for _, name := range []string{"../../../../etc/out", "/../etc/out", "/etc/out"} {
		sb.write(name, name)
		on, err := os.ReadFile(sb.info().Dir + "/etc/out")
		require.NoError(t, err)
		require.Equal(t, name, string(on))
	}
	require.Equal(t, `[{"path":"/root/r","name":"r","type":"file"}]`,
		string(sb.envd("POST", "/files?path=r&username=root", octets, nil).body))
	require.Equal(t, 400, sb.envd("POST", "/files?path=/home/user", octets, nil).status)
}

func TestMultipart(t *testing.T) {
	t.Parallel()
	sb := setup(t, e2btest.Options{}).base()
	type part struct{ disposition, content string }
	upload := func(path string, parts ...part) answer {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		for _, p := range parts {
			w, err := form.CreatePart(textproto.MIMEHeader{"Content-Disposition": {p.disposition}})
			require.NoError(t, err)
			_, _ = io.WriteString(w, p.content)
		}
		require.NoError(t, form.Close())
		return sb.envd("POST", "/files"+path, map[string]string{"Content-Type": form.FormDataContentType()}, body.Bytes())
	}
	file := func(name string) part { return part{`form-data; name="file"; filename="` + name + `"`, name} }
	a := upload("", file("d/ü x"), file("/home/user/e/y"))
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "d/ü x", sb.read("d/%C3%BC+x"))
	require.Equal(t, "/home/user/e/y", sb.read("e/y"))
	require.Equal(t, 200, upload("?path=z", file("other")).status)
	require.Equal(t, "other", sb.read("z"))

	require.Equal(t, 400, upload("?path=z", file("a"), file("b")).status)
	require.Equal(t, 400, upload("", file("a"), file("/home/user/a")).status)
	require.Equal(t, 400, upload("", part{`form-data; name="data"; filename="a"`, ""}).status)
	require.Equal(t, 400, upload("", part{`form-data; name="file"`, ""}).status)
	require.Equal(t, 400, upload("").status)
}

func TestFileMetadata(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	octets := map[string]string{"Content-Type": "application/octet-stream", "X-Metadata-Colour": "red"}
	require.Contains(t, string(sb.envd("POST", "/files?path=d/f", octets, nil).body), `"metadata":{"colour":"red"}`)
	metadata := func(sb *sandbox, name string) any {
		return sb.call("filesystem.Filesystem/Stat", `{"path":"`+name+`"}`).object(t)["entry"].(object)["metadata"]
	}
	red := object{"colour": "red"}
	require.Equal(t, red, metadata(sb, "d/f"))
	require.Equal(t, 200, sb.call("filesystem.Filesystem/Move", `{"source":"d","destination":"e"}`).status)
	require.Equal(t, red, metadata(sb, "e/f"))
	fork := c.create(`{"templateID":"` + sb.snapshot() + `"}`)
	sb.write("e/f", "again")
	require.Nil(t, metadata(sb, "e/f"))
	require.Equal(t, red, metadata(fork, "e/f"))
	require.Equal(t, 200, fork.call("filesystem.Filesystem/Remove", `{"path":"e"}`).status)
	fork.write("e/f", "new")
	require.Nil(t, metadata(fork, "e/f"))
}

func TestSignedURLs(t *testing.T) {
	t.Parallel()
	sb := setup(t, e2btest.Options{}).base()
	sb.write("f", "content")
	sign := func(path, operation, username, expiry string) url.Values {
		text := path + ":" + operation + ":" + username + ":" + sb.token
		q := url.Values{"path": {path}}
		if username != "" {
			q.Set("username", username)
		}
		if expiry != "" {
			text += ":" + expiry
			q.Set("signature_expiration", expiry)
		}
		sum := sha256.Sum256([]byte(text))
		q.Set("signature", "v1_"+strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "="))
		return q
	}
	get := func(q url.Values) int {
		// Without headers, the host tells the sandbox.
		req, err := http.NewRequestWithContext(t.Context(), "GET", sb.server.URL()+"/files?"+q.Encode(), nil)
		require.NoError(t, err)
		req.Host = "49983-" + sb.id + ".localhost"
		resp, err := sb.http.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		return resp.StatusCode
	}
	in := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).Unix(), 10) }
	require.Equal(t, 200, get(sign("f", "read", "", "")))
	require.Equal(t, 200, get(sign("f", "read", "user", in(time.Hour))))
	require.Equal(t, 401, get(sign("f", "read", "", in(-time.Hour))))
	require.Equal(t, 401, get(sign("f", "write", "", "")))
	other := sign("f", "read", "", "")
	other.Set("path", "g")
	require.Equal(t, 401, get(other))
	other = sign("f", "read", "", in(time.Hour))
	other.Set("signature_expiration", in(2*time.Hour))
	require.Equal(t, 401, get(other))
	require.Equal(t, 401, get(url.Values{"path": {"f"}}))
}

func TestFilesystem(t *testing.T) {
	t.Parallel()
	sb := setup(t, e2btest.Options{}).base()
	sb.write("d/f", "12345")
	require.Empty(t, sb.run(`ln -s d/f file; ln -s d dir; ln -s nowhere broken; mkdir -p d/e/g`).stderr)
	entry := func(path string) object {
		return sb.call("filesystem.Filesystem/Stat", `{"path":"`+path+`"}`).object(t)["entry"].(object)
	}
	f := entry("d/f")
	require.Equal(t, "5", f["size"])
	require.Equal(t, "FILE_TYPE_FILE", f["type"])
	require.Equal(t, "/home/user/d/f", f["path"])
	require.NotContains(t, f, "symlinkTarget")
	_, err := time.Parse(time.RFC3339, f["modifiedTime"].(string))
	require.NoError(t, err)
	require.Equal(t, "FILE_TYPE_FILE", entry("file")["type"])
	require.Equal(t, "/home/user/d/f", entry("file")["symlinkTarget"])
	require.Equal(t, "FILE_TYPE_DIRECTORY", entry("dir")["type"])
	require.Equal(t, "FILE_TYPE_SYMLINK", entry("broken")["type"])

	list := func(body string) (paths []string) {
		entries, _ := sb.call("filesystem.Filesystem/ListDir", body).object(t)["entries"].([]any)
		for _, e := range entries {
			paths = append(paths, e.(object)["path"].(string))
		}
		return paths
	}
	require.Equal(t, []string{"/home/user/broken", "/home/user/d", "/home/user/dir", "/home/user/file"}, list(`{"path":"~"}`))
	require.Equal(t, []string{"/home/user/dir/e", "/home/user/dir/f"}, list(`{"path":"dir","depth":0}`))
	require.Equal(t, []string{"/home/user/d/e", "/home/user/d/e/g", "/home/user/d/f"}, list(`{"path":"d","depth":2}`))
	require.Empty(t, list(`{"path":"d/e/g"}`))
	require.Equal(t, 200, sb.call("filesystem.Filesystem/Remove", `{"path":"dir"}`).status)
	require.Equal(t, 200, sb.call("filesystem.Filesystem/Remove", `{"path":"dir"}`).status)
	require.Equal(t, "12345", sb.read("d/f"), "only the link is removed")
}

func TestProcess(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.create(`{"templateID":"base","envVars":{"A":"sandbox","B":"/home/user/b"}}`)
	r := sb.run("echo out; echo err >&2; exit 3")
	require.Equal(t, "out\n", r.stdout)
	require.Equal(t, "err\n", r.stderr)
	require.Equal(t, object{"exitCode": 3.0, "exited": true, "status": "exit status 3", "error": "exit status 3"}, r.end)
	require.Equal(t, object{"exited": true, "status": "exit status 0"}, sb.run("true").end)
	require.Equal(t, object{"exitCode": -1.0, "status": "signal: killed", "error": "signal: killed"}, sb.run("kill -9 $$").end)

	r = sb.run(`echo $A; echo $B; echo $USER $LOGNAME $E2B_SANDBOX_ID; pwd; cat <&0; echo $HOME; echo $TMPDIR`)
	require.Equal(t, fmt.Sprintf("sandbox\n%s\nuser user %s\n%s\n%s\n%s\n",
		sb.home("b"), sb.id, sb.home(""), sb.home(""), sb.info().Dir+"/tmp"), r.stdout)

	// A program that does not exist is an exit code, as it goes through a shell.
	st := sb.open(t.Context(), "Start", `{"process":{"cmd":"/nope"}}`, nil)
	r, err := st.rest()
	require.NoError(t, err)
	require.Equal(t, 127.0, r.end["exitCode"])
	require.Contains(t, r.stderr, "/nope")

	st = sb.open(t.Context(), "Start", `{"process":{"cmd":"/bin/cat","args":["-"],"envs":{"A":"x"},"cwd":"/home/user"},"tag":"cat"}`, nil)
	listed := sb.call("process.Process/List", `{}`).object(t)["processes"].([]any)
	require.Equal(t, []any{object{
		"config": object{"cmd": "/bin/cat", "args": []any{"-"}, "envs": object{"A": "x"}, "cwd": "/home/user"},
		"pid":    float64(st.pid), "tag": "cat",
	}}, listed)
	require.Equal(t, 200, sb.call("process.Process/SendInput", `{"process":{"tag":"cat"},"input":{"stdin":"aGk="}}`).status)
	require.Equal(t, 200, sb.call("process.Process/CloseStdin", `{"process":{"pid":`+strconv.Itoa(st.pid)+`}}`).status)
	r, err = st.rest()
	require.NoError(t, err)
	require.Equal(t, "hi", r.stdout)

	// The end can still be asked for.
	r, err = sb.open(t.Context(), "Connect", `{"process":{"tag":"cat"}}`, nil).rest()
	require.NoError(t, err)
	require.Equal(t, true, r.end["exited"])
	require.Equal(t, 404, sb.call("process.Process/SendSignal", `{"process":{"tag":"cat"},"signal":"SIGNAL_SIGTERM"}`).status)
}

func TestProcessSignals(t *testing.T) {
	t.Parallel()
	sb := setup(t, e2btest.Options{}).base()
	signal := func(pid int, name string) answer {
		return sb.call("process.Process/SendSignal", `{"process":{"pid":`+strconv.Itoa(pid)+`},"signal":"`+name+`"}`)
	}
	st := sb.start("trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.01; done")
	_, _, err := st.next()
	require.NoError(t, err)
	require.Equal(t, 501, signal(st.pid, "SIGNAL_SIGHUP").status)
	require.Equal(t, 200, signal(st.pid, "SIGNAL_SIGTERM").status)
	r, err := st.rest()
	require.NoError(t, err)
	require.Equal(t, "caught\n", r.stdout)
	require.Equal(t, 5.0, r.end["exitCode"])

	// Only the process itself is killed. What it leaves does not delay its end, as it does when
	// the process ends by itself.
	st = sb.start("sleep 1000 & echo $! >child; wait")
	child := sb.readPID("child")
	require.Equal(t, 200, signal(st.pid, "SIGNAL_SIGKILL").status)
	r, err = st.rest()
	require.NoError(t, err)
	require.Equal(t, "signal: killed", r.end["status"])
	requireState(t, child, alive)

	st = sb.start("sleep 1000 & echo $! >child2")
	child = sb.readPID("child2")
	require.Equal(t, 404, signal(child, "SIGNAL_SIGKILL").status, "it was not started by a request")
	require.NoError(t, syscall.Kill(child, syscall.SIGKILL))
	r, err = st.rest()
	require.NoError(t, err)
	require.Equal(t, "exit status 0", r.end["status"])
}

func TestProcessTimeout(t *testing.T) {
	t.Parallel()
	sb := setup(t, e2btest.Options{}).base()
	st := sb.open(t.Context(), "Start", startBody("echo first; exec sleep 1000"), map[string]string{"Connect-Timeout-Ms": "300"})
	r, err := st.rest()
	require.NoError(t, err)
	require.Equal(t, "first\n", r.stdout)
	require.Equal(t, "deadline_exceeded", r.failed["code"])
	requireState(t, st.pid, dead)
	r, err = sb.open(t.Context(), "Connect", `{"process":{"pid":`+strconv.Itoa(st.pid)+`}}`, nil).rest()
	require.NoError(t, err)
	require.Equal(t, "signal: killed", r.end["status"])

	// No limit, and a stream that only watches has a limit of its own.
	st = sb.open(t.Context(), "Start", startBody("exec sleep 1000"), map[string]string{"Connect-Timeout-Ms": "0"})
	r, err = sb.open(t.Context(), "Connect", `{"process":{"pid":`+strconv.Itoa(st.pid)+`}}`, map[string]string{"Connect-Timeout-Ms": "50"}).rest()
	require.NoError(t, err)
	require.Equal(t, "deadline_exceeded", r.failed["code"])
	requireState(t, st.pid, alive)
}

func TestProcessOutlivesItsClient(t *testing.T) {
	t.Parallel()
	sb := setup(t, e2btest.Options{}).base()
	ctx, cancel := context.WithCancel(t.Context())
	st := sb.open(ctx, "Start", startBody("until [ -e go ]; do sleep 0.01; done; echo done >result; exit 4"), nil)
	cancel()
	_, err := st.rest()
	require.Error(t, err)
	requireState(t, st.pid, alive)
	again := sb.open(t.Context(), "Connect", `{"process":{"pid":`+strconv.Itoa(st.pid)+`}}`, nil)
	sb.write("go", "")
	r, err := again.rest()
	require.NoError(t, err)
	require.Equal(t, 4.0, r.end["exitCode"])
	require.Equal(t, "done\n", sb.read("result"))
}

func TestProcessOutput(t *testing.T) {
	t.Parallel()
	sb := setup(t, e2btest.Options{}).base()
	const size = 10 << 20
	st := sb.start(fmt.Sprintf(`head -c %d /dev/zero; echo end >&2`, size))
	total := 0
	for {
		event, end, err := st.next()
		require.NoError(t, err)
		if end != nil {
			break
		}
		if data, ok := event["data"].(object); ok && data["stdout"] != nil {
			chunk := len(decode64(t, data["stdout"]))
			require.LessOrEqual(t, chunk, 32<<10)
			total += chunk
		}
	}
	require.Equal(t, size, total)

	st = sb.open(t.Context(), "Start", startBody("sleep 1.5"), map[string]string{"Keepalive-Ping-Interval": "1"})
	r, err := st.rest()
	require.NoError(t, err)
	require.Positive(t, r.keepalives)
	require.Equal(t, true, r.end["exited"])
}

func TestPauseFreezes(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	// One in the process's group, one that has left it.
	st := sb.start(`sleep 1000 & echo $! >child; setsid sh -c 'echo $$ >daemon; exec sleep 1000' & wait`)
	pids := []int{st.pid, sb.readPID("child"), sb.readPID("daemon")}
	c.want(204, "POST", "/sandboxes/"+sb.id+"/pause", "")
	_, err := st.rest()
	require.Error(t, err, "the stream is cut")
	for _, pid := range pids {
		requireState(t, pid, frozen)
	}
	require.Equal(t, 502, sb.envd("GET", "/files?path=child", nil, nil).status)
	c.want(201, "POST", "/v2/sandboxes/"+sb.id+"/connect", "{}")
	for _, pid := range pids {
		requireState(t, pid, alive)
	}
	again := sb.open(t.Context(), "Connect", `{"process":{"pid":`+strconv.Itoa(st.pid)+`}}`, nil)
	sb.snapshot()
	_, err = again.rest()
	require.Error(t, err, "a snapshot cuts streams, too")
	for _, pid := range pids {
		requireState(t, pid, alive)
	}
	dir := sb.info().Dir
	c.want(204, "DELETE", "/sandboxes/"+sb.id, "")
	for _, pid := range pids {
		requireState(t, pid, dead)
	}
	require.NoDirExists(t, dir)
}

// TestPauseWithBusyRequests checks that a request which would never end does not hold a pause up.
func TestPauseWithBusyRequests(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	deaf := sb.open(t.Context(), "Start", `{"process":{"cmd":"/bin/sleep","args":["1000"]}}`, nil)
	input := base64.StdEncoding.EncodeToString(make([]byte, 1<<20))
	stuck := soon(func() error {
		_, err := sb.tryEnvd("POST", "/process.Process/SendInput",
			map[string]string{"Content-Type": "application/json", "Connect-Protocol-Version": "1"},
			[]byte(`{"process":{"pid":`+strconv.Itoa(deaf.pid)+`},"input":{"stdin":"`+input+`"}}`))
		return err
	})
	// A client that does not read what a process writes.
	_ = sb.start("exec yes")
	read, write := io.Pipe()
	upload := soon(func() error {
		header := sb.header()
		header.Set("Content-Type", "application/octet-stream")
		_, err := sb.send("POST", "/files?path=part", header, read)
		return err
	})
	_, _ = io.WriteString(write, "part")
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(sb.home("part"))
		return string(text) == "part"
	}, patience, 5*time.Millisecond)
	c.want(204, "POST", "/sandboxes/"+sb.id+"/pause", "")
	require.Error(t, <-stuck)
	require.NoError(t, write.Close()) // Go's client waits for the end of what it sends
	require.Error(t, <-upload)
	c.want(201, "POST", "/v2/sandboxes/"+sb.id+"/connect", "{}")
	require.Equal(t, "part", sb.read("part"), "an upload that was cut leaves a part")
}
