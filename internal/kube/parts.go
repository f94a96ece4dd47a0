package kube

import (
	"errors"
	"io"
	"reflect"
	"time"

	"github.com/controllerkit/controllerkit"
)

var joinType = reflect.TypeOf(errors.Join(io.EOF))

// Parts returns the errors that err joins, or err itself. It splits the errors of errors.Join and
// of apimachinery's Aggregate only: several %w in one fmt.Errorf describe one failure, for example
// an error marked as terminal.
func Parts(err error) []error { return appendParts(nil, err) }

func appendParts(parts []error, err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		var list []error
		switch j := e.(type) { //nolint:errorlint // the loop unwraps step by step
		case interface{ Errors() []error }:
			list = j.Errors()
		case interface{ Unwrap() []error }:
			if reflect.TypeOf(e) == joinType {
				list = j.Unwrap()
			}
		}
		if len(list) > 0 {
			for _, e := range list {
				parts = appendParts(parts, e)
			}
			return parts
		}
	}
	return append(parts, err)
}

// Waits returns the time of a controllerkit.WaitingError, the shortest one if err joins several. If
// a part of err is a failure, it is 0.
func Waits(err error) (shortest time.Duration) {
	if err == nil { // each call of a reconcile asks: Parts and As would allocate
		return 0
	}
	for _, part := range Parts(err) {
		var w controllerkit.WaitingError
		if !errors.As(part, &w) || w.Waits() <= 0 {
			return 0
		}
		if wait := w.Waits(); shortest == 0 || wait < shortest {
			shortest = wait
		}
	}
	return shortest
}
