package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/headers"
)

// marked is a kind with so many children, of which a deletion removes none.
type marked struct {
	left, removed, released int
	err                     error // of each removal and release
}

func (m *marked) Marked(context.Context, types.UID) (all []metav1.Object, err error) {
	for range m.left {
		all = append(all, &metav1.ObjectMeta{})
	}
	return all, nil
}

func (m *marked) Remove(context.Context, metav1.Object) error { m.removed++; return m.err }

func (m *marked) Release(context.Context, metav1.Object) error {
	m.released++
	m.left--
	return m.err
}

// TestEnd: a released child is left no more, and a deleted one until a list does not have it. A call ends at most 100 of
// a kind.
func TestEnd(t *testing.T) {
	owner := &metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Now())}
	failure := errors.New("failed")
	for name, tc := range map[string]struct {
		left    int
		release bool
		err     error
		want    string // in the error
		ended   int
	}{
		"none":            {},
		"none to release": {release: true},
		"delete":          {left: 2, want: "2 children", ended: 2},
		"delete many":     {left: 120, want: "120 children", ended: 100},
		"release":         {left: 2, release: true, ended: 2},
		"release many":    {left: 120, release: true, want: "20 children", ended: 100},
		"delete, failed":  {left: 1, err: failure, want: "failed", ended: 1},
		"release, failed": {left: 1, release: true, err: failure, want: "failed", ended: 1},
	} {
		m := &marked{left: tc.left, err: tc.err}
		err := End(t.Context(), []*marked{m}, owner, tc.release)
		blocked, _ := errors.AsType[*finalizer.BlockedError](err)
		if (err == nil) != (tc.want == "") || err != nil && (blocked == nil || !strings.Contains(fmt.Sprint(blocked.Steps[0].Message, err), tc.want)) || tc.err != nil && !errors.Is(err, tc.err) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if ended := [2]int{m.removed, m.released}; tc.release && ended != [2]int{0, tc.ended} || !tc.release && ended != [2]int{tc.ended, 0} {
			t.Errorf("%s: removed and released %v, want %d", name, ended, tc.ended)
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
