package kstatus_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/testcost"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

// A field that a rule reads is Unknown with its name, if it has another type than the kind
// allows. Other fields are not looked at.
func TestOfWrongTypes(t *testing.T) {
	for _, tt := range []struct {
		kind, content, want string
	}{
		{"apps/v1 Deployment", `"status":{"observedGeneration":"2"}`, "status.observedGeneration"},
		{"apps/v1 Deployment", `"status":{"observedGeneration":1.5}`, "status.observedGeneration"},
		{"apps/v1 Deployment", `"status":{"observedGeneration":1e300}`, "status.observedGeneration"},
		{"apps/v1 Deployment", `"status":[]`, "status"},
		{"apps/v1 Deployment", `"status":"text"`, "status"},
		{"apps/v1 Deployment", `"spec":7,"status":{"observedGeneration":2}`, "spec"},
		{"apps/v1 Deployment", `"spec":{"replicas":"1"},"status":{"observedGeneration":2}`, "spec.replicas"},
		{"apps/v1 Deployment", `"spec":{"replicas":0},"status":{"observedGeneration":2,"replicas":{}}`, "status.replicas"},
		{"apps/v1 StatefulSet", `"spec":{"replicas":0,"updateStrategy":{"rollingUpdate":{"partition":"1"}}},"status":{"observedGeneration":2}`, "spec.updateStrategy.rollingUpdate.partition"},
		{"v1 Pod", `"status":{"phase":3}`, "status.phase"},
		{"v1 Pod", `"status":{"containerStatuses":[{"state":{"waiting":{"reason":1}}}]}`, "status.containerStatuses[].state.waiting.reason"},
		{"v1 Pod", `"status":{"containerStatuses":[null]}`, "status.containerStatuses[]"},
		{"v1 Pod", `"status":{"containerStatuses":{}}`, "status.containerStatuses"},
		{"v1 Service", `"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":"1.2.3.4"}}`, "status.loadBalancer.ingress"},
		{"v1 Service", `"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[5]}}`, "status.loadBalancer.ingress[]"},
		{"example.com/v1 Widget", `"status":{"conditions":{}}`, "status.conditions"},
		{"example.com/v1 Widget", `"status":{"conditions":[1]}`, "status.conditions[]"},
		{"example.com/v1 Widget", `"status":{"conditions":[null]}`, "status.conditions[]"},
		{"example.com/v1 Widget", `"status":{"conditions":[{"type":1}]}`, "status.conditions[].type"},
		{"example.com/v1 Widget", `"status":{"conditions":[{"type":"Ready","status":true}]}`, "status.conditions[].status"},
		{"example.com/v1 Widget", `"status":{"conditions":[{"type":"Ready","status":"True","message":[]}]}`, "status.conditions[].message"},
		{"example.com/v1 Widget", `"status":{"conditions":[{"type":"Ready","status":"True","observedGeneration":"2"}]}`, "status.conditions[].observedGeneration"},
		{"example.com/v1 Widget", `"status":{"conditions":[{"type":"Other","status":true},{"type":"Ready","status":"True"}],"replicas":"x"}`, ""},
		{"example.com/v1 Widget", `"status":null`, ""},
		{"example.com/v1 Widget", `"status":{"conditions":null}`, ""},
	} {
		apiVersion, kind, _ := strings.Cut(tt.kind, " ")
		state, reason := kstatus.Of(object(t, apiVersion, kind, tt.content))
		switch {
		case tt.want == "" && state != kstatus.Ready:
			t.Errorf("%s %s: %s: %q, want Ready", kind, tt.content, state, reason)
		case tt.want != "" && (state != kstatus.Unknown || reason != tt.want+" has the wrong type"):
			t.Errorf("%s %s: %s: %q, want Unknown about %s", kind, tt.content, state, reason, tt.want)
		}
	}
}

// kinds are those with rules, and another one.
var kinds = []string{
	"apps/v1 DaemonSet", "apps/v1 Deployment", "apps/v1 ReplicaSet", "apps/v1 StatefulSet", "batch/v1 Job", "v1 PersistentVolume",
	"v1 PersistentVolumeClaim", "v1 Pod", "v1 ReplicationController", "v1 Service", "policy/v1 PodDisruptionBudget",
	"apiextensions.k8s.io/v1 CustomResourceDefinition", "apiregistration.k8s.io/v1 APIService", "example.com/v1 Widget",
}

// attack reads an object with the content as each kind.
func attack(t testing.TB, content map[string]any, size int) {
	states := []kstatus.State{kstatus.Ready, kstatus.Progressing, kstatus.Failed, kstatus.Terminating, kstatus.Unknown}
	var objects []metav1.Object
	for _, kind := range kinds {
		apiVersion, kind, _ := strings.Cut(kind, " ")
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
		for name, value := range content {
			if name != "apiVersion" && name != "kind" {
				u.Object[name] = value
			}
		}
		testcost.Linear(t, "Of", size, 1, func() {
			state, reason := kstatus.Of(u)
			if !slices.Contains(states, state) || reason == "" || len(reason) > kube.MaxMessage/4 || !utf8.ValidString(reason) {
				t.Errorf("%s: state %q, a reason of %d bytes: %.300q", kind, state, len(reason), reason)
			}
		})
		objects = append(objects, u)
	}
	testcost.Linear(t, "Condition", size, len(kinds), func() {
		if c := kstatus.Condition(objects...); len(c.Message) > kube.MaxMessage || !utf8.ValidString(c.Message) {
			t.Errorf("a message of %d bytes", len(c.Message))
		}
	})
}

// Objects that fill a request, each with one shape.
//
// Proves CK3.
func TestHostile(t *testing.T) {
	const n = testcost.Object / 12
	text := strings.Repeat("\u2028\x00", n)
	deep := any(map[string]any{})
	for range 100_000 {
		deep = map[string]any{"status": deep}
	}
	list := func(items int, item any) []any { return slices.Repeat([]any{item}, items) }
	condition := map[string]any{"type": "Ready", "status": text, "reason": text, "message": text}
	for name, content := range map[string]map[string]any{
		"nothing":    nil,
		"texts":      {"metadata": map[string]any{"name": text, "namespace": text}, "status": map[string]any{"phase": text, "reason": text, "message": text, "conditions": list(1, condition)}},
		"deep":       {"spec": deep, "status": deep},
		"conditions": {"status": map[string]any{"conditions": list(n, map[string]any{})}},
		"one type":   {"status": map[string]any{"conditions": list(n/10, condition)}},
		"containers": {"status": map[string]any{"containerStatuses": list(n, map[string]any{}), "initContainerStatuses": list(n, map[string]any{})}},
		"finalizers": {"metadata": map[string]any{"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": list(n/10, text)}},
		"wrong":      {"metadata": map[string]any{"name": int64(1), "generation": "x"}, "spec": list(n, nil), "status": list(n, nil)},
	} {
		t.Run(name, func(t *testing.T) { attack(t, content, testcost.Object) })
	}
}

// checkAttack checks an object with the content, which its author can store.
func checkAttack(t testing.TB, content map[string]any) {
	u := &unstructured.Unstructured{Object: content}
	testcost.Cheap(t, "Check", func() { _, _ = json.Marshal(u.Object) }, func() {
		if err := kstatus.Check(u); err != nil {
			_ = err.Error()
		}
	})
}

// Statuses that fill a request, each with one shape. The errors of Check quote them.
//
// Proves CK3.
func TestHostileCheck(t *testing.T) {
	condition := func(kind, message string) any {
		return map[string]any{"type": kind, "status": "True", "reason": "R", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}
	}
	for name, conditions := range map[string][]any{
		"a long text": {condition("Ready", strings.Repeat("\u2028", testcost.Object/6))},
		"empty":       slices.Repeat([]any{map[string]any{}}, 1<<16), // as many as FuzzHostile of status has
		"one type":    slices.Repeat([]any{condition("Ready", "m")}, testcost.Object/120),
	} {
		t.Run(name, func(t *testing.T) {
			checkAttack(t, map[string]any{"metadata": map[string]any{"generation": int64(5)}, "status": map[string]any{"observedGeneration": int64(5), "conditions": conditions}})
		})
	}
}

// FuzzHostile reads objects as their authors can store them.
//
// Proves CK3.
func FuzzHostile(f *testing.F) {
	for _, status := range []string{
		`{}`, `[]`, `null`, `{"conditions":[{"type":"Ready","status":"True","observedGeneration":9223372036854775807}]}`,
		`{"observedGeneration":-1,"conditions":[{"type":"Stalled","status":"True","message":"\u0000\u001b[2J\r"}]}`,
		`{"phase":"Running","containerStatuses":[{"name":{},"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}`,
		`{"replicas":-1,"loadBalancer":{"ingress":[[]]},"desiredHealthy":1e18,"desiredNumberScheduled":9223372036854775807}`,
	} {
		f.Add([]byte(`{"metadata":{"name":"a","generation":1},"spec":{"replicas":-9223372036854775808,"updateStrategy":{"rollingUpdate":{"partition":9223372036854775807}}},"status":` + status + `}`))
		f.Add(fmt.Appendf(nil, `{"metadata":[],"spec":%s,"status":%[1]s}`, status))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var content map[string]any
		if len(data) > 1<<16 || !json.Valid(data) || utiljson.Unmarshal(data, &content) != nil {
			t.Skip()
		}
		attack(t, content, len(data))
		checkAttack(t, content)
	})
}
