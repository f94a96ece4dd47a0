package operator_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

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
	configMaps := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		return coreinformers.NewFilteredConfigMapInformer(kube, p.Namespace, 0, byNamespace, p.Options), nil
	})

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
	lister = operator.For(c, corev1.Resource("configmaps"), informer.With(configMaps, corelisters.NewConfigMapLister))

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

// followers are replicas of the operator of docs/namespaces.md. Their user may watch the
// namespaces of allow.
type followers struct {
	config  *rest.Config // of the user
	admin   kubernetes.Interface
	system  string
	seen    chan string
	reading rbacv1.PolicyRule
}

func newFollowers(t *testing.T) *followers {
	t.Helper()
	f := &followers{
		admin:   kubernetes.NewForConfigOrDie(testserver.Config(t)),
		system:  testserver.Namespace(t),
		seen:    make(chan string, 1000),
		reading: rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps", "pods"}, Verbs: []string{"list", "watch"}},
	}
	f.config = testserver.Limited(t, f.system, f.reading,
		rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create", "get", "update", "watch"}})
	return f
}

// allow gives the user the right to watch a namespace.
func (f *followers) allow(t *testing.T, namespace string) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "watched"}, Rules: []rbacv1.PolicyRule{f.reading}}
	if _, err := f.admin.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "watched"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: f.config.Impersonate.UserName}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "watched"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// choose writes the settings.
func (f *followers) choose(t *testing.T, namespaces ...string) {
	t.Helper()
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "namespaces"}, Data: map[string]string{"namespaces": strings.Join(namespaces, "\n")}}
	_, err := f.admin.CoreV1().ConfigMaps(f.system).Update(t.Context(), list, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = f.admin.CoreV1().ConfigMaps(f.system).Create(t.Context(), list, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pod creates a Pod.
func (f *followers) pod(t *testing.T, namespace, name string) {
	t.Helper()
	obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
	if _, err := f.admin.CoreV1().Pods(namespace).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// replica returns a replica that has not started. The events of its reconciles begin with its name.
func (f *followers) replica(t *testing.T, name string) (*operator.Operator, *scoped) {
	t.Helper()
	op, err := operator.New(f.config, operator.Options{Name: "namespaces", LeaseNamespace: f.system})
	if err != nil {
		t.Fatal(err)
	}
	s := &scoped{}
	s.reconcile = func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
		what := " has "
		if _, err := s.pods.Pods(key.Namespace).Get(key.Name); err != nil {
			what = " lost "
		}
		f.seen <- name + what + key.String()
		return reconcile.Result{}, nil
	}
	if err := s.register(op, f.system); err != nil {
		t.Fatal(err)
	}
	return op, s
}

// want waits until all of these were seen, in any order.
func (f *followers) want(t *testing.T, all ...string) {
	t.Helper()
	for len(all) > 0 {
		seen := receive(t, f.seen)
		all = slices.DeleteFunc(all, func(what string) bool { return what == seen })
	}
}

// The operator of docs/namespaces.md with a leader and a standby: a forbidden namespace stops
// neither, the standby has the objects, the settings change and go away, and a restart without
// them is no silent one.
//
// Proves OP7.
func TestServerNamespaces(t *testing.T) {
	t.Parallel()
	f := newFollowers(t)
	a, b, c := testserver.Namespace(t), testserver.Namespace(t), testserver.Namespace(t)
	f.allow(t, a)
	f.allow(t, c)
	f.choose(t, a, b)
	f.pod(t, a, "one")
	f.pod(t, b, "two")
	f.pod(t, c, "three")

	logs := testlog.New()
	first, _ := f.replica(t, "first")
	stopFirst := start(t, first, logs)
	f.want(t, "first has "+a+"/one")
	second, standby := f.replica(t, "second")
	start(t, second, testlog.New())
	receive(t, second.Informers.HasSyncedChecker().Done())
	if all, err := standby.pods.List(labels.Everything()); err != nil || len(all) != 1 {
		t.Errorf("the standby has %d Pods, error %v, want 1", len(all), err)
	}
	for name, op := range map[string]*operator.Operator{"leader": first, "standby": second} {
		if got := newResponse(t, op.Mux, "/readyz"); !strings.Contains(got, "ok") || strings.Contains(got, "failed") {
			t.Errorf("/readyz of the %s with a forbidden namespace: %s", name, got)
		}
	}
	late := logs.Find("Some of the selected namespaces are not shown yet")
	if len(late) == 0 || !strings.Contains(late[0].Err.Error(), "namespace "+b) {
		t.Errorf("no line names the forbidden namespace: %v", late)
	}

	f.allow(t, b) // no restart, no change of the settings
	f.want(t, "first has "+b+"/two")
	f.choose(t, b, c)
	f.want(t, "first has "+c+"/three", "first lost "+a+"/one")
	if err := f.admin.CoreV1().ConfigMaps(f.system).Delete(t.Context(), "namespaces", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.pod(t, c, "four")
	f.want(t, "first has "+c+"/four")

	if err := stopFirst(); err != nil {
		t.Errorf("Run = %v", err)
	}
	f.pod(t, c, "five")
	f.want(t, "second has "+c+"/five")
	restarted, _ := f.replica(t, "restarted")
	restarted.Informers.Timeout = 3 * time.Second
	err := restarted.Run(testlog.New().Context(t.Context()))
	if !errors.Is(err, informer.ErrNotSynced) || !strings.Contains(err.Error(), `scope: no selection was made: configmap "namespaces" not found`) {
		t.Errorf("Run without settings = %v, want the reason", err)
	}
	f.choose(t, c)
	restarted, _ = f.replica(t, "restarted")
	start(t, restarted, testlog.New())
	receive(t, restarted.Informers.HasSyncedChecker().Done())
}
