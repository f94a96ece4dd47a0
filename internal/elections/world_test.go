package elections

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestOutlast: an outage of the API server or its etcd is waited out, and another response
// is not.
func TestOutlast(t *testing.T) {
	down := errors.New("connection refused")
	etcd := apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
	busy := apierrors.NewTooManyRequests("later", 1)
	gone := apierrors.NewNotFound(coordinationv1.Resource("leases"), "x")
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			name      string
			responses []error // the last one repeats
			want      error
			took      time.Duration
		}{
			{name: "success", responses: []error{nil}},
			{name: "outages", responses: []error{down, etcd, busy, nil}, took: 300 * time.Millisecond},
			{name: "another response", responses: []error{etcd, gone}, want: gone, took: 100 * time.Millisecond},
			{name: "no end", responses: []error{etcd}, want: etcd, took: patience + 100*time.Millisecond},
		} {
			began, n := time.Now(), 0
			err := outlast(t.Context(), func() error {
				n++
				return tc.responses[min(n, len(tc.responses))-1]
			})
			if !errors.Is(err, tc.want) || time.Since(began) != tc.took {
				t.Errorf("%s: error %v after %v, want %v after %v", tc.name, err, time.Since(began), tc.want, tc.took)
			}
		}
	})
}
