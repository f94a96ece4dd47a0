package remember_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/managerkit/internal/standby"
	"github.com/controllerkit/controllerkit/managerkit/remember"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestGet: an object that appears, changes or disappears adds the requests that have read its name, and no other
// does.
//
// Proves RR1 and RR3.
func TestGet(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u := w.unit(nil, &corev1.Secret{}, &corev1.ConfigMap{})
		secrets := w.of(&corev1.Secret{})
		u.get("one", client.ObjectKey{Namespace: "a", Name: "x"})
		u.get("two", client.ObjectKey{Namespace: "a", Name: "x"})
		u.get("other", client.ObjectKey{Namespace: "b", Name: "x"})
		u.call("map", func(ctx context.Context) error {
			return client.IgnoreNotFound(u.Get(ctx, client.ObjectKey{Namespace: "a", Name: "x"}, &corev1.ConfigMap{}))
		})
		secrets.Add(secret("a", "x"))
		u.want("the creation", "one", "two")
		secrets.Modify(secret("a", "x", "changed="))
		u.want("the change", "one", "two")
		secrets.Add(secret("a", "y"))
		u.want("another Secret")
		u.get("two", client.ObjectKey{Namespace: "a", Name: "y"})
		secrets.Delete(secret("a", "x"))
		u.want("the deletion", "one")
		secrets.Modify(secret("a", "y", "changed="))
		u.want("the change of what was read last", "two")
	})
}

// TestList: an object that enters or leaves what was listed, or changes in it, adds the request, and no other does.
//
// Proves RR2 and RR3.
func TestList(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u := w.unit(nil, &corev1.Secret{})
		secrets := w.of(&corev1.Secret{})
		u.list("all")
		u.list("namespace", client.InNamespace("a"))
		u.list("nil", client.InNamespace("a"), &client.ListOptions{LabelSelector: nil})
		u.list("labels", client.InNamespace("a"), client.MatchingLabels{"app": "x"})
		u.list("everywhere", client.HasLabels{"app"})
		u.list("nothing", client.MatchingLabelsSelector{Selector: labels.Nothing()})
		secrets.Add(secret("a", "s", "app=x"))
		u.want("an object that enters all", "all", "everywhere", "labels", "namespace", "nil")
		secrets.Modify(secret("a", "s", "app=x", "more="))
		u.want("its change", "all", "everywhere", "labels", "namespace", "nil")
		secrets.Modify(secret("a", "s", "app=y"))
		u.want("its new label", "all", "everywhere", "labels", "namespace", "nil")
		secrets.Modify(secret("a", "s", "app=y", "more="))
		u.want("a change outside of the selector", "all", "everywhere", "namespace", "nil")
		secrets.Modify(secret("a", "s"))
		u.want("the end of the label", "all", "everywhere", "namespace", "nil")
		secrets.Add(secret("b", "s", "app=x"))
		u.want("another namespace", "all", "everywhere")
		secrets.Delete(secret("a", "s"))
		u.want("the deletion", "all", "namespace", "nil")
		for _, name := range []string{"all", "everywhere", "namespace", "nil", "labels"} {
			u.get(name, client.ObjectKey{Namespace: "a", Name: "absent"})
		}
		secrets.Delete(secret("b", "s", "app=x"))
		u.want("what nobody has listed last")
	})
}

// byType and byData are indexes of Secrets.
func byType(obj client.Object) []string { return []string{string(obj.(*corev1.Secret).Type)} }

func byData(obj client.Object) (names []string) {
	for name := range obj.(*corev1.Secret).Data {
		names = append(names, name)
	}
	return names
}

// TestFields: a list by the values of indexed fields, also with a namespace and labels, is exact.
//
// Proves RR2 and RR3.
func TestFields(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u := w.unit(func(r *remember.Reader) {
			must(t, r.IndexField(t.Context(), &corev1.Secret{}, "type", byType))
			must(t, w.cache.IndexField(t.Context(), &corev1.Secret{}, "data", byData))
			must(t, r.Indexed(&corev1.Secret{}, "data", byData))
		}, &corev1.Secret{})
		secrets := w.of(&corev1.Secret{})
		make := func(namespace, kind, data string, labels ...string) *corev1.Secret {
			s := secret(namespace, "s", labels...)
			s.Type, s.Data = corev1.SecretType(kind), map[string][]byte{data: nil, "always": nil}
			return s
		}
		for name, opts := range map[string][]client.ListOption{
			"all":       {},
			"type":      {client.MatchingFields{"type": "t"}},
			"data":      {client.MatchingFields{"data": "d"}},
			"always":    {client.MatchingFields{"data": "always"}},
			"both":      {client.MatchingFields{"type": "t", "data": "d"}},
			"namespace": {client.MatchingFields{"type": "t"}, client.InNamespace("a")},
			"labels":    {client.MatchingFields{"type": "t"}, client.MatchingLabels{"app": "x"}},
			"value":     {client.MatchingFields{"type": "other/value, with = signs"}},
		} {
			u.call(name, func(ctx context.Context) error { return u.List(ctx, &corev1.SecretList{}, opts...) })
		}
		secrets.Add(make("b", "t", "d"))
		u.want("type and data", "all", "always", "both", "data", "type")
		secrets.Modify(make("b", "u", "d"))
		u.want("another type", "all", "always", "both", "data", "type")
		secrets.Modify(make("b", "u", "d", "app=x"))
		u.want("a label", "all", "always", "data")
		secrets.Modify(make("b", "t", "e", "app=x"))
		u.want("a type and a label", "all", "always", "data", "labels", "type")
		secrets.Modify(make("b", "t", "d", "app=x"))
		u.want("type, data and label", "all", "always", "both", "data", "labels", "type")
		secrets.Add(make("a", "t", "e"))
		u.want("a namespace", "all", "always", "namespace", "type")
		secrets.Modify(make("a", "other/value, with = signs", "e"))
		u.want("any value", "all", "always", "namespace", "type", "value")
		secrets.Delete(make("a", "other/value, with = signs", "e"))
		u.want("its deletion", "all", "always", "value")
		var list corev1.SecretList
		u.call("read", func(ctx context.Context) error {
			return u.List(ctx, &list, client.MatchingFields{"type": "t", "data": "d"}, client.InNamespace("b"))
		})
		if len(list.Items) != 1 {
			t.Errorf("List has %d Secrets, want 1", len(list.Items))
		}
	})
}

// TestErrors: each read that cannot be remembered is an error that names the cure.
//
// Proves RR4.
func TestErrors(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var zero remember.Reader
		idle, err := remember.New(w, &corev1.Secret{})
		must(t, err)
		u := w.unit(func(r *remember.Reader) {
			must(t, r.IndexField(t.Context(), &corev1.Secret{}, "type", byType))
		}, &corev1.Secret{}, &corev1.Secret{})
		other := w.unit(nil, &corev1.Secret{})
		var ended context.Context
		u.call("ended", func(ctx context.Context) error { ended = ctx; return nil })
		key := client.ObjectKey{Namespace: "a", Name: "b"}
		list := func(ctx context.Context, opts ...client.ListOption) error {
			return u.List(ctx, &corev1.SecretList{}, opts...)
		}
		u.call("errors", func(ctx context.Context) error {
			_, _ = idle.Reconciler(crreconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
				err = idle.Get(ctx, key, &corev1.Secret{})
				return ctrl.Result{}, nil
			})).Reconcile(ctx, request("idle"))
			for _, tt := range []struct {
				name string
				err  error
				want string
			}{
				{"no source", err, "remember: Get: the Source of the Reader is not started and synced: pass it to WatchesRawSource"},
				{"zero", zero.Get(ctx, key, &corev1.Secret{}), "remember: Get: the Reader is nil or zero: use New"},
				{"nil reader", (*remember.Reader)(nil).Get(ctx, key, &corev1.Secret{}), "remember: Get: the Reader is nil or zero: use New"},
				{"nil", u.Get(ctx, key, nil), "remember: Get: the object is nil"},
				{"kind", u.Get(ctx, key, &corev1.ConfigMap{}), "remember: Get: the Reader does not see events of v1 ConfigMap: pass the kind as a typed object to New"},
				{"kind of a list", u.List(ctx, &corev1.ConfigMapList{}), "remember: List: the Reader does not see events of v1 ConfigMap: pass the kind"},
				{"another cache", u.Get(ctx, key, loose("Secret")), "remember: Get: the Reader has v1 Secret as *v1.Secret, which is another cache than that of a *unstructured.Unstructured: pass the kind as an *unstructured.Unstructured to New too"},
				{"another cache of a list", u.List(ctx, &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}}), "pass the kind as a *metav1.PartialObjectMetadata to New too"},
				{"no call", u.Get(t.Context(), key, &corev1.Secret{}), "remember: Get: the context is not that of a call of this Reader's controller: pass on the context of Reconcile"},
				{"no call, List", list(t.Context()), "remember: List: the context is not that of a call"},
				{"another Reader", other.Get(ctx, key, &corev1.Secret{}), "remember: Get: the context is not that of a call of this Reader's controller"},
				{"ended", u.Get(ended, key, &corev1.Secret{}), "Get: the call of the context has returned: wait for goroutines"},
				{"ended, List", list(ended), "List: the call of the context has returned: wait for goroutines"},
				{"Raw of Get", u.Get(ctx, key, &corev1.Secret{}, &client.GetOptions{Raw: &metav1.GetOptions{}}), "remember: Get: a read with the option Raw cannot be remembered: omit it"},
				{"Raw", list(ctx, &client.ListOptions{Raw: &metav1.ListOptions{}}), "remember: List: a read with the option Raw cannot be remembered: omit it"},
				{"Limit", list(ctx, client.Limit(1)), "the option Limit"},
				{"Continue", list(ctx, client.Continue("x")), "the option Continue"},
				{"index", list(ctx, client.MatchingFields{"data": "x"}), `remember: List: the Reader does not know an index of the field "data" of Secret: call Reader.IndexField before the manager starts`},
				{"no field", list(ctx, client.MatchingFields{}), "has no field: omit it"},
				{"inequality", list(ctx, client.MatchingFieldsSelector{Selector: fields.OneTermNotEqualSelector("type", "t")}), `the field selector "type!=t" is not of the form field=value`},
			} {
				if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) || reconcile.Class(tt.err) != controllerkit.ResultRejected {
					t.Errorf("%s: got %v, want a rejected one with %q", tt.name, tt.err, tt.want)
				}
			}
			must(t, list(ctx, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency))
			return client.IgnoreNotFound(u.Get(ctx, key, &corev1.Secret{}, &client.GetOptions{UnsafeDisableDeepCopy: ptr.To(true)}))
		})
		for _, tt := range []struct {
			name string
			err  error
			want string
		}{
			{"no manager", second(remember.New(nil, &corev1.Secret{})), "remember: New: mgr is nil: pass the manager"},
			{"no kinds", second(remember.New(w)), "remember: New: there are no kinds: pass an object"},
			{"nil kind", second(remember.New(w, (*corev1.Secret)(nil))), "remember: New: a kind is nil"},
			{"no GVK", second(remember.New(w, &metav1.PartialObjectMetadata{})), "remember: New: "},
			{"late", u.IndexField(t.Context(), &corev1.Secret{}, "data", byData), `remember: IndexField: the controller runs already: index the field "data" before the manager starts`},
			{"kind", u.Indexed(&corev1.ConfigMap{}, "data", byData), "remember: Indexed: the Reader does not see events of v1 ConfigMap"},
			{"nil function", idle.Indexed(&corev1.Secret{}, "data", nil), `remember: Indexed: the field "data" is empty or its function is nil`},
			{"conflict", idle.IndexField(t.Context(), &corev1.Secret{}, "type", byType), `remember: IndexField: index the field "type" of Secret: `},
			{"twice", errors.Join(idle.Indexed(&corev1.Secret{}, "data", byData), idle.Indexed(&corev1.Secret{}, "data", byData)), `remember: Indexed: the field "data" of Secret is indexed twice`},
			{"nil Reconciler", second(idle.Reconciler(nil).Reconcile(t.Context(), request("a"))), "remember: Reconciler: next is nil"},
		} {
			if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
				t.Errorf("%s: got %v, want %q", tt.name, tt.err, tt.want)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func loose(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	return u
}

// TestCalls: a call that returns, with or without an error, replaces what was read. A panic and the end of the context
// keep it.
//
// Proves RR5.
func TestCalls(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u := w.unit(nil, &corev1.Secret{})
		secrets := w.of(&corev1.Secret{})
		read := func(ctx context.Context, name string) {
			_ = u.Get(ctx, client.ObjectKey{Namespace: "a", Name: name}, &corev1.Secret{})
		}
		// begin makes a call that has read the Secret before, and then a call that reads the Secret after.
		for i, tt := range []struct {
			name string
			call func(ctx context.Context)
			want []string
		}{
			{"result", func(ctx context.Context) { _, _ = u.r.Reconcile(ctx, request("k")) }, nil},
			{"error", func(ctx context.Context) {
				next := u.next
				u.next = func(ctx context.Context) error { _ = next(ctx); return errors.New("failed") }
				_, _ = u.r.Reconcile(ctx, request("k"))
			}, nil},
			{"panic", func(ctx context.Context) {
				next := u.next
				u.next = func(ctx context.Context) error { _ = next(ctx); panic("oh") }
				defer func() {
					if recover() != "oh" {
						t.Error("the panic is lost")
					}
				}()
				_, _ = u.r.Reconcile(ctx, request("k"))
			}, []string{"k"}},
			{"context", func(ctx context.Context) {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				_, _ = u.r.Reconcile(ctx, request("k"))
			}, []string{"k"}},
		} {
			before, after := fmt.Sprint("before", i), fmt.Sprint("after", i)
			u.call("k", func(ctx context.Context) error { read(ctx, before); return nil })
			u.next = func(ctx context.Context) error { read(ctx, after); return nil }
			tt.call(t.Context())
			secrets.Add(secret("a", before))
			u.want(tt.name+": what the call before has read", tt.want...)
			secrets.Add(secret("a", after))
			u.want(tt.name+": what the call has read", "k")
		}
	})
}

// TestControllers: two controllers with a Reader each do not mix, and one Reader is not for two.
func TestControllers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.unit(nil, &corev1.Secret{}), w.unit(nil, &corev1.Secret{})
		a.get("same", client.ObjectKey{Namespace: "a", Name: "x"})
		b.get("same", client.ObjectKey{Namespace: "a", Name: "y"})
		w.of(&corev1.Secret{}).Add(secret("a", "x"))
		a.want("what a has read", "same")
		b.want("what a has read")
		if err := start(t.Context(), a.Source(), &fakeQueue{}); err == nil || !strings.Contains(err.Error(), "remember: another controller uses the Source of the Reader: call New for each controller") {
			t.Errorf("a second Source has the error %v", err)
		}
		_, err := a.Reconciler(a.r).Reconcile(t.Context(), request("x"))
		if !errors.Is(err, crreconcile.TerminalError(nil)) || !strings.Contains(err.Error(), "remember: Reconciler: another controller uses the Reader") {
			t.Errorf("a second Reconciler has the error %v", err)
		}
	})
}

// TestTwoReaders: one controller can have a Reader of each of two clusters.
func TestTwoReaders(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.unit(nil, &corev1.Secret{}), w.unit(nil, &corev1.Secret{})
		key := client.ObjectKey{Namespace: "a", Name: "x"}
		a.next = func(ctx context.Context) error {
			return errors.Join(client.IgnoreNotFound(a.Get(ctx, key, &corev1.Secret{})), client.IgnoreNotFound(b.Get(ctx, key, &corev1.Secret{})))
		}
		b.next = func(ctx context.Context) error { return second(a.r.Reconcile(ctx, request("k"))) }
		must(t, second(b.r.Reconcile(t.Context(), request("k"))))
		w.of(&corev1.Secret{}).Add(secret("a", "x"))
		a.want("the first Reader", "k")
		b.want("the second Reader", "k")
	})
}

// TestForms: unstructured objects and metadata are read from their own caches and remembered.
func TestForms(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		partial := func() *metav1.PartialObjectMetadata {
			return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
		}
		u := w.unit(nil, loose("Secret"), partial())
		key := client.ObjectKey{Namespace: "a", Name: "x"}
		u.call("unstructured", func(ctx context.Context) error { return client.IgnoreNotFound(u.Get(ctx, key, loose("Secret"))) })
		u.call("metadata", func(ctx context.Context) error { return client.IgnoreNotFound(u.Get(ctx, key, partial())) })
		u.call("list", func(ctx context.Context) error {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
			return u.List(ctx, list)
		})
		u.call("metadata list", func(ctx context.Context) error {
			return u.List(ctx, &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}}, client.InNamespace("a"))
		})
		obj := loose("Secret")
		obj.SetNamespace("a")
		obj.SetName("x")
		w.of(obj).Add(obj)
		u.want("an unstructured object", "list", "unstructured")
		meta := partial()
		meta.Namespace, meta.Name = "a", "x"
		w.of(meta).Add(meta)
		u.want("metadata", "metadata", "metadata list")
	})
}

// TestClusterScoped: the cache ignores the namespace in the key of a cluster-scoped object, and so does its memory.
func TestClusterScoped(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u := w.unit(nil, &corev1.Node{})
		nodes := w.of(&corev1.Node{})
		nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		synctest.Wait()
		for range 2 {
			u.call("with", func(ctx context.Context) error {
				return u.Get(ctx, client.ObjectKey{Namespace: "a", Name: "n"}, &corev1.Node{})
			})
		}
		u.call("without", func(ctx context.Context) error { return u.Get(ctx, client.ObjectKey{Name: "n"}, &corev1.Node{}) })
		u.want("nothing")
		nodes.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		u.want("the deletion", "with", "without")
	})
}

// TestBeforeTheRead: an event during a read adds the request, because the read is remembered before.
func TestBeforeTheRead(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u := w.unit(nil, &corev1.Secret{})
		n := 0
		w.onRead = func() {
			n++
			w.of(&corev1.Secret{}).Add(secret("a", fmt.Sprint(n)))
			synctest.Wait()
		}
		u.get("get", client.ObjectKey{Namespace: "a", Name: "1"})
		u.want("an event during Get", "get")
		u.list("list", client.InNamespace("a"))
		u.want("an event during List", "list")
	})
}

// TestPriority: a request of the initial list has a low priority, and a resync adds none.
func TestPriority(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u := w.unit(nil, &corev1.Secret{})
		u.get("k", client.ObjectKey{Namespace: "a", Name: "x"})
		w.of(&corev1.Secret{}).Add(secret("a", "x"))
		u.want("an event", "k")
		w.handler.OnAdd(secret("a", "x"), true)
		u.want("the initial list", "k (low)")
		stored := secret("a", "x")
		stored.ResourceVersion = "1"
		w.handler.OnUpdate(stored, stored)
		u.want("a resync")
		w.handler.OnUpdate(secret("a", "x"), secret("a", "x"))
		u.want("an update without a version", "k (low)")
	})
}

// TestStandby: while the source keeps the informers of a standby running it adds nothing, and reads are errors.
func TestStandby(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		r, err := remember.New(w, &corev1.Secret{})
		must(t, err)
		idle := &struct {
			*fakeQueue
			standby.Queue
		}{fakeQueue: &fakeQueue{}}
		src := r.Source()
		must(t, start(w.ctx, src, idle))
		if informer, err := w.cache.GetInformer(t.Context(), &corev1.Secret{}); err != nil || !informer.HasSynced() {
			t.Errorf("the informer does not run: %v", err)
		}
		u := &unit{Reader: r, w: w, queue: &fakeQueue{}}
		u.r = r.Reconciler(crreconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
			return ctrl.Result{}, u.next(ctx)
		}))
		key := client.ObjectKey{Namespace: "a", Name: "x"}
		u.call("k", func(ctx context.Context) error {
			if err := r.Get(ctx, key, &corev1.Secret{}); reconcile.Class(err) != controllerkit.ResultRejected {
				t.Errorf("a read of a standby has the error %v", err)
			}
			return nil
		})
		must(t, start(w.ctx, src, u.queue))
		u.get("k", key)
		w.of(&corev1.Secret{}).Add(secret("a", "x"))
		u.want("an event", "k")
		if got := idle.take(); len(got) > 0 {
			t.Errorf("the queue of the standby has %q", got)
		}
	})
}
