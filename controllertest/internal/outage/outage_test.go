package outage_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/controllertest/internal/outage"
)

func parsed(t *testing.T, text string) *outage.Outage {
	t.Helper()
	o, err := outage.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestCovers holds which requests fail.
func TestCovers(t *testing.T) {
	tests := []struct {
		text    string
		covered []string // of the requests below
	}{
		{"delete pods 500 x10", []string{"delete pods"}},
		{"pods 500 x10", []string{"delete pods", "list pods", "update pods/status"}},
		{"update pods/status 500 x10", []string{"update pods/status"}},
		{"all 500 2s", []string{"delete pods", "list pods", "update pods/status", "create deployments.apps", "update leases.coordination.k8s.io"}},
		{"external reset x10", []string{"create external", "get external"}},
		{"create external reset x10", []string{"create external"}},
	}
	requests := []string{"delete pods", "list pods", "update pods/status", "create deployments.apps", "update leases.coordination.k8s.io", "create external", "get external"}
	for _, test := range tests {
		o := parsed(t, test.text)
		var covered []string
		for _, request := range requests {
			verb, resource, _ := strings.Cut(request, " ")
			resource, subresource, _ := strings.Cut(resource, "/")
			if o.Covers(verb, resource, subresource) {
				covered = append(covered, request)
			}
		}
		if got, want := strings.Join(covered, ", "), strings.Join(test.covered, ", "); got != want {
			t.Errorf("%q covers %s; want %s", test.text, got, want)
		}
	}
}

// TestFail holds how requests fail, and how many.
func TestFail(t *testing.T) {
	tests := []struct {
		text       string
		code       int // 0 means no response
		retryAfter int
		delay      time.Duration
		requests   int // 0 means no bound
		bound      time.Duration
		after      time.Duration
	}{
		{text: "pods 500 x5", code: http.StatusInternalServerError, requests: 5, bound: 4 * time.Second},
		{text: "pods 503 x1", code: http.StatusServiceUnavailable, requests: 1, bound: 4 * time.Second},
		{text: "pods 429 2s", code: http.StatusTooManyRequests, retryAfter: 1, bound: 2 * time.Second, after: time.Second},
		{text: "pods reset x2", requests: 2, bound: 4 * time.Second},
		{text: "pods hang 1.5s", delay: time.Minute, bound: 1500 * time.Millisecond},
	}
	for _, test := range tests {
		o := parsed(t, test.text)
		if bound, after := o.Time(); bound != test.bound || after != test.after {
			t.Errorf("%q lasts %v, and %v after it; want %v and %v", test.text, bound, after, test.bound, test.after)
		}
		failed := 0
		for last := false; !last && failed < 50; failed++ {
			f, end := o.Fail(time.Minute)
			last = end
			switch {
			case f.Response == nil != (test.code == 0), f.Response == nil && !f.Drop, f.Delay != test.delay:
				t.Fatalf("%q: %+v", test.text, f)
			case f.Response != nil && (f.Response.Code != test.code || f.Response.RetryAfter != test.retryAfter || f.Commit):
				t.Fatalf("%q: %+v", test.text, f.Response)
			}
		}
		if want := test.requests; failed != want && (want > 0 || failed != 50) {
			t.Errorf("%q: %d requests failed, want %d", test.text, failed, want)
		}
	}
}

// TestAt holds that the enumerated outages can be parsed, are of the operation, and are few.
func TestAt(t *testing.T) {
	tests := []struct {
		operation string
		write     bool
		want      []string // the beginnings
	}{
		{"delete pods a#1", true, []string{"delete pods 500 ", "pods ", "all "}},
		{"update pods/status a status.phase#3", true, []string{"update pods/status 500 ", "pods/status ", "all "}},
		{"list pods#1", false, []string{"list pods 500 "}},
		{"external create a#1", true, []string{"create external reset ", "external hang "}},
		{"external poll#2", true, []string{"poll external reset ", "external hang "}},
		{"rest#1", false, nil},
	}
	for _, test := range tests {
		got := outage.At(test.operation, test.write)
		if len(got) != len(test.want) {
			t.Errorf("at %s: %q, want %q", test.operation, got, test.want)
			continue
		}
		for n, text := range got {
			if !strings.HasPrefix(text, test.want[n]) {
				t.Errorf("at %s: %q, want %q", test.operation, got, test.want)
			}
			parsed(t, text)
		}
	}
	turns := map[string]bool{}
	for _, name := range strings.Fields("a b c d e f g h i j k l m n o p q r s t u v w x y z") {
		for _, text := range outage.At("delete pods "+name+"#1", true) {
			turns[text] = true
		}
	}
	if len(turns) < 9 {
		t.Errorf("of many operations: only %v", turns)
	}
}
