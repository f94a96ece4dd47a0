package ssa_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applyautoscalingv2 "k8s.io/client-go/applyconfigurations/autoscaling/v2"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

var applies = flag.Int("applies", 2000, "how many objects TestServerAgrees generates")

// slot is a place in a configuration and what can stand there, as JSON. "" is nothing.
type slot struct {
	path     string // members with dots between
	variants []string
}

// family is a kind of objects.
type family struct {
	name    string
	gvk     schema.GroupVersionKind
	share   int // of 100 objects
	cluster bool
	fixed   string // what every configuration has, as JSON; %s is the object's name
	slots   []slot
	status  string // a merge patch of the status; "" means none
	typed   func() subject
}

// The owners are of a kind that there is not: the garbage collector leaves that alone.
var common = []slot{
	{path: "metadata.labels", variants: []string{``, `{}`, `null`, `{"a":"1"}`, `{"a":"1","b.c/d":"2"}`, `{"a":""}`}},
	{path: "metadata.annotations", variants: []string{``, `{"x":"1"}`, `{"x":"<&>\"\\\n\u2028é"}`}},
	{path: "metadata.ownerReferences", variants: []string{``, `[]`, `[{"apiVersion":"unknown.example.com/v1","kind":"Owner","name":"o","uid":"x"}]`, `[{"apiVersion":"unknown.example.com/v1","kind":"Owner","name":"o","uid":"x","controller":true,"blockOwnerDeletion":false},{"apiVersion":"unknown.example.com/v1","kind":"Owner","name":"p","uid":"y"}]`}},
	{path: "metadata.finalizers", variants: []string{``, `[]`, `["example.com/a"]`, `["example.com/b","example.com/a"]`, `["example.com/a","example.com/b"]`}},
}

const containers = `[{"name":"main","image":"i:1"}]`

var families = []family{
	{
		name: "Deployment", share: 15, gvk: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		fixed:  `{"spec":{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":` + containers + `}}}}`,
		status: `{"status":{"observedGeneration":%d}}`,
		slots: []slot{
			{path: "spec.replicas", variants: []string{``, `0`, `1`, `2`}},
			{path: "spec.paused", variants: []string{``, `false`, `true`}},
			{path: "spec.minReadySeconds", variants: []string{``, `0`, `5`}},
			{path: "spec.strategy", variants: []string{``, `{}`, `{"type":"RollingUpdate"}`, `{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%","maxUnavailable":"25%"}}`, `{"rollingUpdate":{"maxSurge":1,"maxUnavailable":"25%"}}`, `{"type":"Recreate"}`}},
			{path: "spec.template.spec.nodeSelector", variants: []string{``, `{"a":"1"}`, `{"a":"2","b":"3"}`}},
			{path: "spec.template.spec.securityContext", variants: []string{``, `{}`, `{"runAsUser":1}`, `{"runAsNonRoot":false}`}},
			{path: "spec.template.spec.tolerations", variants: []string{``, `[]`, `[{"key":"a","operator":"Exists"}]`, `[{"key":"b","operator":"Equal","value":""}]`}},
			{path: "spec.template.spec.hostNetwork", variants: []string{``, `false`}},
			{path: "spec.template.spec.volumes", variants: []string{``, `[{"name":"v","emptyDir":{}}]`, `[{"name":"v","emptyDir":{"sizeLimit":"1024Mi"}}]`, `[{"name":"c","configMap":{"name":"c"}},{"name":"v","emptyDir":{}}]`, `[{"name":"v","secret":{"secretName":"s","items":[{"key":"a","path":"b"}]}}]`}},
			{path: "spec.template.spec.containers", variants: []string{
				containers,
				`[{"name":"main","image":"i:2","args":["a","b"],"env":[{"name":"A","value":"1"},{"name":"B","value":""}]}]`,
				`[{"name":"main","image":"i:2","args":["b"],"env":[{"name":"B"},{"name":"A","value":"1"}]}]`,
				`[{"name":"main","image":"i:1","ports":[{"containerPort":80}],"resources":{"requests":{"cpu":"1000m","memory":"0.5Gi"}}}]`,
				`[{"name":"main","image":"i:1","ports":[{"containerPort":80,"protocol":"TCP"},{"containerPort":80,"protocol":"UDP"}],"resources":{"limits":{"cpu":"1"}}}]`,
				`[{"name":"main","image":"i:1","ports":[{"containerPort":80},{"containerPort":80,"protocol":"UDP"}],"resources":{}}]`,
				`[{"name":"side","image":"s"},{"name":"main","image":"i:1"}]`,
				`[{"name":"main","image":"i:1"},{"name":"side","image":"s"}]`,
				`[{"name":"main","image":"i:1","env":[{"name":"P","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}]`,
				`[{"name":"main","image":"i:1","env":[{"name":"P","valueFrom":{"configMapKeyRef":{"name":"c","key":"k"}}}]}]`,
				`[{"name":"main","image":"i:1","livenessProbe":{"httpGet":{"path":"/","port":80}}}]`,
				`[{"name":"main","image":"i:1","livenessProbe":{"httpGet":{"path":"/","port":"http"},"periodSeconds":10}}]`,
			}},
		},
		typed: typed[appsv1.Deployment, applyappsv1.DeploymentApplyConfiguration](applyappsv1.ExtractDeployment),
	},
	{
		name: "Service", share: 15, gvk: schema.GroupVersionKind{Version: "v1", Kind: "Service"},
		fixed:  `{"spec":{"clusterIP":"None","ports":[{"port":80}]}}`, // there are few addresses
		status: `{"status":{"conditions":[{"type":"A","status":"True","reason":"R%d","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
		slots: []slot{
			{path: "spec.selector", variants: []string{``, `{}`, `{"a":"1"}`, `{"b":"1"}`}},
			{path: "spec.sessionAffinity", variants: []string{``, `"None"`, `"ClientIP"`}},
			{path: "spec.publishNotReadyAddresses", variants: []string{``, `false`, `true`}},
			{path: "spec.externalIPs", variants: []string{``, `[]`, `["10.1.1.1"]`, `["10.1.1.1","10.1.1.2"]`}},
			{path: "spec.ports", variants: []string{
				`[{"port":80}]`, `[{"port":80,"targetPort":80}]`, `[{"port":80,"targetPort":"80"}]`, `[{"port":80,"protocol":"TCP"}]`,
				`[{"port":53,"name":"t"},{"port":53,"name":"u","protocol":"UDP"}]`, `[{"port":53,"name":"u","protocol":"UDP"},{"port":53,"name":"t"}]`,
			}},
		},
		typed: typed[corev1.Service, applycorev1.ServiceApplyConfiguration](applycorev1.ExtractService),
	},
	{
		name: "ConfigMap", share: 20, gvk: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		slots: []slot{
			{path: "data", variants: []string{``, `{}`, `null`, `{"a":"1"}`, `{"a":"1","b":""}`, `{"a":"2"}`}},
			{path: "binaryData", variants: []string{``, `{"c":"AAA="}`, `{"c":""}`}},
		},
		typed: typed[corev1.ConfigMap, applycorev1.ConfigMapApplyConfiguration](applycorev1.ExtractConfigMap),
	},
	{
		name: "Secret", share: 10, gvk: schema.GroupVersionKind{Version: "v1", Kind: "Secret"},
		slots: []slot{
			{path: "data", variants: []string{``, `{"a":"MQ=="}`, `{"a":"Mg==","b":""}`}},
			{path: "stringData", variants: []string{``, `{}`, `{"c":"1"}`, `{"c":"2"}`, `{"c":"","d":"é"}`}},
			{path: "type", variants: []string{`"Opaque"`}},
		},
		typed: typed[corev1.Secret, applycorev1.SecretApplyConfiguration](applycorev1.ExtractSecret),
	},
	{
		name: "RoleBinding", share: 8, gvk: schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
		fixed: `{"roleRef":{"kind":"ClusterRole","name":"view","apiGroup":"rbac.authorization.k8s.io"}}`,
		slots: []slot{
			{path: "subjects", variants: []string{``, `[]`, `[{"kind":"User","name":"u"}]`, `[{"kind":"User","name":"u","apiGroup":"rbac.authorization.k8s.io"}]`, `[{"kind":"ServiceAccount","name":"s","namespace":"default"},{"kind":"Group","name":"g"}]`}},
			{path: "roleRef", variants: []string{`{"kind":"ClusterRole","name":"view","apiGroup":"rbac.authorization.k8s.io"}`, `{"kind":"ClusterRole","name":"view"}`}},
		},
		typed: typed[rbacv1.RoleBinding, applyrbacv1.RoleBindingApplyConfiguration](applyrbacv1.ExtractRoleBinding),
	},
	{
		name: "NetworkPolicy", share: 8, gvk: schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
		fixed: `{"spec":{"podSelector":{}}}`,
		slots: []slot{
			{path: "spec.podSelector", variants: []string{`{}`, `{"matchLabels":{"a":"1"}}`, `{"matchExpressions":[{"key":"a","operator":"Exists"}]}`}},
			{path: "spec.policyTypes", variants: []string{``, `["Ingress"]`, `["Egress","Ingress"]`}},
			{path: "spec.ingress", variants: []string{``, `[]`, `[{}]`, `[{"ports":[{"port":80}]}]`, `[{"ports":[{"port":"http","protocol":"TCP"}],"from":[{"podSelector":{}}]}]`, `[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}]}]`}},
		},
		typed: typed[networkingv1.NetworkPolicy, applynetworkingv1.NetworkPolicyApplyConfiguration](applynetworkingv1.ExtractNetworkPolicy),
	},
	{
		name: "HorizontalPodAutoscaler", share: 8, gvk: schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"},
		fixed:  `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}}`,
		status: `{"status":{"observedGeneration":%d,"currentReplicas":1,"desiredReplicas":1}}`,
		slots: []slot{
			{path: "spec.minReplicas", variants: []string{``, `1`, `2`}},
			{path: "spec.maxReplicas", variants: []string{`3`, `4`}},
			{path: "spec.metrics", variants: []string{
				``, `[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}]`,
				`[{"type":"Resource","resource":{"name":"memory","target":{"type":"AverageValue","averageValue":"1024Mi"}}}]`,
				`[{"type":"Resource","resource":{"name":"memory","target":{"type":"AverageValue","averageValue":"1Gi"}}}]`,
			}},
			{path: "spec.behavior", variants: []string{``, `{"scaleDown":{"stabilizationWindowSeconds":60}}`, `{"scaleUp":{"policies":[{"type":"Pods","value":4,"periodSeconds":60}]}}`}},
		},
		typed: typed[autoscalingv2.HorizontalPodAutoscaler, applyautoscalingv2.HorizontalPodAutoscalerApplyConfiguration](applyautoscalingv2.ExtractHorizontalPodAutoscaler),
	},
	{
		name: "CustomResourceDefinition", share: 1, cluster: true, gvk: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
		fixed: `{"spec":{"group":"%[1]s.example.com","scope":"Namespaced","names":{"kind":"Thing","plural":"things"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`,
		slots: []slot{
			{path: "spec.preserveUnknownFields", variants: []string{``, `false`}},
			{path: "spec.conversion", variants: []string{``, `{"strategy":"None"}`}},
			{path: "spec.names.shortNames", variants: []string{``, `["th"]`}},
			{path: "spec.versions", variants: []string{
				`[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]`,
				`[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]`,
				`[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string","default":"x"}}}}}}}]`,
			}},
		},
	},
	{
		name: "Schemed", share: 8, gvk: schema.GroupVersionKind{Group: "ssa.example.com", Version: "v1", Kind: "Schemed"},
		status: `{"status":{"n":%d}}`,
		slots: []slot{
			{path: "spec.int", variants: []string{``, `0`, `1`}},
			{path: "spec.float", variants: []string{``, `1`, `1.0`, `1.5`, `1e0`}},
			{path: "spec.bool", variants: []string{``, `false`, `true`}},
			{path: "spec.text", variants: []string{``, `""`, `"1"`, `"1000m"`}},
			{path: "spec.intOrString", variants: []string{``, `80`, `"80"`}},
			{path: "spec.nullable", variants: []string{``, `null`, `"x"`}},
			{path: "spec.set", variants: []string{``, `[]`, `["a"]`, `["a","b"]`, `["b","a"]`, `["c","a","b"]`}},
			{path: "spec.map", variants: []string{``, `[]`, `[{"name":"a"}]`, `[{"name":"a","value":1}]`, `[{"name":"a","zone":"z"},{"name":"a","zone":"other"}]`, `[{"name":"a"},{"name":"a","zone":"other"}]`, `[{"name":"b"},{"name":"a"}]`, `[{"name":"a"},{"name":"b","value":0}]`}},
			{path: "spec.atomicList", variants: []string{``, `[]`, `["a","a"]`, `["b"]`}},
			{path: "spec.atomicMap", variants: []string{``, `{}`, `{"a":"1"}`, `{"a":"1","b":"2"}`}},
			{path: "spec.granularMap", variants: []string{``, `{}`, `null`, `{"a":"1"}`, `{"a":"1","b":"2"}`}},
			{path: "spec.maps", variants: []string{``, `{}`, `{"a":{}}`, `{"a":{"b":"1"}}`, `{"a":{"b":"1"},"c":{"d":"2"}}`}},
			{path: "spec.defaulted", variants: []string{``, `{}`, `{"a":"x"}`, `{"a":"x","b":1}`, `{"b":2}`}},
			{path: "spec.free", variants: []string{``, `{}`, `{"a":1}`, `{"a":{"b":[1,2]}}`, `{"a":[]}`, `{"a":{"b":null}}`}},
		},
	},
	{
		name: "Schemaless", share: 7, gvk: schema.GroupVersionKind{Group: "ssa.example.com", Version: "v1", Kind: "Schemaless"},
		slots: []slot{
			{path: "spec", variants: []string{``, `{}`, `null`, `[]`, `"x"`, `{"a":1}`, `{"a":"1"}`, `{"a":1,"b":{"c":[{"d":1}]}}`, `{"a":1.5,"b":{"c":[],"e":{}}}`, `{"b":{"c":[{"d":1}],"e":{"f":null}}}`}},
			{path: "list", variants: []string{``, `[]`, `[1]`, `[{"name":"a"}]`}},
			{path: "deep.er", variants: []string{``, `{}`, `{"a":{"b":{"c":"1"}}}`, `{"a":{"b":{"c":"1","d":true}}}`}},
		},
	},
}

// world is what the test runs in.
type world struct {
	dynamic   dynamic.Interface
	mapper    meta.RESTMapper
	namespace string
}

func decode[T any](b []byte) (*T, error) {
	v := new(T)
	return v, json.Unmarshal(b, v)
}

// subject decides about configurations of a kind.
type subject interface {
	// body is the configuration as the client sends it.
	body(config []byte) []byte
	// skips reports whether the free function makes no request, and why it would.
	skips(ctx context.Context, config, live []byte) (bool, string, error)
	// excused reports whether the server alone can tell that nothing changes.
	excused(why string, config, live []byte) bool
	// changed is Memory.ApplyChanged. answer is nil if it made no request.
	changed(ctx context.Context, to dynamic.ResourceInterface, config, live []byte) (answer *unstructured.Unstructured, why string, err error)
}

type subjectOf[T interface {
	metav1.Object
	runtime.Object
}, C any] struct {
	extract func(T, string) (C, error)
	config  func([]byte) (C, error)
	object  func([]byte) (T, error)
	memory  *ssa.Memory[T, C]
}

// typed is the subject of a generated client.
func typed[O, C any, T interface {
	*O
	metav1.Object
	runtime.Object
}](extract func(T, string) (*C, error)) func() subject {
	return func() subject {
		return subjectOf[T, *C]{
			extract: extract, config: decode[C], memory: &ssa.Memory[T, *C]{},
			object: func(b []byte) (T, error) { return decode[O](b) },
		}
	}
}

func untyped() subject {
	parse := func(b []byte) (*unstructured.Unstructured, error) {
		u := &unstructured.Unstructured{}
		return u, u.UnmarshalJSON(b)
	}
	type of = subjectOf[*unstructured.Unstructured, *unstructured.Unstructured]
	return of{config: parse, object: parse, memory: &ssa.Memory[*unstructured.Unstructured, *unstructured.Unstructured]{}}
}

// wire sends configurations as all clients of client-go do, and keeps the answer.
type wire[T, C any] struct {
	to     dynamic.ResourceInterface
	object func([]byte) (T, error)
	answer *unstructured.Unstructured
}

var errProbe = errors.New("an apply")

func (w *wire[T, C]) Apply(ctx context.Context, config C, opts metav1.ApplyOptions) (answer T, err error) {
	if w.to == nil {
		return answer, errProbe
	}
	b := must2(json.Marshal(config))
	name := must2(decode[metav1.PartialObjectMetadata](b)).Name
	if w.answer, err = w.to.Patch(ctx, name, types.ApplyPatchType, b, opts.ToPatchOptions()); err != nil {
		return answer, err
	}
	return w.object(must2(w.answer.MarshalJSON()))
}

func (s subjectOf[T, C]) body(config []byte) []byte {
	return must2(json.Marshal(must2(s.config(config))))
}

func (s subjectOf[T, C]) skips(ctx context.Context, config, live []byte) (bool, string, error) {
	ctx, why := because(ctx)
	l := must2(s.object(live))
	before := l.DeepCopyObject()
	_, _, err := ssa.ApplyChanged(ctx, manager, (&wire[T, C]{}).Apply, must2(s.config(config)), l, s.extract)
	if !apiequality.Semantic.DeepEqual(before, l) {
		return false, "", errors.New("live was changed")
	}
	if errors.Is(err, errProbe) {
		return false, *why, nil
	}
	return err == nil, "", err
}

func (s subjectOf[T, C]) changed(ctx context.Context, to dynamic.ResourceInterface, config, live []byte) (*unstructured.Unstructured, string, error) {
	ctx, why := because(ctx)
	var l T
	if live != nil {
		l = must2(s.object(live))
	}
	w := &wire[T, C]{to: to, object: s.object}
	_, applied, err := s.memory.ApplyChanged(ctx, manager, w.Apply, must2(s.config(config)), l, s.extract)
	if applied != (err == nil && w.answer != nil) {
		return nil, "", fmt.Errorf("applied = %v, answer %v, error %w", applied, w.answer, err)
	}
	return w.answer, *why, err
}

// because returns a context whose logger tells why an apply was made.
func because(ctx context.Context) (context.Context, *string) {
	why := new(string)
	log := funcr.New(func(_, args string) {
		if _, rest, ok := strings.Cut(args, `"because"=`); ok {
			*why = rest
		}
	}, funcr.Options{Verbosity: 4})
	return logr.NewContext(ctx, log), why
}

// draft is a configuration in the making: which variant each slot has.
type draft struct {
	f       *family
	name    string
	ns      string
	choices []int
}

func (f *family) all() []slot { return append(slices.Clone(common), f.slots...) }

func newDraft(r *rand.Rand, f *family, name, namespace string) draft {
	d := draft{f: f, name: name, ns: namespace, choices: make([]int, len(f.all()))}
	for i, s := range f.all() {
		d.choices[i] = r.IntN(len(s.variants))
	}
	return d
}

// mutated changes some slots.
func (d draft) mutated(r *rand.Rand, n int) draft {
	d.choices = slices.Clone(d.choices)
	for range n {
		i := r.IntN(len(d.choices))
		d.choices[i] = r.IntN(len(d.f.all()[i].variants))
	}
	return d
}

func (d draft) head() map[string]any {
	content := map[string]any{}
	if d.f.fixed != "" {
		fixed := d.f.fixed
		if strings.Contains(fixed, "%") {
			fixed = fmt.Sprintf(fixed, d.name)
		}
		must(json.Unmarshal([]byte(fixed), &content))
	}
	content["apiVersion"], content["kind"] = d.f.gvk.GroupVersion().String(), d.f.gvk.Kind
	name := d.name
	if d.f.gvk.Kind == "CustomResourceDefinition" {
		name = "things." + d.name + ".example.com"
	}
	content["metadata"] = map[string]any{"name": name}
	if !d.f.cluster {
		content["metadata"].(map[string]any)["namespace"] = d.ns
	}
	return content
}

// json renders the configuration.
func (d draft) json() []byte {
	content := d.head()
	for i, s := range d.f.all() {
		put(content, s.path, s.variants[d.choices[i]])
	}
	b, err := json.Marshal(content)
	must(err)
	return b
}

// one renders a configuration with little in it: of a writer who minds one slot.
func (d draft) one(r *rand.Rand) (path, variant string) {
	s := d.f.all()[r.IntN(len(d.choices))]
	return s.path, s.variants[r.IntN(len(s.variants))]
}

func put(content map[string]any, path, variant string) {
	if variant == "" {
		return
	}
	at := content
	parts := strings.Split(path, ".")
	for _, part := range parts[:len(parts)-1] {
		next, ok := at[part].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[part] = next
		}
		at = next
	}
	at[parts[len(parts)-1]] = json.RawMessage(variant)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// tallies counts what happened.
type tallies struct {
	mu     sync.Mutex
	counts map[string]int
}

func (t *tallies) add(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[what]++
}

// TestServerAgrees holds ApplyChanged, with and without a memory, against what the
// API server does, for generated objects and configurations of ten kinds, with other
// writers between.
//
// Proves A7.
func TestServerAgrees(t *testing.T) {
	cfg := testserver.Config(t)
	cfg.WarningHandler = rest.NoWarnings{}
	dyn, err := dynamic.NewForConfig(cfg)
	must(err)
	for _, kind := range []string{"Schemed", "Schemaless"} {
		testserver.InstallCRD(t, definition(kind))
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, f := range families {
		scope := meta.RESTScopeNamespace
		if f.cluster {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(f.gvk, scope)
	}
	w := world{dynamic: dyn, mapper: mapper, namespace: testserver.Namespace(t)}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	tally := &tallies{counts: map[string]int{}}
	type job struct {
		f *family
		s subject
		n int
	}
	jobs := make(chan job)
	var wg sync.WaitGroup
	var failures atomic.Int64
	for range 8 {
		wg.Go(func() {
			for j := range jobs {
				if failures.Load() > 10 {
					continue
				}
				r := rand.New(rand.NewPCG(seed, uint64(j.n)))
				if err := w.life(t.Context(), r, j.f, j.s, fmt.Sprintf("%s-%d", strings.ToLower(j.f.name), j.n), tally); err != nil {
					failures.Add(1)
					t.Errorf("%s %d: %v", j.f.name, j.n, err)
				}
			}
		})
	}
	n := 0
	for i := range families {
		f := &families[i]
		subjects := []subject{untyped()}
		if f.typed != nil {
			both := f.typed()
			subjects = []subject{both, both, untyped()}
		}
		for k := range *applies * f.share / 100 {
			n++
			jobs <- job{f: f, s: subjects[k%len(subjects)], n: n}
		}
	}
	close(jobs)
	wg.Wait()
	for _, what := range slices.Sorted(maps.Keys(tally.counts)) {
		t.Logf("%7d %s", tally.counts[what], what)
	}
}

// life is the life of an object: it is created, and then configurations change and
// others write.
func (w world) life(ctx context.Context, r *rand.Rand, f *family, s subject, name string, tally *tallies) error {
	mapping, err := w.mapper.RESTMapping(f.gvk.GroupKind(), f.gvk.Version)
	must(err)
	var raw dynamic.ResourceInterface = w.dynamic.Resource(mapping.Resource)
	if !f.cluster {
		raw = w.dynamic.Resource(mapping.Resource).Namespace(w.namespace)
	}
	label := f.name
	if _, ok := s.(subjectOf[*unstructured.Unstructured, *unstructured.Unstructured]); ok && f.typed != nil {
		label += ", unstructured"
	}
	d := newDraft(r, f, name, w.namespace)
	objectName := must2(decode[metav1.PartialObjectMetadata](d.json())).Name
	var live *unstructured.Unstructured
	for attempt := 0; ; attempt++ {
		if live, _, err = s.changed(ctx, raw, d.json(), nil); err == nil && live != nil {
			break
		}
		if err != nil && !apierrors.IsInvalid(err) || attempt > 20 {
			return fmt.Errorf("create %s: %w", d.json(), err)
		}
		tally.add("refused by the server")
		d = newDraft(r, f, name, w.namespace)
	}
	tally.add("objects")
	for round := range 3 {
		next, what := d, "again"
		if round > 0 {
			if r.IntN(3) > 0 {
				next = d.mutated(r, r.IntN(3))
				what = "mutated"
			}
			if r.IntN(2) == 0 {
				other, answer, err := w.meddle(ctx, r, raw, d, objectName, round)
				switch {
				case err == nil && answer != nil:
					live = answer
				case err != nil && !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) && !apierrors.IsBadRequest(err):
					return fmt.Errorf("%s: %w", other, err)
				}
				what += ", " + other
			}
		}
		configuration, before := next.json(), must2(live.MarshalJSON())
		skips, why, err := s.skips(ctx, configuration, before)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		after, memoryWhy, err := s.changed(ctx, raw, configuration, before)
		applied := err == nil && after != nil
		if err == nil && !applied {
			after, err = raw.Patch(ctx, objectName, types.ApplyPatchType, s.body(configuration), metav1.PatchOptions{FieldManager: string(manager), Force: ptr(true)})
		}
		if err != nil {
			if skips || !apierrors.IsInvalid(err) {
				return fmt.Errorf("%s: skipped without a memory %v: %w", what, skips, err)
			}
			tally.add("refused by the server")
			continue
		}
		moved := content(after) != content(live)
		tally.add(fmt.Sprintf("decisions, the server changes something: %v", moved))
		report := func(text string) error {
			return fmt.Errorf("%s: %s (%s; %s)\nconfig %s\nlive   %s\nafter  %s", what, text, why, memoryWhy, s.body(configuration), before, must2(after.MarshalJSON()))
		}
		excused := func(why string) bool { return s.excused(why, s.body(configuration), before) }
		switch {
		case moved && skips:
			return report("skipped without a memory, and the server changes something")
		case moved && !applied:
			return report("skipped with a memory, and the server changes something")
		case round == 0 && moved && !nothing.Match(s.body(configuration)):
			// After a configuration of nothing nobody owns anything, and the next apply can change that.
			return report("applied twice, and changed twice")
		case !moved && !skips && !excused(why):
			return report("applied without a memory, though nothing changes")
		case !moved && applied && !excused(memoryWhy):
			return report("applied with a memory, though nothing changes")
		}
		if !moved && after.GetResourceVersion() != live.GetResourceVersion() && f.gvk.Kind != "CustomResourceDefinition" {
			// The server writes without changing anything, and does so again and
			// again, where it does not store what is applied literally.
			if !empties.Match(s.body(configuration)) && !excused(why) {
				return report("the resourceVersion moved, and nothing else")
			}
			tally.add(label + ": the resourceVersion moved, and nothing else")
		}
		if !moved && !skips {
			tally.add(label + ": applied without a memory, though nothing changes: " + why)
			tally.add("applied without a memory, though nothing changes")
		}
		if !moved && applied {
			tally.add("applied with a memory, though nothing changes")
			// Once is enough.
			again, againWhy, err := s.changed(ctx, raw, configuration, must2(after.MarshalJSON()))
			if err != nil || again != nil {
				return fmt.Errorf("%s: applied again with a memory after an apply that changed nothing: %s, error %w\nconfig %s\nlive   %s", what, againWhy, err, s.body(configuration), must2(after.MarshalJSON()))
			}
		}
		live, d = after, next
	}
	return nil
}

// empties matches what the server may leave out: what is empty or zero, and stringData.
var empties = regexp.MustCompile(`\{\}|\[\]|null|""|false|:0[,}]|stringData`)

// nothing matches a configuration after which nobody may own anything.
var nothing = regexp.MustCompile(`\{\}|\[\]|null`)

// Fields that are owned as a whole and have defaults inside, and those of quantities.
var (
	defaulted  = regexp.MustCompile(`\.(fieldRef|roleRef|subjects\[\]|ports\[\]|ingress\[\]\.ports\[\]|httpGet)$`)
	quantities = regexp.MustCompile(`\.(cpu|memory|sizeLimit|averageValue)$`)
)

// excused reports whether only the server can tell whether an apply changes anything:
// the reason must hold for the configuration and live.
func (s subjectOf[T, C]) excused(why string, config, live []byte) bool {
	why = strings.Trim(why, `"`)
	untyped := s.extract == nil
	path, reason := "", why
	if i := strings.LastIndex(why, ": "); i >= 0 {
		path, reason = why[:i], why[i+2:]
	}
	has := func(values ...string) bool {
		return slices.ContainsFunc(valuesAt(config, path), func(v string) bool { return slices.Contains(values, v) })
	}
	switch reason {
	case "live has no managedFields":
		return len(must2(decode[metav1.PartialObjectMetadata](live)).ManagedFields) == 0
	case "the schema is not known":
		return untyped
	case "more is there than is applied":
		return defaulted.MatchString(path)
	case "stored in other words":
		return untyped && quantities.MatchString(path)
	case "empty, and not there":
		return untyped && has(`""`, `0`, `false`, `{}`)
	case "an empty list":
		return has(`[]`)
	case "null":
		return has(`null`)
	case "owned in another shape":
		// Members of a map that are maps themselves are owned as themselves too.
		return untyped && strings.Contains(string(live), `"f:`+path[strings.LastIndex(path, ".")+1:]+`":{".":{}`)
	case "not stored, and owned by others too":
		return strings.Contains(string(live), `"other"`) || strings.Contains(string(live), `"editor"`)
	}
	return false
}

// valuesAt returns the JSON of the values at a path, in any item of its lists.
func valuesAt(config []byte, path string) []string {
	at := []json.RawMessage{config}
	for _, name := range strings.Split(strings.TrimPrefix(strings.ReplaceAll(path, "[]", ".[]"), "."), ".") {
		var next []json.RawMessage
		for _, b := range at {
			if name == "[]" {
				var l []json.RawMessage
				_ = json.Unmarshal(b, &l)
				next = append(next, l...)
				continue
			}
			var o map[string]json.RawMessage
			_ = json.Unmarshal(b, &o)
			if v, ok := o[name]; ok {
				next = append(next, v)
			}
		}
		at = next
	}
	var values []string
	for _, b := range at {
		values = append(values, string(b))
	}
	return values
}

// content is all of an object that a change can be a change of: its fields and who
// owns them. The test writes the status beside the applies.
func content(u *unstructured.Unstructured) string {
	u = u.DeepCopy()
	entries := slices.DeleteFunc(u.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Subresource == "status" })
	for i := range entries {
		entries[i].Time = nil
	}
	slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return strings.Compare(a.Manager+string(a.Operation), b.Manager+string(b.Operation))
	})
	u.SetManagedFields(entries)
	u.SetResourceVersion("")
	u.SetGeneration(0)
	delete(u.Object, "status")
	return string(must2(u.MarshalJSON()))
}

// meddle lets somebody else write.
func (w world) meddle(ctx context.Context, r *rand.Rand, raw dynamic.ResourceInterface, d draft, name string, round int) (what string, answer *unstructured.Unstructured, err error) {
	path, variant := d.one(r)
	content := map[string]any{}
	put(content, path, variant)
	switch r.IntN(6) {
	case 0:
		content := d.head()
		put(content, path, variant)
		answer, err = raw.Patch(ctx, name, types.ApplyPatchType, must2(json.Marshal(content)), metav1.PatchOptions{FieldManager: "other", Force: ptr(true)})
		return "applied by another", answer, err
	case 1:
		// The same manager, from another client that does not leave out what is empty.
		answer, err = raw.Patch(ctx, name, types.ApplyPatchType, d.mutated(r, 1).json(), metav1.PatchOptions{FieldManager: string(manager), Force: ptr(true)})
		return "applied by the same manager", answer, err
	case 2:
		if variant == "" {
			put(content, path, "null")
		}
		answer, err = raw.Patch(ctx, name, types.MergePatchType, must2(json.Marshal(content)), metav1.PatchOptions{FieldManager: string(manager)})
		return "patched by the same manager", answer, err
	case 3:
		if d.f.status == "" {
			return "nothing", nil, nil
		}
		answer, err = raw.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, d.f.status, round), metav1.PatchOptions{FieldManager: "other"}, "status")
		return "status", answer, err
	default:
		if variant == "" {
			put(content, path, "null")
		}
		answer, err = raw.Patch(ctx, name, types.MergePatchType, must2(json.Marshal(content)), metav1.PatchOptions{FieldManager: "editor"})
		return "patched by another", answer, err
	}
}

func must2[T any](v T, err error) T {
	must(err)
	return v
}

func ptr[T any](v T) *T { return &v }

// definition is that of a custom resource.
func definition(kind string) map[string]any {
	plain := func(s string) any {
		var v any
		must(json.Unmarshal([]byte(s), &v))
		return v
	}
	version := map[string]any{"name": "v1", "served": true, "storage": true, "subresources": plain(`{"status":{}}`)}
	if kind == "Schemaless" || kind == "Lax" {
		version["schema"] = plain(`{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}`)
		delete(version, "subresources")
	} else {
		version["schema"] = plain(`{"openAPIV3Schema":{"type":"object","properties":{
			"status":{"type":"object","properties":{"n":{"type":"integer"}}},
			"spec":{"type":"object","properties":{
				"int":{"type":"integer"},"float":{"type":"number"},"bool":{"type":"boolean"},"text":{"type":"string"},
				"intOrString":{"x-kubernetes-int-or-string":true},
				"nullable":{"type":"string","nullable":true},
				"set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
				"map":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name","zone"],"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"zone":{"type":"string","default":"z"},"value":{"type":"integer"}}}},
				"atomicList":{"type":"array","x-kubernetes-list-type":"atomic","items":{"type":"string"}},
				"atomicMap":{"type":"object","x-kubernetes-map-type":"atomic","additionalProperties":{"type":"string"}},
				"granularMap":{"type":"object","additionalProperties":{"type":"string"}},
				"maps":{"type":"object","additionalProperties":{"type":"object","additionalProperties":{"type":"string"}}},
				"defaulted":{"type":"object","default":{},"properties":{"a":{"type":"string","default":"x"},"b":{"type":"integer","default":1}}},
				"free":{"type":"object","x-kubernetes-preserve-unknown-fields":true}
			}}}}}`)
	}
	gvk := schema.GroupVersionKind{Group: "ssa.example.com", Version: "v1", Kind: kind}
	resource, _ := meta.UnsafeGuessKindToResource(gvk)
	plural := resource.Resource
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + ".ssa.example.com"},
		"spec": map[string]any{
			"group": "ssa.example.com", "scope": "Namespaced",
			"names":    map[string]any{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind)},
			"versions": []any{version},
		},
	}
}
