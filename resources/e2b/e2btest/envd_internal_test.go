package e2btest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMapText(t *testing.T) {
	t.Parallel()
	for _, root := range []string{"/r", "/home/user/tmp/r"} {
		sb := &sandbox{root: root}
		home := root + "/home/user"
		for text, want := range map[string]string{
			"":             "",
			"/home/user":   home,
			"/home/user/x": home + "/x",
			"cat '/home/user/a' >/home/user/b;cd /home/user":                   "cat '" + home + "/a' >" + home + "/b;cd " + home,
			"PATH=/home/user/bin:/home/user/b":                                 "PATH=" + home + "/bin:" + home + "/b",
			"--dir=/home/user":                                                 "--dir=" + home,
			"file:///home/user/x":                                              "file://" + home + "/x",
			"\"/home/user\"\n/home/user":                                       "\"" + home + "\"\n" + home,
			"/home/user2 /home/user-x /home/user.d /home/users":                "/home/user2 /home/user-x /home/user.d /home/users",
			"/mnt/home/user":                                                   "/mnt/home/user",
			"$X/home/user ${X}/home/user ~/home/user ./home/user ../home/user": "$X/home/user ${X}/home/user ~/home/user ./home/user ../home/user",
			"https://example.com/home/user/x":                                  "https://example.com/home/user/x",
			"ü/home/user":                                                      "ü/home/user",
			// What a process has printed may come back.
			home + "/x":          home + "/x",
			root + " " + home:    root + " " + home,
			home + ":/home/user": home + ":" + home,
		} {
			require.Equal(t, want, sb.mapText(text), "root %s", root)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	sb := &sandbox{root: "/r"}
	for name, want := range map[string]string{
		"": "/home/user", ".": "/home/user", "a/b": "/home/user/a/b", "~": "/home/user", "~/a": "/home/user/a",
		"~a": "/home/user/~a", "/": "/", "/a/": "/a", "../../..": "/", "/../x": "/x", "a/../../b": "/home/b",
		"/r/home/user/a": "/home/user/a", "/r": "/", "/rest": "/rest", "/r/../a": "/a",
	} {
		require.Equal(t, want, sb.resolve(homeDir, name), name)
	}
}

func TestNetworkRules(t *testing.T) {
	t.Parallel()
	rule := func(value string) []networkRule {
		var r networkRule
		require.NoError(t, strictJSON([]byte(`{"transform":{"headers":{"X":"`+value+`"}}}`), &r))
		return []networkRule{r}
	}
	n := networkConfig{Rules: map[string][]networkRule{
		"a.example.com": rule("exact"), "*.example.com": rule("wide"), "*.b.example.com": rule("narrow"), "none.example.com": nil,
	}}
	for host, want := range map[string]string{
		"a.example.com": "exact", "A.Example.com": "exact", "c.example.com": "wide", "c.b.example.com": "narrow",
		"d.c.b.example.com": "narrow", "b.example.com": "wide", "example.com": "", "other.com": "", "none.example.com": "",
	} {
		require.Equal(t, want, n.headers(host)["X"], host)
	}

	all := networkConfig{}
	require.True(t, all.allows("a.example.com"))
	some := networkConfig{AllowOut: []string{"a.example.com", "*.b.example.com"}, DenyOut: []string{allTraffic}}
	for host, want := range map[string]bool{
		"a.example.com": true, "A.example.com": true, "x.b.example.com": true, "b.example.com": false, "c.example.com": false,
	} {
		require.Equal(t, want, some.allows(host), host)
	}
}
