package finalizer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/controllerkit/controllerkit/finalizer"
)

// list makes a finalizer list of text: words, some of them the finalizer itself,
// which may be there more than once. They are UTF-8, as everything that comes out of
// JSON.
func list(text string) []string {
	var l []string
	for i, word := range strings.Fields(strings.ToValidUTF8(text, "?")) {
		if word == "me" {
			word = name
		}
		if word == name || !slices.Contains(l, word) {
			l = append(l, word)
		}
		if i == 20 {
			break
		}
	}
	return l
}

func others(l []string) []string {
	return slices.DeleteFunc(slices.Clone(l), func(f string) bool { return f == name })
}

// Whatever the copy and the live object say, the finalizers of others survive in
// order, and an outcome without an error is the one asked for.
//
// Proves F2.
func FuzzFinalizerPatches(f *testing.F) {
	f.Add("", "", false, false, true, true)
	f.Add("x/1 me", "me x/1", false, true, true, false)
	f.Add("x/1", "x/1 me x/2", true, true, true, false)
	f.Add("", "x/1", false, false, true, true)
	f.Add("me", "x/~1 me \"x/0", false, true, false, false)
	f.Add("me x/1 me", "me x/1 me", true, true, true, false)
	f.Fuzz(func(t *testing.T, copied, stored string, copyDeleting, liveDeleting, sameUID, add bool) {
		copyList, liveList := list(copied), list(stored)
		uid := types.UID("a")
		if !sameUID {
			uid = "b"
		}
		obj := object("a", copyDeleting, copyList...)
		live := object(uid, liveDeleting, liveList...)
		m := &model{live: live}
		if add {
			h, err := finalizer.Add(t.Context(), m, obj, name)
			checkOthers(t, m, liveList)
			if (err == nil) != h.Valid() {
				t.Fatalf("error %v with Valid() = %v", err, h.Valid())
			}
			if err == nil && m.patches > 0 && (liveDeleting || !sameUID || !finalizer.Has(m.live, name)) {
				t.Fatalf("added to %+v", m.live)
			}
			return
		}
		_, err := finalizer.Remove(t.Context(), m, obj, name)
		checkOthers(t, m, liveList)
		if err != nil {
			t.Fatalf("remove with nobody else at work: %v", err)
		}
		if sameUID && slices.Contains(copyList, name) && m.live != nil && finalizer.Has(m.live, name) {
			t.Fatalf("left in %q", m.live.Finalizers)
		}
		if !sameUID && !slices.Equal(m.live.Finalizers, liveList) {
			t.Fatalf("another object changed from %q to %q", liveList, m.live.Finalizers)
		}
	})
}

func checkOthers(t *testing.T, m *model, before []string) {
	t.Helper()
	var after []string
	if m.live != nil {
		after = m.live.Finalizers
	}
	if got, want := others(after), others(before); !slices.Equal(got, want) {
		t.Fatalf("finalizers of others %q became %q", want, got)
	}
	if n := len(after) - len(others(after)); n > max(1, len(before)-len(others(before))) {
		t.Fatalf("the finalizer is repeated: %q", after)
	}
}

// Several controllers, each with its own finalizer and a copy from any moment of
// the past, work on one object until it is gone. A history of what each of them was
// told is compared with the store after every step.
//
// Proves F2.
func TestControllersWithStaleCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{live: object("a", false)}
		copies := []*modelCopy{{list: nil}}
		mine := map[string]bool{} // what the store must hold
		names := []string{"x/1", "x/2", "x/3"}
		steps := rapid.IntRange(1, 40).Draw(t, "steps")
		for i := range steps {
			if m.live == nil {
				break
			}
			who := rapid.SampledFrom(names).Draw(t, "who")
			seen := rapid.SampledFrom(copies).Draw(t, "copy")
			obj := object("a", seen.deleting, seen.list...)
			switch rapid.SampledFrom([]string{"ensure", "ensure", "remove", "delete"}).Draw(t, "action") {
			case "ensure":
				ran := false
				h, live, err := finalizer.Ensure(context.Background(), m, obj, who, func(context.Context, held) error {
					ran = true
					return nil
				})
				switch {
				case err != nil && !apierrors.IsConflict(err):
					t.Fatalf("step %d: %v", i, err)
				case live && m.patches > 0 && h.Object() != obj:
					mine[who] = true
				case err == nil && ran:
					delete(mine, who)
				}
				m.patches = 0
			case "remove":
				if _, err := finalizer.Remove(context.Background(), m, obj, who); err != nil {
					t.Fatalf("step %d: remove: %v", i, err)
				}
				if finalizer.Has(obj, who) {
					delete(mine, who)
				}
			case "delete":
				m.live.DeletionTimestamp = object("a", true).DeletionTimestamp
				if len(m.live.Finalizers) == 0 {
					m.live = nil
				}
			}
			if got, want := fmt.Sprint(sorted(stored(m))), fmt.Sprint(sortedKeys(mine)); got != want {
				t.Fatalf("step %d: store holds %s, the controllers were told %s", i, got, want)
			}
			if m.live != nil {
				copies = append(copies, &modelCopy{deleting: m.live.DeletionTimestamp != nil, list: slices.Clone(m.live.Finalizers)})
			}
		}
	})
}

type modelCopy struct {
	deleting bool
	list     []string
}

func sorted(l []string) []string {
	l = slices.Clone(l)
	slices.Sort(l)
	return l
}

func sortedKeys(m map[string]bool) []string {
	var l []string
	for k := range m {
		l = append(l, k)
	}
	return sorted(l)
}
