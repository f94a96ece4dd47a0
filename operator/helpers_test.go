package operator_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/reconcile"
)

func TestMain(m *testing.M) {
	// The default handler sleeps until 1ms after the last error. In a synctest bubble that can be decades.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	testserver.Main(m)
}

// A pairs operator makes a Secret for each ConfigMap whose name begins with "make".
type pairs struct {
	op         *operator.Operator
	c          *operator.Controller
	kube       kubernetes.Interface
	namespace  string
	configMaps corelisters.ConfigMapLister
	secrets    corelisters.SecretLister

	calls   atomic.Int64
	during  func(ctx context.Context) // called in each call; nil means none
	created chan string
}

// caches prepares the informers of ConfigMaps and Secrets in a factory.
type caches func(t *testing.T, factory informers.SharedInformerFactory, kube kubernetes.Interface, namespace string)

// eachCache runs a test with the typed informers of the factory, and with those of package compact.
func eachCache(t *testing.T, test func(t *testing.T, cached caches)) {
	t.Helper()
	for name, cached := range map[string]caches{"typed": typedCaches, "compact": compactCaches} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, cached)
		})
	}
}

func typedCaches(*testing.T, informers.SharedInformerFactory, kubernetes.Interface, string) {}

func compactCaches(t *testing.T, factory informers.SharedInformerFactory, kube kubernetes.Interface, namespace string) {
	t.Helper()
	client := kube.CoreV1().RESTClient()
	configMaps, err := compact.New[*corev1.ConfigMap](client, "configmaps", compact.Options{Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := compact.New[*corev1.Secret](client, "secrets", compact.Options{Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	for obj, informer := range map[runtime.Object]cache.SharedIndexInformer{&corev1.ConfigMap{}: configMaps, &corev1.Secret{}: secrets} {
		factory.InformerFor(obj, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return informer })
	}
}

func newPairs(t *testing.T, config *rest.Config, namespace string, options operator.Options) *pairs {
	t.Helper()
	return newPairsWith(t, config, namespace, options, typedCaches)
}

func newPairsWith(t *testing.T, config *rest.Config, namespace string, options operator.Options, cached caches) *pairs {
	t.Helper()
	op, err := operator.New(config, options)
	if err != nil {
		t.Fatal(err)
	}
	p := &pairs{op: op, kube: kubernetes.NewForConfigOrDie(op.Config), namespace: namespace, created: make(chan string, 100)}
	factory := informers.NewSharedInformerFactoryWithOptions(p.kube, 0, informers.WithNamespace(namespace))
	cached(t, factory, p.kube, namespace)
	p.c = op.Controller("pairs", p.reconcile)
	p.configMaps = operator.For(p.c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
	p.secrets = operator.Owns(p.c, corev1.Resource("secrets"), factory.Core().V1().Secrets())
	op.Writes(corev1.Resource("secrets"), "create")
	return p
}

func (p *pairs) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	p.calls.Add(1)
	cm, err := p.configMaps.ConfigMaps(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && key.Name[:4] != "make" {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if p.during != nil {
		p.during(ctx)
	}
	all, err := p.secrets.Secrets(key.Namespace).List(labels.Everything())
	if err != nil {
		return reconcile.Result{}, err
	}
	for _, s := range all {
		if metav1.IsControlledBy(s, cm) {
			return reconcile.Result{}, nil
		}
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "pair-", Namespace: key.Namespace}}
	if err := owner.SetController(cm, corev1.SchemeGroupVersion.WithKind("ConfigMap"), secret); err != nil {
		return reconcile.Result{}, err
	}
	if secret, err = p.kube.CoreV1().Secrets(key.Namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return reconcile.Result{}, err
	}
	p.c.Event(cm, corev1.EventTypeNormal, "Created", "Create", "made %s", secret.Name)
	p.created <- secret.Name
	return reconcile.Result{}, nil
}

// start runs the operator in the background. stop ends it and returns Run's error.
func start(t *testing.T, op *operator.Operator, logs testlog.Logs) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(logs.Context(t.Context()))
	done := make(chan error, 1)
	go func() { done <- op.Run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return errors.New("Run does not return")
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return stop
}

func create(t *testing.T, config *rest.Config, namespace, name string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(namespace).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next value, within the time that a loaded machine may need.
func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatal("nothing after a minute")
	}
	return v
}

func newResponse(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	return w.Body.String()
}
