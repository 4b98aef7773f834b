// Package devserver finds or builds the temporal program, and runs its development server
// with settings under which agents are fast.
//
// [Start] is what most callers want: it finds the program itself, and returns when the server
// answers. [Program] alone prepares the program, for instance ahead of a test run.
//
//	server, err := devserver.Start(ctx, devserver.Options{DBFilename: "tine.db", Port: devserver.DefaultPort})
//	defer server.Stop()
//	c, err := client.Dial(client.Options{HostPort: server.Address()})
//
// A server listens on the loopback interface only, and ends with the process that started it,
// however that process ends.
package devserver
