//go:build !linux

package store

import (
	"context"
	"errors"
)

var errUnsupported = errors.New("checkpoints of directories need Linux")

func supported() error { return errUnsupported }

// Capture fails: this system is not supported.
func (s *Store) Capture(context.Context, string, string) (string, error) { return "", errUnsupported }

// Restore fails: this system is not supported.
func (s *Store) Restore(context.Context, string, string, string) error { return errUnsupported }
