package operator_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// halfServed is an API server with a Pod. It responds with the status to discovery of Deployments, and to lists of them.
type halfServed struct{ discovery, list int }

func (s halfServed) RoundTrip(r *http.Request) (*http.Response, error) {
	respond := func(status int, body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
	}
	document := func(status int, text string) (*http.Response, error) {
		return respond(status, io.NopCloser(strings.NewReader(text)))
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/pods"): // an event is a line
		return respond(http.StatusOK, stream{strings.NewReader(strings.ReplaceAll(controlled, "\n", "") + "\n" + strings.Replace(initialEnd, "%s", "Pod", 1) + "\n"), r.Context()})
	case r.URL.Path == "/api/v1":
		return document(http.StatusOK, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"]}]}`)
	case r.URL.Path == "/apis/apps/v1" && s.discovery == http.StatusOK:
		return document(http.StatusOK, `{"kind":"APIResourceList","groupVersion":"apps/v1","resources":[{"name":"deployments","kind":"Deployment","namespaced":true,"verbs":["list","watch"]}]}`)
	case r.URL.Path == "/apis/apps/v1":
		return document(s.discovery, "")
	default:
		reason := map[int]metav1.StatusReason{http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound}[s.list]
		return document(s.list, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, s.list))
	}
}

// A kind that is served and cannot be listed makes no call read live that does not read it, also in a term that
// begins after other writes. The server rejects the live read of a Pod. Proves OP15.
func TestOptionalNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op, err := operator.New(&rest.Config{Host: "http://127.0.0.1:1", Transport: halfServed{http.StatusOK, http.StatusForbidden}}, operator.Options{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		live := map[bool]int{}
		begin := time.Now()
		c := operator.Kind(op, corev1.SchemeGroupVersion.WithResource("pods"), operator.Reconciler[*corev1.Pod]{
			ReadOnly: true,
			Reconcile: func(ctx context.Context, _ *corev1.Pod) (reconcile.Result, error) {
				if time.Since(begin) > 25*time.Second {
					live[consistency.LiveRead(ctx)]++
				}
				return reconcile.Result{RequeueAfter: time.Second}, nil
			},
		})
		operator.Reads(c, appsv1.SchemeGroupVersion.WithResource("deployments"), operator.Reading[*appsv1.Deployment]{Optional: true})
		ctx, cancel := context.WithTimeout(calls.WithSince(testlog.New().Context(t.Context()), "4"), 2*time.Minute) // the Pods are at 5
		defer cancel()
		if err := op.Run(ctx); err != nil {
			t.Error(err)
		}
		if live[true] > 0 || live[false] == 0 {
			t.Errorf("%d calls read live, and %d do not", live[true], live[false])
		}
	})
}

// Served is false only of a resource that is known not to be served. Otherwise its error keeps the call from
// pruning, also if the function ignores it. Proves OP12 and OP15.
func TestOptionalServed(t *testing.T) {
	for name, tc := range map[string]struct {
		server  halfServed
		unknown bool
	}{
		"not served":               {server: halfServed{discovery: http.StatusNotFound}},
		"discovery fails":          {server: halfServed{discovery: http.StatusServiceUnavailable}, unknown: true},
		"the list is forbidden":    {server: halfServed{http.StatusOK, http.StatusForbidden}, unknown: true},
		"the list is not found":    {server: halfServed{http.StatusOK, http.StatusNotFound}, unknown: true},
		"the list is not possible": {server: halfServed{http.StatusOK, http.StatusMethodNotAllowed}, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				op, err := operator.New(&rest.Config{Host: "http://127.0.0.1:1", Transport: tc.server}, operator.Options{Name: "x"})
				if err != nil {
					t.Fatal(err)
				}
				calls := 0
				var deployments *operator.Reader[*appsv1.Deployment]
				c := operator.Kind(op, corev1.SchemeGroupVersion.WithResource("pods"), operator.Reconciler[*corev1.Pod]{
					ReadOnly: true,
					Reconcile: func(ctx context.Context, _ *corev1.Pod) (reconcile.Result, error) {
						calls++
						served, err := deployments.Served(ctx)
						if served || (err != nil) != tc.unknown || operator.Failed(ctx) != tc.unknown {
							t.Errorf("Served() = %t, %v, and the call prunes: %t, want an error and no pruning: %t", served, err, !operator.Failed(ctx), tc.unknown)
						}
						return reconcile.Result{}, nil
					},
				})
				deployments = operator.Reads(c, appsv1.SchemeGroupVersion.WithResource("deployments"), operator.Reading[*appsv1.Deployment]{Optional: true})
				logs := testlog.New()
				start(t, op, logs)
				time.Sleep(15 * time.Second) // of the 20s of StartTimeout
				synctest.Wait()
				if calls == 0 {
					t.Errorf("no call: %v", logs.All())
				}
			})
		})
	}
}
