package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/examples/tenant/billing"
)

func TestGrows(t *testing.T) {
	for _, c := range []struct {
		name  string
		value func(minute int, noise float64) float64
		leak  bool
	}{
		{"flat noise", func(_ int, noise float64) float64 { return 50 + 10*noise }, false},
		{"a leak of 1% a minute in noise", func(m int, noise float64) float64 { return 50 + float64(m)/2 + 3*noise }, true},
		{"a leak in steps", func(m int, noise float64) float64 { return 50 + float64(m/10*8) + noise }, true},
		{"one step, as of a new leader", func(m int, noise float64) float64 { return 50 + float64(m/30*20) + 3*noise }, false},
		{"the growth of a start", func(m int, noise float64) float64 { return 20 + float64(min(m, 10))*4 + noise }, false},
		{"growth below the floor", func(m int, noise float64) float64 { return 2 + float64(m)/20 + noise/10 }, false},
		{"a decline", func(m int, noise float64) float64 { return 90 - float64(m) + noise }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(200) {
				rng := rand.New(rand.NewPCG(seed, 0))
				var x, y []float64
				for m := range 60 {
					x, y = append(x, float64(m)), append(y, c.value(m, 2*rng.Float64()-1))
				}
				if growth, leak := grows(x, y, 6); leak != c.leak {
					t.Fatalf("seed %d: growth %.1f, leak %t, want %t", seed, growth, leak, c.leak)
				}
			}
		})
	}
	if growth, leak := grows([]float64{1, 2, 3}, []float64{1, 100, 1000}, 1); leak || growth != 0 {
		t.Errorf("growth of three samples = %v, %v, want no verdict", growth, leak)
	}
}

func object(t *testing.T, text string, args ...any) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(fmt.Appendf(nil, text, args...)); err != nil {
		t.Fatal(err)
	}
	return u
}

// right returns a website and a tenant, and a snapshot in which all is right.
func right(t *testing.T) (sites, teams []wanted, s snapshot) {
	t.Helper()
	sites = []wanted{{name: "a", uid: "1", spec: map[string]any{"host": "h.example.com", "image": "site:1", "replicas": int64(2)}}}
	teams = []wanted{{name: "b", uid: "2", spec: map[string]any{
		"account": map[string]any{"plan": "Basic"}, "networkIsolation": true,
		"quota": map[string]any{"pods": "5"}, "members": []any{"ann"},
	}}}
	const owned = `"ownerReferences":[{"apiVersion":"x/v1","kind":"%s","name":"n","uid":"%s","controller":true}]`
	site, team := fmt.Sprintf(owned, "Website", "1"), fmt.Sprintf(owned, "Tenant", "2")
	s = snapshot{
		records:  map[string]string{"1": "h.example.com"},
		accounts: []billing.Account{{ID: "acct", Key: "2", Tenant: "b", Plan: "Basic"}},
		objects: map[string]map[string]*unstructured.Unstructured{
			websites: {"default/a": object(t, `{"apiVersion":"x/v1","kind":"Website","metadata":{"uid":"1","generation":3,"finalizers":["f"]},
				"spec":{"host":"h.example.com","image":"site:1","replicas":2},
				"status":{"observedGeneration":3,"conditions":[{"type":"Ready","status":"False","reason":"Progressing","message":"0 of 2 replicas are ready","observedGeneration":3}]}}`)},
			"configmaps":  {"default/a": object(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{%s},"data":{"HOST":"h.example.com"}}`, site)},
			"services":    {"default/a": object(t, `{"apiVersion":"v1","kind":"Service","metadata":{%s},"spec":{"selector":{"app.kubernetes.io/name":"website","app.kubernetes.io/instance":"a"}}}`, site)},
			"deployments": {"default/a": object(t, `{"apiVersion":"v1","kind":"Deployment","metadata":{%s},"spec":{"replicas":2,"template":{"spec":{"containers":[{"image":"site:1"}]}}}}`, site)},
			tenants: {"b": object(t, `{"apiVersion":"x/v1","kind":"Tenant","metadata":{"uid":"2","generation":1,"finalizers":["f"]},
				"spec":{"account":{"plan":"Basic"},"networkIsolation":true,"quota":{"pods":"5"},"members":["ann"]},
				"status":{"observedGeneration":1,"accountID":"acct","conditions":[{"type":"Ready","status":"True","observedGeneration":1},
				{"type":"NamespaceReady","status":"True","observedGeneration":1},{"type":"AccountOpen","status":"True","observedGeneration":1}]}}`)},
			"namespaces":      {"b": object(t, `{"apiVersion":"v1","kind":"Namespace","metadata":{%s},"status":{"phase":"Active"}}`, team)},
			"resourcequotas":  {"b/tenant": object(t, `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{%s},"spec":{"hard":{"pods":"5"}}}`, team)},
			"rolebindings":    {"b/tenant": object(t, `{"apiVersion":"v1","kind":"RoleBinding","metadata":{%s},"roleRef":{"name":"edit"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`, team)},
			"networkpolicies": {"b/tenant": object(t, `{"apiVersion":"v1","kind":"NetworkPolicy","metadata":{%s}}`, team)},
		},
	}
	return sites, teams, s
}

func TestJudge(t *testing.T) {
	set := func(value any, resource, key string, path ...string) func(*[]wanted, *[]wanted, *snapshot) {
		return func(_, _ *[]wanted, s *snapshot) {
			if err := unstructured.SetNestedField(s.objects[resource][key].Object, value, path...); err != nil {
				panic(err)
			}
		}
	}
	gone := func(resource, key string) func(*[]wanted, *[]wanted, *snapshot) {
		return func(_, _ *[]wanted, s *snapshot) { delete(s.objects[resource], key) }
	}
	for _, c := range []struct {
		name    string
		breakIt func(sites, teams *[]wanted, s *snapshot)
		want    []string // parts of the problems, in their order
	}{
		{"right", func(_, _ *[]wanted, _ *snapshot) {}, nil},
		{"a lost website", gone(websites, "default/a"), []string{"records 1: ", "websites default/a: is gone"}},
		{"another object of its name", set("9", websites, "default/a", "metadata", "uid"), []string{"records 1: ", "has the UID 9, want 1"}},
		{"no finalizer", set([]any{}, websites, "default/a", "metadata", "finalizers"), []string{"finalizers [], want one"}},
		{"a lost edit", set("old", websites, "default/a", "spec", "host"), []string{"has the spec"}},
		{"an old status", set(int64(2), websites, "default/a", "status", "observedGeneration"), []string{"the status is of generation 2, want 3"}},
		{"no condition", set([]any{}, websites, "default/a", "status", "conditions"), []string{"no condition Ready"}},
		{"another condition", set(map[string]any{"type": "Ready", "status": "False", "reason": "Failed"}, tenants, "b", "status"), []string{"tenants b: has no", "tenants b: has no", "tenants b: has no", "the status has the account <nil>", "the status is of generation <nil>"}},
		{"an old child", set("old", "configmaps", "default/a", "data", "HOST"), []string{"has data map[HOST:old]"}},
		{"an old image", set([]any{map[string]any{"image": "old"}}, "deployments", "default/a", "spec", "template", "spec", "containers"), []string{"want the image site:1"}},
		{"a lost child", gone("services", "default/a"), []string{"services default/a is missing"}},
		{"a child of another owner", set([]any{}, "services", "default/a", "metadata", "ownerReferences"), []string{"is not owned by it"}},
		{"a lost record", func(_, _ *[]wanted, s *snapshot) { clear(s.records) }, []string{`the DNS record is "", want "h.example.com"`}},
		{"a leaked record", func(_, _ *[]wanted, s *snapshot) { s.records["9"] = "x" }, []string{"the DNS record of x belongs to no website"}},
		{"a deletion that hangs", func(sites, _ *[]wanted, s *snapshot) { *sites = nil }, []string{
			"configmaps default/a: its owner Website n is gone", "deployments default/a", "records 1", "services default/a", "websites default/a: exists, although its user deleted it",
		}},
		{"an unwanted child", func(_, teams *[]wanted, _ *snapshot) { delete((*teams)[0].spec, "quota") }, []string{"has the spec", "resourcequotas b/tenant exists, want none"}},
		{"an old quota", set("4", "resourcequotas", "b/tenant", "spec", "hard", "pods"), []string{"has spec.hard map[pods:4]"}},
		{"a lost namespace", gone("namespaces", "b"), []string{"namespaces b is missing"}},
		{"a lost member", set([]any{}, "rolebindings", "b/tenant", "subjects"), []string{"has subjects []"}},
		{"no account", func(_, _ *[]wanted, s *snapshot) { s.accounts = nil }, []string{"the account is"}},
		{"two accounts", func(_, _ *[]wanted, s *snapshot) { s.accounts = append(s.accounts, s.accounts[0]) }, []string{"two for the tenant b"}},
		{"an account that is left", func(_, _ *[]wanted, s *snapshot) {
			s.accounts = append(s.accounts, billing.Account{Key: "8", Tenant: "old"})
		}, []string{"the account of old belongs to no tenant"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sites, teams, s := right(t)
			c.breakIt(&sites, &teams, &s)
			got := judge(sites, teams, s)
			ok := len(got) == len(c.want)
			for i := range got {
				ok = ok && strings.Contains(got[i], c.want[i])
			}
			if !ok {
				t.Errorf("problems:\n%s\nwant parts:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// folder returns options of a run with three programs.
func folder(t *testing.T) options {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("1"), 0o755); err != nil {
		t.Fatal(err)
	}
	return options{dir: filepath.Join(t.TempDir(), "run"), hours: 1, controlplane: program, tenant: program, website: program, objects: 4}
}

func TestOpen(t *testing.T) {
	o := folder(t)
	s, err := open(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Elapsed, s.Faults["kill"] = 7, 3
	if err := errors.Join(s.save(), s.keep([]sample{{Minute: 1, Process: "a"}, {Minute: 2, Process: "b"}})); err != nil {
		t.Fatal(err)
	}
	if s, err = open(o); err != nil || s.Elapsed != 7 || s.Faults["kill"] != 3 || len(s.samples) != 2 || s.samples[1].Process != "b" {
		t.Errorf("the run goes on as %+v, %v", s, err)
	}

	other := o
	other.objects++
	foreign := o
	foreign.dir = filepath.Dir(o.website)
	missing := o
	missing.tenant = filepath.Join(t.TempDir(), "tenant")
	broken := o
	broken.dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(broken.dir, "state.json"), []byte(`{"Identity":`), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, bad := range map[string]options{
		"name a new folder": other, "is not that of a soak": foreign, "a program is missing": missing, "state.json of the folder": broken,
	} {
		if _, err := open(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("open = %v, want %q", err, want)
		}
	}
	if err := os.WriteFile(o.website, []byte("2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := open(o); err == nil || !strings.Contains(err.Error(), "name a new folder") {
		t.Errorf("open with another program = %v", err)
	}
}

func TestParse(t *testing.T) {
	for args, want := range map[string]string{
		"-hours 1": "-dir is empty", "-dir d": "-hours 0 is not valid", "-dir d -hours NaN": "-hours NaN is not valid",
		"-dir d -hours 1 x": "unexpected argument", "-dir d -hours 1 -servers 1": "at least 2", "-dir d -hours 1 -bound 1s": "at least -quiet",
	} {
		if _, err := parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse(%s) = %v, want %q", args, err, want)
		}
	}
}

// TestEnded: a run that an error ends has its report, and goes on.
func TestEnded(t *testing.T) {
	o := folder(t) // its programs cannot run
	for range 2 {
		var out strings.Builder
		err := run(t.Context(), []string{"-dir", o.dir, "-hours", "1", "-controlplane", o.controlplane, "-tenant", o.tenant, "-website", o.website}, &out)
		if err == nil || !strings.Contains(err.Error(), "ended after 0.00 of 1.00 hours, the same command goes on: ") {
			t.Errorf("run() = %v", err)
		}
		if report, err := os.ReadFile(filepath.Join(o.dir, "report.txt")); err != nil || strings.TrimSpace(out.String()) != strings.TrimSpace(string(report)) {
			t.Errorf("printed %q, want the report: %q, %v", &out, report, err)
		}
	}
}

func TestReport(t *testing.T) {
	s, err := open(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	for m := range 30 {
		flat, leaking := sample{Minute: float64(m), Process: "website-0#1.1"}, sample{Minute: float64(m), Process: "tenant-0#1.<1>"}
		leaking.Values[1] = float64(10 + m)
		s.samples = append(s.samples, flat, leaking)
		s.Settled = append(s.Settled, 16)
	}
	if err := s.violate("a lost <update>", "evidence"); err != nil {
		t.Fatal(err)
	}
	text, err := s.report()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"violations: 1", "a lost <update>", "+23.0 in   29 min  NOT FLAT", "median 16, most 16"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if leaks := s.leaks(); len(leaks) != 1 || !strings.Contains(leaks[0], "heap") {
		t.Errorf("leaks = %q", leaks)
	}
	for _, name := range []string{"settled", "rss", "heap", "goroutines", "series", "connections"} {
		data, err := os.ReadFile(s.path(name + ".svg"))
		if err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(strings.NewReader(string(data)))
		for err == nil {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s.svg: %v\n%s", name, err, data)
		}
	}
}
