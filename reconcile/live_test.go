package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/reconcile"
)

// memory is as much of an API server as these helpers see: ConfigMaps of one
// namespace, versions, JSON patches with tests. What it claims is checked by the tests on
// the real one.
type memory struct {
	objects map[string]*corev1.ConfigMap
	version int
	writes  int                                        // that changed something
	do      func(name string, call func() error) error // around each request; nil for none
	mangle  func(*corev1.ConfigMap) *corev1.ConfigMap  // a mutating webhook; nil for none
}

func newMemory(objects ...*corev1.ConfigMap) *memory {
	m := &memory{objects: map[string]*corev1.ConfigMap{}}
	for _, obj := range objects {
		m.put(obj)
	}
	return m
}

// put stores obj with a new version and returns it.
func (m *memory) put(obj *corev1.ConfigMap) *corev1.ConfigMap {
	m.version++
	obj = obj.DeepCopy()
	obj.ResourceVersion = strconv.Itoa(m.version)
	m.objects[obj.Name] = obj
	return obj
}

func (m *memory) request(name string, call func() error) error {
	if m.do == nil {
		return call()
	}
	return m.do(name, call)
}

func (m *memory) Get(_ context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error) {
	if opts.ResourceVersion != "" {
		return nil, errors.New("not a read from etcd")
	}
	var answer *corev1.ConfigMap
	err := m.request("get "+name, func() error {
		obj := m.objects[name]
		if obj == nil {
			return apierrors.NewNotFound(corev1.Resource("configmaps"), name)
		}
		answer = obj.DeepCopy()
		return nil
	})
	return answer, err
}

func (m *memory) Patch(_ context.Context, name string, pt types.PatchType, data []byte, _ metav1.PatchOptions, sub ...string) (*corev1.ConfigMap, error) {
	if pt != types.JSONPatchType || len(sub) > 0 {
		return nil, errors.New("unexpected patch")
	}
	var answer *corev1.ConfigMap
	err := m.request("patch "+name, func() error {
		obj := m.objects[name]
		if obj == nil {
			return apierrors.NewNotFound(corev1.Resource("configmaps"), name)
		}
		patch, err := jsonpatch.DecodePatch(data)
		if err != nil {
			return err
		}
		before, err := json.Marshal(obj)
		if err != nil {
			return err
		}
		after, err := patch.Apply(before)
		if err != nil {
			return failedTest()
		}
		changed := &corev1.ConfigMap{}
		if err := json.Unmarshal(after, changed); err != nil {
			return err
		}
		if m.mangle != nil {
			changed = m.mangle(changed)
		}
		if !jsonpatch.Equal(before, after) {
			m.writes++
			changed = m.put(changed)
		}
		answer = changed.DeepCopy()
		return nil
	})
	return answer, err
}

// failedTest is what the API server answers to a patch that does not apply.
func failedTest() error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "", 0, false)
}

// settings is an object as a cache has it.
func settings(change ...func(*corev1.ConfigMap)) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings", UID: "uid-1", ResourceVersion: "1"}}
	for _, f := range change {
		f(cm)
	}
	return cm
}

func isStale(err error) bool {
	var s interface{ Stale() bool }
	return errors.As(err, &s) && s.Stale()
}

// TestConfirmLive proves R9 with every state that a server can be in.
func TestConfirmLive(t *testing.T) {
	t.Parallel()
	unserved := apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", schema.GroupResource{Resource: "configmaps"}, "settings", "404 page not found", 0, true)
	unknown := apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", schema.GroupResource{Resource: "configmaps"}, "", "", 0, false)
	tests := []struct {
		name     string
		cached   *corev1.ConfigMap
		live     *corev1.ConfigMap // nil for none
		get      error             // instead of an answer
		want     error             // nil means none
		wantText string
		stale    bool
		notFound bool
		wantLive bool
		requests int
	}{
		{name: "same", cached: settings(), live: settings(), wantLive: true, requests: 1},
		{name: "gone", cached: settings(), want: reconcile.ErrGone, wantText: "confirm default/settings live: the cached copy is old: the object is gone", stale: true, notFound: true, requests: 1},
		{name: "replaced", cached: settings(), live: settings(func(cm *corev1.ConfigMap) { cm.UID = "uid-2" }), want: reconcile.ErrReplaced, wantText: "uid uid-2, not uid-1", stale: true, wantLive: true, requests: 1},
		{name: "changed", cached: settings(func(cm *corev1.ConfigMap) { cm.ResourceVersion = "0" }), live: settings(), want: reconcile.ErrChanged, wantText: "from resource version 0 to 1", stale: true, wantLive: true, requests: 1},
		{name: "cluster-scoped", cached: settings(func(cm *corev1.ConfigMap) { cm.Namespace = "" }), want: reconcile.ErrGone, wantText: "confirm settings live", stale: true, notFound: true, requests: 1},
		{name: "resource not served", cached: settings(), get: unserved, want: unserved, notFound: true, requests: 1},
		{name: "group served, resource not", cached: settings(), get: unknown, want: unknown, notFound: true, requests: 1},
		{name: "forbidden", cached: settings(), get: context.DeadlineExceeded, want: context.DeadlineExceeded, requests: 1},
		{name: "no uid", cached: settings(func(cm *corev1.ConfigMap) { cm.UID = "" }), want: reconcile.ErrTerminal, wantText: "metadata.uid"},
		{name: "no version", cached: settings(func(cm *corev1.ConfigMap) { cm.ResourceVersion = "" }), want: reconcile.ErrTerminal, wantText: "metadata.resourceVersion"},
		{name: "no name", cached: settings(func(cm *corev1.ConfigMap) { cm.Name = "" }), want: reconcile.ErrTerminal, wantText: "metadata.name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMemory()
			if tt.live != nil {
				m.put(tt.live)
			}
			requests := 0
			m.do = func(_ string, call func() error) error {
				requests++
				if tt.get != nil {
					return tt.get
				}
				return call()
			}
			live, err := reconcile.ConfirmLive(t.Context(), m, tt.cached)
			if !errors.Is(err, tt.want) {
				t.Errorf("error = %v, want %v", err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), tt.wantText) {
				t.Errorf("error = %q, want one with %q", err, tt.wantText)
			}
			for _, other := range []error{reconcile.ErrGone, reconcile.ErrReplaced, reconcile.ErrChanged} {
				if other != tt.want && errors.Is(err, other) {
					t.Errorf("error is %v too", other)
				}
			}
			if got := isStale(err); got != tt.stale {
				t.Errorf("Stale() = %v, want %v", got, tt.stale)
			}
			if got := apierrors.IsNotFound(err); got != tt.notFound {
				t.Errorf("IsNotFound() = %v, want %v", got, tt.notFound)
			}
			if got := live != nil; got != tt.wantLive {
				t.Errorf("has a live object: %v, want %v", got, tt.wantLive)
			}
			if requests != tt.requests {
				t.Errorf("%d requests, want %d", requests, tt.requests)
			}
		})
	}
}

// served hides the subresources of a dynamic client.
type served struct{ dynamic.ResourceInterface }

func (s served) Get(ctx context.Context, name string, opts metav1.GetOptions) (*unstructured.Unstructured, error) {
	return s.ResourceInterface.Get(ctx, name, opts)
}

// TestServerConfirmLive proves R9 on the real server: what it answers for an object that
// is gone, was recreated, or was written, and for a resource that it does not have.
func TestServerConfirmLive(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	client := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
	create := func() *corev1.ConfigMap {
		t.Helper()
		cm, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return cm
	}
	check := func(cached *corev1.ConfigMap, want error) {
		t.Helper()
		if _, err := reconcile.ConfirmLive(t.Context(), client, cached); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("ConfirmLive() = %v, want %v", err, want)
		}
	}
	cm := create()
	check(cm, nil)
	changed := cm.DeepCopy()
	changed.Data = map[string]string{"a": "b"}
	if _, err := client.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	check(cm, reconcile.ErrChanged)
	if err := client.Delete(t.Context(), cm.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	check(cm, reconcile.ErrGone)
	create()
	check(cm, reconcile.ErrReplaced)

	for _, nothing := range []schema.GroupVersionResource{
		{Group: "example.com", Version: "v1", Resource: "nothings"},
		{Group: "apps", Version: "v1", Resource: "nothings"},
	} {
		unserved := served{dynamic.NewForConfigOrDie(testserver.Config(t)).Resource(nothing).Namespace(namespace)}
		_, err := reconcile.ConfirmLive(t.Context(), unserved, cm)
		if !apierrors.IsNotFound(err) || errors.Is(err, reconcile.ErrGone) || isStale(err) {
			t.Errorf("ConfirmLive() of %v, which is not served, = %v, want NotFound and not ErrGone", nothing, err)
		}
	}
}
