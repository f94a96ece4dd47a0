package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/headers"
)

// marked is a kind with children, of which a deletion removes none at once.
type marked struct {
	children        []metav1.Object
	ended, released []string // their names
	err             error    // of each removal and release
}

func (m *marked) Info() About {
	return About{Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}}
}

func (m *marked) Marked(context.Context, types.UID) ([]metav1.Object, error) {
	return slices.Clone(m.children), nil
}

func (m *marked) Remove(_ context.Context, child metav1.Object) error {
	m.ended = append(m.ended, child.GetNamespace()+"/"+child.GetName())
	return m.err
}

func (m *marked) Release(_ context.Context, child metav1.Object) error {
	m.released = append(m.released, child.GetName())
	return m.err
}

// add adds n children of a namespace.
func (m *marked) add(n int, namespace string, deleted bool) *marked {
	for i := range n {
		child := &metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("c%03d", i)}
		if deleted {
			child.DeletionTimestamp = ptr.To(metav1.Now())
		}
		m.children = append(m.children, child)
	}
	return m
}

// TestEnd: a released child is left no more, and a deleted one until a list does not have it. A call ends at most 100 of
// a kind. The error names some that are left.
func TestEnd(t *testing.T) {
	owner := &metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Now())}
	failure := errors.New("failed")
	for name, tc := range map[string]struct {
		left    int
		deleted bool
		release bool
		err     error
		want    string // in the error
		ended   int
	}{
		"none":             {},
		"none to release":  {release: true},
		"delete":           {left: 2, want: "2 children in other namespaces or of the cluster are left: ConfigMap a/c000, ConfigMap a/c001<", ended: 2},
		"deleted":          {left: 1, deleted: true, want: "1 children in other namespaces or of the cluster are left: ConfigMap a/c000<"},
		"delete many":      {left: 120, want: "120 children in other namespaces or of the cluster are left: ConfigMap a/c000, ConfigMap a/c001, ConfigMap a/c002, ...<", ended: 100},
		"release":          {left: 2, release: true, ended: 2},
		"release deleted":  {left: 2, deleted: true, release: true, ended: 2},
		"release many":     {left: 120, release: true, want: "20 children in other namespaces or of the cluster are left: ConfigMap a/c100", ended: 100},
		"delete, failed":   {left: 1, err: failure, want: "failed", ended: 1},
		"release, failed":  {left: 1, release: true, err: failure, want: "failed", ended: 1},
		"deleted, failing": {left: 3, deleted: true, err: failure, want: "3 children in other namespaces or of the cluster are left: ConfigMap a/c000, ConfigMap a/c001, ConfigMap a/c002<"},
	} {
		m := (&marked{err: tc.err}).add(tc.left, "a", tc.deleted)
		err := End(t.Context(), []*marked{m}, owner, tc.release)
		blocked, _ := errors.AsType[*finalizer.BlockedError](err)
		if (err == nil) != (tc.want == "") || err != nil && (blocked == nil || !strings.Contains(blocked.Steps[0].Message+"<"+err.Error(), tc.want)) || tc.err != nil && tc.ended > 0 && !errors.Is(err, tc.err) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if blocked != nil && blocked.Err != nil && blocked.Steps[0].Message != "" {
			t.Errorf("%s: the step has the message %q beside an error", name, blocked.Steps[0].Message)
		}
		if ended := [2]int{len(m.ended), len(m.released)}; tc.release && ended != [2]int{0, tc.ended} || !tc.release && ended != [2]int{tc.ended, 0} {
			t.Errorf("%s: removed and released %v, want %d", name, ended, tc.ended)
		}
	}
}

// TestEndTakesTurns: children of one namespace, which are stuck in deletion or whose deletion fails, keep none of another
// from being deleted.
func TestEndTakesTurns(t *testing.T) {
	owner := &metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Now())}
	for name, m := range map[string]*marked{
		"stuck":       (&marked{}).add(100, "a", true).add(3, "z", false),
		"failing":     (&marked{err: errors.New("failed")}).add(100, "a", false).add(3, "z", false),
		"of both":     (&marked{}).add(100, "a", true).add(100, "b", false).add(3, "z", false),
		"the cluster": (&marked{}).add(1, "", false).add(100, "a", false).add(3, "z", false),
	} {
		_ = End(t.Context(), []*marked{m}, owner, false)
		for _, want := range []string{"z/c000", "z/c001", "z/c002"} {
			if !slices.Contains(m.ended, want) {
				t.Errorf("%s: %s was not deleted", name, want)
			}
		}
		if len(m.ended) > 100 {
			t.Errorf("%s: %d were deleted, want at most 100", name, len(m.ended))
		}
	}
}

// TestOrphans: the wish is known after the garbage collector has removed its finalizer, and forgotten with the object.
func TestOrphans(t *testing.T) {
	pod := func(uid types.UID, deleted bool, finalizers ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Finalizers: finalizers}}
		if deleted {
			p.DeletionTimestamp = ptr.To(metav1.Now())
		}
		return p
	}
	var o Orphans
	events := 0
	h := o.Before(headers.Wake(func() { events++ }))
	has := func(step string, p *corev1.Pod, want bool) {
		t.Helper()
		if got := o.Has(p); got != want {
			t.Errorf("%s: %t, want %t", step, got, want)
		}
	}
	const orphan, own = metav1.FinalizerOrphanDependents, "example.com/own"
	has("no event", pod("a", true, orphan, own), true)
	has("no event, no finalizer", pod("a", true, own), false)
	h.OnAdd(pod("live", false, orphan), true)
	h.OnUpdate(pod("a", false, own), pod("a", true, orphan, own))
	h.OnUpdate(pod("a", true, orphan, own), pod("a", true, own))
	h.OnAdd(pod("b", true, orphan), true)
	h.OnAdd(pod("c", true, own), true)
	has("live", pod("live", true), false)
	has("a", pod("a", true, own), true)
	has("b", pod("b", true), true)
	has("c", pod("c", true, own), false)
	h.OnDelete(pod("a", true, own))
	h.OnDelete(cache.DeletedFinalStateUnknown{Obj: pod("b", true)})
	h.OnDelete(cache.DeletedFinalStateUnknown{})
	has("a, gone", pod("a", true), false)
	has("b, gone", pod("b", true), false)
	if events != 8 || len(o.uids) > 0 || !headers.Alone(h) {
		t.Errorf("%d events, want 8, of metadata alone %t; %d objects are left", events, headers.Alone(h), len(o.uids))
	}
}
