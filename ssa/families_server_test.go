package ssa_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applyautoscalingv2 "k8s.io/client-go/applyconfigurations/autoscaling/v2"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
)

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
