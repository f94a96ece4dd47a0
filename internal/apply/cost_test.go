package apply

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// counted is a value that counts how often it is encoded.
type counted struct{ encodings *int }

func (c counted) MarshalJSON() ([]byte, error) {
	*c.encodings++
	return []byte("1"), nil
}

// TestTooLargeIsNotEncoded: if the configuration, live and the owned fields together have
// more values than a decision reads, live is not encoded.
func TestTooLargeIsNotEncoded(t *testing.T) {
	const half = maxNodes / 2
	list := func(n int, v any) []any {
		l := make([]any, n)
		for i := range l {
			l[i] = v
		}
		return l
	}
	for _, tt := range []struct {
		name                string
		config, live, owned int // values
		others              int // owned values of another manager
		ended               bool
		encoded             bool
		reads               int // of managedFields
	}{
		{name: "small", config: 100, live: 100, owned: 100, encoded: true, reads: 1},
		{name: "together at the bound", config: half / 2, live: half / 2, owned: half / 2, encoded: true, reads: 1},
		{name: "config and live", config: half, live: half},
		{name: "live and owned fields", config: 10, live: half, owned: half, reads: 1},
		{name: "live", config: 10, live: maxNodes},
		{name: "fields of others", config: 10, live: 10, others: maxNodes},
		{name: "the context ends", config: 100, live: 100, owned: 100, ended: true, reads: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			thing := func(spec []any) *unstructured.Unstructured {
				return &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "example.com/v1", "kind": "Thing", "metadata": map[string]any{"name": "one"}, "spec": map[string]any{"l": spec},
				}}
			}
			fields := func(n int) map[string]any {
				m := map[string]any{}
				for i := range n {
					m[fmt.Sprintf("f:%05x", i)] = map[string]any{}
				}
				return m
			}
			entry := func(manager string, n int) any {
				return map[string]any{"manager": manager, "operation": "Apply", "apiVersion": "example.com/v1", "fieldsType": "FieldsV1", "fieldsV1": fields(n)}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			encodings, reads := 0, 0
			live := &cancelling{Unstructured: *thing(list(tt.live, counted{&encodings})), read: func() {
				if reads++; tt.ended {
					cancel()
				}
			}}
			live.Object["metadata"].(map[string]any)["managedFields"] = []any{entry("m", tt.owned), entry("others", tt.others)}
			c := encoded(t, thing(list(tt.config, int64(1))))
			if unchanged, why := Unchanged[*cancelling, *unstructured.Unstructured](ctx, "m", c, live, nil); unchanged {
				t.Errorf("unchanged, %s", why)
			}
			if want := map[bool]int{true: tt.live}[tt.encoded]; encodings != want {
				t.Errorf("%d values of live are encoded, want %d", encodings, want)
			}
			if reads != tt.reads {
				t.Errorf("managedFields are read %d times, want %d", reads, tt.reads)
			}
		})
	}
}

// TestSumTooLarge: Sum hashes no object that has too many values, and reads managedFields once.
func TestSumTooLarge(t *testing.T) {
	for _, n := range []int{100, maxNodes} {
		encodings, reads := 0, 0
		live := &cancelling{Unstructured: unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "one"}}}, read: func() { reads++ }}
		l := make([]any, n)
		for i := range l {
			l[i] = counted{&encodings}
		}
		live.Object["spec"] = l
		config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": map[string]any{"name": "one"}}}
		_, _, ok := encoded(t, config).Sum(live, true)
		if ok != (n < maxNodes) || (encodings > 0) != ok || reads > 1 {
			t.Errorf("%d values: ok = %v, %d encodings, %d reads of managedFields", n, ok, encodings, reads)
		}
	}
}

// TestTakenTooLarge: Taken does not convert managedFields that have too many values.
func TestTakenTooLarge(t *testing.T) {
	for _, n := range []int{100, maxNodes} {
		fields := map[string]any{}
		for i := range n {
			fields[fmt.Sprintf("f:%05x", i)] = map[string]any{}
		}
		reads := 0
		live := &cancelling{Unstructured: unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
			"name":          "one",
			"managedFields": []any{map[string]any{"manager": "others", "operation": "Update", "fieldsV1": fields}},
		}}}, read: func() { reads++ }}
		config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": map[string]any{"name": "one"}}}
		err := Taken(t.Context(), "m", encoded(t, config), live)
		if (err == nil) != (n < maxNodes) || (reads > 0) != (n < maxNodes) {
			t.Errorf("%d owned fields: error %v, %d reads of managedFields", n, err, reads)
		}
	}
}

// TestManyManagers: a decision reads the managedFields of an object once, however many
// managers there are, because an unstructured object converts them at each read.
func TestManyManagers(t *testing.T) {
	var entries []metav1.ManagedFieldsEntry
	for i := range 1_000 {
		entries = append(entries, metav1.ManagedFieldsEntry{Manager: fmt.Sprint(i), Operation: "Apply", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)})
	}
	live := &cancelling{Unstructured: unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": map[string]any{"name": "one"}}}}
	live.SetManagedFields(entries)
	reads := 0
	live.read = func() { reads++ }
	config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": map[string]any{"name": "one"}, "spec": "text"}}
	for name, decide := range map[string]func(c *Config){
		"Unchanged": func(c *Config) {
			_, _ = Unchanged[*cancelling, *unstructured.Unstructured](t.Context(), "m", c, live, nil)
		},
		"Taken": func(c *Config) { _ = Taken(t.Context(), "m", c, live) },
		"Sum":   func(c *Config) { _, _, _ = c.Sum(live, true) },
	} {
		c := encoded(t, config)
		reads = 0
		if decide(c); reads != 1 {
			t.Errorf("%s reads managedFields %d times, want once", name, reads)
		}
	}
}

// TestSumSeparates: objects that differ only in where a name ends have different sums, and so
// have those whose owners differ. The API server stores NUL and all other characters in
// names.
func TestSumSeparates(t *testing.T) {
	config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": map[string]any{"name": "one"}}}
	sums := map[Sum]int{}
	objects := []map[string]any{
		{},
		{"a": int64(1), "b": int64(2)},
		{"a\x001\x00b": int64(2)},
		{"a": "1\x00b\x002"},
		{"a1:1b": int64(2)},
		{"metadata": map[string]any{"name": "one", "a": int64(1)}},
		{"metadata": map[string]any{"name": "one"}, "a": int64(1)},
		{"metadata": map[string]any{"name": "one", "managedFields": []any{map[string]any{"manager": "a", "fieldsV1": map[string]any{"f:spec": map[string]any{}}}}}},
		{"metadata": map[string]any{"name": "one", "managedFields": []any{map[string]any{"manager": "b", "fieldsV1": map[string]any{"f:spec": map[string]any{}}}}}},
	}
	for i, content := range objects {
		sum, _, ok := encoded(t, config).Sum(&unstructured.Unstructured{Object: content}, true)
		if other, twice := sums[sum]; !ok || twice {
			t.Errorf("ok = %v, and the objects %q and %q have one sum", ok, content, objects[other])
		}
		sums[sum] = i
	}
}

// TestSumOfTemplates: the templates of a StatefulSet have one sum with and without their types,
// which depend on the encoding of the read, and another with another value. A list that is none
// of objects has a sum too. Other kinds keep the types.
func TestSumOfTemplates(t *testing.T) {
	for _, tt := range []struct {
		apiVersion, kind string
		a, b             any
		same             bool
	}{
		{"apps/v1", "StatefulSet", []any{map[string]any{"kind": "PersistentVolumeClaim", "apiVersion": "v1", "spec": "a"}}, []any{map[string]any{"spec": "a"}}, true},
		{"apps/v1", "StatefulSet", []any{map[string]any{"spec": "a"}}, []any{map[string]any{"spec": "b"}}, false},
		{"apps/v1", "StatefulSet", []any{map[string]any{"spec": "a"}}, []any{}, false},
		{"apps/v1", "StatefulSet", []any{"a"}, []any{"b"}, false},
		{"apps.example.com/v1", "StatefulSet", []any{map[string]any{"kind": "A"}}, []any{map[string]any{}}, false},
		{"apps/v1", "Deployment", []any{map[string]any{"kind": "A"}}, []any{map[string]any{}}, false},
	} {
		sum := func(templates any) Sum {
			content := map[string]any{"apiVersion": tt.apiVersion, "kind": tt.kind, "metadata": map[string]any{"name": "one"}}
			config := encoded(t, &unstructured.Unstructured{Object: content})
			live := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(1), "volumeClaimTemplates": templates}}}
			sum, _, ok := config.Sum(live, true)
			if !ok {
				t.Errorf("%v has no sum", live)
			}
			return sum
		}
		if same := sum(tt.a) == sum(tt.b); same != tt.same {
			t.Errorf("%s %s: %v and %v have one sum: %v, want %v", tt.apiVersion, tt.kind, tt.a, tt.b, same, tt.same)
		}
	}
}

// TestStepsAreBounded: a decision that would compare each field with each other one gives up.
func TestStepsAreBounded(t *testing.T) {
	const n = 8_000 // three times as many nodes are fewer than maxNodes
	values, fields := make([]string, n), make([]string, n)
	for i := range n {
		values[i] = fmt.Sprintf(`"%05x":"x"`, i)
		fields[n-1-i] = fmt.Sprintf(`"f:%05x":{}`, i)
	}
	d := &decider{forest: newForest(0)}
	var roots [3]int32
	for i, members := range [][]string{values, fields, values} {
		root, err := d.parse("{" + strings.Join(members, ",") + "}")
		if err != nil {
			t.Fatal(err)
		}
		roots[i] = root
	}
	d.value(roots[0], roots[1], roots[2], false)
	if d.why == "" || d.steps > maxSteps+4 {
		t.Errorf("the comparison ends after %d steps, because %q, want at most %d", d.steps, d.why, maxSteps)
	}
}
