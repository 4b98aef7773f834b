package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/worker"
)

// TestPolicyIsNotForgotten: a worker that was asked for a policy must not allow everything.
func TestPolicyIsNotForgotten(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]worker.Options{
		"path":     {PolicyPath: "policies"},
		"required": {RequirePolicy: true},
	} {
		_, err := worker.NewPlugin(nil, opts)
		require.ErrorContains(t, err, "policy.Open", name)
		_, err = worker.New(nil, opts)
		require.ErrorContains(t, err, "policy.Open", name)
		opts.Policy = policy.AllowAll{} // which would not be what the path names
		_, err = worker.NewPlugin(nil, opts)
		require.ErrorContains(t, err, "policy.Open", name)
		require.ErrorContains(t, worker.Run(t.Context(), opts), "policy.Open", name)
	}
}
