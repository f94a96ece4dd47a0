package finalizer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/calls"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type held = finalizer.Held[*corev1.ConfigMap]

// TestEnsure proves F1, F5.
func TestEnsure(t *testing.T) {
	tests := []struct {
		name       string
		obj        *corev1.ConfigMap // what the caller has
		live       *corev1.ConfigMap // what the server has
		cleanup    error
		wantLive   bool
		wantHeld   bool
		wantClean  int
		wantStored []string // nil: the object is gone
		wantCalls  int
		wantErr    error
	}{
		{
			name: "live without finalizer", obj: object("a", false), live: object("a", false),
			wantLive: true, wantHeld: true, wantStored: []string{name}, wantCalls: 1,
		},
		{
			name: "live, a list that is empty and not nil", obj: object("a", false, []string{}...), live: object("a", false),
			wantLive: true, wantHeld: true, wantStored: []string{name}, wantCalls: 1,
		},
		{
			name: "live with the finalizers of others", obj: object("a", false, "x/1", "x/2"), live: object("a", false, "x/1", "x/2"),
			wantLive: true, wantHeld: true, wantStored: []string{"x/1", "x/2", name}, wantCalls: 1,
		},
		{
			name: "live with finalizer", obj: object("a", false, name), live: object("a", false, name),
			wantLive: true, wantHeld: true, wantStored: []string{name}, wantCalls: 0,
		},
		{
			name: "deleting with finalizer", obj: object("a", true, "x/1", name), live: object("a", true, "x/1", name),
			wantClean: 1, wantStored: []string{"x/1"}, wantCalls: 1,
		},
		{
			name: "deleting with the last finalizer", obj: object("a", true, name), live: object("a", true, name),
			wantClean: 1, wantStored: nil, wantCalls: 1,
		},
		{
			name: "deleting, cleanup fails", obj: object("a", true, name), live: object("a", true, name), cleanup: errBoom,
			wantClean: 1, wantStored: []string{name}, wantCalls: 0, wantErr: errBoom,
		},
		{
			name: "deleting without finalizer", obj: object("a", true, "x/1"), live: object("a", true, "x/1"),
			wantStored: []string{"x/1"}, wantCalls: 0,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.obj.DeepCopy()
			m := &model{live: tt.live}
			cleaned := 0
			h, live, err := finalizer.Ensure(t.Context(), m, tt.obj, name, func(_ context.Context, h held) error {
				cleaned++
				if !h.Valid() || h.Object() != tt.obj {
					t.Errorf("cleanup got Valid() = %v, Object() = %p, want a valid one of %p", h.Valid(), h.Object(), tt.obj)
				}
				return tt.cleanup
			})
			if !errors.Is(err, tt.wantErr) || (err != nil) != (tt.wantErr != nil) {
				t.Errorf("error = %v, want %v", err, tt.wantErr)
			}
			if live != tt.wantLive || h.Valid() != tt.wantHeld || cleaned != tt.wantClean || m.patches != tt.wantCalls {
				t.Errorf("live = %v, held = %v, cleanups = %d, patches = %d; want %v, %v, %d, %d",
					live, h.Valid(), cleaned, m.patches, tt.wantLive, tt.wantHeld, tt.wantClean, tt.wantCalls)
			}
			if h.Valid() && !finalizer.Has(h.Object(), name) {
				t.Errorf("Held of an object with finalizers %q", h.Object().Finalizers)
			}
			if got := stored(m); !slices.Equal(got, tt.wantStored) {
				t.Errorf("stored finalizers = %q, want %q", got, tt.wantStored)
			}
			if diff := cmp.Diff(before, tt.obj); diff != "" {
				t.Errorf("Ensure changed the caller's object (-before +after):\n%s", diff)
			}
		})
	}
}

func stored(m *model) []string {
	if m.live == nil {
		return nil
	}
	return m.live.Finalizers
}

// A crash of cleanup must leave the finalizer, as its error does.
//
// Proves F5.
func TestEnsurePanickingCleanup(t *testing.T) {
	obj := object("a", true, name)
	m := &model{live: obj.DeepCopy()}
	var noted objectsOf
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v, want the panic of cleanup", r)
			}
		}()
		finalizer.Ensure(context.WithValue(t.Context(), calls.Metrics{}, &noted), m, obj, name, func(context.Context, held) error { panic("boom") })
	}()
	if want := []string{"a [cleanup]"}; !slices.Equal(noted.blocked, want) {
		t.Errorf("the metrics got %q, want %q", noted.blocked, want)
	}
	if got := stored(m); !slices.Equal(got, []string{name}) || m.patches != 0 {
		t.Errorf("stored finalizers = %q after %d patches, want the finalizer and none", got, m.patches)
	}
}

// Errors name the finalizer and the step, and keep their cause.
func TestErrors(t *testing.T) {
	noop := func(context.Context, held) error { return nil }
	forbidden := apierrors.NewForbidden(configMaps, "one", errBoom)
	tests := []struct {
		name string
		call func() error
		text []string
		is   func(error) bool
	}{
		{
			name: "add", text: []string{name, "add"}, is: apierrors.IsForbidden,
			call: func() error {
				_, _, err := finalizer.Ensure(t.Context(), &answering{err: forbidden}, object("a", false), name, noop)
				return err
			},
		},
		{
			name: "object gone before the finalizer is stored", text: []string{name, "add"}, is: apierrors.IsNotFound,
			call: func() error {
				_, _, err := finalizer.Ensure(t.Context(), &model{}, object("a", false), name, noop)
				return err
			},
		},
		{
			name: "remove", text: []string{name, "remove"}, is: apierrors.IsForbidden,
			call: func() error {
				_, _, err := finalizer.Ensure(t.Context(), &answering{err: forbidden}, object("a", true, name), name, noop)
				return err
			},
		},
		{
			name: "cleanup", text: []string{name, "cleanup"}, is: apierrors.IsForbidden,
			call: func() error {
				_, _, err := finalizer.Ensure(t.Context(), &model{}, object("a", true, name), name, func(context.Context, held) error { return forbidden })
				return err
			},
		},
		{
			name: "add while deleting", text: []string{name, "add", "is being deleted"},
			call: func() error {
				_, err := finalizer.Add(t.Context(), &answering{}, object("a", true), name)
				return err
			},
		},
		{
			name: "a webhook takes it out again", text: []string{name, "add", "webhook"},
			call: func() error {
				_, err := finalizer.Add(t.Context(), &answering{object: object("a", false)}, object("a", false), name)
				return err
			},
		},
		{
			name: "add without an answer", text: []string{name, "add", "neither an object nor an error"},
			call: func() error {
				_, err := finalizer.Add(t.Context(), &answering{}, object("a", false), name)
				return err
			},
		},
		{
			name: "remove without an answer", text: []string{name, "remove", "neither an object nor an error"},
			call: func() error {
				_, err := finalizer.Remove(t.Context(), &answering{}, object("a", true, name), name)
				return err
			},
		},
		{
			name: "look of a plan without an answer", text: []string{name, "cleanup", "live object", "neither an object nor an error"},
			call: func() error {
				p := plan{Client: &answering{}, Steps: []step{{Name: "a", Run: says(done, nil)}}}
				_, _, err := finalizer.Ensure(t.Context(), &answering{}, object("a", true, name), name, p.Run)
				return err
			},
		},
		{
			name: "nil cleanup", text: []string{name, "cleanup is nil"},
			call: func() error {
				_, _, err := finalizer.Ensure(t.Context(), &answering{object: object("a", false, name)}, object("a", false), name, nil)
				return err
			},
		},
		{
			name: "no uid", text: []string{name, `"one"`, "metadata.uid"},
			call: func() error {
				_, _, err := finalizer.Ensure(t.Context(), &answering{object: object("", false, name)}, object("", false), name, noop)
				return err
			},
		},
		{
			name: "no uid, remove", text: []string{name, `"one"`, "metadata.uid"},
			call: func() error {
				_, err := finalizer.Remove(t.Context(), &answering{object: object("", false)}, object("", false, name), name)
				return err
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.call()
			if err == nil {
				t.Fatal("error = nil")
			}
			for _, text := range tt.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not contain %q", err, text)
				}
			}
			if tt.is != nil && !tt.is(err) {
				t.Errorf("error %q lost its cause", err)
			}
		})
	}
}

// Add takes each name that the API server accepts, and Remove any name that the object
// carries.
// TestServerNames compares with the API server.
func TestNames(t *testing.T) {
	tests := []struct {
		finalizer string
		valid     bool
		carried   bool // whether Add and Ensure accept it on an object that carries it
	}{
		{finalizer: "example.com/bucket", valid: true, carried: true},
		{finalizer: "widgets.example.com/Bucket_1.x", valid: true, carried: true},
		{finalizer: "bucket", valid: true, carried: true},
		{finalizer: "cluster.cluster.x-k8s.io", valid: true, carried: true},
		{finalizer: "foregroundDeletion"},
		{finalizer: "orphan"},
		{finalizer: "/bucket", carried: true},
		{finalizer: "example.com/", carried: true},
		{finalizer: "example.com/a/b", carried: true},
		{finalizer: "Example.com/bucket", carried: true},
		{finalizer: "example.com/buck et", carried: true},
		{finalizer: "example.com/" + strings.Repeat("a", 64), carried: true},
		{finalizer: strings.Repeat("a", 254) + "/bucket", carried: true},
	}
	for _, tt := range tests {
		t.Run(tt.finalizer, func(t *testing.T) {
			m := &model{live: object("a", false)}
			if _, err := finalizer.Add(t.Context(), m, m.live.DeepCopy(), tt.finalizer); (err == nil) != tt.valid {
				t.Errorf("Add error = %v, want valid = %v", err, tt.valid)
			}
			_, missing := finalizer.Remove(t.Context(), m, object("a", false), tt.finalizer)
			if wrong := !tt.valid && tt.carried; (missing != nil) != wrong {
				t.Errorf("Remove from an object without it: error = %v, want one: %v", missing, wrong)
			}
			if !tt.valid && m.patches > 0 {
				t.Errorf("%d patches with an invalid name", m.patches)
			}
			if h, err := finalizer.Add(t.Context(), m, object("a", false, tt.finalizer), tt.finalizer); (err == nil) != tt.carried || h.Valid() != tt.carried {
				t.Errorf("Add to an object that carries it: error = %v, want valid = %v", err, tt.carried)
			}
			_, _, err := finalizer.Ensure(t.Context(), m, object("a", true, tt.finalizer), tt.finalizer, func(context.Context, held) error { return errBoom })
			if errors.Is(err, errBoom) != tt.carried {
				t.Errorf("Ensure of a deleted object that carries it: error = %v, want the cleanup's: %v", err, tt.carried)
			}
			m = &model{live: object("a", false, "x/1", tt.finalizer)}
			if removed, err := finalizer.Remove(t.Context(), m, m.live.DeepCopy(), tt.finalizer); err != nil || finalizer.Has(removed, tt.finalizer) || !finalizer.Has(removed, "x/1") {
				t.Errorf("Remove: %v, error = %v", removed, err)
			}
		})
	}
}

// TestAddToADeletedObject: an object in deletion that carries the finalizer is guarded by it, without
// a request. One that does not carry it gets no finalizer any more.
func TestAddToADeletedObject(t *testing.T) {
	m := &model{live: object("a", true, name)}
	if h, err := finalizer.Add(t.Context(), m, m.live.DeepCopy(), name); err != nil || !h.Valid() {
		t.Errorf("with the finalizer: held %t, error %v, want a valid Held", h.Valid(), err)
	}
	m.live = object("a", true, "x/1")
	if h, err := finalizer.Add(t.Context(), m, m.live.DeepCopy(), name); err == nil || h.Valid() {
		t.Errorf("without it: held %t, error %v, want an error", h.Valid(), err)
	}
}

// TestAddToAGoneObject: the error is a NotFound, and that of a stale object, which is no failure of the loop: an object
// that is deleted right after its creation is no fault of anybody.
func TestAddToAGoneObject(t *testing.T) {
	obj := object("a", false)
	gone := apierrors.NewNotFound(corev1.Resource("configmaps"), obj.Name)
	m := patcher(func() (*corev1.ConfigMap, error) { return nil, gone })
	_, added := finalizer.Add(t.Context(), m, obj, name)
	_, _, ensured := finalizer.Ensure(t.Context(), m, obj, name, func(context.Context, finalizer.Held[*corev1.ConfigMap]) error { return nil })
	for _, err := range []error{added, ensured} {
		if stale, ok := errors.AsType[interface {
			error
			Stale() bool
		}](err); !apierrors.IsNotFound(err) || !ok || !stale.Stale() {
			t.Errorf("error = %v, want a NotFound that is stale", err)
		}
	}
}

type patcher func() (*corev1.ConfigMap, error)

func (p patcher) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.ConfigMap, error) {
	return p()
}

// TestAddStale proves F3, F4, F6.
func TestAddStale(t *testing.T) {
	tests := []struct {
		name string
		obj  *corev1.ConfigMap
		live *corev1.ConfigMap
	}{
		{name: "copy empty, live not", obj: object("a", false), live: object("a", false, "x/1")},
		{name: "live empty, copy not", obj: object("a", false, "x/1"), live: object("a", false)},
		{name: "live longer", obj: object("a", false, "x/1"), live: object("a", false, "x/1", "x/2")},
		{name: "live has it already", obj: object("a", false), live: object("a", false, name)},
		{name: "other order", obj: object("a", false, "x/1", "x/2"), live: object("a", false, "x/2", "x/1")},
		{name: "live is deleting", obj: object("a", false), live: object("a", true)},
		{name: "live is deleting, same list", obj: object("a", false, "x/1"), live: object("a", true, "x/1")},
		{name: "another object", obj: object("a", false), live: object("b", false)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := tt.live.DeepCopy()
			m := &model{live: tt.live}
			h, err := finalizer.Add(t.Context(), m, tt.obj, name)
			if !apierrors.IsConflict(err) {
				t.Errorf("error = %v, want a Conflict", err)
			}
			if apierrors.IsInvalid(err) {
				t.Errorf("IsInvalid is true for %v: a conflict has one class", err)
			}
			if !strings.Contains(err.Error(), "server rejected our request") {
				t.Errorf("error %q does not wrap the server's answer", err)
			}
			if h.Valid() || h.Object() != nil {
				t.Errorf("held = %+v, want the zero Held", h)
			}
			if diff := cmp.Diff(want, m.live); diff != "" {
				t.Errorf("the live object changed (-want +got):\n%s", diff)
			}
		})
	}
}

// Not every 422 is a failed test. One that is taken for it would be retried
// quietly for ever.
//
// Proves F6.
func TestGenuineInvalid(t *testing.T) {
	status := func(details *metav1.StatusDetails, message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid, Details: details, Message: message}}
	}
	tests := []struct {
		name string
		err  error
	}{
		{name: "validation", err: apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "one", field.ErrorList{field.Required(field.NewPath("data"), "")})},
		{name: "webhook without details", err: status(nil, `admission webhook "w" denied the request: no`)},
		{name: "policy", err: status(&metav1.StatusDetails{Kind: "configmaps", Name: "one"}, `configmaps "one" is forbidden: ValidatingAdmissionPolicy 'p' denied request`)},
		{name: "generic message with a name", err: status(&metav1.StatusDetails{Name: "one"}, "the server rejected our request due to an error in our request")},
		{name: "bad request", err: apierrors.NewBadRequest("no")},
		{name: "not of the API", err: errBoom},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &answering{err: tt.err}
			_, err := finalizer.Add(t.Context(), c, object("a", false), name)
			if !errors.Is(err, tt.err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) != apierrors.IsInvalid(tt.err) {
				t.Errorf("Add error = %v, want %v", err, tt.err)
			}
			_, err = finalizer.Remove(t.Context(), c, object("a", false, name), name)
			if !errors.Is(err, tt.err) || apierrors.IsConflict(err) || c.calls != 2 {
				t.Errorf("Remove error = %v after %d calls in all, want %v and 2", err, c.calls, tt.err)
			}
		})
	}
}

// TestRemove proves F4.
func TestRemove(t *testing.T) {
	tests := []struct {
		name         string
		obj          *corev1.ConfigMap
		live         *corev1.ConfigMap
		before       func(*model)
		want         []string // finalizers of the object returned
		wantNone     bool     // the zero T is returned
		wantStored   []string
		wantCalls    int
		wantConflict bool
	}{
		{name: "fresh", obj: object("a", true, "x/1", name, "x/2"), live: object("a", true, "x/1", name, "x/2"), want: []string{"x/1", "x/2"}, wantStored: []string{"x/1", "x/2"}, wantCalls: 1},
		{name: "there twice", obj: object("a", true, name, "x/1", name, "x/2"), live: object("a", true, name, "x/1", name, "x/2"), want: []string{"x/1", "x/2"}, wantStored: []string{"x/1", "x/2"}, wantCalls: 1},
		{name: "not there", obj: object("a", false, "x/1"), live: object("a", false, "x/1"), want: []string{"x/1"}, wantStored: []string{"x/1"}, wantCalls: 0},
		{name: "last of a live object", obj: object("a", false, name), live: object("a", false, name), want: nil, wantStored: nil, wantCalls: 1},
		{name: "stale, others came", obj: object("a", false, name), live: object("a", false, "x/1", name), want: []string{"x/1"}, wantStored: []string{"x/1"}, wantCalls: 3},
		{name: "stale, others went", obj: object("a", true, "x/1", name), live: object("a", true, name), want: nil, wantStored: nil, wantCalls: 3},
		{name: "stale, somebody was faster", obj: object("a", true, "x/1", name), live: object("a", true, "x/1"), want: []string{"x/1"}, wantStored: []string{"x/1"}, wantCalls: 2},
		{name: "gone", obj: object("a", true, name), live: nil, wantNone: true, wantStored: nil, wantCalls: 1},
		{name: "replaced", obj: object("a", true, name), live: object("b", false, name), wantNone: true, wantStored: []string{name}, wantCalls: 2},
		{
			name: "gone before the look", obj: object("a", true, name), live: object("a", true, name, "x/1"), wantNone: true, wantStored: nil, wantCalls: 2,
			before: func(m *model) {
				if m.patches == 2 {
					m.live = nil
				}
			},
		},
		{
			name: "gone after the look", obj: object("a", true, name), live: object("a", true, name, "x/1"), wantNone: true, wantStored: nil, wantCalls: 3,
			before: func(m *model) {
				if m.patches == 3 {
					m.live = nil
				}
			},
		},
		{
			name: "the list changes all the time", obj: object("a", true, name), live: object("a", true, name), wantNone: true, wantCalls: 3, wantConflict: true,
			wantStored: []string{name, "x/1", "x/1", "x/1"},
			before:     func(m *model) { m.live.Finalizers = append(m.live.Finalizers, "x/1") },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.obj.DeepCopy()
			m := &model{live: tt.live, before: tt.before}
			got, err := finalizer.Remove(t.Context(), m, tt.obj, name)
			if apierrors.IsConflict(err) != tt.wantConflict || (err != nil) != tt.wantConflict {
				t.Fatalf("error = %v, want a Conflict: %v", err, tt.wantConflict)
			}
			if (got == nil) != tt.wantNone {
				t.Errorf("returned %v, want none: %v", got, tt.wantNone)
			}
			if got != nil && !slices.Equal(got.Finalizers, tt.want) {
				t.Errorf("returned finalizers %q, want %q", got.Finalizers, tt.want)
			}
			if !slices.Equal(stored(m), tt.wantStored) || m.patches != tt.wantCalls {
				t.Errorf("stored %q after %d patches, want %q after %d", stored(m), m.patches, tt.wantStored, tt.wantCalls)
			}
			if diff := cmp.Diff(before, tt.obj); diff != "" {
				t.Errorf("Remove changed the caller's object (-before +after):\n%s", diff)
			}
		})
	}
}

func TestZeroHeld(t *testing.T) {
	var zero held
	if zero.Valid() || zero.Object() != nil {
		t.Errorf("zero Held: Valid() = %v, Object() = %v, want false and nil", zero.Valid(), zero.Object())
	}
}
