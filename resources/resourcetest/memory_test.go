package resourcetest_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/resources"
	"github.com/tinerun/tine/resources/resourcetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	resourcetest.Run(t, func(*testing.T) resources.Driver[*resourcetest.Values] { return resourcetest.NewMemory() },
		resourcetest.Hooks[*resourcetest.Values]{
			Write: func(_ context.Context, v *resourcetest.Values, name, value string) error {
				v.Set(name, value)
				return nil
			},
			Read: func(_ context.Context, v *resourcetest.Values, name string) (string, bool, error) {
				value, ok := v.Get(name)
				return value, ok, nil
			},
			UnknownBinding: json.RawMessage(`{"values":"none"}`),
			Reopen: func(_ *testing.T, d resources.Driver[*resourcetest.Values]) resources.Driver[*resourcetest.Values] {
				return d
			},
		})
}

func TestMemoryConfig(t *testing.T) {
	t.Parallel()
	m := resourcetest.NewMemory()
	owner := resources.Owner{ExecutionID: "e", RunID: "r", Key: "k"}

	values, binding, err := m.Create(t.Context(), resources.CreateRequest{
		Owner: owner, Config: json.RawMessage(`{"initial":{"a":"1"},"coverage_reuse":true}`),
	})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1"}, values.All())
	values.Delete("a")
	require.Empty(t, values.All())
	require.True(t, m.CoverageReuse(json.RawMessage(`{"coverage_reuse":true}`)))
	require.False(t, m.CoverageReuse(nil))

	_, _, err = m.Create(t.Context(), resources.CreateRequest{Owner: owner, Config: json.RawMessage(`{"inital":{}}`)})
	require.ErrorIs(t, err, resources.ErrInvalidConfig)

	require.NoError(t, m.Lose(binding))
	_, err = m.Open(t.Context(), binding)
	require.ErrorIs(t, err, resources.ErrGone)
}
