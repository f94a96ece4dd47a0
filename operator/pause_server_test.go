package operator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

// annotate sets or, with null, removes the annotation that a user of the boxes has.
func (s *shelf) annotate(name, annotation, value string) {
	s.t.Helper()
	s.edit(name, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, annotation, value))
}

const (
	pausedAnnotation    = "controllerkit.github.io/paused"
	requestedAnnotation = "controllerkit.github.io/requested-at"
)

// paused returns the status of the condition Paused and the generation that it is about.
func paused(b *Box) string {
	c := meta.FindStatusCondition(b.Status.Conditions, "Paused")
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("%s at %d", c.Status, c.ObservedGeneration)
}

// awaitPaused waits for a call after which the condition Paused is as wanted.
func (s *shelf) awaitPaused(name, want string) {
	s.t.Helper()
	s.until(func(e ended) string {
		if got := paused(s.get(name)); got != want {
			return fmt.Sprintf("Paused is %s, want %s; %v", got, want, e.err)
		}
		return ""
	})
}

// testPaused: a paused box gets no request but that of its condition. Its status claims nothing about the new
// spec, and the end of the pause runs it at once.
func testPaused(t *testing.T, s *shelf) {
	s.Phases = phases()
	s.start(operator.Options{Debug: "127.0.0.1:0"})
	s.create("a", "one", "x")
	s.succeeded()
	s.succeeded() // the call that confirms its writes
	s.sent()
	s.annotate("a", pausedAnnotation, `"incident 42\u001b[2J"`)
	s.awaitPaused("a", "True at 1")
	s.edit("a", `{"spec":{"text":"two","items":["y"]}}`)
	s.awaitPaused("a", "True at 2")
	if err := s.kube.CoreV1().ConfigMaps(s.namespace).Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded() // the call of the child's event
	if diff := cmp.Diff([]string{"PATCH boxes/status a", "PATCH boxes/status a"}, s.sent()); diff != "" {
		t.Errorf("requests of a paused box (-want +got):\n%s", diff)
	}
	b := s.get("a")
	if got, want := ready(b), "True Ready at 1: 1 of 1 objects are ready"; got != want || b.Status.ObservedGeneration != 1 || b.Status.Phase != "Up" {
		t.Errorf("Ready is %q, want %q; status %+v", got, want, b.Status)
	}
	if state, why := kstatus.Of(b); state != kstatus.Progressing {
		t.Errorf("kstatus is %s, %s, want Progressing", state, why)
	}
	if c := meta.FindStatusCondition(b.Status.Conditions, "Paused"); !strings.Contains(c.Message, `"incident 42\x1b[2J"`) {
		t.Errorf("the message is %q", c.Message)
	}
	body := newResponse(t, s.op.Metrics.Handler(), "/metrics")
	for _, want := range []string{
		`controller_paused_objects{resource="boxes.box.example.com"} 1`,
		`controller_object_conditions{condition="Paused",reason="PausedByAnnotation",resource="boxes.box.example.com",status="True"} 1`,
		`controller_object_conditions{condition="Ready",reason="Ready",resource="boxes.box.example.com",status="True"} 1`,
		`controller_not_ready_objects{resource="boxes.box.example.com"} 0`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	if page := newResponse(t, s.op.Debug, "/debug/controllers?key="+s.namespace+"/a"); !strings.Contains(page, "<h3>Paused objects</h3>") || !strings.Contains(page, "An annotation pauses it") {
		t.Error("the page does not show the paused box")
	}
	s.annotate("a", pausedAnnotation, "null")
	s.awaitPaused("a", "none")
	if b := s.get("a"); b.Status.ObservedGeneration != 2 || !meta.IsStatusConditionTrue(b.Status.Conditions, "Ready") {
		t.Errorf("after the pause the status is %+v", b.Status)
	}
	if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "y", metav1.GetOptions{}); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

// testPausedDeletion: a pause does not hold up a deletion. Otherwise the box would keep its namespace.
func testPausedDeletion(t *testing.T, s *shelf) {
	var cleaned atomic.Int64
	s.Finalizer, s.Cleanup = boxFinalizer, func(context.Context, *Box) error {
		cleaned.Add(1)
		return nil
	}
	s.start(operator.Options{})
	s.create("a", "one")
	s.succeeded()
	s.annotate("a", pausedAnnotation, `"true"`)
	s.awaitPaused("a", "True at 1")
	if err := s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(ended) string {
		if _, err := s.boxes.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the box is left: %v", err)
		}
		return ""
	})
	if cleaned.Load() != 1 {
		t.Errorf("Cleanup was called %d times, want 1", cleaned.Load())
	}
}

// testPausedFailingDeletion: while the cleanup of a paused box fails, its status does not say that it is paused.
func testPausedFailingDeletion(t *testing.T, s *shelf) {
	var mended atomic.Bool
	s.Finalizer, s.Cleanup = boxFinalizer, func(context.Context, *Box) error {
		if !mended.Load() {
			return fmt.Errorf("no access: %w", reconcile.ErrTerminal)
		}
		return nil
	}
	s.start(operator.Options{})
	s.create("a", "one")
	s.succeeded()
	s.annotate("a", pausedAnnotation, `"true"`)
	s.awaitPaused("a", "True at 1")
	if err := s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(ended) string {
		if b := s.get("a"); paused(b) != "none" || !strings.HasPrefix(ready(b), "False Terminal") {
			return fmt.Sprintf("Paused is %s, Ready %s", paused(b), ready(b))
		}
		return ""
	})
	mended.Store(true)
	s.annotate("a", requestedAnnotation, `"now"`) // a terminal error waits for an event
	s.until(func(ended) string {
		if _, err := s.boxes.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the box is left: %v", err)
		}
		return ""
	})
}

// testPausedAtFirst: a box that is made paused gets no finalizer and no children, and no program takes it for ready.
func testPausedAtFirst(t *testing.T, s *shelf) {
	s.Finalizer, s.Cleanup = boxFinalizer, func(context.Context, *Box) error { return nil }
	s.start(operator.Options{AnnotationPrefix: "pause.example.com"})
	b := &Box{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"pause.example.com/paused": ""}}, Spec: BoxSpec{Items: []string{"x"}}}
	if _, err := s.boxes.Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitPaused("a", "True at 1")
	b = s.get("a")
	if !strings.HasPrefix(ready(b), "Unknown PausedByAnnotation at 1") || b.Status.ObservedGeneration != 0 || len(b.Finalizers) > 0 {
		t.Errorf("Ready is %s; finalizers %q, status %+v", ready(b), b.Finalizers, b.Status)
	}
	if state, why := kstatus.Of(b); state == kstatus.Ready {
		t.Errorf("kstatus is %s, %s", state, why)
	}
	s.succeeded() // the call of its own event
	if diff := cmp.Diff([]string{"PATCH boxes/status a"}, s.sent()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	s.annotate("a", "pause.example.com/paused", `"false"`)
	s.awaitPaused("a", "none")
	if b = s.get("a"); !slices.Contains(b.Finalizers, boxFinalizer) || !strings.HasPrefix(ready(b), "True") {
		t.Errorf("after the pause: Ready is %s, finalizers %q", ready(b), b.Finalizers)
	}
}

// testPausedMeanwhile: a pause that the cache does not show yet counts if the call reads the box from the API server.
func testPausedMeanwhile(t *testing.T, s *shelf) {
	var calls atomic.Int64
	s.Reconcile = func(context.Context, *Box) (reconcile.Result, error) {
		calls.Add(1)
		return reconcile.Result{}, nil
	}
	s.live.Store(true)
	var once atomic.Bool
	s.hook(func(request string) error {
		if request == "GET boxes a" && once.CompareAndSwap(false, true) {
			s.annotate("a", pausedAnnotation, `"true"`)
		}
		return nil
	})
	s.start(operator.Options{})
	s.create("a", "one")
	s.awaitPaused("a", "True at 1")
	if calls.Load() != 0 {
		t.Errorf("Reconcile was called %d times, want 0", calls.Load())
	}
}

// testPausedChild: the annotation of a child does not stop the controller of its owner, and a line of log says so.
func testPausedChild(t *testing.T, s *shelf) {
	s.start(operator.Options{})
	s.create("a", "one", "x")
	s.succeeded()
	maps := s.kube.CoreV1().ConfigMaps(s.namespace)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}},"data":{"text":"theirs"}}`, pausedAnnotation)
	if _, err := maps.Patch(t.Context(), "x", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(ended) string {
		x, err := maps.Get(t.Context(), "x", metav1.GetOptions{})
		if err != nil || x.Data["text"] != "one" || x.Annotations[pausedAnnotation] != "true" {
			return fmt.Sprintf("x is %v, %v", x, err)
		}
		return ""
	})
	if b := s.get("a"); paused(b) != "none" {
		t.Errorf("the box has the condition Paused: %s", paused(b))
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	lines := s.logs.Find("The annotation paused of a child does not stop the controller of its owner: set it on the owner")
	if len(lines) != 1 || lines[0].Values["name"] != "x" || lines[0].Values["owner"] != "Box a" {
		t.Errorf("the lines are %v, want one about x", lines)
	}
}

// testRequested: a request runs a box that waits for an event. The status has the request that was handled last,
// which makes no further call, and none after a restart that writes something.
func testRequested(t *testing.T, s *shelf) {
	var fails atomic.Bool
	var calls atomic.Int64
	fails.Store(true)
	s.Reconcile = func(context.Context, *Box) (reconcile.Result, error) {
		calls.Add(1)
		if fails.Load() {
			return reconcile.Result{}, fmt.Errorf("no quota: %w", reconcile.ErrTerminal)
		}
		return reconcile.Result{}, nil
	}
	s.start(operator.Options{})
	s.create("a", "one")
	s.until(func(e ended) string {
		if !errors.Is(e.err, reconcile.ErrTerminal) {
			return fmt.Sprint(e.err)
		}
		return ""
	})
	fails.Store(false)
	handled := func(want string) {
		t.Helper()
		s.until(func(e ended) string {
			if got := s.get("a").Status.LastHandledReconcileAt; got != want {
				return fmt.Sprintf("the handled request is %q, want %q; %v", got, want, e.err)
			}
			return ""
		})
	}
	s.annotate("a", requestedAnnotation, `"2026-05-01T12:00:00Z"`)
	handled("2026-05-01T12:00:00Z")
	s.succeeded() // the call of its own write
	s.sent()
	s.annotate("a", pausedAnnotation, `"true"`)
	s.awaitPaused("a", "True at 1")
	s.annotate("a", requestedAnnotation, `"again"`)
	s.succeeded()
	s.sent()
	if got := s.get("a").Status.LastHandledReconcileAt; got != "2026-05-01T12:00:00Z" {
		t.Errorf("while it is paused, the handled request is %q", got)
	}
	s.annotate("a", pausedAnnotation, "null")
	handled("again")
	s.succeeded()
	if diff := cmp.Diff([]string{"PATCH boxes/status a"}, s.sent()); diff != "" {
		t.Errorf("requests after the pause (-want +got):\n%s", diff)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	for len(s.ended) > 0 {
		<-s.ended
	}
	before := calls.Load()
	s.sent()
	s.start(operator.Options{})
	s.succeeded()
	s.annotate("a", "example.com/other", `"an event"`)
	s.succeeded()
	if sent := s.sent(); len(sent) > 0 || calls.Load() != before+2 {
		t.Errorf("after a restart: requests %q and %d calls, want none and 2", sent, calls.Load()-before)
	}
}
