package finalizer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/finalizer"
)

// store is a client of children that lists in pages, takes preconditions at their
// word and keeps objects that have finalizers.
type store struct {
	objects  []*corev1.ConfigMap
	page     int // 0 means all at once
	lists    []metav1.ListOptions
	deletes  []metav1.DeleteOptions
	failList error
	fail     map[string]error // of Delete, by name
}

func (s *store) List(_ context.Context, opts metav1.ListOptions) (*corev1.ConfigMapList, error) {
	s.lists = append(s.lists, opts)
	if s.failList != nil {
		return nil, s.failList
	}
	at := 0
	fmt.Sscan(opts.Continue, &at)
	list := &corev1.ConfigMapList{}
	for i, o := range s.objects[at:] {
		if s.page > 0 && i == s.page {
			list.Continue = fmt.Sprint(at + i)
			break
		}
		list.Items = append(list.Items, *o.DeepCopy())
	}
	return list, nil
}

func (s *store) Delete(_ context.Context, name string, opts metav1.DeleteOptions) error {
	s.deletes = append(s.deletes, opts)
	if err := s.fail[name]; err != nil {
		return err
	}
	i := slices.IndexFunc(s.objects, func(o *corev1.ConfigMap) bool { return o.Name == name })
	if i < 0 {
		return apierrors.NewNotFound(configMaps, name)
	}
	o := s.objects[i]
	if p := opts.Preconditions; p == nil || *p.UID != o.UID || *p.ResourceVersion != o.ResourceVersion {
		return apierrors.NewConflict(configMaps, name, errors.New("precondition"))
	}
	if len(o.Finalizers) > 0 {
		o.DeletionTimestamp = &metav1.Time{Time: epoch}
	} else {
		s.objects = slices.Delete(s.objects, i, i+1)
	}
	return nil
}

func (s *store) names() string {
	var names []string
	for _, o := range s.objects {
		names = append(names, o.Name)
	}
	return strings.Join(names, " ")
}

func child(name, owner string, finalizers ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "default", UID: types.UID("uid-" + name), ResourceVersion: "5", Finalizers: finalizers,
		OwnerReferences: []metav1.OwnerReference{{UID: types.UID(owner), Name: "one", Controller: new(true)}},
	}}
}

func mine(child metav1.Object) bool { return metav1.IsControlledBy(child, object("a", true)) }

// TestDeleteAll proves F10, F11.
func TestDeleteAll(t *testing.T) {
	forbidden := apierrors.NewForbidden(configMaps, "c1", errBoom)
	tests := []struct {
		name        string
		store       *store
		want        progress
		wantErr     error
		wantLeft    string
		wantLists   int
		wantDeletes int
	}{
		{name: "none", store: &store{}, want: done, wantLists: 1},
		{
			name:  "those of others stay",
			store: &store{objects: []*corev1.ConfigMap{child("c1", "a"), child("c2", "b"), child("c3", "a")}},
			want:  done, wantLeft: "c2", wantLists: 2, wantDeletes: 2,
		},
		{
			name:  "pages",
			store: &store{page: 2, objects: []*corev1.ConfigMap{child("c1", "b"), child("c2", "b"), child("c3", "b"), child("c4", "b"), child("c5", "a")}},
			want:  done, wantLeft: "c1 c2 c3 c4", wantLists: 5, wantDeletes: 1,
		},
		{
			name:  "a child with a finalizer",
			store: &store{objects: []*corev1.ConfigMap{child("c1", "a", "x/1"), child("c2", "a")}},
			want:  progress{Message: "1 left: c1"}, wantLeft: "c1", wantLists: 2, wantDeletes: 2,
		},
		{
			name:  "as many with finalizers as the message names",
			store: &store{objects: []*corev1.ConfigMap{child("c3", "a", "x/1"), child("c1", "a", "x/1"), child("c2", "a", "x/1")}},
			want:  progress{Message: "3 left: c1, c2, c3"}, wantLeft: "c3 c1 c2", wantLists: 2, wantDeletes: 3,
		},
		{
			name:  "many with finalizers",
			store: &store{objects: []*corev1.ConfigMap{child("c4", "a", "x/1"), child("c2", "a", "x/1"), child("c3", "a", "x/1"), child("c1", "a", "x/1")}},
			want:  progress{Message: "4 left: c1, c2, c3, ..."}, wantLeft: "c4 c2 c3 c1", wantLists: 2, wantDeletes: 4,
		},
		{
			name: "being deleted already",
			store: func() *store {
				c := child("c1", "a", "x/1")
				c.DeletionTimestamp = &metav1.Time{Time: epoch}
				return &store{objects: []*corev1.ConfigMap{c}}
			}(),
			want: progress{Message: "1 left: c1"}, wantLeft: "c1", wantLists: 1,
		},
		{
			name:    "one fails, the others go",
			store:   &store{objects: []*corev1.ConfigMap{child("c1", "a"), child("c2", "a")}, fail: map[string]error{"c1": forbidden}},
			wantErr: forbidden, wantLeft: "c1", wantLists: 1, wantDeletes: 2,
		},
		{name: "the list fails", store: &store{failList: forbidden}, wantErr: forbidden, wantLists: 1},
		{
			name:    "a resource that is not served proves nothing",
			store:   &store{objects: []*corev1.ConfigMap{child("c1", "a")}, fail: map[string]error{"c1": notServed}},
			wantErr: notServed, wantLeft: "c1", wantLists: 1, wantDeletes: 1,
		},
		{
			name:    "nor does one that the group lacks",
			store:   &store{objects: []*corev1.ConfigMap{child("c1", "a")}, fail: map[string]error{"c1": noSuchResource}},
			wantErr: noSuchResource, wantLeft: "c1", wantLists: 1, wantDeletes: 1,
		},
		{
			name:  "gone in between",
			store: &store{objects: []*corev1.ConfigMap{child("c1", "a")}, fail: map[string]error{"c1": apierrors.NewNotFound(configMaps, "c1")}},
			want:  progress{Message: "1 left: c1"}, wantLeft: "c1", wantLists: 2, wantDeletes: 1,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := finalizer.DeleteAll(t.Context(), tt.store, metav1.ListOptions{LabelSelector: "app=one"}, mine, metav1.DeletePropagationForeground)
			if !errors.Is(err, tt.wantErr) || (err != nil) != (tt.wantErr != nil) {
				t.Errorf("error = %v, want %v", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
			if got := tt.store.names(); got != tt.wantLeft {
				t.Errorf("left are %q, want %q", got, tt.wantLeft)
			}
			if len(tt.store.lists) != tt.wantLists || len(tt.store.deletes) != tt.wantDeletes {
				t.Errorf("%d lists, %d deletes, want %d and %d", len(tt.store.lists), len(tt.store.deletes), tt.wantLists, tt.wantDeletes)
			}
			for _, o := range tt.store.lists {
				if o.ResourceVersion != "" || o.LabelSelector != "app=one" {
					t.Errorf("listed with %+v", o)
				}
			}
			for _, o := range tt.store.deletes {
				if o.Preconditions == nil || *o.Preconditions.ResourceVersion != "5" || *o.PropagationPolicy != metav1.DeletePropagationForeground {
					t.Errorf("deleted with %+v", o)
				}
			}
		})
	}
}

// More children than fit into the time of a step are no failure, and those that can be
// deleted in it are. Each request takes a second here, as a client's rate limit does.
func TestDeleteAllTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		for i := range 50 {
			s.objects = append(s.objects, child(fmt.Sprintf("c%02d", i), "a"))
		}
		m := &model{live: deleted(time.Hour)}
		p := plan{Steps: []step{{Name: "children", Timeout: 20 * time.Second, Run: func(ctx context.Context, _ held) (progress, error) {
			return finalizer.DeleteAll(ctx, slow{s, time.Second}, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
		}}}}
		passes := 0
		for m.live != nil && passes < 10 {
			passes++
			before := len(s.objects)
			err := pass(t.Context(), p, m, deleted(time.Hour))
			if m.live == nil {
				break
			}
			b := blockedBy(t, err)
			if b.Err != nil || b.After != time.Second || len(s.objects) > before-8 {
				t.Errorf("pass %d left %d of %d: error %v, again after %v", passes, len(s.objects), before, b.Err, b.After)
			}
		}
		if passes < 5 || passes > 7 || len(s.objects) > 0 {
			t.Errorf("%d left after %d passes", len(s.objects), passes)
		}
	})
}

// A pass that deleted some of the children is no failure either if the time is then too short for a second list.
func TestDeleteAllLongLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		for i := range 20 {
			s.objects = append(s.objects, child(fmt.Sprintf("c%02d", i), "a"))
		}
		for pass := 1; len(s.objects) > 6; pass++ {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			before := len(s.objects)
			got, err := finalizer.DeleteAll(ctx, slow{s, 8 * time.Second}, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
			cancel()
			if err != nil || got.Done || got.After != time.Second || got.Message == "" || len(s.objects) > before-5 {
				t.Fatalf("pass %d left %d of %d: %+v, %v", pass, len(s.objects), before, got, err)
			}
		}
	})
}

// slow is a store of which each request takes a second, or a list as long as it says, or fails at once if
// that time is not left.
type slow struct {
	*store
	list time.Duration
}

func (s slow) wait(ctx context.Context, long time.Duration) error {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < long {
		return errors.New("would exceed context deadline")
	}
	time.Sleep(long)
	return nil
}

func (s slow) List(ctx context.Context, opts metav1.ListOptions) (*corev1.ConfigMapList, error) {
	if err := s.wait(ctx, s.list); err != nil {
		return nil, err
	}
	return s.store.List(ctx, opts)
}

func (s slow) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	if err := s.wait(ctx, time.Second); err != nil {
		return err
	}
	return s.store.Delete(ctx, name, opts)
}

// Children that all fail do not make an error that no log and no status can take.
func TestDeleteAllManyErrors(t *testing.T) {
	s := &store{fail: map[string]error{}}
	for i := range 1000 {
		n := fmt.Sprintf("c%03d", i)
		s.objects = append(s.objects, child(n, "a"))
		s.fail[n] = apierrors.NewForbidden(configMaps, n, errBoom)
	}
	_, err := finalizer.DeleteAll(t.Context(), s, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
	if !apierrors.IsForbidden(err) || len(err.Error()) > 1000 || !strings.Contains(err.Error(), "c002") || !strings.Contains(err.Error(), "997 more of 1000 failed") {
		t.Errorf("error = %v", err)
	}
	if len(s.deletes) != 1000 {
		t.Errorf("%d deletes, want all", len(s.deletes))
	}
}

// The answers to requests for a resource that is not served: of a server that does
// not know the group, and of one that knows it.
var (
	notServed      = apierrors.NewGenericServerResponse(404, "delete", configMaps, "one", "404 page not found", 0, true)
	noSuchResource = apierrors.NewGenericServerResponse(404, "", schema.GroupResource{}, "", "", 0, false)
)

// TestDelete proves F10.
func TestDelete(t *testing.T) {
	tests := []struct {
		name         string
		child        *corev1.ConfigMap
		stored       *corev1.ConfigMap
		wantConflict bool
		wantLeft     string
		wantRequests int
	}{
		{name: "there", child: child("c1", "a"), stored: child("c1", "a"), wantRequests: 1},
		{name: "gone", child: child("c1", "a"), stored: child("other", "a"), wantLeft: "other", wantRequests: 1},
		{name: "changed", child: func() *corev1.ConfigMap { c := child("c1", "a"); c.ResourceVersion = "4"; return c }(), stored: child("c1", "a"), wantConflict: true, wantLeft: "c1", wantRequests: 1},
		{name: "replaced", child: func() *corev1.ConfigMap { c := child("c1", "a"); c.UID = "old"; return c }(), stored: child("c1", "a"), wantConflict: true, wantLeft: "c1", wantRequests: 1},
		{name: "being deleted", child: func() *corev1.ConfigMap {
			c := child("c1", "a", "x/1")
			c.DeletionTimestamp = &metav1.Time{Time: epoch}
			return c
		}(), stored: child("c1", "a", "x/1"), wantLeft: "c1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &store{objects: []*corev1.ConfigMap{tt.stored}}
			before := tt.child.DeepCopy()
			err := finalizer.Delete(t.Context(), s, tt.child, metav1.DeletePropagationBackground)
			if apierrors.IsConflict(err) != tt.wantConflict || (err != nil) != tt.wantConflict {
				t.Errorf("error = %v, want a Conflict: %v", err, tt.wantConflict)
			}
			if s.names() != tt.wantLeft || len(s.deletes) != tt.wantRequests {
				t.Errorf("left %q after %d requests, want %q after %d", s.names(), len(s.deletes), tt.wantLeft, tt.wantRequests)
			}
			if diff := cmp.Diff(before, tt.child); diff != "" {
				t.Errorf("Delete changed the caller's object (-before +after):\n%s", diff)
			}
		})
	}
}

// What can only be a mistake fails before any request.
//
// Proves CK2.
func TestChildrenBadInput(t *testing.T) {
	const background = metav1.DeletePropagationBackground
	without := func(clear func(*corev1.ConfigMap)) *corev1.ConfigMap {
		c := child("c1", "a")
		clear(c)
		return c
	}
	s := &store{objects: []*corev1.ConfigMap{child("c1", "a")}}
	remove := func(c *corev1.ConfigMap, p metav1.DeletionPropagation) func() error {
		return func() error { return finalizer.Delete(t.Context(), s, c, p) }
	}
	all := func(opts metav1.ListOptions, mine func(metav1.Object) bool, p metav1.DeletionPropagation) func() error {
		return func() error { _, err := finalizer.DeleteAll(t.Context(), s, opts, mine, p); return err }
	}
	tests := []struct {
		name string
		call func() error
		text string
	}{
		{name: "nil child", call: remove(nil, background), text: "the child is nil"},
		{name: "no interface", call: func() error { return finalizer.Delete(t.Context(), s, nil, background) }, text: "the child is nil"},
		{name: "no name", call: remove(without(func(c *corev1.ConfigMap) { c.Name = "" }), background), text: "metadata.name"},
		{name: "no uid", call: remove(without(func(c *corev1.ConfigMap) { c.UID = "" }), background), text: "metadata.uid"},
		{name: "no version", call: remove(without(func(c *corev1.ConfigMap) { c.ResourceVersion = "" }), background), text: "metadata.resourceVersion"},
		{name: "no propagation", call: remove(child("c1", "a"), ""), text: `propagation is ""`},
		{name: "wrong propagation", call: remove(child("c1", "a"), "background"), text: `propagation is "background"`},
		{name: "nil client", call: func() error { return finalizer.Delete(t.Context(), nil, child("c1", "a"), background) }, text: "the client is nil"},
		{name: "all, no propagation", call: all(metav1.ListOptions{}, mine, ""), text: `propagation is ""`},
		{name: "all, nil mine", call: all(metav1.ListOptions{}, nil, background), text: "mine is nil"},
		{name: "all, old answer", call: all(metav1.ListOptions{ResourceVersion: "0"}, mine, background), text: "opts.ResourceVersion"},
		{name: "all, old answer by match", call: all(metav1.ListOptions{ResourceVersionMatch: "NotOlderThan"}, mine, background), text: "opts.ResourceVersion"},
		{name: "all, a watch", call: all(metav1.ListOptions{Watch: true}, mine, background), text: "opts.Watch"},
		{name: "nil pointer as client", call: func() error { return finalizer.Delete(t.Context(), (*store)(nil), child("c1", "a"), background) }, text: "the client is nil"},
		{name: "all, nil pointer as client", call: func() error {
			_, err := finalizer.DeleteAll(t.Context(), (*store)(nil), metav1.ListOptions{}, mine, background)
			return err
		}, text: "the client is nil"},
		{name: "remaining, nil pointer as client", call: func() error {
			_, err := finalizer.Remaining(t.Context(), (*store)(nil), metav1.ListOptions{}, mine)
			return err
		}, text: "the client is nil"},
		{name: "all, from the middle", call: all(metav1.ListOptions{Continue: "x"}, mine, background), text: "opts.Continue"},
		{name: "all, nil client", call: func() error {
			_, err := finalizer.DeleteAll[*corev1.ConfigMapList](t.Context(), nil, metav1.ListOptions{}, mine, background)
			return err
		}, text: "the client is nil"},
		{name: "remaining, nil client", call: func() error {
			_, err := finalizer.Remaining[*corev1.ConfigMapList](t.Context(), nil, metav1.ListOptions{}, mine)
			return err
		}, text: "the client is nil"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.call(); err == nil || !strings.Contains(err.Error(), tt.text) || !strings.HasPrefix(err.Error(), "finalizer: ") {
				t.Errorf("error = %v, want %q in it", err, tt.text)
			}
			if n := len(s.lists) + len(s.deletes); n > 0 {
				t.Errorf("%d requests", n)
			}
		})
	}
}
