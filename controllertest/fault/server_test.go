package fault_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// informed runs an informer for ConfigMaps of a namespace until the test ends. The
// names that its handlers are told arrive at the channel.
func informed(t *testing.T, i *fault.Incarnation, namespace string) (cache.SharedIndexInformer, <-chan string) {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(clientset(t, i), 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	names := make(chan string, 100)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { names <- obj.(*corev1.ConfigMap).Name }}); err != nil {
		t.Fatal(err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { informer.RunWithContext(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return informer, names
}

func create(t *testing.T, kube kubernetes.Interface, namespace, name string) *corev1.ConfigMap {
	t.Helper()
	cm, err := kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm
}

func admin(t *testing.T) kubernetes.Interface {
	t.Helper()
	kube, err := kubernetes.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// TestServerNoBookmark holds that an informer is not synced by a watch-list that
// lacks the bookmark at the end of the initial list, and is after the cut.
//
// Proves N3.
func TestServerNoBookmark(t *testing.T) {
	t.Parallel()
	namespace, kube := testserver.Namespace(t), admin(t)
	create(t, kube, namespace, "a")
	cfg := testserver.Config(t)
	for _, missing := range []bool{false, true} {
		var informer cache.SharedIndexInformer
		var began, asked atomic.Int32
		ready := make(chan struct{})
		i := incarnate(t, cfg, func(op *fault.Op) fault.Fault {
			if !op.IsReflector() {
				return fault.Fault{}
			}
			<-ready
			if informer.HasSynced() {
				return fault.Fault{} // what follows the initial list
			}
			asked.Add(1)
			if missing && began.Add(1) == 1 {
				if op.Query.Get("sendInitialEvents") != "true" {
					t.Errorf("the informer began with a %s %v, and not with a watch-list", op.Verb, op.Query)
				}
				return fault.Fault{NoBookmark: 300 * time.Millisecond}
			}
			return fault.Fault{}
		}, nil)
		informer, _ = informed(t, i, namespace)
		close(ready)
		<-informer.HasSyncedChecker().Done()
		switch n := asked.Load(); {
		case missing && n < 2:
			t.Errorf("the informer was synced by a watch-list without its bookmark")
		case !missing && n != 1:
			t.Errorf("the informer needed %d requests to be synced, want 1", n)
		}
		if _, ok, _ := informer.GetStore().GetByKey(namespace + "/a"); !ok {
			t.Error("the informer is synced without the object that was there")
		}
	}
}

// TestServerHoldAndCut holds that an informer whose watch is held, cut or told
// that its version is too old has all objects in the end, and none of them early.
func TestServerHoldAndCut(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"held", "cut", "gone", "reset", "frozen"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			namespace, kube := testserver.Namespace(t), admin(t)
			var free atomic.Bool
			i := incarnate(t, testserver.Config(t), nil, nil)
			informer, names := informed(t, i, namespace)
			<-informer.HasSyncedChecker().Done()
			create(t, kube, namespace, "a")
			for <-names != "a" {
			}
			var end func()
			switch how {
			case "frozen":
				end = i.Freeze()
			case "reset":
				end = i.Reset
			default:
				end = i.Hold("configmaps")
			}
			create(t, kube, namespace, "b")
			done := make(chan struct{})
			go func() {
				defer close(done)
				for <-names != "b" {
				}
				if !free.Load() && how != "reset" {
					t.Errorf("the informer has b while it is %s", how)
				}
			}()
			free.Store(true)
			if how == "cut" || how == "gone" {
				i.Cut("configmaps", how == "gone")
			}
			end()
			<-done
			if n := i.Watches()["configmaps"]; n > 1 {
				t.Errorf("%d watches are established", n)
			}
		})
	}
}

// TestServerFaults holds that a real server has the requests that it should have,
// and only these.
func TestServerFaults(t *testing.T) {
	t.Parallel()
	namespace, kube := testserver.Namespace(t), admin(t)
	tests := []struct {
		name  string
		fault fault.Fault
		made  bool
		is    func(error) bool
	}{
		{"nothing", fault.Fault{}, true, func(err error) bool { return err == nil }},
		{"dropped", fault.Fault{Drop: true}, false, func(err error) bool { return err != nil }},
		{"lost", fault.Fault{Lose: true}, true, func(err error) bool { return err != nil }},
		{"truncated", fault.Fault{Truncate: true}, true, func(err error) bool { return err != nil }},
		{"dripping", fault.Fault{SlowBody: 20 * time.Millisecond}, true, func(err error) bool { return err == nil }},
		{"conflict", fault.Fault{Response: &fault.Response{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict}}, false, apierrors.IsConflict},
		{"committed", fault.Fault{Response: &fault.Response{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable}, Commit: true}, true, apierrors.IsServiceUnavailable},
	}
	for _, test := range tests {
		i := incarnate(t, testserver.Config(t), always(test.fault), nil)
		_, err := clientset(t, i).CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: test.name}}, metav1.CreateOptions{})
		if !test.is(err) {
			t.Errorf("%s: the caller got %v", test.name, err)
		}
		_, err = kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), test.name, metav1.GetOptions{})
		if made := err == nil; made != test.made || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: the server has it: %t, want %t (%v)", test.name, made, test.made, err)
		}
	}
	t.Run("killed", func(t *testing.T) {
		var i *fault.Incarnation
		i = incarnate(t, testserver.Config(t), func(op *fault.Op) fault.Fault {
			if op.Name == "before" {
				return fault.Fault{Before: i.Kill}
			}
			return fault.Fault{After: i.Kill}
		}, nil)
		c := clientset(t, i).CoreV1().ConfigMaps(namespace)
		for _, name := range []string{"after", "before", "later"} {
			if _, err := c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); !errors.Is(err, fault.ErrKilled) {
				t.Errorf("%s: %v, want ErrKilled", name, err)
			}
		}
		all, err := kube.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		has := func(name string) bool {
			return slices.ContainsFunc(all.Items, func(cm corev1.ConfigMap) bool { return cm.Name == name })
		}
		if !has("after") || has("before") || has("later") {
			t.Errorf("the server has: after %t, before %t, later %t", has("after"), has("before"), has("later"))
		}
	})
}

// TestServerProtobuf holds that clients which would rather speak something else
// than JSON work, are understood, and have their watches cut between events.
func TestServerProtobuf(t *testing.T) {
	t.Parallel()
	namespace, kube := testserver.Namespace(t), admin(t)
	create(t, kube, namespace, "a")
	var verbs sync.Map
	i := incarnate(t, testserver.Config(t), func(op *fault.Op) fault.Fault {
		verbs.Store(fmt.Sprintf("%s %s %s %t", op.Verb, op.Resource, op.Name, op.IsWrite()), true)
		return fault.Fault{}
	}, nil)
	cfg := i.Config()
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeProtobuf, ""
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	partial, err := metadata.NewForConfig(i.Config())
	if err != nil {
		t.Fatal(err)
	}
	if cm, err := typed.CoreV1().ConfigMaps(namespace).Get(t.Context(), "a", metav1.GetOptions{}); err != nil || cm.Name != "a" {
		t.Errorf("get of a typed client: %v", err)
	}
	if _, err := typed.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("create of a typed client: %v", err)
	}
	gvr := corev1.SchemeGroupVersion.WithResource("configmaps")
	if cm, err := partial.Resource(gvr).Namespace(namespace).Get(t.Context(), "a", metav1.GetOptions{}); err != nil || cm.Name != "a" {
		t.Errorf("get of a metadata client: %v", err)
	}
	if _, err := typed.Discovery().OpenAPISchema(); err != nil {
		t.Errorf("a document that exists as protobuf only: %v", err)
	}
	for name, open := range map[string]func() (watch.Interface, error){
		"typed": func() (watch.Interface, error) {
			return typed.CoreV1().ConfigMaps(namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a", ResourceVersion: "0"})
		},
		"metadata": func() (watch.Interface, error) {
			return partial.Resource(gvr).Namespace(namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a", ResourceVersion: "0"})
		},
	} {
		w, err := open()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if event := <-w.ResultChan(); event.Type != watch.Added {
			t.Errorf("%s: %v", name, event)
		}
		i.Cut("configmaps", true)
		if event := <-w.ResultChan(); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
			t.Errorf("%s: %v, want 410 Expired", name, event)
		}
		w.Stop()
	}
	if err := typed.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "b", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("dry run: %v", err)
	}
	for _, want := range []string{"get configmaps a false", "create configmaps b true", "delete configmaps b false"} {
		if _, ok := verbs.Load(want); !ok {
			t.Errorf("no request was understood as %q", want)
		}
	}
}
