package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// events calls do with each event of the ConfigMaps of a run, and ends with ctx.
func events(ctx context.Context, cfg *rest.Config, env *controllertest.Env, do func(client typedv1.ConfigMapInterface, event watch.EventType, of *corev1.ConfigMap) error) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	client := kube.CoreV1().ConfigMaps(env.Namespace)
	w, err := client.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		of, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			return apierrors.FromObject(event.Object)
		}
		if err := do(client, event.Type, of); err != nil && ctx.Err() == nil {
			return err
		}
	}
	if ctx.Err() == nil {
		return errors.New("the watch ended")
	}
	return nil
}

// TestWorld: a controller that needs others in the cluster is explored with them. They get
// no fault and live through its crashes, and their writes are neither operations nor
// compared. Here somebody starts a, as a kubelet starts a Pod, and counts its events, of
// which UserEdit makes one more.
func TestWorld(t *testing.T) {
	t.Parallel()
	var worlds, ended atomic.Int64
	f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		if err := copyAndNote(ctx, f, a); err != nil || a.Annotations["started"] == "" {
			return err
		}
		return f.annotate(ctx, a, "seen", "yes")
	}}
	s := f.scenario()
	s.World = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		worlds.Add(1)
		defer ended.Add(1)
		seen := 0
		return events(ctx, cfg, env, func(client typedv1.ConfigMapInterface, event watch.EventType, of *corev1.ConfigMap) error {
			if event == watch.Deleted || of.Name != "a" {
				return nil
			}
			if of.Annotations["noted"] != "" && of.Annotations["started"] == "" {
				_, err := client.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"annotations":{"started":"yes"}}}`), metav1.PatchOptions{})
				if ignoreNotFound(err) != nil {
					return err
				}
			}
			seen++
			count := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "count"}, Data: map[string]string{"events": fmt.Sprint(seen)}}
			_, err := client.Update(ctx, count, metav1.UpdateOptions{})
			if apierrors.IsNotFound(err) {
				_, err = client.Create(ctx, count, metav1.CreateOptions{})
			}
			if err != nil {
				return err
			}
			if _, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "echo"}}, metav1.CreateOptions{}); err != nil {
				return err
			}
			return client.Delete(ctx, "echo", metav1.DeleteOptions{})
		})
	}
	s.Converged = func(s *controllertest.State) error {
		a, b := s.Get("configmaps", "a"), s.Get("configmaps", "b")
		switch {
		case (a == nil) != (b == nil):
			return errors.New("b is missing, or left")
		case a != nil && a.GetAnnotations()["seen"] == "":
			return errors.New("a has not started, or nobody has seen it")
		case s.Get("configmaps", "count") == nil:
			return errors.New("the objects of the World are not in the state")
		}
		return nil
	}
	o := quick(t, "user-edit(configmaps/a)@create configmaps b#1", "crash-after@create configmaps b#1", "crash-before@update configmaps a metadata.annotations#1", "409@update configmaps a metadata.annotations#1", "hold(configmaps)@create configmaps b#1")
	o.Parallel, o.ConvergeTimeout = 5, time.Minute
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid != 5 {
		t.Errorf("%d plans are valid, invalid %q", report.Valid, report.Invalid)
	}
	for _, operation := range slices.Concat(report.Operations, report.Skipped) {
		if strings.Contains(operation, "echo") || strings.Contains(operation, "patch") || strings.Contains(operation, "count") {
			t.Errorf("the operation %q is the World's", operation)
		}
	}
	if worlds.Load() != 9 || ended.Load() != 9 {
		t.Errorf("%d Worlds, and %d ended; want one for each of 9 runs", worlds.Load(), ended.Load())
	}
}

// TestWorldDeletes: deletions of a collection and evictions by the World are not counted
// as deletions by the controller. Here they follow an edit by the user of a plan.
func TestWorldDeletes(t *testing.T) {
	t.Parallel()
	s := (&copier{}).scenario()
	s.World = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		pods, meta := kube.CoreV1().Pods(env.Namespace), metav1.ObjectMeta{Name: "echo", Labels: map[string]string{"echo": "yes"}}
		done := false
		return events(ctx, cfg, env, func(client typedv1.ConfigMapInterface, _ watch.EventType, of *corev1.ConfigMap) error {
			if done || of.Name != "a" || of.Annotations["controllertest.controllerkit.github.io/edited"] == "" {
				return nil
			}
			done = true
			if _, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
				return err
			}
			if err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "echo"}); err != nil {
				return err
			}
			pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image"}}}}
			if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				return err
			}
			if err := pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "echo"}}); err != nil {
				return err
			}
			_, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "echoed"}}, metav1.CreateOptions{})
			return err
		})
	}
	converged := s.Converged
	s.Converged = func(s *controllertest.State) error {
		if a := s.Get("configmaps", "a"); a != nil && a.GetAnnotations()["controllertest.controllerkit.github.io/edited"] != "" && s.Get("configmaps", "echoed") == nil {
			return errors.New("the World has not deleted its objects")
		}
		return converged(s)
	}
	o := quick(t, "user-edit(configmaps/a)@create configmaps a-copy#1")
	o.ConvergeTimeout = time.Minute
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid != 1 {
		t.Errorf("%d plans are valid, invalid %q", report.Valid, report.Invalid)
	}
}

// TestWorldDies: a World that cannot go on ends the exploration with one error that names
// it and the cure, and the controller is not blamed.
//
// Proves X4.
func TestWorldDies(t *testing.T) {
	t.Parallel()
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	const cure = "let it retry after errors, and return when its context is done"
	tests := []struct {
		name  string
		world func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error
		plan  string // "" means that it dies without faults
		want  []string
	}{
		{
			name:  "returns an error",
			world: func(context.Context, *rest.Config, *controllertest.Env) error { return errors.New("no ACME today") },
			want:  []string{"Scenario.World ended before its context was done: no ACME today: " + cure},
		}, {
			name:  "returns at once",
			world: func(context.Context, *rest.Config, *controllertest.Env) error { return nil },
			want:  []string{"Scenario.World ended before its context was done: without an error: " + cure},
		}, {
			name:  "panics",
			world: func(context.Context, *rest.Config, *controllertest.Env) error { panic("bang") },
			want:  []string{"Scenario.World ended before its context was done: panic: bang\n", "world_test.go", cure},
		}, {
			name:  "ends its goroutine",
			world: func(context.Context, *rest.Config, *controllertest.Env) error { runtime.Goexit(); return nil },
			want:  []string{"Scenario.World ended before its context was done: it called runtime.Goexit, as t.FailNow does: return an error instead: " + cure},
		}, {
			name: "panics in a worker of client-go",
			world: func(ctx context.Context, _ *rest.Config, _ *controllertest.Env) error {
				var workers sync.WaitGroup
				defer workers.Wait()
				workers.Go(func() { wait.UntilWithContext(ctx, func(context.Context) { panic("in a worker") }, time.Hour) })
				<-ctx.Done()
				return nil
			},
			want: []string{"Scenario.World panicked: in a worker: let its goroutines handle errors"},
		}, {
			name: "does not stop",
			world: func(context.Context, *rest.Config, *controllertest.Env) error {
				<-forever
				return nil
			},
			want: []string{"Scenario.World has not returned 2s after its context was done: let all that it started end then", "world_test.go"},
		}, {
			name: "leaves goroutines",
			world: func(ctx context.Context, _ *rest.Config, _ *controllertest.Env) error {
				go func() { <-forever }()
				<-ctx.Done()
				return nil
			},
			want: []string{"goroutines of Scenario.World are left 2s after its run: let it wait for all that it started", "world_test.go"},
		}, {
			name: "writes without end",
			world: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				n := 0
				return events(ctx, cfg, env, func(client typedv1.ConfigMapInterface, event watch.EventType, of *corev1.ConfigMap) error {
					if of.Name != "a" || event == watch.Deleted {
						return nil
					}
					n++
					_, err := client.Patch(ctx, "a", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, n), metav1.PatchOptions{})
					return ignoreNotFound(err)
				})
			},
			want: []string{"Scenario.World writes without end, so there is no rest of 250ms: let it write only if something changes: patch configmaps a metadata.annotations"},
		}, {
			name: "dies of what a plan does", plan: "user-edit(configmaps/a)@create configmaps a-copy#1",
			world: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				return events(ctx, cfg, env, func(_ typedv1.ConfigMapInterface, event watch.EventType, of *corev1.ConfigMap) error {
					if event == watch.Modified && of.Name == "a" {
						return errors.New("edited by somebody")
					}
					return nil
				})
			},
			want: []string{"Scenario.World ended before its context was done: edited by somebody: " + cure},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := (&copier{}).scenario()
			s.World = test.world
			o := quick(t, dropped)
			o.ConvergeTimeout, o.StopTimeout = 4*time.Second, 2*time.Second
			if test.plan != "" {
				o.Plans = []string{test.plan}
				o.ConvergeTimeout = 20 * time.Second
			}
			rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, s, o) })
			if len(rec.told) != 1 {
				t.Errorf("Explore reports %d errors, want one:\n%s", len(rec.told), rec.errors())
			}
			for _, part := range append(test.want, "controllertest: copier: ") {
				if !strings.Contains(rec.errors(), part) {
					t.Errorf("Explore reports\n%s\nwant %q", rec.errors(), part)
				}
			}
		})
	}
}

// TestWorldDeletesItsNodes: the World can send requests at its end.
func TestWorldDeletesItsNodes(t *testing.T) {
	t.Parallel()
	var nodes sync.Map // their names
	s := (&copier{}).scenario()
	s.World = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		nodes.Store(world.NodeName(env, "x"), true)
		return world.Cluster{Nodes: []string{"x"}}.Run(ctx, cfg, env)
	}
	o := quick(t, dropped)
	kube := kubernetes.NewForConfigOrDie(o.Config)
	s.Script = append([]controllertest.Step{{Name: "wait for the Node", Do: func(ctx context.Context, _ *rest.Config, env *controllertest.Env) error {
		w, err := kube.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + world.NodeName(env, "x")})
		if err != nil {
			return err
		}
		defer w.Stop()
		<-w.ResultChan()
		return nil
	}}}, s.Script...)
	run(t, s, o)
	for name := range nodes.Range {
		if _, err := kube.CoreV1().Nodes().Get(t.Context(), name.(string), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("Get of Node %s after its run: error %v, want NotFound", name, err)
		}
	}
}
