package kube

import (
	"errors"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// WithoutValues returns err without the values of the object that two responses of the API server quote. The
// object can be a Secret.
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

// hideValues removes the values of an object that two responses of the API server quote. The end of a value of the
// first is not known, so all text after it goes too. The mark shows a later call that it has gone.
//
//	failed to create typed patch object (ns/a; /v1, Kind=Secret): .stringData.b: expected string, got VALUE
//	 "" is invalid: patch: Invalid value: "OBJECT": json: cannot unmarshal number into Go struct field
func hideValues(text string) string {
	const (
		typed   = "failed to create typed "
		got     = ", got "
		invalid = "patch: Invalid value: "
		hidden  = "(hidden)"
	)
	for at := 0; ; {
		i := strings.Index(text[at:], typed)
		if i < 0 {
			break
		}
		i += at + len(typed)
		n := strings.Index(text[i:], got)
		if n < 0 {
			break
		}
		if at = i + n + len(got); !strings.HasPrefix(text[at:], hidden) {
			text = text[:at] + hidden
		}
	}
	for at := 0; ; {
		i := strings.Index(text[at:], invalid+`"`)
		if i < 0 {
			return text
		}
		at += i + len(invalid)
		object, _ := strconv.QuotedPrefix(text[at:]) // "" if the text was cut
		if object == "" {
			return text[:at] + hidden
		}
		text = text[:at] + hidden + text[at+len(object):]
	}
}
