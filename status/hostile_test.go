package status_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/controllerkit/controllerkit/internal/testcost"
	"github.com/controllerkit/controllerkit/status"
)

// keeper is a client of any form that keeps what it is sent.
type keeper struct{ sent []byte }

func (s *keeper) UpdateStatus(_ context.Context, u *unstructured.Unstructured, _ metav1.UpdateOptions) (*unstructured.Unstructured, error) {
	var err error
	s.sent, err = json.Marshal(u.Object["status"])
	return u, err
}

func (s *keeper) ApplyStatus(ctx context.Context, u *unstructured.Unstructured, _ metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	return s.UpdateStatus(ctx, u, metav1.UpdateOptions{})
}

// attack runs all that reads a status on one that is stored.
func attack(t testing.TB, stored map[string]any) {
	const generation = 5
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "one", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": int64(generation)},
		"status":   stored,
	}}
	blank := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": "default"}}}
	cheap := func(name string, f func()) {
		testcost.Cheap(t, name, func() { _, _ = json.Marshal(obj.Object) }, f)
	}
	newest := int64(0) // of Ready, as stored
	list, _ := stored["conditions"].([]any)
	for _, item := range list {
		if c, ok := item.(map[string]any); ok && c["type"] == "Ready" {
			if g, ok := c["observedGeneration"].(int64); ok {
				newest = max(newest, g)
			}
		}
	}
	for _, generation := range []int64{3, generation} {
		mutate := func(u *unstructured.Unstructured) {
			list, _ := u.Object["status"].(map[string]any)["conditions"].([]any)
			kept := []any{}
			for _, item := range list {
				if c, ok := item.(map[string]any); !ok || c["type"] != "Ready" {
					kept = append(kept, item)
				}
			}
			u.Object["status"].(map[string]any)["conditions"] = append(kept, map[string]any{"type": "Ready", "status": "False", "reason": "Hostile", "observedGeneration": generation})
		}
		s := &keeper{}
		cheap("Update", func() { _, _ = status.Update(t.Context(), s, obj, mutate) })
		if s.sent != nil && generation < newest {
			t.Errorf("Update sends generation %d over %d", generation, newest)
		}
		r := &recorder[*unstructured.Unstructured]{}
		cheap("Patch", func() { _, _ = status.Patch(t.Context(), r, obj, mutate) })
		if r.data != nil && generation < newest {
			t.Errorf("Patch sends generation %d over %d", generation, newest)
		}
	}
	cheap("an Update that changes nothing", func() {
		s := &keeper{}
		if _, err := status.Update(t.Context(), s, obj, func(*unstructured.Unstructured) {}); err != nil || s.sent != nil {
			t.Errorf("nothing changed, and Update: error %v, sent %.100s", err, s.sent)
		}
	})
	cheap("Apply", func() {
		s := &keeper{}
		if _, err := status.Apply(t.Context(), "m", s, obj, blank, status.True("Ready", "Fine", string(s.sent))); err == nil && newest > generation {
			t.Errorf("Apply sends generation %d over %d", generation, newest)
		}
	})
	var typed []metav1.Condition
	data, err := json.Marshal(stored["conditions"])
	if err != nil || json.Unmarshal(data, &typed) != nil {
		return // no typed client can read it
	}
	cheap("the conditions", func() {
		_ = status.Set(&typed, generation, status.True("Ready", "Fine", strings.Repeat("\xff", 100)), status.True("Other", "Fine", ""))
		if c := status.Summary(typed, generation, "Ready", "Other", "A", "B"); c.Type != "Ready" {
			t.Errorf("Summary returns %+v", c)
		}
	})
}

// Whatever a status holds that the API server can store, nothing panics, no generation
// goes back, and no decision takes more than linear time and memory.
//
// Proves S4.
func FuzzHostile(f *testing.F) {
	for _, element := range append([]string{
		`{"type":"Ready","status":"True","reason":"R","message":"","observedGeneration":5,"lastTransitionTime":"2026-01-01T00:00:00Z"}`,
		`{"type":"A","status":"True","observedGeneration":9223372036854775807,"lastTransitionTime":"9999-12-31T23:59:59Z"}`,
		`{"type":"Ready","observedGeneration":1e308}`, `{"type":"Ready","observedGeneration":-1}`, `{"type":"Ready","type":"Other"}`,
		`{"type":"\u0000\u001b[2J\r","message":"\u0000"}`, `{"type":"Ready","observedGeneration":"1e999999999"}`, `{}`,
	}, unreadable...) {
		element = strings.TrimPrefix(element, ",")
		f.Add([]byte(`{"observedGeneration":5,"a":{"b":[1,1e300,"1e999999999"]}}`), []byte(element), uint16(0), uint16(1))
		f.Add([]byte(`{"observedGeneration":"5"}`), []byte(element), uint16(999), uint16(2000))
	}
	f.Fuzz(func(t *testing.T, body, element []byte, depth, repeat uint16) {
		n := min(int(repeat), (testcost.Object-len(body))/(len(element)+1))
		if len(body)+len(element) > 1<<16 || n < 0 || !utf8.Valid(body) || !utf8.Valid(element) {
			t.Skip() // JSON that the API server stores is UTF-8
		}
		var stored map[string]any
		if utiljson.Unmarshal(body, &stored) != nil || stored == nil {
			t.Skip()
		}
		var items []any
		if utiljson.Unmarshal([]byte("["+strings.TrimPrefix(strings.Repeat(","+string(element), n), ",")+"]"), &items) != nil {
			t.Skip()
		}
		stored["conditions"] = items
		var nested any = "deep"
		for range depth % 9990 { // what the JSON of the API server allows
			nested = map[string]any{"": nested}
		}
		stored["nested"] = nested
		attack(t, stored)
	})
}

// Four times the object takes about four times as long: quadratic work would take
// sixteen times as long.
func TestHostileGrowth(t *testing.T) {
	condition := func(kind, rest string) string {
		return fmt.Sprintf(`{"type":%q,"status":"True","reason":"R","message":"m","observedGeneration":5%s}`, kind, rest)
	}
	const when = `,"lastTransitionTime":"2026-01-01T00:00:00Z"`
	for _, tt := range []struct {
		name string
		at   func(i int) string // the i-th condition
		rest func(n int) any    // of the status
	}{
		{name: "types", at: func(i int) string { return condition(fmt.Sprint("T", i), when) }},
		{name: "one type", at: func(int) string { return condition("Ready", when) }},
		{name: "unreadable", at: func(i int) string {
			return condition(fmt.Sprint("T", i), "") + `,{"type":"Ready","observedGeneration":{}}`
		}},
		{name: "no conditions", at: func(int) string { return `"text"` }},
		{name: "a wide map", rest: func(n int) any {
			m := map[string]any{}
			for i := range n {
				m[fmt.Sprint("\x00", i)] = int64(0)
			}
			return m
		}},
		{name: "a long list", rest: func(n int) any {
			l := make([]any, n)
			for i := range l {
				l[i] = float64(i) / 3
			}
			return l
		}},
		{name: "a long text", rest: func(n int) any { return strings.Repeat("\u2028", 10*n) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := func(n int) time.Duration {
				stored := map[string]any{}
				if tt.at != nil {
					var list strings.Builder
					for i := range n {
						list.WriteString("," + tt.at(i))
					}
					var items []any
					if err := utiljson.Unmarshal([]byte("["+list.String()[1:]+"]"), &items); err != nil {
						t.Fatal(err)
					}
					stored["conditions"] = items
				}
				if tt.rest != nil {
					stored["rest"] = tt.rest(n)
				}
				start := time.Now()
				attack(t, stored)
				return time.Since(start)
			}
			// One quiet moment is enough to see that it is linear.
			var small, large time.Duration
			for range 10 {
				if small, large = run(500), run(2000); large < 9*small {
					return
				}
			}
			t.Errorf("500 take %v, and 2000 take %v", small, large)
		})
	}
}

// TestManyConditions: a million conditions of other users take 3 MiB of an object. They are not
// read, and the error has the cure.
//
// Proves CK3.
func TestManyConditions(t *testing.T) {
	const generation = 1
	obj := func(n int) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": "default", "uid": "1", "resourceVersion": "1", "generation": int64(generation)},
			"status": map[string]any{"conditions": slices.Repeat([]any{map[string]any{}}, n)},
		}}
	}
	blank := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": "default"}}}
	for n, want := range map[int]string{1000: "", 1001: "1001 conditions", 1_000_000: "1000000 conditions"} {
		u := obj(n)
		for name, f := range map[string]func() error{
			"Set": func() error { return status.Set(u.DeepCopy(), generation, status.True("Ready", "Fine", "")) },
			"Apply": func() error {
				_, err := status.Apply(t.Context(), "m", &keeper{}, u, blank, status.True("Ready", "Fine", ""))
				return err
			},
		} {
			err := f()
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want+", and at most 1000 are read: remove")) {
				t.Errorf("%s of %d conditions: %v, want %q", name, n, err, want)
			}
		}
		if _, bytes := testcost.Of(func() {
			_, _ = status.Apply(t.Context(), "m", &keeper{}, u, blank, status.True("Ready", "Fine", ""))
		}); bytes > 4<<20 {
			t.Errorf("Apply of %d conditions allocates %d bytes", n, bytes)
		}
	}
}
