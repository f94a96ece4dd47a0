package operator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

var secretsVersion = corev1.SchemeGroupVersion.WithResource("secrets")

// seen has the answers that the calls of each box got.
type seen struct {
	mu      sync.Mutex
	calls   map[string]int
	answers map[string]string
	changed chan struct{} // closed with the next answer
}

func newSeen() *seen {
	return &seen{calls: map[string]int{}, answers: map[string]string{}, changed: make(chan struct{})}
}

func (s *seen) note(box, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[box]++
	s.answers[box] = answer
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *seen) count(box string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[box]
}

// wait waits until the last answer of a box is want.
func (s *seen) wait(t *testing.T, box, want string) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		s.mu.Lock()
		got, changed := s.answers[box], s.changed
		s.mu.Unlock()
		if got == want {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("the last answer of %s is %q, want %q", box, got, want)
		}
	}
}

// names returns the names of objects and an error, as one word each.
func names[T metav1.Object](objects []T, err error) string {
	var all []string
	for _, o := range objects {
		all = append(all, o.GetName())
	}
	slices.Sort(all)
	if err != nil {
		all = append(all, "error")
	}
	return strings.Join(all, ",")
}

func (s *shelf) secret(name, label, index string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace, Labels: map[string]string{"app": label}}, StringData: map[string]string{"by": index}}
}

// testReads: a change of what the last call has read runs the key, whatever its own object does, and
// other changes do not.
func testReads(t *testing.T, s *shelf) {
	got := newSeen()
	s.register = func(op *operator.Operator) *operator.Controller {
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		secrets := operator.Reads(c, secretsVersion, operator.Reading[*corev1.Secret]{
			Indexes: map[string]func(*corev1.Secret) []string{"by": func(s *corev1.Secret) []string { return []string{string(s.Data["by"])} }},
		})
		boxes := operator.Reads(c, boxVersion.WithResource("boxes"), operator.Reading[*Box]{})
		read := func(ctx context.Context, b *Box) (string, error) {
			how, what, _ := strings.Cut(b.Spec.Text, " ")
			switch how {
			case "get":
				secret, err := secrets.Get(ctx, b.Namespace, what)
				if apierrors.IsNotFound(err) {
					return "absent", nil
				}
				if err != nil {
					return "", err
				}
				return string(secret.Data["by"]), nil
			case "list":
				selector, err := labels.Parse(what)
				if err != nil {
					return "", err
				}
				return names(secrets.List(ctx, b.Namespace, selector)), nil
			case "index":
				return names(secrets.ByIndex(ctx, "by", what)), nil
			case "boxes":
				return names(boxes.List(ctx, b.Namespace, labels.Everything())), nil
			default:
				return "nothing", nil
			}
		}
		s.read = func(ctx context.Context, b *Box) (reconcile.Result, error) {
			answer, err := read(ctx, b)
			got.note(b.Name, answer)
			return reconcile.Result{}, err
		}
		return c
	}
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) { return s.read(ctx, b) }
	s.start(operator.Options{})
	s.create("get", "get x")
	s.create("list", "list app=one")
	s.create("index", "index v1")
	s.create("none", "none")
	got.wait(t, "get", "absent")
	got.wait(t, "list", "")
	got.wait(t, "index", "")
	secrets := s.kube.CoreV1().Secrets(s.namespace)
	apply := func(_ *corev1.Secret, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	apply(secrets.Create(t.Context(), s.secret("x", "one", "v1"), metav1.CreateOptions{}))
	got.wait(t, "get", "v1")
	got.wait(t, "list", "x")
	got.wait(t, "index", "x")
	apply(secrets.Update(t.Context(), s.secret("x", "two", "v2"), metav1.UpdateOptions{}))
	got.wait(t, "get", "v2")
	got.wait(t, "list", "")
	got.wait(t, "index", "")

	// What the last call has not read runs nothing: the box "fence" reads an object that comes later.
	s.create("fence", "get fence")
	got.wait(t, "fence", "absent")
	got.wait(t, "none", "nothing")
	s.quiet()
	before := map[string]int{}
	for _, box := range []string{"get", "list", "index", "none"} {
		before[box] = got.count(box)
	}
	for i := range 10 {
		apply(secrets.Create(t.Context(), s.secret(fmt.Sprint("other-", i), "three", "v3"), metav1.CreateOptions{}))
	}
	apply(secrets.Create(t.Context(), s.secret("fence", "three", "seen"), metav1.CreateOptions{}))
	got.wait(t, "fence", "seen")
	for box, n := range before {
		if now := got.count(box); now != n {
			t.Errorf("%s: %d calls by events of what it has not read", box, now-n)
		}
	}

	// A read of the controller's own kind.
	s.create("all", "boxes")
	got.wait(t, "all", "all,fence,get,index,list,none")
	s.create("new", "none")
	got.wait(t, "all", "all,fence,get,index,list,new,none")
	if err := s.boxes.Delete(t.Context(), "new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	got.wait(t, "all", "all,fence,get,index,list,none")
	if err := secrets.Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	got.wait(t, "get", "absent")
}

// quiet waits until no key is queued, runs or waits.
func (s *shelf) quiet() {
	s.t.Helper()
	limit := time.Now().Add(time.Minute)
	for time.Now().Before(limit) {
		if state := s.c.Loop.Snapshot(); state.Busy == 0 && state.Gated == 0 && s.c.Loop.Queue.Len() == 0 {
			select {
			case <-s.ended: // a call has ended: look again
				continue
			case <-time.After(300 * time.Millisecond):
				if len(s.ended) == 0 && s.c.Loop.Queue.Len() == 0 {
					return
				}
			}
		}
	}
	s.t.Fatal("the controller is never quiet")
}

// Gadget is of a kind that is not always there.
type Gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

func (g *Gadget) DeepCopyObject() runtime.Object {
	c := *g
	g.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

var gadgetVersion = schema.GroupVersion{Group: "gadget.example.com", Version: "v1"}

// gadgets makes and removes the definition of Gadget and its objects.
type gadgets struct {
	t       *testing.T
	dynamic dynamic.Interface
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// install installs the definition and waits until it serves the version.
func (g *gadgets) install(scope, version string) {
	g.t.Helper()
	_, err := g.dynamic.Resource(definitions).Create(g.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "gadgets." + gadgetVersion.Group},
		"spec": map[string]any{
			"group": gadgetVersion.Group, "scope": scope,
			"names": map[string]any{"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
			"versions": []any{map[string]any{
				"name": version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
}

// remove removes the definition and waits for its end.
func (g *gadgets) remove(ctx context.Context) {
	g.t.Helper()
	resource := g.dynamic.Resource(definitions)
	name := "gadgets." + gadgetVersion.Group
	w, err := resource.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err == nil {
		defer w.Stop()
		err = resource.Delete(ctx, name, metav1.DeleteOptions{})
	}
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		g.t.Fatal(err)
	}
	for e := range w.ResultChan() {
		if e.Type == "DELETED" {
			return
		}
	}
	g.t.Fatal("the definition is never gone")
}

// create creates an object, as soon as the API server serves it.
func (g *gadgets) create(version, namespace, name string) {
	g.t.Helper()
	var resource dynamic.ResourceInterface = g.dynamic.Resource(gadgetVersion.WithResource("gadgets").GroupResource().WithVersion(version))
	if namespace != "" {
		resource = g.dynamic.Resource(gadgetVersion.WithResource("gadgets").GroupResource().WithVersion(version)).Namespace(namespace)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": gadgetVersion.Group + "/" + version, "kind": "Gadget", "metadata": map[string]any{"name": name}}}
	limit := time.Now().Add(time.Minute)
	for {
		_, err := resource.Create(g.t.Context(), object, metav1.CreateOptions{})
		switch {
		case err == nil:
			return
		case !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) || time.Now().After(limit):
			g.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // no event tells it
	}
}

// rounds is the number of rounds of testOptional, which take about 2s each.
func rounds() int {
	if os.Getenv("EXPLORE_BUDGET") != "" { // nightly
		return 100
	}
	return 3
}

// testOptional: a kind that is not served is an error of its reads alone, and what reads it runs when
// it comes and goes, in each round with another scope or version, without a restart or leak.
func testOptional(t *testing.T, s *shelf) {
	got := newSeen()
	s.register = func(op *operator.Operator) *operator.Controller {
		op.AskEvery(20 * time.Millisecond)
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		gadgets := operator.Reads(c, gadgetVersion.WithResource("gadgets"), operator.Reading[*Gadget]{Optional: true})
		s.read = func(ctx context.Context, b *Box) (reconcile.Result, error) {
			answer := "nothing"
			switch b.Spec.Text {
			case "list":
				all, err := gadgets.List(ctx, "", labels.Everything())
				answer = names(all, err)
				if errors.Is(err, operator.ErrNotServed) {
					answer = "not served"
				}
			case "served":
				served, err := gadgets.Served(ctx)
				answer = fmt.Sprint(served, err)
			}
			got.note(b.Name, answer)
			return reconcile.Result{}, nil
		}
		operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
			ReadOnly: true,
			Reconcile: func(_ context.Context, m *corev1.ConfigMap) (reconcile.Result, error) {
				got.note("config map", m.Namespace+"/"+m.Name)
				return reconcile.Result{}, nil
			},
		})
		return c
	}
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) { return s.read(ctx, b) }
	client, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	g := &gadgets{t, client}
	t.Cleanup(func() { g.remove(context.Background()) })
	s.start(operator.Options{Namespace: "*"})
	s.create("list", "list")
	s.create("served", "served")
	s.create("none", "nothing")
	got.wait(t, "list", "not served")
	got.wait(t, "served", "false <nil>")
	got.wait(t, "none", "nothing")
	s.quiet()
	idle := got.count("none")
	for round := range rounds() {
		scope, namespace := "Namespaced", s.namespace
		if round%3 == 1 {
			scope, namespace = "Cluster", ""
		}
		if round%3 == 2 { // another version alone is not served
			g.install(scope, "v2")
			g.create("v2", namespace, "x")
			g.remove(t.Context())
			continue
		}
		g.install(scope, "v1")
		g.create("v1", namespace, "x")
		got.wait(t, "list", "x")
		got.wait(t, "served", "true <nil>")
		g.create("v1", namespace, "y")
		got.wait(t, "list", "x,y")
		create(t, testserver.Config(t), s.namespace, fmt.Sprint("round-", round))
		got.wait(t, "config map", fmt.Sprintf("%s/round-%d", s.namespace, round))
		g.remove(t.Context())
		got.wait(t, "list", "not served")
		got.wait(t, "served", "false <nil>")
	}
	if n := got.count("none"); n != idle {
		t.Errorf("%d calls of a box that reads no gadget", n-idle)
	}
}
