package e2btest_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tinerun/tine/resources/e2b/e2btest"
)

func Example() {
	server, err := e2btest.New(e2btest.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	create := func() (*http.Response, error) {
		req, err := http.NewRequest("POST", server.URL()+"/v2/sandboxes", strings.NewReader(`{"templateID":"base"}`))
		if err != nil {
			return nil, err
		}
		req.Header.Set("X-API-Key", server.APIKey())
		req.Header.Set("Content-Type", "application/json")
		return http.DefaultClient.Do(req)
	}

	// The service is busy once. Then it does what was asked for, but its answer gets lost.
	server.Fail(e2btest.Fault{Path: "/v2/sandboxes", Status: 429, RetryAfter: time.Second})
	server.Fail(e2btest.Fault{Path: "/v2/sandboxes", CutAfter: -1})

	answer, err := create()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	fmt.Println(answer.Status, "- Retry-After:", answer.Header.Get("Retry-After"))

	lost, err := create()
	if err == nil {
		lost.Body.Close()
	}
	fmt.Println("got an answer:", err == nil)
	for _, sandbox := range server.Sandboxes() {
		fmt.Println("a sandbox is", sandbox.State)
		server.Lose(sandbox.ID)
	}
	fmt.Println("sandboxes left:", len(server.Sandboxes()))
	// Output:
	// 429 Too Many Requests - Retry-After: 1
	// got an answer: false
	// a sandbox is running
	// sandboxes left: 0
}
