package consistency_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// oneObject is a client of a namespace with one object, or none. It returns err, if it
// is not nil, instead.
type oneObject struct {
	live     *corev1.ConfigMap
	err      error
	requests int
}

func (o *oneObject) Get(_ context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error) {
	o.requests++
	switch {
	case opts.ResourceVersion != "":
		return nil, errors.New("not a read from etcd")
	case o.err != nil:
		return nil, o.err
	case o.live == nil:
		return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
	}
	return o.live, nil
}

// errTerminal stands for an error with a method Terminal() bool that returns true.
var errTerminal = errors.New("terminal")

// settings is an object as a cache has it.
func settings(change ...func(*corev1.ConfigMap)) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings", UID: "uid-1", ResourceVersion: "1"}}
	for _, f := range change {
		f(cm)
	}
	return cm
}

func isStale(err error) bool {
	var s controllerkit.StaleError
	return errors.As(err, &s) && s.Stale()
}

// TestConfirmLive proves C7 with every state that a server can be in.
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
		{name: "gone", cached: settings(), want: consistency.ErrGone, wantText: "confirm default/settings live: the cached object is stale: the object no longer exists", stale: true, notFound: true, requests: 1},
		{name: "replaced", cached: settings(), live: settings(func(cm *corev1.ConfigMap) { cm.UID = "uid-2" }), want: consistency.ErrReplaced, wantText: `uid "uid-2", not "uid-1"`, stale: true, wantLive: true, requests: 1},
		{name: "changed", cached: settings(func(cm *corev1.ConfigMap) { cm.ResourceVersion = "0" }), live: settings(), want: consistency.ErrChanged, wantText: "from resource version 0 to 1", stale: true, wantLive: true, requests: 1},
		{name: "cluster-scoped", cached: settings(func(cm *corev1.ConfigMap) { cm.Namespace = "" }), want: consistency.ErrGone, wantText: "confirm settings live", stale: true, notFound: true, requests: 1},
		{name: "resource not served", cached: settings(), get: unserved, want: unserved, notFound: true, requests: 1},
		{name: "group served, resource not", cached: settings(), get: unknown, want: unknown, notFound: true, requests: 1},
		{name: "forbidden", cached: settings(), get: context.DeadlineExceeded, want: context.DeadlineExceeded, requests: 1},
		{name: "no uid", cached: settings(func(cm *corev1.ConfigMap) { cm.UID = "" }), want: errTerminal, wantText: "metadata.uid"},
		{name: "no version", cached: settings(func(cm *corev1.ConfigMap) { cm.ResourceVersion = "" }), want: errTerminal, wantText: "metadata.resourceVersion"},
		{name: "no name", cached: settings(func(cm *corev1.ConfigMap) { cm.Name = "" }), want: errTerminal, wantText: "metadata.name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			client := &oneObject{live: tt.live, err: tt.get}
			live, err := consistency.ConfirmLive(t.Context(), client, tt.cached)
			if tt.want == errTerminal {
				var terminal controllerkit.TerminalError
				if !errors.As(err, &terminal) || !terminal.Terminal() {
					t.Errorf("error = %v, want one with Terminal() true", err)
				}
			} else if !errors.Is(err, tt.want) {
				t.Errorf("error = %v, want %v", err, tt.want)
			}
			if err != nil && (!strings.Contains(err.Error(), tt.wantText) || strings.Count(err.Error(), "consistency: ") != 1) {
				t.Errorf("error = %q, want one with %q and the prefix of the package once", err, tt.wantText)
			}
			for _, other := range []error{consistency.ErrGone, consistency.ErrReplaced, consistency.ErrChanged} {
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
			if client.requests != tt.requests {
				t.Errorf("%d requests, want %d", client.requests, tt.requests)
			}
		})
	}
}

// served hides the subresources of a dynamic client.
type served struct{ dynamic.ResourceInterface }

func (s served) Get(ctx context.Context, name string, opts metav1.GetOptions) (*unstructured.Unstructured, error) {
	return s.ResourceInterface.Get(ctx, name, opts)
}

// TestServerConfirmLive proves C7 on the real server: what it answers for an object that
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
		if _, err := consistency.ConfirmLive(t.Context(), client, cached); !errors.Is(err, want) || want == nil && err != nil {
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
	check(cm, consistency.ErrChanged)
	if err := client.Delete(t.Context(), cm.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	check(cm, consistency.ErrGone)
	create()
	check(cm, consistency.ErrReplaced)

	for _, nothing := range []schema.GroupVersionResource{
		{Group: "example.com", Version: "v1", Resource: "nothings"},
		{Group: "apps", Version: "v1", Resource: "nothings"},
	} {
		unserved := served{dynamic.NewForConfigOrDie(testserver.Config(t)).Resource(nothing).Namespace(namespace)}
		_, err := consistency.ConfirmLive(t.Context(), unserved, cm)
		if !apierrors.IsNotFound(err) || errors.Is(err, consistency.ErrGone) || isStale(err) {
			t.Errorf("ConfirmLive() of %v, which is not served, = %v, want NotFound and not ErrGone", nothing, err)
		}
	}
}
