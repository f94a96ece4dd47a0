package finalizer_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// TestLiveRead tests that if consistency.LiveRead is true, Ensure trusts no cached
// finalizer: the API server confirms it first.
func TestLiveRead(t *testing.T) {
	for _, tc := range []struct {
		what     string
		copy     *corev1.ConfigMap
		server   *corev1.ConfigMap
		live     bool
		conflict bool
		gone     bool
		patches  int
	}{
		{"the finalizer is stored", object("u", false, name), object("u", false, name), true, false, false, 1},
		{"among others", object("u", false, "example.com/other", name), object("u", false, "example.com/other", name), true, false, false, 1},
		{"removed", object("u", false, name), object("u", false), false, true, false, 1},
		{"the list changed", object("u", false, name), object("u", false, name, "example.com/other"), false, true, false, 1},
		{"being deleted", object("u", false, name), object("u", true, name), false, true, false, 1},
		{"replaced", object("u", false, name), object("v", false, name), false, true, false, 1},
		{"gone", object("u", false, name), nil, false, false, true, 1},
		{"not stored yet", object("u", false), object("u", false), true, false, false, 1},
		{"a deleted copy", object("u", true, name), nil, false, false, false, 1},
		{"a deleted copy, replaced", object("u", true, name), object("v", false), false, false, false, 1},
		{"a deleted copy, restored", object("u", true, name), object("u", false, name), false, false, false, 1},
		{"a deleted copy, without the finalizer", object("u", true, name), object("u", true, "example.com/other"), false, false, false, 1},
	} {
		for _, stale := range []bool{true, false} {
			m := &model{live: tc.server}
			held, live, err := finalizer.Ensure(context.WithValue(t.Context(), calls.LiveRead{}, stale), m, tc.copy, name,
				func(context.Context, finalizer.Held[*corev1.ConfigMap]) error {
					if stale {
						t.Errorf("%s: the cleanup ran, although the object is gone", tc.what)
					}
					return nil
				})
			if !stale {
				if known := finalizer.Has(tc.copy, name) && tc.copy.DeletionTimestamp == nil; known && (!live || m.patches > 0) {
					t.Errorf("%s: live %t after %d patches although the cache is trusted", tc.what, live, m.patches)
				}
				continue
			}
			if live != tc.live || held.Valid() != tc.live || m.patches != tc.patches {
				t.Errorf("%s: live %t, valid %t, %d patches, %v; want %t, %d", tc.what, live, held.Valid(), m.patches, err, tc.live, tc.patches)
			}
			if restored := tc.what == "a deleted copy, restored"; restored != errors.Is(err, kube.ErrChanged) {
				t.Errorf("%s: the error is %v; want ErrChanged: %t", tc.what, err, restored)
			}
			if apierrors.IsConflict(err) != tc.conflict || apierrors.IsNotFound(err) != tc.gone {
				t.Errorf("%s: the error is %v; want a Conflict: %t, NotFound: %t", tc.what, err, tc.conflict, tc.gone)
			}
		}
	}
}

// Add keeps the server's object of a confirmation, and the confirmation writes nothing.
func TestLiveReadIsNoWrite(t *testing.T) {
	server := object("u", false, name)
	server.ResourceVersion = "7"
	m := &model{live: server}
	held, err := finalizer.Add(context.WithValue(t.Context(), calls.LiveRead{}, true), m, object("u", false, name), name)
	if err != nil {
		t.Fatal(err)
	}
	if got := held.Object().ResourceVersion; got != "7" {
		t.Errorf("the object has version %q, want that of the server", got)
	}
	if m.live != server {
		t.Error("the confirmation was no dry run")
	}
	refused := &answering{err: errBoom}
	if held, err := finalizer.Add(context.WithValue(t.Context(), calls.LiveRead{}, true), refused, object("u", false, name), name); !errors.Is(err, errBoom) || held.Valid() {
		t.Errorf("after an error: valid %t, %v", held.Valid(), err)
	}
}
