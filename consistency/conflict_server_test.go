package consistency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// Every kind of write that carries a version is refused because of another writer, and
// waited for until the cache shows what that has written. What carries none is not.
//
// Proves C6 and C5.
func TestServerConflicts(t *testing.T) {
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(contentType, func(t *testing.T) {
			testConflicts(t, newFixture(t, contentType))
		})
	}
}

func testConflicts(t *testing.T, f *fixture) {
	const waits, live, nothing = "waits", "reads live once", "nothing"
	configMaps := corev1.Resource("configmaps")
	maps, pods := f.client.CoreV1().ConfigMaps(f.ns), f.client.CoreV1().Pods(f.ns)
	patch := func(kind types.PatchType, format string) func(context.Context, metav1.Object) error {
		return func(ctx context.Context, seen metav1.Object) error {
			_, err := maps.Patch(ctx, "a", kind, fmt.Appendf(nil, format, seen.GetResourceVersion()), metav1.PatchOptions{})
			return err
		}
	}
	for _, tt := range []struct {
		name  string
		pod   bool
		write func(ctx context.Context, seen metav1.Object) error
		want  string
	}{
		{name: "update", want: waits, write: func(ctx context.Context, seen metav1.Object) error {
			_, err := maps.Update(ctx, seen.(*corev1.ConfigMap), metav1.UpdateOptions{})
			return err
		}},
		{name: "status", pod: true, want: waits, write: func(ctx context.Context, seen metav1.Object) error {
			pod := seen.(*corev1.Pod).DeepCopy()
			pod.Status.Message = "written"
			_, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			return err
		}},
		{name: "merge patch", want: waits, write: patch(types.MergePatchType, `{"metadata":{"resourceVersion":%q,"labels":{"w":"m"}}}`)},
		{name: "strategic merge patch", want: waits, write: patch(types.StrategicMergePatchType, `{"metadata":{"resourceVersion":%q,"labels":{"w":"s"}}}`)},
		{name: "JSON patch that sets", want: waits, write: patch(types.JSONPatchType, `[{"op":"add","path":"/data","value":{"w":"j"}},{"op":"replace","path":"/metadata/resourceVersion","value":%q}]`)},
		{name: "JSON patch that tests", want: live, write: patch(types.JSONPatchType, `[{"op":"test","path":"/metadata/resourceVersion","value":%q},{"op":"add","path":"/data","value":{"w":"t"}}]`)},
		{name: "JSON patch that is not valid", want: nothing, write: patch(types.JSONPatchType, `[{"op":"add","path":"/data","value":{"not a key":%q}}]`)},
		{name: "apply", want: waits, write: func(ctx context.Context, seen metav1.Object) error {
			config := corev1apply.ConfigMap("a", f.ns).WithResourceVersion(seen.GetResourceVersion()).WithData(map[string]string{"mine": "a"})
			_, err := maps.Apply(ctx, config, metav1.ApplyOptions{FieldManager: "test"})
			return err
		}},
		{name: "apply of YAML", want: waits, write: func(ctx context.Context, seen metav1.Object) error {
			yaml := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  resourceVersion: \"" + seen.GetResourceVersion() + "\"\ndata: {mine: b}\n"
			_, err := maps.Patch(ctx, "a", types.ApplyPatchType, []byte(yaml), metav1.PatchOptions{FieldManager: "test"})
			return err
		}},
		{name: "apply of fields that another manages", want: nothing, write: func(ctx context.Context, _ metav1.Object) error {
			config := corev1apply.ConfigMap("a", f.ns).WithData(map[string]string{"foreign": "mine"})
			_, err := maps.Apply(ctx, config, metav1.ApplyOptions{FieldManager: "test"})
			return err
		}},
		{name: "delete with a version", want: waits, write: func(ctx context.Context, seen metav1.Object) error {
			rv := seen.GetResourceVersion()
			return maps.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &rv}})
		}},
		{name: "delete with another UID", want: live, write: func(ctx context.Context, _ metav1.Object) error {
			return maps.Delete(ctx, "a", *metav1.NewPreconditionDeleteOptions("another"))
		}},
		{name: "create of what exists", want: nothing, write: func(ctx context.Context, _ metav1.Object) error {
			_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			return err
		}},
		{name: "update that is not valid", want: nothing, write: func(ctx context.Context, seen metav1.Object) error {
			cm := seen.(*corev1.ConfigMap).DeepCopy()
			cm.ResourceVersion, cm.Data = "", map[string]string{"not a key": ""}
			_, err := maps.Update(ctx, cm, metav1.UpdateOptions{})
			return err
		}},
	} {
		// The object is made, shown by the cache, and changed behind it.
		resource, name, index := configMaps, "a", f.maps
		seen, err := metav1.Object(nil), error(nil)
		if tt.pod {
			resource, name, index = corev1.Resource("pods"), "p", f.pods
			seen, err = f.live.CoreV1().Pods(f.ns).Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, AutomountServiceAccountToken: new(bool)},
			}, metav1.CreateOptions{})
		} else {
			seen, err = f.live.CoreV1().ConfigMaps(f.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		f.writes.WroteAt(f.key, "", resource, seen.GetResourceVersion())
		if err := f.writes.Wait(t.Context(), f.key); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		f.holder.hold()
		foreign := []byte(`{"metadata":{"labels":{"by":"another"}},"data":{"foreign":"yes"}}`)
		if tt.pod {
			foreign = []byte(`{"metadata":{"labels":{"by":"another"}}}`)
			_, err = f.live.CoreV1().Pods(f.ns).Patch(t.Context(), name, types.MergePatchType, foreign, metav1.PatchOptions{})
		} else {
			_, err = f.live.CoreV1().ConfigMaps(f.ns).Patch(t.Context(), name, types.MergePatchType, foreign, metav1.PatchOptions{})
		}
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}

		err = tt.write(f.ctx, f.cached(t, index, name))
		if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("%s: %v, want it to be refused", tt.name, err)
		}
		f.writes.End(f.key)
		woken := make(chan struct{})
		ok := f.writes.Ready(f.key, func() { close(woken) })
		if ok != (tt.want != waits) {
			t.Fatalf("%s: Ready = %v while the cache is held back, want that it %s (%v)", tt.name, ok, tt.want, err)
		}
		if !ok {
			stale, _ := errors.AsType[*consistency.StaleError](f.writes.EnsureReady(f.key))
			want := consistency.StaleError{
				GroupResource: resource, ReadRV: seen.GetResourceVersion(),
				RefusedRV: seen.GetResourceVersion(), RefusedObject: f.ns + "/" + name,
			}
			if stale == nil || *stale != want {
				t.Errorf("%s: EnsureReady = %v, want %v", tt.name, stale, &want)
			}
			f.holder.release()
			<-woken
			if f.cached(t, index, name).GetLabels()["by"] != "another" {
				t.Errorf("%s: woken, but the cache does not show what refused the write", tt.name)
			}
		}
		f.holder.release()
		for run, want := range []bool{tt.want == live, false} {
			if got := consistency.LiveRead(f.writes.Begin(t.Context(), f.key)); got != want {
				t.Errorf("%s: LiveRead = %v in run %d after it, want %v", tt.name, got, run+1, want)
			}
			f.writes.End(f.key)
		}
		if tt.pod {
			err = f.client.CoreV1().Pods(f.ns).Delete(f.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		} else {
			err = f.client.CoreV1().ConfigMaps(f.ns).Delete(f.ctx, name, metav1.DeleteOptions{})
		}
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if err := f.writes.Wait(t.Context(), f.key); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
	}
}

// attempts counts the updates of config maps by the version they carry, and those that
// were refused.
type attempts struct {
	mu      sync.Mutex
	at      map[string]int // by resource version
	refused int
}

func (a *attempts) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Method != http.MethodPut {
			return next.RoundTrip(req)
		}
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		var object metav1.PartialObjectMetadata
		data, err := io.ReadAll(body)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(data, &object); err != nil {
			return nil, err
		}
		resp, err := next.RoundTrip(req)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.at[object.ResourceVersion]++
		if err == nil && resp.StatusCode == http.StatusConflict {
			a.refused++
		}
		return resp, err
	})
}

// Controllers write objects that somebody else writes too, at every turn, while their
// watches are late. With the gate no version is ever tried twice, and a foreign write
// costs one refused request at most. Without it a controller tries until its cache is
// there.
//
// Proves C6.
func TestServerConflictsRace(t *testing.T) {
	const objects, rounds = 8, 6
	for _, tt := range []struct {
		name  string
		gated bool
	}{{"with the gate", true}, {"without", false}} {
		t.Run(tt.name, func(t *testing.T) {
			ns := testserver.Namespace(t)
			live := kubernetes.NewForConfigOrDie(testserver.Config(t))
			writes := consistency.New(consistency.Config{})
			counted := &attempts{at: map[string]int{}}
			config := testserver.Config(t)
			config.ContentType = "application/json"
			config.Wrap(counted.wrap)
			config.Wrap(writes.Wrap)
			client := kubernetes.NewForConfigOrDie(config)
			for n := range objects {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("o", n)}, Data: map[string]string{"own": ""}}
				if _, err := live.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			config = testserver.Config(t)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { return lateWatches{next, proofLate / 2} })
			factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0, informers.WithNamespace(ns))
			informer := factory.Core().V1().ConfigMaps().Informer()
			if err := writes.AddInformer(corev1.Resource("configmaps"), informer); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			factory.StartWithContext(ctx)
			defer factory.Shutdown()
			defer cancel()
			if !cache.WaitFor(ctx, "", informer.HasSyncedChecker()) {
				t.Fatal("the informer did not sync")
			}

			var wg sync.WaitGroup
			var foreign atomic.Int64
			for n := range objects {
				key := types.NamespacedName{Namespace: ns, Name: fmt.Sprint("o", n)}
				wg.Go(func() {
					for done, tried := 0, 0; done < rounds; {
						if woken := make(chan struct{}); tt.gated && !writes.Ready(key, func() { close(woken) }) {
							<-woken
						}
						ctx := writes.Begin(t.Context(), key)
						item, _, err := informer.GetStore().GetByKey(key.String())
						if err != nil {
							t.Error(err)
							return
						}
						cm := item.(*corev1.ConfigMap).DeepCopy()
						cm.Data["own"] += "x"
						if own := len(cm.Data["own"]); own > tried {
							// Foreign writes at the worst moment: after the cache was read.
							tried = own
							for range rand.N(3) {
								foreign.Add(1)
								patch := fmt.Appendf(nil, `{"data":{"foreign":"%d"}}`, rand.Int())
								if _, err := live.CoreV1().ConfigMaps(ns).Patch(ctx, key.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
									t.Error(err)
									return
								}
							}
						}
						_, err = client.CoreV1().ConfigMaps(ns).Update(ctx, cm, metav1.UpdateOptions{})
						writes.End(key)
						switch {
						case apierrors.IsConflict(err):
							<-time.After(10*time.Millisecond + rand.N(20*time.Millisecond)) // a backoff
						case err != nil:
							t.Error(err)
							return
						default:
							done++
						}
					}
				})
			}
			wg.Wait()

			again := 0
			for _, n := range counted.at {
				again += n - 1
			}
			t.Logf("%d versions tried, %d foreign writes, %d refused, %d times again", len(counted.at), foreign.Load(), counted.refused, again)
			if counted.refused < objects {
				t.Errorf("%d writes were refused: the test proves nothing", counted.refused)
			}
			if most := foreign.Load(); (int64(counted.refused) <= most) != tt.gated {
				t.Errorf("%d writes were refused for %d foreign ones, want as many at most: %t", counted.refused, most, tt.gated)
			}
			if (again == 0) != tt.gated {
				t.Errorf("a version was tried again %d times, want none: %t", again, tt.gated)
			}
		})
	}
}
