package reads_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/malformed"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

// gadget is a type that rejects the value "bad".
type gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Value strict `json:"value"`
}

type strict string

func (s *strict) UnmarshalJSON(text []byte) error {
	if string(text) == `"bad"` {
		return errors.New("a bad value")
	}
	return json.Unmarshal(text, (*string)(s))
}

func (g *gadget) DeepCopyObject() runtime.Object {
	c := *g
	c.ObjectMeta = *g.ObjectMeta.DeepCopy()
	return &c
}

func newGadget(n, version string, value strict) *gadget {
	return &gadget{ObjectMeta: object("shop", n, version, map[string]string{"app": "x"}).ObjectMeta, Value: value}
}

func relabelled(g *gadget) *gadget {
	g.Labels = map[string]string{"app": "y"}
	return g
}

// TestMalformedRead: a key whose List or ByIndex has failed because of an object that does not fit its Go type
// runs again when that object fits or is deleted, also if it is then not one that the key has asked for. Proves RM2.
func TestMalformedRead(t *testing.T) {
	kinds := map[string]func(*cache.ListWatch) (cache.SharedIndexInformer, func(*gadget) runtime.Object){
		"crd": func(lw *cache.ListWatch) (cache.SharedIndexInformer, func(*gadget) runtime.Object) {
			inner := cache.NewSharedIndexInformerWithOptions(lw, nil, cache.SharedIndexInformerOptions{
				ObjectDescription: "*gadget",
				Indexers:          cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, malformed.Index: malformed.Values},
			})
			return malformed.New(inner, "*gadget"), func(g *gadget) runtime.Object {
				if g.Value == "bad" {
					return &malformed.Object{ObjectMeta: g.ObjectMeta, Err: malformed.Err}
				}
				return g
			}
		},
		"compact": func(lw *cache.ListWatch) (cache.SharedIndexInformer, func(*gadget) runtime.Object) {
			inf, err := compact.Over[*gadget](lw, compact.Options{})
			must(t, err)
			return inf, func(g *gadget) runtime.Object { return g }
		},
	}
	byIndex := func(ctx context.Context, r *reads.Reader[*gadget, name]) ([]*gadget, error) {
		return r.ByIndex(ctx, "by", "a")
	}
	list := func(ctx context.Context, r *reads.Reader[*gadget, name]) ([]*gadget, error) {
		return r.List(ctx, "shop", parse(t, "app=x"))
	}
	correct := func(w *watch.FakeWatcher, _ func(*gadget) runtime.Object) { w.Modify(newGadget("o", "9", "b")) }
	for _, tc := range []struct {
		name   string
		before []*gadget
		read   func(context.Context, *reads.Reader[*gadget, name]) ([]*gadget, error)
		then   func(w *watch.FakeWatcher, show func(*gadget) runtime.Object)
	}{
		{"ByIndex, then it fits", []*gadget{newGadget("o", "2", "bad")}, byIndex, correct},
		{"ByIndex, then it is deleted", []*gadget{newGadget("o", "2", "bad")}, byIndex, func(w *watch.FakeWatcher, show func(*gadget) runtime.Object) {
			w.Delete(show(newGadget("o", "9", "bad")))
		}},
		{"ByIndex, fitted before, then it fits", []*gadget{newGadget("o", "2", "c"), newGadget("o", "3", "bad")}, byIndex, correct},
		{"ByIndex, fitted before, then it is deleted", []*gadget{newGadget("o", "2", "c"), newGadget("o", "3", "bad")}, byIndex, func(w *watch.FakeWatcher, show func(*gadget) runtime.Object) {
			w.Delete(show(newGadget("o", "9", "bad")))
		}},
		{"List, then it fits with other labels", []*gadget{newGadget("o", "2", "bad")}, list, func(w *watch.FakeWatcher, _ func(*gadget) runtime.Object) {
			w.Modify(relabelled(newGadget("o", "9", "b")))
		}},
		{"List, then it is deleted after another change", []*gadget{newGadget("o", "2", "bad")}, list, func(w *watch.FakeWatcher, show func(*gadget) runtime.Object) {
			w.Modify(show(relabelled(newGadget("o", "8", "bad"))))
			w.Delete(show(relabelled(newGadget("o", "9", "bad"))))
		}},
	} {
		for kind, newInformer := range kinds {
			t.Run(kind+", "+tc.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					// The selector of the List does not select the first one.
					first := relabelled(newGadget("a", "1", "bad"))
					if tc.name[0] == 'B' {
						first = newGadget("a", "1", "a")
					}
					var inf cache.SharedIndexInformer
					var show func(*gadget) runtime.Object
					watched := watch.NewFakeWithChanSize(10, false)
					inf, show = newInformer(&cache.ListWatch{
						ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
							return &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []runtime.Object{show(first)}}, nil
						},
						WatchFuncWithContext: func(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
							if opts.SendInitialEvents != nil {
								return nil, errors.New("no streamed list")
							}
							return watched, nil
						},
					})
					var tr tracker
					r, err := reads.From(&tr, resource, inf, map[string]func(*gadget) []string{"by": func(g *gadget) []string { return []string{string(g.Value)} }})
					must(t, err)
					w := &world{added: added{}}
					_, err = inf.AddEventHandler(r.Handler(sink{w}))
					must(t, err)
					ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), testlog.Silent()))
					done := make(chan struct{})
					go func() { defer close(done); inf.RunWithContext(ctx) }()
					defer func() { cancel(); <-done }()
					settle := func() { time.Sleep(time.Second); synctest.Wait() }
					settle()
					for i, g := range tc.before {
						if i == 0 {
							watched.Add(show(g))
						} else {
							watched.Modify(show(g))
						}
						settle()
					}
					ask := func() (found []*gadget, err error) {
						call(t, &tr, key, func(ctx context.Context) { found, err = tc.read(ctx, r) })
						return found, err
					}
					if found, err := ask(); !errors.Is(err, malformed.Err) {
						t.Fatalf("beside a malformed object, the read has %d objects and the error %v", len(found), err)
					}
					w.take()
					tc.then(watched, show)
					settle()
					if got := w.take(); got[key] == 0 {
						t.Errorf("the key is not added; its read is now %s", fmt.Sprint(second(ask())))
					}
					if _, err := ask(); err != nil {
						t.Errorf("the read has the error %v in the end", err)
					}
				})
			})
		}
	}
}
