package e2btest

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// attributes put a process into a group of its own, and have the kernel kill it when this program
// ends; see launch for the thread.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// marked are the processes that have inherited a sandbox's mark. Daemons are among them, which have
// left their process group.
func marked(sandboxID string) []int {
	want := []byte(sandboxIDVariable + "=" + sandboxID)
	var pids []int
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended, or is another user's
		}
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.Equal(entry, want) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
