package myths_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// TestBucketThrottlesRetriesOnly: client-go's default rate limiter has a bucket of 100
// tokens, and Add does not ask it.
func TestBucketThrottlesRetriesOnly(t *testing.T) {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[int]())
	defer q.ShutDown()
	for key := range 1000 {
		q.Add(key)
	}
	if got := q.Len(); got != 1000 {
		t.Errorf("%d of 1000 added keys are ready at once", got)
	}
}

// TestIndexerHasNoAnd: an Indexer answers for one value of one index; the intersection
// is the caller's.
func TestIndexerHasNoAnd(t *testing.T) {
	index := func(label string) cache.IndexFunc {
		return func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Labels[label]}, nil }
	}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{"app": index("app"), "tier": index("tier")})
	for name, labels := range map[string]map[string]string{
		"a": {"app": "x", "tier": "front"},
		"b": {"app": "x", "tier": "back"},
	} {
		if err := indexer.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}); err != nil {
			t.Fatal(err)
		}
	}
	found, err := indexer.ByIndex("app", "x")
	if err != nil || len(found) != 2 {
		t.Errorf("got %d objects and error %v, want the 2 of app=x whatever their tier", len(found), err)
	}
	if _, err := indexer.ByIndex("app,tier", "x,front"); err == nil {
		t.Error("an index of two names exists")
	}
}

// TestConvertDoesNotValidate: ConvertToVersion accepts what the API server rejects.
func TestConvertDoesNotValidate(t *testing.T) {
	replicas := int32(-1)
	invalid := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "not a name"},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas},
	}
	if _, err := scheme.Scheme.ConvertToVersion(invalid, appsv1.SchemeGroupVersion); err != nil {
		t.Errorf("got %v, want the invalid object converted", err)
	}
}

func client(t *testing.T) (kubernetes.Interface, string) {
	t.Helper()
	c, err := kubernetes.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return c, testserver.Namespace(t)
}

// deployment creates a Deployment, whose controller does not run here.
func deployment(t *testing.T, c kubernetes.Interface, ns string) *appsv1.Deployment {
	t.Helper()
	labels := map[string]string{"app": "a"}
	d, err := c.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestServerGenerationCountsSpecsOnly: the generation stays while labels and the status
// change.
func TestServerGenerationCountsSpecsOnly(t *testing.T) {
	c, ns := client(t)
	d := deployment(t, c, ns)
	d.Labels = map[string]string{"changed": "yes"}
	labelled, err := c.AppsV1().Deployments(ns).Update(t.Context(), d, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labelled.Status.Replicas = 1
	reported, err := c.AppsV1().Deployments(ns).UpdateStatus(t.Context(), labelled, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Generation != 1 || labelled.Generation != 1 || reported.Generation != 1 {
		t.Errorf("generations %d, %d, %d; want 1 each time", d.Generation, labelled.Generation, reported.Generation)
	}
	paused := reported.DeepCopy()
	paused.Spec.Paused = true
	changed, err := c.AppsV1().Deployments(ns).Update(t.Context(), paused, metav1.UpdateOptions{})
	if err != nil || changed.Generation != 2 {
		t.Errorf("a change of the spec: got generation %d and error %v, want 2", changed.Generation, err)
	}
}

// TestServerPutIgnoresStatus: a PUT of the main resource returns 200 and keeps the
// stored status.
func TestServerPutIgnoresStatus(t *testing.T) {
	c, ns := client(t)
	d := deployment(t, c, ns)
	d.Status.ObservedGeneration = 7
	got, err := c.AppsV1().Deployments(ns).Update(t.Context(), d, metav1.UpdateOptions{})
	if err != nil || got.Status.ObservedGeneration != 0 {
		t.Errorf("Update: got observedGeneration %d and error %v, want success that ignores the status", got.Status.ObservedGeneration, err)
	}
	got, err = c.AppsV1().Deployments(ns).UpdateStatus(t.Context(), d, metav1.UpdateOptions{})
	if err != nil || got.Status.ObservedGeneration != 7 {
		t.Errorf("UpdateStatus: got observedGeneration %d and error %v, want 7", got.Status.ObservedGeneration, err)
	}
	// Server-side apply does the same.
	_, err = c.AppsV1().Deployments(ns).Apply(t.Context(), applyappsv1.Deployment("a", ns).
		WithStatus(applyappsv1.DeploymentStatus().WithObservedGeneration(8)), metav1.ApplyOptions{FieldManager: "myths"})
	if err != nil {
		t.Errorf("Apply: %v", err)
	}
}

// TestServerWatchIsOneRequest: many events arrive in the response to one request.
func TestServerWatchIsOneRequest(t *testing.T) {
	config, requests := testserver.Counted(t)
	watching, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	writing, ns := client(t)
	w, err := watching.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		if _, err := writing.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		event, ok := <-w.ResultChan()
		if !ok || event.Type != watch.Added || event.Object.(*corev1.ConfigMap).Name != name {
			t.Fatalf("got %v, want that %s was added", event, name)
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests for 5 events, want 1", n)
	}
}

// TestServerTimeoutSecondsEndsWatchesOnly: TimeoutSeconds makes the server end a watch,
// with a clean end of the stream and no error.
func TestServerTimeoutSecondsEndsWatchesOnly(t *testing.T) {
	c, ns := client(t)
	second := int64(1)
	w, err := c.CoreV1().Secrets(ns).Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: &second})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			t.Errorf("got the error %v, want a clean end", event.Object)
		}
	}
}
