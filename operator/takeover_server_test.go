package operator_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// lagging is a transport whose watches of ConfigMaps deliver nothing while late is not closed.
type lagging struct {
	next http.RoundTripper
	on   *atomic.Bool
	late <-chan struct{}
}

func (l lagging) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err == nil && req.URL.Query().Has("watch") && strings.HasSuffix(req.URL.Path, "/configmaps") {
		resp.Body = lateBody{ReadCloser: resp.Body, ctx: req.Context(), lagging: l}
	}
	return resp, err
}

type lateBody struct {
	io.ReadCloser
	ctx context.Context
	lagging
}

func (b lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.on.Load() {
		select {
		case <-b.late:
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
	}
	return n, err
}

// TestServerStaleTakeover tests that leader, consistency and finalizer work together: a replica whose cache still shows
// what the last leader has cleaned up becomes the leader. Its call does not get a Held.
func TestServerStaleTakeover(t *testing.T) {
	t.Parallel()
	eachCache(t, testServerStaleTakeover)
}

func testServerStaleTakeover(t *testing.T, caches caches) {
	const name = "example.com/bucket"
	namespace := testserver.Namespace(t)
	kube := kubernetes.NewForConfigOrDie(testserver.Config(t))
	cms := kube.CoreV1().ConfigMaps(namespace)
	site, err := cms.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "site", Finalizers: []string{name}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	clean := func(context.Context, finalizer.Held[*corev1.ConfigMap]) error { return nil }

	// The last leader.
	leases, err := leader.NewClient(testserver.Config(t), namespace)
	if err != nil {
		t.Fatal(err)
	}
	last := &leader.Elector{Leases: leases, Namespace: namespace, Name: "takeover", Identity: "last"}
	leads, caught, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- last.Run(t.Context(), func(ctx context.Context) error {
			close(leads)
			select {
			case <-caught:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := cms.Delete(ctx, site.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			live, err := cms.Get(ctx, site.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			_, _, err = finalizer.Ensure(ctx, cms, live, name, clean)
			return err
		})
	}()
	receive(t, leads)

	// The replica.
	var on atomic.Bool
	late := make(chan struct{})
	config := rest.CopyConfig(testserver.Config(t))
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return lagging{next, &on, late} })
	op, err := operator.New(config, operator.Options{Name: "takeover", LeaseNamespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	type call struct {
		cached, stale, live bool
		err                 error
	}
	calls := make(chan call, 100)
	replicas := kubernetes.NewForConfigOrDie(op.Config)
	factory := informers.NewSharedInformerFactoryWithOptions(replicas, 0, informers.WithNamespace(namespace))
	caches(t, factory, replicas, namespace)
	var c *operator.Controller
	cached := factory.Core().V1().ConfigMaps().Lister().ConfigMaps(namespace)
	c = op.Controller("sites", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		if key.Name != site.Name {
			return reconcile.Result{}, nil
		}
		obj, err := cached.Get(key.Name)
		if apierrors.IsNotFound(err) {
			calls <- call{}
			return reconcile.Result{}, nil
		}
		_, live, err := finalizer.Ensure(ctx, kubernetes.NewForConfigOrDie(op.Config).CoreV1().ConfigMaps(namespace), obj, name, clean)
		calls <- call{cached: true, stale: consistency.LiveRead(ctx), live: live, err: err}
		return reconcile.Result{}, err
	})
	operator.For(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
	op.Writes(corev1.Resource("configmaps"), "patch")
	start(t, op, testlog.New())
	receive(t, op.Informers.HasSyncedChecker().Done())
	on.Store(true)
	close(caught)
	if err := receive(t, ended); err != nil {
		t.Fatalf("the last leader: %v", err)
	}

	first := receive(t, calls)
	if !first.cached || !first.stale {
		t.Fatalf("the first call: %+v, want an old cache, and LiveRead: this test checks nothing", first)
	}
	if first.live || !apierrors.IsNotFound(first.err) {
		t.Errorf("the first call: live %t, error %v; want NotFound, because the object is gone", first.live, first.err)
	}
	close(late)
	for receive(t, calls).cached {
	}
}
