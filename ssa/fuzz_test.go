package ssa_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/controllerkit/controllerkit/ssa"
)

// kindOf is one kind of object in the fuzz of the decision.
type kindOf[T metav1.Object, C any] struct {
	empty   func() T
	config  func() C
	extract func(T, string) (C, error)
	manager *managedfields.FieldManager
}

const fuzzed ssa.FieldManager = "fuzzed"

// result is what a server makes of an apply, without its defaults: the algorithm is
// that of the API server, and so is the schema.
func (k kindOf[T, C]) result(live T, config C) (T, error) {
	var none T
	b, err := json.Marshal(config)
	if err != nil {
		return none, err
	}
	var patch unstructured.Unstructured
	if err := json.Unmarshal(b, &patch.Object); err != nil {
		return none, err
	}
	obj, err := k.manager.Apply(any(live).(runtime.Object).DeepCopyObject(), &patch, string(fuzzed), true)
	if err != nil {
		return none, err
	}
	return obj.(T), nil
}

// unchanged is the reference decision.
func (k kindOf[T, C]) unchanged(live T, config C) error {
	got, err := k.result(live, config)
	if err != nil {
		return err
	}
	plain := func(obj T) T {
		obj = any(obj).(runtime.Object).DeepCopyObject().(T)
		any(obj).(runtime.Object).GetObjectKind().SetGroupVersionKind(any(k.empty()).(runtime.Object).GetObjectKind().GroupVersionKind())
		var owners []metav1.ManagedFieldsEntry
		for _, e := range obj.GetManagedFields() {
			var fields fieldpath.Set
			if err := fields.FromJSON(strings.NewReader(e.FieldsV1.GetRawString())); err != nil || fields.Empty() {
				continue // the algorithm fails, or leaves the entry out
			}
			b, _ := fields.ToJSON()
			e.Time, e.FieldsV1 = nil, metav1.NewFieldsV1(string(b))
			owners = append(owners, e)
		}
		obj.SetManagedFields(owners)
		return obj
	}
	if want, got := plain(live), plain(got); !apiequality.Semantic.DeepEqual(want, got) {
		w, _ := json.Marshal(want)
		g, _ := json.Marshal(got)
		return fmt.Errorf("the server changes\n%s to\n%s", w, g)
	}
	return nil
}

// Apply is that server as a client.
type serverOf[T metav1.Object, C any] struct {
	kindOf[T, C]
	live T
}

func (s serverOf[T, C]) Apply(_ context.Context, config C, _ metav1.ApplyOptions) (T, error) {
	answer, err := s.result(s.live, config)
	// What it leaves out of managedFields moves the resourceVersion too.
	if err == nil && (s.unchanged(s.live, config) != nil || len(answer.GetManagedFields()) == 0) {
		answer.SetResourceVersion("8")
	}
	return answer, err
}

// decide asks ApplyChanged, without a memory, with a new one and with one that has
// seen an answer, and holds what it skips against the reference.
func (k kindOf[T, C]) decide(t *testing.T, config, live, owned, other string) {
	t.Helper()
	c, obj := k.config(), k.empty()
	if json.Unmarshal([]byte(config), c) != nil || json.Unmarshal([]byte(live), obj) != nil {
		return
	}
	if new(fieldpath.Set).FromJSON(strings.NewReader(other)) != nil {
		return // what others own is not read, and no server stores that
	}
	obj.SetName("one")
	obj.SetNamespace("default")
	obj.SetUID("u")
	obj.SetResourceVersion("7")
	version, _ := any(k.empty()).(runtime.Object).GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	obj.SetManagedFields([]metav1.ManagedFieldsEntry{
		{Manager: string(fuzzed), Operation: metav1.ManagedFieldsOperationApply, APIVersion: version, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(owned)},
		{Manager: "other", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: version, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(other)},
	})
	memory := &ssa.Memory[T, C]{}
	ask := func(name string, m *ssa.Memory[T, C], live T) T {
		before := any(live).(runtime.Object).DeepCopyObject()
		answer, applied, err := m.ApplyChanged(t.Context(), fuzzed, serverOf[T, C]{k, live}.Apply, c, live, k.extract)
		if !apiequality.Semantic.DeepEqual(before, any(live).(runtime.Object)) {
			t.Fatalf("%s: live was changed", name)
		}
		if err != nil {
			var none T
			return none
		}
		if !applied {
			if err := k.unchanged(live, c); err != nil {
				t.Fatalf("%s: skipped %s: %v", name, config, err)
			}
		}
		return answer
	}
	ask("no memory", nil, obj)
	if answer := ask("new memory", memory, obj); !reflect.ValueOf(answer).IsNil() {
		ask("the answer", memory, answer)
	}
	obj.SetUID(types.UID("v"))
	ask("another object", memory, obj)
}

// FuzzDecision holds what ApplyChanged skips against the algorithm of the API server,
// over any configuration, live object and FieldsV1. Errors of that are differences.
//
// Proves CK1 and A4.
func FuzzDecision(f *testing.F) {
	converter := applyconfigurations.NewTypeConverter(scheme.Scheme)
	manager := func(obj runtime.Object) *managedfields.FieldManager {
		gvk := obj.GetObjectKind().GroupVersionKind()
		m, err := managedfields.NewDefaultFieldManager(converter, scheme.Scheme, noDefaults{}, scheme.Scheme, gvk, gvk.GroupVersion(), "", nil)
		if err != nil {
			f.Fatal(err)
		}
		return m
	}
	configMaps := kindOf[*corev1.ConfigMap, *applycorev1.ConfigMapApplyConfiguration]{
		empty: func() *corev1.ConfigMap {
			return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
		},
		config:  func() *applycorev1.ConfigMapApplyConfiguration { return applycorev1.ConfigMap("one", "default") },
		extract: applycorev1.ExtractConfigMap,
	}
	configMaps.manager = manager(configMaps.empty())
	deployments := kindOf[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]{
		empty: func() *appsv1.Deployment {
			return &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}}
		},
		config:  func() *applyappsv1.DeploymentApplyConfiguration { return applyappsv1.Deployment("one", "default") },
		extract: applyappsv1.ExtractDeployment,
	}
	deployments.manager = manager(deployments.empty())

	seeds(f, configMaps, false,
		`{}`,
		`{"data":{"a":"1","b":"\"\u2028\\"},"immutable":false}`,
		`{"data":{"a":"1"},"immutable":false}`,
		`{"data":{"a":"1","b":"2"},"immutable":false}`,
		`{"data":{"a":"1"},"binaryData":{"c":"AAE="},"immutable":true}`,
		`{"data":{},"metadata":{"name":"one","namespace":"default","labels":{"a":""},"annotations":{},"finalizers":["a/b","c/d"],"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u"}]}}`,
		`{"data":{"":"","f:a":"x","k:{}":"y",".":"z"},"metadata":{"name":"one","uid":"u","resourceVersion":"7","finalizers":[]}}`,
	)
	// What each of these owns is the same, or one field less.
	const most = `{"spec":{"replicas":0,"paused":false,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"x","image":"i","args":["1","2"],"env":[{"name":"E","value":"1"},{"name":"F","value":""}],"ports":[{"containerPort":80},{"containerPort":80,"protocol":"UDP"}],"resources":{"requests":{"cpu":"1000m","memory":"1024Mi"}}}]}}}}`
	change := func(from, to string) string { return strings.Replace(most, from, to, 1) }
	seeds(f, deployments, true,
		`{"spec":{}}`,
		most,
		change(`"E","value":"1"`, `"E","value":"3"`),
		change(`,{"name":"F","value":""}`, ``),
		change(`{"name":"E","value":"1"},{"name":"F","value":""}`, `{"name":"F","value":""},{"name":"E","value":"1"}`),
		change(`["1","2"]`, `["2","1"]`),
		change(`"1000m"`, `"2"`),
		change(`{"a":"b"}},"template"`, `{"a":"c"}},"template"`),
		`{"spec":{"selector":{"matchLabels":{}},"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%","maxUnavailable":1}},"template":{"metadata":{"creationTimestamp":null},"spec":{"containers":[{"name":"y"},{"name":"x","securityContext":{},"env":[{"name":"G","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}],"nodeSelector":{"k":"v"},"tolerations":[{"key":"a"}],"hostNetwork":false}}}}`,
		`{"spec":{"template":{"spec":{"containers":[],"volumes":[{"name":"v","emptyDir":{}},{"name":"w","configMap":{"name":""}}],"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"k","whenUnsatisfiable":"DoNotSchedule"}]}}},"status":{"replicas":1}}`,
	)
	f.Add(false, `{}`, `{"immutable":false}`, `{"0:":{}}`, `{}`) // nobody owns anything afterwards
	f.Fuzz(func(t *testing.T, deployment bool, config, live, owned, other string) {
		if deployment {
			deployments.decide(t, config, live, owned, other)
		} else {
			configMaps.decide(t, config, live, owned, other)
		}
	})
}

// seeds adds each configuration with each object that one of them has made, and
// with some garbage.
func seeds[T metav1.Object, C any](f *testing.F, k kindOf[T, C], deployment bool, configs ...string) {
	f.Helper()
	for _, made := range configs {
		c := k.config()
		if err := json.Unmarshal([]byte(made), c); err != nil {
			f.Fatal(err)
		}
		obj, err := k.result(k.empty(), c)
		if err != nil {
			f.Fatalf("%s: %v", made, err)
		}
		owned := "{}"
		for _, e := range obj.GetManagedFields() {
			owned = e.FieldsV1.GetRawString()
		}
		obj.SetManagedFields(nil)
		live, err := json.Marshal(obj)
		if err != nil {
			f.Fatal(err)
		}
		for _, config := range configs {
			f.Add(deployment, config, string(live), owned, `{}`)
		}
		for _, garbage := range []string{``, `{`, `null`, `[]`, `{"f:data":null}`, `{"f:data":[]}`, `{"f:data":{"f:a":{},"f:a":{}}}`, `{"f:spec":{".":{}}}`, string(bytes.ToUpper([]byte(owned))), strings.ReplaceAll(owned, `{}`, `{".":{}}`), strings.ReplaceAll(owned, `"f:`, `"v:`), strings.ReplaceAll(owned, `}`, `,"f:a":{}}`)} {
			f.Add(deployment, made, string(live), garbage, `{}`)
			f.Add(deployment, made, string(live), owned, garbage)
		}
	}
}

type noDefaults struct{}

func (noDefaults) Default(runtime.Object) {}
