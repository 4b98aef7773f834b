package testserver_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/tinerun/tine/internal/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

func TestTestsShareTheServer(t *testing.T) {
	t.Parallel()
	addresses := make(chan string, 3)
	t.Run("group", func(t *testing.T) {
		for range cap(addresses) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				_, err := testserver.Client(t).CountWorkflow(context.Background(),
					&workflowservice.CountWorkflowExecutionsRequest{Query: "TineStatus = 'running'"})
				require.NoError(t, err)
				addresses <- testserver.Address(t)
			})
		}
	})
	first := <-addresses
	require.Equal(t, first, <-addresses)
	require.Equal(t, first, <-addresses)
}
