package managerkit_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	appsv1apply "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// replicaSet returns a ReplicaSet with the annotation turn.
func replicaSet(ns string, n int) *appsv1.ReplicaSet {
	labels := map[string]string{"app": "own"}
	return &appsv1.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "own", Annotations: map[string]string{turn: strconv.Itoa(n)}},
		Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
}

func loose(t *testing.T, obj any) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}

// written is a state of the ReplicaSet that a write makes. have is nil if it is absent.
type written struct {
	name string
	do   func(ctx context.Context, s *site, n int) error
	have func(rs *appsv1.ReplicaSet, n int) bool
}

func annotated(rs *appsv1.ReplicaSet, n int) bool { return rs.Annotations[turn] == strconv.Itoa(n) }
func inStatus(rs *appsv1.ReplicaSet, n int) bool  { return rs.Status.Replicas == int32(n) }

func mergePatch(n int) []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, turn, n)
}

// ownWrites returns writes by the manager's client, typed and unstructured, by a clientset
// and by a dynamic client.
func ownWrites(t *testing.T) []written {
	current := func(ctx context.Context, s *site, n int) (*appsv1.ReplicaSet, error) {
		rs := &appsv1.ReplicaSet{}
		err := s.mgr.GetAPIReader().Get(ctx, types.NamespacedName{Namespace: s.ns, Name: "own"}, rs)
		rs.Annotations = map[string]string{turn: strconv.Itoa(n)}
		rs.Status.Replicas = int32(n)
		rs.APIVersion, rs.Kind = "apps/v1", "ReplicaSet"
		return rs, err
	}
	sets := func(s *site) dynamic.ResourceInterface {
		return dynamic.NewForConfigOrDie(s.mgr.GetConfig()).Resource(appsv1.SchemeGroupVersion.WithResource("replicasets")).Namespace(s.ns)
	}
	typed := func(s *site) kubernetes.Interface { return kubernetes.NewForConfigOrDie(s.mgr.GetConfig()) }
	var list []written
	add := func(name string, have func(*appsv1.ReplicaSet, int) bool, do func(ctx context.Context, s *site, n int) error) {
		list = append(list, written{name, do, have})
	}
	change := func(name string, have func(*appsv1.ReplicaSet, int) bool, do func(ctx context.Context, s *site, rs *appsv1.ReplicaSet) error) {
		add(name, have, func(ctx context.Context, s *site, n int) error {
			rs, err := current(ctx, s, n)
			if err != nil {
				return err
			}
			return do(ctx, s, rs)
		})
	}
	add("client create", annotated, func(ctx context.Context, s *site, n int) error {
		return s.mgr.GetClient().Create(ctx, replicaSet(s.ns, n))
	})
	change("client update", annotated, func(ctx context.Context, s *site, rs *appsv1.ReplicaSet) error {
		return s.mgr.GetClient().Update(ctx, rs)
	})
	add("client patch", annotated, func(ctx context.Context, s *site, n int) error {
		return s.mgr.GetClient().Patch(ctx, replicaSet(s.ns, 0), client.RawPatch(types.MergePatchType, mergePatch(n)))
	})
	add("client apply", annotated, func(ctx context.Context, s *site, n int) error {
		rs := appsv1apply.ReplicaSet("own", s.ns).WithAnnotations(map[string]string{turn: strconv.Itoa(n)})
		return s.mgr.GetClient().Apply(ctx, rs, client.FieldOwner("test"), client.ForceOwnership)
	})
	change("client status", inStatus, func(ctx context.Context, s *site, rs *appsv1.ReplicaSet) error {
		return s.mgr.GetClient().Status().Update(ctx, rs)
	})
	add("client delete", nil, func(ctx context.Context, s *site, _ int) error {
		return s.mgr.GetClient().Delete(ctx, replicaSet(s.ns, 0))
	})

	add("unstructured create", annotated, func(ctx context.Context, s *site, n int) error {
		return s.mgr.GetClient().Create(ctx, loose(t, replicaSet(s.ns, n)))
	})
	change("unstructured update", annotated, func(ctx context.Context, s *site, rs *appsv1.ReplicaSet) error {
		return s.mgr.GetClient().Update(ctx, loose(t, rs))
	})
	change("unstructured status", inStatus, func(ctx context.Context, s *site, rs *appsv1.ReplicaSet) error {
		return s.mgr.GetClient().Status().Update(ctx, loose(t, rs))
	})
	add("unstructured delete", nil, func(ctx context.Context, s *site, n int) error {
		return s.mgr.GetClient().Delete(ctx, loose(t, replicaSet(s.ns, n)))
	})

	add("clientset create", annotated, func(ctx context.Context, s *site, n int) error {
		_, err := typed(s).AppsV1().ReplicaSets(s.ns).Create(ctx, replicaSet(s.ns, n), metav1.CreateOptions{})
		return err
	})
	change("clientset update", annotated, func(ctx context.Context, s *site, rs *appsv1.ReplicaSet) error {
		_, err := typed(s).AppsV1().ReplicaSets(s.ns).Update(ctx, rs, metav1.UpdateOptions{})
		return err
	})
	add("clientset apply", annotated, func(ctx context.Context, s *site, n int) error {
		rs := appsv1apply.ReplicaSet("own", s.ns).WithAnnotations(map[string]string{turn: strconv.Itoa(n)})
		_, err := typed(s).AppsV1().ReplicaSets(s.ns).Apply(ctx, rs, metav1.ApplyOptions{FieldManager: "test", Force: true})
		return err
	})
	change("clientset status", inStatus, func(ctx context.Context, s *site, rs *appsv1.ReplicaSet) error {
		_, err := typed(s).AppsV1().ReplicaSets(s.ns).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
		return err
	})
	add("clientset delete", nil, func(ctx context.Context, s *site, _ int) error {
		return typed(s).AppsV1().ReplicaSets(s.ns).Delete(ctx, "own", metav1.DeleteOptions{})
	})

	add("dynamic create", annotated, func(ctx context.Context, s *site, n int) error {
		_, err := sets(s).Create(ctx, loose(t, replicaSet(s.ns, n)), metav1.CreateOptions{})
		return err
	})
	add("dynamic patch", annotated, func(ctx context.Context, s *site, n int) error {
		_, err := sets(s).Patch(ctx, "own", types.MergePatchType, mergePatch(n), metav1.PatchOptions{})
		return err
	})
	change("dynamic status", inStatus, func(ctx context.Context, s *site, rs *appsv1.ReplicaSet) error {
		_, err := sets(s).UpdateStatus(ctx, loose(t, rs), metav1.UpdateOptions{})
		return err
	})
	add("dynamic delete", nil, func(ctx context.Context, s *site, _ int) error {
		return sets(s).Delete(ctx, "own", metav1.DeleteOptions{})
	})
	return list
}

// One run of a key makes a write, and the next one reads it from the cache. The watch is held
// in between, and the key has an event: it runs when the write is visible.
//
// Proves MK2.
func TestServerSeesOwnWrites(t *testing.T) {
	writes := ownWrites(t)
	wrong := make(chan error, 2*len(writes))
	s := newSite(t, siteOptions{gated: true, reconcile: func(ctx context.Context, s *site, owner *corev1.ServiceAccount, n int) (ctrl.Result, error) {
		if owner.Name != "owner" {
			return ctrl.Result{}, nil
		}
		w := writes[(n-1)/2]
		if n%2 == 1 {
			if err := w.do(ctx, s, n); err != nil {
				wrong <- fmt.Errorf("%s: %w", w.name, err)
			}
			return ctrl.Result{}, nil
		}
		rs := &appsv1.ReplicaSet{}
		err := s.mgr.GetClient().Get(ctx, types.NamespacedName{Namespace: s.ns, Name: "own"}, rs)
		switch {
		case err != nil && !apierrors.IsNotFound(err), (err != nil) != (w.have == nil), err == nil && !w.have(rs, n-1):
			wrong <- fmt.Errorf("after %s: the cache has %v, status %d, %v", w.name, rs.Annotations, rs.Status.Replicas, err)
		case consistency.LiveRead(ctx):
			wrong <- fmt.Errorf("after %s: LiveRead is true", w.name)
		}
		return ctrl.Result{}, nil
	}})
	s.watch(&appsv1.ReplicaSet{})
	for i, w := range writes {
		n := 2*i + 1
		release := s.process.Hold("replicasets.apps")
		s.event("owner", n)
		s.mustUntil("run", func() bool { return s.ended["owner"] >= n })
		s.event("owner", n+1)
		s.pass("other", i+1)
		s.mu.Lock()
		if s.began["owner"] > n {
			t.Errorf("after %s: the key ran while the watch was held", w.name)
		}
		s.mu.Unlock()
		release()
		s.mustUntil("run after the release", func() bool { return s.ended["owner"] > n })
	}
	close(wrong)
	for err := range wrong {
		t.Error(err)
	}
}

// While one key waits for its write, a controller with one worker runs fifty other keys.
// With controller-runtime's option the worker waits in the read, and no other key runs.
func TestServerWorkerIsFree(t *testing.T) {
	const others = 50
	for _, tt := range []struct {
		name    string
		options siteOptions
		want    int
	}{
		{"writes", siteOptions{gated: true}, others},
		{"writes and loop", siteOptions{gated: true, loop: true}, others},
		{"option", siteOptions{native: true}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := tt.options
			o.reconcile = func(ctx context.Context, s *site, owner *corev1.ServiceAccount, _ int) (ctrl.Result, error) {
				if owner.Name != "owner" {
					return ctrl.Result{}, nil
				}
				if n, err := typedChildren(ctx, s, owner.Name); n > 0 || err != nil {
					return ctrl.Result{}, err
				}
				return ctrl.Result{}, s.mgr.GetClient().Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
					Namespace: s.ns, GenerateName: "child-", Labels: map[string]string{ownerName: owner.Name},
				}})
			}
			s := newSite(t, o)
			s.watch(&corev1.ConfigMap{})
			release := s.process.Hold("configmaps")
			defer release()
			s.event("owner", 1)
			s.mustUntil("run", func() bool { return s.ended["owner"] >= 1 })
			s.event("owner", 2)
			if o.native {
				s.mustUntil("begin to read", func() bool { return s.began["owner"] >= 2 })
			}
			for n := range others {
				s.event(fmt.Sprint("other-", n), 1)
			}
			ran := func() int {
				n := 0
				for owner := range s.ended {
					if owner != "owner" {
						n++
					}
				}
				return n
			}
			within := patience
			if tt.want == 0 {
				within = 3 * time.Second
			}
			s.until(within, func() bool { return ran() >= others })
			s.mu.Lock()
			got := ran()
			s.mu.Unlock()
			if got != tt.want {
				t.Errorf("%d other keys ran, want %d", got, tt.want)
			}
			release()
			s.mustUntil("run all", func() bool { return s.ended["owner"] >= 2 && ran() == others })
			if got := s.children("owner"); got != 1 {
				t.Errorf("%d children, want 1", got)
			}
		})
	}
}

// A metadata informer starts after the key's write was made, and its first events are held.
// The key waits for it, although the typed informer shows the write. If both are
// removed, it does not wait.
//
// Proves MK2.
func TestServerInformersComeAndGo(t *testing.T) {
	var watches atomic.Int32
	second := make(chan struct{}) // closed when the second informer may begin
	s := newSite(t, siteOptions{
		gated: true,
		on: func(op *fault.Op) fault.Fault {
			if op.Resource != "configmaps" || !op.IsReflector() || watches.Add(1) == 1 {
				return fault.Fault{}
			}
			return fault.Fault{Before: func() { <-second }}
		},
		reconcile: func(ctx context.Context, s *site, owner *corev1.ServiceAccount, n int) (ctrl.Result, error) {
			if owner.Name != "owner" || n == 2 { // the next run must need no cache: the watches are held
				return ctrl.Result{}, nil
			}
			return ctrl.Result{}, s.mgr.GetClient().Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: fmt.Sprint("turn-", n)}})
		},
	})
	s.watch(&corev1.ConfigMap{})
	ctx := t.Context()
	metadata := kindOf(&metav1.PartialObjectMetadata{})
	if _, err := s.mgr.GetCache().GetInformer(ctx, metadata, cache.BlockUntilSynced(false)); err != nil {
		t.Fatal(err)
	}
	s.event("owner", 1)
	s.mustUntil("run", func() bool { return s.ended["owner"] >= 1 })
	made := &corev1.ConfigMap{}
	if err := s.mgr.GetAPIReader().Get(ctx, types.NamespacedName{Namespace: s.ns, Name: "turn-1"}, made); err != nil {
		t.Fatal(err)
	}
	s.mustUntil("cached by the typed informer", func() bool { return s.cached[made.UID] })
	s.event("owner", 2)
	s.pass("other", 1)
	s.mu.Lock()
	if s.began["owner"] > 1 {
		t.Error("the key ran although a second informer does not show its write")
	}
	s.mu.Unlock()
	close(second)
	s.mustUntil("run when the second informer has begun", func() bool { return s.ended["owner"] >= 2 })
	if err := s.mgr.GetClient().Get(ctx, types.NamespacedName{Namespace: s.ns, Name: "turn-1"}, metadata); err != nil {
		t.Errorf("the second informer does not show the write: %v", err)
	}

	release := s.process.Hold("configmaps")
	defer release()
	s.event("owner", 3)
	s.mustUntil("run", func() bool { return s.ended["owner"] >= 3 })
	s.event("owner", 4)
	s.pass("other", 2)
	s.mu.Lock()
	if s.began["owner"] > 3 {
		t.Error("the key ran while the watches were held")
	}
	s.mu.Unlock()
	for _, obj := range []client.Object{&corev1.ConfigMap{}, kindOf(&metav1.PartialObjectMetadata{})} {
		if err := s.mgr.GetCache().RemoveInformer(ctx, obj); err != nil {
			t.Fatal(err)
		}
	}
	s.mustUntil("run when no informer is left", func() bool { return s.ended["owner"] >= 4 })
}

// The manager has two informers and holds one of them. A key that writes in a namespace of
// the other runs again. So does a key that writes in a namespace that none of them watches.
//
// Proves MK2.
func TestServerNamespaces(t *testing.T) {
	for _, tt := range []struct {
		name  string
		other string // the namespace that the cache has beside that of the test
		held  string // the end of the path of the held informer
		third bool   // the third namespace is watched by the held informer
	}{
		{"of one namespace", "default", "/namespaces/default/configmaps", false},
		{"of all others", cache.AllNamespaces, "/api/v1/configmaps", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			held := &heldWatches{match: func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, tt.held) }}
			s := newSite(t, siteOptions{
				gated: true,
				cache: func(_ string, opts *cache.Options) { opts.DefaultNamespaces[tt.other] = cache.Config{} },
				wrap:  held.wrap,
				reconcile: func(ctx context.Context, s *site, owner *corev1.ServiceAccount, n int) (ctrl.Result, error) {
					namespace := map[string]string{"own": s.ns, "held": "default", "third": "kube-public"}[owner.Name]
					if n > 1 || namespace == "" {
						return ctrl.Result{}, nil
					}
					return ctrl.Result{}, s.mgr.GetClient().Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "own-"}})
				},
			})
			s.watch(&corev1.ConfigMap{})
			release := held.hold()
			defer release()
			for _, owner := range []string{"held", "third", "own"} {
				s.event(owner, 1)
				s.mustUntil("run", func() bool { return s.ended[owner] >= 1 })
				s.event(owner, 2)
			}
			s.mustUntil("run the key of the other informer", func() bool { return s.ended["own"] >= 2 })
			if !tt.third {
				s.mustUntil("run the key of the third namespace", func() bool { return s.ended["third"] >= 2 })
			}
			s.pass("other", 1)
			s.mu.Lock()
			if s.began["held"] > 1 || tt.third && s.began["third"] > 1 {
				t.Error("a key ran although its informer was held")
			}
			s.mu.Unlock()
			release()
			s.mustUntil("run all", func() bool { return s.ended["held"] >= 2 && s.ended["third"] >= 2 })
		})
	}
}

// A create is carried out and its connection reset. The next run reads live, finds the
// object and creates none; the run after that does not read live.
func TestServerAmbiguousWrite(t *testing.T) {
	var lost atomic.Bool
	lives := make(chan bool, 10)
	s := newSite(t, siteOptions{
		gated: true,
		on: func(op *fault.Op) fault.Fault {
			return fault.Fault{Lose: op.Verb == "create" && op.Resource == "configmaps" && lost.CompareAndSwap(false, true)}
		},
		reconcile: func(ctx context.Context, s *site, owner *corev1.ServiceAccount, _ int) (ctrl.Result, error) {
			lives <- consistency.LiveRead(ctx)
			reader := cached(s)
			if consistency.LiveRead(ctx) {
				reader = live(s)
			}
			list := &corev1.ConfigMapList{}
			if err := reader.List(ctx, list, client.InNamespace(s.ns), client.MatchingLabels{ownerName: owner.Name}); err != nil {
				return ctrl.Result{}, err
			}
			if len(list.Items) > 0 {
				if consistency.LiveRead(ctx) {
					return ctrl.Result{}, s.writes.WroteAt(ctx, &list.Items[0])
				}
				return ctrl.Result{}, nil
			}
			return ctrl.Result{}, s.mgr.GetClient().Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: s.ns, GenerateName: "child-", Labels: map[string]string{ownerName: owner.Name},
			}})
		},
	})
	s.watch(&corev1.ConfigMap{})
	release := s.process.Hold("configmaps")
	defer release()
	s.event("owner", 1) // fails, and is run again
	s.mustUntil("run twice", func() bool { return s.runs["owner"] >= 2 })
	s.event("owner", 2)
	release()
	s.mustUntil("run the second event", func() bool { return s.ended["owner"] >= 2 })
	for n, want := range []bool{false, true, false} {
		if got := <-lives; got != want {
			t.Errorf("run %d: LiveRead() = %t, want %t", n+1, got, want)
		}
	}
	if got := s.children("owner"); got != 1 {
		t.Errorf("%d children, want 1", got)
	}
	if err := s.writes.WroteAt(t.Context(), &corev1.ConfigMap{}); err == nil {
		t.Error("WroteAt() with another context = nil, want an error")
	}
}
