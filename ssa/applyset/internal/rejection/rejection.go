// Package rejection tells apart the errors with which an API server rejects a request.
package rejection

import (
	"errors"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsUnserved reports whether the API server does not serve the resource. Its response
// differs from that for an absent object.
func IsUnserved(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// IsUndeclared reports whether a field is not in the schema. Only the message of the
// response shows that.
func IsUndeclared(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && strings.Contains(status.Status().Message, "field not declared in schema")
}

// IsImmutable reports whether the API server rejects only changes of immutable fields.
// If the configuration were not valid otherwise, its response would also have other
// causes. Their type is not one of their own, so only their texts show it.
func IsImmutable(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || IsStale(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	causes := status.Status().Details.Causes
	for _, c := range causes {
		text := strings.ToLower(c.Message)
		if !slices.ContainsFunc([]string{"immutable", "may not change", "may not be changed", "cannot change", "can not be changed", "updates to ", "updates may not "}, func(s string) bool {
			return strings.Contains(text, s)
		}) {
			return false
		}
	}
	return len(causes) > 0
}

// IsStale reports whether the live object is newer than the decision about its apply.
func IsStale(err error) bool {
	var status apierrors.APIStatus
	if apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil {
		return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
	}
	return apierrors.IsConflict(err)
}
