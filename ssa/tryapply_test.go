package ssa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/ssa"
)

// The conflicts that TryApply finds in managedFields, without a request.
//
// Proves A1.
func TestTryApplyTypes(t *testing.T) {
	many := func(n int, format, separator string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = fmt.Sprintf(format, i)
		}
		return strings.Join(items, separator)
	}
	painter := func(fields string) []metav1.ManagedFieldsEntry {
		return []metav1.ManagedFieldsEntry{entry("painter", "Apply", "example.com/v1", "", `{"f:spec":`+fields+`}`)}
	}
	const member = `{"f:conf":{"f:host":{}}}`
	for _, tt := range []struct {
		name   string
		config string // the spec
		owned  []metav1.ManagedFieldsEntry
		want   []ssa.Conflict
		text   string // of another error
	}{
		{name: "a text for a map", config: `{"conf":"x"}`, owned: painter(member), want: []ssa.Conflict{{Field: ".spec.conf", Manager: "painter"}}},
		{name: "a list for a map", config: `{"conf":[]}`, owned: painter(member), want: []ssa.Conflict{{Field: ".spec.conf", Manager: "painter"}}},
		{name: "a map for a map", config: `{"conf":{}}`, owned: painter(member)},
		{name: "null for a map", config: `{"conf":null}`, owned: painter(member)},
		{name: "a map for a list", config: `{"conf":{}}`, owned: painter(`{"f:conf":{"v:1":{}}}`), want: []ssa.Conflict{{Field: ".spec.conf", Manager: "painter"}}},
		{name: "a list for a list", config: `{"conf":[]}`, owned: painter(`{"f:conf":{"v:1":{}}}`)},
		{name: "a text for an empty map", config: `{"conf":"x"}`, owned: painter(`{"f:conf":{}}`)},
		{name: "a text for an item that is owned as itself", config: `{"conf":"x"}`, owned: painter(`{"f:conf":{".":{}}}`)},
		{name: "another field", config: `{"other":"x"}`, owned: painter(member)},
		{name: "the own fields", config: `{"conf":"x"}`, owned: []metav1.ManagedFieldsEntry{
			entry(string(manager), "Apply", "example.com/v1", "", `{"f:spec":`+member+`}`),
			entry(string(manager), "Apply", "example.com/v1", "status", `{"f:spec":`+member+`}`),
			{Manager: "nobody"},
		}},
		{name: "an own update, and another apply", config: `{"conf":"x"}`, owned: append(painter(member),
			entry(string(manager), "Update", "example.com/v1", "", `{"f:spec":`+member+`}`)),
			want: []ssa.Conflict{{Field: ".spec.conf", Manager: string(manager)}, {Field: ".spec.conf", Manager: "painter"}}},
		{name: "one manager, twice", config: `{"conf":"x"}`, owned: append(painter(member), painter(member)...), want: []ssa.Conflict{{Field: ".spec.conf", Manager: "painter"}}},
		{name: "two fields", config: `{"a":{"b":1},"c":1}`, owned: painter(`{"f:a":{"f:b":{"f:x":{}}},"f:c":{"f:x":{}}}`),
			want: []ssa.Conflict{{Field: ".spec.a.b", Manager: "painter"}, {Field: ".spec.c", Manager: "painter"}}},
		{
			name: "items", config: `{"l":[{"port":80,"name":"a"},{"port":81,"name":"a","conf":1},{"name":"b","conf":1}]}`,
			owned: painter(`{"f:l":{"k:{\"port\":80,\"name\":\"a\"}":{"f:conf":{"f:x":{}}},"k:{\"port\":81,\"name\":\"a\"}":{".":{},"f:conf":{"f:x":{}}},"k:{\"port\":82,\"name\":\"a\"}":{"f:conf":{"f:x":{}}}}}`),
			want:  []ssa.Conflict{{Field: `.spec.l[port=81,name="a"].conf`, Manager: "painter"}},
		},
		{
			name: "an item that omits a part of the key", config: `{"l":[{"port":80,"conf":1}]}`,
			owned: painter(`{"f:l":{"k:{\"port\":80,\"name\":\"a\"}":{"f:conf":{"f:x":{}}}}}`),
			want:  []ssa.Conflict{{Field: `.spec.l[port=80,name="a"].conf`, Manager: "painter"}},
		},
		{name: "items that are no objects", config: `{"l":["a"]}`, owned: painter(`{"f:l":{"k:{\"name\":\"a\"}":{"f:conf":{"f:x":{}}}}}`)},
		{name: "items that are owned by value", config: `{"l":["a"]}`, owned: painter(`{"f:l":{"v:\"a\"":{"f:conf":{"f:x":{}}}}}`)},
		{name: "more conflicts than an error lists", config: `{` + many(65, `"a%02d":1`, ",") + `}`, owned: painter(`{` + many(65, `"f:a%02d":{"f:x":{}}`, ",") + `}`),
			want: func() (all []ssa.Conflict) {
				for i := range 64 {
					all = append(all, ssa.Conflict{Field: fmt.Sprintf(".spec.a%02d", i), Manager: "painter"})
				}
				return all
			}()},
		{name: "many items that are owned without members", config: `{"l":[{"name":"x"}]}`, owned: painter(`{"f:l":{` + many(10_000, `"k:{\"name\":\"%d\"}":{}`, ",") + `}}`)},
		{name: "keys that are too many to compare", config: `{"l":[{"name":"8999","conf":1}]}`, owned: painter(`{"f:l":{` + many(9_000, `"k:{\"name\":\"%d\"}":{"f:conf":{"f:x":{}}}`, ",") + `}}`), text: `the fields of "painter": too large`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			live := untypedObject(t, "example.com/v1", "Thing", "", "", `{}`)
			live.SetManagedFields(tt.owned)
			requests := &untypedAnswers{answer: live}
			_, err := ssa.TryApply(t.Context(), manager, requests.Apply, untypedObject(t, "example.com/v1", "Thing", "", `,"spec":`+tt.config, ""), live)
			var got []ssa.Conflict
			if conflict, ok := errors.AsType[*ssa.ConflictError](err); ok {
				got = conflict.Conflicts
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("conflicts (-want +got):\n%s", diff)
			}
			if apierrors.IsConflict(err) != (tt.want != nil) || tt.text != "" && (err == nil || !strings.Contains(err.Error(), tt.text)) || tt.text == "" && tt.want == nil && err != nil {
				t.Errorf("error = %v, want one with %q", err, tt.text)
			}
			if want := tt.want == nil && tt.text == ""; (requests.n == 1) != want {
				t.Errorf("%d requests, want one: %v", requests.n, want)
			}
		})
	}
}

// TryApply sends no request if it cannot read managedFields.
//
// Proves A1.
func TestTryApplyMalformed(t *testing.T) {
	live, _ := applied(t)
	for _, fields := range []string{`{"f:data":`, `{"f:data":{"k:{":{"f:a":{}}}}`} {
		live.ManagedFields = []metav1.ManagedFieldsEntry{entry("painter", "Apply", "v1", "", fields)}
		raw := &answers[*corev1.ConfigMap, *rawConfig]{answer: live}
		config := &rawConfig{json.RawMessage(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","uid":"a"},"data":[{}]}`)}
		if _, err := ssa.TryApply(t.Context(), manager, raw.Apply, config, live); err == nil || !strings.Contains(err.Error(), `the fields of "painter": malformed JSON`) || raw.n > 0 {
			t.Errorf("%s: error = %v with %d requests, want one about the fields of painter", fields, err, raw.n)
		}
	}
}
