package openai_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/tinerun/tine/activities"
	"github.com/tinerun/tine/activities/openai"
)

func Example() {
	server := httptest.NewServer(answering(200, hello)) // in place of a real endpoint
	defer server.Close()

	model, err := openai.New(openai.Options{BaseURL: server.URL + "/v1", Model: "m-1"})
	if err != nil {
		panic(err)
	}
	resp, err := model.Generate(context.Background(), activities.GenerateRequest{
		Messages: []activities.Message{{Role: "user", Content: "hi"}},
	}, nil)
	fmt.Println(resp.Message.Content, err)
	// Output: hello <nil>
}
