package pause_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/enqueue/pause"
)

const (
	paused    = "controllerkit.github.io/paused"
	requested = "controllerkit.github.io/requested-at"
)

func pod(name string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 3}}
	for i := 0; i < len(annotations); i += 2 {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, annotations[i], annotations[i+1])
	}
	return p
}

// TestPaused: any value pauses but those that mean no.
func TestPaused(t *testing.T) {
	var a pause.Annotations
	for value, want := range map[string]bool{
		"true": true, "": true, "incident 42": true, "yes": true, "no": true, "0 ": true, "\x00\xff": true, strings.Repeat("x", 1<<18): true,
		"false": false, "False": false, "FALSE": false, "0": false,
	} {
		if got := a.Paused(pod("a", paused, value)); got != want {
			t.Errorf("Paused of %.20q is %t, want %t", value, got, want)
		}
	}
	if a.Paused(pod("a")) || a.Paused(pod("a", "example.com/paused", "true")) {
		t.Error("an object without the annotation is paused")
	}
	if !(pause.Annotations{Prefix: "example.com"}).Paused(pod("a", "example.com/paused", "true")) {
		t.Error("an object with the annotation of the prefix is not paused")
	}
}

func TestCheck(t *testing.T) {
	for prefix, valid := range map[string]bool{"": true, "example.com": true, "example": true, "example.com/": false, "Example.com": false, "a b": false, strings.Repeat("x", 300): false} {
		if err := (pause.Annotations{Prefix: prefix}).Check(); (err == nil) != valid {
			t.Errorf("Check of %.20q = %v, want valid: %t", prefix, err, valid)
		}
	}
}

// TestHostile: long and unprintable values.
//
// Proves PA1. Proves CK3.
func TestHostile(t *testing.T) {
	var a pause.Annotations
	long := strings.Repeat("é", 1<<17)
	seen := map[string]bool{}
	for _, value := range []string{"\x1b[2J\r\nroot", "a\xffb", "a\xfeb", long + "a", long + "b", strings.Repeat("x", 129)} {
		o := pod("a", paused, value, requested, value)
		c := a.Condition(o)
		if len(c.Message) > 1<<10 || strings.ContainsFunc(c.Message, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("the message of %.20q has %d bytes, or is unprintable: %.300q", value, len(c.Message), c.Message)
		}
		request := a.Request(o)
		if len(request) > 128 || strings.ContainsFunc(request, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("the request of %.20q is %.300q", value, request)
		}
		if seen[request] {
			t.Errorf("the request of %.20q is that of another value", value)
		}
		seen[request] = true
	}
	if got := a.Request(pod("a", requested, strings.Repeat("x", 128))); got != strings.Repeat("x", 128) {
		t.Errorf("the request of 128 bytes is %q", got)
	}
	if got := a.Request(pod("a")); got != "" {
		t.Errorf("the request without an annotation is %q", got)
	}
	var s pause.Set
	for i := range 10_000 {
		s.OnAdd(pod(fmt.Sprint(i), paused, long), true)
	}
	if got := s.Keys(3); len(got) != 3 || s.Len() != 10_000 {
		t.Errorf("%d keys of %d, want 3 of 10,000", len(got), s.Len())
	}
}

func TestCondition(t *testing.T) {
	got := pause.Annotations{}.Condition(pod("a", paused, "x"))
	want := metav1.Condition{
		Type: "Paused", Status: "True", Reason: "PausedByAnnotation", ObservedGeneration: 3,
		Message: `the annotation controllerkit.github.io/paused has the value "x": remove it to go on. A deletion is still cleaned up`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Condition (-want +got):\n%s", diff)
	}
}

func TestChanged(t *testing.T) {
	pass := pause.Changed[*corev1.Pod](pause.Annotations{})
	for _, tt := range []struct {
		name string
		e    enqueue.Event[*corev1.Pod]
		want bool
	}{
		{"a creation", enqueue.Event[*corev1.Pod]{New: pod("a"), Created: true}, true},
		{"a deletion", enqueue.Event[*corev1.Pod]{Old: pod("a"), Deleted: true}, true},
		{"a pause", enqueue.Event[*corev1.Pod]{Old: pod("a"), New: pod("a", paused, "")}, true},
		{"the end of a pause", enqueue.Event[*corev1.Pod]{Old: pod("a", paused, "true"), New: pod("a", paused, "false")}, true},
		{"another reason", enqueue.Event[*corev1.Pod]{Old: pod("a", paused, "true"), New: pod("a", paused, "yes")}, false},
		{"a request", enqueue.Event[*corev1.Pod]{Old: pod("a"), New: pod("a", requested, "1")}, true},
		{"another request", enqueue.Event[*corev1.Pod]{Old: pod("a", requested, "1"), New: pod("a", requested, "2")}, true},
		{"the same request", enqueue.Event[*corev1.Pod]{Old: pod("a", requested, "1"), New: pod("a", requested, "1", "b", "c")}, false},
	} {
		if got := pass(tt.e); got != tt.want {
			t.Errorf("%s passes: %t, want %t", tt.name, got, tt.want)
		}
	}
}

// TestSet: the set follows the events.
//
// Proves PA2.
func TestSet(t *testing.T) {
	var s pause.Set
	want := func(when string, names ...string) {
		t.Helper()
		keys := []types.NamespacedName{}
		for _, name := range names {
			keys = append(keys, types.NamespacedName{Namespace: "shop", Name: name})
		}
		if diff := cmp.Diff(keys, append([]types.NamespacedName{}, s.Keys(10)...)); diff != "" || s.Len() != len(names) {
			t.Errorf("%s: %d paused (-want +got):\n%s", when, s.Len(), diff)
		}
	}
	want("at first")
	s.OnAdd(pod("b", paused, "true"), true)
	s.OnAdd(pod("b", paused, "true"), false)
	s.OnAdd(pod("a"), true)
	want("after the list", "b")
	s.OnUpdate(pod("a"), pod("a", paused, ""))
	want("after an update", "a", "b")
	deleted := pod("a", paused, "")
	deleted.DeletionTimestamp = &metav1.Time{}
	s.OnUpdate(pod("a"), deleted)
	want("in deletion", "b")
	if !s.Has(types.NamespacedName{Namespace: "shop", Name: "b"}) || s.Has(types.NamespacedName{Namespace: "shop", Name: "a"}) {
		t.Error("Has is wrong")
	}
	s.OnDelete(cache.DeletedFinalStateUnknown{Key: "a/b/c"})
	s.OnDelete(cache.DeletedFinalStateUnknown{Key: "shop/b"})
	want("after a missed deletion")
	s.OnAdd(pod("c", paused, ""), false)
	s.OnDelete(pod("c"))
	s.OnAdd("no object", false)
	want("at last")
}
