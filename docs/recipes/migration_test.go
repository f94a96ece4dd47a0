package recipes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

const migrationRecord = "widgets-migration-hosts"

// A migration moves spec.host of all Widgets to spec.hosts. A ConfigMap has its progress.
type migration struct {
	page    int64 // the number of Widgets of one call, e.g. 100
	widgets *crd.Client[*Widget]
	records typedcorev1.ConfigMapInterface
}

func (m *migration) register(op *operator.Operator, namespace string) (*operator.Controller, error) {
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return nil, err
	}
	if m.widgets, err = crd.New[*Widget](op.Config, widgetVersion.WithKind("Widget"), "widgets"); err != nil {
		return nil, err
	}
	m.records = kube.CoreV1().ConfigMaps(namespace)
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + migrationRecord }))
	op.Inform(corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps().Informer())
	op.Writes(corev1.Resource("configmaps"), "patch")
	op.Writes(widgetVersion.WithResource("widgets").GroupResource(), "list", "get", "patch")
	return operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
		Reconcile: m.reconcile, ReadOnly: true,
	}), nil
}

// reconcile migrates one page of Widgets.
func (m *migration) reconcile(ctx context.Context, record *corev1.ConfigMap) (reconcile.Result, error) {
	if record.Name != migrationRecord || record.Data["done"] == "true" {
		return reconcile.Result{}, nil
	}
	page, err := m.widgets.List(ctx, metav1.ListOptions{Limit: m.page, Continue: record.Data["continue"]})
	switch {
	case apierrors.IsResourceExpired(err): // the token is too old: begin again
		return m.save(ctx, "", false)
	case err != nil:
		return reconcile.Result{}, err
	}
	for _, w := range page.Items {
		if w.Spec.Host == "" {
			continue // a list that begins again must get further than the one before, whose token was too old
		}
		if err := m.migrate(ctx, m.widgets.Namespace(w.Namespace), w.Name); err != nil {
			return reconcile.Result{}, err
		}
	}
	return m.save(ctx, page.Continue, page.Continue == "")
}

// migrate migrates a Widget. It reads it, because all pages show the objects as of the first page.
func (m *migration) migrate(ctx context.Context, widgets *crd.Client[*Widget], name string) error {
	w, err := widgets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && w.Spec.Host == "" {
		return nil // deleted, or migrated
	}
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": w.ResourceVersion}, // a newer object is a conflict
		"spec":     map[string]any{"host": nil, "hosts": append(w.Spec.Hosts, w.Spec.Host)},
	})
	if err != nil {
		return err
	}
	_, err = widgets.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// save records that the pages before the token are migrated.
func (m *migration) save(ctx context.Context, token string, done bool) (reconcile.Result, error) {
	patch, err := json.Marshal(map[string]any{"data": map[string]string{"continue": token, "done": fmt.Sprint(done)}})
	if err != nil {
		return reconcile.Result{}, err
	}
	if _, err := m.records.Patch(ctx, migrationRecord, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return reconcile.Result{}, err // RequeueAfter would replace the delay of its class
	}
	return reconcile.Result{RequeueAfter: time.Millisecond}, nil
}

// testMigration: a process that dies in the second page has a successor that does the rest, and the next
// process does nothing. An expired token begins again.
func testMigration(t *testing.T) {
	namespace := testserver.Namespace(t)
	widgets := newWidgets(t, testserver.Config(t)).Namespace(namespace)
	const objects = 12
	for i := range objects {
		w := &Widget{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("w%02d", i)}, Spec: WidgetSpec{Host: fmt.Sprintf("%d.example.com", i)}}
		if _, err := widgets.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	records := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
	if _, err := records.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: migrationRecord}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	done := func(cm *corev1.ConfigMap) bool { return cm.Data["done"] == "true" }

	process := func(r *requests, page int64) (called chan error, stop func()) {
		t.Helper()
		op, err := operator.New(r.wrap(testserver.Config(t)), operator.Options{Name: "migration"})
		if err != nil {
			t.Fatal(err)
		}
		m := &migration{page: page}
		c, err := m.register(op, namespace)
		if err != nil {
			t.Fatal(err)
		}
		m.widgets = m.widgets.Namespace(namespace) // other recipes have Widgets too
		called = make(chan error, 100)
		c.Loop.Hook = func(ctx context.Context, _ types.NamespacedName) (context.Context, func(string, error)) {
			return ctx, func(_ string, err error) { called <- err }
		}
		stop, _ = start(t, op)
		return called, stop
	}

	// The first process dies at its eighth Widget.
	var patches atomic.Int64
	first := &requests{during: func(req *http.Request) error {
		if req.Method == http.MethodPatch && strings.Contains(req.URL.Path, "/widgets/") && patches.Add(1) > 7 {
			return errCrash
		}
		return nil
	}}
	called, stop := process(first, 5)
	for receive(t, called) == nil { //nolint:revive // the first page, and then the crash
	}
	stop()
	if cm, err := records.Get(t.Context(), migrationRecord, metav1.GetOptions{}); err != nil || cm.Data["continue"] == "" || done(cm) {
		t.Errorf("the record after the crash is %v, %v; want the token of the second page", cm.Data, err)
	}

	second := &requests{}
	_, stop = process(second, 5)
	await(t, records, migrationRecord, done)
	stop()
	for _, w := range mustList(t, widgets) {
		if w.Spec.Host != "" || len(w.Spec.Hosts) != 1 {
			t.Errorf("%s has the spec %+v", w.Name, w.Spec)
		}
	}
	if n := second.count("PATCH", "/widgets/"); n != objects-7 {
		t.Errorf("the second process sent %d patches, want the %d that were left", n, objects-7)
	}
	if n := second.count("GET", "/widgets?", "continue="); n != 2 || second.count("GET", "/widgets?") != 2 {
		t.Errorf("the second process listed %v, want the two pages that were left", second.sent)
	}

	third := &requests{}
	called, stop = process(third, 5)
	if err := receive(t, called); err != nil {
		t.Error(err)
	}
	stop()
	if n := third.count("/widgets"); n != 0 {
		t.Errorf("the third process sent %v, want no request for Widgets", third.sent)
	}

	// The API server no longer has the version of the token.
	if _, err := records.Patch(t.Context(), migrationRecord, types.MergePatchType, []byte(`{"data":{"continue":"old","done":"false"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	fourth := &requests{}
	fourth.respond = func(req *http.Request) *http.Response {
		if req.URL.Query().Get("continue") != "old" {
			return nil
		}
		expired := apierrors.NewResourceExpired("too old").Status()
		expired.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		body, err := json.Marshal(expired)
		if err != nil {
			t.Error(err)
		}
		return &http.Response{
			StatusCode: http.StatusGone, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
			Body: io.NopCloser(strings.NewReader(string(body))),
		}
	}
	_, _ = process(fourth, 5)
	await(t, records, migrationRecord, done)
	if n := fourth.count("PATCH", "/widgets/"); n != 0 || fourth.count("continue=old") != 1 {
		t.Errorf("after an expired token a process sent %v, want new lists and no patches of Widgets", fourth.sent)
	}
}

func mustList(t *testing.T, widgets *crd.Client[*Widget]) []*Widget {
	t.Helper()
	list, err := widgets.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}
