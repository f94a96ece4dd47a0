package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/reconcile"
)

func TestMain(m *testing.M) {
	testlog.Install(testlog.Silent()) // tests that look at the log bring their own
	testserver.Main(m)
}

// upper is the controller of these tests: it writes data.in of every ConfigMap,
// in capitals, to data.out.
type upper struct {
	client      kubernetes.Interface
	lister      corev1listers.ConfigMapLister
	beforeWrite func(ctx context.Context, cached *corev1.ConfigMap) // nil for none
	retryAfter  time.Duration
}

func (u *upper) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	cached, err := u.lister.ConfigMaps(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	want := strings.ToUpper(cached.Data["in"])
	if cached.Data["out"] == want {
		return reconcile.Result{}, nil
	}
	if u.beforeWrite != nil {
		u.beforeWrite(ctx, cached)
	}
	cm := cached.DeepCopy()
	cm.Data["out"] = want
	_, err = u.client.CoreV1().ConfigMaps(key.Namespace).Update(ctx, cm, metav1.UpdateOptions{})
	return reconcile.Result{RequeueAfter: u.retryAfter}, err
}

// process is one life of the controller: queue, informer, loop.
type process struct {
	metrics *counts
	logs    logs
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
	stop    func() // and wait
}

// run starts a process that watches namespace as an administrator and writes with
// the client of u.
func (u *upper) run(t *testing.T, namespace string) *process {
	t.Helper()
	admin := kubernetes.NewForConfigOrDie(testserver.Config(t))
	factory := informers.NewSharedInformerFactoryWithOptions(admin, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "test=upper" }))
	configMaps := factory.Core().V1().ConfigMaps()
	u.lister = configMaps.Lister()
	p := &process{metrics: &counts{}, logs: newLogs()}
	p.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](5*time.Millisecond, time.Second))
	add := func(obj any) {
		if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			p.queue.Add(types.NamespacedName{Namespace: name.Namespace, Name: name.Name})
		}
	}
	registration, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &reconcile.Controller[types.NamespacedName]{
		Name: "upper", Queue: p.queue, Reconcile: u.reconcile, Workers: 2, Timeout: 30 * time.Second, Metrics: p.metrics,
		HasSynced: []cache.DoneChecker{configMaps.Informer().HasSyncedChecker(), registration.HasSyncedChecker()},
	}
	ctx, cancel := context.WithCancel(p.logs.Context(context.Background()))
	factory.StartWithContext(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stopped := false
	p.stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		factory.Shutdown()
	}
	t.Cleanup(p.stop)
	return p
}

// errorLines returns what was logged as an error.
func (p *process) errorLines() []line {
	var lines []line
	for _, l := range p.logs.Having("class") {
		if l.Level < 0 {
			lines = append(lines, l)
		}
	}
	return lines
}

// configMap is an object that upper works on.
func configMap(name, in string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": "upper"}}, Data: map[string]string{"in": in}}
}

// waitForOut waits by a watch until the ConfigMap has the output.
func waitForOut(t *testing.T, client kubernetes.Interface, namespace, name, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for event := range w.ResultChan() { // begins with the present state
		if cm, ok := event.Object.(*corev1.ConfigMap); ok && cm.Data["out"] == want {
			return
		}
	}
	t.Fatalf("ConfigMap %s never got out=%s", name, want)
}

func edit(t *testing.T, client kubernetes.Interface, namespace, name, patch string) {
	t.Helper()
	if _, err := client.CoreV1().ConfigMaps(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestServerController: create, update, delete, and a restart that finds what
// changed while nobody ran.
func TestServerController(t *testing.T) {
	admin := kubernetes.NewForConfigOrDie(testserver.Config(t))
	namespace := testserver.Namespace(t)
	configMaps := admin.CoreV1().ConfigMaps(namespace)
	create := func(name, in string) {
		t.Helper()
		if _, err := configMaps.Create(t.Context(), configMap(name, in), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	u := &upper{client: admin}
	create("before", "one")
	p := u.run(t, namespace)
	waitForOut(t, admin, namespace, "before", "ONE")
	create("after", "two")
	waitForOut(t, admin, namespace, "after", "TWO")
	edit(t, admin, namespace, "after", `{"data":{"in":"three"}}`)
	waitForOut(t, admin, namespace, "after", "THREE")
	p.stop()

	edit(t, admin, namespace, "before", `{"data":{"in":"four"}}`)
	if err := configMaps.Delete(t.Context(), "after", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	create("meanwhile", "five")
	p = u.run(t, namespace)
	waitForOut(t, admin, namespace, "before", "FOUR")
	waitForOut(t, admin, namespace, "meanwhile", "FIVE")
	p.stop()
	if lines := p.errorLines(); len(lines) != 0 {
		t.Errorf("errors logged: %v, want none", lines)
	}
}

// TestServerConflict: another writer comes first. The retry is soon, quiet and
// costs no backoff.
//
// Proves R3.
func TestServerConflict(t *testing.T) {
	admin := kubernetes.NewForConfigOrDie(testserver.Config(t))
	namespace := testserver.Namespace(t)
	interfered := false
	u := &upper{client: admin, beforeWrite: func(ctx context.Context, cached *corev1.ConfigMap) {
		if interfered {
			return
		}
		interfered = true
		other := cached.DeepCopy()
		other.Annotations = map[string]string{"other": "writer"}
		if _, err := admin.CoreV1().ConfigMaps(namespace).Update(ctx, other, metav1.UpdateOptions{}); err != nil {
			t.Errorf("update by the other writer: %v", err)
		}
	}}
	if _, err := admin.CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap("a", "one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := u.run(t, namespace)
	waitForOut(t, admin, namespace, "a", "ONE")
	p.stop()

	results := p.metrics.results()
	if len(results) < 2 || results[0] != "conflict" {
		t.Errorf("results = %v, want a conflict first", results)
	}
	if n := p.queue.NumRequeues(types.NamespacedName{Namespace: namespace, Name: "a"}); n != 0 {
		t.Errorf("failures counted = %d, want 0", n)
	}
	if lines := p.errorLines(); len(lines) != 0 {
		t.Errorf("errors logged: %v, want none", lines)
	}
	cm, err := admin.CoreV1().ConfigMaps(namespace).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || cm.Annotations["other"] != "writer" {
		t.Errorf("ConfigMap = %v, %v, want the other writer's annotation kept", cm, err)
	}
}

// TestServerForbidden: the controller may not write, says what it may not, and
// goes on once it may.
func TestServerForbidden(t *testing.T) {
	cfg := testserver.Config(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	namespace := testserver.Namespace(t)
	limited := rest.CopyConfig(cfg)
	limited.Impersonate = rest.ImpersonationConfig{UserName: "test:" + namespace}

	denied := make(chan struct{}, 1)
	u := &upper{client: kubernetes.NewForConfigOrDie(limited), retryAfter: 100 * time.Millisecond}
	attempts := 0
	u.beforeWrite = func(context.Context, *corev1.ConfigMap) {
		if attempts++; attempts == 2 {
			denied <- struct{}{}
		}
	}
	if _, err := admin.CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap("a", "one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := u.run(t, namespace)
	<-denied // the first attempt is over

	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "writer"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"update"},
	}}}
	if _, err := admin.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "writer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "writer"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: limited.Impersonate.UserName}},
	}
	if _, err := admin.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForOut(t, admin, namespace, "a", "ONE")
	p.stop()

	if results := p.metrics.results(); results[0] != "forbidden" {
		t.Errorf("results = %v, want forbidden first", results)
	}
	lines := p.errorLines()
	if len(lines) == 0 {
		t.Fatalf("no error was logged")
	}
	l := lines[0]
	if l.Values["class"] == nil || l.Values["deniedResource"] != "configmaps" || l.Values["deniedName"] != "a" ||
		!strings.Contains(l.Err.Error(), `cannot update resource "configmaps"`) {
		t.Errorf("logged %v with %v, want the verb, the resource and the name", l.Err, l.Values)
	}
}

// TestServerErrors: what a real server answers has the class that the table says.
func TestServerErrors(t *testing.T) {
	cfg := testserver.Config(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	namespace := testserver.Namespace(t)
	configMaps := admin.CoreV1().ConfigMaps(namespace)
	nobody := rest.CopyConfig(cfg)
	nobody.Impersonate = rest.ImpersonationConfig{UserName: "nobody"}

	steps := map[string]func(context.Context) error{
		"conflict": func(ctx context.Context) error {
			cm, err := configMaps.Create(ctx, configMap("conflict", "x"), metav1.CreateOptions{})
			if err != nil {
				return err
			}
			for _, in := range []string{"y", "z"} { // the second update carries an old resourceVersion
				cm.Data["in"] = in
				if _, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
					return err
				}
			}
			return nil
		},
		"conflict-uid": func(ctx context.Context) error {
			if _, err := configMaps.Create(ctx, configMap("conflict-uid", "x"), metav1.CreateOptions{}); err != nil {
				return err
			}
			return configMaps.Delete(ctx, "conflict-uid", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("other"))}})
		},
		"error-apply": func(ctx context.Context) error {
			for _, manager := range []string{"one", "two"} {
				config := corev1ac.ConfigMap("error-apply", namespace).WithData(map[string]string{"by": manager})
				if _, err := configMaps.Apply(ctx, config, metav1.ApplyOptions{FieldManager: manager}); err != nil {
					return err
				}
			}
			return nil
		},
		"rejected-invalid": func(ctx context.Context) error {
			_, err := configMaps.Create(ctx, configMap("Not A Name", "x"), metav1.CreateOptions{})
			return err
		},
		"rejected-quota": func(ctx context.Context) error {
			hard := corev1.ResourceList{"count/secrets": resource.MustParse("0")}
			q, err := admin.CoreV1().ResourceQuotas(namespace).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: hard}
			if _, err = admin.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, q, metav1.UpdateOptions{}); err != nil {
				return err
			}
			return untilDenied(func() error {
				_, err := admin.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}}, metav1.CreateOptions{})
				return err
			})
		},
		"rejected-limits": func(ctx context.Context) error {
			storage := func(size string) corev1.ResourceList {
				return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
			}
			limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePersistentVolumeClaim, Max: storage("1Gi")}}}}
			if _, err := admin.CoreV1().LimitRanges(namespace).Create(ctx, limits, metav1.CreateOptions{}); err != nil {
				return err
			}
			return untilDenied(func() error {
				_, err := admin.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}, Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: storage("2Gi")},
				}}, metav1.CreateOptions{})
				return err
			})
		},
		"rejected-security": func(ctx context.Context) error {
			if _, err := admin.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`), metav1.PatchOptions{}); err != nil {
				return err
			}
			return untilDenied(func() error {
				_, err := admin.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}, metav1.CreateOptions{})
				return err
			})
		},
		"rejected-exists": func(ctx context.Context) error {
			for range 2 {
				if _, err := configMaps.Create(ctx, configMap("rejected-exists", "x"), metav1.CreateOptions{}); err != nil {
					return err
				}
			}
			return nil
		},
		"rejected-large": func(ctx context.Context) error {
			_, err := configMaps.Create(ctx, configMap("rejected-large", strings.Repeat("x", 4<<20)), metav1.CreateOptions{})
			return err
		},
		"rejected-method": func(ctx context.Context) error {
			return admin.CoreV1().RESTClient().Post().Namespace(namespace).Resource("configmaps").Name("x").Body([]byte("{}")).Do(ctx).Error()
		},
		"rejected-body": func(ctx context.Context) error {
			return admin.CoreV1().RESTClient().Post().Namespace(namespace).Resource("configmaps").Body([]byte("{")).Do(ctx).Error()
		},
		"conflict-test": func(ctx context.Context) error {
			if _, err := configMaps.Create(ctx, configMap("conflict-test", "x"), metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err := configMaps.Patch(ctx, "conflict-test", types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/uid","value":"x"}]`), metav1.PatchOptions{})
			return err
		},
		"forbidden-token": func(ctx context.Context) error {
			anonymous := rest.AnonymousClientConfig(cfg)
			anonymous.BearerToken = "wrong"
			_, err := kubernetes.NewForConfigOrDie(anonymous).CoreV1().ConfigMaps(namespace).Create(ctx, configMap("z", "x"), metav1.CreateOptions{})
			return err
		},
		"terminal-invalid": func(ctx context.Context) error {
			_, err := configMaps.Create(ctx, configMap("Not A Name", "x"), metav1.CreateOptions{})
			return fmt.Errorf("%w: %w", reconcile.ErrTerminal, err)
		},
		"not_found": func(ctx context.Context) error {
			_, err := configMaps.Update(ctx, configMap("not-there", "x"), metav1.UpdateOptions{})
			return err
		},
		"forbidden": func(ctx context.Context) error {
			_, err := kubernetes.NewForConfigOrDie(nobody).CoreV1().ConfigMaps(namespace).Create(ctx, configMap("y", "x"), metav1.CreateOptions{})
			return err
		},
	}
	logs := newLogs()
	ctx, cancel := context.WithTimeout(logs.Context(t.Context()), time.Minute)
	defer cancel()
	q, done := newTestQueue(), 0
	c := &controller{Name: "x", Queue: q, Reconcile: func(ctx context.Context, key string) (reconcile.Result, error) {
		if done++; done == len(steps) {
			defer cancel()
		}
		return reconcile.Result{RequeueAfter: time.Hour}, steps[key](ctx)
	}}
	for key := range steps {
		q.Add(key)
	}
	if err := c.Run(ctx); err != nil {
		t.Fatal(err)
	}
	q.ShutDown()
	got, want := map[string]string{}, map[string]string{}
	for _, l := range logs.Having("class") {
		got[l.Values["key"].(string)] = fmt.Sprint(l.Values["class"])
	}
	for key := range steps {
		want[key], _, _ = strings.Cut(key, "-")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("classes by case (-want +got):\n%s", diff)
	}
}

// untilDenied calls create until it fails: the caches of admission see a quota a bit later.
func untilDenied(create func() error) error {
	for {
		if err := create(); err != nil {
			return err
		}
	}
}

// TestHTTPSeesContext: net/http returns the cause of a context, not its error; a
// request that Timeout or a stop ended is still known as what it is.
func TestHTTPSeesContext(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
	defer client.CoreV1().RESTClient().(*rest.RESTClient).Client.CloseIdleConnections()
	tests := []struct {
		name    string
		timeout time.Duration
		want    string
		is      error
	}{
		{"timeout", 50 * time.Millisecond, "timeout", context.DeadlineExceeded},
		{"stop", 0, "cancelled", context.Canceled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			metrics := &counts{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var got error
			c := &controller{Name: "x", Queue: newTestQueue("a"), Timeout: tt.timeout, GracePeriod: 50 * time.Millisecond, Metrics: metrics,
				Reconcile: func(callCtx context.Context, _ string) (reconcile.Result, error) {
					if tt.timeout == 0 {
						cancel()
					}
					_, got = client.CoreV1().ConfigMaps("x").Get(callCtx, "y", metav1.GetOptions{})
					cancel()
					return reconcile.Result{RequeueAfter: time.Hour}, got
				}}
			if err := c.Run(ctx); err != nil {
				t.Fatal(err)
			}
			c.Queue.ShutDown()
			if !errors.Is(got, tt.is) {
				t.Errorf("error of the request = %v, want it to be %v", got, tt.is)
			}
			if diff := cmp.Diff([]string{tt.want}, metrics.results()); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
		})
	}
}

// TestServerUnstorable: the API server has the code 500 for some requests that it can never store.
// They are rejected: as errors they would be sent again by the queue's rate limiter without end.
func TestServerUnstorable(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().Pods(testserver.Namespace(t))
	apply := func(ctx context.Context, spec string) error {
		body := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"one"},"spec":` + spec + `}`
		_, err := client.Patch(ctx, "one", types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: "m"})
		return err
	}
	create := func(ctx context.Context, size int) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large"}}
		pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "a", Args: []string{strings.Repeat("x", size)}}}
		_, err := client.Create(ctx, pod, metav1.CreateOptions{})
		return err
	}
	for name, request := range map[string]func(context.Context) error{
		"larger than etcd allows":          func(ctx context.Context) error { return create(ctx, 7<<18) },
		"larger than etcd's client sends":  func(ctx context.Context) error { return create(ctx, 2<<20) },
		"larger than the API server reads": func(ctx context.Context) error { return create(ctx, 3<<20) },
		"a key of a list twice": func(ctx context.Context) error {
			return apply(ctx, `{"containers":[{"name":"a","image":"a","env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}]}`)
		},
		"an unknown field": func(ctx context.Context) error { return apply(ctx, `{"containers":[],"colour":"red"}`) },
		"a list in place of a text": func(ctx context.Context) error {
			return apply(ctx, `{"containers":[{"name":"a","image":[]}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			type end struct {
				result string
				err    error
			}
			ends := make(chan end, 100)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			c := &controller{
				Name: "x", Queue: newTestQueue("a"),
				Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) { return reconcile.Result{}, request(ctx) },
				Hook: func(ctx context.Context, _ string) (context.Context, func(string, error)) {
					return ctx, func(result string, err error) { ends <- end{result, err} }
				},
			}
			go func() { ended <- c.Run(ctx) }()
			if got := <-ends; got.result != "rejected" {
				t.Errorf("the result is %s for %v (%s)", got.result, got.err, apierrors.ReasonForError(got.err))
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
