package operator_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ondemand"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/scope"
)

// scoped has a scope of ConfigMaps in the form of For.
type scoped struct{ of *scope.Informer }

func (s scoped) Informer() cache.SharedIndexInformer { return s.of }

func (s scoped) Lister() corelisters.ConfigMapLister {
	return corelisters.NewConfigMapLister(s.of.GetIndexer())
}

// TestServerScope: an operator runs a scope like any informer. Its namespaces change while the
// operator runs, and a reconcile sees its own writes.
func TestServerScope(t *testing.T) {
	t.Parallel()
	config := testserver.Config(t)
	a, b := testserver.Namespace(t), testserver.Namespace(t)
	op, err := operator.New(config, operator.Options{Name: "scoped"})
	if err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(op.Config)
	watches := &ondemand.Informers[scope.Part]{New: func(p scope.Part) (cache.SharedIndexInformer, error) {
		byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		return coreinformers.NewFilteredConfigMapInformer(kube, p.Namespace, 0, byNamespace, p.Options), nil
	}}
	op.Group.Add("watches", watches.Run)
	configMaps := scope.New(watches.Open)

	seen := make(chan string, 100)
	var lister corelisters.ConfigMapLister
	c := op.Controller("scoped", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		cm, err := lister.ConfigMaps(key.Namespace).Get(key.Name)
		switch {
		case apierrors.IsNotFound(err):
			seen <- "gone " + key.String()
			return reconcile.Result{}, nil
		case err != nil:
			return reconcile.Result{}, err
		case cm.Annotations["touched"] != "":
			seen <- "touched " + key.String()
			return reconcile.Result{}, nil
		}
		cm = cm.DeepCopy()
		metav1.SetMetaDataAnnotation(&cm.ObjectMeta, "touched", "true")
		_, err = kube.CoreV1().ConfigMaps(key.Namespace).Update(ctx, cm, metav1.UpdateOptions{})
		return reconcile.Result{}, err
	})
	lister = operator.For(c, corev1.Resource("configmaps"), scoped{configMaps})

	choose := func(namespaces ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := configMaps.Select(ctx, scope.Selection{Namespaces: namespaces}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string) {
		t.Helper()
		for receive(t, seen) != what {
		}
	}
	choose() // nothing, so that the operator starts
	start(t, op, testlog.New())
	create(t, config, a, "one")
	create(t, config, b, "two")
	choose(a)
	want("touched " + a + "/one")
	choose(a, b)
	want("touched " + b + "/two")
	choose(b)
	want("gone " + a + "/one")
	create(t, config, b, "three")
	want("touched " + b + "/three")
}

// TestServerScopeReload: the example reloads its namespaces from a ConfigMap while it runs.
func TestServerScopeReload(t *testing.T) {
	t.Parallel()
	config := testserver.Config(t)
	settings, a, b := testserver.Namespace(t), testserver.Namespace(t), testserver.Namespace(t)
	op, err := operator.New(config, operator.Options{Name: "reloaded"})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 100)
	err = registerScoped(t.Context(), op, settings, func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		what := "has "
		if slices.Contains(reconcile.Triggers(ctx), "pods delete") {
			what = "lost "
		}
		seen <- what + key.String()
		return reconcile.Result{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	start(t, op, testlog.New())
	kube := kubernetes.NewForConfigOrDie(config)
	pod := func(namespace, name string) {
		t.Helper()
		obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
		if _, err := kube.CoreV1().Pods(namespace).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "scope"}}
	choose := func(namespaces ...string) {
		t.Helper()
		list.Data = map[string]string{"namespaces": strings.Join(namespaces, "\n")}
		if _, err := kube.CoreV1().ConfigMaps(settings).Update(t.Context(), list, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string) {
		t.Helper()
		for receive(t, seen) != what {
		}
	}
	if _, err := kube.CoreV1().ConfigMaps(settings).Create(t.Context(), list, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod(a, "one")
	pod(b, "two")
	choose(a)
	want("has " + a + "/one")
	choose(a, b)
	want("has " + b + "/two")
	choose(b)
	want("lost " + a + "/one")
	pod(b, "three")
	want("has " + b + "/three")
}
