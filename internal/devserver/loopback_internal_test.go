//go:build unix

package devserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServerListensOnLoopbackOnly(t *testing.T) {
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skip("there is no /proc/net here that tells who listens")
	}
	t.Parallel()
	server, err := Start(context.Background(), Options{Program: program(t)})
	require.NoError(t, err)
	defer server.Stop()

	pid := server.process.cmd.Process.Pid
	ours := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(t, err)
	for _, link := range links {
		target, _ := os.Readlink(link)
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			ours[strings.TrimSuffix(inode, "]")] = true
		}
	}
	const listen, loopbackHex = "0A", "0100007F"
	listeners := 0
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		require.NoError(t, err)
		for _, line := range strings.Split(string(text), "\n")[1:] {
			fields := strings.Fields(line)
			if len(fields) > 9 && fields[3] == listen && ours[fields[9]] {
				listeners++
				require.Regexp(t, "^(0000000000000000FFFF0000)?"+loopbackHex+":", fields[1])
			}
		}
	}
	require.GreaterOrEqual(t, listeners, 2, "the server and its UI")
}
