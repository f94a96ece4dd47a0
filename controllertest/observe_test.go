package controllertest

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// TestObserverMisses: if the observer's watch has expired, the events between its last one and
// the list are unknown, and deletions are as late as the list.
//
// Proves X6.
func TestObserverMisses(t *testing.T) {
	gvr := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	object := func(name, version string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("v1")
		o.SetKind("ConfigMap")
		o.SetNamespace("ct-1")
		o.SetName(name)
		o.SetUID(types.UID("uid of " + name))
		o.SetResourceVersion(version)
		return o
	}
	list := func(version string, objects ...*unstructured.Unstructured) *unstructured.UnstructuredList {
		l := &unstructured.UnstructuredList{}
		l.SetAPIVersion("v1")
		l.SetKind("ConfigMapList")
		l.SetResourceVersion(version)
		for _, o := range objects {
			l.Items = append(l.Items, *o)
		}
		return l
	}
	lists := []*unstructured.UnstructuredList{list("10", object("a", "7"), object("b", "8")), list("30", object("b", "22"), object("c", "25")), list("40", object("c", "25"))}
	watches := make(chan *watch.FakeWatcher, 2)
	dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{gvr: "ConfigMapList"})
	dyn.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		l := lists[0]
		lists = lists[min(1, len(lists)-1):]
		return true, l, nil
	})
	dyn.PrependWatchReactor("configmaps", func(clienttesting.Action) (bool, watch.Interface, error) {
		w := watch.NewFakeWithChanSize(2, false)
		watches <- w
		return true, w, nil
	})
	r := quietRun(Scenario{}, "ct-1")
	o := newObserver(t.Context(), "ct")
	o.dyn, r.x.observer = dyn, o
	o.runs["ct-1"] = r
	o.observe(gvr, true)
	create := func(name, version string) { // answers the creation of an object that is deleted at once
		body, err := object(name, version).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		r.responded(&fault.Op{Verb: "create", Resource: "configmaps", Namespace: "ct-1", Name: name}, http.StatusCreated, body)
	}
	first := <-watches
	create("d", "15")
	first.Modify(object("a", "12"))
	first.Error(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
	second := <-watches
	deleted := object("b", "35")
	second.Delete(deleted)
	second.Stop()
	<-watches         // the third
	create("e", "16") // the answer was late
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for _, e := range r.history {
		got = append(got, string(e.kind)+" "+e.key.name+" "+e.object.GetResourceVersion()+" at "+strconv.FormatUint(e.revision, 10))
	}
	want := []string{"ADDED a 7 at 7", "ADDED b 8 at 8", "MODIFIED a 12 at 12", "DELETED a 12 at 30", "MODIFIED b 22 at 22", "ADDED c 25 at 25", "DELETED b 35 at 35"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if len(r.late.awaited) > 0 {
		t.Errorf("events of %v are awaited, and there are none", r.late.awaited)
	}
	if len(r.gaps) != 1 || r.gaps[0] != (gap{"configmaps", 12, 30}) {
		t.Errorf("gaps = %v, want that from 12 to 30", r.gaps)
	}
}

// TestBindingIsKnown holds that a Pod that the run has bound was not written by another client,
// although the response to a binding has no version. A Pod that the run has not written was.
func TestBindingIsKnown(t *testing.T) {
	r := quietRun(Scenario{}, "ct-1")
	r.responded(&fault.Op{Verb: "create", Resource: "pods", Subresource: "binding", Namespace: "ct-1", Name: "a"}, http.StatusCreated, []byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	for _, name := range []string{"b", "a"} {
		pod := object(t, `{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"ct-1","name":"`+name+`","resourceVersion":"7"}}`)
		r.history = []event{{key: objectKey{"pods", "ct-1", name}, kind: watch.Modified, object: pod}}
		if hint := r.others(); (hint != "") != (name == "b") {
			t.Errorf("the hint about Pod %s is %q", name, hint)
		}
	}
}

// TestObserverOfAResourceWithoutList: a resource that the API server does not list has no objects, until
// it does.
func TestObserverOfAResourceWithoutList(t *testing.T) {
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}
	for _, tt := range []struct {
		name string
		err  error
		hint string
	}{
		{"not served", apierrors.NewGenericServerResponse(http.StatusNotFound, "list", gvr.GroupResource(), "", "", 0, true), "; the API server does not serve gadgets.example.com: add its CRD to Scenario.CRDs"},
		{"only created", apierrors.NewMethodNotSupported(gvr.GroupResource(), "list"), ""},
		{"rejected", apierrors.NewBadRequest("no list"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{gvr: "GadgetList"})
				var served atomic.Bool
				dyn.PrependReactor("list", "gadgets", func(clienttesting.Action) (bool, runtime.Object, error) {
					if served.Load() {
						l := &unstructured.UnstructuredList{}
						l.SetResourceVersion("8")
						l.Items = []unstructured.Unstructured{*object(t, `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"namespace":"ct-1","name":"g","uid":"u","resourceVersion":"7"}}`)}
						return true, l, nil
					}
					return true, nil, tt.err
				})
				ctx, cancel := context.WithCancel(t.Context())
				r, o := quietRun(Scenario{}, "ct-1"), newObserver(ctx, "ct")
				defer o.wg.Wait()
				defer cancel()
				o.dyn, r.x.dyn, r.x.observer, r.env.Cloud = dyn, dyn, o, cloud.New(cloud.Options{})
				o.runs["ct-1"] = r
				r.owned = map[objectKey]*unstructured.Unstructured{}
				r.x.options.ConvergeTimeout = time.Minute
				o.observe(gvr, true)
				if s, err := r.list(ctx); err != nil || len(s.objects) > 0 || r.agrees(s) != nil || o.unserved() != tt.hint {
					t.Errorf("list() = %v, error %v, hint %q, want no object and the hint %q", s, err, o.unserved(), tt.hint)
				}
				if apierrors.IsBadRequest(tt.err) {
					return // it is not asked again
				}
				served.Store(true)
				if s, err := r.list(ctx); err != nil || !errors.Is(r.agrees(s), errUnseen) {
					t.Errorf("list() of a resource that is served now = %v, error %v, want an object that the observer has not seen", s, err)
				}
				time.Sleep(2 * time.Second)
				if s, err := r.list(ctx); err != nil || r.agrees(s) != nil || len(s.objects) != 1 || o.unserved() != "" {
					t.Errorf("list() after the watch = %v, error %v, hint %q, want the object", s, err, o.unserved())
				}
			})
		})
	}
}
