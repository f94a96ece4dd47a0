//go:build !unix

package testprocess

import (
	"errors"
	"os"
)

// Freeze returns errors.ErrUnsupported.
func Freeze(*os.Process) error { return errors.ErrUnsupported }

// Thaw returns errors.ErrUnsupported.
func Thaw(*os.Process) error { return errors.ErrUnsupported }
