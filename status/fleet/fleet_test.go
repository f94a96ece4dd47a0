package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/malformed"
	"github.com/controllerkit/controllerkit/status/fleet"
)

// A Website is an object as crd types have it.
type Website struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Status            WebsiteStatus `json:"status,omitzero"`
}

type WebsiteStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// A Pointed has a status that can be nil, and conditions of its own type.
type Pointed struct {
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Status            *PointedStatus `json:"status,omitempty"`
}

type PointedStatus struct {
	Conditions []PointedCondition `json:"conditions,omitempty"`
}

type PointedCondition struct {
	Kind   string `json:"type"`
	Status *bool  `json:"status"` // a strange type
	Reason string `json:"reason"`
}

var noon = time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)

func site(name string, conditions ...metav1.Condition) *Website {
	return &Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 2, CreationTimestamp: metav1.NewTime(noon)},
		Status:     WebsiteStatus{Conditions: conditions},
	}
}

// cond parses "Ready False NoQuota", with an optional number of minutes since noon and a generation.
func cond(text string, numbers ...int) metav1.Condition {
	words := strings.Fields(text)
	c := metav1.Condition{Type: words[0], Status: metav1.ConditionStatus(words[1]), Reason: words[2]}
	if len(numbers) > 0 {
		c.LastTransitionTime = metav1.NewTime(noon.Add(time.Duration(numbers[0]) * time.Minute))
	}
	if len(numbers) > 1 {
		c.ObservedGeneration = int64(numbers[1])
	}
	return c
}

// counts returns the counts that are not 0, sorted.
func counts(t *fleet.Tracker) []string {
	all := []string{}
	t.Conditions(func(condition, status, reason string, objects int) {
		if objects != 0 {
			all = append(all, fmt.Sprintf("%s %s %s %d", condition, status, reason, objects))
		}
	})
	slices.Sort(all)
	return all
}

func check(t *testing.T, when string, tracker *fleet.Tracker, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), counts(tracker)); diff != "" {
		t.Errorf("%s: counts (-want +got):\n%s", when, diff)
	}
}

// age checks the number of objects that are not ready, and the minutes after noon of the oldest one.
func age(t *testing.T, when string, tracker *fleet.Tracker, objects, minutes int) {
	t.Helper()
	n, oldest := tracker.NotReady()
	if n != objects || n > 0 && !oldest.Equal(noon.Add(time.Duration(minutes)*time.Minute)) || n == 0 && !oldest.IsZero() {
		t.Errorf("%s: %d objects are not ready, since %v, want %d since %d min after noon", when, n, oldest, objects, minutes)
	}
}

// TestEvents: the counts follow the events of an object, also of a repeated and of a missed one.
//
// Proves FL2.
func TestEvents(t *testing.T) {
	w := &fleet.Tracker{}
	age(t, "at first", w, 0, 0)
	a := site("a", cond("Ready False NoQuota", 5), cond("Synced True Done", 1))
	w.OnAdd(a, true)
	w.OnAdd(a, false) // of an informer that was replaced
	w.OnAdd(site("b", cond("Ready False NoQuota", 3)), true)
	check(t, "after the list", w, "Ready False NoQuota 2", "Synced True Done 1")
	age(t, "after the list", w, 2, 3)
	// The old object of an update can be wrong: the program may have changed it in the cache.
	w.OnUpdate(site("a", cond("Ready Unknown Invented", 0)), site("a", cond("Ready True Ready", 9)))
	check(t, "after an update", w, "Ready False NoQuota 1", "Ready True Ready 1")
	age(t, "after an update", w, 1, 3)
	w.OnDelete(cache.DeletedFinalStateUnknown{Key: "shop/b"})
	w.OnDelete(cache.DeletedFinalStateUnknown{Key: "shop/b", Obj: &malformed.Object{}})
	w.OnDelete(cache.DeletedFinalStateUnknown{Key: "a/b/c"})
	w.OnDelete(site("never"))
	check(t, "after a missed deletion", w, "Ready True Ready 1")
	w.OnDelete(site("a", cond("Ready False Other", 0)))
	w.OnAdd("no object", false)
	check(t, "at last", w)
	age(t, "at last", w, 0, 0)
}

// TestModel compares a Tracker with a count of the objects, for random events.
//
// Proves FL2.
func TestModel(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	w := &fleet.Tracker{NeedsReady: true}
	live := map[string]*Website{}
	states := []string{"True", "False", "Unknown"}
	for range 20_000 {
		name := fmt.Sprint(r.IntN(50))
		if r.IntN(3) == 0 {
			w.OnDelete(site(name))
			delete(live, name)
			continue
		}
		o := site(name)
		for _, kind := range []string{"Ready", "Synced", "Paused"} {
			if r.IntN(4) > 0 {
				o.Status.Conditions = append(o.Status.Conditions, cond(fmt.Sprintf("%s %s Reason%d", kind, states[r.IntN(3)], r.IntN(3)), r.IntN(60)))
			}
		}
		w.OnUpdate(live[name], o)
		live[name] = o
	}
	want := map[string]int{}
	for _, o := range live {
		if !slices.ContainsFunc(o.Status.Conditions, func(c metav1.Condition) bool { return c.Type == "Ready" }) {
			want["Ready Unknown "]++
		}
		for _, c := range o.Status.Conditions {
			want[fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason)]++
		}
	}
	var all []string
	for text, n := range want {
		all = append(all, fmt.Sprintf("%s %d", text, n))
	}
	slices.Sort(all)
	check(t, "after 20,000 events", w, all...)
}

// TestNotReady: which objects are not ready, and since when.
func TestNotReady(t *testing.T) {
	deleted := site("deleted", cond("Ready True Ready", 1), cond("Paused True Annotation"))
	deleted.DeletionTimestamp = new(metav1.NewTime(noon.Add(7 * time.Minute)))
	for _, tt := range []struct {
		name    string
		obj     *Website
		needs   bool
		objects int
		minutes int
	}{
		{"ready", site("a", cond("Ready True Ready", 1, 2)), true, 0, 0},
		{"ready, without a generation", site("a", cond("Ready True Ready", 1)), true, 0, 0},
		{"false", site("a", cond("Ready False X", 4, 2)), false, 1, 4},
		{"unknown", site("a", cond("Ready Unknown X", 4, 1)), false, 1, 4},
		{"a strange status", site("a", cond("Ready maybe X", 4)), false, 1, 4},
		{"without a time", site("a", cond("Ready False X")), false, 1, 0},
		{"an invented time", site("a", cond("Ready False X", -1e6)), false, 1, 0},
		{"without the condition", site("a", cond("Synced False X", 4)), false, 0, 0},
		{"without the condition, which it needs", site("a"), true, 1, 0},
		{"paused", site("a", cond("Ready False X", 4), cond("Paused True X")), true, 0, 0},
		{"not paused", site("a", cond("Ready False X", 4), cond("Paused False X")), true, 1, 4},
		{"in deletion", deleted, true, 1, 7},
	} {
		w := &fleet.Tracker{NeedsReady: tt.needs}
		w.OnAdd(tt.obj, true)
		age(t, tt.name, w, tt.objects, tt.minutes)
	}
}

// TestStale: an object whose Ready is about an older generation is not ready since the event that showed it.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fleet.Tracker{}
		begin := time.Now()
		w.OnAdd(&Website{ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 1}, Status: WebsiteStatus{Conditions: []metav1.Condition{cond("Ready True Ready", 0, 1)}}}, true)
		if n, _ := w.NotReady(); n != 0 {
			t.Errorf("%d objects are not ready, want 0", n)
		}
		for range 3 {
			time.Sleep(time.Minute)
			w.OnUpdate(nil, &Website{ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 2}, Status: WebsiteStatus{Conditions: []metav1.Condition{cond("Ready True Ready", 0, 1)}}})
		}
		if n, since := w.NotReady(); n != 1 || since.Sub(begin) != time.Minute {
			t.Errorf("%d objects are not ready since %v, want 1 since 1m", n, since.Sub(begin))
		}
	})
}

// TestAhead: an object whose condition has a time of the future, of a clock that was wrong, is not ready since the
// first event that showed it.
func TestAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fleet.Tracker{}
		begin := time.Now()
		ahead := cond("Ready False X", 0)
		ahead.LastTransitionTime = metav1.NewTime(begin.AddDate(100, 0, 0))
		for range 2 {
			w.OnUpdate(nil, &Website{ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 1}, Status: WebsiteStatus{Conditions: []metav1.Condition{ahead}}})
			time.Sleep(time.Hour)
		}
		if n, since := w.NotReady(); n != 1 || !since.Equal(begin) {
			t.Errorf("%d objects are not ready since %v, want 1 since %v", n, since, begin)
		}
	})
}

// TestTypes: the forms in which Go types and maps have conditions.
func TestTypes(t *testing.T) {
	w := &fleet.Tracker{}
	w.OnAdd(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Status: appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{{Type: "Available", Status: "True", Reason: "Enough"}}}}, true)
	w.OnAdd(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "no status"}}, true)
	w.OnAdd(&Pointed{ObjectMeta: metav1.ObjectMeta{Name: "nil status"}}, true)
	w.OnAdd(&Pointed{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: &PointedStatus{Conditions: []PointedCondition{{Kind: "Odd", Reason: "R"}}}}, true)
	w.OnAdd(&unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "u", "generation": int64(2)},
		"status": map[string]any{"conditions": []any{
			"no condition", map[string]any{"type": "Ready", "status": "False", "reason": "Wait", "lastTransitionTime": "2026-05-01T12:09:00Z", "observedGeneration": "2"},
			map[string]any{"type": 5, "status": true, "lastTransitionTime": "soon"},
		}},
	}}, true)
	w.OnAdd(&unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "v"}, "status": "odd"}}, true)
	w.OnAdd(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, true)
	check(t, "of all types", w, " other  1", "Available True Enough 1", "Odd other R 1", "Ready False Wait 1")
	age(t, "of all types", w, 1, 9)
}

// An Own has conditions of its own type, whose times are of type T.
type Own[T any] struct {
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Status            OwnStatus[T] `json:"status,omitempty"`
}

type OwnStatus[T any] struct {
	Conditions []OwnCondition[T] `json:"conditions,omitempty"`
}

type OwnCondition[T any] struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	LastTransitionTime T      `json:"lastTransitionTime"`
}

func own[T any](at T) metav1.Object {
	return &Own[T]{
		ObjectMeta: metav1.ObjectMeta{Name: "o", CreationTimestamp: metav1.NewTime(noon.AddDate(-1, 0, 0))},
		Status:     OwnStatus[T]{[]OwnCondition[T]{{"Ready", "False", at}}},
	}
}

// TestTimes: lastTransitionTime in the types that projects give it. Of an invalid time, the creation counts.
func TestTimes(t *testing.T) {
	type (
		text     string
		moment   metav1.Time
		embedded struct{ metav1.Time }
	)
	at := noon.Add(9 * time.Minute)
	created := int(-365 * 24 * time.Hour / time.Minute)
	for name, tt := range map[string]struct {
		obj  metav1.Object
		want int // minutes since noon
	}{
		"metav1.Time":      {own(metav1.NewTime(at)), 9},
		"*metav1.Time":     {own(new(metav1.NewTime(at))), 9},
		"metav1.MicroTime": {own(metav1.NewMicroTime(at)), 9},
		"time.Time":        {own(at), 9},
		"*time.Time":       {own(&at), 9},
		"a zone":           {own(at.In(time.FixedZone("", 3600))), 9},
		"string":           {own(at.Format(time.RFC3339Nano)), 9},
		"a text type":      {own(text(at.Format(time.RFC3339))), 9},
		"a time type":      {own(moment(metav1.NewTime(at))), 9},
		"embedded":         {own(embedded{metav1.NewTime(at)}), 9},
		"any":              {own[any](at), 9},
		"zero":             {own(time.Time{}), created},
		"nil":              {own[*time.Time](nil), created},
		"nil in any":       {own[any](nil), created},
		"no time":          {own("soon"), created},
		"a number":         {own(at.Unix()), created},
		"not JSON":         {own(func() {}), created},
	} {
		w := &fleet.Tracker{}
		w.OnAdd(tt.obj, true)
		age(t, name, w, 1, tt.want)
	}
}

// TestBounds: 10,000 reasons, types and statuses, an object with 100,000 conditions, and long texts.
//
// Proves FL1. Proves CK3.
func TestBounds(t *testing.T) {
	w := &fleet.Tracker{}
	const n = 10_000
	long := strings.Repeat("x", 1<<20)
	for i := range n {
		w.OnAdd(site(fmt.Sprint(i), cond(fmt.Sprintf("Ready False Reason%d", i)), cond(fmt.Sprintf("Type%d True Reason%d", i, i)),
			metav1.Condition{Type: "Strange", Status: metav1.ConditionStatus(fmt.Sprint("status", i)), Reason: long[:1<<10] + fmt.Sprint(i)}), true)
	}
	many := site("many")
	for i := range 100_000 {
		many.Status.Conditions = append(many.Status.Conditions, metav1.Condition{Type: long + fmt.Sprint(i), Status: "True"})
		if i == 50 {
			long = "short"
		}
	}
	w.OnAdd(many, true)
	w.OnAdd(site("twice", cond("Ready False X"), cond("Ready True Y")), true)
	number, size, ready := 0, 0, 0
	w.Conditions(func(condition, status, reason string, objects int) {
		number++
		size += len(condition) + len(status) + len(reason)
		if condition == "Ready" {
			ready += objects
		}
	})
	if number > 500 || size > 100_000 {
		t.Errorf("%d counts with %d bytes, want at most 500 and 100,000", number, size)
	}
	if ready != n+1 {
		t.Errorf("%d objects are counted by Ready, want %d", ready, n+1)
	}
	others := 0
	w.Conditions(func(condition, status, reason string, objects int) {
		if condition == "Ready" && reason == "other" {
			others = objects
		}
	})
	if others != n+1-20 {
		t.Errorf("%d objects have another reason, want %d", others, n+1-20)
	}
	for i := range n {
		w.OnDelete(site(fmt.Sprint(i)))
	}
	w.OnDelete(many)
	w.OnDelete(site("twice"))
	check(t, "after the deletions", w)
}

// FuzzHostile: whatever a status has, an object that comes and goes leaves no count.
//
// Proves FL1. Proves CK3.
func FuzzHostile(f *testing.F) {
	f.Add("Ready", "False", "X", "2026-05-01T12:00:00Z", int64(3))
	f.Add("", "maybe", "\xff\x00", "", int64(-1))
	f.Add(strings.Repeat("x", 300), "True", strings.Repeat("é", 300), "soon", int64(1))
	f.Fuzz(func(t *testing.T, kind, status, reason, at string, generation int64) {
		w := &fleet.Tracker{NeedsReady: true}
		o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "o"}, "status": map[string]any{"conditions": []any{
			map[string]any{"type": kind, "status": status, "reason": reason, "lastTransitionTime": at, "observedGeneration": generation},
		}}}}
		w.OnAdd(o, true)
		w.OnUpdate(o, o)
		total := 0
		w.Conditions(func(condition, status, reason string, objects int) {
			total += objects
			if len(condition) > 128 || len(reason) > 128 {
				t.Errorf("a count has %d and %d bytes", len(condition), len(reason))
			}
		})
		want := 2
		if kind == "Ready" {
			want = 1
		}
		if total != want {
			t.Errorf("the object is counted %d times, want %d", total, want)
		}
		w.OnDelete(o)
		check(t, "at last", w)
	})
}
