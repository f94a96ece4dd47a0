package finalizer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testcost"
)

// listing is a client of children that are all there is.
type listing struct {
	list corev1.ConfigMapList
	err  error
}

func (l *listing) List(context.Context, metav1.ListOptions) (*corev1.ConfigMapList, error) {
	return &l.list, nil
}
func (l *listing) Delete(context.Context, string, metav1.DeleteOptions) error { return l.err }

// Whatever finalizers, children and errors hold that the API server can store or send,
// nothing panics, the condition is valid, the finalizers of others stay, and nothing
// takes more than linear time and memory.
//
// Proves F2.
func FuzzHostile(f *testing.F) {
	for _, word := range []string{name, "x/1", "a\x00b", "\x1b[2J\r\n", "\u2028", "\xff", "", "~1/~0", `"`, strings.Repeat("z", 1000)} {
		f.Add(word, "x/2", uint16(1))
		f.Add(word, "x/2", uint16(3000))
	}
	f.Fuzz(func(t *testing.T, word, other string, repeat uint16) {
		n := min(int(repeat), testcost.Object/(len(word)+20))
		size := n*(len(word)+20) + len(other) + 1000
		if utf8.ValidString(word) && utf8.ValidString(other) {
			list := append(slices.Repeat([]string{word}, n), other, name)
			obj := object("a", false, list...)
			testcost.Cheap(t, "the finalizers", func() { _, _ = json.Marshal(obj) }, func() {
				for _, c := range []*answering{{object: obj}, {err: failedPatch(errors.New(word))}, {err: apierrors.NewConflict(configMaps, "one", errors.New(word))}, {}} {
					_, _ = finalizer.Add(t.Context(), c, object("a", false, list[:n]...), name)
					_, _ = finalizer.Remove(t.Context(), c, obj, name)
				}
				sent := &sending{}
				_, _ = finalizer.Remove(t.Context(), sent, obj, name)
				if len(sent.patch) > 2*size+1000 || len(sent.patch) == 0 {
					t.Errorf("a patch of %d bytes for a list of %d", len(sent.patch), size)
				}
			})
		}
		n /= 3 // the children and both texts together have the size of an object
		children := &listing{err: errors.New(word)}
		for range n {
			children.list.Items = append(children.list.Items, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: word, UID: types.UID(other), ResourceVersion: word}})
		}
		deleting := object("a", true, name)
		plan := finalizer.Plan[*corev1.ConfigMap]{Client: &answering{object: deleting}, Steps: []finalizer.Step[*corev1.ConfigMap]{
			{Name: "children", AtOnce: true, Run: func(ctx context.Context, _ held) (finalizer.Progress, error) {
				return finalizer.DeleteAll(ctx, children, metav1.ListOptions{}, func(metav1.Object) bool { return true }, metav1.DeletePropagationBackground)
			}},
			{Name: "text", AtOnce: true, Run: func(context.Context, held) (finalizer.Progress, error) {
				return finalizer.Progress{Message: strings.Repeat(word, n)}, nil
			}},
			{Name: "error", AtOnce: true, Run: func(context.Context, held) (finalizer.Progress, error) {
				return finalizer.Progress{}, fmt.Errorf("%s%w", strings.Repeat(word, n), errBoom)
			}},
		}}
		testcost.Cheap(t, "a pass", func() { _, _ = json.Marshal(children.list); _, _ = json.Marshal(strings.Repeat(word, n)) }, func() {
			_, _, err := finalizer.Ensure(t.Context(), plan.Client, deleting, name, plan.Run)
			blocked, ok := errors.AsType[*finalizer.BlockedError](err)
			if !ok {
				t.Fatalf("error %.200v, want a BlockedError", err)
			}
			c := blocked.Condition(1)
			if errs := validation.ValidateCondition(c, field.NewPath("condition")); len(errs) > 0 || !utf8.ValidString(c.Message) {
				t.Errorf("the condition is not valid: %.300v", errs)
			}
		})
	})
}

// sending keeps the last patch.
type sending struct{ patch []byte }

func (s *sending) Patch(_ context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.ConfigMap, error) {
	s.patch = data
	return object("a", false), nil
}

// A 409 that no failed test explains proves nothing: the plan is not over and the
// finalizer stays.
//
// Proves F5, F6.
func TestConflictIsNotGone(t *testing.T) {
	conflict := apierrors.NewConflict(configMaps, "one", errBoom)
	c := &answering{err: conflict}
	plan := finalizer.Plan[*corev1.ConfigMap]{Client: c, Steps: []finalizer.Step[*corev1.ConfigMap]{{
		Name: "one", Run: func(context.Context, held) (finalizer.Progress, error) { return finalizer.Progress{Done: true}, nil },
	}}}
	_, _, err := finalizer.Ensure(t.Context(), c, object("a", true, name), name, plan.Run)
	if !apierrors.IsConflict(err) || c.calls != 1 {
		t.Errorf("error %v after %d requests, want the conflict after one", err, c.calls)
	}
	if _, err := finalizer.Remove(t.Context(), c, object("a", true, name), name); !apierrors.IsConflict(err) || c.calls != 2 {
		t.Errorf("Remove: error %v after %d requests, want the conflict after one more", err, c.calls)
	}
}

// The API server refuses a patch of 10,000 operations. A finalizer that somebody stored
// more often than that is removed all the same.
//
// Proves F2, F5.
func TestServerManyCopies(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	list := append(slices.Repeat([]string{name}, 12_000), "x/1")
	s.create(t, "many", list...)
	if err := s.Delete(t.Context(), "many", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	obj := s.get(t, "many")
	if len(obj.Finalizers) != len(list) {
		t.Fatalf("%d finalizers are stored, want %d", len(obj.Finalizers), len(list))
	}
	if _, _, err := finalizer.Ensure(t.Context(), s.ConfigMapInterface, obj, name, func(context.Context, held) error { return nil }); err != nil {
		t.Fatalf("Ensure: %.300v", err)
	}
	if got := s.get(t, "many").Finalizers; !slices.Equal(got, []string{"x/1"}) {
		t.Errorf("%d finalizers are left, want x/1", len(got))
	}
}
