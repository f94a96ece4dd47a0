package mistakes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// The lines of log that name a mistake. docs/mistakes.md has them.
const (
	lineStray      = "A write was not recorded, so the next call may not see it: make the client from Operator.Config, and give it the context of the call"
	lineUndeclared = "A request is not declared, so the Role of Rules does not allow it: call Writes"
	lineOwns       = "A call wrote an object that its object controls, and no event of which runs the key: call operator.Owns for the resource"
	lineWrongKind  = "An owner reference of a call has the uid of its object and another kind or name, so the garbage collector may delete the child: use owner.SetController with the kind of the object"
	lineElsewhere  = "An owner reference of a call names an object in another namespace, so the garbage collector deletes the child: use a finalizer, or Reconciler.Elsewhere"
	lineStatus     = "The API server ignored a status in a write of the object: write it to the subresource, with UpdateStatus or package status"
	lineMutated    = "The program changed an object in a cache"
	lineHidden     = "A predicate filters the deletion of an object whose creation it passes, so the key does not run: return true if Event.Deleted is set"
	lineDeaf       = "A call goes on after its Timeout and keeps its worker: pass its context to all that waits, such as requests and channels"
	lineOrder      = "A list of a child has another order in each call: sort what comes from a map or a lister"
	lineDiffers    = "A child differs in each call although its owner is the same: derive it from the owner and from other objects, not from a clock or a random value"
	lineRewritten  = "The API server stores another value than the applied one: apply the stored value, or change the webhook that rewrites it"
	lineContested  = "Another writer changes a field of a child after each apply: stop that writer, or let it own the field before you leave it out of the configuration"
	lineShared     = "Another writer changes the status after each write: let one controller write it, and set Options.LeaseNamespace if several replicas run"
	lineRenamed    = "A child was created again under another name: derive the name from the owner, not from a clock, a random value or the process"
	lineEvents     = "Dropped Events"
	lineFailed     = "Reconcile failed"
)

// counters are the values of controller_mistakes_total for the lines. The others have metrics of their own.
var counters = map[string]string{
	lineStray: "unrecorded_write", lineUndeclared: "undeclared_request", lineOwns: "unwatched_child", lineWrongKind: "wrong_kind_of_owner",
	lineElsewhere: "owner_elsewhere", lineStatus: "ignored_status", lineHidden: "hidden_deletion", lineDeaf: "ignored_context",
	lineOrder: "unordered_list", lineDiffers: "changing_child", lineRewritten: "rewritten_field", lineContested: "contested_field",
	lineShared: "contested_status", lineRenamed: "renamed_child",
}

// lines returns all of them.
func lines() []string {
	return []string{
		lineStray, lineUndeclared, lineOwns, lineWrongKind, lineElsewhere, lineStatus, lineMutated, lineHidden, lineDeaf,
		lineOrder, lineDiffers, lineRewritten, lineContested, lineShared, lineRenamed, lineEvents, lineFailed,
	}
}

// A Shop has ConfigMaps.
type Shop struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ShopSpec   `json:"spec"`
	Status ShopStatus `json:"status,omitzero"`
}

type ShopSpec struct {
	Text string `json:"text,omitempty"`
}

type ShopStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	URL                string             `json:"url,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

func (s *Shop) DeepCopy() *Shop {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Status.Conditions = slices.Clone(s.Status.Conditions)
	return &c
}

func (s *Shop) DeepCopyObject() runtime.Object { return s.DeepCopy() }

// install installs the CustomResourceDefinition of Shop in a group of the test.
func install(t *testing.T) schema.GroupVersion {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	version := schema.GroupVersion{Group: strings.ToLower(strings.TrimPrefix(name, "TestMistake")) + ".example.com", Version: "v1"}
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "shops." + version.Group},
		"spec": map[string]any{
			"group": version.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": "shops", "singular": "shop", "kind": "Shop", "listKind": "ShopList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": open, "status": open}}},
			}},
		},
	})
	return version
}

// A stand is an operator of a test, with what the test needs. A test sets its functions before run.
type stand struct {
	t         *testing.T
	config    *rest.Config // of the test
	namespace string
	kube      kubernetes.Interface // of the test
	op        *operator.Operator
	c         *operator.Controller
	logs      testlog.Logs
	messages  chan string // of all lines of log
	ended     chan error  // of the calls
	stop      func()      // ends run

	// Of Kind.
	shops *crd.Client[*Shop] // of the test

	// Of the pieces.
	client     kubernetes.Interface // of the operator
	factory    informers.SharedInformerFactory
	configMaps corelisters.ConfigMapLister
	call       func(ctx context.Context, cm *corev1.ConfigMap) error // with the object of a key
	touched    string                                                // the ConfigMap that is changed again and again
}

// newStand returns a stand with an operator that has no controllers.
func newStand(t *testing.T, config *rest.Config, namespace string, options operator.Options) *stand {
	t.Helper()
	s := &stand{
		t: t, config: testserver.Config(t), namespace: namespace,
		touched: "own-a", stop: func() {}, logs: testlog.New(), messages: make(chan string, 10_000), ended: make(chan error, 10_000),
	}
	s.kube = kubernetes.NewForConfigOrDie(s.config)
	s.logs.Hook = func(message string) {
		select {
		case s.messages <- message:
		default:
		}
	}
	if options.Name == "" {
		options.Name = "mistakes"
	}
	if options.Namespace == "" {
		options.Namespace = namespace
	}
	var err error
	if s.op, err = operator.New(config, options); err != nil {
		t.Fatal(err)
	}
	return s
}

// newKind returns a stand with a controller of Shops.
func newKind(t *testing.T, version schema.GroupVersion, namespace string, options operator.Options, r operator.Reconciler[*Shop], call func(ctx context.Context, s *stand, shop *Shop) error) *stand {
	t.Helper()
	s := newStand(t, testserver.Config(t), namespace, options)
	shops, err := crd.New[*Shop](s.config, version.WithKind("Shop"), "shops")
	if err != nil {
		t.Fatal(err)
	}
	s.shops = shops.Namespace(namespace)
	r.Reconcile = func(ctx context.Context, shop *Shop) (reconcile.Result, error) {
		return reconcile.Result{}, call(ctx, s, shop)
	}
	s.c = operator.Kind(s.op, version.WithResource("shops"), r)
	operator.Children(s.c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	s.hook()
	return s
}

// newPieces returns a stand with a controller of ConfigMaps whose names begin with "own".
func newPieces(t *testing.T, config *rest.Config, namespace string, pass ...enqueue.Predicate[*corev1.ConfigMap]) *stand {
	t.Helper()
	s := newStand(t, config, namespace, operator.Options{})
	s.pieces(pass)
	return s
}

// pieces adds the controller of newPieces.
func (s *stand) pieces(pass []enqueue.Predicate[*corev1.ConfigMap]) {
	s.client = kubernetes.NewForConfigOrDie(s.op.Config)
	s.factory = informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithNamespace(s.namespace))
	s.c = s.op.Controller("pieces", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		cm, err := s.configMaps.ConfigMaps(key.Namespace).Get(key.Name)
		if apierrors.IsNotFound(err) || !strings.HasPrefix(key.Name, "own") {
			return reconcile.Result{}, nil
		}
		if err == nil && s.call != nil {
			err = s.call(ctx, cm)
		}
		return reconcile.Result{}, err
	})
	s.configMaps = operator.For(s.c, corev1.Resource("configmaps"), s.factory.Core().V1().ConfigMaps(), pass...)
	s.hook()
}

func (s *stand) hook() {
	s.c.Loop.Hook = func(ctx context.Context, key types.NamespacedName) (context.Context, func(string, error)) {
		return ctx, func(_ string, err error) {
			if key.Name != "kube-root-ca.crt" {
				s.ended <- err
			}
		}
	}
}

// run runs the operator. stop ends it.
func (s *stand) run() (stop func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.logs.Context(s.t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.op.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := receive(s.t, done); err != nil {
			s.t.Errorf("Run() = %v", err)
		}
	}
	s.t.Cleanup(stop)
	s.stop = stop
	return stop
}

// startError returns the error of Run.
func (s *stand) startError() error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.logs.Context(s.t.Context()), time.Minute)
	defer cancel()
	return s.op.Run(ctx)
}

// receive returns the next value, within the time that a loaded machine may need.
func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Error("nothing after a minute")
	}
	return v
}

// calls waits for the end of calls, and fails the test if one of them fails for another reason than a
// cached object that was too old.
func (s *stand) calls(n int) {
	s.t.Helper()
	for range n {
		var stale interface{ Stale() bool }
		if err := receive(s.t, s.ended); err != nil && !apierrors.IsConflict(err) && !errors.As(err, &stale) {
			s.t.Fatalf("a call: %v", err)
		}
	}
}

// shop creates a Shop.
func (s *stand) shop(name, text string) *Shop {
	s.t.Helper()
	shop, err := s.shops.Create(s.t.Context(), &Shop{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: ShopSpec{Text: text}}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return shop
}

// configMap creates a ConfigMap.
func (s *stand) configMap(name string) *corev1.ConfigMap {
	s.t.Helper()
	cm, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(s.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return cm
}

// touch changes a label of a ConfigMap, so that its key runs, or that of its owner.
func (s *stand) touch(name string, n int) {
	s.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, n)
	if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Patch(s.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// named waits for a line, and returns it. again, if it is not nil, is called after each call until then.
func (s *stand) named(line string, again func(n int)) testlog.Line {
	s.t.Helper()
	began := time.Now()
	deadline := time.After(time.Minute)
	for n := 0; ; {
		select {
		case message := <-s.messages:
			if message == line {
				s.t.Logf("named after %v", time.Since(began).Round(time.Millisecond))
				if mistake := counters[line]; mistake != "" && s.counter(mistake) != "1" {
					s.t.Errorf("controller_mistakes_total of %s is %q, want 1", mistake, s.counter(mistake))
				}
				return s.line(line)
			}
		case <-s.ended:
			if n++; again != nil && n < 200 {
				again(n)
			}
		case <-deadline:
			s.t.Fatalf("no line %q after a minute and %d calls, but %v", line, n, s.seen())
		}
	}
}

// counter returns the value of controller_mistakes_total.
func (s *stand) counter(mistake string) string {
	s.t.Helper()
	scrape := httptest.NewRecorder()
	s.op.Metrics.Handler().ServeHTTP(scrape, httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(scrape.Body.String()) {
		if value, ok := strings.CutPrefix(line, fmt.Sprintf("controller_mistakes_total{mistake=%q} ", mistake)); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// seen returns the lines that a user sees.
func (s *stand) seen() (seen []string) {
	for _, line := range s.logs.All() {
		if line.Level <= 0 && len(seen) < 20 {
			seen = append(seen, fmt.Sprint(line.Message, " ", line.Values, " ", line.Err))
		}
	}
	return seen
}

// line returns the first of the lines of this text, and fails the test if an hourly line is there
// twice. The hook runs before the line is kept, so it can be late.
func (s *stand) line(line string) testlog.Line {
	s.t.Helper()
	for range 1_000_000 {
		if found := s.logs.Find(line); len(found) > 0 {
			if len(found) > 1 && line != lineFailed {
				s.t.Errorf("%d lines %q, want 1", len(found), line)
			}
			return found[0]
		}
		goruntime.Gosched()
	}
	s.t.Fatalf("no line %q", line)
	return testlog.Line{}
}

// quiet fails the test if a line names a mistake.
func (s *stand) quiet() {
	s.t.Helper()
	for _, line := range lines() {
		for _, n := range s.logs.Find(line) {
			if !apierrors.IsConflict(n.Err) {
				s.t.Errorf("logged %+v, want nothing", n)
			}
		}
		if mistake := counters[line]; mistake != "" && s.counter(mistake) != "0" {
			s.t.Errorf("controller_mistakes_total of %s is %q, want 0", mistake, s.counter(mistake))
		}
	}
}

// wantError fails the test unless an error has the parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		err = errors.New("<nil>")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %q, want one with %q", err, part)
		}
	}
}
