package operator_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// timer is a type that rejects texts which its schema accepts.
type timer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Every *metav1.Duration `json:"every"`
	} `json:"spec"`
}

func (o *timer) DeepCopyObject() runtime.Object {
	out := *o
	o.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// TestServerMalformedTenant: the malformed object of one user stops no other one. Its own key is
// reconciled with the error, class rejected, when it becomes malformed, and again when it fits, also
// if a predicate reads the spec.
func TestServerMalformedTenant(t *testing.T) {
	text := map[string]any{"type": "string"}
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "timers.operator.example.com"},
		"spec": map[string]any{
			"group": "operator.example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "timers", "singular": "timer", "kind": "Timer", "listKind": "TimerList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
				"spec": map[string]any{"type": "object", "properties": map[string]any{"every": text}}}}}}},
		},
	})
	config := testserver.Config(t)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	put := func(namespace, name, every string) {
		t.Helper()
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "operator.example.com/v1", "kind": "Timer", "metadata": map[string]any{"name": name}, "spec": map[string]any{"every": every}}}
		timers := client.Resource(schema.GroupVersionResource{Group: "operator.example.com", Version: "v1", Resource: "timers"}).Namespace(namespace)
		_, err := timers.Create(t.Context(), u, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			patch, _ := u.MarshalJSON()
			_, err = timers.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	mine, other := testserver.Namespace(t), testserver.Namespace(t)

	op, err := operator.New(config, operator.Options{Name: "timers"})
	if err != nil {
		t.Fatal(err)
	}
	timers, err := crd.New[*timer](op.Config, schema.GroupVersionKind{Group: "operator.example.com", Version: "v1", Kind: "Timer"}, "timers")
	if err != nil {
		t.Fatal(err)
	}
	type call struct {
		name       string
		err, lists error
	}
	calls := make(chan call, 1000)
	var lister crd.Lister[*timer]
	c := op.Controller("timers", func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
		o, err := lister.Namespace(key.Namespace).Get(key.Name)
		if err == nil && o.Spec.Every == nil {
			err = errors.New("an empty spec")
		}
		_, lists := lister.List(labels.Everything())
		calls <- call{key.Name, err, lists}
		return reconcile.Result{}, err
	})
	lister = operator.For(c, schema.GroupResource{Group: "operator.example.com", Resource: "timers"}, timers.Informer(0, nil), func(e enqueue.Event[*timer]) bool {
		return e.Created || e.Deleted || e.Old.Spec.Every.Duration != e.New.Spec.Every.Duration || e.Old.Generation != e.New.Generation
	})
	logs := testlog.New()
	start(t, op, logs)
	until := func(name string, done func(call) bool) {
		t.Helper()
		for {
			if got := receive(t, calls); got.name == name && done(got) {
				return
			}
		}
	}
	fine := func(c call) bool {
		if c.err != nil && !errors.Is(c.err, crd.ErrMalformed) {
			t.Fatalf("%s: %v", c.name, c.err)
		}
		return c.err == nil
	}
	refused := func(c call) bool { return errors.Is(c.err, crd.ErrMalformed) }
	put(mine, "first", "5s")
	until("first", fine)
	put(other, "bad", "99999999999999s")
	put(mine, "second", "5s")
	until("second", func(c call) bool {
		if !errors.Is(c.lists, crd.ErrMalformed) {
			t.Errorf("a list beside a malformed object = %v", c.lists)
		}
		return fine(c)
	})
	put(mine, "first", "forever")
	until("first", refused)
	if err := errors.Join(op.Informers.Ready(), op.Informers.Check()); err != nil {
		t.Error(err)
	}
	page := newResponse(t, op.Mux, "/metrics")
	for _, want := range []string{
		`controller_informer_malformed_objects{name="timers.operator.example.com"} 2`,
		`controller_informer_objects{name="timers.operator.example.com"} 2`, // of which it has seen a state
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	put(mine, "first", "5s")
	until("first", fine)
	put(other, "bad", "1s")
	until("bad", fine)
	if lines := logs.Find("The informer goes on without an object that does not fit its Go type"); len(lines) == 0 {
		t.Error("no line of log")
	}
}
