package crd_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/crd/internal/site"
)

// Website has its own name in examples.
type Website = site.Website

type m = map[string]any

var (
	websiteKind     = site.Kind()
	websiteResource = site.Kind().GroupVersion().WithResource("websites")
)

func website(namespace, name string) *Website { return site.New(namespace, name) }

// newFake returns a Fake with the objects.
func newFake(t testing.TB, objects ...*Website) *crdtest.Fake[*Website] {
	t.Helper()
	fake, err := crdtest.NewFake(websiteKind, "websites", objects...)
	if err != nil {
		t.Fatal(err)
	}
	return fake
}

// newWebsite is a newer version of Website: spec.later is in the schema, spec.newest is
// not.
type newWebsite struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Later  string `json:"later,omitempty"`
		Newest string `json:"newest,omitempty"`
	} `json:"spec"`
}

func (w *newWebsite) DeepCopyObject() runtime.Object {
	out := *w
	w.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// logged has the lines of a logger.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) into(ctx context.Context) context.Context {
	return klog.NewContext(ctx, funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, args)
	}, funcr.Options{}))
}

func (l *logged) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}
