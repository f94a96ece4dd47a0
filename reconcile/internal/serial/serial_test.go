package serial

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/headers"
)

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// notes keeps its calls. It has no lock: the race detector finds calls at the same time.
type notes struct {
	calls []string
	alone bool
}

func (n *notes) MetadataAlone() bool { return n.alone }

func (n *notes) note(kind string, obj any, more ...any) {
	n.calls = append(n.calls, fmt.Sprintln(kind, obj.(metav1.Object).GetName(), fmt.Sprintf("%T", obj), more))
}

func (n *notes) OnAdd(obj any, initial bool) { n.note("add", obj, initial) }
func (n *notes) OnUpdate(_, obj any)         { n.note("update", obj) }
func (n *notes) OnDelete(obj any)            { n.note("delete", obj) }

// encoded is a store of encoded objects.
type encoded struct{ cache.Store }

func (e encoded) Header(key string) (metav1.Object, bool) {
	obj, ok, _ := e.GetByKey(key)
	if !ok {
		return nil, false
	}
	return &metav1.ObjectMeta{Name: obj.(metav1.Object).GetName()}, true
}

func (encoded) Typed(obj any) any { return obj }

func TestReplay(t *testing.T) {
	plain := cache.NewStore(cache.MetaNamespaceKeyFunc)
	if err := plain.Add(configMap("a")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		store cache.Store
		alone bool
		want  string
	}{
		{plain, false, "add a *v1.ConfigMap [true]\n"},
		{plain, true, "add a *v1.ConfigMap [true]\n"},
		{encoded{plain}, false, "add a *v1.ConfigMap [true]\n"},
		{encoded{plain}, true, "add a *v1.ObjectMeta [true]\n"},
	} {
		n := &notes{alone: tt.alone}
		h := New(n, new(atomic.Bool))
		h.Replay(tt.store, "a")
		h.Replay(tt.store, "absent")
		if !slices.Equal(n.calls, []string{tt.want}) || headers.Alone(h) != tt.alone {
			t.Errorf("%T, alone %v: %q, want %q", tt.store, tt.alone, n.calls, tt.want)
		}
	}
}

// TestOneByOne: calls of several goroutines come one after another.
func TestOneByOne(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	if err := store.Add(configMap("a")); err != nil {
		t.Fatal(err)
	}
	n := &notes{}
	h := New(n, new(atomic.Bool))
	var running sync.WaitGroup
	for range 20 {
		running.Go(func() { h.OnAdd(configMap("b"), false) })
		running.Go(func() { h.OnUpdate(nil, configMap("b")) })
		running.Go(func() { h.OnDelete(configMap("b")) })
		running.Go(func() { h.Replay(store, "a") })
	}
	running.Wait()
	if len(n.calls) != 80 {
		t.Errorf("%d calls, want 80", len(n.calls))
	}
}

// stateless is a handler that needs no first list.
type stateless struct{ notes }

func (*stateless) Listless() bool { return true }

// TestFirstList: while the loop takes no keys, a handler that needs no first list does not get it, and gets all else.
func TestFirstList(t *testing.T) {
	var plain notes
	var less stateless
	for next, want := range map[cache.ResourceEventHandler][2]int{&plain: {4, 4}, &less: {3, 4}} {
		var open atomic.Bool
		h := New(next, &open)
		for _, want := range want {
			plain.calls, less.calls = nil, nil
			h.OnAdd(configMap("a"), true)
			h.OnAdd(configMap("b"), false)
			h.OnUpdate(configMap("b"), configMap("b"))
			h.OnDelete(configMap("b"))
			if got := len(plain.calls) + len(less.calls); got != want {
				t.Errorf("%T, open %t: %d calls, want %d", next, open.Load(), got, want)
			}
			open.Store(true)
		}
	}
}
