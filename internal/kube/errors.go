package kube

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
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

// IsNamespaceTerminating reports whether err is the response to a create in a namespace that is
// being deleted.
func IsNamespaceTerminating(err error) bool {
	return apierrors.HasStatusCause(err, "NamespaceTerminating") // corev1.NamespaceTerminatingCause, without its module
}

// IsDenied reports whether err is the 403 of an admission plugin that rejects the object, such as a
// quota. The authorizer's 403 and an unknown one are not: they are about a role.
func IsDenied(err error) bool {
	if IsNamespaceTerminating(err) {
		return true
	}
	var status apierrors.APIStatus
	return apierrors.IsForbidden(err) && errors.As(err, &status) && denials.MatchString(status.Status().Message)
}

// denials are the messages of ResourceQuota, LimitRanger, PodSecurity, ValidatingAdmissionPolicy and of the webhooks
// whose response has the code 403. The quoted name in front is the client's, so it must not match.
var denials = regexp.MustCompile(`^(?:\S+ (?:"(?:[^"\\]|\\.)*" )?is forbidden: \[?(?:` +
	`(?:exceeded|failed|status unknown for) quota: |insufficient quota to |` +
	`m(?:in|ax)imum \S+ usage per |\S+ max limit to request ratio per |` +
	`violates PodSecurity "|ValidatingAdmissionPolicy '[^']*' with binding '[^']*' denied request: )|` +
	`admission webhook "[^"]*" denied the request)`)

// LacksRight reports whether err is the authorizer's 403 to a request with the verb: no role allows it.
func LacksRight(err error, verb string) bool {
	var status apierrors.APIStatus
	return apierrors.IsForbidden(err) && !IsDenied(err) && errors.As(err, &status) &&
		strings.Contains(status.Status().Message, " cannot "+verb+" resource ")
}

// OnlyNamespaceTerminating reports whether all parts of err are such responses.
func OnlyNamespaceTerminating(err error) bool {
	for _, part := range Parts(err) {
		if !IsNamespaceTerminating(part) {
			return false
		}
	}
	return true
}

// IsUnstorable reports whether err is the API server's response, with code 500, to a request that it
// can never store: an apply that does not fit the schema, for example because it repeats a key of a
// list, or an object that is larger than etcd or its client allow (1.5 MiB and 2 MiB).
func IsUnstorable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != http.StatusInternalServerError {
		return false
	}
	text := status.Status().Message
	return strings.HasPrefix(text, "failed to create typed patch object (") || text == "etcdserver: request is too large" ||
		strings.HasPrefix(text, "rpc error: code = ResourceExhausted desc = trying to send message larger than max (")
}

// ErrRemovedVersion is in each error that [AsRemovedVersion] made.
var ErrRemovedVersion = errors.New("metadata.managedFields has an entry of a removed version")

// AsRemovedVersion returns err with ErrRemovedVersion in front of it if err is the API
// server's response to an apply of a custom resource that has an entry of managedFields,
// of any manager, in a version that the CustomResourceDefinition lacks. Otherwise it
// returns err. See https://issues.k8s.io/111937.
//
// No retry cures it, so the error has a method Rejected() bool that returns true.
func AsRemovedVersion(err error) error {
	version := RemovedVersion(err)
	if version == "" || errors.Is(err, ErrRemovedVersion) {
		return err
	}
	return &removedVersionError{version, err}
}

// RemovedVersion returns the version that the response in err names, or "" if err has no
// such response, which is 500 without a reason. If there are several removed versions, the
// response names one of them at random.
func RemovedVersion(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return ""
	}
	s := status.Status()
	version, ok := strings.CutPrefix(s.Message, "request to convert CR to an invalid group/version: ")
	if !ok || s.Code != http.StatusInternalServerError || s.Reason != metav1.StatusReasonUnknown {
		return ""
	}
	return version
}

type removedVersionError struct {
	version string
	err     error
}

func (e *removedVersionError) Error() string {
	return fmt.Sprintf("metadata.managedFields has an entry of the version %.300q, which the CustomResourceDefinition no longer has, so every apply fails: call ssa.Migrate without managers: %v", e.version, e.err)
}

func (e *removedVersionError) Is(target error) bool { return target == ErrRemovedVersion }
func (e *removedVersionError) Unwrap() error        { return e.err }

// Rejected makes the reconcile loop class the error as rejected.
func (*removedVersionError) Rejected() bool { return true }
