package kube

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsGone reports whether err is the API server's response that the named object does
// not exist. A proxy also returns 404, and so does an API server that does not serve
// the resource or, on create, does not have the namespace. Those responses do not name
// the object, and they do not prove that it is absent.
func IsGone(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || apierrors.IsUnexpectedServerError(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name
}

// AsConflict returns err with a Conflict in front of it if err is the API server's
// response to a JSON patch whose test failed, and err otherwise.
//
// That response is 422 Invalid, like a rejection by validation or by a webhook. Those
// name a kind, an object or a field, or have a message of their own. They must not
// become conflicts, because conflicts are retried quietly.
func AsConflict(err error) error {
	if !isFailedTest(err) {
		return err
	}
	return fmt.Errorf("%w: %w", errFailedTest, err)
}

// IsFailedTest reports whether err is a Conflict that [AsConflict] made. A 409 of the API
// server or of a webhook is not: it does not prove that a test failed.
func IsFailedTest(err error) bool { return errors.Is(err, errFailedTest) }

var errFailedTest = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status:  metav1.StatusFailure,
	Code:    http.StatusConflict,
	Reason:  metav1.StatusReasonConflict,
	Message: "the object changed after it was read",
}}

// isFailedTest reports whether err is the response that applyJSPatch of k8s.io/apiserver
// makes of a patch that does not apply.
func isFailedTest(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	s := status.Status()
	if s.Reason != metav1.StatusReasonInvalid || s.Code != http.StatusUnprocessableEntity {
		return false
	}
	if d := s.Details; d != nil && (d.Kind != "" || d.Name != "" || len(d.Causes) > 0) {
		return false
	}
	return strings.HasPrefix(s.Message, "the server rejected our request due to an error in our request")
}
