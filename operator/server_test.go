package operator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerStart proves OP1 and OP2.
func TestServerStart(t *testing.T) {
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "plains.operator.example.com"},
		"spec": map[string]any{
			"group": "operator.example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "plains", "singular": "plain", "kind": "Plain", "listKind": "PlainList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	})
	for _, tc := range []struct {
		name     string
		register func(op *operator.Operator, c *operator.Controller, f informers.SharedInformerFactory)
		want     string
	}{
		{name: "no CRD", register: func(_ *operator.Operator, c *operator.Controller, f informers.SharedInformerFactory) {
			operator.Owns(c, schema.GroupResource{Group: "nowhere.example.com", Resource: "widgets"}, f.Core().V1().Pods())
		}, want: "operator: the API server does not serve widgets.nowhere.example.com: install its CustomResourceDefinition, or check the name (after 10s)"},
		{name: "another kind", register: func(_ *operator.Operator, c *operator.Controller, f informers.SharedInformerFactory) {
			operator.Owns(c, corev1.Resource("pods"), f.Core().V1().Secrets())
		}, want: `operator: controller "a": the objects of pods are of kind Pod, and its informer holds Secret: pass the informer of pods`},
		{name: "no status", register: func(op *operator.Operator, _ *operator.Controller, _ informers.SharedInformerFactory) {
			op.Writes(schema.GroupResource{Group: "operator.example.com", Resource: "plains/status"}, "update")
		}, want: "operator: plains.operator.example.com has no subresource status: use one that it has, or add it to the CustomResourceDefinition, under subresources (after 10s)"},
		{name: "a cluster-scoped kind in a namespace", register: func(op *operator.Operator, _ *operator.Controller, _ informers.SharedInformerFactory) {
			operator.Kind(op, corev1.SchemeGroupVersion.WithResource("nodes"), operator.Reconciler[*corev1.Node]{
				ReadOnly: true, Reconcile: func(context.Context, *corev1.Node) (reconcile.Result, error) { return reconcile.Result{}, nil },
			})
		}, want: `operator: controller "nodes": nodes is cluster-scoped, and Options.Namespace is test-`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			namespace := testserver.Namespace(t)
			op, err := operator.New(testserver.Config(t), operator.Options{Name: "x", LeaseNamespace: namespace, Namespace: namespace, StartTimeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			kube := kubernetes.NewForConfigOrDie(op.Config)
			f := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
			c := op.Controller("a", nothing)
			operator.For(c, corev1.Resource("configmaps"), f.Core().V1().ConfigMaps())
			tc.register(op, c, f)
			if err := op.Run(testlog.New().Context(t.Context())); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Run() = %v, want an error with %q", err, tc.want)
			}
			if _, err := kube.CoordinationV1().Leases(namespace).Get(t.Context(), "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("Get() of the Lease = %v, want not found: the replica took it without synced informers", err)
			}
		})
	}
	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		op, err := operator.New(nowhere(), operator.Options{Name: "x", StartTimeout: 1100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		operator.For(op.Controller("a", nothing), corev1.Resource("configmaps"), newFactory().Core().V1().ConfigMaps())
		want := "operator: the API server http://127.0.0.1:1 cannot tell what it serves: "
		if err := op.Run(testlog.New().Context(t.Context())); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "connection refused (after 1.1s)") {
			t.Errorf("Run() = %v, want an error with %q", err, want)
		}
	})
	t.Run("no right for one verb", func(t *testing.T) {
		t.Parallel()
		namespace := testserver.Namespace(t)
		config := testserver.Limited(t, namespace, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}},
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}})
		// The third 403 must come within StartTimeout, also on a slow machine.
		p := newPairs(t, config, namespace, operator.Options{Name: "x", StartTimeout: 30 * time.Second})
		ctx, cancel := context.WithTimeout(testlog.New().Context(t.Context()), time.Minute)
		defer cancel()
		err := p.op.Run(ctx)
		if err == nil || !strings.Contains(err.Error(), `"secrets"`) || !strings.Contains(err.Error(), "a Role or ClusterRole must allow verbs") {
			t.Errorf("Run() = %v, want an error that names secrets and the cure", err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("Run() = %v, want one line", err)
		}
	})
	t.Run("port in use", func(t *testing.T) {
		t.Parallel()
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		p := newPairs(t, testserver.Config(t), testserver.Namespace(t), operator.Options{Name: "x", Listen: l.Addr().String()})
		if err := p.op.Run(testlog.New().Context(t.Context())); err == nil || !strings.Contains(err.Error(), "address already in use: set another Addr") {
			t.Errorf("Run() = %v, want that the address is in use, and the cure", err)
		}
	})
}

// TestServerRights proves OP5. An operator whose user has the rights of Rules alone
// works, and each verb of the rules is used.
func TestServerRights(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	model := newPairs(t, testserver.Config(t), namespace, operator.Options{Name: "pairs", LeaseNamespace: namespace})
	objects, leases := model.op.Rules()
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps/finalizers"}, Verbs: []string{"update"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create", "list", "watch"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}
	if !slices.EqualFunc(objects, want, func(a, b rbacv1.PolicyRule) bool { return a.String() == b.String() }) {
		t.Errorf("Rules() = %v, want %v", objects, want)
	}

	config := testserver.Limited(t, namespace, slices.Concat(objects, leases)...)
	seen := &requests{}
	config.Wrap(seen.wrap)
	p := newPairs(t, config, namespace, operator.Options{Name: "pairs", LeaseNamespace: namespace})
	p.c.Loop.Workers = 2
	p.op.Elector.RetryPeriod = time.Second
	stop := start(t, p.op, testlog.New())
	create(t, testserver.Config(t), namespace, "make-a")
	receive(t, p.created)
	p.waitRenewal(t)
	if err := stop(); err != nil {
		t.Fatalf("Run() = %v", err)
	}
	for _, rule := range slices.Concat(objects, leases) {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				switch {
				case resource == "configmaps/finalizers", resource == "events" && verb == "patch":
					continue // asked for by admission; only a repeated Event is patched
				case verb == "list":
					continue // a watch streams the list, if the server can
				case !seen.has(verb, resource):
					t.Errorf("%s of %s was never used: %v", verb, resource, seen)
				}
			}
		}
	}
}

// waitRenewal returns when the Lease was renewed.
func (p *pairs) waitRenewal(t *testing.T) {
	t.Helper()
	leases := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoordinationV1().Leases(p.namespace)
	w, err := leases.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var first *metav1.MicroTime
	for {
		e := receive(t, w.ResultChan())
		lease, ok := e.Object.(*coordinationv1.Lease)
		if !ok {
			t.Fatalf("watch: %v", e.Object)
		}
		if first == nil {
			first = lease.Spec.RenewTime
		} else if !first.Equal(lease.Spec.RenewTime) {
			return
		}
	}
}

type requests struct {
	mu   sync.Mutex // guards seen
	seen []string
}

func (r *requests) has(verb, resource string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.seen, verb+" "+resource)
}

func (r *requests) wrap(next http.RoundTripper) http.RoundTripper { return recording{r, next} }

type recording struct {
	r    *requests
	next http.RoundTripper
}

func (r recording) RoundTrip(req *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[req.Method]
	if i := slices.Index(parts, "namespaces"); i >= 0 && len(parts) > i+2 {
		if verb == "get" && len(parts) == i+3 {
			verb = "list"
		}
		if req.URL.Query().Has("watch") {
			verb = "watch"
		}
		r.r.mu.Lock()
		r.r.seen = append(r.r.seen, verb+" "+parts[i+2])
		r.r.mu.Unlock()
	}
	return r.next.RoundTrip(req)
}

// TestServerReadsOwnWrites proves OP3. The Secret of each ConfigMap has a generated name,
// so that a reconcile from an old cache would make a second one.
func TestServerReadsOwnWrites(t *testing.T) {
	t.Parallel()
	eachCache(t, testServerReadsOwnWrites)
}

func testServerReadsOwnWrites(t *testing.T, cached caches) {
	namespace := testserver.Namespace(t)
	p := newPairsWith(t, testserver.Config(t), namespace, operator.Options{Name: "pairs"}, cached)
	p.c.Loop.Workers = 8
	// Each call queues its key again at once, so that the next one would be early.
	inner := p.c.Loop.Reconcile
	var again sync.Map
	all := make(chan struct{}) // closed after twenty calls of each key that makes a Secret
	var makes atomic.Int64
	p.c.Loop.Reconcile = func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		result, err := inner(ctx, key)
		n, _ := again.LoadOrStore(key, new(int))
		if *n.(*int)++; *n.(*int) < 20 {
			p.c.Loop.Queue.Add(key)
		} else if strings.HasPrefix(key.Name, "make") && *n.(*int) == 20 && makes.Add(1) == 50 {
			close(all)
		}
		return result, err
	}
	start(t, p.op, testlog.New())
	const n = 50
	for i := range n {
		create(t, testserver.Config(t), namespace, "make-"+string(rune('a'+i%26))+string(rune('a'+i/26)))
	}
	for range n {
		receive(t, p.created)
	}
	select {
	case name := <-p.created:
		t.Fatalf("%s is a second Secret", name)
	case <-all:
	case <-time.After(time.Minute):
		t.Fatal("the keys did not run twenty times")
	}
	if secrets, err := p.kube.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(secrets.Items) != n {
		t.Errorf("%d Secrets, %v, want %d", len(secrets.Items), err, n)
	}
	// A child that goes away comes back.
	secrets, err := p.kube.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.kube.CoreV1().Secrets(namespace).Delete(t.Context(), secrets.Items[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	receive(t, p.created)
}

// TestServerStop proves OP2, OP4 and OP6.
func TestServerStop(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	options := operator.Options{Name: "pairs", LeaseNamespace: namespace, Listen: "127.0.0.1:0"}
	first, second := newPairs(t, testserver.Config(t), namespace, options), newPairs(t, testserver.Config(t), namespace, options)
	begun, asked := make(chan struct{}, 1), make(chan struct{})
	first.during = func(ctx context.Context) {
		if !first.op.Informers.HasSynced() {
			t.Error("a call before the informers are synced")
		}
		begun <- struct{}{}
		<-asked
		select {
		case <-ctx.Done():
			t.Errorf("the call was cancelled: %v", context.Cause(ctx))
		case <-time.After(2 * time.Second):
		}
	}
	stop := start(t, first.op, testlog.New())
	create(t, testserver.Config(t), namespace, "make-a")
	receive(t, begun)
	start(t, second.op, testlog.New())
	<-second.op.Informers.HasSyncedChecker().Done()
	if n := second.calls.Load(); n > 0 {
		t.Errorf("the second replica made %d calls beside the leader", n)
	}
	since := time.Now()
	close(asked)
	if err := stop(); err != nil {
		t.Fatalf("Run() = %v", err)
	}
	if took := time.Since(since); took < 2*time.Second || took > 28*time.Second {
		t.Errorf("Run returned after %v, want 2s to 28s", took)
	}
	receive(t, first.created)
	create(t, testserver.Config(t), namespace, "make-b")
	receive(t, second.created) // long before the Lease would expire, or after it: see leader
}

// slow is a transport in which the first request that creates a Service takes 14s.
type slow struct {
	next         http.RoundTripper
	first        *sync.Once
	begun, ended chan error
}

func (s slow) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	created := req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/services")
	if created || req.Method == http.MethodPatch && strings.Contains(req.URL.Path, "/services/") {
		s.first.Do(func() {
			s.begun <- nil
			select {
			case <-time.After(14 * time.Second):
			case <-req.Context().Done():
			}
			s.ended <- req.Context().Err()
		})
	}
	return s.next.RoundTrip(req)
}

// TestServerSlowStop stops the three forms of the example of this package with their real times, during a
// call that takes 14s: it ends, then the Lease is released, and Run returns nil.
func TestServerSlowStop(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(context.Context, *rest.Config, string) error{"kind": runServices, "keys": runAssembled, "pieces": runPieces} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace, config := testserver.Namespace(t), testserver.Config(t)
			kube := kubernetes.NewForConfigOrDie(testserver.Config(t))
			call := slow{first: new(sync.Once), begun: make(chan error, 1), ended: make(chan error, 1)}
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				call := call
				call.next = next
				return call
			})
			create(t, testserver.Config(t), namespace, "a")
			ctx, stop := context.WithCancel(testlog.New().Context(t.Context()))
			defer stop()
			done := make(chan error, 1)
			go func() { done <- run(ctx, config, namespace) }()
			receive(t, call.begun)
			stop()
			if err := receive(t, done); err != nil {
				t.Errorf("Run() = %v", err)
			}
			if err := receive(t, call.ended); err != nil {
				t.Errorf("the call was cancelled: %v", err)
			}
			lease, err := kube.CoordinationV1().Leases(namespace).Get(t.Context(), "mirror", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != "" {
				t.Errorf("the Lease is held by %q, want it released", holder)
			}
		})
	}
}

// Several controllers share informers, an election and the endpoints.
func TestServerSharing(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	op, err := operator.New(testserver.Config(t), operator.Options{Name: "two", Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	op.Mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "mine") })
	kube := kubernetes.NewForConfigOrDie(op.Config)
	f := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	keys := make(chan string, 1000)
	send := func(controller string) reconcile.Func[types.NamespacedName] {
		return func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
			keys <- controller + " " + key.String()
			return reconcile.Result{}, nil
		}
	}
	a, b := op.Controller("a", send("a")), op.Controller("b", send("b"))
	operator.For(a, corev1.Resource("configmaps"), f.Core().V1().ConfigMaps())
	operator.For(b, corev1.Resource("secrets"), f.Core().V1().Secrets())
	operator.Watches(b, corev1.Resource("configmaps"), f.Core().V1().ConfigMaps(), func(cm *corev1.ConfigMap) []types.NamespacedName {
		return []types.NamespacedName{{Namespace: cm.Namespace, Name: "of-" + cm.Name}}
	})
	services := metadatainformer.NewFilteredSharedInformerFactory(metadata.NewForConfigOrDie(op.Config), 0, namespace, nil)
	operator.Watches(b, corev1.Resource("services"), services.ForResource(corev1.SchemeGroupVersion.WithResource("services")), func(obj runtime.Object) []types.NamespacedName {
		return []types.NamespacedName{{Namespace: namespace, Name: "service-" + obj.(*metav1.PartialObjectMetadata).Name}}
	})
	start(t, op, testlog.New())
	create(t, testserver.Config(t), namespace, "x")
	if _, err := kube.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for want := map[string]bool{"a " + namespace + "/x": true, "b " + namespace + "/of-x": true, "b " + namespace + "/service-s": true}; len(want) > 0; {
		delete(want, receive(t, keys))
	}
	if got := newResponse(t, op.Mux, "/readyz"); got != "mine" {
		t.Errorf("/readyz responds %q, want the caller's", got)
	}
	if got := newResponse(t, op.Mux, "/livez"); got != "ok" && got != "ok\n" {
		t.Errorf("/livez responds %q", got)
	}
	for _, want := range []string{`controller_workers{controller="a"} 4`, `controller_workers{controller="b"} 4`, `workqueue_depth{name="b"} 0`, "rest_client_requests_total{"} {
		if got := newResponse(t, op.Mux, "/metrics"); !strings.Contains(got, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
}

// A cluster-scoped owner is found, and an owner of another kind is not.
func TestServerClusterScopedOwner(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	op, err := operator.New(testserver.Config(t), operator.Options{Name: "owners"})
	if err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(op.Config)
	f := informers.NewSharedInformerFactory(kube, 0)
	inside := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	keys := make(chan types.NamespacedName, 1000)
	c := op.Controller("owners", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		if slices.Contains(reconcile.Triggers(ctx), "configmaps add") {
			keys <- key
		}
		return reconcile.Result{}, nil
	})
	operator.For(c, corev1.Resource("namespaces"), f.Core().V1().Namespaces())
	operator.Owns(c, corev1.Resource("configmaps"), inside.Core().V1().ConfigMaps())
	start(t, op, testlog.New())
	<-op.Informers.HasSyncedChecker().Done()
	ns, err := kube.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	for _, ref := range []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u", Controller: &yes},
		{APIVersion: "other/v1", Kind: "Namespace", Name: "other", UID: "u", Controller: &yes},
		{APIVersion: "v1", Kind: "Namespace", Name: "no-controller", UID: "u"},
		{APIVersion: "v1", Kind: "Namespace", Name: ns.Name, UID: ns.UID, Controller: &yes},
	} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "child-", OwnerReferences: []metav1.OwnerReference{ref}}}
		if _, err := kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if key := receive(t, keys); key != (types.NamespacedName{Name: namespace}) {
		t.Errorf("the key is %v, want the Namespace", key)
	}
}

// A controller that fails ends Run and the other controllers.
func TestServerControllerFails(t *testing.T) {
	t.Parallel()
	p := newPairs(t, testserver.Config(t), testserver.Namespace(t), operator.Options{Name: "x"})
	p.during = func(context.Context) { p.c.Loop.Queue.ShutDown() }
	ctx := testlog.New().Context(t.Context())
	create(t, testserver.Config(t), p.namespace, "make-a")
	if err := p.op.Run(ctx); err == nil || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "pairs") {
		t.Errorf("Run() = %v, want an error that names the controller", err)
	}
}

// TestServerPieces compares the assembly with the pieces by hand: the same objects and
// Events come of the same requests.
func TestServerPieces(t *testing.T) {
	t.Parallel()
	outcome := func(run func(ctx context.Context, config *rest.Config, namespace string) error) (got []string) {
		namespace := testserver.Namespace(t)
		config, seen := testserver.Config(t), &requests{}
		kube := kubernetes.NewForConfigOrDie(config)
		config.Wrap(seen.wrap)
		ctx, cancel := context.WithCancel(testlog.New().Context(t.Context()))
		done := make(chan error, 1)
		go func() { done <- run(ctx, config, namespace) }()
		events, err := kube.EventsV1().Events(namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "reason=Created"})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		for _, name := range []string{"a", "b"} {
			create(t, testserver.Config(t), namespace, name)
		}
		for len(got) < 2 { // kube-root-ca.crt is no name of a Service, and fails in both
			select {
			case e := <-events.ResultChan():
				event := e.Object.(*eventsv1.Event)
				got = append(got, fmt.Sprintf("%s %s/%s: %s %s %q", event.ReportingController, event.Regarding.Kind, event.Regarding.Name, event.Reason, event.Action, event.Note))
			case err := <-done:
				t.Fatalf("Run() = %v", err)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		services, err := kube.CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range services.Items {
			got = append(got, "Service "+s.Name+" of "+s.OwnerReferences[0].Kind+" "+s.OwnerReferences[0].Name)
		}
		lease, err := kube.CoordinationV1().Leases(namespace).Get(t.Context(), "mirror", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, "Lease held by "+ptr.Deref(lease.Spec.HolderIdentity, ""))
		seen.mu.Lock()
		defer seen.mu.Unlock()
		slices.Sort(seen.seen)
		got = append(got, slices.Compact(seen.seen)...)
		slices.Sort(got)
		return got
	}
	pieces, assembled := outcome(runPieces), outcome(runAssembled)
	if diff := cmp.Diff(pieces, assembled); diff != "" {
		t.Errorf("the assembly differs from the pieces (-pieces +assembly):\n%s", diff)
	}
	t.Log(strings.Join(assembled, "\n"))
}
