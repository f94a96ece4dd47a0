package crdtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clientfeatures "k8s.io/client-go/features"
	featuretest "k8s.io/client-go/features/testing"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/crd/internal/conform"
	"github.com/controllerkit/controllerkit/crd/internal/site"
)

// Each error names the argument and the cure.
//
// Proves CK2.
func TestBadInput(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func() error
		want string
	}{
		{"nil object", func() error {
			_, err := crdtest.NewFake(site.Kind(), "websites", site.New("a", "b"), nil)
			return err
		}, "crdtest: objects[1] is nil: pass a *site.Website"},
		{"object twice", func() error {
			_, err := crdtest.NewFake(site.Kind(), "websites", site.New("a", "b"), site.New("a", "b"))
			return err
		}, `crdtest: objects[1]: websites.crd.example.com "b" already exists`},
		{"an object that no server stores", func() error {
			_, err := crdtest.NewFake(site.Kind(), "websites", site.New("a", "B"))
			return err
		}, `crdtest: objects[0]: Website.crd.example.com "B" is invalid: metadata.name`},
		{"a reserved kind", func() error {
			_, err := crdtest.NewFake[*site.Website](site.Kind().GroupVersion().WithKind("DeleteOptions"), "websites")
			return err
		}, `crd: kind has Kind "DeleteOptions", which Kubernetes reserves`},
		{"no resource", func() error {
			_, err := crdtest.NewFake[*site.Website](site.Kind(), "")
			return err
		}, `crd: resource is "": use the plural name alone`},
		{"T is an interface", func() error {
			_, err := crdtest.NewFake[controllerkit.Object](site.Kind(), "websites")
			return err
		}, "crd: T is controllerkit.Object: use a pointer to a struct"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := fmt.Sprint(tt.make()); !strings.HasPrefix(got, tt.want) {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestBubbleFailedList: an informer in a bubble lists again after a failure. Without the line of TestMain that docs/testing.md
// names, it sleeps from 2000 to the time of the process.
func TestBubbleFailedList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFake(t, site.New("ns", "a"))
		failed := false
		fake.PrependReactor("list", "websites", func(clienttesting.Action) (bool, runtime.Object, error) {
			first := !failed
			failed = true
			return first, nil, apierrors.NewInternalError(errors.New("once"))
		})
		informer := fake.Namespace("ns").Informer(0, nil).Informer()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { informer.RunWithContext(ctx) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if !failed || !informer.HasSynced() {
			t.Errorf("failed %t, synced %t a minute after the start", failed, informer.HasSynced())
		}
		cancel()
		wg.Wait()
	})
}

// What a reactor returns reaches the caller as the response of an API server.
func TestReactors(t *testing.T) {
	boom := errors.New("boom")
	for _, tt := range []struct {
		name  string
		obj   runtime.Object
		err   error
		check func(w *site.Website, err error) bool
	}{
		{"an object", site.New("ns", "other"), nil, func(w *site.Website, err error) bool { return err == nil && w.Name == "other" && w.Kind == "" }},
		{"an API error", nil, apierrors.NewConflict(schema.GroupResource{Group: "g.io", Resource: "websites"}, "a", boom), func(w *site.Website, err error) bool {
			return w == nil && apierrors.IsConflict(err) && strings.Contains(err.Error(), `websites.g.io "a"`)
		}},
		{"a wrapped API error", nil, fmt.Errorf("wrapped: %w", apierrors.NewInternalError(boom)), func(w *site.Website, err error) bool { return w == nil && apierrors.IsInternalError(err) }},
		{"another error", nil, boom, func(w *site.Website, err error) bool { return w == nil && errors.Is(err, boom) }},
		{"nothing", nil, nil, func(w *site.Website, err error) bool {
			return w == nil && strings.Contains(fmt.Sprint(err), "is a /v1, Kind=Status where a")
		}},
		{"a nil object", (*site.Website)(nil), nil, func(w *site.Website, err error) bool {
			return w == nil && strings.Contains(fmt.Sprint(err), "is a /v1, Kind=Status where a")
		}},
		{"another kind", &corev1.ConfigMap{}, nil, func(w *site.Website, err error) bool {
			return w == nil && strings.Contains(fmt.Sprint(err), "crdtest: a reactor returned a *v1.ConfigMap: return a Website: ")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fake := newFake(t, site.New("ns", "a"))
			fake.PrependReactor("update", "websites", func(clienttesting.Action) (bool, runtime.Object, error) { return true, tt.obj, tt.err })
			if w, err := fake.Namespace("ns").Update(t.Context(), site.New("ns", "a"), metav1.UpdateOptions{}); !tt.check(w, err) {
				t.Errorf("%+v, %v", w, err)
			}
		})
	}
	t.Run("a watch", func(t *testing.T) {
		fake := newFake(t)
		fake.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, nil, apierrors.NewResourceExpired("too old")
		})
		if w, err := fake.Watch(t.Context(), metav1.ListOptions{}); w != nil || !apierrors.IsResourceExpired(err) {
			t.Errorf("%v, %v", w, err)
		}
	})
	t.Run("an error event", func(t *testing.T) {
		fake, events := newFake(t), watch.NewFakeWithChanSize(2, false)
		fake.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) { return true, events, nil })
		w, err := fake.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status := apierrors.NewResourceExpired("too old").Status()
		events.Error(&status)
		events.Stop()
		if event := <-w.ResultChan(); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
			t.Errorf("got %v", event)
		}
		if event, ok := <-w.ResultChan(); ok {
			t.Errorf("after the end: %v", event)
		}
	})
	synctest.Test(t, func(t *testing.T) { // an event of another kind
		fake, events := newFake(t), watch.NewFakeWithChanSize(1, false)
		fake.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) { return true, events, nil })
		w, err := fake.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		events.Add(&corev1.ConfigMap{})
		if event := <-w.ResultChan(); event.Type != watch.Error || !strings.Contains(fmt.Sprint(event.Object), "a reactor returned a *v1.ConfigMap") {
			t.Errorf("got %v", event)
		}
		synctest.Wait()
		if !events.IsStopped() {
			t.Error("the watch of the reactor goes on")
		}
	})
}

// The client retries as in production, and the bubble's clock makes it instant.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, calls := newFake(t, site.New("ns", "a")), 0
		fake.PrependReactor("get", "websites", func(clienttesting.Action) (bool, runtime.Object, error) {
			if calls++; calls < 3 {
				return true, nil, apierrors.NewTooManyRequests("later", 7)
			}
			return false, nil, nil
		})
		fake.PrependReactor("list", "websites", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(errors.New("no time to wait"))
		})
		begin := time.Now()
		w, err := fake.Namespace("ns").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || w.Name != "a" || calls != 3 || time.Since(begin) != 14*time.Second {
			t.Errorf("%v, %v after %d calls and %v", w, err, calls, time.Since(begin))
		}
		fake.ClearActions()
		if _, err := fake.List(t.Context(), metav1.ListOptions{}); !apierrors.IsInternalError(err) || len(fake.Actions()) != 1 {
			t.Errorf("%v after the actions %v", err, fake.Actions())
		}
	})
}

// odd has JSON that it cannot read.
type odd struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Number oddNumber `json:"number"`
}

func (o *odd) DeepCopyObject() runtime.Object { out := *o; return &out }

type oddNumber struct{}

func (oddNumber) MarshalJSON() ([]byte, error) { return []byte("1"), nil }
func (*oddNumber) UnmarshalJSON([]byte) error  { return errors.New("no number") }

// A body that cannot be read is a bad request, and no reactor sees it.
func TestBadBody(t *testing.T) {
	fake, err := crdtest.NewFake[*odd](site.Kind(), "websites")
	if err != nil {
		t.Fatal(err)
	}
	obj := &odd{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	_, createErr := fake.Create(t.Context(), obj, metav1.CreateOptions{})
	_, updateErr := fake.Update(t.Context(), obj, metav1.UpdateOptions{})
	if !apierrors.IsBadRequest(createErr) || !apierrors.IsBadRequest(updateErr) || len(fake.Actions()) > 0 {
		t.Errorf("Create: %v; Update: %v; actions %v", createErr, updateErr, fake.Actions())
	}
}

// The actions are those of client-go's fakes.
func TestActions(t *testing.T) {
	fake := newFake(t, site.New("websites", "a"))
	ctx, c := t.Context(), fake.Namespace("websites") // the namespace has the name of the resource
	a, err := c.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := site.NewConfig("a")
	_, statusErr := c.UpdateStatus(ctx, a, metav1.UpdateOptions{FieldManager: "m"})
	_, createErr := c.Create(ctx, site.New("", "b"), metav1.CreateOptions{})
	if _, err := c.ApplyStatus(ctx, site.NewConfig("absent"), metav1.ApplyOptions{FieldManager: "m"}); !apierrors.IsNotFound(err) {
		t.Errorf("ApplyStatus of an absent object: %v", err)
	}
	_, listErr := fake.List(ctx, metav1.ListOptions{LabelSelector: "x"})
	_, applyErr := c.ApplyStatus(ctx, config, metav1.ApplyOptions{FieldManager: "m", Force: true})
	w, watchErr := c.Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
	if err := errors.Join(statusErr, createErr, listErr, applyErr, watchErr,
		c.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "x"}), c.Delete(ctx, "b", *metav1.NewDeleteOptions(5))); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	var got []string
	for _, action := range fake.Actions() {
		if action.GetResource() != site.Kind().GroupVersion().WithResource("websites") {
			t.Errorf("resource %v", action.GetResource())
		}
		text := strings.TrimRight(fmt.Sprintf("%s %s/%s", action.GetVerb(), action.GetNamespace(), action.GetSubresource()), "/")
		switch a := action.(type) {
		case clienttesting.GetActionImpl:
			text += " " + a.Name
		case clienttesting.UpdateActionImpl:
			text += " " + a.Object.(*site.Website).Name + a.Object.(*site.Website).Kind + " " + a.UpdateOptions.FieldManager
		case clienttesting.CreateActionImpl:
			text += " " + a.Object.(*site.Website).Name + a.Object.(*site.Website).Kind + " " + a.CreateOptions.FieldValidation
		case clienttesting.ListActionImpl:
			text += " " + a.ListOptions.LabelSelector + " " + a.Kind.Kind
		case clienttesting.PatchActionImpl:
			text += fmt.Sprintf(" %s %s %s %v", a.Name, a.PatchType, a.PatchOptions.FieldManager, *a.PatchOptions.Force)
		case clienttesting.WatchActionImpl:
			text += " " + a.ListOptions.ResourceVersion
		case clienttesting.DeleteCollectionActionImpl:
			text += " " + a.ListOptions.LabelSelector
		case clienttesting.DeleteActionImpl:
			text += fmt.Sprintf(" %s %d", a.Name, *a.DeleteOptions.GracePeriodSeconds)
		}
		got = append(got, text)
	}
	want := []string{
		"get websites a", "update websites/status a m", "create websites b Strict",
		"patch websites/status absent application/apply-patch+yaml m false", "list  x Website",
		"patch websites/status a application/apply-patch+yaml m true", "watch websites 1", "delete-collection websites x", "delete websites b 5",
	}
	if !slices.Equal(got, want) {
		t.Errorf("actions\n got %q\nwant %q", got, want)
	}
}

// A canceled request changes nothing, and a canceled or stopped watch ends the watch behind
// it.
func TestCanceled(t *testing.T) {
	fake := newFake(t, site.New("ns", "a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fake.Namespace("ns").Delete(ctx, "a", metav1.DeleteOptions{}); !errors.Is(err, context.Canceled) || len(fake.Actions()) > 0 {
		t.Errorf("%v, %v", err, fake.Actions())
	}
	for _, by := range []string{"stop", "cancel"} {
		synctest.Test(t, func(t *testing.T) {
			fake, events := newFake(t), watch.NewFake()
			fake.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) { return true, events, nil })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w, err := fake.Watch(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if by == "stop" {
				w.Stop()
			} else {
				cancel()
			}
			for event := range w.ResultChan() {
				if by == "stop" || event.Type != watch.Error {
					t.Errorf("after a %s: %v", by, event)
				}
			}
			synctest.Wait()
			if !events.IsStopped() {
				t.Errorf("after a %s the watch of the reactor goes on", by)
			}
		})
	}
}

// A Fake of a core resource, and of the cluster-scoped resource that is a part of other
// paths.
func TestNamespaces(t *testing.T) {
	fake, err := crdtest.NewFake(corev1.SchemeGroupVersion.WithKind("Namespace"), "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := fake.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.Status.Phase = corev1.NamespaceActive
	if ns, err = fake.UpdateStatus(t.Context(), ns, metav1.UpdateOptions{}); err != nil || ns.Status.Phase != corev1.NamespaceActive {
		t.Errorf("%v, %v", ns, err)
	}
}

// With the feature gates of CBOR the client sends CBOR.
func TestCBOR(t *testing.T) {
	featuretest.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	featuretest.SetFeatureDuringTest(t, clientfeatures.ClientsPreferCBOR, true)
	conform.Requests(t, newFake(t).Namespace("default"), "default")
}
