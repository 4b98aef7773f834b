package e2btest

import (
	"bytes"
	"os"
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
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		environ, err := os.ReadFile("/proc/" + name + "/environ")
		if err != nil {
			continue // it has ended, or is another user's
		}
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.Equal(entry, want) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
