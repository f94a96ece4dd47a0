package preview_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/preview"
)

// world has a namespace with objects, real clients, and clients of a preview.
type world struct {
	p       preview.Preview
	ns      string
	real    *kubernetes.Clientset
	config  *rest.Config // of the preview
	clients *kubernetes.Clientset
	dynamic dynamic.Interface
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{ns: testserver.Namespace(t), real: kubernetes.NewForConfigOrDie(testserver.Config(t))}
	w.config = rest.CopyConfig(testserver.Config(t))
	w.config.Wrap(w.p.Transport)
	w.clients, w.dynamic = kubernetes.NewForConfigOrDie(w.config), dynamic.NewForConfigOrDie(w.config)
	return w
}

// must ends the test if err is not nil.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// stored returns all objects of the namespace, as the API server has them.
func (w *world) stored(t *testing.T) map[string]string {
	t.Helper()
	return testserver.Stored(t, testserver.Config(t), w.ns)
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "web", Image: "nginx:1.27"}, {Name: "side", Image: "side:1"},
		}}},
	}}
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"color": value}}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
}

// TestServerWrites sends every kind of write by every kind of client. Proves PV1 and PV2.
func TestServerWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, maps := t.Context(), w.real.CoreV1().ConfigMaps(w.ns)
	must(w.real.AppsV1().Deployments(w.ns).Create(ctx, deployment("front"), metav1.CreateOptions{}))
	for _, name := range []string{"updated", "patched", "deleted", "options", "partial", "dynamic"} {
		must(maps.Create(ctx, configMap(name, "red"), metav1.CreateOptions{}))
	}
	must(maps.Apply(ctx, applycorev1.ConfigMap("applied", w.ns).WithData(map[string]string{"color": "red"}), metav1.ApplyOptions{FieldManager: "test"}))
	for _, name := range []string{"all-1", "all-2"} {
		m := configMap(name, "red")
		m.Labels = map[string]string{"all": "yes"}
		must(maps.Create(ctx, m, metav1.CreateOptions{}))
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"password": "hunter2"}}
	must(w.real.CoreV1().Secrets(w.ns).Create(ctx, secret, metav1.CreateOptions{}))
	for _, name := range []string{"evicted", "unbound"} {
		must(w.real.CoreV1().Pods(w.ns).Create(ctx, pod(name), metav1.CreateOptions{}))
	}
	must(w.real.CoreV1().ServiceAccounts(w.ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "account"}}, metav1.CreateOptions{}))
	before := w.stored(t)

	type step struct {
		name string
		do   func(ctx context.Context) error
		want []preview.Change // without Fields of create and delete
	}
	change := func(action preview.Action, resource, name string, fields ...preview.Field) preview.Change {
		return preview.Change{Action: action, Resource: resource, Namespace: w.ns, Name: name, Fields: fields}
	}
	color := preview.Field{Path: ".data.color", Old: `"red"`, New: `"blue"`}
	sub := func(c preview.Change, name string) preview.Change { c.Subresource = name; return c }
	restarts := change(preview.Modify, "deployments.apps", "front", preview.Field{Path: ".spec.template.spec.containers[name=web].image", Old: `"nginx:1.27"`, New: `"nginx:1.28"`})
	restarts.RestartsPods = true
	generated := change(preview.Create, "configmaps", "")
	dynamicMaps := w.dynamic.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(w.ns)
	partial := metadata.NewForConfigOrDie(w.config).Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(w.ns)
	c := w.clients.CoreV1().ConfigMaps(w.ns)
	for _, s := range []step{
		{"create", func(ctx context.Context) error {
			_, err := c.Create(ctx, configMap("new", "red"), metav1.CreateOptions{})
			if again := must(c.Get(ctx, "new", metav1.GetOptions{})); again.Data["color"] != "red" {
				t.Error("a read after the creation has no object")
			}
			return err
		}, []preview.Change{change(preview.Create, "configmaps", "new")}},
		{"generated name", func(ctx context.Context) error {
			m := configMap("", "red")
			m.GenerateName = "made-"
			m, err := c.Create(ctx, m, metav1.CreateOptions{})
			generated.Name = m.GetName()
			return err
		}, []preview.Change{generated}},
		{"update", func(ctx context.Context) error {
			m := must(c.Get(ctx, "updated", metav1.GetOptions{}))
			m.Data["color"] = "blue"
			updated, err := c.Update(ctx, m, metav1.UpdateOptions{})
			if err == nil && updated.ResourceVersion != m.ResourceVersion {
				t.Errorf("the version changed from %s to %s", m.ResourceVersion, updated.ResourceVersion)
			}
			return err
		}, []preview.Change{change(preview.Modify, "configmaps", "updated", color)}},
		{"update of nothing", func(ctx context.Context) error {
			_, err := c.Update(ctx, must(c.Get(ctx, "updated", metav1.GetOptions{})), metav1.UpdateOptions{})
			return err
		}, nil},
		{"patch", func(ctx context.Context) error {
			_, err := c.Patch(ctx, "patched", types.MergePatchType, []byte(`{"data":{"color":"blue"}}`), metav1.PatchOptions{})
			return err
		}, []preview.Change{change(preview.Modify, "configmaps", "patched", color)}},
		{"apply", func(ctx context.Context) error {
			_, err := c.Apply(ctx, applycorev1.ConfigMap("applied", w.ns).WithData(map[string]string{"color": "blue"}), metav1.ApplyOptions{FieldManager: "test"})
			return err
		}, []preview.Change{change(preview.Modify, "configmaps", "applied", color)}},
		{"apply of a new object", func(ctx context.Context) error {
			_, err := c.Apply(ctx, applycorev1.ConfigMap("new", w.ns), metav1.ApplyOptions{FieldManager: "test"})
			return err
		}, []preview.Change{change(preview.Create, "configmaps", "new")}},
		{"delete", func(ctx context.Context) error {
			err := c.Delete(ctx, "deleted", metav1.DeleteOptions{})
			if _, gone := c.Get(ctx, "deleted", metav1.GetOptions{}); !apierrors.IsNotFound(gone) {
				t.Errorf("a read after the deletion: %v, want NotFound", gone)
			}
			return err
		}, []preview.Change{change(preview.Destroy, "configmaps", "deleted")}},
		{"delete with options", func(ctx context.Context) error {
			background := metav1.DeletePropagationBackground
			return c.Delete(ctx, "options", metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: metav1.NewUIDPreconditions(string(must(c.Get(ctx, "options", metav1.GetOptions{})).UID))})
		}, []preview.Change{change(preview.Destroy, "configmaps", "options")}},
		{"delete with a wrong uid", func(ctx context.Context) error {
			if err := c.Delete(ctx, "options", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
				return fmt.Errorf("got %w, want Conflict", err)
			}
			return nil
		}, nil},
		{"delete of a collection", func(ctx context.Context) error {
			return c.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "all=yes"})
		}, []preview.Change{change(preview.Destroy, "configmaps", "all-1"), change(preview.Destroy, "configmaps", "all-2")}},
		{"dry run of the caller", func(ctx context.Context) error {
			_, err := c.Create(ctx, configMap("dry", "red"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return errors.Join(err, c.Delete(ctx, "deleted", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
		}, nil},
		{"dynamic client", func(ctx context.Context) error {
			u := must(dynamicMaps.Get(ctx, "dynamic", metav1.GetOptions{}))
			must(0, unstructured.SetNestedField(u.Object, "blue", "data", "color"))
			_, err := dynamicMaps.Update(ctx, u, metav1.UpdateOptions{})
			return errors.Join(err, dynamicMaps.Delete(ctx, "deleted", metav1.DeleteOptions{}))
		}, []preview.Change{change(preview.Modify, "configmaps", "dynamic", color), change(preview.Destroy, "configmaps", "deleted")}},
		{"metadata client", func(ctx context.Context) error {
			m, err := partial.Patch(ctx, "partial", types.MergePatchType, []byte(`{"data":{"color":"blue"}}`), metav1.PatchOptions{})
			if err == nil && m.Name != "partial" {
				t.Errorf("the metadata client got %v", m)
			}
			return err
		}, []preview.Change{change(preview.Modify, "configmaps", "partial", color)}},
		{"Pod template", func(ctx context.Context) error {
			_, err := w.clients.AppsV1().Deployments(w.ns).Patch(ctx, "front", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"nginx:1.28"}]}}}}`), metav1.PatchOptions{})
			return err
		}, []preview.Change{restarts}},
		{"scale", func(ctx context.Context) error {
			_, err := w.clients.AppsV1().Deployments(w.ns).UpdateScale(ctx, "front", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "front", Namespace: w.ns}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, metav1.UpdateOptions{})
			return err
		}, []preview.Change{sub(change(preview.Modify, "deployments.apps", "front", preview.Field{Path: ".spec.replicas", Old: "1", New: "3"}), "scale")}},
		{"status", func(ctx context.Context) error {
			_, err := w.clients.AppsV1().Deployments(w.ns).Patch(ctx, "front", types.MergePatchType, []byte(`{"status":{"replicas":2}}`), metav1.PatchOptions{}, "status")
			return err
		}, []preview.Change{sub(change(preview.Modify, "deployments.apps", "front", preview.Field{Path: ".status.replicas", New: "2"}), "status")}},
		{"secret", func(ctx context.Context) error {
			_, err := w.clients.CoreV1().Secrets(w.ns).Patch(ctx, "secret", types.MergePatchType, []byte(`{"stringData":{"password":"hunter3"}}`), metav1.PatchOptions{})
			return err
		}, []preview.Change{change(preview.Modify, "secrets", "secret", preview.Field{Path: ".data.password", Old: "(hidden)", New: "(hidden)"})}},
		{"eviction", func(ctx context.Context) error {
			return w.clients.PolicyV1().Evictions(w.ns).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "evicted", Namespace: w.ns}, DeleteOptions: &metav1.DeleteOptions{}})
		}, []preview.Change{sub(change(preview.Destroy, "pods", "evicted"), "eviction")}},
		{"binding", func(ctx context.Context) error {
			return w.clients.CoreV1().Pods(w.ns).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "unbound"}, Target: corev1.ObjectReference{Kind: "Node", Name: "one"}}, metav1.CreateOptions{})
		}, []preview.Change{sub(change(preview.Modify, "pods", "unbound"), "binding")}},
		{"event", func(ctx context.Context) error {
			_, err := w.clients.CoreV1().Events(w.ns).Create(ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: w.ns}}, metav1.CreateOptions{})
			return err
		}, nil},
		{"review and token", func(ctx context.Context) error {
			review, err := w.clients.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"}}}, metav1.CreateOptions{})
			if err == nil && !review.Status.Allowed {
				t.Error("a review was not answered")
			}
			token, err2 := w.clients.CoreV1().ServiceAccounts(w.ns).CreateToken(ctx, "account", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			if err2 == nil && token.Status.Token == "" {
				t.Error("no token")
			}
			return errors.Join(err, err2)
		}, nil},
		{"exec", func(ctx context.Context) error {
			// client-go's executors need modules that this one does not have. These are their requests.
			client := must(rest.HTTPClientFor(w.config))
			url := w.clients.CoreV1().RESTClient().Post().Resource("pods").Namespace(w.ns).Name("evicted").SubResource("exec").URL().String()
			for _, method := range []string{http.MethodPost, http.MethodGet} {
				req := must(http.NewRequestWithContext(ctx, method, url, nil))
				req.Header.Set("Upgrade", "websocket")
				resp, err := client.Do(req)
				if err == nil {
					resp.Body.Close()
				}
				var unsent controllerkit.UnsentError
				if !errors.As(err, &unsent) || !unsent.NotSent() || !strings.Contains(err.Error(), "cannot be a dry run") {
					return fmt.Errorf("exec by %s: %w", method, err)
				}
			}
			return nil
		}, nil},
	} {
		callCtx, end := w.p.Begin(ctx, "test", s.name)
		err := s.do(callCtx)
		end(err)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		want := s.want
		if s.name == "generated name" {
			want[0].Name = generated.Name
		}
		if diff := cmp.Diff(want, w.changes(s.name)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", s.name, diff)
		}
	}
	if diff := cmp.Diff(before, w.stored(t)); diff != "" {
		t.Errorf("the writes have changed the API server: (-before +after)\n%s", diff)
	}
	var text bytes.Buffer
	must(0, w.p.Report().WriteText(&text))
	if strings.Contains(text.String(), "hunter") || w.p.Report().ExitCode() != 2 {
		t.Errorf("the report:\n%s", text.String())
	}
}

// changes returns the changes of a call.
func (w *world) changes(key string) (changes []preview.Change) {
	for _, c := range w.p.Report().Calls {
		if c.Key == key {
			changes = c.Changes
		}
	}
	return changes
}

// TestServerFinalizer adds a finalizer and reads the object, as Kind of package operator does, deletes an object
// that has one, and reads an object that another call has written. Proves PV3.
func TestServerFinalizer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, name := t.Context(), "example.com/work"
	held := configMap("held", "red")
	held.Finalizers = []string{name}
	must(w.real.CoreV1().ConfigMaps(w.ns).Create(ctx, held, metav1.CreateOptions{}))
	t.Cleanup(func() {
		_, _ = w.real.CoreV1().ConfigMaps(w.ns).Patch(context.WithoutCancel(ctx), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	})
	bare := must(w.real.CoreV1().ConfigMaps(w.ns).Create(ctx, configMap("bare", "red"), metav1.CreateOptions{}))
	before := w.stored(t)
	c := w.clients.CoreV1().ConfigMaps(w.ns)

	call, end := w.p.Begin(ctx, "test", "one")
	cleaned := false
	cleanup := func(context.Context, finalizer.Held[*corev1.ConfigMap]) error { cleaned = true; return nil }
	if _, live, err := finalizer.Ensure(call, c, bare, name, cleanup); err != nil || !live {
		t.Errorf("Ensure: live %v, %v", live, err)
	}
	if live := must(c.Get(call, "bare", metav1.GetOptions{})); !finalizer.Has(live, name) || live.ResourceVersion != bare.ResourceVersion {
		t.Errorf("a read in the call has finalizers %q in version %s, want %s in %s", live.Finalizers, live.ResourceVersion, name, bare.ResourceVersion)
	}
	if err := c.Delete(call, "held", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	deleting := must(c.Get(call, "held", metav1.GetOptions{}))
	if deleting.DeletionTimestamp == nil {
		t.Error("a read after the deletion of an object with a finalizer has no deletionTimestamp")
	}
	if _, live, err := finalizer.Ensure(call, c, deleting, name, cleanup); err != nil || live || cleaned {
		t.Errorf("Ensure of an object that is being deleted: live %v, %v, cleaned %v", live, err, cleaned)
	}
	end(nil)
	other, end := w.p.Begin(ctx, "test", "two")
	if live := must(c.Get(other, "bare", metav1.GetOptions{})); finalizer.Has(live, name) {
		t.Error("a read of another call shows the write")
	}
	end(nil)

	want := []preview.Call{{
		Controller: "test", Key: "one",
		Changes: []preview.Change{
			{Action: preview.Modify, Resource: "configmaps", Namespace: w.ns, Name: "bare", Fields: []preview.Field{{Path: ".metadata.finalizers", New: `["example.com/work"]`}}},
			{Action: preview.Destroy, Resource: "configmaps", Namespace: w.ns, Name: "held"},
		},
		Skipped: []string{"run the cleanup of the finalizer example.com/work, and remove it"},
	}}
	if diff := cmp.Diff(want, w.p.Report().Calls); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(before, w.stored(t)); diff != "" {
		t.Errorf("the API server has changed: (-before +after)\n%s", diff)
	}
}

// TestServerGone: a read after a write that removes an object, in the same call, fails with NotFound, also if the API
// server returns the object.
func TestServerGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, core := t.Context(), w.real.CoreV1()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	must(core.Services(w.ns).Create(ctx, service, metav1.CreateOptions{}))
	must(core.ServiceAccounts(w.ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{}))
	held := configMap("held", "red")
	held.Finalizers = []string{"example.com/work"}
	must(core.ConfigMaps(w.ns).Create(ctx, held, metav1.CreateOptions{}))
	release := func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().ConfigMaps(w.ns).Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() { _ = release(context.WithoutCancel(ctx), w.real) })
	must(0, core.ConfigMaps(w.ns).Delete(ctx, "held", metav1.DeleteOptions{}))

	call, end := w.p.Begin(ctx, "test", "one")
	c := w.clients.CoreV1()
	must(0, c.Services(w.ns).Delete(call, "one", metav1.DeleteOptions{}))
	must(0, c.ServiceAccounts(w.ns).Delete(call, "one", metav1.DeleteOptions{}))
	must(0, release(call, w.clients))
	for name, get := range map[string]func(context.Context) error{
		"a Service": func(ctx context.Context) error {
			_, err := c.Services(w.ns).Get(ctx, "one", metav1.GetOptions{})
			return err
		},
		"a ServiceAccount": func(ctx context.Context) error {
			_, err := c.ServiceAccounts(w.ns).Get(ctx, "one", metav1.GetOptions{})
			return err
		},
		"a ConfigMap whose last finalizer is removed": func(ctx context.Context) error {
			_, err := c.ConfigMaps(w.ns).Get(ctx, "held", metav1.GetOptions{})
			return err
		},
	} {
		if err := get(call); !apierrors.IsNotFound(err) {
			t.Errorf("a read of %s in the call: %v, want NotFound", name, err)
		}
		if err := get(ctx); err != nil {
			t.Errorf("a read of %s outside of the call: %v", name, err)
		}
	}
	end(nil)
	for _, change := range w.changes("one") {
		if change.Resource == "configmaps" && (change.Action != preview.Modify || len(change.Fields) == 0) {
			t.Errorf("the change of the finalizers is %+v", change)
		}
	}
}

// TestServerRights has a user who may patch and update, and may not get.
func TestServerRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := must(w.real.CoreV1().ConfigMaps(w.ns).Create(t.Context(), configMap("one", "red"), metav1.CreateOptions{}))
	config := testserver.Limited(t, w.ns, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"patch", "update"}})
	config.Wrap(w.p.Transport)
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(w.ns)
	patch := func(ctx context.Context, name string) error {
		_, err := client.Patch(ctx, name, types.MergePatchType, []byte(`{"data":{"color":"blue"}}`), metav1.PatchOptions{})
		return err
	}
	call, end := w.p.Begin(t.Context(), "test", "absent")
	end(patch(call, "absent"))
	call, end = w.p.Begin(t.Context(), "test", "patch")
	end(patch(call, "one"))
	call, end = w.p.Begin(t.Context(), "test", "update")
	one.Data["color"] = "blue"
	_, err := client.Update(call, one, metav1.UpdateOptions{})
	end(err)
	want := []preview.Call{
		{Controller: "test", Key: "absent", Error: `configmaps "absent" not found`},
		{Controller: "test", Key: "patch", Changes: []preview.Change{{
			Action: preview.Modify, Resource: "configmaps", Namespace: w.ns, Name: "one", Fields: []preview.Field{{Path: ".data.color", Old: `"red"`, New: `"blue"`}},
		}}},
		{Controller: "test", Key: "update", Changes: []preview.Change{{
			Action: preview.Modify, Resource: "configmaps", Namespace: w.ns, Name: "one",
			Note: "Its fields are not known: the API server answered a read with 403 Forbidden: allow it in the Role",
		}}},
	}
	if diff := cmp.Diff(want, w.p.Report().Calls); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if code := w.p.Report().ExitCode(); code != 1 {
		t.Errorf("the exit code is %d, want 1", code)
	}
}

// TestServerCustomResource writes objects of a CustomResourceDefinition, whose document says that dry runs are known.
func TestServerCustomResource(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gvr := schema.GroupVersionResource{Group: "preview.example.com", Version: "v1", Resource: "widgets"}
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.preview.example.com"},
		"spec": map[string]any{
			"group": gvr.Group, "scope": "Namespaced", "names": map[string]any{"kind": "Widget", "plural": "widgets"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	})
	widget := func(size int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "preview.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "one"}, "size": size}}
	}
	const large = 1 << 62 // a float64 of it plus 1 is the same
	must(dynamic.NewForConfigOrDie(testserver.Config(t)).Resource(gvr).Namespace(w.ns).Create(t.Context(), widget(large), metav1.CreateOptions{}))
	before := w.stored(t)
	call, end := w.p.Begin(t.Context(), "test", "one")
	_, err := w.dynamic.Resource(gvr).Namespace(w.ns).Apply(call, "one", widget(large+1), metav1.ApplyOptions{FieldManager: "test", Force: true})
	end(err)
	want := []preview.Change{{Action: preview.Modify, Resource: "widgets.preview.example.com", Namespace: w.ns, Name: "one", Fields: []preview.Field{{Path: ".size", Old: "4611686018427387904", New: "4611686018427387905"}}}}
	if diff := cmp.Diff(want, w.changes("one")); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if diff := cmp.Diff(before, w.stored(t)); diff != "" {
		t.Errorf("the API server has changed: (-before +after)\n%s", diff)
	}
}
