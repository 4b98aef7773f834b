package e2b

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStallGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, moved, stop := stallGuard(t.Context())
		defer stop()
		for range 5 {
			time.Sleep(stallLimit - time.Second)
			moved()
		}
		require.NoError(t, ctx.Err())
		time.Sleep(stallLimit + time.Second)
		require.ErrorIs(t, context.Cause(ctx), errStalled)

		d := &Driver{secrets: newSecrets("the-api-key")}
		err := d.failure(ctx, "read", ctx.Err())
		require.EqualError(t, err, "e2b: read: "+errStalled.Error())
		_, retry := err.RetryDelay()
		require.True(t, retry)
	})
}
