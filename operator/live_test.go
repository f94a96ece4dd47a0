package operator

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/reconcile"
)

// servesPods is the transport of an API server that serves pods and no other resource.
type servesPods struct{}

func (servesPods) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	if req.URL.Path == "/api/v1" {
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true}]}`)
	} else {
		w.WriteHeader(http.StatusNotFound)
	}
	return w.Result(), nil
}

// TestLive: if the worker of a controller is stuck, or work goes on without the leadership,
// /livez fails and names the controller or the election.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op, err := New(&rest.Config{Host: "http://127.0.0.1:1", Transport: servesPods{}}, Options{Name: "x", LeaseNamespace: "a"})
		if err != nil {
			t.Fatal(err)
		}
		var outage atomic.Bool
		client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "a"}})
		client.PrependReactor("*", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
			return outage.Load(), nil, errors.New("the API server does not respond")
		})
		op.Elector.Leases = client.CoordinationV1().Leases("a")
		called, release := make(chan struct{}, 10), make(chan struct{})
		c := op.Controller("c", func(context.Context, types.NamespacedName) (reconcile.Result, error) {
			called <- struct{}{}
			<-release
			return reconcile.Result{}, nil
		})
		For(c, corev1.Resource("pods"), informers.NewSharedInformerFactory(client, 0).Core().V1().Pods())
		live := func(want int, failing ...string) {
			t.Helper()
			w := httptest.NewRecorder()
			op.Mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/livez", http.NoBody))
			body := w.Body.String()
			if w.Code != want || strings.Contains(body, "failing: c\n") != (len(failing) > 0) || strings.Contains(body, "failing: leader\n") != (len(failing) > 1) {
				t.Errorf("/livez responds %d and %q, want %d and the failing checks %q", w.Code, body, want, failing)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- op.Run(ctx) }()
		<-called
		live(http.StatusOK)
		time.Sleep(5*time.Minute - time.Second)
		live(http.StatusOK)
		time.Sleep(time.Second)
		live(http.StatusServiceUnavailable, "c")
		outage.Store(true)
		time.Sleep(26 * time.Second) // LeaseDuration, RenewDeadline and one second
		live(http.StatusServiceUnavailable, "c", "leader")
		close(release)
		outage.Store(false)
		synctest.Wait()
		live(http.StatusOK)
		stop()
		<-ended
	})
}
