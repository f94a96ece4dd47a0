package outcome_test

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/operator/internal/outcome"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

type phase string

type widget struct {
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   string  `json:"spec"`
	Status *status `json:"status,omitempty"`
}

type status struct {
	ObservedGeneration     int64              `json:"observedGeneration,omitempty"`
	LastHandledReconcileAt string             `json:"lastHandledReconcileAt,omitempty"`
	Phase                  phase              `json:"phase,omitempty"`
	Conditions             []metav1.Condition `json:"conditions,omitempty"`
}

type lost struct{}

func (lost) Error() string        { return "lost" }
func (lost) LeadershipLost() bool { return true }

type waiting struct{}

func (waiting) Error() string        { return "waiting" }
func (waiting) Waits() time.Duration { return time.Second }

var phases = map[kstatus.State]string{kstatus.Ready: "Up", kstatus.Progressing: "Coming", kstatus.Failed: "Broken", kstatus.Terminating: "Going"}

func condition(kind, state, reason string, generation int64, at int64) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(state), Reason: reason, ObservedGeneration: generation, LastTransitionTime: metav1.Unix(at, 0)}
}

// TestReport: what each outcome makes of a status that was Ready at generation 1.
func TestReport(t *testing.T) {
	zero := int32(0)
	coming := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Generation: 2}}
	up := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	stuck := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Generation: 2}, Spec: appsv1.DeploymentSpec{Replicas: &zero},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Conditions: []appsv1.DeploymentCondition{{Type: "Progressing", Status: "False", Reason: "ProgressDeadlineExceeded"}}},
	}
	blocked := &finalizer.BlockedError{Steps: []finalizer.BlockedStep{{Name: "s", Message: "waits"}}, Since: time.Unix(7, 0)}
	failure := errors.New(strings.Repeat("x", 2000))
	for name, tt := range map[string]struct {
		call outcome.Call
		want string // status, reason and generation of Ready, the observed generation, the phase
	}{
		"no children":       {outcome.Call{}, "True Reconciled 2 2 Up"},
		"ready":             {outcome.Call{Children: []metav1.Object{up}}, "True Ready 2 2 Up"},
		"progressing":       {outcome.Call{Children: []metav1.Object{up, coming}}, "False Progressing 2 2 Coming"},
		"failed child":      {outcome.Call{Children: []metav1.Object{stuck}}, "False Failed 2 2 Broken"},
		"unknown child":     {outcome.Call{Children: []metav1.Object{nil}}, "False Progressing 2 2 Coming"},
		"terminal":          {outcome.Call{Err: failure, Class: controllerkit.ResultTerminal}, "False Terminal 2 2 Broken"},
		"rejected":          {outcome.Call{Err: failure, Class: controllerkit.ResultRejected}, "False Rejected 2 2 Broken"},
		"forbidden":         {outcome.Call{Err: failure, Class: controllerkit.ResultForbidden}, "False Forbidden 2 2 Broken"},
		"error":             {outcome.Call{Err: failure, Class: controllerkit.ResultError}, "True Ready 1 1 Up"},
		"lasting error":     {outcome.Call{Err: failure, Class: controllerkit.ResultError, Lasting: true}, "False Error 2 2 Broken"},
		"lasting delay":     {outcome.Call{Err: failure, Class: controllerkit.ResultServerDelay, Lasting: true}, "False ServerDelay 2 2 Broken"},
		"lasting conflict":  {outcome.Call{Err: failure, Class: controllerkit.ResultConflict, Lasting: true}, "True Ready 1 1 Up"},
		"lasting stale":     {outcome.Call{Err: failure, Class: controllerkit.ResultStale, Lasting: true}, "True Ready 1 1 Up"},
		"waiting":           {outcome.Call{Err: waiting{}, Class: controllerkit.ResultError, Lasting: true}, "False Waiting 2 2 Coming"},
		"cancelled":         {outcome.Call{Err: failure, Class: controllerkit.ResultCancelled, Lasting: true}, "True Ready 1 1 Up"},
		"lost":              {outcome.Call{Err: lost{}, Class: controllerkit.ResultTerminal}, "True Ready 1 1 Up"},
		"cleaned":           {outcome.Call{Deleting: true}, "True Ready 1 1 Up"},
		"blocked":           {outcome.Call{Deleting: true, Err: blocked, Class: controllerkit.ResultError}, "False Terminating 2 2 Going"},
		"blocked twice":     {outcome.Call{Deleting: true, Err: fmt.Errorf("x: %w", errors.Join(blocked, blocked)), Class: controllerkit.ResultError}, "False Terminating 2 2 Going"},
		"blocked, fails":    {outcome.Call{Deleting: true, Err: errors.Join(blocked, failure), Class: controllerkit.ResultError}, "True Ready 1 1 Up"},
		"blocked, lasting":  {outcome.Call{Deleting: true, Err: errors.Join(blocked, failure), Class: controllerkit.ResultError, Lasting: true}, "False Error 2 2 Going"},
		"blocked, terminal": {outcome.Call{Deleting: true, Err: fmt.Errorf("%w: %w", blocked, failure), Class: controllerkit.ResultTerminal}, "False Terminal 2 2 Going"},
		"cleanup forbidden": {outcome.Call{Deleting: true, Err: failure, Class: controllerkit.ResultForbidden}, "False Forbidden 2 2 Going"},
	} {
		before := &widget{Status: &status{ObservedGeneration: 1, Phase: "Up", Conditions: []metav1.Condition{
			condition("First", "True", "F", 1, 1), condition("Ready", "True", "Ready", 1, 2), condition("Last", "True", "L", 1, 3),
		}}}
		after := &widget{Status: &status{ObservedGeneration: 1, Phase: "Up", Conditions: append([]metav1.Condition(nil), before.Status.Conditions...)}}
		outcome.Hide(after)
		if len(after.Status.Conditions) != 2 || len(before.Status.Conditions) != 3 {
			t.Fatalf("%s: Hide leaves %v of %v", name, after.Status.Conditions, before.Status.Conditions)
		}
		tt.call.Generation, tt.call.Phases = 2, phases
		if err := outcome.Report(before, after, tt.call); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := after.Status.Conditions
		if len(got) < 3 || got[0].Type != "First" || got[1].Type != "Ready" || got[2].Type != "Last" {
			t.Errorf("%s: conditions are %v, want them in their order", name, got)
			continue
		}
		if text := strings.Join([]string{string(got[1].Status), got[1].Reason, itoa(got[1].ObservedGeneration), itoa(after.Status.ObservedGeneration), string(after.Status.Phase)}, " "); text != tt.want {
			t.Errorf("%s: %s, want %s", name, text, tt.want)
		}
		if same := got[1].Status == "True"; same != (got[1].LastTransitionTime.Unix() == 2) || len(got[1].Message) > 1100 {
			t.Errorf("%s: transition at %v, message of %d bytes", name, got[1].LastTransitionTime, len(got[1].Message))
		}
		if terminating := len(got) == 4 && got[3].Type == "Terminating"; terminating != strings.HasPrefix(name, "blocked") {
			t.Errorf("%s: conditions are %v", name, got)
		}
	}
}

func itoa(n int64) string { return string(rune('0' + n)) }

// TestTerminatingMessage: the message of Terminating is as printable and as short as that of Ready, because services and
// authors of objects write it.
func TestTerminatingMessage(t *testing.T) {
	blocked := &finalizer.BlockedError{Steps: []finalizer.BlockedStep{{Name: "s", Message: "x\n\x1b[2J" + strings.Repeat("y", 1<<20)}}, Since: time.Unix(7, 0)}
	w := &widget{}
	if err := outcome.Report(&widget{}, w, outcome.Call{Deleting: true, Err: blocked}); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.Status.Conditions {
		if len(c.Message) > 1100 || !strings.HasPrefix(c.Message, `not finished: step s: x\n\x1b[2Jyyy`) {
			t.Errorf("the message of %s has %d bytes and begins with %q", c.Type, len(c.Message), c.Message[:min(40, len(c.Message))])
		}
	}
	if len(w.Status.Conditions) != 2 {
		t.Errorf("%d conditions, want Ready and Terminating", len(w.Status.Conditions))
	}
}

// TestReportOwn: what the function sets itself is kept.
func TestReportOwn(t *testing.T) {
	before := &widget{Status: &status{ObservedGeneration: 1, Conditions: []metav1.Condition{condition("Ready", "False", "Mine", 1, 2)}}}
	after := &widget{Status: &status{ObservedGeneration: 1, Conditions: before.Status.Conditions}}
	outcome.Hide(after)
	after.Status.ObservedGeneration = 7
	after.Status.Conditions = []metav1.Condition{condition("Ready", "False", "Mine", 2, 99)}
	if err := outcome.Report(before, after, outcome.Call{Generation: 2, Phases: phases}); err != nil {
		t.Fatal(err)
	}
	want := &status{ObservedGeneration: 7, Phase: "Coming", Conditions: []metav1.Condition{condition("Ready", "False", "Mine", 2, 2)}}
	if diff := cmp.Diff(want, after.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// pointers has a status whose fields are pointers and types of their own.
type pointers struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		ObservedGeneration     *int64     `json:"observedGeneration,omitempty"`
		LastHandledReconcileAt *string    `json:"lastHandledReconcileAt,omitempty"`
		Conditions             conditions `json:"conditions,omitempty"`
	} `json:"status"`
}

type conditions []metav1.Condition

// TestReportPointers: pointers are set to new values, unless the function has set them, and a list of a type of its own has Ready.
func TestReportPointers(t *testing.T) {
	before, after := &pointers{}, &pointers{}
	for generation := int64(1); generation <= 2; generation++ {
		outcome.Hide(after)
		if err := outcome.Report(before, after, outcome.Call{Generation: generation, Request: itoa(generation)}); err != nil {
			t.Fatal(err)
		}
		got := after.Status
		if !outcome.HasConditions(after) || len(got.Conditions) != 1 || got.Conditions[0].Type != "Ready" || got.Conditions[0].ObservedGeneration != generation {
			t.Errorf("conditions %v", got.Conditions)
		}
		if got.ObservedGeneration == nil || *got.ObservedGeneration != generation || got.LastHandledReconcileAt == nil || *got.LastHandledReconcileAt != itoa(generation) {
			t.Fatalf("status %+v", got)
		}
		if was := before.Status.ObservedGeneration; was != nil && *was != generation-1 {
			t.Errorf("Report has changed the status before to %d", *was)
		}
		copied := *after
		before = &copied
	}
	seven, mine := int64(7), "mine"
	after.Status.ObservedGeneration, after.Status.LastHandledReconcileAt = &seven, &mine
	if err := outcome.Report(before, after, outcome.Call{Generation: 3, Request: "3"}); err != nil || *after.Status.ObservedGeneration != 7 || *after.Status.LastHandledReconcileAt != "mine" {
		t.Errorf("what the function has set becomes %+v, %v", after.Status, err)
	}
}

// TestReportFromNil: what the function sets itself is kept if the pointer to the field, or to the status, was nil.
func TestReportFromNil(t *testing.T) {
	seven, mine := int64(7), "mine"
	after := &pointers{}
	after.Status.ObservedGeneration, after.Status.LastHandledReconcileAt = &seven, &mine
	if err := outcome.Report(&pointers{}, after, outcome.Call{Generation: 3, Request: "3"}); err != nil || *after.Status.ObservedGeneration != 7 || *after.Status.LastHandledReconcileAt != "mine" {
		t.Errorf("generation %d and request %q, %v", *after.Status.ObservedGeneration, *after.Status.LastHandledReconcileAt, err)
	}
	filled := &widget{Status: &status{ObservedGeneration: 7, LastHandledReconcileAt: "mine"}}
	if err := outcome.Report(&widget{}, filled, outcome.Call{Generation: 3, Request: "3"}); err != nil || filled.Status.ObservedGeneration != 7 || filled.Status.LastHandledReconcileAt != "mine" {
		t.Errorf("status %+v, %v", filled.Status, err)
	}
}

// TestReportShapes: objects without a status, without conditions, and with a nil status.
func TestReportShapes(t *testing.T) {
	fresh := &widget{}
	if err := outcome.Report(&widget{}, fresh, outcome.Call{Generation: 1}); err != nil || fresh.Status == nil || len(fresh.Status.Conditions) != 1 || fresh.Status.ObservedGeneration != 1 {
		t.Errorf("a nil status becomes %+v, %v", fresh.Status, err)
	}
	quiet := &widget{}
	if err := outcome.Report(&widget{}, quiet, outcome.Call{Err: errors.New("x"), Class: "error"}); err != nil || quiet.Status != nil {
		t.Errorf("a nil status becomes %+v, %v", quiet.Status, err)
	}
	cm := &corev1.ConfigMap{}
	if err := outcome.Report(&corev1.ConfigMap{}, cm, outcome.Call{}); err != nil || outcome.HasStatus(cm) || outcome.Changed(cm, &corev1.ConfigMap{}) {
		t.Errorf("a ConfigMap becomes %v, %v", cm, err)
	}
	pod, other := &corev1.Pod{}, &corev1.Pod{Status: corev1.PodStatus{Message: "m"}}
	outcome.Take(pod, other)
	if diff := cmp.Diff(other, pod, cmpopts.EquateEmpty()); diff != "" || outcome.Changed(pod, other) {
		t.Errorf("Take (-want +got):\n%s", diff)
	}
	for field, change := range map[string]func(*widget){
		"": func(w *widget) { w.Spec = "x" }, "metadata.labels": func(w *widget) { w.Labels = map[string]string{"a": "b"} },
		"metadata.finalizers": func(w *widget) { w.Finalizers = []string{"f"} }, "metadata.ownerReferences": func(w *widget) { w.OwnerReferences = []metav1.OwnerReference{{}} },
	} {
		w := &widget{}
		if change(w); outcome.Metadata(&widget{}, w) != field {
			t.Errorf("Metadata() = %q, want %q", outcome.Metadata(&widget{}, w), field)
		}
	}
}

// TestMetadata: a change of any field of the metadata is found, and copies are equal.
func TestMetadata(t *testing.T) {
	now, yes, seconds := metav1.Unix(1, 0), true, int64(3)
	full := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "n", GenerateName: "g", Namespace: "ns", UID: "u", ResourceVersion: "1", Generation: 2, CreationTimestamp: now,
			DeletionTimestamp: &now, DeletionGracePeriodSeconds: &seconds, Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
			Finalizers: []string{"f"}, OwnerReferences: []metav1.OwnerReference{{Kind: "K", Name: "o", UID: "v", Controller: &yes}},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Apply", Time: &now, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1("{}")}},
		}}
	}
	if got := outcome.Metadata(full(), full().DeepCopy()); got != "" {
		t.Errorf("Metadata() of a copy = %q", got)
	}
	typ := reflect.TypeFor[metav1.ObjectMeta]()
	for i := range typ.NumField() {
		changed := full()
		reflect.ValueOf(&changed.ObjectMeta).Elem().Field(i).SetZero()
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if name == "selfLink" { // Kubernetes no longer has it
			continue
		}
		if got := outcome.Metadata(full(), changed); got != "metadata."+name {
			t.Errorf("Metadata() without %s = %q", name, got)
		}
	}
}

func TestWrong(t *testing.T) {
	for want, wrong := range map[string]error{
		"": errors.Join(outcome.Wrong(&corev1.Pod{}, phases), outcome.Wrong(&corev1.ConfigMap{}, nil)),
		"the status of *v1.ConfigMap has no text field phase": outcome.Wrong(&corev1.ConfigMap{}, phases),
		`Phases has the state "Unknown"`:                      outcome.Wrong(&corev1.Pod{}, map[kstatus.State]string{kstatus.Unknown: "x"}),
	} {
		if (wrong == nil) != (want == "") || wrong != nil && !strings.Contains(wrong.Error(), want) {
			t.Errorf("Wrong() = %v, want %q", wrong, want)
		}
	}
}

// TestMessage: the message of Ready does not repeat the reason, and says what the API server leaves
// out.
func TestMessage(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("%w: the host is taken", reconcile.ErrRejected), "the host is taken"},
		{fmt.Errorf("the host is taken: %w", reconcile.ErrRejected), "the host is taken"},
		{fmt.Errorf("%w: the host is taken", reconcile.ErrTerminal), "the host is taken"},
		{fmt.Errorf("apply: %w", errors.New("etcdserver: request is too large")), "apply: etcdserver: request is too large: an object has at most 1.5 MiB, so divide its content among several"},
		{reconcile.ErrRejected, "reconcile: rejected"},
		{errors.New("a\x1b"), `a\x1b`},
		{&reconcile.PanicError{Value: errors.New("a\x1b")}, `a\x1b: the log has the stack`},
	} {
		w := &widget{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
		if err := outcome.Report(&widget{}, w, outcome.Call{Generation: 1, Err: tt.err, Class: controllerkit.ResultRejected}); err != nil {
			t.Fatal(err)
		}
		if got := w.Status.Conditions[0].Message; got != tt.want {
			t.Errorf("message of %q = %q, want %q", tt.err, got, tt.want)
		}
	}
}

func mistaken() { panic("a test") }

// TestPanics: a panic is reported before it goes on, with its stack. A return and runtime.Goexit are not.
func TestPanics(t *testing.T) {
	var reported []string
	report := func(err error) { reported = append(reported, err.Error()) }
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer outcome.Panics(report)
		runtime.Goexit()
	}()
	<-done
	func() { defer outcome.Panics(report) }()
	if len(reported) > 0 {
		t.Errorf("without a panic, %q was reported", reported)
	}
	var value any
	var stack string
	func() {
		defer func() { value, stack = recover(), string(debug.Stack()) }()
		defer outcome.Panics(report)
		mistaken()
	}()
	if want := []string{"reconcile: panic: a test"}; value != "a test" || !slices.Equal(reported, want) || !strings.Contains(stack, "outcome_test.mistaken") {
		t.Errorf("%q was reported, and then %v, with the stack\n%s", reported, value, stack)
	}
}
