package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/controllerkit/controllerkit/internal/testserver"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/memcached/api/v1"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testserver.Main(m)
}

// An app makes a ConfigMap for each Memcached, with the data of the Secret of its name.
type app struct {
	c       *operator.Controller
	secrets *operator.Reader[*corev1.Secret]
	apply   func(context.Context, ...any) ([]operator.Child, error)

	calls  chan types.NamespacedName // nil means none
	during func(ctx context.Context) // called in each call; nil means none
}

// setUp adds the controller to an operator, of a program or of a manager.
func (a *app) setUp(op *operator.Operator) error {
	a.c = operator.Kind(op, v1.GroupVersion.WithResource("memcacheds"), operator.Reconciler[*v1.Memcached]{Reconcile: a.reconcile, Prune: true})
	operator.Children(a.c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	a.secrets = operator.Reads(a.c, corev1.SchemeGroupVersion.WithResource("secrets"), operator.Reading[*corev1.Secret]{})
	a.apply = a.c.Apply
	return nil
}

func (a *app) reconcile(ctx context.Context, m *v1.Memcached) (reconcile.Result, error) {
	if a.calls != nil {
		a.calls <- types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
	}
	if a.during != nil {
		a.during(ctx)
	}
	data := map[string]string{"size": string('0' + m.Spec.Size)}
	secret, err := a.secrets.Get(ctx, m.Namespace, m.Name)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	if err == nil {
		data["secret"] = string(secret.Data["word"])
	}
	_, err = a.apply(ctx, applycorev1.ConfigMap(m.Name, m.Namespace).WithData(data))
	m.Status.Ready = m.Spec.Size
	return reconcile.Result{}, err
}

// world is a namespace with a client.
type world struct {
	client.WithWatch
	namespace string
	scheme    *runtime.Scheme
}

func newWorld(t *testing.T) world {
	t.Helper()
	w := world{namespace: testserver.Namespace(t), scheme: runtime.NewScheme()}
	must(t, errors.Join(clientgoscheme.AddToScheme(w.scheme), v1.AddToScheme(w.scheme)))
	var err error
	w.WithWatch, err = client.NewWithWatch(testserver.Config(t), client.Options{Scheme: w.scheme})
	must(t, err)
	return w
}

// installCRD installs the definition of Memcached.
func installCRD(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("../examples/memcached/config/crd.yaml")
	must(t, err)
	text, err = yaml.ToJSON(text)
	must(t, err)
	var definition map[string]any
	must(t, json.Unmarshal(text, &definition))
	testserver.InstallCRD(t, definition)
}

// options are those of a manager for the namespace, without servers.
func (w world) options() manager.Options {
	return manager.Options{
		Scheme: w.scheme, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache:      cache.Options{DefaultFieldSelector: fields.OneTermEqualSelector("metadata.namespace", w.namespace)},
		Controller: crconfig.Controller{SkipNameValidation: ptr.To(true)},
	}
}

func (w world) manager(t *testing.T, config *rest.Config, options manager.Options) manager.Manager {
	t.Helper()
	mgr, err := ctrl.NewManager(config, options)
	must(t, err)
	return mgr
}

func (w world) memcached(t *testing.T, name string) {
	t.Helper()
	m := &v1.Memcached{Spec: v1.MemcachedSpec{Size: 2, Port: 11211}}
	m.Namespace, m.Name = w.namespace, name
	must(t, w.Create(t.Context(), m))
}

func (w world) secret(name, word string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Data: map[string][]byte{"word": []byte(word)}}
}

// await waits until an object of a list is as wanted.
func await[L client.ObjectList](t *testing.T, w world, list L, name string, want func(obj client.Object) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events, err := w.Watch(ctx, list, client.InNamespace(w.namespace))
	must(t, err)
	defer events.Stop()
	for e := range events.ResultChan() {
		if obj, ok := e.Object.(client.Object); ok && obj.GetName() == name && want(obj) {
			return
		}
	}
	t.Fatalf("the object %s of %T is not as wanted after a minute", name, list)
}

// start runs a function in the background. stop ends it and returns its error.
func start(t *testing.T, run func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return errors.New("it does not stop")
		}
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run or Start = %v", err)
		}
	})
	return stop
}

func receive[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatalf("no %s after a minute", what)
	}
	return v
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// watches counts the watches of each resource that begin with a list or go on after one.
type watches struct {
	http.RoundTripper
	mu   sync.Mutex
	open map[string]int
	most map[string]int
}

func (w *watches) wrap(next http.RoundTripper) http.RoundTripper {
	return &watched{next, w}
}

type watched struct {
	next http.RoundTripper
	*watches
}

func (w *watched) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("watch") != "true" && req.URL.Query().Get("watch") != "1" {
		return w.next.RoundTrip(req)
	}
	resource := path.Base(path.Dir(req.URL.Path)) + path.Base(req.URL.Path) // with the namespace
	w.mu.Lock()
	w.open[resource]++
	w.most[resource] = max(w.most[resource], w.open[resource])
	w.mu.Unlock()
	ended := sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open[resource]--
	})
	context.AfterFunc(req.Context(), ended)
	resp, err := w.next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK { // such as 429 while the API server fills its cache of a new kind
		ended()
	}
	return resp, err
}
