package diff_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/preview/internal/diff"
)

func object(t *testing.T, text string) (m map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestFields(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after string
		secret        bool
		want          []diff.Field
	}{
		"equal":           {before: `{"a":1}`, after: `{"a":1}`},
		"of each write":   {before: `{"metadata":{"resourceVersion":"1","generation":1}}`, after: `{"metadata":{"resourceVersion":"2","generation":2}}`},
		"changed":         {before: `{"a":{"b":1,"c":true}}`, after: `{"a":{"b":2,"c":true}}`, want: []diff.Field{{".a.b", "1", "2"}}},
		"added":           {before: `{}`, after: `{"a":null,"b":{"c":"d"}}`, want: []diff.Field{{".a", "", "null"}, {".b", "", `{"c":"d"}`}}},
		"removed":         {before: `{"a":[1]}`, after: `{}`, want: []diff.Field{{".a", "[1]", ""}}},
		"other type":      {before: `{"a":[1]}`, after: `{"a":{"b":1}}`, want: []diff.Field{{".a", "[1]", `{"b":1}`}}},
		"large numbers":   {before: `{"a":9007199254740993}`, after: `{"a":9007199254740992}`, want: []diff.Field{{".a", "9007199254740993", "9007199254740992"}}},
		"scalars":         {before: `{"a":["x","y"]}`, after: `{"a":["y"]}`, want: []diff.Field{{".a", `["x","y"]`, `["y"]`}}},
		"named items":     {before: `{"a":[{"name":"x","v":1},{"name":"y"}]}`, after: `{"a":[{"name":"z"},{"name":"x","v":2}]}`, want: []diff.Field{{".a[name=x].v", "1", "2"}, {".a[name=y]", `{"name":"y"}`, ""}, {".a[name=z]", "", `{"name":"z"}`}}},
		"another order":   {before: `{"a":[{"name":"x"},{"name":"y"}]}`, after: `{"a":[{"name":"y"},{"name":"x"}]}`, want: []diff.Field{{".a", `[{"name":"x"},{"name":"y"}]`, `[{"name":"y"},{"name":"x"}]`}}},
		"a name twice":    {before: `{"a":[{"name":"x"},{"name":"x"}]}`, after: `{"a":[{"name":"x"}]}`, want: []diff.Field{{".a", `[{"name":"x"},{"name":"x"}]`, `[{"name":"x"}]`}}},
		"ports":           {before: `{"a":[{"containerPort":80}]}`, after: `{"a":[{"containerPort":80,"protocol":"UDP"}]}`, want: []diff.Field{{".a[containerPort=80].protocol", "", `"UDP"`}}},
		"owners alone":    {before: `{"metadata":{"managedFields":[{"manager":"a","time":"1"}]}}`, after: `{"metadata":{"managedFields":[{"manager":"b","time":"1"}]}}`, want: []diff.Field{{".metadata.managedFields", "(hidden)", "(hidden)"}}},
		"time of owners":  {before: `{"metadata":{"managedFields":[{"manager":"a","time":"1"}]}}`, after: `{"metadata":{"managedFields":[{"manager":"a","time":"2"}]}}`},
		"owners and more": {before: `{"a":1,"metadata":{"managedFields":[{"manager":"a"}]}}`, after: `{"a":2,"metadata":{"managedFields":[{"manager":"b"}]}}`, want: []diff.Field{{".a", "1", "2"}}},
		"secret":          {before: `{"data":{"p":"aHVudGVy"},"metadata":{"labels":{"a":"b"}}}`, after: `{"data":{"p":"eA=="},"metadata":{"labels":{"a":"c"}}}`, secret: true, want: []diff.Field{{".data.p", "(hidden)", "(hidden)"}, {".metadata.labels.a", `"b"`, `"c"`}}},
		"control":         {before: `{}`, after: `{"a\u001b":"b\u001b"}`, want: []diff.Field{{`.a\x1b`, "", `"b\u001b"`}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, omitted := diff.Fields(object(t, tt.before), object(t, tt.after), tt.secret)
			if diff := cmp.Diff(tt.want, got); diff != "" || omitted != 0 {
				t.Errorf("%d omitted, (-want +got)\n%s", omitted, diff)
			}
		})
	}
}

// TestLarge has an object of a hostile user: the fields and their values are cut.
func TestLarge(t *testing.T) {
	before, after := map[string]any{}, map[string]any{}
	for n := range 100_000 {
		after[fmt.Sprint("a", n)] = strings.Repeat("x", 1000)
	}
	var items, more []any
	for n := range 100_000 {
		items = append(items, map[string]any{"name": fmt.Sprint(n)})
		more = append(more, map[string]any{"name": fmt.Sprint(100_000 - n)})
	}
	before["list"], after["list"] = items, more
	fields, omitted := diff.Fields(before, after, false)
	size := 0
	for _, f := range fields {
		size += len(f.Path) + len(f.Old) + len(f.New)
	}
	if len(fields) != 100 || omitted != 99_902 || size > 100_000 {
		t.Errorf("%d fields of %d bytes, %d omitted", len(fields), size, omitted)
	}
}

func TestRestartsPods(t *testing.T) {
	for _, tt := range []struct {
		resource, before, after string
		want                    bool
	}{
		{"deployments.apps", `{"spec":{"template":{"a":1}}}`, `{"spec":{"template":{"a":2}}}`, true},
		{"deployments.apps", `{"spec":{"replicas":1,"template":{"a":1}}}`, `{"spec":{"replicas":2,"template":{"a":1}}}`, false},
		{"deployments.apps", `{"spec":{"template":{"a":1}}}`, `{"spec":{"paused":true,"template":{"a":2}}}`, false},
		{"daemonsets.apps", `{"spec":{"template":{"a":1}}}`, `{"spec":{"updateStrategy":{"type":"OnDelete"},"template":{"a":2}}}`, false},
		{"statefulsets.apps", `{"spec":{"template":{"a":1}}}`, `{"spec":{"updateStrategy":{"type":"RollingUpdate"},"template":{"a":2}}}`, true},
		{"cronjobs.batch", `{"spec":{"template":{"a":1}}}`, `{"spec":{"template":{"a":2}}}`, false},
		{"deployments.apps", `{}`, `{}`, false},
	} {
		if got := diff.RestartsPods(tt.resource, object(t, tt.before), object(t, tt.after)); got != tt.want {
			t.Errorf("%s, %s to %s: got %v, want %v", tt.resource, tt.before, tt.after, got, tt.want)
		}
	}
}
