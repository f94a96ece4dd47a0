package enqueue_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue"
)

// TestPredicates proves EQ2.
func TestPredicates(t *testing.T) {
	web := enqueue.Selects[*corev1.Pod](labels.SelectorFromSet(labels.Set{"app": "web"}))
	notWeb, err := labels.Parse("app!=web")
	if err != nil {
		t.Fatal(err)
	}
	predicates := map[string]podPredicate{
		"generation": enqueue.GenerationChanged[*corev1.Pod],
		"version":    enqueue.ResourceVersionChanged[*corev1.Pod],
		"web":        web,
		"not web":    enqueue.Not(web),
		"!=web":      enqueue.Selects[*corev1.Pod](notWeb),
		"and":        enqueue.And(enqueue.GenerationChanged, web),
		"or":         enqueue.Or(enqueue.GenerationChanged, web),
	}
	anew := change("2", 1, "")
	anew.UID = types.UID("another")
	for _, tc := range []struct {
		name  string
		event podEvent
		want  []string // the predicates that pass
	}{
		{
			name:  "creation",
			event: podEvent{New: change("1", 1, ""), Created: true},
			want:  []string{"generation", "version", "not web", "!=web", "or"},
		},
		{
			name:  "creation of the initial list",
			event: podEvent{New: change("1", 1, ""), Created: true, Initial: true},
			want:  []string{"generation", "version", "not web", "!=web", "or"},
		},
		{
			name:  "creation in the selection",
			event: podEvent{New: change("1", 1, "web"), Created: true},
			want:  []string{"generation", "version", "web", "and", "or"},
		},
		{
			name:  "deletion",
			event: podEvent{Old: change("1", 1, ""), Deleted: true},
			want:  []string{"generation", "version", "not web", "!=web", "or"},
		},
		{
			name:  "deletion in the selection",
			event: podEvent{Old: change("1", 1, "web"), Deleted: true},
			want:  []string{"generation", "version", "web", "and", "or"},
		},
		{
			name:  "spec",
			event: podEvent{Old: change("1", 1, ""), New: change("2", 2, "")},
			want:  []string{"generation", "version", "not web", "!=web", "or"},
		},
		{
			name:  "status",
			event: podEvent{Old: change("1", 1, ""), New: change("2", 1, "")},
			want:  []string{"version", "not web", "!=web"},
		},
		{
			name:  "spec, with versions skipped",
			event: podEvent{Old: change("1", 1, ""), New: change("9", 4, "")},
			want:  []string{"generation", "version", "not web", "!=web", "or"},
		},
		{
			name:  "status in the selection",
			event: podEvent{Old: change("1", 1, "web"), New: change("2", 1, "web")},
			want:  []string{"version", "web", "or"},
		},
		{
			name:  "enters the selection",
			event: podEvent{Old: change("1", 1, "db"), New: change("2", 1, "web")},
			want:  []string{"version", "web", "!=web", "or"},
		},
		{
			name:  "leaves the selection",
			event: podEvent{Old: change("1", 1, "web"), New: change("2", 1, "db")},
			want:  []string{"version", "web", "!=web", "or"},
		},
		{
			name:  "resync",
			event: podEvent{Old: change("1", 1, "web"), New: change("1", 1, "web")},
			want:  []string{"web", "or"},
		},
		{
			name:  "a kind without generation",
			event: podEvent{Old: change("1", 0, ""), New: change("2", 0, "")},
			want:  []string{"generation", "version", "not web", "!=web", "or"},
		},
		{
			name:  "resync of a kind without generation",
			event: podEvent{Old: change("1", 0, ""), New: change("1", 0, "")},
			want:  []string{"generation", "not web", "!=web", "or"},
		},
		{
			name:  "without resourceVersion, as fakes make objects",
			event: podEvent{Old: change("", 1, ""), New: change("", 1, "")},
			want:  []string{"version", "not web", "!=web"},
		},
		{
			name:  "deleted and made anew while the informer was cut off",
			event: podEvent{Old: change("1", 1, ""), New: anew},
			want:  []string{"generation", "version", "not web", "!=web", "or"},
		},
		{
			name:  "a generation that went back, as after the restore of a backup",
			event: podEvent{Old: change("9", 4, ""), New: change("2", 2, "")},
			want:  []string{"generation", "version", "not web", "!=web", "or"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := map[string]bool{}
			for _, name := range tc.want {
				want[name] = true
			}
			for name, pass := range predicates {
				if got := pass(tc.event); got != want[name] {
					t.Errorf("%s: got %v, want %v", name, got, want[name])
				}
			}
		})
	}
}

func TestAndOr(t *testing.T) {
	yes, no := podPredicate(func(podEvent) bool { return true }), podPredicate(func(podEvent) bool { return false })
	never := podPredicate(func(podEvent) bool {
		t.Error("called although the result is known")
		return false
	})
	for _, tc := range []struct {
		name string
		pass podPredicate
		want bool
	}{
		{"And of none", enqueue.And[*corev1.Pod](), true},
		{"And of one that passes", enqueue.And(yes), true},
		{"And of one that does not", enqueue.And(no), false},
		{"And, all pass", enqueue.And(yes, yes, yes), true},
		{"And, the last does not", enqueue.And(yes, yes, no), false},
		{"And, the first does not", enqueue.And(no, never), false},
		{"Or of none", enqueue.Or[*corev1.Pod](), false},
		{"Or of one that passes", enqueue.Or(yes), true},
		{"Or of one that does not", enqueue.Or(no), false},
		{"Or, none passes", enqueue.Or(no, no, no), false},
		{"Or, the last passes", enqueue.Or(no, no, yes), true},
		{"Or, the first passes", enqueue.Or(yes, never), true},
		{"Not of one that passes", enqueue.Not(yes), false},
		{"Not of one that does not", enqueue.Not(no), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.pass(podEvent{}); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestFilter tests the Event that Filter makes of each event of an informer, and
// that Filter passes the event unchanged.
func TestFilter(t *testing.T) {
	older, newer := change("1", 1, ""), change("2", 2, "")
	type call struct {
		Kind     string
		Old, New any
		Initial  bool
	}
	tombstone := cache.DeletedFinalStateUnknown{Key: "default/p", Obj: older}
	empty := cache.DeletedFinalStateUnknown{Key: "default/p"}
	holdsNil := cache.DeletedFinalStateUnknown{Key: "default/p", Obj: (*corev1.Pod)(nil)}
	for _, tc := range []struct {
		name  string
		send  func(h cache.ResourceEventHandler)
		asked []podEvent
		call  call // if it passes
		// A deletion of an unknown object always passes.
		always bool
	}{
		{
			name:  "creation",
			send:  func(h cache.ResourceEventHandler) { h.OnAdd(newer, false) },
			asked: []podEvent{{New: newer, Created: true}},
			call:  call{Kind: "add", New: newer},
		},
		{
			name:  "initial list",
			send:  func(h cache.ResourceEventHandler) { h.OnAdd(newer, true) },
			asked: []podEvent{{New: newer, Created: true, Initial: true}},
			call:  call{Kind: "add", New: newer, Initial: true},
		},
		{
			name:  "update",
			send:  func(h cache.ResourceEventHandler) { h.OnUpdate(older, newer) },
			asked: []podEvent{{Old: older, New: newer}},
			call:  call{Kind: "update", Old: older, New: newer},
		},
		{
			name:  "deletion",
			send:  func(h cache.ResourceEventHandler) { h.OnDelete(older) },
			asked: []podEvent{{Old: older, Deleted: true}},
			call:  call{Kind: "delete", Old: older},
		},
		{
			name:  "tombstone",
			send:  func(h cache.ResourceEventHandler) { h.OnDelete(tombstone) },
			asked: []podEvent{{Old: older, Deleted: true}},
			call:  call{Kind: "delete", Old: tombstone},
		},
		{
			name:  "tombstone by pointer",
			send:  func(h cache.ResourceEventHandler) { h.OnDelete(&tombstone) },
			asked: []podEvent{{Old: older, Deleted: true}},
			call:  call{Kind: "delete", Old: &tombstone},
		},
		{
			name:   "tombstone without an object",
			send:   func(h cache.ResourceEventHandler) { h.OnDelete(empty) },
			call:   call{Kind: "delete", Old: empty},
			always: true,
		},
		{
			name:   "tombstone of a nil pointer",
			send:   func(h cache.ResourceEventHandler) { h.OnDelete(holdsNil) },
			call:   call{Kind: "delete", Old: holdsNil},
			always: true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, result := range []bool{true, false} {
				var asked []podEvent
				var got []call
				tc.send(enqueue.Filter(cache.ResourceEventHandlerDetailedFuncs{
					AddFunc:    func(obj any, initial bool) { got = append(got, call{Kind: "add", New: obj, Initial: initial}) },
					UpdateFunc: func(o, n any) { got = append(got, call{Kind: "update", Old: o, New: n}) },
					DeleteFunc: func(obj any) { got = append(got, call{Kind: "delete", Old: obj}) },
				}, func(e podEvent) bool {
					asked = append(asked, e)
					return result
				}))
				var want []call
				if result || tc.always {
					want = []call{tc.call}
				}
				if diff := cmp.Diff(tc.asked, asked); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("passed on with the result %v (-want +got):\n%s", result, diff)
				}
			}
		})
	}
}

// TestFilterBeforeHandler tests that an update adds the keys of both objects, even
// if only one of them is in the selection.
func TestFilterBeforeHandler(t *testing.T) {
	q := &recorder{}
	h := enqueue.Filter(enqueue.Handler(q, ownerNames), enqueue.Selects[*corev1.Pod](labels.SelectorFromSet(labels.Set{"app": "web"})))
	older, newer := pod("p", "1", "a"), pod("p", "2", "b")
	older.Labels = map[string]string{"app": "web"}
	h.OnUpdate(older, newer)
	h.OnUpdate(newer, newer)
	h.OnDelete(newer)
	if diff := cmp.Diff([]string{"b", "a"}, q.got); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
}
