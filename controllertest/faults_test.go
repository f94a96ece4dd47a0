package controllertest

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/fault"
)

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
	x := &explorer{scenario: Scenario{Script: make([]Step, 3)}, dependent: map[int]bool{}, kept: map[string]bool{}, report: &Report{}}
	op := operation{id: "update configmaps a#1", write: true, conditional: true, resource: "configmaps", users: []string{"configmaps/a"}, watched: []string{"configmaps", "secrets"}, made: "configmaps/a"}
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
		case madeObject:
			want = [3]int{1, 0, 0}
		case failedRequests:
			want = [3]int{3, 1, 2}
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
	blind := op
	blind.conditional = false
	if count(Conflict, blind) != 0 {
		t.Errorf("%s at a write without a resource version", Conflict)
	}
	for _, test := range []struct {
		step      int
		dependent int
		want      map[Kind]int
	}{
		{step: 0, want: map[Kind]int{NextStep: 2, StepBefore: 1, TwoSteps: 1}},
		{step: 1, want: map[Kind]int{NextStep: 2, StepBefore: 1}},
		{step: 2},
		{step: 0, dependent: 1},
		{step: 0, dependent: 2, want: map[Kind]int{NextStep: 2, StepBefore: 1}},
	} {
		now := op
		now.step = test.step
		x.dependent = map[int]bool{test.dependent: test.dependent > 0}
		for _, kind := range []Kind{NextStep, StepBefore, TwoSteps} {
			if got := count(kind, now); got != test.want[kind] {
				t.Errorf("%s in step %d of 0 to 2, of which step %d needs the one before: %d, want %d", kind, test.step, test.dependent, got, test.want[kind])
			}
		}
	}
	deletion := operation{id: "delete configmaps a#1", write: true, resource: "configmaps", made: "configmaps/a"}
	if got := [2]int{count(DriftDelete, deletion), count(DriftEdit, deletion)}; got != [2]int{1, 0} {
		t.Errorf("drift before a deletion: %v", got)
	}
	x.keeps([]string{"drift-delete of configmaps"})
	if got := [2]int{count(DriftDelete, op), count(DriftEdit, op)}; got != [2]int{0, 1} {
		t.Errorf("drift that the controller does not restore: %v", got)
	}
	x.leases.Store(true)
	if got := [2]int{count(SlowRenewal, op), count(SlowRenewal, read)}; got != [2]int{1, 0} {
		t.Errorf("%s with leases: %v", SlowRenewal, got)
	}
}

// TestInTurn holds that each kind has its turn, in the order of its plans.
func TestInTurn(t *testing.T) {
	var plans []plan
	for _, text := range []string{"409@a b#1", "409@a b#2", "409@a b#3", "500@a b#1", "hold(x)@a b#1", "500@a b#2", "two-steps@a b#1", "two-steps@a b#2", "two-steps@a b#3", "two-steps@a b#4"} {
		p, err := parsePlan(text)
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, p)
	}
	var got []string
	for _, p := range inTurn(plans) {
		got = append(got, p.String())
	}
	want := []string{"409@a b#1", "500@a b#1", "hold(x)@a b#1", "two-steps@a b#1", "two-steps@a b#2", "two-steps@a b#3", "409@a b#2", "500@a b#2", "two-steps@a b#4", "409@a b#3"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestChosenFaults holds when a fault of a random plan is chosen, and that it is one of the
// exploration's kinds at that operation.
func TestChosenFaults(t *testing.T) {
	x := &explorer{options: Options{Faults: []Kind{Conflict, Timeout}}}
	write := operation{id: "update configmaps a#1", write: true, conditional: true, resource: "configmaps"}
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

// TestInterfereAfterCrash holds that the plan's user finishes what he began before a request of
// a process, although that process ends meanwhile.
func TestInterfereAfterCrash(t *testing.T) {
	var requests []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requests = append(requests, req.Method)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"ct-1","name":"a","uid":"1"}}`)
	}))
	defer server.Close()
	dyn, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	r := quietRun(Scenario{}, "ct-1")
	r.x.dyn, r.x.options.ConvergeTimeout, r.x.observer = dyn, time.Minute, newObserver(t.Context(), "ct")
	r.x.observer.types["configmaps"] = &observed{gvr: corev1.SchemeGroupVersion.WithResource("configmaps"), namespaced: true}
	r.owned = map[objectKey]*unstructured.Unstructured{{"configmaps", "ct-1", "a"}: {}}
	i := &incarnation{run: r}
	i.ctx, i.cancel = context.WithCancel(t.Context())
	f, possible := i.injectLocked(injection{kind: UserDelete, about: "configmaps/a"}, operation{})
	if !possible {
		t.Fatal("the fault cannot happen")
	}
	i.cancel()
	f.Before()
	if want := []string{"GET", "DELETE"}; !slices.Equal(requests, want) || r.failed() {
		t.Errorf("the user's requests are %v with the findings %v, want %v and none", requests, r.found(), want)
	}
}
