package e2btest_test

import (
	"encoding/json"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources/e2b/e2btest"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, opts := range []e2btest.Options{
		{APIKey: "secret"},
		{Egress: map[string]string{"example.com": "127.0.0.1:80"}},
		{Templates: map[string]fs.FS{"Not OK": fstest.MapFS{}}},
	} {
		_, err := e2btest.New(opts)
		require.ErrorContains(t, err, "e2btest: ")
	}
}

func TestStrictness(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{MaxLifetime: time.Hour})
	id := c.base().id
	for name, r := range map[string]struct {
		status             int
		method, path, body string
	}{
		"unknown field":            {400, "POST", "/v2/sandboxes", `{"templateID":"base","nope":1}`},
		"field in another case":    {400, "POST", "/v2/sandboxes", `{"templateId":"base"}`},
		"nested unknown field":     {400, "POST", "/v2/sandboxes", `{"templateID":"base","autoResume":{"on":true}}`},
		"null":                     {400, "POST", "/v2/sandboxes", `{"templateID":"base","metadata":null}`},
		"metadata of numbers":      {400, "POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"a":1}}`},
		"more after the object":    {400, "POST", "/v2/sandboxes", `{"templateID":"base"}{}`},
		"no template":              {400, "POST", "/v2/sandboxes", `{}`},
		"malformed template":       {400, "POST", "/v2/sandboxes", `{"templateID":"a b"}`},
		"field of v1":              {400, "POST", "/v2/sandboxes", `{"templateID":"base","secure":true}`},
		"no time":                  {400, "POST", "/v2/sandboxes", `{"templateID":"base","timeout":0}`},
		"too much time":            {400, "POST", "/v2/sandboxes", `{"templateID":"base","timeout":3601}`},
		"time with a fraction":     {400, "POST", "/v2/sandboxes", `{"templateID":"base","timeout":1.5}`},
		"no memory but no pause":   {400, "POST", "/v2/sandboxes", `{"templateID":"base","autoPauseMemory":false}`},
		"no memory but autoResume": {400, "POST", "/v2/sandboxes", `{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`},
		"volumes":                  {501, "POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[]}`},
		"missing template":         {404, "POST", "/v2/sandboxes", `{"templateID":"nope"}`},
		"missing tag":              {404, "POST", "/v2/sandboxes", `{"templateID":"base:v2"}`},
		"parameter":                {400, "POST", "/v2/sandboxes?x=1", `{"templateID":"base"}`},
		"v1 connect without time":  {400, "POST", "/sandboxes/" + id + "/connect", `{}`},
		"connect without a body":   {400, "POST", "/v2/sandboxes/" + id + "/connect", ``},
		"connect without time":     {400, "POST", "/v2/sandboxes/" + id + "/connect", `{"timeout":0}`},
		"snapshot without a body":  {400, "POST", "/sandboxes/" + id + "/snapshots", ``},
		"snapshot's name":          {400, "POST", "/sandboxes/" + id + "/snapshots", `{"name":"A B"}`},
		"snapshot of a team":       {403, "POST", "/sandboxes/" + id + "/snapshots", `{"name":"other/n"}`},
		"negative time":            {400, "POST", "/sandboxes/" + id + "/timeout", `{"timeout":-1}`},
		"no time at all":           {400, "POST", "/sandboxes/" + id + "/timeout", `{}`},
		"wrapped network":          {400, "PUT", "/sandboxes/" + id + "/network", `{"network":{}}`},
		"network of create":        {400, "PUT", "/sandboxes/" + id + "/network", `{"allowPublicTraffic":true}`},
		"body of a GET":            {400, "GET", "/sandboxes/" + id, `{}`},
		"malformed id":             {400, "GET", "/sandboxes/UPPER", ``},
		"unknown state":            {400, "GET", "/v2/sandboxes?state=dead", ``},
		"unknown order":            {400, "GET", "/v2/sandboxes?order=up", ``},
		"page of none":             {400, "GET", "/v2/sandboxes?limit=0", ``},
		"page of many":             {400, "GET", "/v2/sandboxes?limit=101", ``},
		"made-up token":            {400, "GET", "/v2/sandboxes?nextToken=abc", ``},
		"made-up time":             {400, "GET", "/v2/sandboxes?startedAfter=yesterday", ``},
		"fork":                     {501, "POST", "/sandboxes/" + id + "/fork", `{"count":1}`},
		"logs":                     {501, "GET", "/sandboxes/" + id + "/logs?start=0", ``},
		"list of v1":               {405, "GET", "/sandboxes", ``},
		"unknown path":             {404, "GET", "/v3/sandboxes", ``},
		"get unknown":              {404, "GET", "/sandboxes/inope", ``},
		"pause unknown":            {404, "POST", "/sandboxes/inope/pause", ``},
		"connect unknown":          {404, "POST", "/v2/sandboxes/inope/connect", `{}`},
		"snapshot unknown":         {404, "POST", "/sandboxes/inope/snapshots", `{}`},
		"timeout of unknown":       {404, "POST", "/sandboxes/inope/timeout", `{"timeout":1}`},
		"network of unknown":       {404, "PUT", "/sandboxes/inope/network", `{}`},
		"kill unknown":             {404, "DELETE", "/sandboxes/inope", ``},
		"delete unknown":           {404, "DELETE", "/templates/nope%3Adefault", ``},
		"delete what is not yours": {403, "DELETE", "/templates/base", ``},
	} {
		t.Run(name, func(t *testing.T) {
			(&client{t, c.server, c.http}).want(r.status, r.method, r.path, r.body)
		})
	}
	require.Len(t, c.server.Sandboxes(), 1)

	for name, header := range map[string]map[string][]string{
		"no key":    {"Content-Type": {"application/json"}},
		"wrong key": {"Content-Type": {"application/json"}, "X-Api-Key": {"e2b_00"}},
	} {
		a, err := c.send("POST", "/v2/sandboxes", header, strings.NewReader(`{"templateID":"base"}`))
		require.NoError(t, err)
		require.Equal(t, 401, a.status, name)
		require.EqualValues(t, 401, a.object(t)["code"], name)
	}
	for _, kind := range []string{"", "text/plain", "application/json; charset=latin1", "application/connect+json"} {
		a, err := c.send("POST", "/v2/sandboxes", map[string][]string{"X-Api-Key": {c.server.APIKey()}, "Content-Type": {kind}},
			strings.NewReader(`{"templateID":"base"}`))
		require.NoError(t, err)
		require.Equal(t, 400, a.status, kind)
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{Templates: map[string]fs.FS{
		"tools": fstest.MapFS{"bin/hi": {Data: []byte("#!/bin/sh\necho hi\n"), Mode: 0o755}},
	}})
	sb := c.create(`{"templateID":"tools","timeout":60,"metadata":{"a":"b"}}`)
	require.Equal(t, "hi\n", sb.run("/home/user/bin/hi").stdout)
	info := sb.info()
	require.Equal(t, "running", info.State)
	require.Equal(t, "tools", info.Reference)
	require.NotEqual(t, "tools", info.TemplateID)
	require.Equal(t, map[string]string{"a": "b"}, info.Metadata)
	require.InDelta(t, 60, info.EndAt.Sub(info.StartedAt).Seconds(), 1)

	// An id may have more after a dash.
	detail := c.want(200, "GET", "/sandboxes/"+sb.id+"-6532622b", "").object(t)
	require.Equal(t, sb.id, detail["sandboxID"])
	require.Equal(t, sb.token, detail["envdAccessToken"])
	require.Equal(t, "tools", detail["alias"])
	require.Equal(t, object{"onTimeout": "kill", "autoResume": false}, detail["lifecycle"])
	require.InDelta(t, 300, time.Until(c.base().info().EndAt).Seconds(), 5)
}

func TestCreateV1(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	open := c.want(201, "POST", "/sandboxes", `{"templateID":"base"}`).object(t)
	require.NotContains(t, open, "envdAccessToken")
	sb := &sandbox{client: c, id: open["sandboxID"].(string)}
	require.InDelta(t, 15, time.Until(sb.info().EndAt).Seconds(), 5)
	sb.write("f", "no token needed")
	require.Equal(t, "no token needed", sb.read("f"))

	secure := c.want(201, "POST", "/sandboxes", `{"templateID":"base","secure":true,"allow_internet_access":true}`).object(t)
	require.NotEmpty(t, secure["envdAccessToken"])
	c.want(200, "POST", "/sandboxes/"+sb.id+"/connect", `{"timeout":300}`)
}

func TestMetadataFilter(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	value := "a b&c=d+e%20ü"
	encoded, err := json.Marshal(object{"templateID": "base", "metadata": object{"k&=+%": value, "kind": "x"}})
	require.NoError(t, err)
	id := c.create(string(encoded)).id
	c.create(`{"templateID":"base","metadata":{"kind":"x"}}`)
	c.base()

	// The pairs as they are after the first encoding, of each key and value.
	once := url.Values{"k&=+%": {value}}.Encode()
	list := func(metadata string) (ids []string) {
		var found []object
		require.NoError(t, json.Unmarshal(c.want(200, "GET", "/v2/sandboxes?metadata="+metadata, "").body, &found))
		for _, sb := range found {
			ids = append(ids, sb["sandboxID"].(string))
		}
		return ids
	}
	twice := url.QueryEscape(url.QueryEscape(once))
	thrice := url.QueryEscape(url.Values{url.QueryEscape("k&=+%"): {url.QueryEscape(value)}}.Encode())
	require.Equal(t, twice, url.QueryEscape(url.QueryEscape(once)))
	require.Equal(t, []string{id}, list(thrice), "three encodings")
	require.Equal(t, []string{id}, list(strings.ReplaceAll(thrice, "%252B", "%252520")), "a space as %20")
	require.Equal(t, []string{id}, list(thrice+"%26kind%3Dx"), "all pairs have to match")
	require.Empty(t, list(thrice+"%26kind%3Dy"))
	require.Len(t, list("kind%3Dx"), 2)
	require.Empty(t, list("kind%3DX"))
	for _, bad := range []string{"kind", "", "a%3Db%3Dc", "a%3Db%26", "%25zz", "k%3D%25zz"} {
		c.want(400, "GET", "/v2/sandboxes?metadata="+bad, "")
	}
	c.want(400, "GET", "/v2/sandboxes?metadata="+url.QueryEscape("k=a&c=d=e"), "")
}

func TestList(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	var all []*sandbox
	for range 5 {
		all = append(all, c.base())
	}
	c.want(204, "POST", "/sandboxes/"+all[2].id+"/pause", "")
	page := func(query string) (ids []string, a answer) {
		a = c.want(200, "GET", "/v2/sandboxes?"+query, "")
		var found []object
		require.NoError(t, json.Unmarshal(a.body, &found))
		for _, sb := range found {
			ids = append(ids, sb["sandboxID"].(string))
		}
		return ids, a
	}
	id := func(i int) string { return all[i].id }

	got, a := page("limit=2")
	require.Equal(t, []string{id(4), id(3)}, got)
	require.Equal(t, "4", a.header.Get("X-Total-Running"))
	token := a.header.Get("X-Next-Token")
	c.want(204, "DELETE", "/sandboxes/"+id(3), "") // the last one of the page
	got, a = page("limit=2&nextToken=" + token)
	require.Equal(t, []string{id(2), id(1)}, got)
	got, a = page("limit=2&nextToken=" + a.header.Get("X-Next-Token"))
	require.Equal(t, []string{id(0)}, got)
	require.Empty(t, a.header.Get("X-Next-Token"))

	got, _ = page("order=asc&state=running")
	require.Equal(t, []string{id(0), id(1), id(4)}, got)
	got, a = page("state=paused")
	require.Equal(t, []string{id(2)}, got)
	require.NotContains(t, a.header, "X-Total-Running")
	got, _ = page("state=running,paused")
	require.Len(t, got, 4)
	got, _ = page("state=running%2Cpaused")
	require.Len(t, got, 4)
	got, _ = page("order=asc&startedAfter=" + url.QueryEscape(all[1].info().StartedAt.UTC().Format(time.RFC3339Nano)))
	require.Equal(t, []string{id(2), id(4)}, got)
	got, _ = page("template=base")
	require.Len(t, got, 4)
	got, _ = page("template=other")
	require.Empty(t, got)
}

func TestConnect(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{MaxLifetime: 10 * time.Minute})
	sb := c.create(`{"templateID":"base","timeout":100,"metadata":{"a":"b"},"envVars":{"V":"kept"}}`)
	path := "/v2/sandboxes/" + sb.id + "/connect"
	left := func() float64 { return time.Until(sb.info().EndAt).Seconds() }

	c.want(200, "POST", path, `{"timeout":50}`)
	require.InDelta(t, 100, left(), 5, "never shortened")
	c.want(200, "POST", path, `{}`)
	require.InDelta(t, 300, left(), 5)
	c.want(200, "POST", path, `{"timeout":600}`)
	require.LessOrEqual(t, left(), 600.0, "not beyond the longest lifetime")
	c.want(204, "POST", "/sandboxes/"+sb.id+"/timeout", `{"timeout":20}`)
	require.InDelta(t, 20, left(), 5, "may be shortened")

	c.want(204, "POST", "/sandboxes/"+sb.id+"/pause", "")
	c.want(409, "POST", "/sandboxes/"+sb.id+"/pause", "{}")
	c.want(404, "POST", "/sandboxes/"+sb.id+"/timeout", `{"timeout":20}`)
	c.want(404, "PUT", "/sandboxes/"+sb.id+"/network", `{}`)
	c.want(404, "POST", "/sandboxes/"+sb.id+"/snapshots", `{}`)
	require.Equal(t, "paused", sb.info().State)
	require.Less(t, left(), 0.0, "it says when it was paused")
	resumed := c.want(201, "POST", path, `{"timeout":70}`).object(t)
	require.Equal(t, sb.token, resumed["envdAccessToken"])
	require.InDelta(t, 70, left(), 5)
	require.Equal(t, map[string]string{"a": "b"}, sb.info().Metadata)
	require.Equal(t, "kept\n", sb.run("echo $V").stdout)

	c.want(204, "POST", "/sandboxes/"+sb.id+"/pause", "")
	c.want(204, "DELETE", "/sandboxes/"+sb.id, "")
	c.want(404, "DELETE", "/sandboxes/"+sb.id, "")
	c.want(404, "POST", path, `{}`)
}

func TestResumeWithoutMemory(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	for name, step := range map[string]struct{ pause, connect string }{
		"paused without memory":  {`{"memory":false}`, `{}`},
		"resumed without memory": {`{}`, `{"memory":false}`},
	} {
		sb := c.create(`{"templateID":"base","envVars":{"V":"lost"},"autoPause":true}`)
		sb.write("f", "kept")
		p := sb.start("echo $$ >pid; exec sleep 1000")
		c.want(204, "POST", "/sandboxes/"+sb.id+"/pause", step.pause)
		c.want(201, "POST", "/v2/sandboxes/"+sb.id+"/connect", step.connect)
		requireState(t, p.pid, dead)
		require.Equal(t, "kept", sb.read("f"), name)
		require.Equal(t, "\n", sb.run("echo $V").stdout, name)
	}
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	state := func(c *client, sb *sandbox) any {
		return c.want(200, "GET", "/sandboxes/"+sb.id, "").object(c.t)["state"]
	}
	begin := func(t *testing.T, method, operation string) (*client, *sandbox, <-chan answer, func()) {
		c := setup(t, e2btest.Options{})
		sb := c.base()
		if operation == "/connect" {
			c.want(204, "POST", "/sandboxes/"+sb.id+"/pause", "")
		}
		prefix := "/sandboxes/"
		if operation == "/connect" {
			prefix = "/v2/sandboxes/"
		}
		path := prefix + sb.id + operation
		hold := make(chan struct{})
		c.server.Fail(e2btest.Fault{Method: method, Path: path, Hold: hold})
		body := map[string]string{"/snapshots": "{}", "/connect": "{}"}[operation]
		done := soon(func() answer {
			a, _ := c.tryControl(method, path, body)
			return a
		})
		require.Eventually(t, func() bool {
			return c.control("PUT", "/sandboxes/"+sb.id+"/network", "{}").status == 409
		}, patience, 5*time.Millisecond, "no transition goes on")
		return c, sb, done, func() { close(hold) }
	}

	t.Run("snapshotting", func(t *testing.T) {
		t.Parallel()
		c, sb, done, finish := begin(t, "POST", "/snapshots")
		require.Equal(t, "running", state(c, sb))
		c.want(409, "POST", "/sandboxes/"+sb.id+"/pause", "")
		c.want(409, "POST", "/sandboxes/"+sb.id+"/snapshots", "{}")
		c.want(409, "PUT", "/sandboxes/"+sb.id+"/network", "{}")
		connected := soon(func() answer { return c.control("POST", "/v2/sandboxes/"+sb.id+"/connect", "{}") })
		read := soon(func() answer { return sb.envd("GET", "/health", nil, nil) })
		finish()
		require.Equal(t, 201, (<-done).status)
		require.Equal(t, 200, (<-connected).status)
		require.Equal(t, 204, (<-read).status, "requests wait until the sandbox runs again")
	})
	t.Run("pausing", func(t *testing.T) {
		t.Parallel()
		c, sb, done, finish := begin(t, "POST", "/pause")
		require.Equal(t, "paused", state(c, sb))
		c.want(409, "POST", "/sandboxes/"+sb.id+"/snapshots", "{}")
		require.Equal(t, 502, sb.envd("GET", "/health", nil, nil).status)
		connected := soon(func() answer { return c.control("POST", "/v2/sandboxes/"+sb.id+"/connect", "{}") })
		finish()
		require.Equal(t, 204, (<-done).status)
		require.Equal(t, 201, (<-connected).status)
	})
	t.Run("killing", func(t *testing.T) {
		t.Parallel()
		c, sb, done, finish := begin(t, "DELETE", "")
		c.want(409, "POST", "/v2/sandboxes/"+sb.id+"/connect", "{}")
		c.want(409, "POST", "/sandboxes/"+sb.id+"/snapshots", "{}")
		require.Equal(t, 502, sb.envd("GET", "/health", nil, nil).status)
		finish()
		require.Equal(t, 204, (<-done).status)
		require.False(t, sb.exists())
	})
	t.Run("resuming", func(t *testing.T) {
		t.Parallel()
		c, sb, done, finish := begin(t, "POST", "/connect")
		killed := soon(func() answer { return c.control("DELETE", "/sandboxes/"+sb.id, "") })
		finish()
		require.Equal(t, 201, (<-done).status)
		require.Equal(t, 204, (<-killed).status)
	})
	t.Run("lost while it is snapshotted", func(t *testing.T) {
		t.Parallel()
		c, sb, done, finish := begin(t, "POST", "/snapshots")
		c.server.Lose(sb.id)
		c.want(404, "GET", "/sandboxes/"+sb.id, "")
		finish()
		require.Equal(t, 500, (<-done).status)
		require.Empty(t, c.server.Snapshots())
	})
	t.Run("closed while it is snapshotted", func(t *testing.T) {
		t.Parallel()
		c, _, done, _ := begin(t, "POST", "/snapshots")
		require.NoError(t, c.server.Close())
		require.Zero(t, (<-done).status)
	})
}

func TestSnapshots(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.create(`{"templateID":"base","metadata":{"a":"b"},"envVars":{"V":"x"},"network":{"denyOut":["0.0.0.0/0"]}}`)
	sb.write("f", "one")
	end := sb.info().EndAt
	named := c.want(201, "POST", "/sandboxes/"+sb.id+"/snapshots", `{"name":"n"}`).object(t)
	require.Equal(t, object{"snapshotID": "team-slug/n:default", "names": []any{"team-slug/n"}}, named)
	require.Equal(t, end, sb.info().EndAt)
	require.Equal(t, "running", sb.info().State)

	sb.write("f", "two")
	c.want(201, "POST", "/sandboxes/"+sb.id+"/snapshots", `{"name":"team-slug/n"}`)
	tagged := c.want(201, "POST", "/sandboxes/"+sb.id+"/snapshots", `{"name":"n:v2"}`).object(t)
	require.Equal(t, "team-slug/n:v2", tagged["snapshotID"])
	require.Equal(t, []string{"team-slug/n:default", "team-slug/n:v2"}, c.server.Snapshots())
	plain := sb.snapshot()

	c.want(204, "DELETE", "/sandboxes/"+sb.id, "")
	fork := c.create(`{"templateID":"team-slug/n:default"}`)
	require.Equal(t, "two", fork.read("f"), "a name that is used again is a new build")
	require.Empty(t, fork.info().Metadata)
	require.Nil(t, fork.info().Network)
	require.Equal(t, "\n", fork.run("echo $V").stdout)
	require.Equal(t, "two", c.create(`{"templateID":"`+plain+`"}`).read("f"))

	missing := c.want(404, "POST", "/v2/sandboxes", `{"templateID":"team-slug/n:v3"}`)
	require.Equal(t, "tag 'v3' does not exist for template 'team-slug/n'", missing.object(t)["message"])
	list := func(query string) (ids []string) {
		var found []object
		require.NoError(t, json.Unmarshal(c.want(200, "GET", "/snapshots"+query, "").body, &found))
		for _, sn := range found {
			ids = append(ids, sn["snapshotID"].(string))
		}
		return ids
	}
	require.Equal(t, []string{plain, "team-slug/n:v2", "team-slug/n:default"}, list(""))
	require.Equal(t, []string{"team-slug/n:v2", "team-slug/n:default"}, list("?name=n"))
	require.Empty(t, list("?sandboxID="+fork.id))

	c.want(400, "DELETE", "/templates/team-slug%2Fn%3Adefault", "")
	c.want(204, "POST", "/sandboxes/"+fork.id+"/pause", "")
	c.want(400, "DELETE", "/templates/team-slug%2Fn%3Adefault", "")
	c.want(204, "DELETE", "/sandboxes/"+fork.id, "")
	c.want(404, "DELETE", "/templates/team-slug/n%3Adefault", "") // a path of three parts
	c.want(204, "DELETE", "/templates/team-slug%2Fn%3Adefault", "")
	require.Equal(t, []string{plain}, c.server.Snapshots())

	c.server.LoseSnapshot(plain)
	c.server.LoseSnapshot("base")
	require.Empty(t, c.server.Snapshots())
	name, _, _ := strings.Cut(plain, ":")
	lost := c.want(404, "POST", "/v2/sandboxes", `{"templateID":"`+plain+`"}`)
	require.Equal(t, "template '"+name+"' not found", lost.object(t)["message"])
	c.base()
}

// TestSnapshotCopies checks that a copy is one: links into the source lead into the copy.
func TestSnapshotCopies(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.base()
	require.Empty(t, sb.run(`mkdir -p d/e && echo deep >d/e/f && chmod 500 d/e && chmod 640 d/e/f &&
		ln -s /home/user/d absolute && ln -s d/e relative && ln -s /nowhere broken && mkfifo pipe`).stderr)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	require.NoError(t, os.Chtimes(sb.home("d/e/f"), old, old))
	fork := c.create(`{"templateID":"` + sb.snapshot() + `"}`)
	for _, name := range []string{"absolute/e/f", "relative/f"} {
		require.Equal(t, "deep\n", fork.read(name))
		resolved, err := filepath.EvalSymlinks(fork.home(name))
		require.NoError(t, err)
		require.Equal(t, fork.home("d/e/f"), resolved)
	}
	target, err := os.Readlink(fork.home("broken"))
	require.NoError(t, err)
	require.Equal(t, "/nowhere", target)
	info, err := os.Stat(fork.home("d/e/f"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
	require.True(t, info.ModTime().Equal(old))
	info, err = os.Stat(fork.home("d/e"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o500), info.Mode().Perm())
	_, err = os.Lstat(fork.home("pipe"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	killed := c.create(`{"templateID":"base","timeout":1}`)
	kept := c.create(`{"templateID":"base","timeout":1,"autoPause":true,"metadata":{"a":"b"}}`)
	shortened := c.base()
	c.want(204, "POST", "/sandboxes/"+shortened.id+"/timeout", `{"timeout":0}`)
	extended := c.create(`{"templateID":"base","timeout":1}`)
	c.want(200, "POST", "/v2/sandboxes/"+extended.id+"/connect", `{"timeout":300}`)
	require.Eventually(t, func() bool {
		return !killed.exists() && !shortened.exists() && kept.info().State == "paused"
	}, patience, 10*time.Millisecond)
	c.want(404, "GET", "/sandboxes/"+killed.id, "")
	c.want(200, "GET", "/sandboxes/"+kept.id, "")
	require.Equal(t, 502, kept.envd("GET", "/health", nil, nil).status)
	require.True(t, extended.exists())

	c.server.Expire(extended.id)
	require.False(t, extended.exists())
	c.server.Expire(kept.id)
	require.Equal(t, "paused", kept.info().State, "it is not running")
	c.server.Expire("inope")
}

func TestAutoResume(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	sb := c.create(`{"templateID":"base","autoPause":true,"autoResume":{"enabled":true},"timeout":100}`)
	sb.write("f", "x")
	c.server.Expire(sb.id)
	require.Equal(t, "paused", sb.info().State)
	require.Equal(t, "x", sb.read("f"))
	require.Equal(t, "running", sb.info().State)
	require.InDelta(t, 100, time.Until(sb.info().EndAt).Seconds(), 5)
	c.want(204, "POST", "/sandboxes/"+sb.id+"/pause", `{"memory":false}`)
	require.Equal(t, 502, sb.envd("GET", "/health", nil, nil).status, "there is no memory to resume")
}

func TestMaxLifetime(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{MaxLifetime: time.Second})
	sb := c.create(`{"templateID":"base","timeout":1,"autoPause":true}`)
	c.want(204, "POST", "/sandboxes/"+sb.id+"/timeout", `{"timeout":1000}`)
	require.LessOrEqual(t, time.Until(sb.info().EndAt), time.Second)
	require.Eventually(t, func() bool { return sb.info().State == "paused" }, patience, 10*time.Millisecond)
	c.want(201, "POST", "/v2/sandboxes/"+sb.id+"/connect", `{"timeout":1}`)
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	c := setup(t, e2btest.Options{})
	const rule = `{"transform":{"headers":{"Authorization":"Bearer x"}}}`
	sb := c.create(`{"templateID":"base","network":{"allowOut":["a.example.com"],"denyOut":["0.0.0.0/0"],"rules":{"A.example.com":[` + rule + `]},
		"egressProxy":{"address":"proxy.example.com:8080","username":"u","password":"p"},"allowPublicTraffic":false}}`)
	got := c.want(200, "GET", "/sandboxes/"+sb.id, "").object(t)["network"]
	require.Equal(t, object{
		"allowOut": []any{"a.example.com"}, "denyOut": []any{"0.0.0.0/0"},
		"rules":       object{"a.example.com": []any{object{"transform": object{"headers": object{"Authorization": "Bearer x"}}}}},
		"egressProxy": object{"address": "proxy.example.com:8080", "username": "u"},
	}, got, "rules are there in clear, the password is not")

	// What is not said again is gone.
	c.want(204, "PUT", "/sandboxes/"+sb.id+"/network", `{"rules":{"b.example.com":[`+rule+`]}}`)
	require.JSONEq(t, `{"rules":{"b.example.com":[`+rule+`]}}`, string(sb.info().Network))
	got = c.want(200, "GET", "/sandboxes/"+sb.id, "").object(t)["network"]
	require.NotContains(t, got, "allowOut")
	c.want(204, "POST", "/sandboxes/"+sb.id+"/pause", "")
	c.want(201, "POST", "/v2/sandboxes/"+sb.id+"/connect", "{}")
	require.NotEmpty(t, sb.info().Network)
	c.want(204, "PUT", "/sandboxes/"+sb.id+"/network", `{}`)

	hosts := make([]string, 11)
	for i := range hosts {
		hosts[i] = `"` + strings.Repeat("x", i+1) + `.example.com":[]`
	}
	headers := make([]string, 21)
	for i := range headers {
		headers[i] = `"X-` + strings.Repeat("x", i+1) + `":"v"`
	}
	for name, body := range map[string]string{
		"domain without deny":   `{"allowOut":["a.example.com"]}`,
		"domain in deny":        `{"denyOut":["a.example.com"]}`,
		"not a host":            `{"allowOut":["a b"],"denyOut":["0.0.0.0/0"]}`,
		"two rules":             `{"rules":{"a.example.com":[` + rule + `,` + rule + `]}}`,
		"one host twice":        `{"rules":{"a.example.com":[],"A.example.com":[]}}`,
		"too many hosts":        `{"rules":{` + strings.Join(hosts, ",") + `}}`,
		"too many headers":      `{"rules":{"a.example.com":[{"transform":{"headers":{` + strings.Join(headers, ",") + `}}}]}}`,
		"long name":             `{"rules":{"a.example.com":[{"transform":{"headers":{"` + strings.Repeat("x", 65) + `":"v"}}}]}}`,
		"long value":            `{"rules":{"a.example.com":[{"transform":{"headers":{"X":"` + strings.Repeat("x", 2049) + `"}}}]}}`,
		"long host":             `{"rules":{"` + strings.Repeat("x.", 64) + `com":[]}}`,
		"bad name":              `{"rules":{"a.example.com":[{"transform":{"headers":{"a b":"v"}}}]}}`,
		"line break in value":   `{"rules":{"a.example.com":[{"transform":{"headers":{"X":"a\nb"}}}]}}`,
		"placeholder":           `{"rules":{"a.example.com":[{"transform":{"headers":{"X":"${e2b.identity.tokens.t}"}}}]}}`,
		"bare wildcard":         `{"rules":{"*":[]}}`,
		"wildcard in the midst": `{"rules":{"a.*.com":[]}}`,
		"address as a host":     `{"rules":{"10.0.0.1":[]}}`,
		"unknown part of rule":  `{"rules":{"a.example.com":[{"headers":{}}]}}`,
		"proxy without a port":  `{"egressProxy":{"address":"proxy"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := &client{t, c.server, c.http}
			a := c.want(400, "PUT", "/sandboxes/"+sb.id+"/network", body)
			require.NotContains(t, string(a.body), strings.Repeat("x", 2049), "values are secrets")
			c.want(400, "POST", "/v2/sandboxes", `{"templateID":"base","network":`+body+`}`)
		})
	}
	require.JSONEq(t, `{}`, string(sb.info().Network))
}
