package controllertest

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

// TestNormalize holds what two runs may differ in without being different, and
// what not.
func TestNormalize(t *testing.T) {
	const one = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"$ns",`
	long := strings.Repeat("a", 60) + "-"
	tests := []struct {
		name       string
		resource   string
		a, b       []string // objects of two runs, as the server showed them
		left       int      // how many of the last ones are still there; 0 means all
		mask       func(*unstructured.Unstructured)
		cloudA     []cloud.Resource
		cloudB     []cloud.Resource
		difference string // "" means none
	}{
		{
			name: "what the server sets",
			a:    []string{one + `"name":"a","uid":"0001-x","resourceVersion":"5","generation":1,"creationTimestamp":"2026-01-01T00:00:00Z","managedFields":[{"manager":"x"}]}}`},
			b:    []string{one + `"name":"a","uid":"0002-x","resourceVersion":"9","generation":3,"creationTimestamp":"2026-02-02T00:00:00Z"}}`},
		}, {
			name: "an empty object in a list", difference: "+ networkpolicies/a .spec.ingress[0]: {}", resource: "networkpolicies",
			a: []string{one + `"name":"a"},"spec":{"policyTypes":["Ingress"]}}`},
			b: []string{one + `"name":"a"},"spec":{"policyTypes":["Ingress"],"ingress":[{}]}}`},
		}, {
			name: "an empty object in a field", difference: "- pods/a .spec.volumes[v].emptyDir: {}", resource: "pods",
			a: []string{one + `"name":"a"},"spec":{"volumes":[{"name":"v","emptyDir":{}}]}}`},
			b: []string{one + `"name":"a"},"spec":{"volumes":[{"name":"v"}]}}`},
		}, {
			name: "a status that nobody has written",
			a:    []string{one + `"name":"a"},"status":{}}`}, b: []string{one + `"name":"a"}}`},
		}, {
			name: "an object that a mask empties", mask: func(o *unstructured.Unstructured) { unstructured.RemoveNestedField(o.Object, "data", "k") },
			a: []string{one + `"name":"a"},"data":{"k":"v"}}`},
			b: []string{one + `"name":"a"}}`},
		}, {
			name: "an empty object beside a mask", resource: "networkpolicies", difference: "+ networkpolicies/a .spec.ingress[0]: {}",
			mask: func(o *unstructured.Unstructured) { unstructured.RemoveNestedField(o.Object, "data", "k") },
			a:    []string{one + `"name":"a"},"spec":{"policyTypes":["Ingress"]}}`},
			b:    []string{one + `"name":"a"},"spec":{"policyTypes":["Ingress"],"ingress":[{}]}}`},
		}, {
			name: "data", difference: "configmaps/a .data.k: w, without faults v",
			a: []string{one + `"name":"a"},"data":{"k":"v"}}`},
			b: []string{one + `"name":"a"},"data":{"k":"w"}}`},
		}, {
			name: "data that is masked", mask: func(o *unstructured.Unstructured) { unstructured.RemoveNestedField(o.Object, "data", "k") },
			a: []string{one + `"name":"a"},"data":{"k":"v"}}`},
			b: []string{one + `"name":"a"},"data":{"k":"w"}}`},
		}, {
			name: "an object that is masked whole", mask: func(o *unstructured.Unstructured) { o.Object = nil },
			a: []string{one + `"name":"a"}}`}, b: []string{one + `"name":"b"}}`},
		}, {
			name: "a name", difference: "+ configmaps/b: exists",
			a: []string{one + `"name":"a"}}`}, b: []string{one + `"name":"a"}}`, one + `"name":"b"}}`},
		}, {
			name: "generated names", a: []string{one + `"name":"a-x7x7x","generateName":"a-"}}`}, b: []string{one + `"name":"a-w2w2w","generateName":"a-"}}`},
		}, {
			name: "generated names that others mention",
			a:    []string{one + `"name":"a-x7x7x","generateName":"a-"}}`, one + `"name":"b"},"data":{"ref":"cm/a-x7x7x"}}`},
			b:    []string{one + `"name":"a-w2w2w","generateName":"a-"}}`, one + `"name":"b"},"data":{"ref":"cm/a-w2w2w"}}`},
		}, {
			name: "a generated name inside another name",
			a:    []string{one + `"name":"a-x7x7x","generateName":"a-"}}`, one + `"name":"a-x7x7x-log"}}`},
			b:    []string{one + `"name":"a-w2w2w","generateName":"a-"}}`, one + `"name":"a-w2w2w-log"}}`},
		}, {
			name: "a generated name that begins with another one",
			a:    []string{one + `"name":"a-x7x7x-b8b8b","generateName":"a-x7x7x-"},"data":{"of":"a-x7x7x","self":"a-x7x7x-b8b8b"}}`, one + `"name":"a-x7x7x","generateName":"a-"}}`},
			b:    []string{one + `"name":"a-w2w2w-c9c9c","generateName":"a-w2w2w-"},"data":{"of":"a-w2w2w","self":"a-w2w2w-c9c9c"}}`, one + `"name":"a-w2w2w","generateName":"a-"}}`},
		}, {
			name: "a generated name with a part of a long generateName",
			a:    []string{one + `"name":"` + long[:58] + `x7x7x","generateName":"` + long + `"}}`},
			b:    []string{one + `"name":"` + long[:58] + `w2w2w","generateName":"` + long + `"}}`},
		}, {
			name: "one more with a generated name", difference: "configmaps/a-* (2 of 2): exists",
			a: []string{one + `"name":"a-x7x7x","generateName":"a-"}}`},
			b: []string{one + `"name":"a-w2w2w","generateName":"a-"}}`, one + `"name":"a-z8z8z","generateName":"a-"}}`},
		}, {
			name: "the first of two with a generated name", difference: "configmaps/a-* (1 of 2): exists",
			a: []string{one + `"name":"a-x7x7x","generateName":"a-"}}`},
			b: []string{one + `"name":"a-w2w2w","generateName":"a-"}}`, one + `"name":"a-z8z8z","generateName":"a-"}}`},
		}, {
			name: "a fixed name of an object that has generateName too", difference: "- configmaps/db-0: exists",
			a: []string{one + `"name":"db-0","generateName":"db-"}}`}, b: []string{one + `"name":"db-1","generateName":"db-"}}`},
		}, {
			name: "generated names in another order",
			a:    []string{one + `"name":"a-x7x7x","generateName":"a-"},"data":{"k":"1"}}`, one + `"name":"a-x2x2x","generateName":"a-"},"data":{"k":"2"}}`},
			b:    []string{one + `"name":"a-w7w7w","generateName":"a-"},"data":{"k":"2"}}`, one + `"name":"a-w2w2w","generateName":"a-"},"data":{"k":"1"}}`},
		}, {
			name: "owners", a: []string{one + `"name":"a","uid":"u1"}}`, one + `"name":"b","ownerReferences":[{"name":"a","uid":"u1"}]}}`},
			b: []string{one + `"name":"a","uid":"u2"}}`, one + `"name":"b","ownerReferences":[{"name":"a","uid":"u2"}]}}`},
		}, {
			name: "an owner that is no more", difference: "<uid of an earlier configmaps/a>", left: 2,
			a: []string{one + `"name":"a","uid":"u1"}}`, one + `"name":"b","ownerReferences":[{"name":"a","uid":"u1"}]}}`},
			b: []string{one + `"name":"a","uid":"u0"}}`, one + `"name":"a","uid":"u2"}}`, one + `"name":"b","ownerReferences":[{"name":"a","uid":"u0"}]}}`},
		}, {
			name: "an owner that is no more beside one that is", difference: "<uid of an earlier configmaps/a>", left: 2,
			a: []string{one + `"name":"a","uid":"u1"}}`, one + `"name":"b","ownerReferences":[{"name":"a","uid":"u1"}]}}`},
			b: []string{one + `"name":"a","uid":"u0"}}`, one + `"name":"a","uid":"u2"}}`, one + `"name":"b","ownerReferences":[{"name":"a","uid":"u0"},{"name":"a","uid":"u2"}]}}`},
		}, {
			name: "a uid in a name", a: []string{one + `"name":"a","uid":"u1"}}`, one + `"name":"b-u1"}}`}, b: []string{one + `"name":"a","uid":"u2"}}`, one + `"name":"b-u2"}}`},
		}, {
			name: "observedGeneration", a: []string{one + `"name":"a","generation":2},"status":{"observedGeneration":2}}`}, b: []string{one + `"name":"a","generation":5},"status":{"observedGeneration":5}}`},
		}, {
			name: "observedGeneration that lags", difference: ".status.observedGeneration: <of an earlier generation>",
			a: []string{one + `"name":"a","generation":2},"status":{"observedGeneration":2}}`}, b: []string{one + `"name":"a","generation":5},"status":{"observedGeneration":4}}`},
		}, {
			name: "observedGeneration of a condition that lags", difference: ".status.conditions[Ready].observedGeneration: <of an earlier generation>",
			a: []string{one + `"name":"a","generation":2},"status":{"conditions":[{"type":"Ready","observedGeneration":2}]}}`},
			b: []string{one + `"name":"a","generation":2},"status":{"conditions":[{"type":"Ready","observedGeneration":1}]}}`},
		}, {
			name: "conditions in another order", a: []string{one + `"name":"a"},"status":{"conditions":[{"type":"A","status":"1"},{"type":"B","status":"2"}]}}`},
			b: []string{one + `"name":"a"},"status":{"conditions":[{"type":"B","status":"2"},{"type":"A","status":"1"}]}}`},
		}, {
			name: "an element with a type and a name", difference: "~ configmaps/a .status.conditions[Ready].status: 2, without faults 1",
			a: []string{one + `"name":"a"},"status":{"conditions":[{"name":"n","status":"1","type":"Ready","uid":"u"}]}}`},
			b: []string{one + `"name":"a"},"status":{"conditions":[{"name":"n","status":"2","type":"Ready","uid":"u"}]}}`},
		}, {
			name: "a condition twice", difference: ".status.conditions[Ready (2)]", a: []string{one + `"name":"a"},"status":{"conditions":[{"type":"Ready"}]}}`},
			b: []string{one + `"name":"a"},"status":{"conditions":[{"type":"Ready"},{"type":"Ready"}]}}`},
		}, {
			name: "times", a: []string{one + `"name":"a"},"status":{"conditions":[{"type":"A","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`},
			b: []string{one + `"name":"a"},"status":{"conditions":[{"type":"A","lastTransitionTime":"2026-01-01T00:00:01Z"}]}}`},
		}, {
			name: "finalizers", difference: `.metadata.finalizers: ["f"]`, a: []string{one + `"name":"a"}}`}, b: []string{one + `"name":"a","finalizers":["f"]}}`},
		}, {
			name: "a list in another order", a: []string{one + `"name":"a"},"subsets":[{"addresses":[{"ip":"1"},{"ip":"2"}]},{"ports":[7,8]}]}`},
			b: []string{one + `"name":"a"},"subsets":[{"ports":[8,7]},{"addresses":[{"ip":"2"},{"ip":"1"}]}]}`},
		}, {
			name: "one element more", difference: `~ configmaps/a .addresses: ["1","2"], without faults ["1"]`, a: []string{one + `"name":"a"},"addresses":["1"]}`}, b: []string{one + `"name":"a"},"addresses":["2","1"]}`},
		}, {
			name: "the same elements twice", difference: `.addresses: ["1","1"]`, a: []string{one + `"name":"a"},"addresses":["1"]}`}, b: []string{one + `"name":"a"},"addresses":["1","1"]}`},
		}, {
			name: "an element of another kind", difference: `.endpoints[0].ready: false`, a: []string{one + `"name":"a"},"endpoints":[{"ready":true}]}`}, b: []string{one + `"name":"a"},"endpoints":[{"ready":false}]}`},
		}, {
			name: "Unix times", a: []string{one + `"name":"a","annotations":{"s":"at $now","ms":"$now123"}},"n":$now}`}, b: []string{one + `"name":"a","annotations":{"s":"at $then","ms":"$then456"}},"n":$then}`},
		}, {
			name: "times in a text", a: []string{one + `"name":"a"},"message":"since 2026-01-01T00:00:00Z"}`}, b: []string{one + `"name":"a"},"message":"since 2026-01-02T00:00:01.5+01:00"}`},
		}, {
			name: "a number of ten digits", difference: ".n: 1000000001, without faults 1000000000", a: []string{one + `"name":"a"},"n":1000000000}`}, b: []string{one + `"name":"a"},"n":1000000001}`},
		}, {
			name: "the plan's own edit", a: []string{one + `"name":"a"}}`}, b: []string{one + `"name":"a","annotations":{"` + editAnnotation + `":"true"}}}`},
		}, {
			name: "a copy of the plan's own edit", resource: "deployments.apps",
			a: []string{one + `"name":"a"},"spec":{"template":{"metadata":{"labels":{"x":"y"}}},"others":[{"metadata":{}},{"metadata":{"annotations":{}}}]}}`},
			b: []string{one + `"name":"a","annotations":{"` + editAnnotation + `":"true"}},"spec":{"template":{"metadata":{"labels":{"x":"y"},"annotations":{"` + editAnnotation + `":"true"}}},"others":[{"metadata":{"annotations":{"` + editAnnotation + `":"true"}}},{"metadata":{"annotations":{"` + editAnnotation + `":"true"}}}]}}`},
		}, {
			name: "a copy of another annotation", difference: ".spec.template.metadata.annotations.x: y",
			a: []string{one + `"name":"a"},"spec":{"template":{"metadata":{"annotations":{"` + editAnnotation + `":"true"}}}}}`},
			b: []string{one + `"name":"a"},"spec":{"template":{"metadata":{"annotations":{"` + editAnnotation + `":"true","x":"y"}}}}}`},
		}, {
			name: "another annotation", difference: ".metadata.annotations.x: y", a: []string{one + `"name":"a"}}`}, b: []string{one + `"name":"a","annotations":{"x":"y"}}}`},
		}, {
			name: "what every namespace has", a: []string{one + `"name":"a"}}`}, b: []string{one + `"name":"a"}}`, one + `"name":"kube-root-ca.crt"}}`},
		}, {
			name: "the namespace", a: []string{one + `"name":"a"},"data":{"in":"$ns"}}`}, b: []string{one + `"name":"a"},"data":{"in":"$ns"}}`},
		}, {
			name: "cluster-scoped objects", resource: "clusterroles.rbac.authorization.k8s.io",
			a: []string{`{"apiVersion":"v1","kind":"ClusterRole","metadata":{"name":"$ns-x"}}`}, b: []string{`{"apiVersion":"v1","kind":"ClusterRole","metadata":{"name":"$ns-x"}}`},
		}, {
			name: "ids of the cloud", cloudA: []cloud.Resource{{ID: "id-1", Name: "a"}}, cloudB: []cloud.Resource{{ID: "id-2", Name: "a"}},
		}, {
			name: "ids that are stored", cloudA: []cloud.Resource{{ID: "id-1", Name: "x"}}, cloudB: []cloud.Resource{{ID: "id-12", Name: "x", Tags: nil}},
			a: []string{one + `"name":"a"},"data":{"id":"id-1","url":"https://x/id-1?a","id-1":"x"}}`},
			b: []string{one + `"name":"a"},"data":{"id":"id-12","url":"https://x/id-12?a","id-12":"x"}}`},
		}, {
			name: "ids of two resources", difference: ".data.id: <id of y>, without faults <id of x>",
			cloudA: []cloud.Resource{{ID: "id-1", Name: "x"}, {ID: "id-2", Name: "y"}}, cloudB: []cloud.Resource{{ID: "id-1", Name: "x"}, {ID: "id-2", Name: "y"}},
			a: []string{one + `"name":"a"},"data":{"id":"id-1"}}`}, b: []string{one + `"name":"a"},"data":{"id":"id-2"}}`},
		}, {
			name: "an id of what is no more", difference: ".data.id: <id of an earlier old>, without faults <id of x>",
			cloudA: []cloud.Resource{{ID: "id-1", Name: "x"}}, cloudB: []cloud.Resource{{ID: "id-1", Name: "x"}},
			a: []string{one + `"name":"a"},"data":{"id":"id-1"}}`}, b: []string{one + `"name":"a"},"data":{"id":"id-9"}}`},
		}, {
			name: "what looks like an id", difference: ".data.id: valid-2, without faults valid-1",
			cloudA: []cloud.Resource{{ID: "id-1", Name: "x"}}, cloudB: []cloud.Resource{{ID: "id-2", Name: "x"}},
			a: []string{one + `"name":"a"},"data":{"id":"valid-1"}}`}, b: []string{one + `"name":"a"},"data":{"id":"valid-2"}}`},
		}, {
			name: "an id that the controller chose", difference: ".data.id: id-2, without faults id-1",
			cloudA: []cloud.Resource{{ID: "id-1", Name: "id-1"}}, cloudB: []cloud.Resource{{ID: "id-1", Name: "id-1"}},
			a: []string{one + `"name":"a"},"data":{"id":"id-1"}}`}, b: []string{one + `"name":"a"},"data":{"id":"id-2"}}`},
		}, {
			name: "one more in the cloud", difference: "cloud/a: 2 with tags", cloudA: []cloud.Resource{{ID: "id-1", Name: "a"}}, cloudB: []cloud.Resource{{ID: "id-1", Name: "a"}, {ID: "id-2", Name: "a"}},
		}, {
			name: "tags of the cloud", difference: `cloud/a: 1 with tags {"k":"w"}`,
			cloudA: []cloud.Resource{{ID: "id-1", Name: "a", Tags: map[string]string{"k": "v"}}}, cloudB: []cloud.Resource{{ID: "id-1", Name: "a", Tags: map[string]string{"k": "w"}}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.resource == "" {
				test.resource = "configmaps"
			}
			flat := func(namespace string, objects []string, inCloud []cloud.Resource) map[string]any {
				r := quietRun(Scenario{Mask: test.mask}, namespace)
				left := len(objects)
				for n := range objects {
					now := time.Now().Unix()
					objects[n] = strings.NewReplacer("$now", strconv.FormatInt(now, 10), "$then", strconv.FormatInt(now-7, 10)).Replace(objects[n])
				}
				if test.left > 0 {
					left = min(left, test.left)
				}
				s := stateOf(t, r, left, test.resource, objects...)
				s.cloud = inCloud
				r.learnIDsLocked([]cloud.Resource{{ID: "id-9", Name: "old"}, {ID: "kept", Name: "kept"}})
				before := maps.Clone(s.objects)
				was := fmt.Sprint(s.Objects(test.resource))
				f := r.normalizeLocked(s)
				if !maps.Equal(before, s.objects) || was != fmt.Sprint(s.Objects(test.resource)) {
					t.Error("the state was modified")
				}
				return f
			}
			diff := strings.Join(differences(flat("ct-a-1", test.a, test.cloudA), flat("ct-b-22", test.b, test.cloudB), nil, 0, 20), "\n")
			if test.difference == "" && diff != "" || !strings.Contains(diff, test.difference) {
				t.Errorf("the difference is %q, want %q", diff, test.difference)
			}
		})
	}
}
