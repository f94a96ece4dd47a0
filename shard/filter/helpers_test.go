package filter_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/leasetest"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
)

// object returns an object of a namespace with a uid.
func object(namespace, uid string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "o-" + uid, UID: types.UID(uid)}}
}

// child returns an object that the object with the uid controls. Without one it has an owner
// that does not control it.
func child(uid, owner string) *corev1.ConfigMap {
	o := object("default", uid)
	o.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", Name: "other", UID: "other"}}
	if owner != "" {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{Kind: "Owner", Name: "owner", UID: types.UID(owner), Controller: ptr.To(true)})
	}
	return o
}

// upstream returns the selector of apimachinery, which the API server uses, for a text.
func upstream(t *testing.T, text string) sharding.Selector {
	t.Helper()
	var all []sharding.ShardRangeRequirement
	for part := range strings.SplitSeq(text, " || ") {
		fields := strings.FieldsFunc(part, func(r rune) bool { return strings.ContainsRune("(), '", r) })
		if len(fields) != 4 || fields[0] != "shardRange" {
			t.Fatalf("selector %q", text)
		}
		all = append(all, sharding.ShardRangeRequirement{Key: fields[1], Start: fields[2], End: fields[3]})
	}
	s := sharding.NewSelector(all...)
	if s.String() != text {
		t.Fatalf("selector %q, apimachinery writes %q", text, s)
	}
	return s
}

// each calls f for 0 to n-1, eight at a time.
func each(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var next atomic.Int64
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func configMap(name, label string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"sees": label}},
		Data:       map[string]string{"data": strings.Repeat("x", 300)},
	}
}

var two = shard.Ranges{N: 2}

func selectorOf(t *testing.T, r shard.Ranges, shards ...int) string {
	t.Helper()
	text, err := r.Selector(shards)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func source(t *testing.T, make func(cache.ListerWatcher, string) (*filter.Source, error), lw cache.ListerWatcher, text string) *filter.Source {
	t.Helper()
	s, err := make(lw, text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listWatch is a cache.ListerWatcher of fixed lists and of watches that the test sends.
type listWatch struct {
	lists   []func() (runtime.Object, error) // of the next requests
	watches []*watch.FakeWatcher             // the opened ones
	options []metav1.ListOptions
	old     bool // no streaming lists
}

func (l *listWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	l.options = append(l.options, o)
	next := l.lists[0]
	l.lists = l.lists[1:]
	return next()
}

func (l *listWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	l.options = append(l.options, o)
	w := watch.NewFake()
	l.watches = append(l.watches, w)
	return w, nil
}

func (l *listWatch) IsWatchListSemanticsUnSupported() bool { return l.old }

// then adds the response of the next list.
func (l *listWatch) then(objects ...*corev1.ConfigMap) {
	l.lists = append(l.lists, func() (runtime.Object, error) {
		list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}}
		for _, o := range objects {
			list.Items = append(list.Items, *o)
		}
		return list, nil
	})
}

// bubble runs test in a synctest bubble with an empty store of Leases, and waits for the requests
// that still run at its end.
func bubble(t *testing.T, test func(t *testing.T, s *leasetest.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.New()
		t.Cleanup(s.Wait)
		test(t, s)
	})
}

// settle waits until a group in which no replica fails is balanced.
func settle() {
	time.Sleep(10 * time.Second)
	synctest.Wait()
}
