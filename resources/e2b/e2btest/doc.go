// Package e2btest emulates E2B on one loopback port: the control plane that makes, pauses and
// snapshots sandboxes, and the envd inside each sandbox that serves its files and processes. It is
// for tests, and for trying things out without an account.
//
// Start with [New]. Point a client's control plane and its envd at [Server.URL]; E2B's own SDK reads
// them from E2B_API_URL and E2B_SANDBOX_URL.
//
//	server, err := e2btest.New(e2btest.Options{})
//	defer server.Close()
//
// A sandbox is a directory with real processes. What the service does by itself can be asked for:
// [Server.Lose] and [Server.LoseSnapshot] make things disappear, [Server.Expire] ends a sandbox's
// time, [Server.Fail] makes requests fail, slow or cut. [Server.Requests] is what was asked of it.
//
// The emulator is stricter than the service: it refuses unknown fields, parameters and content
// types, so that a client which works here sends what the service documents. It reads facts from
// the service's API and its open source, and has never been compared with the service itself.
//
// # Paths
//
// In the file API every absolute path is one below the sandbox's own directory, [Sandbox].Dir. A
// process is an ordinary process of this host: its HOME and default working directory are the
// sandbox's /home/user, its TMPDIR the sandbox's /tmp. Where a program, an argument, an
// environment variable or a working directory names /home/user, the directory that stands for it is put
// in its place. Nothing else is mapped: a script that has /home/user written into it finds the
// host's, and what a process prints, such as its working directory, has the paths of the host. The
// file API accepts those, too.
//
// This is no security boundary. A process has all rights of the program that runs the emulator.
package e2btest
