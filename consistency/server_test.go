package consistency_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/consistency"
)

type heldBody struct {
	io.ReadCloser
	h   *holder
	ctx context.Context
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.h.mu.Lock()
	free := b.h.free
	b.h.mu.Unlock()
	select {
	case <-free:
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
	return n, err
}

// Every kind of write of a reconcile is waited for, and seen in the cache once waiting
// is over, in both encodings client-go uses.
//
// Proves C1.
func TestServerReadYourWrites(t *testing.T) {
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(contentType, func(t *testing.T) {
			testReadYourWrites(t, newFixture(t, contentType))
		})
	}
}

func testReadYourWrites(t *testing.T, f *fixture) {
	maps, pods := f.client.CoreV1().ConfigMaps(f.ns), f.client.CoreV1().Pods(f.ns)
	var pod *corev1.Pod
	for _, step := range []struct {
		name  string
		write func(ctx context.Context) error
		seen  func() bool
	}{
		{"create", func(ctx context.Context) error {
			_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			return err
		}, func() bool { return f.cached(t, f.maps, "a") != nil }},
		{"update", func(ctx context.Context) error {
			cm, err := maps.Get(ctx, "a", metav1.GetOptions{})
			if err != nil {
				return err
			}
			cm.Labels = map[string]string{"updated": "yes"}
			_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
			return err
		}, func() bool { return f.cached(t, f.maps, "a").GetLabels()["updated"] == "yes" }},
		{"patch", func(ctx context.Context) error {
			_, err := maps.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"patched":"yes"}}}`), metav1.PatchOptions{})
			return err
		}, func() bool { return f.cached(t, f.maps, "a").GetLabels()["patched"] == "yes" }},
		{"two resources", func(ctx context.Context) (err error) {
			if _, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{}); err != nil {
				return err
			}
			pod, err = pods.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p"},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, AutomountServiceAccountToken: new(bool)},
			}, metav1.CreateOptions{})
			return err
		}, func() bool { return f.cached(t, f.maps, "b") != nil && f.cached(t, f.pods, "p") != nil }},
		{"status", func(ctx context.Context) error {
			pod.Status.Message = "written"
			_, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			return err
		}, func() bool { return f.cached(t, f.pods, "p").(*corev1.Pod).Status.Message == "written" }},
		{"delete that answers with the object", func(ctx context.Context) error {
			return pods.Delete(ctx, "p", metav1.DeleteOptions{})
		}, func() bool { p := f.cached(t, f.pods, "p"); return p == nil || p.GetDeletionTimestamp() != nil }},
	} {
		f.holder.hold()
		if err := step.write(f.ctx); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		f.writes.End(f.key)
		woken := make(chan struct{})
		if f.writes.Ready(f.key, func() { close(woken) }) {
			t.Fatalf("%s: Ready = true while the informers are held back", step.name)
		}
		if step.seen() {
			t.Fatalf("%s: the cache shows it although it is held back; the test proves nothing", step.name)
		}
		err := f.writes.EnsureReady(f.key)
		if stale, ok := errors.AsType[*consistency.StaleError](err); !ok {
			t.Errorf("%s: EnsureReady = %v, want a StaleError", step.name, err)
		} else if stale.ReadRV == "" {
			t.Errorf("%s: the store says no version: %v", step.name, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := f.writes.Wait(ctx, f.key); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: Wait = %v while held back", step.name, err)
		}
		cancel()
		select {
		case <-woken:
			t.Fatalf("%s: woken while held back", step.name)
		default:
		}
		f.holder.release()
		<-woken
		if !step.seen() {
			t.Errorf("%s: woken, but the cache does not show it", step.name)
		}
		if !f.writes.Ready(f.key, func() { t.Errorf("%s: woken after Ready = true", step.name) }) {
			t.Errorf("%s: Ready = false after the wake", step.name)
		}
	}
}

// Deletions are waited for, whatever the server answers them with: a Status, the object as
// it was, or its old version when the last finalizer is removed.
//
// Proves C1.
func TestServerDeletions(t *testing.T) {
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(contentType, func(t *testing.T) {
			testDeletions(t, newFixture(t, contentType))
		})
	}
}

func testDeletions(t *testing.T, f *fixture) {
	maps, pods := f.client.CoreV1().ConfigMaps(f.ns), f.client.CoreV1().Pods(f.ns)
	deleted := func(name string) { // with a finalizer: it is still there, and answered as an object
		if err := maps.Delete(f.ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"plain", "patched", "updated"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if name != "plain" {
			cm.Finalizers = []string{"example.com/hold"}
		}
		if _, err := maps.Create(f.ctx, cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, AutomountServiceAccountToken: new(bool)},
	}
	if _, err := pods.Create(f.ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted("patched")
	deleted("updated")
	if err := f.writes.Wait(t.Context(), f.key); err != nil {
		t.Fatal(err)
	}
	if f.cached(t, f.maps, "patched") == nil {
		t.Fatal("an object with a finalizer is gone; the test proves nothing")
	}
	for _, step := range []struct {
		name  string
		write func() error
		held  func() bool
		byUID bool // and not by a version
	}{
		{"a Status", func() error { return maps.Delete(f.ctx, "plain", metav1.DeleteOptions{}) },
			func() bool { return f.cached(t, f.maps, "plain") != nil }, true},
		{"a patch of the last finalizer", func() error {
			_, err := maps.Patch(f.ctx, "patched", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			return err
		}, func() bool { return f.cached(t, f.maps, "patched") != nil }, true},
		{"an update without the last finalizer", func() error {
			cm, err := maps.Get(f.ctx, "updated", metav1.GetOptions{})
			if err != nil {
				return err
			}
			cm.Finalizers = nil
			_, err = maps.Update(f.ctx, cm, metav1.UpdateOptions{})
			return err
		}, func() bool { return f.cached(t, f.maps, "updated") != nil }, true},
		{"the object", func() error {
			return pods.Delete(f.ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		}, func() bool { return f.cached(t, f.pods, "p") != nil }, false},
	} {
		f.holder.hold()
		if err := step.write(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		f.writes.End(f.key)
		if !step.held() {
			t.Fatalf("%s: the cache does not show it although it is held back; the test proves nothing", step.name)
		}
		woken := make(chan struct{})
		if f.writes.Ready(f.key, func() { close(woken) }) {
			t.Fatalf("%s: Ready = true while the cache holds the object", step.name)
		}
		stale, ok := errors.AsType[*consistency.StaleError](f.writes.EnsureReady(f.key))
		if !ok || step.byUID != (stale.DeletedUID != "") {
			t.Errorf("%s: EnsureReady = %v, want a StaleError by UID: %v", step.name, stale, step.byUID)
		}
		f.holder.release()
		<-woken
		if step.held() {
			t.Errorf("%s: woken, but the cache holds the object", step.name)
		}
		if got := f.writes.Ambiguous(f.key); len(got) > 0 {
			t.Errorf("%s: Ambiguous = %v", step.name, got)
		}
	}
}

// The same reconcile creates two children without the gate, and one with it, under the
// same delay.
func TestServerGatePreventsDoubleCreate(t *testing.T) {
	for _, tc := range []struct {
		name  string
		gated bool
		want  int
	}{{"without", false, 2}, {"with", true, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, "application/json")
			f.holder.hold()
			for n := range 2 {
				if woken := make(chan struct{}); tc.gated && !f.writes.Ready(f.key, func() { close(woken) }) {
					if n == 0 {
						t.Error("not ready before the first write")
					}
					f.holder.release()
					<-woken
				}
				ctx := f.writes.Begin(t.Context(), f.key)
				if len(f.maps.ListKeys()) == 0 { // decided from the cache
					child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "child-"}}
					if _, err := f.client.CoreV1().ConfigMaps(f.ns).Create(ctx, child, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				f.writes.End(f.key)
			}
			list, err := f.live.CoreV1().ConfigMaps(f.ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := len(list.Items); got != tc.want {
				t.Errorf("%d children, want %d", got, tc.want)
			}
		})
	}
}

// The answer of a create is lost, but the object is there. A live read says from which
// version on the cache knows.
//
// Proves C4.
func TestServerLostAnswer(t *testing.T) {
	f := newFixture(t, "application/vnd.kubernetes.protobuf")
	f.holder.hold()
	f.lose <- struct{}{}
	_, err := f.client.CoreV1().ConfigMaps(f.ns).Create(f.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("Create = %v, want the connection to be reset", err)
	}
	configMaps := corev1.Resource("configmaps")
	if got := f.writes.Ambiguous(f.key); !slices.Equal(got, []schema.GroupResource{configMaps}) {
		t.Fatalf("Ambiguous = %v, want configmaps", got)
	}
	// A retry that is refused says nothing new.
	_, err = f.client.CoreV1().ConfigMaps(f.ns).Create(f.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Fatalf("second Create = %v, want AlreadyExists", err)
	}
	live, err := f.live.CoreV1().ConfigMaps(f.ns).Get(f.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.writes.WroteAt(f.key, "", configMaps, live.ResourceVersion)
	if got := f.writes.Ambiguous(f.key); len(got) > 0 {
		t.Errorf("Ambiguous = %v after the live read", got)
	}
	if err := f.writes.EnsureReady(f.key); err == nil {
		t.Error("EnsureReady = nil while the informers are held back")
	}
	f.holder.release()
	if err := f.writes.Wait(t.Context(), f.key); err != nil {
		t.Fatal(err)
	}
	if f.cached(t, f.maps, "a") == nil {
		t.Error("the cache does not show what the lost write created")
	}
}
