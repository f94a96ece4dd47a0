package controllertest

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

// quietRun is a run that nothing happens in.
func quietRun(s Scenario, namespace string) *run {
	return &run{
		x: &explorer{scenario: s, observer: newObserver(context.Background(), "ct")}, env: Env{Namespace: namespace}, late: newLateness(), slow: newSlowness(), changed: make(chan struct{}), counts: map[string]int{}, responses: map[string]bool{}, bound: map[objectKey]bool{},
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

// TestFindingsOfGeneratedNames: findings of two runs whose texts differ only by generated
// names are one.
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
	got := differences(want, have, map[string]bool{"1 c": true, "0 b": true}, 1, 20)
	if diff := cmp.Diff([]string{"  - a: 1", "  ~ b: 3, without faults 2", "  + d: 5"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	many := map[string]any{}
	for n := range 100 {
		many[fmt.Sprint(n)] = "x"
	}
	if got := differences(map[string]any{}, many, nil, 0, 20); len(got) != 21 || got[20] != "  ..." {
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
	// The watches of two resources are not ordered.
	grandchild := child(watch.Added, 7, "g", "c")
	grandchild.key = objectKey{"secrets", "ns", "g"}
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
		{"a grandchild of an owner that was deleted", nil, same, []event{grandchild, child(watch.Added, 6, "c", "a"), ownerGone, child(watch.Deleted, 8, "c", "a")}, nil},
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

// TestManyDifferences: each difference is asked about, and a report shows twenty that are left.
func TestManyDifferences(t *testing.T) {
	state := func(objects, fields int) map[string]any {
		s := map[string]any{}
		for n := range objects {
			s[fmt.Sprintf("configmaps/a (%d of 9)", n)] = "exists"
			for f := range fields {
				s[fmt.Sprintf("configmaps/a (%d of 9) .data.f%d", n, f)] = "x"
			}
			s[fmt.Sprintf("secrets/s%02d", n)] = "exists"
		}
		return s
	}
	asked := 0
	r := quietRun(Scenario{Accept: func(f Finding, _ string) string {
		asked++
		if f.Object == "configmaps/a" {
			return "surplus"
		}
		return ""
	}}, "ns")
	r.rests = []checkpoint{{step: "one", state: state(30, 25)}}
	r.judge(&reference{rests: []checkpoint{{step: "one", state: map[string]any{}}}})
	if n := len(strings.Split(r.findings[0].Text, "\n")); n != 1+shownDifferences+1 {
		t.Errorf("the first finding has %d lines:\n%s", n, r.findings[0].Text)
	}
	for range 2 { // a run is judged in two parts
		r.accept()
		if asked < 1+30 { // the copies of configmaps/a are one
			t.Fatalf("asked about %d findings, want 31", asked)
		}
		if len(r.findings) != shownDifferences+1 || r.findings[0].Object != "secrets/s00" || r.findings[shownDifferences].Field != "more differences" || len(r.accepted) != 1 {
			t.Fatalf("%d findings, the last is %+v; accepted %q", len(r.findings), r.findings[len(r.findings)-1], r.accepted)
		}
	}
}

// TestJudgeFormer holds that a plan has no outcome if the former version, which has no faults, makes another state.
//
// Proves X2.
func TestJudgeFormer(t *testing.T) {
	rests := func(former, next string) []checkpoint {
		return []checkpoint{{step: "create", state: map[string]any{"configmaps/a .data.k": former}}, {step: upgradeStep, state: map[string]any{"configmaps/a .data.k": next}}}
	}
	for name, tt := range map[string]struct {
		rests    []checkpoint
		doubtful bool
		findings int
	}{
		"the same":        {rests: rests("v", "v")},
		"the former one":  {rests: rests("other", "other"), doubtful: true},
		"the new version": {rests: rests("v", "other"), findings: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := quietRun(Scenario{From: &Former{Steps: 1}}, "ns")
			r.rests = tt.rests
			r.judge(&reference{rests: rests("v", "v")})
			if why, doubtful := r.doubtful(); doubtful != tt.doubtful || doubtful && !strings.Contains(why, `after step "create" the former version`) {
				t.Errorf("without an outcome: %t, want %t: %q", doubtful, tt.doubtful, why)
			}
			if len(r.findings) != tt.findings {
				t.Errorf("findings: %v, want %d", r.findings, tt.findings)
			}
		})
	}
}

// TestReordered holds that a list in another order is no finding and is reported once.
func TestReordered(t *testing.T) {
	r := quietRun(Scenario{}, "ns")
	r.x.report, r.x.orders = &Report{}, map[string]bool{}
	p, err := parsePlan("slow@update endpoints web#1")
	if err != nil {
		t.Fatal(err)
	}
	r.plan = p
	flat := func(list ...any) map[string]any {
		state := map[string]any{}
		flattenList("endpoints/web .subsets[0].addresses", list, 0, func(s string) string { return s }, state)
		return state
	}
	ref := &reference{rests: []checkpoint{{state: flat("1", "2")}}, masked: map[string]bool{}}
	for _, state := range []map[string]any{flat("1", "2"), flat("2", "1"), flat("2", "1")} {
		r.rests = []checkpoint{{state: state}}
		r.judge(ref)
	}
	if len(r.findings) > 0 {
		t.Errorf("findings: %v", r.findings)
	}
	want := "endpoints/web .subsets[0].addresses, first under slow@update endpoints web#1"
	if !slices.Equal(r.x.report.Reordered, []string{want}) || !strings.Contains(r.x.report.String(), "in another order than without faults: "+want+"\n") {
		t.Errorf("reordered: %q", r.x.report.Reordered)
	}
	r.rests = []checkpoint{{state: flat("2", "3")}}
	r.judge(ref)
	if len(r.findings) != 1 || len(r.x.report.Reordered) != 1 {
		t.Errorf("of other elements: findings %v, reordered %q", r.findings, r.x.report.Reordered)
	}
	ref.masked["0 endpoints/web .subsets[0].addresses"+inOrder] = true // it varies without faults
	r.x.orders = map[string]bool{}
	r.rests = []checkpoint{{state: flat("2", "1")}}
	r.judge(ref)
	if len(r.x.report.Reordered) != 1 {
		t.Errorf("an order that varies without faults: %q", r.x.report.Reordered)
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
	}, of([]string{"z#1"}, map[string]any{"k": "1", "n": "4"})) // began earlier
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
	if diff := cmp.Diff(map[string]bool{"0 l": true, "0 m": true, "0 n": true}, ref.masked); diff != "" {
		t.Errorf("masked (-want +got):\n%s", diff)
	}
	if _, err := x.agree([]*run{of([]string{"a#1"}), of([]string{"b#1"}), of([]string{"c#1"})}, of(nil)); err == nil || !strings.Contains(err.Error(), "give objects fixed names") || !strings.Contains(err.Error(), "a#1") {
		t.Errorf("runs that have nothing in common: %v", err)
	}
	varying := of([]string{"a#1", "b#1", "a#2", "a#3", "b#2", "b#3"})
	if ref, err := x.agree([]*run{of([]string{"a#1", "b#1"}), varying, varying}, of(nil)); err != nil || len(ref.operations) != 2 || len(ref.skipped) != 4 {
		t.Errorf("runs that differ in how often they read: %v", err)
	}
	one := map[string]any{"k": "1"}
	for _, runs := range [][]*run{
		{of([]string{"a#1"}, one), of([]string{"a#1"}, one, one), of([]string{"a#1"}, one)},
		{of([]string{"a#1"}, one, one), of([]string{"a#1"}, one), of([]string{"a#1"}, one)},
	} {
		if _, err := x.agree(runs, runs[0]); err == nil || !strings.Contains(err.Error(), "steps") {
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
// Proves X6.
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

// TestPanicsAtOnce: panics of two runs at one moment are findings of their own run.
func TestPanicsAtOnce(t *testing.T) {
	x := &explorer{observer: newObserver(context.Background(), "ct")}
	var runs []*run
	for _, id := range []string{"ct-panics-1", "ct-panics-2"} {
		r := quietRun(Scenario{}, id)
		r.id, x.observer.runs[id] = id, r
		runs = append(runs, r)
	}
	defer catchPanics(x)()
	const each = 20
	var wg sync.WaitGroup
	for _, r := range runs {
		for range each {
			wg.Go(func() {
				pprof.Do(t.Context(), pprof.Labels(label, r.id), func(ctx context.Context) { panicked(ctx, "bang") })
			})
		}
	}
	wg.Wait()
	for _, r := range runs {
		if n := len(r.found()); n != each {
			t.Errorf("run %s has %d findings, want %d", r.id, n, each)
		}
	}
}
