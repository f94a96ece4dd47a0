package ssa

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
)

// This file is inside of the package, because the parser is.

// FuzzParse holds the parser to encoding/json: it reads what is valid, up to its own
// depth, to the same values, duplicates included. What is not valid it refuses, but for
// control characters in strings. A node takes a byte of the source or more, so that
// memory is bounded by the size.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		``, ` `, `null`, `true`, `false`, `nul`, `truefalse`, `{}`, `[]`, ` [ 1 , 2 ] `, `[1,]`, `{"a":1,}`, `{"a"}`, `{a:1}`, `[1 2]`, `{} {}`,
		`0`, `-0`, `01`, `-`, `+1`, `1.`, `.5`, `1.5e+10`, `1e`, `1E-2`, `1e5.5`, `1-2`, `--1`, `123456789012345678901234567890`,
		`""`, `"a`, `"\u0041\/\"\\\b\f\n\r\t"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d"`, `"\ud83dx"`, `"\ud83d\u0041"`, `"\uD83D\n"`, `"\u00g0"`, `"\x"`, `"\`, `"\u12`,
		"\"\xff\xfe\"", "\"\xed\xa0\x80\"", "\"a\x00b\"", "\"\\n\x01\"", "\"\u2028\"", "\xef\xbb\xbf{}",
		`{"a":1,"a":2}`, `{"":{"":[]}}`,
		`{"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:set":{"v:\"a\"":{}}}}`,
		strings.Repeat(`[`, 501) + strings.Repeat(`]`, 501), strings.Repeat(`[`, 502) + strings.Repeat(`]`, 502), strings.Repeat(`{"a":`, 10_000), strings.Repeat("[", 100_000),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, src string) {
		trees := newForest(0)
		root, err := trees.parse(src)
		if most := len(src) + 1; len(trees.nodes) > most {
			t.Errorf("%d nodes for %d bytes, want at most %d", len(trees.nodes), len(src), most)
		}
		if !json.Valid([]byte(src)) {
			plain := strings.Map(func(r rune) rune {
				if r < ' ' {
					return ' '
				}
				return r
			}, src)
			if err == nil && !json.Valid([]byte(plain)) {
				t.Errorf("%q is not JSON, and is accepted", src)
			}
			return
		}
		want, deepest := decoded(t, src)
		if deepest > maxDepth {
			if err == nil {
				t.Errorf("a value at depth %d is accepted", deepest)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q is JSON, and is refused", src)
		}
		// Not by go-cmp, whose time doubles with each level of such a value.
		if got := read(trees, root); !reflect.DeepEqual(got, want) {
			t.Errorf("%q is read as\n%#v, want\n%#v", src, got, want)
		}
	})
}

// A value is a text, a number, a bool, nil, or one of these.
type (
	jsonText   string
	jsonMember struct {
		Name  string
		Value any
	}
)

// decoded reads what is valid, by encoding/json, into lists and into objects as lists of
// their members.
func decoded(t *testing.T, src string) (value any, deepest int) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(src))
	dec.UseNumber()
	token := func() json.Token {
		tok, err := dec.Token()
		if err != nil {
			t.Fatalf("token of %q: %v", src, err)
		}
		return tok
	}
	var next func(depth int) any
	next = func(depth int) any {
		deepest = max(deepest, depth)
		switch tok := token(); tok {
		case json.Delim('['):
			l := []any{}
			for dec.More() {
				l = append(l, next(depth+1))
			}
			token()
			return l
		case json.Delim('{'):
			l := []jsonMember{}
			for dec.More() {
				l = append(l, jsonMember{Name: token().(string), Value: next(depth + 1)})
			}
			token()
			return l
		default:
			if s, ok := tok.(string); ok {
				return jsonText(s)
			}
			return tok
		}
	}
	value = next(0)
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("behind the value of %q: %v", src, err)
	}
	return value, deepest
}

// read does the same for what was parsed. The parser leaves invalid UTF-8 as it is,
// and encoding/json replaces each byte of it.
func read(f *forest, at int32) any {
	utf8 := func(s string) string { return string([]rune(s)) }
	switch n := f.nodes[at]; n.kind {
	case null:
		return nil
	case boolean:
		return n.value == "true"
	case number:
		return json.Number(n.value)
	case text:
		return jsonText(utf8(n.value))
	case list:
		l := []any{}
		for i := n.child; i != 0; i = f.nodes[i].next {
			l = append(l, read(f, i))
		}
		return sized(l, n.n)
	case object:
		l := []jsonMember{}
		for i := n.child; i != 0; i = f.nodes[i].next {
			l = append(l, jsonMember{Name: utf8(f.nodes[i].key), Value: read(f, i)})
		}
		return sized(l, n.n)
	default:
		return "no value"
	}
}

func sized[E any](l []E, n int32) any {
	if len(l) != int(n) {
		return fmt.Sprintf("%d children, and the node says %d", len(l), n)
	}
	return l
}

// kindOf is one kind of object in the fuzz of the decision.
type kindOf[T metav1.Object, C any] struct {
	empty   func() T
	config  func() C
	extract func(T, string) (C, error)
	manager *managedfields.FieldManager
}

const fuzzed FieldManager = "fuzzed"

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
	memory := &Memory[T, C]{}
	ask := func(name string, m *Memory[T, C], live T) T {
		before := any(live).(runtime.Object).DeepCopyObject()
		answer, applied, err := applyChanged(t.Context(), m, fuzzed, serverOf[T, C]{k, live}, c, live, k.extract)
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
	if answer := ask("new memory", memory, obj); !isNil(answer) {
		ask("the answer", memory, answer)
	}
	obj.SetUID(types.UID("v"))
	ask("another object", memory, obj)
}

// FuzzDecision holds what ApplyChanged skips against the algorithm of the API server,
// over any configuration, live object and FieldsV1. Errors of that are differences.
//
// Proves A6, A7.
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
