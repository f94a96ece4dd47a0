package operator_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// watched calls a function with the path of each request before it is sent.
type watched struct {
	next http.RoundTripper
	seen func(path string)
}

func (r watched) RoundTrip(req *http.Request) (*http.Response, error) {
	r.seen(req.URL.Path)
	return r.next.RoundTrip(req)
}

// TestServerLateDefinition: while the definition of a kind is missing, its informer has sent one request and
// logged nothing. When the definition is served, the operator works.
func TestServerLateDefinition(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	version := schema.GroupVersion{Group: namespace + ".operator.example.com", Version: "v1"} // which no other run has served
	config := rest.CopyConfig(testserver.Config(t))
	discoveries := make(chan struct{}, 1000)
	var lists atomic.Int64
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return watched{next, func(path string) {
			switch {
			case path == "/apis/"+version.Group:
				discoveries <- struct{}{}
			case strings.HasSuffix(path, "/boxes"):
				lists.Add(1)
			}
		}}
	})
	op, err := operator.New(config, operator.Options{Name: "late", Namespace: namespace, StartTimeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	calls := make(chan string, 10)
	operator.Kind(op, version.WithResource("boxes"), operator.Reconciler[*Box]{Reconcile: func(_ context.Context, b *Box) (reconcile.Result, error) {
		calls <- b.Name
		return reconcile.Result{}, nil
	}})
	logs := testlog.New()
	stop := start(t, op, logs)
	for range 4 {
		receive(t, discoveries)
	}
	if n := lists.Load(); n != 1 {
		t.Errorf("%d requests of the informer of a kind that is not served, want 1", n)
	}
	for _, line := range logs.All() {
		if line.Err != nil {
			t.Errorf("logged before the definition: %s: %v", line.Message, line.Err)
		}
	}
	if len(logs.Find("Waiting for the API server")) != 1 {
		t.Errorf("%d lines of the wait, want 1", len(logs.Find("Waiting for the API server")))
	}
	installBoxes(t, version)
	boxes, err := crd.New[*Box](testserver.Config(t), version.WithKind("Box"), "boxes")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := boxes.Namespace(namespace).Create(t.Context(), &Box{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if name := receive(t, calls); name != "a" {
		t.Errorf("called with %s, want a", name)
	}
	if err := stop(); err != nil { // before the definition is removed
		t.Errorf("Run() = %v", err)
	}
}
