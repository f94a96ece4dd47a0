package ssa_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/ssa"
)

const manager ssa.FieldManager = "example.com/colors"

type (
	config = applycorev1.ConfigMapApplyConfiguration
	quota  = applycorev1.ResourceQuotaApplyConfiguration
)

var errBoom = errors.New("boom")

// recorder is a client that remembers what it was asked, and answers the same to
// everything.
type recorder struct {
	calls  []string
	config *config
	err    error
}

func (r *recorder) Apply(_ context.Context, c *config, opts metav1.ApplyOptions) (*corev1.ConfigMap, error) {
	r.calls = append(r.calls, fmt.Sprintf("apply %s force=%v dryRun=%d", opts.FieldManager, opts.Force, len(opts.DryRun)))
	r.config = c
	return &corev1.ConfigMap{}, r.err
}

func (r *recorder) ApplyStatus(_ context.Context, c *config, opts metav1.ApplyOptions) (*corev1.ConfigMap, error) {
	r.calls = append(r.calls, fmt.Sprintf("applyStatus %s force=%v dryRun=%d", opts.FieldManager, opts.Force, len(opts.DryRun)))
	r.config = c
	return &corev1.ConfigMap{}, r.err
}

// verbs are the functions of the package with one shape.
var verbs = []struct {
	name string
	call func(context.Context, ssa.FieldManager, *recorder, *config) (*corev1.ConfigMap, error)
	want string // the request
}{
	{
		name: "Apply", want: "apply example.com/colors force=true dryRun=0",
		call: func(ctx context.Context, fm ssa.FieldManager, r *recorder, c *config) (*corev1.ConfigMap, error) {
			return ssa.Apply(ctx, fm, r.Apply, c)
		},
	},
	{
		name: "ApplyStatus", want: "applyStatus example.com/colors force=true dryRun=0",
		call: func(ctx context.Context, fm ssa.FieldManager, r *recorder, c *config) (*corev1.ConfigMap, error) {
			return ssa.Apply(ctx, fm, r.ApplyStatus, c)
		},
	},
	{
		name: "TryApply", want: "apply example.com/colors force=false dryRun=0",
		call: func(ctx context.Context, fm ssa.FieldManager, r *recorder, c *config) (*corev1.ConfigMap, error) {
			return ssa.TryApply(ctx, fm, r.Apply, c, nil)
		},
	},
	{
		name: "TryApplyStatus", want: "applyStatus example.com/colors force=false dryRun=0",
		call: func(ctx context.Context, fm ssa.FieldManager, r *recorder, c *config) (*corev1.ConfigMap, error) {
			return ssa.TryApply(ctx, fm, r.ApplyStatus, c, nil)
		},
	},
	{
		name: "ApplyChanged", want: "apply example.com/colors force=true dryRun=0",
		call: func(ctx context.Context, fm ssa.FieldManager, r *recorder, c *config) (*corev1.ConfigMap, error) {
			answer, applied, err := ssa.ApplyChanged(ctx, fm, r.Apply, c, nil, applycorev1.ExtractConfigMap)
			if applied != (err == nil) {
				return nil, fmt.Errorf("applied = %v", applied)
			}
			return answer, err
		},
	},
}

func TestRequests(t *testing.T) {
	for _, verb := range verbs {
		t.Run(verb.name, func(t *testing.T) {
			r := &recorder{}
			c := applycorev1.ConfigMap("one", "default").WithUID("a").WithData(map[string]string{"a": "b"})
			before := fmt.Sprintf("%+v %+v", c, c.ObjectMetaApplyConfiguration)
			answer, err := verb.call(t.Context(), manager, r, c)
			if err != nil || answer == nil {
				t.Errorf("answer %v, error %v", answer, err)
			}
			if diff := cmp.Diff([]string{verb.want}, r.calls); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if r.config != c || fmt.Sprintf("%+v %+v", c, c.ObjectMetaApplyConfiguration) != before {
				t.Error("the configuration sent is not the one given")
			}
		})
	}
}

// TestFieldManager proves CK2.
func TestFieldManager(t *testing.T) {
	tests := []struct {
		name    string
		manager ssa.FieldManager
		text    string // "" means valid
	}{
		{name: "longest", manager: ssa.FieldManager(strings.Repeat("a", 128))},
		{name: "empty", manager: "", text: "field manager is empty"},
		{name: "not printable", manager: "a\nb", text: "unprintable"},
		{name: "not UTF-8", manager: "a\xff", text: "unprintable"},
		{name: "too long", manager: ssa.FieldManager(strings.Repeat("a", 129)), text: "129 bytes"},
		{name: "too long in bytes", manager: ssa.FieldManager(strings.Repeat("ü", 65)), text: "130 bytes"},
	}
	for _, tt := range tests {
		for _, verb := range verbs {
			t.Run(tt.name+"/"+verb.name, func(t *testing.T) {
				r := &recorder{}
				_, err := verb.call(t.Context(), tt.manager, r, applycorev1.ConfigMap("one", "default"))
				if (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
					t.Errorf("error = %v, want one with %q", err, tt.text)
				}
				if err != nil && len(r.calls) > 0 {
					t.Errorf("%d requests", len(r.calls))
				}
			})
		}
	}
	// Even when there would be nothing to apply.
	live, c := applied(t)
	if _, _, err := ssa.ApplyChanged(t.Context(), "", (&recorder{}).Apply, c, live, func(*corev1.ConfigMap, string) (*config, error) { return c, nil }); err == nil {
		t.Error("ApplyChanged takes an empty field manager")
	}
}

// Callers can tell the kinds of conflict apart, and every error keeps its cause.
func TestErrors(t *testing.T) {
	fields := apierrors.NewApplyConflict([]metav1.StatusCause{
		{Type: metav1.CauseTypeFieldManagerConflict, Field: ".data.color", Message: `conflict with "kubectl-edit" using v1 at 2026-01-02T03:04:05Z`},
		{Type: metav1.CauseTypeFieldManagerConflict, Field: ".data.size", Message: `conflict with "a \"b\"" with subresource "status"`},
		{Type: metav1.CauseTypeFieldManagerConflict, Field: ".data.shape", Message: "something new"},
	}, "Apply failed with 3 conflicts")
	tests := []struct {
		name         string
		err          error
		conflicts    []ssa.Conflict
		uidMismatch  bool
		wantConflict bool
	}{
		{
			name: "fields", err: fields, wantConflict: true,
			conflicts: []ssa.Conflict{{Field: ".data.color", Manager: "kubectl-edit"}, {Field: ".data.shape"}, {Field: ".data.size", Manager: `a "b"`}},
		},
		{
			name: "resourceVersion", wantConflict: true,
			err: apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "one", errors.New("the object has been modified")),
		},
		{
			name: "no object", wantConflict: true, uidMismatch: true,
			err: apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "one", errors.New("uid mismatch: the provided object specified uid a, and no existing object was found")),
		},
		{
			name: "another object", uidMismatch: true,
			err: apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "one", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "a", "field is immutable")}),
		},
		{
			name: "validation",
			err:  apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "one", field.ErrorList{field.Required(field.NewPath("data"), "")}),
		},
		{name: "without details", err: &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonConflict}}, wantConflict: true},
		{name: "not of the API", err: errBoom},
	}
	for _, tt := range tests {
		for _, verb := range verbs {
			t.Run(tt.name+"/"+verb.name, func(t *testing.T) {
				answer, err := verb.call(t.Context(), manager, &recorder{err: tt.err}, applycorev1.ConfigMap("one", "default"))
				if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), string(manager)) {
					t.Fatalf("error = %v, want one that names %s and wraps %v", err, manager, tt.err)
				}
				if answer != nil {
					t.Errorf("answer %v with an error", answer)
				}
				if text := err.Error(); strings.Count(text, "ssa: ") != 1 {
					t.Errorf("error %q, want the prefix ssa once", text)
				}
				var conflict *ssa.ConflictError
				if errors.As(err, &conflict) != (tt.conflicts != nil) {
					t.Errorf("error = %#v, want a ConflictError: %v", err, tt.conflicts != nil)
				}
				if conflict != nil {
					if diff := cmp.Diff(tt.conflicts, conflict.Conflicts); diff != "" {
						t.Errorf("conflicts (-want +got):\n%s", diff)
					}
					if text := err.Error(); !strings.Contains(text, `.data.color by "kubectl-edit"`) {
						t.Errorf("error %q does not name field and manager", text)
					}
				}
				if errors.Is(err, ssa.ErrUIDMismatch) != tt.uidMismatch || apierrors.IsConflict(err) != tt.wantConflict || apierrors.IsInvalid(err) != apierrors.IsInvalid(tt.err) {
					t.Errorf("error = %v: uid mismatch %v, conflict %v, invalid %v", err, errors.Is(err, ssa.ErrUIDMismatch), apierrors.IsConflict(err), apierrors.IsInvalid(err))
				}
			})
		}
	}
}

// applied returns an object with a configuration that says the same.
func applied(t testing.TB) (*corev1.ConfigMap, *config) {
	t.Helper()
	c := applycorev1.ConfigMap("one", "default").WithData(map[string]string{"color": "red"}).WithLabels(map[string]string{"a": "b"})
	live, err := ssa.Apply(t.Context(), manager, fake.NewClientset().CoreV1().ConfigMaps("default").Apply, c)
	if err != nil {
		t.Fatal(err)
	}
	live.UID, live.ResourceVersion = "a", "7"
	return live, c
}

// TestApplyChanged proves CK1.
func TestApplyChanged(t *testing.T) {
	live, _ := applied(t)
	none := func(c *config) *config { return c }
	manyData := map[string]string{} // more values than a decision compares
	for i := range 1<<15 + 1 {
		manyData[fmt.Sprint(i)] = ""
	}
	tests := []struct {
		name      string
		manager   ssa.FieldManager
		config    func(*config) *config
		live      func(*corev1.ConfigMap) *corev1.ConfigMap
		noExtract bool
		want      bool
	}{
		{name: "same", config: none, want: false},
		{name: "same uid and resourceVersion", config: func(c *config) *config { return c.WithUID("a").WithResourceVersion("7") }, want: false},
		{name: "other uid", config: func(c *config) *config { return c.WithUID("b") }, want: true},
		{name: "other resourceVersion", config: func(c *config) *config { return c.WithResourceVersion("6") }, want: true},
		{name: "empty for nil", config: func(c *config) *config { c.BinaryData = map[string][]byte{}; return c }, want: false},
		{name: "other value", config: func(c *config) *config { return c.WithData(map[string]string{"color": "blue"}) }, want: true},
		{name: "one more field", config: func(c *config) *config { return c.WithData(map[string]string{"size": "1"}) }, want: true},
		{name: "one field less", config: func(c *config) *config { c.Labels = nil; return c }, want: true},
		{name: "another manager", manager: "somebody", config: none, want: true},
		{name: "changed under us", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.Data["color"] = "blue"; return o }},
		{name: "removed under us", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.Data = nil; return o }},
		{name: "fields of others do not count", config: none, want: false, live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.Data["other"] = "x"; return o }},
		{name: "no managedFields", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.ManagedFields = nil; return o }},
		{name: "no live object", config: none, want: true, live: func(*corev1.ConfigMap) *corev1.ConfigMap { return nil }},
		{name: "no extract", config: none, want: false, noExtract: true},
		{name: "owned fields that are no JSON", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.ManagedFields[0].FieldsV1 = metav1.NewFieldsV1(`{"f:data":`)
			return o
		}},
		{name: "no owned fields", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.ManagedFields[0].FieldsV1 = nil; return o }},
		{name: "owned in another version", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.ManagedFields[0].APIVersion = "v0"; return o }},
		{name: "owned by an update", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.ManagedFields[0].Operation = metav1.ManagedFieldsOperationUpdate
			return o
		}},
		{name: "owned in the status", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.ManagedFields[0].Subresource = "status"; return o }},
		{name: "too large to compare", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.Data["other"] = strings.Repeat("x", 3<<20)
			return o
		}},
		{name: "too many values to compare", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			maps.Copy(o.Data, manyData)
			return o
		}},
		{name: "too many owned fields to compare", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.ManagedFields = append(o.ManagedFields, entry("painter", "Update", "v1", "", strings.Repeat(" ", 3<<20)))
			return o
		}},
		{name: "a configuration that is too large to compare", config: func(c *config) *config { return c.WithData(manyData) }, want: true},
		{name: "a configuration that is too large to compare, with another uid", config: func(c *config) *config { return c.WithData(manyData).WithUID("b") }, want: true},
		{name: "kubectl", manager: "kubectl", config: none, want: false, live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.ManagedFields[0].Manager = "kubectl"
			return o
		}},
		{name: "kubectl, whose annotation the API server keeps in step", manager: "kubectl", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.ManagedFields[0].Manager = "kubectl"
			o.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}"}
			return o
		}},
		{name: "the annotation of kubectl", config: none, want: false, live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}"}
			return o
		}},
		{name: "owned by name besides", config: none, want: true, live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.ManagedFields[0].FieldsV1 = metav1.NewFieldsV1(`{"f:data":{".":{},"f:color":{}},"f:metadata":{"f:labels":{"f:a":{}}}}`)
			return o
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			live := live.DeepCopy()
			if tt.live != nil {
				live = tt.live(live)
			}
			fm := manager
			if tt.manager != "" {
				fm = tt.manager
			}
			extract := applycorev1.ExtractConfigMap
			if tt.noExtract {
				extract = nil
			}
			_, c := applied(t)
			c = tt.config(c)
			var beforeMeta, before string
			if c != nil {
				before, beforeMeta = fmt.Sprintf("%+v", c), fmt.Sprintf("%+v", c.ObjectMetaApplyConfiguration)
			}
			beforeLive := live.DeepCopy()
			r := &recorder{}
			got, applied, err := ssa.ApplyChanged(t.Context(), fm, r.Apply, c, live, extract)
			if err != nil || applied != tt.want || (len(r.calls) > 0) != tt.want {
				t.Errorf("applied = %v with %d requests, error %v, want %v", applied, len(r.calls), err, tt.want)
			}
			if tt.want && live != nil { // the request is for the live object only
				sent, guarded := *r.config, *c
				meta := *c.ObjectMetaApplyConfiguration
				guarded.ObjectMetaApplyConfiguration = &meta
				if meta.UID == nil {
					guarded.WithUID(live.UID)
				}
				if diff := cmp.Diff(guarded, sent); diff != "" {
					t.Errorf("sent configuration (-want +got):\n%s", diff)
				}
			}
			if tt.want {
				if got, applied, err := ssa.ApplyChanged(t.Context(), fm, (&recorder{err: errBoom}).Apply, c, live, extract); got != nil || applied || !errors.Is(err, errBoom) {
					t.Errorf("after an error: answer %v, applied = %v, error %v", got, applied, err)
				}
			}
			if (got == live) == tt.want {
				t.Errorf("returned live: %v, want %v", got == live, !tt.want)
			}
			if c != nil && (fmt.Sprintf("%+v", c) != before || fmt.Sprintf("%+v", c.ObjectMetaApplyConfiguration) != beforeMeta) {
				t.Error("the configuration changed")
			}
			if diff := cmp.Diff(beforeLive, live); diff != "" {
				t.Errorf("live changed (-before +after):\n%s", diff)
			}
		})
	}
}

// 1 and 1000m are one quantity, at any depth.
func TestApplyChangedQuantity(t *testing.T) {
	client := fake.NewClientset().CoreV1().ResourceQuotas("default")
	configuration := func(cpu string) *quota {
		return applycorev1.ResourceQuota("one", "default").WithSpec(applycorev1.ResourceQuotaSpec().
			WithHard(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}))
	}
	live, err := ssa.Apply(t.Context(), manager, client.Apply, configuration("1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cpu  string
		want bool
	}{{cpu: "1", want: false}, {cpu: "1000m", want: false}, {cpu: "1001m", want: true}} {
		_, applied, err := ssa.ApplyChanged(t.Context(), manager, client.Apply, configuration(tt.cpu), live, applycorev1.ExtractResourceQuota)
		if err != nil || applied != tt.want {
			t.Errorf("%s: applied = %v, error %v, want %v", tt.cpu, applied, err, tt.want)
		}
	}
}

// If extract does not answer, ApplyChanged applies. An answer holds for the process,
// so the kind must be one that no other test of this package decides about.
func TestApplyChangedExtractError(t *testing.T) {
	client := fake.NewClientset().AppsV1().StatefulSets("default")
	config := func() *applyappsv1.StatefulSetApplyConfiguration {
		return applyappsv1.StatefulSet("one", "default").WithSpec(applyappsv1.StatefulSetSpec().
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(map[string]string{"a": "b"})))
	}
	live, err := ssa.Apply(t.Context(), manager, client.Apply, config())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		extract func(*appsv1.StatefulSet, string) (*applyappsv1.StatefulSetApplyConfiguration, error)
		want    bool
	}{
		{name: "none", want: true},
		{name: "fails", want: true, extract: func(*appsv1.StatefulSet, string) (*applyappsv1.StatefulSetApplyConfiguration, error) {
			return nil, errBoom
		}},
		{name: "finds nothing", want: true, extract: func(*appsv1.StatefulSet, string) (*applyappsv1.StatefulSetApplyConfiguration, error) {
			return applyappsv1.StatefulSet("one", "default"), nil
		}},
		{name: "generated", extract: applyappsv1.ExtractStatefulSet, want: false},
		{name: "none, after an answer", want: false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, applied, err := ssa.ApplyChanged(t.Context(), manager, client.Apply, config(), live, tt.extract)
			if err != nil || applied != tt.want {
				t.Errorf("applied = %v, error %v, want %v", applied, err, tt.want)
			}
		})
	}
}

// Every mistake is an error that names the field, before any request.
//
// Proves CK2.
func TestBadInput(t *testing.T) {
	valid := func() *config { return applycorev1.ConfigMap("one", "default") }
	large := func(c *config) *config { // more values than a decision compares
		data := map[string]string{}
		for i := range 1<<15 + 1 {
			data[fmt.Sprint(i)] = ""
		}
		return c.WithData(data)
	}
	tests := []struct {
		name   string
		config *config
		live   *corev1.ConfigMap // only for ApplyChanged
		text   string
	}{
		{name: "nil", text: "configuration is nil"},
		{name: "without name", config: &config{TypeMetaApplyConfiguration: valid().TypeMetaApplyConfiguration}, text: "metadata.name"},
		{name: "empty name", config: applycorev1.ConfigMap("", "default"), text: "metadata.name"},
		{name: "without kind", config: func() *config { c := valid(); c.Kind = nil; return c }(), text: "kind"},
		{name: "without apiVersion", config: valid().WithAPIVersion(""), text: "apiVersion"},
		{name: "empty uid", config: valid().WithUID(""), text: "metadata.uid"},
		{name: "empty resourceVersion", config: valid().WithResourceVersion(""), text: "metadata.resourceVersion"},
		{name: "large, empty name", config: large(applycorev1.ConfigMap("", "default")), text: "metadata.name"},
		{name: "large, without kind", config: large(valid().WithKind("")), text: "kind"},
		{name: "large, without apiVersion", config: large(valid().WithAPIVersion("")), text: "apiVersion"},
		{name: "large, empty uid", config: large(valid().WithUID("")), text: "metadata.uid"},
		{name: "large, empty resourceVersion", config: large(valid().WithResourceVersion("")), text: "metadata.resourceVersion"},
		{name: "large, live of another namespace", config: large(valid()), live: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "other"}}, text: "metadata.namespace"},
		{name: "over 3 MiB", config: valid().WithData(map[string]string{"a": strings.Repeat("x", 3<<20)}), text: "3145728"},
		{name: "live of another name", config: valid(), live: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "two", Namespace: "default"}}, text: "metadata.name"},
		{name: "live of another namespace", config: valid(), live: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "other"}}, text: "metadata.namespace"},
	}
	for _, tt := range tests {
		for _, verb := range verbs {
			if tt.live != nil && verb.name != "ApplyChanged" {
				continue
			}
			t.Run(tt.name+"/"+verb.name, func(t *testing.T) {
				r := &recorder{}
				call := func() (*corev1.ConfigMap, error) { return verb.call(t.Context(), manager, r, tt.config) }
				if tt.live != nil {
					call = func() (*corev1.ConfigMap, error) {
						answer, applied, err := ssa.ApplyChanged(t.Context(), manager, r.Apply, tt.config, tt.live, applycorev1.ExtractConfigMap)
						if applied {
							t.Error("applied = true")
						}
						return answer, err
					}
				}
				answer, err := call()
				if err == nil || !strings.Contains(err.Error(), tt.text) || len(r.calls) > 0 || answer != nil {
					t.Errorf("answer %v, error %v with %d requests, want one with %q and none", answer, err, len(r.calls), tt.text)
				}
			})
		}
	}
}

// FuzzApplyChanged holds that no managedFields, however wrong, bring a panic, and that
// a skip is one for good reasons: each field of the configuration is among the owned.
func FuzzApplyChanged(f *testing.F) {
	f.Add(`{"f:data":{"f:color":{}},"f:metadata":{"f:labels":{"f:a":{}}}}`)
	f.Add(`{"f:data":{"k:{\"a\":1}":{".":{}},"v:\"x\"":{},"i:0":{}}}`)
	f.Add(`{"f:data":{"f:\u0063olor":{}}}`)
	f.Add(`[[[[{"":null}]]]]`)
	f.Add(`{"f:data":{"f:\ud83d\ude00":{}}`)
	f.Fuzz(func(t *testing.T, fields string) {
		live := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "a", ResourceVersion: "7", Labels: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: string(manager), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
			}}},
			Data: map[string]string{"color": "red"},
		}
		c := applycorev1.ConfigMap("one", "default").WithData(map[string]string{"color": "red"}).WithLabels(map[string]string{"a": "b"})
		r := &recorder{}
		_, applied, err := ssa.ApplyChanged(t.Context(), manager, r.Apply, c, live, nil)
		if err != nil {
			t.Fatal(err)
		}
		var owned map[string]map[string]any
		if !applied && (json.Unmarshal([]byte(fields), &owned) != nil || len(owned) != 2 || len(owned["f:data"]) != 1 || len(owned["f:metadata"]) != 1) {
			t.Errorf("skipped although %s is owned", fields)
		}
	})
}

// rawConfig is a configuration as it is, such as one with raw JSON in it.
type rawConfig struct{ json.RawMessage }

type rawApplier struct{ applied int }

func (a *rawApplier) Apply(context.Context, *rawConfig, metav1.ApplyOptions) (*corev1.ConfigMap, error) {
	a.applied++
	return &corev1.ConfigMap{}, nil
}

// A client that is nil is an error, before the panic that it would be.
//
// Proves CK2.
func TestNilRequest(t *testing.T) {
	type request = func(context.Context, *config, metav1.ApplyOptions) (*corev1.ConfigMap, error)
	c := applycorev1.ConfigMap("one", "default")
	_, applyErr := ssa.Apply(t.Context(), manager, request(nil), c)
	_, tryErr := ssa.TryApply(t.Context(), manager, request(nil), c, nil)
	_, _, changedErr := ssa.ApplyChanged(t.Context(), manager, request(nil), c, nil, nil)
	for _, err := range []error{applyErr, tryErr, changedErr} {
		if err == nil || !strings.HasPrefix(err.Error(), "ssa: request is nil") {
			t.Errorf("error = %v, want one about the request", err)
		}
	}
}

// answers is a client of any types, which counts its requests.
type answers[T, C any] struct {
	answer T
	n      int
	config C // of the last request
}

func (a *answers[T, C]) Apply(_ context.Context, config C, _ metav1.ApplyOptions) (T, error) {
	a.n++
	a.config = config
	return a.answer, nil
}

type untypedAnswers = answers[*unstructured.Unstructured, *unstructured.Unstructured]

// untypedObject reads what stands behind the name of an object. fields are what the manager owns.
func untypedObject(t testing.TB, apiVersion, kind, metadata, rest, fields string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(`{"apiVersion":"`+apiVersion+`","kind":"`+kind+`","metadata":{"name":"one","namespace":"default"`+metadata+`}`+rest+`}`), &u.Object); err != nil {
		t.Fatal(err)
	}
	if fields != "" {
		u.SetUID("a")
		u.SetResourceVersion("7")
		u.SetManagedFields([]metav1.ManagedFieldsEntry{{
			Manager: string(manager), Operation: metav1.ManagedFieldsOperationApply, APIVersion: apiVersion, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}})
	}
	return u
}
