package scope_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/malformed"
	"github.com/controllerkit/controllerkit/internal/testcost"
)

// lenient is informer with the malformed objects of package crd: those with the label "bad".
func (s *server) lenient(p scope.Part) (cache.SharedIndexInformer, error) {
	inner, err := s.informer(p)
	if err != nil {
		return nil, err
	}
	if err := inner.AddIndexers(cache.Indexers{malformed.Index: malformed.Values}); err != nil {
		return nil, err
	}
	i := malformed.New(inner, "*v1.ConfigMap")
	return i, i.SetTransform(func(obj any) (any, error) {
		if c, ok := obj.(*corev1.ConfigMap); ok && c.Labels["app"] == "bad" {
			return &malformed.Object{ObjectMeta: c.ObjectMeta, Err: errors.New("bad")}, nil
		}
		return obj, nil
	})
}

// A change of selectors is no deletion of a malformed object that stays, also for a handler that needs
// the metadata alone. One that a handler has not seen is not deleted when it leaves.
//
// Proves SC4.
func TestMalformed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		objects := scope.New(s.lenient)
		run(t, quiet(t), objects)
		all, alone := newJournal(), newJournal()
		handle(t, objects, all)
		handle(t, objects, metadataAlone{alone})
		want := func(events ...string) {
			t.Helper()
			wantEvents(t, all, slices.Clone(events)...)
			wantEvents(t, alone, events...)
		}
		s.put("blue", "x", "web")
		s.put("blue", "y", "bad")
		must(t, objects.Select(t.Context(), in("blue")))
		want("add blue/x 11")
		s.put("blue", "x", "bad")
		want("update blue/x 13")
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"blue"}, LabelSelector: "app!=none"}))
		want()
		s.put("blue", "y", "web")
		want("add blue/y 14")
		s.put("blue", "x", "web")
		want("update blue/x 15")
		s.put("blue", "x", "bad")
		s.put("blue", "z", "bad")
		want("update blue/x 16")
		must(t, objects.Select(t.Context(), in("green")))
		want("delete blue/x 16", "delete blue/y 14")
	})
}

type metadataAlone struct{ cache.ResourceEventHandler }

func (metadataAlone) MetadataAlone() bool { return true }

// encoded is an informer whose store decodes, as those of package compact.
type encoded struct {
	cache.SharedIndexInformer
	typed func(obj any) any
}

func (e *encoded) GetStore() cache.Store { return encodedStore{e.SharedIndexInformer.GetStore(), e} }

type encodedStore struct {
	cache.Store
	of *encoded
}

func (s encodedStore) Header(string) (metav1.Object, bool) { return nil, false }
func (s encodedStore) Typed(obj any) any                   { return s.of.typed(obj) }

// Each object is decoded by the informer of its part, also in an event of two parts. A part that has left
// is not in memory.
func TestEncoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var mu sync.Mutex
		var decoded []string
		made := map[scope.Part]weak.Pointer[encoded]{}
		objects := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			inner, err := s.informer(p)
			i := &encoded{SharedIndexInformer: inner, typed: func(obj any) any {
				if c, ok := obj.(*corev1.ConfigMap); ok {
					mu.Lock()
					defer mu.Unlock()
					decoded = append(decoded, fmt.Sprintf("%s %s: %s", c.Name, c.ResourceVersion, p))
				}
				return obj
			}}
			made[p] = weak.Make(i)
			return i, err
		})
		run(t, quiet(t), objects)
		j := newJournal()
		registration := handle(t, objects, j)
		want := func(objects ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(decoded)
			if !slices.Equal(decoded, objects) {
				t.Errorf("decoded %q\nwant %q", decoded, objects)
			}
			decoded = nil
		}
		s.put("blue", "x", "web")
		s.put("green", "y", "web")
		must(t, objects.Select(t.Context(), in("blue", "green")))
		want("x 11: namespace blue", "y 12: namespace green")
		s.put("blue", "x", "api")
		want("x 11: namespace blue", "x 13: namespace blue")
		s.setDelay(func() time.Duration { return time.Second })
		s.put("blue", "x", "web") // the event is held, and the list has it
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"blue"}, LabelSelector: "app"}))
		want("x 13: namespace blue", "x 14: namespace blue, labels app", "y 12: namespace green")
		if _, wrong := j.take(); len(wrong) > 0 {
			t.Errorf("wrong: %q", wrong)
		}
		must(t, objects.Select(t.Context(), in()))
		synctest.Wait()
		for p, i := range made {
			if !testcost.Freed(func() bool { return i.Value() == nil }) {
				t.Errorf("the informer of %s stays in memory", p)
			}
		}
		must(t, objects.RemoveEventHandler(registration))
	})
}
