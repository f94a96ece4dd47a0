package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

const boxFinalizer = "box.example.com/lid"

// TestServerKind runs controllers of Kind on the API server. Proves OP8, OP9, OP10, OP11, OP12, OP13, OP14,
// OP15 and OP16.
func TestServerKind(t *testing.T) {
	t.Parallel()
	installBoxes(t, boxVersion)
	t.Run("elsewhere", testElsewhere) // alone, because its informers see all namespaces
	t.Run("elsewhere, orphan", testOrphan)
	t.Run("optional", func(t *testing.T) { testOptional(t, newShelf(t), "*") })
	t.Run("optional in one namespace", func(t *testing.T) { testOptional(t, newShelf(t), "") })
	for name, test := range map[string]func(t *testing.T, s *shelf){
		"life":               testLife,
		"private copy":       testPrivateCopy,
		"changed metadata":   testChangedMetadata,
		"finalizer":          testFinalizer,
		"failed cleanup":     testFailedCleanup,
		"results":            testResults,
		"own condition":      testOwnCondition,
		"status after error": testStatusAfterError,
		"made again":         testMadeAgain,
		"adoption":           testAdoption,
		"earlier owner":      testEarlierOwner,
		"replaced child":     testReplacedChild,
		"pruned status":      testPrunedStatus,
		"invalid children":   testInvalidChildren,
		"prune":              testPrune,
		"no prune":           testNoPrune,
		"stale owner":        testStaleOwner,
		"after the call":     testAfterTheCall,
		"reader":             testReader,
		"deleted child":      testDeletedChild,
		"timeout":            testTimeout,
		"panic":              testPanic,
		"panic in cleanup":   testPanicInCleanup,
		"lasting error":      testLasting,
		"failed write":       testFailedWrite,
		"live reads":         testLiveReads,
		"prune waits":        testPruneWaits,
		"former manager":     testFormerManager,
		"prune refused":      testPruneRefused,
		"unserved reads":     testUnservedReads,
		"read only":          testReadOnly,
		"phases":             testPhases,
		"rules":              testRules,
		"by hand":            testByHand,
		"dropped errors":     testDroppedErrors,
		"no finalizer":       testNoFinalizer,
		"deleted meanwhile":  testDeletedMeanwhile,
		"gone meanwhile":     testGoneMeanwhile,
		"reads":              testReads,
		"found elsewhere":    testFound,
		"cycle":              testCycle,
		"paused":             testPaused,
		"paused deletion":    testPausedDeletion,
		"paused and failing": testPausedFailingDeletion,
		"paused at first":    testPausedAtFirst,
		"paused meanwhile":   testPausedMeanwhile,
		"paused child":       testPausedChild,
		"requested":          testRequested,
		"left namespace":     testLeft,
		"in the way":         testInTheWay,
		"gone from the way":  testGoneFromTheWay,
		"dropped kind":       testDroppedKind,
		"values":             testValues,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newShelf(t))
		})
	}
}

// succeeded waits for a call that succeeds.
func (s *shelf) succeeded() {
	s.t.Helper()
	s.until(func(e ended) string {
		if e.err != nil {
			return e.err.Error()
		}
		return ""
	})
}

// testLife: the requests of a box from its creation to its end, and none for what is as it should be.
func testLife(t *testing.T, s *shelf) {
	s.Phases = phases()
	s.start(operator.Options{})
	s.create("a", "one", "x", "y")
	s.succeeded()
	want := []string{"GET configmaps x", "PATCH configmaps x", "GET configmaps y", "PATCH configmaps y", "PATCH boxes/status a"}
	if diff := cmp.Diff(want, s.sent()); diff != "" {
		t.Errorf("requests for a new box (-want +got):\n%s", diff)
	}
	b := s.get("a")
	if got, want := ready(b), "True Ready at 1: 2 of 2 objects are ready"; got != want || b.Status.ObservedGeneration != 1 || b.Status.Phase != "Up" {
		t.Errorf("Ready is %q, want %q; status %+v", got, want, b.Status)
	}
	x, err := s.kube.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "x", metav1.GetOptions{})
	if err != nil || !metav1.IsControlledBy(x, b) || x.Data["text"] != "one" {
		t.Errorf("item x is %v, %v", x, err)
	}
	s.succeeded() // the call that confirms its writes
	if sent := s.sent(); len(sent) > 0 {
		t.Errorf("requests to confirm: %q, want none", sent)
	}
	s.edit("a", `{"spec":{"text":"two","items":["x"]}}`)
	s.succeeded()
	if diff := cmp.Diff([]string{"PATCH configmaps x", "PATCH boxes/status a"}, s.sent()); diff != "" {
		t.Errorf("requests for a changed box (-want +got):\n%s", diff)
	}
	s.succeeded()
	// An event of a child runs its owner.
	if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Patch(t.Context(), "x", types.MergePatchType, []byte(`{"data":{"text":"theirs"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded()
	if diff := cmp.Diff([]string{"PATCH configmaps x"}, s.sent()); diff != "" {
		t.Errorf("requests for a changed child (-want +got):\n%s", diff)
	}
}

// testPrivateCopy: the function may change its copy, of which only the status is written.
func testPrivateCopy(t *testing.T, s *shelf) {
	texts := make(chan string, 10)
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		texts <- b.Spec.Text + strings.Join(b.Spec.Items, ",")
		b.Spec.Text, b.Spec.Items[0] = "default", "changed"
		b.Status.URL = "http://" + b.Name
		b.Labels["a"] += "" // equal
		return reconcile.Result{}, nil
	}
	s.start(operator.Options{})
	b := &Box{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}}, Spec: BoxSpec{Text: "mine", Items: []string{"x"}}}
	if _, err := s.boxes.Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded()
	s.succeeded()
	for range 2 {
		if got := receive(t, texts); got != "minex" {
			t.Errorf("the function got %q, want the object as it is stored", got)
		}
	}
	if b := s.get("a"); b.Spec.Text != "mine" || b.Spec.Items[0] != "x" || b.Status.URL != "http://a" || b.Generation != 1 {
		t.Errorf("stored: %+v, want the status and nothing else", b)
	}
}

func testChangedMetadata(t *testing.T, s *shelf) {
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		b.Labels = map[string]string{"mine": "yes"}
		return reconcile.Result{}, nil
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.until(func(e ended) string {
		if e.result != "terminal" || !strings.Contains(e.err.Error(), "changed metadata.labels of its copy") {
			return fmt.Sprint(e)
		}
		return ""
	})
	if got := ready(s.get("a")); !strings.HasPrefix(got, "False Terminal at 1: operator: Reconcile changed metadata.labels") {
		t.Errorf("Ready is %q", got)
	}
}

// testFinalizer: the function runs behind the stored finalizer, and the cleanup before its end.
func testFinalizer(t *testing.T, s *shelf) {
	var order []string
	s.Finalizer = boxFinalizer
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		live, err := s.boxes.Get(ctx, b.Name, metav1.GetOptions{})
		held, heldErr := operator.Held(ctx, b)
		if _, wrong := operator.Held(ctx, b.DeepCopy()); wrong == nil {
			t.Error("Held() of another object is no error")
		}
		order = append(order, fmt.Sprintf("reconcile, held %t, %t, %v", finalizer.Has(live, boxFinalizer), held.Valid() && held.Object() == b, errors.Join(err, heldErr)))
		return reconcile.Result{}, nil
	}
	s.Cleanup = func(ctx context.Context, b *Box) error {
		live, err := s.boxes.Get(ctx, b.Name, metav1.GetOptions{})
		held, heldErr := operator.Held(ctx, b)
		order = append(order, fmt.Sprintf("cleanup, held %t, %t, %v", finalizer.Has(live, boxFinalizer), held.Valid() && held.Object() == b, errors.Join(err, heldErr)))
		return nil
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.succeeded()
	s.succeeded()
	if diff := cmp.Diff([]string{"PATCH boxes a", "GET boxes a", "PATCH boxes/status a", "GET boxes a"}, s.sent()); diff != "" {
		t.Errorf("requests of the first call and of the one that confirms it (-want +got):\n%s", diff)
	}
	if err := s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded()
	if _, err := s.boxes.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the box is left: %v", err)
	}
	want := []string{"reconcile, held true, true, <nil>", "reconcile, held true, true, <nil>", "cleanup, held true, true, <nil>"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// testFailedCleanup: a cleanup that fails keeps the finalizer, and the status shows why it waits.
func testFailedCleanup(t *testing.T, s *shelf) {
	s.Finalizer, s.Phases = boxFinalizer, phases()
	var stage atomic.Int32 // 0: the cleanup fails, 1: its plan waits, 2: it is done, 3: it waits without a plan
	plan := finalizer.Plan[*Box]{Client: s.boxes, Steps: []finalizer.Step[*Box]{{Name: "lid", Run: func(context.Context, finalizer.Held[*Box]) (finalizer.Progress, error) {
		return finalizer.Progress{Done: stage.Load() == 2, After: 100 * time.Millisecond, Message: "the lid is open"}, nil
	}}}}
	failure := fmt.Errorf("no lid: %w", reconcile.ErrRejected)
	s.Cleanup = func(ctx context.Context, b *Box) error {
		switch stage.Load() {
		case 0:
			return failure
		case 3:
			return fmt.Errorf("lid: %w", errWaiting{})
		}
		held, err := operator.Held(ctx, b)
		if err != nil {
			return err
		}
		return plan.Run(ctx, held)
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.succeeded()
	s.succeeded()
	if err := s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(e ended) string {
		if e.result != "rejected" {
			return fmt.Sprint(e)
		}
		return ""
	})
	b := s.get("a")
	if got := ready(b); !strings.Contains(got, "False Rejected at 2: finalizer box.example.com/lid: cleanup: no lid") || b.Status.Phase != "Going" || !finalizer.Has(b, boxFinalizer) {
		t.Errorf("Ready is %q, phase %q, finalizers %q", got, b.Status.Phase, b.Finalizers)
	}
	stage.Store(1)
	s.until(func(e ended) string {
		if e.result != "requeue" {
			return fmt.Sprint(e)
		}
		return ""
	})
	b = s.get("a")
	if c := meta.FindStatusCondition(b.Status.Conditions, "Terminating"); c == nil || c.Reason != "StepWaiting" || !strings.HasPrefix(ready(b), "False Terminating at 2: not finished: step lid: the lid is open") {
		t.Errorf("Terminating is %v, Ready is %q", c, ready(b))
	}
	stage.Store(3)
	s.until(func(e ended) string {
		b = s.get("a")
		if c := meta.FindStatusCondition(b.Status.Conditions, "Terminating"); c == nil || c.Reason != "StepWaiting" || !strings.Contains(c.Message, "step cleanup: lid: closing") || e.result != "requeue" {
			return fmt.Sprint(e, c)
		}
		return ""
	})
	stage.Store(2)
	s.until(func(e ended) string {
		if _, err := s.boxes.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(e, " the box is left: ", err)
		}
		return ""
	})
}

// errNotSent is an error with a mark.
type errNotSent struct{}

func (errNotSent) Error() string { return "not sent" }
func (errNotSent) NotSent() bool { return true }

type errWaiting struct{}

func (errWaiting) Error() string        { return "closing" }
func (errWaiting) Waits() time.Duration { return 100 * time.Millisecond }

type errStale struct{}

func (errStale) Error() string { return "stale" }
func (errStale) Stale() bool   { return true }

// testResults: what each class of error makes of Ready, and of the observed generation.
func testResults(t *testing.T, s *shelf) {
	const good = "True Reconciled at 1: the object is reconciled"
	cases := map[string]struct {
		err   error
		ready string // "" means unchanged
	}{
		"a": {err: errors.New("down")},
		"b": {err: errStale{}},
		"c": {err: errNotSent{}},
		"d": {err: apierrors.NewConflict(corev1.Resource("pods"), "a", errors.New("changed"))},
		"e": {err: context.DeadlineExceeded},
		"f": {err: fmt.Errorf("wrong: %w", reconcile.ErrTerminal), ready: "False Terminal at 2: wrong"},
		"g": {err: fmt.Errorf("bad\x1b: %w", reconcile.ErrRejected), ready: `False Rejected at 2: bad\x1b`},
		"h": {err: apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("no role")), ready: `False Forbidden at 2: pods "a" is forbidden: no role`},
	}
	s.Phases = phases()
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		if b.Spec.Text == "waits" {
			return reconcile.Result{}, errWaiting{}
		}
		return reconcile.Result{}, cases[b.Spec.Text].err
	}
	s.start(operator.Options{})
	for name, tc := range cases {
		s.create(name, "")
		s.until(func(e ended) string {
			if got := ready(s.get(name)); got != good {
				return got
			}
			return ""
		})
		s.edit(name, fmt.Sprintf(`{"spec":{"text":%q}}`, name))
		s.until(func(e ended) string {
			if e.err == nil || !errors.Is(e.err, tc.err) && e.err.Error() != tc.err.Error() {
				return fmt.Sprint(e)
			}
			return ""
		})
		b := s.get(name)
		got, want, observed, phase := ready(b), good, int64(1), "Up"
		if tc.ready != "" {
			want, observed, phase = tc.ready, 2, "Broken"
		}
		if got != want || b.Status.ObservedGeneration != observed || b.Status.Phase != phase {
			t.Errorf("after %v: Ready is %q at generation %d with phase %q, want %q at %d with %q", tc.err, got, b.Status.ObservedGeneration, b.Status.Phase, want, observed, phase)
		}
		s.edit(name, `{"spec":{"text":"waits"}}`) // which is no failure
		s.until(func(e ended) string {
			b := s.get(name)
			if got := ready(b); got != "False Waiting at 3: closing" || b.Status.Phase != "Coming" || e.result != "requeue" {
				return fmt.Sprint(e, got, b.Status.Phase)
			}
			return ""
		})
		if err := s.boxes.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// testOwnCondition: a Ready that the function sets is kept, also with the value it has already.
func testOwnCondition(t *testing.T, s *shelf) {
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		if meta.FindStatusCondition(b.Status.Conditions, "Ready") != nil {
			t.Error("the copy has Ready")
		}
		set := []metav1.Condition{status.True("Painted", "Blue", "")}
		if b.Spec.Text == "suspended" {
			set = append(set, status.False("Ready", "Suspended", "by its user"))
		}
		return reconcile.Result{}, status.Set(&b.Status.Conditions, b.Generation, set...)
	}
	s.start(operator.Options{})
	s.create("a", "suspended")
	s.succeeded()
	before := s.get("a")
	if got, want := ready(before), "False Suspended at 1: by its user"; got != want || before.Status.ObservedGeneration != 1 {
		t.Errorf("Ready is %q at generation %d, want %q", got, before.Status.ObservedGeneration, want)
	}
	s.succeeded()
	s.sent()
	if _, err := s.boxes.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded()
	if diff := cmp.Diff([]string(nil), s.sent()); diff != "" {
		t.Errorf("requests for the same status (-want +got):\n%s", diff)
	}
	s.edit("a", `{"spec":{"text":"on"}}`)
	s.succeeded()
	if got, want := ready(s.get("a")), "True Reconciled at 2: the object is reconciled"; got != want {
		t.Errorf("Ready is %q, want %q", got, want)
	}
}

// testStatusAfterError: the change of the status is written although the call fails.
func testStatusAfterError(t *testing.T, s *shelf) {
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		b.Status.URL = "http://half"
		return reconcile.Result{}, errors.New("half done")
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.until(func(ended) string { return "" })
	if b := s.get("a"); b.Status.URL != "http://half" || b.Status.ObservedGeneration != 0 || ready(b) != "none" {
		t.Errorf("status is %+v", b.Status)
	}
}

// testMadeAgain: a box that is deleted and made again in the middle of a call does not get its status.
func testMadeAgain(t *testing.T, s *shelf) {
	first := true
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		b.Status.URL = b.Spec.Text
		if first {
			first = false
			if err := s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			s.create("a", "second")
		}
		return reconcile.Result{}, nil
	}
	s.start(operator.Options{})
	s.create("a", "first")
	s.until(func(e ended) string {
		b := s.get("a")
		if b.Status.URL == "first" {
			t.Error("the second box has the status of the first")
		}
		if b.Status.URL != "second" {
			return fmt.Sprint(e, b.Status)
		}
		return ""
	})
}

// testAdoption: an object of somebody else is left alone, also if the cache does not show it yet.
func testAdoption(t *testing.T, s *shelf) {
	s.start(operator.Options{})
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"theirs": "yes"}}
	made := false
	s.hook(func(request string) error {
		if request == "GET configmaps x" && !made { // the cache has none
			made = true
			_, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(t.Context(), theirs, metav1.CreateOptions{})
			return err
		}
		return nil
	})
	s.create("a", "mine", "x", "y")
	s.until(func(e ended) string {
		if e.result != "rejected" || !strings.Contains(e.err.Error(), "operator: apply ConfigMap "+s.namespace+"/x: it exists and does not belong to this Box: delete it") {
			return fmt.Sprint(e)
		}
		return ""
	})
	x, err := s.kube.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "x", metav1.GetOptions{})
	if err != nil || len(x.OwnerReferences) > 0 || len(x.Data) != 1 {
		t.Errorf("x is %v, %v, want it untouched", x, err)
	}
	if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "y", metav1.GetOptions{}); err != nil {
		t.Errorf("y: %v, want it made although x failed", err)
	}
	if got := ready(s.get("a")); !strings.HasPrefix(got, "False Rejected at 1: operator: apply ConfigMap") {
		t.Errorf("Ready is %q", got)
	}
	s.until(func(e ended) string { // with the object in the cache
		if s.sent(); e.result != "rejected" {
			return fmt.Sprint(e)
		}
		return ""
	})
	if err := s.kube.CoreV1().ConfigMaps(s.namespace).Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded()
}

// testEarlierOwner: the children of an earlier box of this name, whose garbage collection is not over, are waited for,
// also while they are being deleted. A box of another name does not wait for them.
func testEarlierOwner(t *testing.T, s *shelf) {
	configMaps := s.kube.CoreV1().ConfigMaps(s.namespace)
	for _, name := range []string{"x", "y"} {
		earlier := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/held"}, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: boxVersion.String(), Kind: "Box", Name: "a", UID: "earlier", Controller: ptr.To(true),
		}}}}
		if _, err := configMaps.Create(t.Context(), earlier, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := configMaps.Delete(t.Context(), "y", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.start(operator.Options{})
	s.create("a", "mine", "x", "y")
	s.create("b", "mine", "x")
	apply := "operator: apply ConfigMap " + s.namespace
	deleted := apply + "/y: it belongs to an earlier Box of this name, and is being deleted"
	collected := "False Waiting at 1: " + apply + "/x: it belongs to an earlier Box of this name, and "
	foreign := apply + "/x: it exists and does not belong to this Box: delete it, or give one of them another name: reconcile: rejected"
	for waits, rejects := false, false; !waits || !rejects; {
		switch e := receive(t, s.ended); {
		case e.result == "requeue":
			waits = true
		case e.err == nil: // of the events of x and y, before the box is there
		case e.result == "rejected" && e.err.Error() == foreign:
			rejects = true
		default:
			t.Fatalf("a call ended with %v", e)
		}
	}
	if got := ready(s.get("a")); !strings.HasPrefix(got, collected) || !strings.HasSuffix(got, deleted) {
		t.Errorf("Ready is %q", got)
	}
	if err := s.boxes.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x", "y"} {
		if _, err := configMaps.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := configMaps.Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) { // the garbage collector can be first
		t.Fatal(err)
	}
	s.until(func(e ended) string {
		if e.result == "rejected" && e.err.Error() != foreign {
			t.Errorf("a call ended with %v", e)
		}
		return strings.TrimPrefix(ready(s.get("a")), "True Ready at 1: 2 of 2 objects are ready")
	})
}

// testReplacedChild: a child that is deleted and made again while the cache is late is no rejection.
func testReplacedChild(t *testing.T, s *shelf) {
	s.start(operator.Options{})
	b := s.create("a", "one", "x")
	s.succeeded()
	configMaps := s.kube.CoreV1().ConfigMaps(s.namespace)
	made := false
	s.hook(func(request string) error {
		if request != "PATCH configmaps x" || made {
			return nil
		}
		made = true
		again := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b, boxVersion.WithKind("Box"))}}}
		err := configMaps.Delete(t.Context(), "x", metav1.DeleteOptions{})
		if err == nil {
			_, err = configMaps.Create(t.Context(), again, metav1.CreateOptions{})
		}
		return err
	})
	s.edit("a", `{"spec":{"text":"two"}}`)
	s.until(func(e ended) string {
		if e.err == nil {
			return "no call failed"
		}
		if e.result != "stale" || strings.HasPrefix(ready(s.get("a")), "False") {
			t.Errorf("a call ended with %v, and Ready is %q", e, ready(s.get("a")))
		}
		return ""
	})
	s.succeeded()
	if x, err := configMaps.Get(t.Context(), "x", metav1.GetOptions{}); err != nil || x.Data["text"] != "two" {
		t.Errorf("x is %v, %v", x, err)
	}
}

// testPrunedStatus: a field that the schema of the status lacks is an error that names it, in Ready, too, and is no
// sign of another writer. The other fields are written. A new definition heals it without an event.
func testPrunedStatus(t *testing.T, s *shelf) {
	s.Phases = phases()
	version := schema.GroupVersion{Group: "pruned." + s.namespace + ".example.com", Version: "v1"}
	installBoxes(t, version)
	boxes, err := crd.New[*Box](testserver.Config(t), version.WithKind("Box"), "boxes")
	if err != nil {
		t.Fatal(err)
	}
	s.boxes = boxes.Namespace(s.namespace)
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		b.Status.Unknown, b.Status.URL = "x", "known"
		return reconcile.Result{}, nil
	}
	s.register = func(op *operator.Operator) *operator.Controller {
		return operator.Kind(op, version.WithResource("boxes"), s.Reconciler)
	}
	s.start(operator.Options{})
	s.create("a", "one")
	s.until(func(e ended) string {
		if e.err == nil {
			return "no call failed"
		}
		if e.result != "rejected" || !strings.Contains(e.err.Error(), `unknown field "status.unknown"`) || len(e.err.Error()) > 300 {
			t.Errorf("a call ended with %s, %v", e.result, e.err)
		}
		return ""
	})
	first := s.get("a").Status.Conditions[0].LastTransitionTime
	for range 2 { // a second later each, at least
		receive(t, s.ended)
	}
	b := s.get("a")
	if now := b.Status.Conditions[0].LastTransitionTime; !now.Equal(&first) {
		t.Errorf("Ready has been False since %v, and then since %v", first, now)
	}
	if got, want := ready(b), `False Rejected at 1: status: patch: the schema lacks a field: update the CustomResourceDefinition: unknown field "status.unknown"`; got != want || b.Status.URL != "known" || b.Status.Phase != "Broken" {
		t.Errorf("Ready is %q, want %q; status %+v", got, want, b.Status)
	}
	patch := []byte(`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/unknown","value":{"type":"string"}}]`)
	definitions := dynamic.NewForConfigOrDie(testserver.Config(t)).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := definitions.Patch(t.Context(), "boxes."+version.Group, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded()
	s.until(func(ended) string {
		if b := s.get("a"); b.Status.Unknown != "x" || !strings.HasPrefix(ready(b), "True") || b.Status.Phase != "Up" {
			return fmt.Sprintf("status %+v", b.Status)
		}
		return ""
	})
	for _, line := range s.logs.All() {
		if strings.HasPrefix(line.Message, "Another writer") {
			t.Errorf("logged %+v", line)
		}
	}
}

func testInvalidChildren(t *testing.T, s *shelf) {
	secret := applycorev1.Secret("s", s.namespace)
	var cases sync.Map // the objects of each box
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		objects, _ := cases.Load(b.Name)
		_, err := s.c.Apply(ctx, objects.([]any)...)
		return reconcile.Result{}, err
	}
	s.start(operator.Options{})
	item := func(name string) any { return newItem(s.namespace, name, "") }
	for i, tc := range []struct {
		objects []any
		want    string
	}{
		{[]any{item("x"), item("x")}, "object 1: ConfigMap " + s.namespace + "/x is applied twice in one call: apply it once, with all its fields"},
		{[]any{item("x"), secret}, "object 1: Secret " + s.namespace + "/s is of a kind that is not registered: call operator.Children for it"},
		{[]any{nil}, "object 0: it is nil, of type <nil>: pass an apply configuration"},
		{[]any{(*applycorev1.ConfigMapApplyConfiguration)(nil)}, "object 0: it is nil, of type *v1.ConfigMapApplyConfiguration"},
		{[]any{&corev1.ConfigMap{}}, "object 0: it is a *v1.ConfigMap, whose empty fields would be applied, too: pass an apply configuration"},
		{[]any{"x"}, "object 0: a string is not an apply configuration"},
		{[]any{func() {}}, "object 0: encode the configuration"},
		{[]any{map[string]any{"kind": "ConfigMap"}}, "object 0: apiVersion or kind is empty: set both"},
		{[]any{&unstructured.Unstructured{Object: map[string]any{"apiVersion": "v2", "kind": "ConfigMap", "metadata": map[string]any{"name": "x", "namespace": s.namespace}}}}, "object 0: ConfigMap " + s.namespace + "/x has apiVersion v2, and Children registered v1: use one"},
		{[]any{newItem(s.namespace, "", "")}, "object 0: the ConfigMap has no metadata.name: set it"},
		{[]any{newItem("", "x", "")}, "object 0: ConfigMap x has no metadata.namespace: set it"},
		{[]any{newItem("default", "x", "")}, `object 0: ConfigMap default/x is outside of Options.Namespace "` + s.namespace + `"`},
	} {
		cases.Store(fmt.Sprintf("b%d", i), tc.objects)
		s.create(fmt.Sprintf("b%d", i), "")
		s.until(func(e ended) string {
			if e.result != "rejected" || !strings.Contains(e.err.Error(), "operator: Apply: "+tc.want) {
				return fmt.Sprintf("%v, want %s", e, tc.want)
			}
			return ""
		})
		if err := s.boxes.Delete(t.Context(), fmt.Sprintf("b%d", i), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, request := range s.sent() {
		if strings.Contains(request, "configmaps") {
			t.Errorf("%s was sent, want no request of an invalid call", request)
		}
	}
	all, err := s.kube.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "x", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("x is %v, %v, want it absent", all, err)
	}
}

// testAfterTheCall: the context of a call that has returned, and any other one, is an error.
func testAfterTheCall(t *testing.T, s *shelf) {
	kept := make(chan context.Context, 10)
	s.Reconcile = func(ctx context.Context, _ *Box) (reconcile.Result, error) {
		kept <- ctx
		return reconcile.Result{}, nil
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.succeeded()
	for ctx, want := range map[context.Context]string{
		receive(t, kept): "the call of the context has returned: wait for goroutines before",
		t.Context():      "the context is not that of a call",
	} {
		_, apply := s.c.Apply(ctx, newItem(s.namespace, "x", ""))
		_, get := s.items.Get(ctx, s.namespace, "x")
		_, list := s.items.List(ctx, s.namespace, labels.Everything())
		_, held := operator.Held(ctx, &Box{})
		for name, err := range map[string]error{"Apply": apply, "Get": get, "List": list, "Held": held} {
			if err == nil || !strings.Contains(err.Error(), want) || reconcile.Class(err) != controllerkit.ResultRejected {
				t.Errorf("%s() = %v, want %s", name, err, want)
			}
		}
	}
}

// testReader: reads show what the call has applied, and copies.
func testReader(t *testing.T, s *shelf) {
	reads := make(chan string, 10)
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		_, before := s.items.Get(ctx, s.namespace, "x")
		children, err := s.c.Apply(ctx, newItem(s.namespace, "x", b.Spec.Text))
		if err != nil {
			return reconcile.Result{}, err
		}
		x, err := s.items.Get(ctx, s.namespace, "x")
		if err != nil {
			return reconcile.Result{}, err
		}
		text := x.Data["text"]
		x.Data["text"] = "mine"
		all, err := s.items.List(ctx, s.namespace, labels.Everything())
		for _, x := range all {
			if x.Name == "x" {
				text += " " + x.Data["text"]
				x.Data["text"] = "mine"
			}
		}
		reads <- fmt.Sprintf("%t %s %t", apierrors.IsNotFound(before), text, children[0].Changed)
		return reconcile.Result{}, err
	}
	s.start(operator.Options{})
	s.create("a", "one")
	s.succeeded()
	s.succeeded()
	s.edit("a", `{"spec":{"text":"two"}}`)
	s.succeeded()
	for _, want := range []string{"true one one true", "false one one false", "false two two true"} {
		if got := receive(t, reads); got != want {
			t.Errorf("reads are %q, want %q", got, want)
		}
	}
}

// testDeletedChild: a child that is being deleted is not applied, and is made again after its end.
func testDeletedChild(t *testing.T, s *shelf) {
	s.start(operator.Options{})
	s.create("a", "one", "x")
	s.succeeded()
	s.succeeded()
	configMaps := s.kube.CoreV1().ConfigMaps(s.namespace)
	if _, err := configMaps.Patch(t.Context(), "x", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/test"]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded()
	s.sent()
	if err := configMaps.Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(e ended) string {
		if got := ready(s.get("a")); !strings.Contains(got, "False Progressing at 1: 0 of 1 objects are ready; ") {
			return got
		}
		return ""
	})
	for _, request := range s.sent() {
		if request == "PATCH configmaps x" {
			t.Error("a child was applied while it was being deleted")
		}
	}
	if _, err := configMaps.Patch(t.Context(), "x", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(e ended) string {
		if got := ready(s.get("a")); !strings.HasPrefix(got, "True") {
			return got
		}
		return ""
	})
}

// testTimeout: the status of a call that has used up its time is written.
func testTimeout(t *testing.T, s *shelf) {
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		b.Status.URL = "http://late"
		<-ctx.Done()
		return reconcile.Result{}, context.Cause(ctx)
	}
	s.start(operator.Options{GracePeriod: 4 * time.Second})
	s.create("a", "")
	s.until(func(e ended) string {
		if e.result != "timeout" {
			return fmt.Sprint(e)
		}
		return ""
	})
	if b := s.get("a"); b.Status.URL != "http://late" {
		t.Errorf("status is %+v", b.Status)
	}
}

// testLasting: an error that lasts is shown, and forgotten after a success.
func testLasting(t *testing.T, s *shelf) {
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		if b.Spec.Text == "" {
			return reconcile.Result{RequeueAfter: 3 * time.Second}, errors.New("down")
		}
		return reconcile.Result{}, nil
	}
	s.start(operator.Options{})
	began := time.Now()
	s.create("a", "")
	s.until(func(ended) string {
		if got, want := ready(s.get("a")), "False Error at 1: down"; got != want {
			return got
		}
		return ""
	})
	if took := time.Since(began); took < 9*time.Second {
		t.Errorf("the error is shown after %v, want 10s", took)
	}
	s.edit("a", `{"spec":{"text":"up"}}`)
	s.succeeded()
	s.edit("a", `{"spec":{"text":""}}`)
	s.until(func(e ended) string {
		if got, want := ready(s.get("a")), "True Reconciled at 2: the object is reconciled"; e.err == nil || got != want {
			return got
		}
		return ""
	})
}

// testFailedWrite: a write of the status that fails is retried soon, although Reconcile asked for a late call.
func testFailedWrite(t *testing.T, s *shelf) {
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		b.Status.URL = "http://written"
		return reconcile.Result{RequeueAfter: time.Hour}, nil
	}
	var failed atomic.Bool
	s.hook(func(request string) error {
		if request == "PATCH boxes/status a" && failed.CompareAndSwap(false, true) {
			return errors.New("cut")
		}
		return nil
	})
	s.start(operator.Options{})
	s.create("a", "")
	s.until(func(ended) string {
		if got := s.get("a").Status.URL; got != "http://written" {
			return fmt.Sprintf("the URL is %q", got)
		}
		return ""
	})
	if !failed.Load() {
		t.Error("no write has failed: this test checks nothing")
	}
}

// testLiveReads: while the cache can be too old, the object and its children are read from the API server.
func testLiveReads(t *testing.T, s *shelf) {
	s.start(operator.Options{})
	s.create("a", "one", "x")
	s.succeeded()
	s.succeeded()
	s.sent()
	s.live.Store(true) // as in the first calls of a new leader
	if _, err := s.boxes.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded()
	if diff := cmp.Diff([]string{"GET boxes a", "GET configmaps x"}, s.sent()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// testUnservedReads: in a leader's term, an optional resource that is not served has no cache that can be too old, so it
// costs the calls no request.
func testUnservedReads(t *testing.T, s *shelf) {
	s.register = func(op *operator.Operator) *operator.Controller {
		op.AskEvery(20 * time.Millisecond)
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
		never := schema.GroupVersion{Group: "never.example.com", Version: "v1"}
		operator.Reads(c, never.WithResource("gadgets"), operator.Reading[*Gadget]{Optional: true})
		return c
	}
	s.start(operator.Options{LeaseNamespace: s.namespace})
	s.create("a", "one", "x") // after the Lease was taken
	s.succeeded()
	s.succeeded()
	s.sent()
	if _, err := s.boxes.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.succeeded()
	if sent := s.sent(); len(sent) > 0 {
		t.Errorf("requests %q, want none", sent)
	}
}

// A ServiceAccount is a type outside of Kubernetes, as those of custom resources are.
type ServiceAccount struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

func (a *ServiceAccount) DeepCopyObject() runtime.Object {
	c := *a
	a.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// testRules: a rule decides about children of a type that does not tell the kind, by the response and by the cache.
func testRules(t *testing.T, s *shelf) {
	s.Rules = kstatus.Rules{{Kind: "ServiceAccount"}: func(obj metav1.Object) (kstatus.State, string) {
		if obj.GetAnnotations()["open"] != "" {
			return kstatus.Ready, ""
		}
		return kstatus.Progressing, "it is closed"
	}}
	s.register = func(op *operator.Operator) *operator.Controller {
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		operator.Children[*ServiceAccount, any](c, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), nil)
		return c
	}
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		children, err := s.c.Apply(ctx, applycorev1.ServiceAccount("x", s.namespace))
		if err == nil {
			if kind := children[0].Object.(*ServiceAccount).Kind; kind != "ServiceAccount" {
				err = fmt.Errorf("the child has the kind %q", kind)
			}
		}
		return reconcile.Result{}, err
	}
	s.start(operator.Options{})
	s.create("a", "")
	until := func(want string) {
		t.Helper()
		s.until(func(e ended) string {
			if got := ready(s.get("a")); e.err != nil || got != want {
				return fmt.Sprintf("Ready is %q, want %q: %v", got, want, e.err)
			}
			return ""
		})
	}
	closed := "False Progressing at 1: 0 of 1 objects are ready; ServiceAccount " + s.namespace + "/x: it is closed"
	until(closed)
	until(closed) // from the cache
	open := []byte(`{"metadata":{"annotations":{"open":"true"}}}`)
	if _, err := s.kube.CoreV1().ServiceAccounts(s.namespace).Patch(t.Context(), "x", types.MergePatchType, open, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until("True Ready at 1: 1 of 1 objects are ready")
}

// testPhases: phases that the schema does not allow are an error of the start.
func testPhases(t *testing.T, s *shelf) {
	op, err := operator.New(testserver.Config(t), operator.Options{Name: "phases", Namespace: s.namespace})
	if err != nil {
		t.Fatal(err)
	}
	s.Phases = phases()
	s.Phases[kstatus.Failed] = "Mended"
	operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
	const want = `operator: the schema of Box does not allow the phase "Mended": add it to the enum of status.phase, [Up Coming Broken Going], or change Phases`
	if err := op.Run(testlog.New().Context(t.Context())); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("Run() = %v, want %s", err, want)
	}
}

// testDroppedErrors: if the function drops the error of Apply, the box is not Ready.
func testDroppedErrors(t *testing.T, s *shelf) {
	if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		_, _ = s.c.Apply(ctx, s.wanted(b)...)
		return reconcile.Result{}, nil
	}
	s.start(operator.Options{})
	s.create("c", "", "z")
	s.until(func(ended) string {
		if got := ready(s.get("c")); !strings.HasPrefix(got, "True Ready at 1: ") {
			return got
		}
		return ""
	})
	s.hook(func(request string) error {
		if request == "PATCH configmaps z" {
			return errors.New("lost")
		}
		return nil
	})
	s.edit("c", `{"spec":{"text":"two"}}`)
	s.until(func(ended) string {
		if got := ready(s.get("c")); !strings.HasPrefix(got, "False Progressing at 2: ") {
			return got
		}
		return ""
	})
	for name, items := range map[string][]string{"a": {"x", "theirs"}, "b": {"y", "y"}} {
		s.create(name, "", items...)
		s.until(func(ended) string {
			if got := ready(s.get(name)); !strings.HasPrefix(got, "False Progressing at 1: ") {
				return got
			}
			return ""
		})
	}
}

// testDeletedMeanwhile: an object that is deleted after the cache showed it is not reconciled.
func testDeletedMeanwhile(t *testing.T, s *shelf) {
	s.Finalizer = boxFinalizer
	s.Cleanup = func(context.Context, *Box) error { return nil }
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		t.Errorf("Reconcile got a box with the deletion %v", b.DeletionTimestamp)
		return reconcile.Result{}, nil
	}
	var once sync.Once
	s.during = func(request string) (err error) {
		if request == "GET boxes a" { // which carries the finalizer
			once.Do(func() { err = s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}) })
		}
		return err
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.until(func(e ended) string {
		if _, err := s.boxes.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(e, " the box is left: ", err)
		}
		return ""
	})
}

// testGoneMeanwhile: an object that is gone at the end of its call needs no status.
func testGoneMeanwhile(t *testing.T, s *shelf) {
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		return reconcile.Result{}, s.boxes.Delete(t.Context(), b.Name, metav1.DeleteOptions{})
	}
	s.start(operator.Options{})
	s.create("a", "")
	if e := receive(t, s.ended); e.err != nil {
		t.Errorf("the call returned %v", e.err)
	}
}

// testNoFinalizer: if the finalizer cannot be stored, the status shows why, and nothing is called.
func testNoFinalizer(t *testing.T, s *shelf) {
	s.Finalizer = boxFinalizer
	s.Cleanup = func(context.Context, *Box) error { return nil }
	s.Reconcile = func(context.Context, *Box) (reconcile.Result, error) {
		t.Error("Reconcile was called without the finalizer")
		return reconcile.Result{}, nil
	}
	s.during = func(request string) error {
		if request == "PATCH boxes a" {
			return apierrors.NewForbidden(boxVersion.WithResource("boxes").GroupResource(), "a", errors.New("no role"))
		}
		return nil
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.until(func(e ended) string {
		if got := ready(s.get("a")); e.result != "forbidden" || !strings.HasPrefix(got, "False Forbidden at 1: finalizer box.example.com/lid: add: ") {
			return fmt.Sprint(e, got)
		}
		return ""
	})
}

// testReadOnly: the status of another controller's objects is not written.
func testReadOnly(t *testing.T, s *shelf) {
	s.ReadOnly = true
	s.Reconcile = func(_ context.Context, b *Box) (reconcile.Result, error) {
		if b.Spec.Text != "" {
			b.Status.URL = "http://mine"
		}
		return reconcile.Result{}, nil
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.succeeded()
	s.edit("a", `{"spec":{"text":"wrong"}}`)
	s.until(func(e ended) string {
		if e.result != "terminal" || !strings.Contains(e.err.Error(), "operator: Reconcile changed the status of its copy, and ReadOnly is set") {
			return fmt.Sprint(e)
		}
		return ""
	})
	if b := s.get("a"); b.Status.URL != "" || ready(b) != "none" || len(s.sent()) > 0 {
		t.Errorf("status is %+v", b.Status)
	}
}

// testPrune: children that the call does not name are deleted, and nothing else.
func testPrune(t *testing.T, s *shelf) {
	s.Prune = true
	s.start(operator.Options{})
	s.create("other", "", "o")
	s.create("a", "", "x", "y", "z")
	configMaps := s.kube.CoreV1().ConfigMaps(s.namespace)
	if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	left := func() (names []string) {
		all, err := configMaps.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range all.Items {
			names = append(names, x.Name)
		}
		return names
	}
	s.until(func(ended) string {
		return cmp.Diff([]string{"o", "theirs", "x", "y", "z"}, left())
	})
	s.edit("a", `{"spec":{"items":["y"]}}`)
	s.until(func(ended) string { return cmp.Diff([]string{"o", "theirs", "y"}, left()) })
	for _, want := range []string{"GET boxes a", "DELETE configmaps x", "DELETE configmaps z"} {
		if n := strings.Count(strings.Join(s.sentSoFar(), "\n"), want); n != 1 {
			t.Errorf("%d times %s, want 1", n, want)
		}
	}
}

// testFormerManager: a field of a child that an earlier version of the program wrote, or applied under another name, goes
// when it is no longer applied. Former can also have the present name.
func testFormerManager(t *testing.T, s *shelf) {
	s.Former = []string{"manager", "old-shelf", "shelf"}
	configMaps := s.kube.CoreV1().ConfigMaps(s.namespace)
	s.register = func(op *operator.Operator) *operator.Controller {
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
		return c
	}
	b := s.create("a", "one", "x")
	former := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"old": "yes"}}, Data: map[string]string{"text": "one", "old": "yes"}}
	former.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(b, boxVersion.WithKind("Box"))}
	if _, err := configMaps.Create(t.Context(), former, metav1.CreateOptions{FieldManager: "manager"}); err != nil {
		t.Fatal(err)
	}
	applied := applycorev1.ConfigMap("x", s.namespace).WithData(map[string]string{"text": "one", "applied": "yes"})
	if _, err := configMaps.Apply(t.Context(), applied, metav1.ApplyOptions{FieldManager: "old-shelf", Force: true}); err != nil {
		t.Fatal(err)
	}
	s.start(operator.Options{})
	s.succeeded()
	x, err := configMaps.Get(t.Context(), "x", metav1.GetOptions{})
	if err != nil || len(x.Data) != 1 || len(x.Labels) != 0 {
		t.Errorf("x has the data %v and the labels %v, %v", x.Data, x.Labels, err)
	}
	s.succeeded()
	s.sent()
	s.edit("a", `{"metadata":{"labels":{"a":"b"}}}`)
	s.succeeded()
	if sent := s.sent(); len(sent) > 0 {
		t.Errorf("requests %q after it, want none", sent)
	}
}

// testPruneWaits: a call of a new leader whose Reader can be older than the children prunes nothing, and comes again.
func testPruneWaits(t *testing.T, s *shelf) {
	s.Prune = true
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		_, err := s.items.List(ctx, s.namespace, labels.Everything())
		if err == nil {
			_, err = s.c.Apply(ctx, s.wanted(b)...)
		}
		return reconcile.Result{}, err
	}
	s.start(operator.Options{})
	s.create("a", "one", "x", "y")
	s.succeeded()
	s.live.Store(true)
	s.edit("a", `{"spec":{"items":["y"]}}`)
	s.until(func(e ended) string {
		if e.result != "requeue" {
			return fmt.Sprint(e)
		}
		return ""
	})
	if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "x", metav1.GetOptions{}); err != nil {
		t.Errorf("x was pruned: %v", err)
	}
	s.live.Store(false)
	s.edit("a", `{"spec":{"text":"two"}}`)
	s.until(func(ended) string {
		if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint("x is not pruned: ", err)
		}
		return ""
	})
}

// testPruneRefused: a child that may not be deleted does not keep the others.
func testPruneRefused(t *testing.T, s *shelf) {
	s.Prune = true
	s.start(operator.Options{})
	s.create("a", "one", "x", "y", "z")
	s.succeeded()
	s.hook(func(request string) error {
		if request == "DELETE configmaps x" {
			return errors.New("refused by a policy")
		}
		return nil
	})
	s.edit("a", `{"spec":{"items":["y"]}}`)
	s.until(func(e ended) string {
		if e.err == nil || !strings.Contains(e.err.Error(), "refused by a policy") {
			return fmt.Sprint(e)
		}
		return ""
	})
	if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "z", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("z is not pruned: %v", err)
	}
}

// sentSoFar returns the requests, and keeps them.
func (s *shelf) sentSoFar() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

// testNoPrune: whatever may be a mistake deletes nothing.
func testNoPrune(t *testing.T, s *shelf) {
	s.Prune = true
	apply := func(ctx context.Context, b *Box) error {
		_, err := s.c.Apply(ctx, s.wanted(b)...)
		return err
	}
	mistakes := map[string]func(ctx context.Context, b *Box) error{
		"an error": func(ctx context.Context, b *Box) error { return errors.Join(apply(ctx, b), errors.New("wrong")) },
		"no child": func(ctx context.Context, _ *Box) error { _, err := s.c.Apply(ctx); return err },
		"no Apply": func(context.Context, *Box) error { return nil },
		"an invalid child": func(ctx context.Context, b *Box) error {
			err := apply(ctx, b)
			_, _ = s.c.Apply(ctx, newItem("default", "z", ""))
			return err
		},
		"a panic": func(ctx context.Context, b *Box) error { _ = apply(ctx, b); panic("a test") },
		"a rejected child": func(ctx context.Context, b *Box) error {
			err := apply(ctx, b)
			_, _ = s.c.Apply(ctx, newItem(s.namespace, "theirs", ""))
			return err
		},
	}
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		if mistake := mistakes[b.Spec.Text]; mistake != nil {
			return reconcile.Result{}, mistake(ctx, b)
		}
		return reconcile.Result{}, apply(ctx, b)
	}
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}
	if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.start(operator.Options{})
	s.create("a", "", "x", "y")
	s.succeeded()
	s.succeeded()
	for name := range mistakes {
		s.edit("a", fmt.Sprintf(`{"spec":{"text":%q,"items":["x"]}}`, name))
		s.until(func(ended) string { return "" })
		s.edit("a", `{"spec":{"text":"","items":["x","y"]}}`)
		s.until(func(e ended) string {
			if b := s.get("a"); b.Status.ObservedGeneration != b.Generation {
				return fmt.Sprint(e, b.Status)
			}
			return ""
		})
		for len(s.ended) > 0 {
			<-s.ended
		}
		for _, request := range s.sent() {
			if strings.HasPrefix(request, "DELETE") {
				t.Errorf("after %s: %s", name, request)
			}
		}
	}
}

// testStaleOwner: an old spec deletes nothing that a newer one names.
func testStaleOwner(t *testing.T, s *shelf) {
	s.Prune = true
	s.start(operator.Options{})
	s.create("a", "", "x", "y")
	s.succeeded()
	s.succeeded()
	edited := false
	s.hook(func(request string) error {
		if request == "GET boxes a" && !edited {
			edited = true
			s.edit("a", `{"spec":{"items":["x","y"]}}`)
		}
		return nil
	})
	s.edit("a", `{"spec":{"items":["x"]}}`)
	s.until(func(e ended) string {
		if e.result != "stale" {
			return fmt.Sprint(e)
		}
		return ""
	})
	s.until(func(e ended) string {
		if b := s.get("a"); b.Status.ObservedGeneration != 3 {
			return fmt.Sprint(e, b.Status)
		}
		return ""
	})
	for _, request := range s.sent() {
		if strings.HasPrefix(request, "DELETE") {
			t.Error(request)
		}
	}
}

// testElsewhere: children of another namespace.
func testElsewhere(t *testing.T) {
	s := newShelf(t)
	other := testserver.Namespace(t)
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		_, err := s.c.Apply(ctx, newItem(other, "far", b.Spec.Text), newItem(s.namespace, "near", ""))
		return reconcile.Result{}, err
	}
	s.Finalizer, s.Elsewhere = boxFinalizer, true
	s.start(operator.Options{Namespace: "*"})
	s.create("a", "one")
	s.succeeded()
	far, err := s.kube.CoreV1().ConfigMaps(other).Get(t.Context(), "far", metav1.GetOptions{})
	if err != nil || len(far.OwnerReferences) > 0 || far.Data["text"] != "one" {
		t.Fatalf("the child is %v, %v", far, err)
	}
	// Its event runs the owner.
	s.succeeded()
	if _, err := s.kube.CoreV1().ConfigMaps(other).Patch(t.Context(), "far", types.MergePatchType, []byte(`{"data":{"text":"theirs"},"metadata":{"finalizers":["example.com/test"]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(e ended) string {
		if far, err := s.kube.CoreV1().ConfigMaps(other).Get(t.Context(), "far", metav1.GetOptions{}); err != nil || far.Data["text"] != "one" {
			return fmt.Sprint(e, far)
		}
		return ""
	})
	if err := s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(e ended) string {
		if e.result != "requeue" {
			return fmt.Sprint(e)
		}
		return ""
	})
	if b := s.get("a"); !finalizer.Has(b, boxFinalizer) || !strings.Contains(ready(b), "1 children in other namespaces or of the cluster are left: ConfigMap "+other+"/far") {
		t.Errorf("Ready is %q", ready(b))
	}
	const blocked = `controller_finalizer_blocked_objects{finalizer="` + boxFinalizer + `",step="children"} 1`
	if body := newResponse(t, s.op.Metrics.Handler(), "/metrics"); !strings.Contains(body, blocked) {
		t.Errorf("/metrics lacks %s", blocked)
	}
	if _, err := s.kube.CoreV1().ConfigMaps(other).Patch(t.Context(), "far", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(e ended) string {
		if _, err := s.boxes.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(e, " the box is left: ", err)
		}
		return ""
	})
}
