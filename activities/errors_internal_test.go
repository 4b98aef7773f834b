package activities

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/tinerun/tine/internal/failure"
	"github.com/tinerun/tine/internal/protocol"
	"github.com/tinerun/tine/resources"
)

// providerError knows whether another attempt may help.
type providerError struct {
	delay time.Duration
	retry bool
	is    error
}

func (e *providerError) Error() string                     { return "provider says no" }
func (e *providerError) Unwrap() error                     { return e.is }
func (e *providerError) RetryDelay() (time.Duration, bool) { return e.delay, e.retry }

func TestRetryDelay(t *testing.T) {
	t.Parallel()
	limited := &providerError{delay: 7 * time.Second, retry: true}
	for name, test := range map[string]struct {
		err   error
		delay time.Duration
		retry bool
	}{
		"none":                    {err: nil},
		"unmarked":                {err: errors.New("no")},
		"marked":                  {err: fmt.Errorf("wrapped: %w", RetryableAfter(errors.New("no"), time.Second)), delay: time.Second, retry: true},
		"knows that it may":       {err: fmt.Errorf("wrapped: %w", limited), delay: 7 * time.Second, retry: true},
		"knows that it may not":   {err: fmt.Errorf("wrapped: %w", &providerError{})},
		"a mark counts for more":  {err: Retryable(&providerError{}), retry: true},
		"a mark also sets delays": {err: RetryableAfter(limited, time.Minute), delay: time.Minute, retry: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			delay, retry := RetryDelay(test.err)
			require.Equal(t, test.retry, retry)
			require.Equal(t, test.delay, delay)
		})
	}
}

func TestDriverErrorAsksTheError(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err   error
		kind  string
		retry bool
		delay time.Duration
	}{
		"unmarked":           {err: errors.New("no"), kind: failure.TypeResource, retry: true},
		"may":                {err: &providerError{retry: true, delay: time.Minute}, kind: failure.TypeResource, retry: true, delay: time.Minute},
		"may not":            {err: &providerError{}, kind: failure.TypeResource},
		"final all the same": {err: &providerError{retry: true, is: resources.ErrGone}, kind: failure.TypeResource},
		"checkpoint":         {err: &providerError{is: resources.ErrCheckpointUnavailable}, kind: failure.TypeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var app *temporal.ApplicationError
			require.ErrorAs(t, classify(driverError(fmt.Errorf("create: %w", test.err)), protocol.SafeToRetry), &app)
			require.Equal(t, test.kind, app.Type())
			require.Equal(t, !test.retry, app.NonRetryable())
			require.Equal(t, test.delay, app.NextRetryDelay())
			require.Contains(t, app.Message(), "create: ")
		})
	}
}
