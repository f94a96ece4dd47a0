package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// large is a number of values that a decision compares, and that takes many looks at the
// context.
const large = 2_500

// visited is the cost of a decision: the values that it read, and its comparisons.
func visited(c *Config) int { return len(c.forest.nodes) + c.forest.steps }

// cancelling is an object that cancels a context when a decision reads its managedFields.
type cancelling struct {
	unstructured.Unstructured
	read func()
}

func (c *cancelling) GetManagedFields() []metav1.ManagedFieldsEntry {
	if c.read != nil {
		c.read()
	}
	return c.Unstructured.GetManagedFields()
}

func objectOf(t *testing.T, managedFields ...map[string]any) *cancelling {
	t.Helper()
	data := map[string]any{}
	for i := range large {
		data[fmt.Sprintf("k%05x", i)] = "v"
	}
	content := map[string]any{"apiVersion": "example.com/v1", "kind": "Thing", "metadata": map[string]any{"name": "one"}, "spec": data}
	if managedFields != nil {
		var entries []any
		for _, e := range managedFields {
			entries = append(entries, e)
		}
		content["metadata"].(map[string]any)["managedFields"] = entries
	}
	return &cancelling{Unstructured: unstructured.Unstructured{Object: content}}
}

func ownedBy(manager, operation string) map[string]any {
	fields := map[string]any{}
	for i := range large {
		fields[fmt.Sprintf("f:k%05x", i)] = map[string]any{}
	}
	return map[string]any{"manager": manager, "operation": operation, "apiVersion": "example.com/v1", "fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:spec": fields}}
}

func encoded(t *testing.T, config any) *Config {
	t.Helper()
	c, err := Encode(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestContextEndsDecision: a decision that has begun stops within some thousand values after
// the end of its context. Without that it visits all values.
func TestContextEndsDecision(t *testing.T) {
	for _, tt := range []struct {
		name   string
		decide func(ctx context.Context, c *Config, live *cancelling) (why string)
	}{
		{"Unchanged", func(ctx context.Context, c *Config, live *cancelling) string {
			unchanged, why := Unchanged[*cancelling, *unstructured.Unstructured](ctx, "m", c, live, nil)
			if unchanged != (why == "") {
				t.Errorf("unchanged = %v, because %q", unchanged, why)
			}
			return why
		}},
		{"Taken", func(ctx context.Context, c *Config, live *cancelling) string {
			if err := Taken(ctx, "m", c, live); err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error %v, want %v", err, context.Canceled)
				}
				return err.Error()
			}
			return ""
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			live := objectOf(t, ownedBy("m", "Apply"), ownedBy("others", "Update"))
			config := objectOf(t)
			whole := encoded(t, &config.Unstructured)
			begun := visited(whole)
			if why := tt.decide(t.Context(), whole, live); why != "" {
				t.Fatalf("a difference: %s", why)
			}
			if cost := visited(whole) - begun; cost < 2*large {
				t.Fatalf("the decision visits %d values: it is too small for this test", cost)
			}
			ctx, cancel := context.WithCancel(t.Context())
			c := encoded(t, &config.Unstructured)
			begun = visited(c)
			live.read = cancel
			if why := tt.decide(ctx, c, live); why == "" {
				t.Error("a decision without doubt, after the end of its context")
			}
			if cost := len(c.forest.nodes) - begun; cost > 2*interval {
				t.Errorf("the decision reads %d values after the end of its context, want at most %d", cost, 2*interval)
			}
		})
	}
}

// TestContextEndsComparison: each step of a decision looks at the context, not only its
// reading of objects. The context ends when everything has been read.
func TestContextEndsComparison(t *testing.T) {
	names := make([]string, large)
	for i := range names {
		names[i] = fmt.Sprintf("%05x", i)
	}
	join := func(format, separator string) string {
		parts := make([]string, large)
		for i, name := range names {
			parts[i] = fmt.Sprintf(format, name)
		}
		return strings.Join(parts, separator)
	}
	var (
		values     = `{` + join(`"%s":"x"`, ",") + `}`
		fields     = `{` + join(`"f:%s":{}`, ",") + `}`
		items      = `[` + join(`{"name":"%s"}`, ",") + `]`
		itemFields = `{` + join(`"k:{\"name\":\"%s\"}":{".":{},"f:name":{}}`, ",") + `}`
		set        = `[` + join(`"%s"`, ",") + `]`
		setFields  = `{` + join(`"v:\"%s\"":{}`, ",") + `}`
	)
	for _, tt := range []struct {
		name                string
		config, owned, live string
		compare             func(d *decider, config, owned, live int32)
	}{
		{"a map", values, fields, values, func(d *decider, c, o, l int32) { d.value(c, o, l, false) }},
		{"an atomic map", values, `{}`, values, func(d *decider, c, o, l int32) { d.value(c, o, l, false) }},
		{"a list with keys", items, itemFields, items, func(d *decider, c, o, l int32) { d.value(c, o, l, false) }},
		{"a set", set, setFields, set, func(d *decider, c, o, l int32) { d.value(c, o, l, false) }},
		{"duplicates", values, `{}`, values, func(d *decider, c, _, _ int32) { d.duplicates(c) }},
		{"what others own", values, fields, `{}`, func(d *decider, c, o, _ int32) { (&taker{decider: d}).compare(c, o) }},
		{"what extract returned", values, `{}`, values, func(d *decider, c, _, l int32) {
			d.beside(c, l, func(_, _ int32) bool { return false })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cost := func(done <-chan struct{}) (cost int) {
				d := &decider{forest: newForest(0)}
				var roots [3]int32
				for i, src := range []string{tt.config, tt.owned, tt.live} {
					root, err := d.parse(src)
					if err != nil {
						t.Fatal(err)
					}
					roots[i] = root
				}
				d.done = done
				begun := d.steps + len(d.nodes)
				if done != nil {
					begun = maxSteps + 1 + len(d.nodes) // the end of the context exhausts the steps
				}
				tt.compare(d, roots[0], roots[1], roots[2])
				if d.exhausted() != (done != nil) {
					t.Errorf("exhausted = %v", d.exhausted())
				}
				return d.steps + len(d.nodes) - begun
			}
			done := make(chan struct{})
			close(done)
			whole := cost(nil)
			if whole < large {
				t.Fatalf("%d steps: the comparison is too small for this test", whole)
			}
			if after := cost(done); after > interval {
				t.Errorf("%d of %d steps after the end of the context", after, whole)
			}
		})
	}
}
