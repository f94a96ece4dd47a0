package controllertest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// quietRun is a run that nothing happens in.
func quietRun(s Scenario, namespace string) *run {
	return &run{
		x: &explorer{scenario: s}, env: Env{Namespace: namespace}, late: newLateness(), changed: make(chan struct{}), counts: map[string]int{}, responses: map[string]bool{},
		generated: map[string]string{}, ids: map[string]string{}, uids: map[types.UID]objectKey{}, versions: map[string]map[string]any{}, present: map[objectKey]*unstructured.Unstructured{},
	}
}

func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return &o
}

// stateOf makes a run see objects, and returns the state of those that are left.
func stateOf(t testing.TB, r *run, left int, resource string, objects ...string) *State {
	t.Helper()
	s := &State{namespace: r.env.Namespace, objects: map[objectKey]*unstructured.Unstructured{}}
	for n, text := range objects {
		o := object(t, strings.ReplaceAll(text, "$ns", r.env.Namespace))
		key := objectKey{resource, o.GetNamespace(), o.GetName()}
		r.learnLocked(key, o)
		if n >= len(objects)-left {
			s.objects[key] = o
		}
	}
	return s
}

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
			name: "finalizers", difference: ".metadata.finalizers[0]: f", a: []string{one + `"name":"a"}}`}, b: []string{one + `"name":"a","finalizers":["f"]}}`},
		}, {
			name: "the plan's own edit", a: []string{one + `"name":"a"}}`}, b: []string{one + `"name":"a","annotations":{"` + editAnnotation + `":"true"}}}`},
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
			diff := strings.Join(differences(flat("ct-a-1", test.a, test.cloudA), flat("ct-b-22", test.b, test.cloudB), nil, 0), "\n")
			if test.difference == "" && diff != "" || !strings.Contains(diff, test.difference) {
				t.Errorf("the difference is %q, want %q", diff, test.difference)
			}
		})
	}
}

// TestFindingsOfGeneratedNames: findings of two runs whose texts differ only by generated
// names are one.
//
// Proves X8.
func TestFindingsOfGeneratedNames(t *testing.T) {
	of := func(job, pod string) Finding {
		r := quietRun(Scenario{}, "ct-a-1")
		stateOf(t, r, 0, "pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"$ns","name":"`+job+`-`+pod+`","generateName":"`+job+`-"}}`, `{"apiVersion":"batch/v1","kind":"Job","metadata":{"namespace":"$ns","name":"`+job+`","generateName":"job-"}}`)
		r.find(Health, `pod "%s-%s" of "%s" is stuck, see %[3]s-log`, job, pod, job)
		return r.findings[0]
	}
	a, b := of("job-x7x7x", "b8b8b"), of("job-w2w2w", "c9c9c")
	if want := `pod "job-*-*" of "job-*" is stuck, see job-*-log`; a.Field != want || a.key() != b.key() {
		t.Errorf("the fields are %q and %q, want %q", a.Field, b.Field, want)
	}
	if !strings.Contains(a.Text, "job-x7x7x-b8b8b") {
		t.Errorf("the text is %q, want the names", a.Text)
	}
}

func TestDifferences(t *testing.T) {
	want, have := map[string]any{"a": "1", "b": "2", "c": "3", "n": int64(1)}, map[string]any{"b": "3", "c": "4", "d": "5", "n": int64(1)}
	got := differences(want, have, map[string]bool{"1 c": true, "0 b": true}, 1)
	if diff := cmp.Diff([]string{"  - a: 1", "  ~ b: 3, without faults 2", "  + d: 5"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	many := map[string]any{}
	for n := range 100 {
		many[fmt.Sprint(n)] = "x"
	}
	if got := differences(map[string]any{}, many, nil, 0); len(got) != 21 || got[20] != "  ..." {
		t.Errorf("%d lines, the last is %q", len(got), got[len(got)-1])
	}
}

// TestJudge holds what is compared with the reference, and what not because a user
// of the plan has changed the story.
func TestJudge(t *testing.T) {
	ref := &reference{
		rests: []checkpoint{{step: "one", state: map[string]any{"a": "1"}}, {step: "two", state: map[string]any{"b": "2"}}},
		added: map[string]int{"configmaps/a": 1}, deleted: map[string]int{"configmaps/a": 1},
	}
	ev := func(kind watch.EventType, name string) event {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		return event{key: objectKey{"configmaps", "ns", name}, kind: kind, object: o}
	}
	// Revisions count from 1. The owner "a" of the children is deleted at revision 5.
	child := func(kind watch.EventType, revision uint64, uid string, owners ...types.UID) event {
		e := ev(kind, "child")
		e.revision = revision
		e.object.SetUID(types.UID(uid))
		var refs []metav1.OwnerReference
		for _, o := range owners {
			refs = append(refs, metav1.OwnerReference{Name: string(o), UID: o})
		}
		e.object.SetOwnerReferences(refs)
		return e
	}
	ownerGone := ev(watch.Deleted, "a")
	ownerGone.revision = 5
	ownerGone.object.SetUID("a")
	same := []checkpoint{{step: "one", state: map[string]any{"a": "1"}}, {step: "two", state: map[string]any{"b": "2"}}}
	tests := []struct {
		name    string
		plan    plan
		rests   []checkpoint
		history []event
		want    []string
	}{
		{"the same", nil, same, []event{ev(watch.Added, "a"), ev(watch.Modified, "a"), ev(watch.Deleted, "a")}, nil},
		{"less", nil, same[:1], nil, nil},
		{"another first state", nil, []checkpoint{{step: "one", state: map[string]any{"a": "2"}}, same[1]}, nil, []string{`end state: after step "one" the state differs from that without faults:` + "\n  ~ a: 2, without faults 1"}},
		{"another first state without the user's object", plan{{kind: UserDelete}}, []checkpoint{{step: "one", state: map[string]any{"a": "2"}}, same[1]}, nil, nil},
		{"another first state with the user's object created again", plan{{kind: UserRecreate}}, []checkpoint{{step: "one", state: map[string]any{"a": "2"}}, same[1]}, nil, nil},
		{"another last state with the user's object created again", plan{{kind: UserRecreate}}, []checkpoint{same[0], {step: "two", state: map[string]any{"b": "3"}}}, nil, []string{`end state: after step "two" the state differs from that without faults:` + "\n  ~ b: 3, without faults 2"}},
		{"another first state while a request is repeated", nil, []checkpoint{{step: "one", state: map[string]any{"a": "2"}, repeats: true}, same[1]}, nil, nil},
		{"another last state without the user's object", plan{{kind: UserDelete}}, []checkpoint{same[0], {step: "two", state: map[string]any{}}}, nil, []string{`end state: after step "two" the state differs from that without faults:` + "\n  - b: 2"}},
		{"created twice", nil, same, []event{ev(watch.Added, "a"), ev(watch.Deleted, "a"), ev(watch.Added, "a")}, []string{"events: configmaps/a was created 2 times, without faults 1 times"}},
		{"deleted twice", nil, same, []event{ev(watch.Deleted, "a"), ev(watch.Deleted, "a")}, []string{"events: configmaps/a was deleted 2 times, without faults 1 times"}},
		{"created twice by the plan's user", plan{{kind: UserRecreate}}, same, []event{ev(watch.Added, "a"), ev(watch.Deleted, "a"), ev(watch.Added, "a"), ev(watch.Deleted, "a")}, nil},
		{"created thrice", plan{{kind: UserRecreate}}, same, []event{ev(watch.Added, "a"), ev(watch.Added, "a"), ev(watch.Added, "a")}, []string{"events: configmaps/a was created 3 times, without faults 2 times"}},
		{"a child created after its owner was deleted", nil, same, []event{child(watch.Added, 6, "c", "a"), child(watch.Deleted, 7, "c", "a"), ownerGone}, nil},
		{"a child created before its owner was deleted", nil, same, []event{child(watch.Added, 4, "c", "a"), ownerGone}, []string{"events: configmaps/child was created 1 times, without faults 0 times"}},
		{"a child with another owner", nil, same, []event{child(watch.Added, 6, "c", "a", "b"), ownerGone}, []string{"events: configmaps/child was created 1 times, without faults 0 times"}},
		{"a child without an owner", nil, same, []event{child(watch.Added, 6, "c"), ownerGone}, []string{"events: configmaps/child was created 1 times, without faults 0 times"}},
		{"something else", nil, same, []event{ev(watch.Added, "b")}, []string{"events: configmaps/b was created 1 times, without faults 0 times"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := quietRun(Scenario{}, "ns")
			r.plan, r.rests, r.history = test.plan, test.rests, test.history
			r.judge(ref)
			var got []string
			for _, f := range r.findings {
				got = append(got, string(f.Oracle)+": "+f.Text)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAgree holds what becomes of runs without faults that are not alike.
func TestAgree(t *testing.T) {
	of := func(ids []string, states ...map[string]any) *run {
		r := quietRun(Scenario{}, "ns")
		for _, id := range ids {
			r.trace = append(r.trace, operation{id: id})
		}
		for _, s := range states {
			r.rests = append(r.rests, checkpoint{step: "step", state: s})
		}
		return r
	}
	x := &explorer{}
	ref, err := x.agree([]*run{
		of([]string{"a#1", "b#1", "c#1"}, map[string]any{"k": "1", "l": "1"}),
		of([]string{"b#1", "a#1"}, map[string]any{"k": "1", "l": "2"}),
		of([]string{"a#1", "b#1", "d#1"}, map[string]any{"k": "1", "m": "3"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, op := range ref.operations {
		ids = append(ids, op.id)
	}
	if diff := cmp.Diff([]string{"a#1", "b#1"}, ids); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"c#1", "d#1"}, ref.skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"0 l": true, "0 m": true}, ref.masked); diff != "" {
		t.Errorf("masked (-want +got):\n%s", diff)
	}
	if _, err := x.agree([]*run{of([]string{"a#1"}), of([]string{"b#1"}), of([]string{"c#1"})}); err == nil || !strings.Contains(err.Error(), "give objects fixed names") || !strings.Contains(err.Error(), "a#1") {
		t.Errorf("runs that have nothing in common: %v", err)
	}
	one := map[string]any{"k": "1"}
	for _, runs := range [][]*run{
		{of([]string{"a#1"}, one), of([]string{"a#1"}, one, one), of([]string{"a#1"}, one)},
		{of([]string{"a#1"}, one, one), of([]string{"a#1"}, one), of([]string{"a#1"}, one)},
	} {
		if _, err := x.agree(runs); err == nil || !strings.Contains(err.Error(), "steps") {
			t.Errorf("runs with unlike numbers of steps: %v", err)
		}
	}
}

// TestInvariantsInOrder holds that states are shown in the order of revisions, and
// a call of the cloud after the write of its revision.
//
// Proves X3.
func TestInvariantsInOrder(t *testing.T) {
	var seen []string
	r := quietRun(Scenario{Invariants: []Invariant{{Name: "order", Check: func(s *State) error {
		line := ""
		for _, o := range s.Objects("configmaps") {
			line += o.GetName() + o.GetResourceVersion() + " "
		}
		seen = append(seen, line+fmt.Sprint("cloud ", len(s.Cloud())))
		clear(s.objects) // is not to do harm
		return nil
	}}, {Name: "never b", Check: func(s *State) error {
		if s.Get("configmaps", "b") != nil {
			return fmt.Errorf("there is b")
		}
		return nil
	}}}}, "ns")
	at := func(revision uint64, kind watch.EventType, name string) event {
		o := &unstructured.Unstructured{}
		o.SetName(name)
		o.SetNamespace("ns")
		o.SetResourceVersion(fmt.Sprint(revision))
		return event{revision: revision, key: objectKey{"configmaps", "ns", name}, kind: kind, object: o}
	}
	r.history = []event{ // as they happened to arrive
		{revision: 10, cloud: []cloud.Resource{{ID: "1"}}},
		at(30, watch.Deleted, "a"),
		at(10, watch.Added, "a"),
		at(9, watch.Added, "b"),
		at(20, watch.Modified, "a"),
		{revision: 20, cloud: nil},
		at(25, watch.Modified, "b"),
	}
	r.checkInvariants()
	want := []string{"b9 cloud 0", "a10 b9 cloud 0", "a10 b9 cloud 1", "a20 b9 cloud 1", "a20 b9 cloud 0", "a20 b25 cloud 0", "b25 cloud 0"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if len(r.findings) != 1 || r.findings[0].Oracle != Invariance || r.findings[0].Text != "never b: there is b (at version 9)" {
		t.Errorf("findings: %+v, want the first violation and no other", r.findings)
	}
}

// TestGap: the states within a gap of the observer's watch are not judged, that of the list
// at its end is. Its deletions have no version of their own, so they come at the end, and do not
// take away what has the same name by then.
//
// Proves X7.
func TestGap(t *testing.T) {
	at := func(revision uint64, kind watch.EventType, name, uid string) event {
		o := &unstructured.Unstructured{}
		o.SetName(name)
		o.SetUID(types.UID(uid))
		return event{revision: revision, key: objectKey{"configmaps", "", name}, kind: kind, object: o}
	}
	history := []event{ // a and b are always together
		at(10, watch.Added, "a", "1"), at(10, watch.Added, "b", "2"),
		at(30, watch.Deleted, "a", "1"), at(30, watch.Deleted, "b", "2"), at(30, watch.Deleted, "c", "3"),
		at(22, watch.Added, "c", "5"), at(24, watch.Added, "a", "4"),
		{revision: 26}, {revision: 30},
		at(40, watch.Deleted, "a", "4"), at(40, watch.Deleted, "c", "5"),
	}
	for _, test := range []struct {
		gaps []gap
		want []string
	}{
		{[]gap{{after: 10, end: 30}, {after: 30, end: 40}}, []string{"a ", "a b ", "a c ", ""}},
		{[]gap{{after: 10, end: 30}}, []string{"a ", "a b ", "a c ", "c ", ""}},
	} {
		var seen []string
		r := quietRun(Scenario{Invariants: []Invariant{{Name: "names", Check: func(s *State) error {
			line := ""
			for _, o := range s.Objects("configmaps") {
				line += o.GetName() + " "
			}
			seen = append(seen, line)
			return nil
		}}}}, "ns")
		r.history, r.gaps = history, test.gaps
		r.checkInvariants()
		if diff := cmp.Diff(test.want, seen); diff != "" {
			t.Errorf("states with %v (-want +got):\n%s", test.gaps, diff)
		}
	}
}

// TestSignature holds what an operation is known by.
func TestSignature(t *testing.T) {
	const merge, apply, jsonPatch = string(types.MergePatchType), string(types.ApplyYAMLPatchType), string(types.JSONPatchType)
	base := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"ct-x-1","uid":"u1","resourceVersion":"7","generation":1,"labels":{"l":"1"}},"data":{"k":"v"},"immutable":false}`
	update := func(edit func(o map[string]any)) []byte {
		var o map[string]any
		if err := json.Unmarshal([]byte(base), &o); err != nil {
			t.Fatal(err)
		}
		edit(o)
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	meta := func(o map[string]any) map[string]any { return o["metadata"].(map[string]any) }
	tests := []struct {
		name string
		op   fault.Op
		want string
	}{
		{"get", fault.Op{Verb: "get", Resource: "configmaps", Name: "a"}, "get configmaps a"},
		{"create", fault.Op{Verb: "create", Resource: "deployments.apps", Name: "ct-x-1-a", Body: []byte(base)}, "create deployments.apps $ns-a"},
		{"generateName", fault.Op{Verb: "create", Resource: "configmaps", Name: "a-", Generated: true}, "create configmaps a-*"},
		{"of a generated name", fault.Op{Verb: "delete", Resource: "configmaps", Name: "g-bcdfg"}, "delete configmaps g-*"},
		{"of a name with a uid", fault.Op{Verb: "delete", Resource: "configmaps", Name: "a-u1"}, "delete configmaps a-[uid configmaps]"},
		{"of a name with an id of the cloud", fault.Op{Verb: "delete", Resource: "configmaps", Name: "a-id-3"}, "delete configmaps a-[id of-[uid configmaps]]"},
		{"of a name with another id", fault.Op{Verb: "delete", Resource: "configmaps", Name: "a-id-4"}, "delete configmaps a-id-4"},
		{"list", fault.Op{Verb: "list", Resource: "configmaps"}, "list configmaps"},
		{"subresource", fault.Op{Verb: "create", Resource: "pods", Name: "a", Subresource: "eviction"}, "create pods/eviction a"},
		{"update", fault.Op{Verb: "update", Resource: "configmaps", Name: "a", Body: update(func(o map[string]any) {
			o["data"] = map[string]any{"k": "w", "n": "1"}
			meta(o)["finalizers"] = []string{"f"}
			delete(meta(o), "labels")
			o["immutable"] = true
		})}, "update configmaps a data.k,data.n,immutable,metadata.finalizers,metadata.labels"},
		{"update of nothing", fault.Op{Verb: "update", Resource: "configmaps", Name: "a", Body: update(func(o map[string]any) { meta(o)["generation"] = 2; delete(meta(o), "uid") })}, "update configmaps a"},
		{"update of an unknown version", fault.Op{Verb: "update", Resource: "configmaps", Name: "a", Body: update(func(o map[string]any) { meta(o)["resourceVersion"] = "8"; o["data"] = nil })}, "update configmaps a"},
		{"update without a version", fault.Op{Verb: "update", Resource: "configmaps", Name: "a", Body: update(func(o map[string]any) { delete(meta(o), "resourceVersion") })}, "update configmaps a"},
		{"update of what is no object", fault.Op{Verb: "update", Resource: "configmaps", Name: "a", Body: []byte("[]")}, "update configmaps a"},
		{"merge patch", fault.Op{Verb: "patch", Resource: "configmaps", Name: "a", ContentType: merge, Body: []byte(`{"metadata":{"resourceVersion":"7","finalizers":null,"annotations":{"x":"y"}},"data":{"k":null}}`)}, "patch configmaps a data.k,metadata.annotations,metadata.finalizers"},
		{"json patch", fault.Op{Verb: "patch", Resource: "configmaps", Name: "a", ContentType: jsonPatch, Body: []byte(`[{"op":"test","path":"/metadata/uid","value":"u1"},{"op":"test","path":"/data/k","value":"v"},{"op":"add","path":"/metadata/finalizers/-","value":"f"},{"op":"replace","path":"/metadata/finalizers/0","value":"g"},{"op":"remove","path":"/immutable"}]`)}, "patch configmaps a immutable,metadata.finalizers"},
		{"broken patch", fault.Op{Verb: "patch", Resource: "configmaps", Name: "a", ContentType: jsonPatch, Body: []byte(`{`)}, "patch configmaps a"},
		{"apply", fault.Op{Verb: "apply", Resource: "configmaps", Name: "a", ContentType: apply, Body: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {x: y}}\ndata: {k: v}\n")}, "apply configmaps a data.k,metadata.labels"},
		{"apply of the status", fault.Op{Verb: "apply", Resource: "configmaps", Subresource: "status", Name: "a", ContentType: apply, Body: []byte(`{"status":{"conditions":[]}}`)}, "apply configmaps/status a status.conditions"},
		{"what has a meaning in plans", fault.Op{Verb: "patch", Resource: "configmaps", Name: "a@b#(c)<d> + e", ContentType: merge, Body: []byte(`{"data":{"x@y#1 + ":"z"}}`)}, "patch configmaps a~b~[c][d] ~ e data.x~y~1 ~ "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := quietRun(Scenario{}, "ct-x-1")
			r.learnLocked(objectKey{"configmaps", "ct-x-1", "a"}, object(t, base))
			r.learnLocked(objectKey{"configmaps", "ct-x-1", "g-bcdfg"}, object(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"g-bcdfg","generateName":"g-"}}`))
			r.learnIDsLocked([]cloud.Resource{{ID: "id-3", Name: "of-u1"}})
			got := r.signatureLocked(&test.op)
			if got != test.want {
				t.Errorf("the signature is %q, want %q", got, test.want)
			}
			text := string(Conflict) + "@" + r.countLocked(got)
			if p, err := parsePlan(text); err != nil || len(p) != 1 || p[0].at != strings.TrimSpace(got+"#1") {
				t.Errorf("%q is read as %v, %v", text, p, err)
			}
			if again := r.countLocked(got); !strings.HasSuffix(again, "#2") {
				t.Errorf("the second one is %s", again)
			}
		})
	}
}

// TestTravels holds which old lists are worth a plan: those that differ from each
// other and from the present.
func TestTravels(t *testing.T) {
	x := &explorer{watched: map[string]int{"configmaps": 1, "secrets": 1}}
	ops := []operation{
		{id: "a#1", write: true, resource: "configmaps"},
		{id: "get#1", resource: "configmaps"},
		{id: "b#1", write: true, resource: "pods"},
		{id: "c#1", write: true, resource: "configmaps"},
		{id: "d#1", write: true, resource: "pods", step: 1}, // the user has done something
		{id: "e#1", write: true, external: true, step: 1},
	}
	got := func(n int) []string {
		var texts []string
		for _, p := range x.travels(ops, n) {
			texts = append(texts, strings.TrimSuffix(strings.TrimPrefix(p.String(), "time-travel("), ")@"+ops[n].id))
		}
		return texts
	}
	tests := []struct {
		n    int
		want []string // of what, and right before which operation
	}{
		{0, []string{"configmaps<start", "secrets<start"}},
		{1, nil}, // a read: nothing is lost at a crash there
		{2, []string{"configmaps<start", "configmaps<a#1", "secrets<start"}},
		{3, []string{"configmaps<start", "configmaps<a#1", "secrets<start"}}, // before b#1 all was as it is
		{4, []string{"configmaps<start", "configmaps<a#1", "configmaps<b#1", "secrets<start", "secrets<a#1"}},
		{5, []string{"configmaps<start", "configmaps<a#1", "configmaps<b#1", "secrets<start", "secrets<a#1"}},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, got(test.n)); diff != "" {
			t.Errorf("at %s (-want +got):\n%s", ops[test.n].id, diff)
		}
	}
}

// TestInjections holds that what is enumerated can be written in a plan, and makes
// sense.
func TestInjections(t *testing.T) {
	x := &explorer{scenario: Scenario{Script: make([]Step, 2)}, dependent: map[int]bool{}}
	op := operation{id: "update configmaps a#1", write: true, resource: "configmaps", users: []string{"configmaps/a"}, watched: []string{"configmaps", "secrets"}}
	read := operation{id: "get configmaps a#1", users: op.users, watched: op.watched}
	call := operation{id: "external create a#1", write: true, external: true, users: op.users, watched: op.watched}
	count := func(kind Kind, op operation) int {
		all := x.injections(kind, op)
		for _, j := range all {
			if _, err := parsePlan(j.String()); err != nil {
				t.Errorf("%s: %v", j, err)
			}
		}
		return len(all)
	}
	for _, kind := range AllFaults() {
		want := [3]int{1, 0, 1} // at a write, a read, an external call
		switch kind.scope() {
		case watchedResource:
			want = [3]int{2, 0, 2}
		case anyOperation, userObject:
		}
		switch kind {
		case Conflict, Forbidden, Invalid, TooManyRequests, Unavailable, CommitThen503, Slow, ResetConns:
			want = [3]int{1, 0, 0}
		case InternalError, Timeout, Truncated:
			want = [3]int{1, 1, 0}
		case DropRequest:
			want = [3]int{1, 1, 1}
		case TimeTravel, SlowRenewal:
			want = [3]int{} // enumerated otherwise, and without leases
		}
		if got := [3]int{count(kind, op), count(kind, read), count(kind, call)}; got != want {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
	last := op
	last.step = 1
	if count(NextStep, last) != 0 {
		t.Errorf("%s in the last step", NextStep)
	}
	x.dependent[1] = true
	if count(NextStep, op) != 0 {
		t.Errorf("%s although the next step needs this one", NextStep)
	}
	x.leases.Store(true)
	if got := [2]int{count(SlowRenewal, op), count(SlowRenewal, read)}; got != [2]int{1, 0} {
		t.Errorf("%s with leases: %v", SlowRenewal, got)
	}
}

// TestChosenFaults holds when a fault of a random plan is chosen, and that it is one of the
// exploration's kinds at that operation.
func TestChosenFaults(t *testing.T) {
	x := &explorer{options: Options{Faults: []Kind{Conflict, Timeout}}}
	write := operation{id: "update configmaps a#1", write: true, resource: "configmaps"}
	read := operation{id: "get configmaps a#1"}
	chosen := map[string]bool{}
	for seed := range uint64(20) {
		p := x.longer(plan{{kind: Slow, at: write.id}}, rand.New(rand.NewPCG(seed, 1)))
		if len(p) < 2 || len(p) > maxFaults || p[0].at != write.id {
			t.Fatalf("%d faults: %v, want the first, and one to %d more", len(p), p, maxFaults-1)
		}
		r := &run{x: x, plan: p, next: 1}
		for turn := p[1].after; turn > 1; turn-- {
			r.chooseLocked(write)
		}
		if p[1].kind != "" || p[1].after != 1 {
			t.Fatalf("before its turn: %+v", p[1])
		}
		r.chooseLocked(operation{id: "external get a#1", external: true}) // no kind fits
		if p[1].kind != "" || p[1].after != 1 {
			t.Fatalf("at an operation that no kind fits: %+v", p[1])
		}
		at := write
		if seed%2 > 0 {
			at = read
		}
		r.chooseLocked(at)
		if j := p[1]; j.at != at.id || j.after != 0 || j.kind != Timeout && (j.kind != Conflict || !at.write) {
			t.Fatalf("at its turn: %+v", j)
		}
		chosen[string(p[1].kind)+" "+at.id] = true
	}
	if len(chosen) != 3 {
		t.Errorf("chosen: %v, want both kinds at the write and one at the read", chosen)
	}
}

// TestObjectsOfTheState holds how a state is read.
func TestObjectsOfTheState(t *testing.T) {
	r := quietRun(Scenario{}, "ns")
	s := stateOf(t, r, 3, "configmaps",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"ns","name":"b"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"ns","name":"a"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"ms","name":"c"}}`)
	role := object(t, `{"apiVersion":"v1","kind":"ClusterRole","metadata":{"name":"ns-x"}}`)
	s.objects[objectKey{"clusterroles.rbac.authorization.k8s.io", "", "ns-x"}] = role
	var names []string
	for _, o := range s.Objects("configmaps") {
		names = append(names, o.GetNamespace()+"/"+o.GetName())
	}
	if diff := cmp.Diff([]string{"ms/c", "ns/a", "ns/b"}, names); diff != "" {
		t.Errorf("Objects (-want +got):\n%s", diff)
	}
	if s.Namespace() != "ns" || s.Get("configmaps", "a") == nil || s.Get("configmaps", "c") != nil || s.Get("secrets", "a") != nil || s.Objects("secrets") != nil {
		t.Error("Get finds what it should not, or does not find what it should")
	}
	if s.Get("clusterroles.rbac.authorization.k8s.io", "ns-x") != role {
		t.Error("Get does not find a cluster-scoped object")
	}
}
