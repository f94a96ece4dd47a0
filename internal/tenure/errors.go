package tenure

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// IsConflict reports whether the Lease is not the version to be replaced. A 409 of a proxy does
// not show that.
func IsConflict(err error) bool {
	return (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) && !apierrors.IsUnexpectedServerError(err)
}

// IsRefusal reports whether a retry gets the same response. If the response is not the API
// server's own but e.g. a proxy's, it is an outage. A create in a namespace that does not exist is
// a 404 with the name of the namespace. accepted is true if the API server has accepted the
// credentials before: then a 401 is an outage, because client-go reads a new token from its file.
func IsRefusal(err error, namespace string, accepted bool) bool {
	return !apierrors.IsUnexpectedServerError(err) && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) && !accepted ||
		apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) ||
		kube.IsGone(err, namespace))
}

// Printable returns err with a text for one line of log: servers, proxies and users write it.
func Printable(err error) error { return kube.PrintableError(err, 4<<10) }

// Values returns the values of a line of log with err, if there is one.
func Values(err error, values ...any) []any {
	if err == nil {
		return values
	}
	return append(values, "err", Printable(err))
}
