package informer_test

import (
	"bytes"
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// faults are transforms that fail for objects whose name begins with "bad".
var faults = []struct {
	name, want string
	transform  func(*corev1.ConfigMap) (any, error)
}{
	{"panic", "panic: assignment to entry in nil map", func(c *corev1.ConfigMap) (any, error) {
		c.Labels = nil
		c.Labels["a"] = "b"
		return c, nil
	}},
	{"nil", "it returned nil: return the object", func(*corev1.ConfigMap) (any, error) { return nil, nil }},
	{"typed nil", "it returned nil: return the object", func(*corev1.ConfigMap) (any, error) { return (*corev1.ConfigMap)(nil), nil }},
	{"error", "too \\x00large", func(*corev1.ConfigMap) (any, error) { return nil, errors.New("too \x00large") }},
	{"no metadata", "it changed the namespace, name, UID or resourceVersion: keep them", func(c *corev1.ConfigMap) (any, error) {
		c.ObjectMeta = metav1.ObjectMeta{}
		return c, nil
	}},
	{"no version", "it changed the namespace, name, UID or resourceVersion: keep them", func(c *corev1.ConfigMap) (any, error) {
		c.ResourceVersion = ""
		return c, nil
	}},
	{"another object", "it changed the namespace, name, UID or resourceVersion: keep them", func(*corev1.ConfigMap) (any, error) { return &corev1.ConfigMap{}, nil }},
	{"no object", "it changed the namespace, name, UID or resourceVersion: keep them", func(c *corev1.ConfigMap) (any, error) { return c.Name, nil }},
}

// only calls transform for objects whose name begins with "bad".
func only(transform func(*corev1.ConfigMap) (any, error)) cache.TransformFunc {
	return func(obj any) (any, error) {
		if c := obj.(*corev1.ConfigMap); strings.HasPrefix(c.Name, "bad") {
			return transform(c)
		}
		return obj, nil
	}
}

// TestGuard: objects of a list and of events, for which a transform fails, are in the cache
// with their identity, and each is reported.
func TestGuard(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				object := func(name string) *corev1.ConfigMap {
					c := configMap(name)
					c.UID, c.ResourceVersion, c.Data = "uid", "7", map[string]string{"k": "v"}
					return c
				}
				var mu sync.Mutex
				reported := map[string]int{}
				guarded := informer.Guard(only(fault.transform), func(err error) {
					mu.Lock()
					defer mu.Unlock()
					reported[err.Error()]++
				})
				client := fake.NewClientset(object("bad"), object("good"))
				inf := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(guarded)).Core().V1().ConfigMaps().Informer()
				set := &informer.Set{}
				set.Add("configmaps", inf)
				ctx, cancel := context.WithCancel(quiet(t))
				done := make(chan error, 1)
				go func() { done <- set.Run(ctx) }()
				<-set.HasSyncedChecker().Done()
				synctest.Wait()
				for _, name := range []string{"bad-later", "good-later"} {
					if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, object(name), metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				for _, name := range []string{"bad", "good", "bad-later", "good-later"} {
					got, ok, _ := inf.GetStore().GetByKey("default/" + name)
					if c, typed := got.(*corev1.ConfigMap); !ok || !typed || c.Name != name || c.UID != "uid" || c.ResourceVersion != "7" || c.Data["k"] != "v" {
						t.Errorf("the cache has %v for %s", got, name)
					}
				}
				mu.Lock()
				for _, key := range []string{"default/bad", "default/bad-later"} {
					if want := "informer: transform ConfigMap " + key + ": " + fault.want; reported[want] == 0 {
						t.Errorf("reports: %v, want %s", reported, want)
					}
				}
				if len(reported) != 2 {
					t.Errorf("reports: %v, want two errors", reported)
				}
				mu.Unlock()
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestGuardPasses: a transform without a fault is called as without Guard.
func TestGuardPasses(t *testing.T) {
	if informer.Guard(nil, nil) != nil {
		t.Error("the guard of no transform is not nil")
	}
	report := func(err error) { t.Errorf("reported: %v", err) }
	for name, obj := range map[string]any{
		"typed": configMap("a"), "nil": nil, "typed nil": (*corev1.ConfigMap)(nil), "text": "text",
		"tombstone": cache.DeletedFinalStateUnknown{Key: "a", Obj: configMap("a")},
	} {
		got, err := informer.Guard(func(obj any) (any, error) { return obj, nil }, report)(obj)
		if got != obj || err != nil {
			t.Errorf("%s: %v, %v, want the object", name, got, err)
		}
	}
	partial := &metav1.PartialObjectMetadata{ObjectMeta: configMap("a").ObjectMeta}
	if got, err := informer.Guard(func(any) (any, error) { return partial, nil }, report)(configMap("a")); got != any(partial) || err != nil {
		t.Errorf("%v, %v, want the other type", got, err)
	}
}

// TestGuardReports: an object's kind and key come from the server and are bounded, and the
// stack of a panic can be read.
func TestGuardReports(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Widget\n" + strings.Repeat("x", 1<<20), "metadata": map[string]any{"name": strings.Repeat("\x01", 1<<20)}}}
	var stack, text string
	got, err := informer.Guard(func(any) (any, error) { panic(strings.Repeat("y", 1<<20)) }, func(err error) { stack, text = string(debug.Stack()), err.Error() })(u)
	if got != any(u) || err != nil {
		t.Errorf("%v, want the object", err)
	}
	if !strings.HasPrefix(text, `informer: transform Widget\n`) || len(text) > 8000 {
		t.Errorf("%d bytes: %.100s", len(text), text)
	}
	if !strings.Contains(stack, "guard_test.go") || !strings.Contains(stack, "panic(") {
		t.Errorf("the stack is %s", stack)
	}
}

// TestGuardLogs: without a function report, at most one fault in a second is logged, and the number
// of the others, also of those at the end of a burst.
func TestGuardLogs(t *testing.T) {
	var out bytes.Buffer
	before := klog.Background()
	klog.SetLoggerWithOptions(testlog.Text(&out, 0), klog.ContextualLogger(true))
	t.Cleanup(func() { klog.SetLoggerWithOptions(before, klog.ContextualLogger(true)) })
	synctest.Test(t, func(t *testing.T) {
		guarded := informer.Guard(only(faults[0].transform), nil)
		for range 3 {
			for range 1000 {
				if _, err := guarded(configMap("bad")); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
	})
	got := out.String()
	if n := strings.Count(got, "More transforms failed and the objects were cached as they are"); n != 1 || strings.Count(got, "omitted=999") != 3 {
		t.Errorf("%d lines about the end of the burst: %s", n, got)
	}
	if n := strings.Count(got, "A transform failed and the object was cached as it is"); n != 3 || strings.Count(got, "omitted=0") != 1 || !strings.Contains(got, "default/bad") || !strings.Contains(got, "guard_test.go") {
		t.Errorf("%d lines: %s", n, got)
	}
}

// TestServerGuard: the API server streams the first list, in which one object makes the
// transform panic.
func TestServerGuard(t *testing.T) {
	namespace := testserver.Namespace(t)
	client := typedClient(t, testserver.Config(t))
	create := func(name string) {
		t.Helper()
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": "v"}}, Data: map[string]string{"k": "v"}}
		if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("bad")
	create("good")
	reports := make(chan error, 100)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTransform(informer.Guard(only(faults[0].transform), func(err error) { reports <- err })))
	inf := factory.Core().V1().ConfigMaps().Informer()
	added := make(chan string, 100)
	handler, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { added <- obj.(*corev1.ConfigMap).Name }})
	if err != nil {
		t.Fatal(err)
	}
	set := &informer.Set{Timeout: time.Minute}
	set.Add("configmaps", inf, handler)
	ctx, cancel := context.WithCancel(quiet(t))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	<-set.HasSyncedChecker().Done()
	create("bad-later")
	for name := range added { // ends the test's wait with the event itself
		if name == "bad-later" {
			break
		}
	}
	for _, name := range []string{"bad", "bad-later", "good"} {
		got, ok, _ := inf.GetStore().GetByKey(namespace + "/" + name)
		if c, typed := got.(*corev1.ConfigMap); !ok || !typed || c.ResourceVersion == "" || c.Data["k"] != "v" {
			t.Errorf("the cache has %v for %s", got, name)
		}
	}
	if len(reports) < 2 {
		t.Errorf("%d reports, want one for each object", len(reports))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
