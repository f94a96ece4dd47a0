package consistency_test

import (
	"slices"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/consistency"
)

// An eviction and a binding change a pod and answer without a version. The next run
// comes after AmbiguousWait, reads live, and does not write a second time. Subresources
// that answer with the pod are waited for, and a token leaves nothing.
//
// Proves C3, C4.
func TestServerSubresources(t *testing.T) {
	t.Parallel()
	for _, e := range encodings[:2] {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, e.contentType)
			podClient := f.client.CoreV1().Pods(f.ns)
			create := func(name string) *corev1.Pod {
				t.Helper()
				pod, err := f.live.CoreV1().Pods(f.ns).Create(t.Context(), &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: name},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}, AutomountServiceAccountToken: new(bool)},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				f.writes.WroteAt(f.key, "", corev1.Resource("pods"), pod.ResourceVersion)
				f.writes.Handler().OnUpdate(nil, nil)
				if err := f.writes.Wait(t.Context(), f.key); err != nil {
					t.Fatal(err)
				}
				return pod
			}
			if _, err := f.live.CoreV1().ServiceAccounts(f.ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
			pod := create("one")
			f.holder.hold()

			unknown := func(what string) {
				t.Helper()
				if got := f.writes.Ambiguous(f.key); !slices.Equal(got, []schema.GroupResource{corev1.Resource("pods")}) {
					t.Fatalf("%s: Ambiguous = %v, want pods", what, got)
				}
				woken := make(chan struct{})
				start := time.Now()
				if f.writes.Ready(f.key, func() { close(woken) }) {
					t.Fatalf("%s: the key runs at once", what)
				}
				<-woken
				if took := time.Since(start); took < 900*time.Millisecond {
					t.Errorf("%s: held back for %v, want AmbiguousWait", what, took)
				}
				if !f.writes.Ready(f.key, nil) || !consistency.LiveRead(f.writes.Begin(t.Context(), f.key)) {
					t.Fatalf("%s: the next run does not read live", what)
				}
				f.writes.Clear(f.key, "")
			}
			if err := podClient.Bind(f.ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			unknown("binding")
			if live, err := f.live.CoreV1().Pods(f.ns).Get(t.Context(), "one", metav1.GetOptions{}); err != nil || live.Spec.NodeName != "node" {
				t.Errorf("the pod is not bound: %v", err)
			}
			if cached := f.cached(t, f.pods, "one"); cached.(*corev1.Pod).Spec.NodeName != "" {
				t.Error("the cache is not behind: the test proves nothing")
			}

			// A second binding is refused, which no version explains.
			err := podClient.Bind(f.ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Target: corev1.ObjectReference{Kind: "Node", Name: "another"}}, metav1.CreateOptions{})
			if !apierrors.IsConflict(err) || !f.writes.Ready(f.key, nil) || !consistency.LiveRead(f.writes.Begin(t.Context(), f.key)) {
				t.Errorf("a second binding: %v; want a conflict and a live read", err)
			}

			// One with the version that the cache has waits for a newer one.
			err = podClient.Bind(f.ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: pod.UID, ResourceVersion: pod.ResourceVersion}, Target: corev1.ObjectReference{Kind: "Node", Name: "another"}}, metav1.CreateOptions{})
			if !apierrors.IsConflict(err) || f.writes.EnsureReady(f.key) == nil {
				t.Errorf("a binding of an old version: %v; want a conflict that the cache is to explain", err)
			}
			f.writes.Clear(f.key, "")

			live, err := f.live.CoreV1().Pods(f.ns).Get(t.Context(), "one", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			live.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "debug", TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullAlways}}}
			changed, err := podClient.UpdateEphemeralContainers(f.ctx, "one", live, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := missing(f.writes, f.key), "pods@"+changed.ResourceVersion; got != want {
				t.Errorf("ephemeral containers: recorded %q, want %q", got, want)
			}
			f.writes.Clear(f.key, "")

			if _, err := f.client.CoreV1().ServiceAccounts(f.ns).CreateToken(f.ctx, "default", &authv1.TokenRequest{}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := f.writes.EnsureReady(f.key); err != nil || f.writes.Ambiguous(f.key) != nil {
				t.Errorf("a token: %v, ambiguous %v", err, f.writes.Ambiguous(f.key))
			}

			// An eviction of another version than that of the server is refused.
			evict := func(options *metav1.DeleteOptions) error {
				return f.client.PolicyV1().Evictions(f.ns).Evict(f.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "one"}, DeleteOptions: options})
			}
			if err := evict(&metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil || f.writes.Ambiguous(f.key) != nil {
				t.Errorf("an eviction on trial: %v, ambiguous %v", err, f.writes.Ambiguous(f.key))
			}
			err = evict(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}})
			if !apierrors.IsConflict(err) || f.writes.EnsureReady(f.key) == nil {
				t.Errorf("an eviction of an old version: %v, EnsureReady %v; want a conflict that the cache is to explain", err, f.writes.EnsureReady(f.key))
			}
			f.writes.Clear(f.key, "")
			if err := evict(nil); err != nil {
				t.Fatal(err)
			}
			unknown("eviction")
		})
	}
}
