package kube

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// An UnknownFieldError is the rejection of a strict write with fields that the schema lacks. The
// text has their names and not, as the API server's, the whole object.
type UnknownFieldError struct {
	err    error
	fields string
}

// AsUnknownField returns an [UnknownFieldError] if err is such a rejection, and err otherwise.
func AsUnknownField(err error) error {
	if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		return err
	}
	// The object comes first, so the last match is the API server's.
	text := err.Error()
	const mark = "strict decoding error: "
	i := strings.LastIndex(text, mark)
	if i < 0 || !strings.Contains(text[i:], "unknown field ") {
		return err
	}
	return &UnknownFieldError{err, text[i+len(mark):]}
}

func (e *UnknownFieldError) Error() string {
	return "the schema lacks a field: update the CustomResourceDefinition: " + e.fields
}

func (e *UnknownFieldError) Unwrap() error { return e.err }
