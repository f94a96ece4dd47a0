package outcome

import (
	"errors"

	"github.com/controllerkit/controllerkit/finalizer"
)

// Blocked returns the steps that block a cleanup, those of all parts of its error, or nil. alone reports that
// there is no other error beside them.
func Blocked(err error) (blocked *finalizer.BlockedError, alone bool) {
	found, alone := blockedIn(err)
	for _, b := range found {
		if blocked == nil {
			first := *b
			blocked = &first
			continue
		}
		blocked.Steps = append(blocked.Steps[:len(blocked.Steps):len(blocked.Steps)], b.Steps...)
		blocked.After = min(blocked.After, b.After)
		blocked.Err = errors.Join(blocked.Err, b.Err)
	}
	return blocked, alone && blocked != nil
}

// blockedIn returns the BlockedErrors of an error, and whether each part of it is one. It does not look into them.
func blockedIn(err error) (found []*finalizer.BlockedError, alone bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		var parts []error
		switch e := err.(type) { //nolint:errorlint // the loop unwraps step by step
		case *finalizer.BlockedError:
			return []*finalizer.BlockedError{e}, true
		case interface{ Unwrap() []error }:
			parts = e.Unwrap()
		case interface{ Errors() []error }:
			parts = e.Errors()
		default:
			continue
		}
		alone = true
		for _, part := range parts {
			more, all := blockedIn(part)
			found, alone = append(found, more...), alone && all
		}
		return found, alone
	}
	return nil, false
}
