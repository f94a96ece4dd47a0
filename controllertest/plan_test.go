package controllertest

import (
	"strings"
	"testing"
)

func TestPlanRoundTrip(t *testing.T) {
	var texts []string
	for _, kind := range AllFaults() {
		switch kind.scope() {
		case anyOperation:
			texts = append(texts, string(kind)+"@create configmaps a#1")
		case failedRequests:
			for _, about := range []string{"all 503 2s", "pods reset x15", "delete pods 500 x10", "external hang 2s", "patch deployments.apps/status 429 1.5s"} {
				texts = append(texts, string(kind)+"("+about+")@update configmaps a metadata.finalizers#1")
			}
		case madeObject:
			texts = append(texts, string(kind)+"(configmaps/web-*)@rest#2", string(kind)+"(configmaps/a)@update configmaps a data.x#1")
		case userObject:
			texts = append(texts, string(kind)+"(configmaps/a)@patch deployments.apps/status $ns-x status.conditions,status.replicas#12")
		case watchedResource:
			if kind == TimeTravel {
				texts = append(texts, string(kind)+"(configmaps<start)@external create a#1", string(kind)+"(configmaps<update configmaps a data.x#2)@delete configmaps [uid configmaps]*#1")
				continue
			}
			texts = append(texts, string(kind)+"(deployments.apps)@update configmaps a metadata.finalizers#1")
		}
	}
	texts = append(texts, strings.Join(texts, " + "))
	for _, text := range texts {
		p, err := parsePlan(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := p.String(); got != text {
			t.Errorf("%s becomes %s", text, got)
		}
	}
}

func TestBadPlans(t *testing.T) {
	tests := []struct{ text, want string }{
		{"", "has no operation: write kind@operation#occurrence"},
		{"409", "has no operation"},
		{"409@create configmaps a", "has no operation"},
		{"409@create configmaps a#", "counts from 1"},
		{"409@create configmaps a#0", "counts from 1"},
		{"409@create configmaps a#x", "counts from 1"},
		{"409@create configmaps a#1 + ", "has no operation"},
		{"meteor@create configmaps a#1", `kind "meteor" does not exist: use one of [crash-before`},
		{"hold@create configmaps a#1", "hold has no object or resource: write hold(...)@operation"},
		{"user-delete@create configmaps a#1", "user-delete has no object or resource: write user-delete(...)@operation"},
		{"409(configmaps)@create configmaps a#1", "409 takes no parentheses such as in"},
		{"hold(configmaps<start)@create configmaps a#1", "hold takes no parentheses such as in"},
		{"outage@create configmaps a#1", "outage has no object or resource"},
		{"outage(pods 500)@create configmaps a#1", `outage "pods 500" has not the form "delete pods 500 x10"`},
		{"outage(delete pods a 500 x10)@create configmaps a#1", "has not the form"},
		{"outage(delete all 500 x10)@create configmaps a#1", `has a verb of all resources: remove "delete"`},
		{"outage(pods 404 x10)@create configmaps a#1", `requests cannot fail by "404": use one of [500 503 429 reset hang]`},
		{"outage(pods 500 x0)@create configmaps a#1", `"x0" is no extent: use x1 to x100`},
		{"outage(pods 500 x101)@create configmaps a#1", "use x1 to x100"},
		{"outage(pods hang x10)@create configmaps a#1", "a time for hang"},
		{"outage(pods 500 1h)@create configmaps a#1", `"1h" is no extent: use a number of requests such as x10, or a time such as 2s of at most 10s`},
		{"outage(pods 500 -1s)@create configmaps a#1", "is no extent"},
		{"drift-delete@rest#1", "drift-delete has no object or resource"},
		{"step-before(configmaps)@create configmaps a#1", "step-before takes no parentheses"},
		{"time-travel@create configmaps a#1", "has no object or resource"},
		{"time-travel(configmaps)@create configmaps a#1", "time-travel has no earlier operation: write time-travel(resource<operation)@operation"},
	}
	for _, test := range tests {
		if p, err := parsePlan(test.text); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%q is read as %v, %v; want an error that names it and says %q", test.text, p, err, test.want)
		}
	}
}

// FuzzParsePlan holds that no text is too strange, and that what is understood is
// written as it was.
func FuzzParsePlan(f *testing.F) {
	f.Add("409@create configmaps a#1")
	f.Add("time-travel(configmaps<start)@a#1 + hold(b)@c#2")
	f.Add("hold(@#")
	f.Add("outage(delete pods 500 x10)@delete pods a#1 + drift-delete(pods/a)@rest#1")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePlan(text)
		if err != nil {
			return
		}
		again, err := parsePlan(p.String())
		if err != nil || again.String() != p.String() {
			t.Errorf("%q is written as %q, which is read as %q, %v", text, p, again, err)
		}
	})
}
