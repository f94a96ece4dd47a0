//go:build !unix

package leader_test

import (
	"errors"
	"os"
)

func freezeProcess(*os.Process) error { return errors.ErrUnsupported }

func thawProcess(*os.Process) error { return errors.ErrUnsupported }
