package kube

import (
	"errors"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// WithoutValues returns err with a text that has no values of the object, if err is a response of the
// API server that quotes them, and err otherwise. The object can be a Secret.
func WithoutValues(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	text := err.Error()
	if without := hideValues(text); without != text {
		return &withoutValues{err, without}
	}
	return err
}

type withoutValues struct {
	error
	text string
}

func (e *withoutValues) Error() string { return e.text }
func (e *withoutValues) Unwrap() error { return e.error }

// hideValues removes the values of an object that two responses of the API server quote, and all
// text after a value whose end is not known:
//
//	failed to create typed patch object (ns/a; /v1, Kind=Secret): .stringData.b: expected string, got VALUE
//	 "" is invalid: patch: Invalid value: "OBJECT": json: cannot unmarshal number into Go struct field
func hideValues(text string) string {
	const typed, got = "failed to create typed ", ", got "
	if i := strings.Index(text, typed); i >= 0 {
		if n := strings.Index(text[i:], got); n >= 0 {
			text = text[:i+n]
		}
	}
	const invalid = "patch: Invalid value: "
	if i := strings.Index(text, invalid+`"`); i >= 0 {
		i += len(invalid)
		object, _ := strconv.QuotedPrefix(text[i:]) // "" if the text was cut
		rest := ""
		if object != "" {
			rest = text[i+len(object):]
		}
		text = text[:i] + "(hidden)" + rest
	}
	return text
}
