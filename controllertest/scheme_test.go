package controllertest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// A widget is a kind of this test only.
type widget struct{ metav1.TypeMeta }

func (w *widget) DeepCopyObject() runtime.Object { return &widget{w.TypeMeta} }

// TestSharedScheme: a Start that registers types in the scheme of client-go is named before
// runs are parallel.
//
// Proves X4.
func TestSharedScheme(t *testing.T) { // not parallel, because it changes the scheme of all
	// With -count=2 the types of the first time are still there.
	group := fmt.Sprintf("scheme-%d.example.com", len(scheme.Scheme.AllKnownTypes()))
	registered := make(chan struct{})
	c := &copier{}
	s := c.scenario()
	s.Start = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		scheme.Scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Widget"}, &widget{})
		close(registered)
		return c.start(ctx, cfg, env)
	}
	s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		<-registered
		return createsA(ctx, cfg, env)
	}
	report, err := controllertest.Run(t.Context(), s, quick(t))
	if want := "controllertest: copier: the function Start registers types in the shared scheme of client-go, or another test does so at the same time"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "call AddToScheme before Explore") {
		t.Errorf("the report is %v and the error %v, want %q", report, err, want)
	}
}
