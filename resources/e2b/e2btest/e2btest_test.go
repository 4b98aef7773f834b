package e2btest_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources/e2b/e2btest"
)

func TestSmoke(t *testing.T) {
	s, err := e2btest.New(e2btest.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	req, _ := http.NewRequest("POST", s.URL()+"/v2/sandboxes", bytes.NewReader([]byte(`{"templateID":"base"}`)))
	req.Header.Set("X-API-Key", s.APIKey())
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	text, _ := io.ReadAll(resp.Body)
	require.Equal(t, 201, resp.StatusCode, string(text))
	require.True(t, json.Valid(text))
}
