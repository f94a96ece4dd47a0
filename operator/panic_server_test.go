package operator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// testPanic: a panic writes nothing that the function has changed. If it lasts, Ready shows it.
func testPanic(t *testing.T, s *shelf) {
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		b.Status.URL = "http://lost"
		if _, err := s.c.Apply(ctx, newItem(s.namespace, "x", "")); err != nil {
			return reconcile.Result{}, err
		}
		if b.Spec.Text != "" {
			b.Status.URL = ""
			return reconcile.Result{}, nil
		}
		panic("a test")
	}
	s.Prune = true
	s.start(operator.Options{})
	began := time.Now()
	s.create("a", "")
	s.until(func(e ended) string {
		if e.result != "panic" {
			return fmt.Sprint(e)
		}
		return ""
	})
	if b := s.get("a"); b.Status.URL != "" || ready(b) != "none" {
		t.Errorf("status is %+v", b.Status)
	}
	s.until(func(ended) string {
		if got, want := ready(s.get("a")), "False Panic at 1: a test: the log has the stack"; got != want {
			return got
		}
		return ""
	})
	if b := s.get("a"); b.Status.URL != "" || time.Since(began) < 9*time.Second {
		t.Errorf("after %v the status is %+v", time.Since(began), b.Status)
	}
	s.edit("a", `{"spec":{"text":"works"}}`)
	s.succeeded()
	if got, want := ready(s.get("a")), "True Ready at 2: 1 of 1 objects are ready"; got != want {
		t.Errorf("Ready is %s, want %s", got, want)
	}
}

// testPanicInCleanup: a panic of Cleanup that lasts is shown, too, and the finalizer stays.
func testPanicInCleanup(t *testing.T, s *shelf) {
	var mended atomic.Bool
	s.Finalizer = boxFinalizer
	s.Cleanup = func(_ context.Context, b *Box) error {
		if b.Status.URL = "http://lost"; !mended.Load() {
			panic("a test")
		}
		return nil
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.succeeded()
	if err := s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(ended) string {
		if got := ready(s.get("a")); !strings.HasPrefix(got, "False Panic at ") || !strings.HasSuffix(got, ": a test: the log has the stack") {
			return got
		}
		return ""
	})
	if b := s.get("a"); b.Status.URL != "" || !slices.Contains(b.Finalizers, boxFinalizer) {
		t.Errorf("the object is %+v", b)
	}
	mended.Store(true)
	s.until(func(e ended) string {
		if e.err != nil {
			return fmt.Sprint(e)
		}
		return ""
	})
	if _, err := s.boxes.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("Get() = %v, want NotFound", err)
	}
}
