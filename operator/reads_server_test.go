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
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

var secretsVersion = corev1.SchemeGroupVersion.WithResource("secrets")

// seen has the answers that the calls of each box got.
type seen struct {
	mu      sync.Mutex
	calls   map[string]int
	answers map[string][]string
	changed chan struct{} // closed with the next answer
}

func newSeen() *seen {
	return &seen{calls: map[string]int{}, answers: map[string][]string{}, changed: make(chan struct{})}
}

func (s *seen) note(box, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[box]++
	s.answers[box] = append(s.answers[box], answer)
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
	s.await(t, box, want, func(answers []string) bool { return len(answers) > 0 && answers[len(answers)-1] == want })
}

// passes waits until an answer of a box after those of before is want.
func (s *seen) passes(t *testing.T, box, want string, before int) {
	t.Helper()
	s.await(t, box, want, func(answers []string) bool { return slices.Contains(answers[min(before, len(answers)):], want) })
}

func (s *seen) await(t *testing.T, box, want string, ok func(answers []string) bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		s.mu.Lock()
		got, changed := s.answers[box], s.changed
		s.mu.Unlock()
		if ok(got) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("the last answers of %s are %q, want %q", box, got[max(0, len(got)-20):], want)
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

// testFound: three bugs of docs/findings.md that are handlers which miss an event. A controller that reads by a
// Reader has no such handler.
func testFound(t *testing.T, s *shelf) {
	got := newSeen()
	s.register = func(op *operator.Operator) *operator.Controller {
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		secrets := operator.Reads(c, secretsVersion, operator.Reading[*corev1.Secret]{})
		s.read = func(ctx context.Context, b *Box) (reconcile.Result, error) {
			switch b.Spec.Text {
			case "stateful set": // it waits, without an error, until an old claim is gone
				_, err := secrets.Get(ctx, b.Namespace, "claim")
				switch {
				case apierrors.IsNotFound(err):
					got.note(b.Name, "3 of 3")
				case err != nil:
					return reconcile.Result{}, err
				default:
					got.note(b.Name, "2 of 3")
				}
			case "quota": // it counts
				pods, err := secrets.List(ctx, b.Namespace, labels.SelectorFromSet(labels.Set{"app": "pod"}))
				if err != nil {
					return reconcile.Result{}, err
				}
				got.note(b.Name, fmt.Sprint(len(pods)))
			case "slice": // it makes what is absent
				_, err := secrets.Get(ctx, b.Namespace, "slice")
				if apierrors.IsNotFound(err) {
					_, err = s.kube.CoreV1().Secrets(b.Namespace).Create(ctx, s.secret("slice", "slice", ""), metav1.CreateOptions{})
					got.note(b.Name, "made")
				} else {
					got.note(b.Name, "there")
				}
				return reconcile.Result{}, err
			}
			return reconcile.Result{}, nil
		}
		return c
	}
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) { return s.read(ctx, b) }
	secrets := s.kube.CoreV1().Secrets(s.namespace)
	make := func(secret *corev1.Secret) {
		t.Helper()
		if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := secrets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	make(s.secret("claim", "claim", ""))
	s.start(operator.Options{})
	s.create("web", "stateful set")
	s.create("pods", "quota")
	s.create("endpoints", "slice")
	got.wait(t, "web", "2 of 3")
	got.wait(t, "pods", "0")
	got.wait(t, "endpoints", "there")
	remove("claim")
	got.wait(t, "web", "3 of 3")
	make(s.secret("a", "pod", ""))
	got.wait(t, "pods", "1")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	got.note("endpoints", "stopped")
	s.start(operator.Options{})
	got.wait(t, "endpoints", "there") // the new process has written nothing
	before := got.count("endpoints")
	remove("slice")
	got.passes(t, "endpoints", "made", before)
	got.wait(t, "endpoints", "there")
}

// TestServerReadsOfFor: an object of For that was read runs its key also by a change that a predicate of For leaves
// out. Proves OP14.
func TestServerReadsOfFor(t *testing.T) {
	t.Parallel()
	namespace, client := testserver.Namespace(t), kubernetes.NewForConfigOrDie(testserver.Config(t))
	op, err := operator.New(testserver.Config(t), operator.Options{Name: "maps", Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	got := newSeen()
	var maps *operator.Reader[*corev1.ConfigMap]
	c := op.Controller("maps", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		m, err := maps.Get(ctx, key.Namespace, key.Name)
		if err == nil {
			got.note(m.Name, m.Data["text"])
		}
		return reconcile.Result{}, err
	})
	informer := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace)).Core().V1().ConfigMaps()
	op.Inform(corev1.Resource("configmaps"), informer.Informer())
	operator.For(c, corev1.Resource("configmaps"), informer, func(e enqueue.Event[*corev1.ConfigMap]) bool { return e.Created || e.Deleted })
	maps = operator.Reads(c, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reading[*corev1.ConfigMap]{})
	start(t, op, testlog.New())
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"text": "one"}}
	if m, err = client.CoreV1().ConfigMaps(namespace).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got.wait(t, "a", "one")
	m.Data["text"] = "two"
	if _, err = client.CoreV1().ConfigMaps(namespace).Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	got.wait(t, "a", "two")
}

// testCycle: two controllers that read each other's objects end when neither changes anything.
func testCycle(t *testing.T, s *shelf) {
	got := newSeen()
	s.register = func(op *operator.Operator) *operator.Controller {
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		s.items = operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
		secrets := operator.Reads(c, secretsVersion, operator.Reading[*corev1.Secret]{})
		s.c = c
		s.read = func(ctx context.Context, b *Box) (reconcile.Result, error) {
			text := "none"
			if secret, err := secrets.Get(ctx, b.Namespace, b.Name); err == nil {
				text = string(secret.Data["by"])
			}
			got.note(b.Name, text)
			_, err := c.Apply(ctx, newItem(b.Namespace, b.Name, text))
			b.Status.URL = text
			return reconcile.Result{}, err
		}
		var boxes *operator.Reader[*Box]
		other := operator.Kind(op, secretsVersion, operator.Reconciler[*corev1.Secret]{
			ReadOnly: true,
			Reconcile: func(ctx context.Context, secret *corev1.Secret) (reconcile.Result, error) {
				b, err := boxes.Get(ctx, secret.Namespace, secret.Name)
				if err != nil {
					return reconcile.Result{}, err
				}
				got.note("secret/"+secret.Name, b.Status.URL)
				if next := "x" + b.Status.URL; len(next) < 5 { // otherwise there is nothing to change
					secret.Data["by"] = []byte(next)
					_, err = s.kube.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
				}
				return reconcile.Result{}, err
			},
		})
		boxes = operator.Reads(other, boxVersion.WithResource("boxes"), operator.Reading[*Box]{})
		return c
	}
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) { return s.read(ctx, b) }
	s.start(operator.Options{})
	s.create("a", "")
	got.wait(t, "a", "none")
	if _, err := s.kube.CoreV1().Secrets(s.namespace).Create(t.Context(), s.secret("a", "one", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got.wait(t, "a", "xxxx")
	got.wait(t, "secret/a", "xxxx")
	s.quiet()
	if n := got.count("a") + got.count("secret/a"); n > 60 {
		t.Errorf("%d calls until nothing changes", n)
	}
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
	group   string
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// install installs the definition and waits until it serves the version.
func (g *gadgets) install(scope, version string) {
	g.t.Helper()
	_, err := g.dynamic.Resource(definitions).Create(g.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "gadgets." + g.group},
		"spec": map[string]any{
			"group": g.group, "scope": scope,
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
	name := "gadgets." + g.group
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
	all := g.dynamic.Resource(schema.GroupVersionResource{Group: g.group, Version: version, Resource: "gadgets"})
	var resource dynamic.ResourceInterface = all
	if namespace != "" {
		resource = all.Namespace(namespace)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": g.group + "/" + version, "kind": "Gadget", "metadata": map[string]any{"name": name}}}
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
//
// The informers are of a namespace, "*" for all. A cluster-scoped kind is in none.
func testOptional(t *testing.T, s *shelf, namespaces string) {
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
				if errors.Is(err, crd.ErrNotServed) {
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
	g := &gadgets{t, client, gadgetVersion.Group}
	t.Cleanup(func() { g.remove(context.Background()) })
	s.start(operator.Options{Namespace: namespaces})
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
		before := got.count("config map") // of all namespaces: other tests make them too
		create(t, testserver.Config(t), s.namespace, fmt.Sprint("round-", round))
		got.passes(t, "config map", fmt.Sprintf("%s/round-%d", s.namespace, round), before)
		g.remove(t.Context())
		got.wait(t, "list", "not served")
		got.wait(t, "served", "false <nil>")
	}
	if n := got.count("none"); n != idle {
		t.Errorf("%d calls of a box that reads no gadget", n-idle)
	}
}
