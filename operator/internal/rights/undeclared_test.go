package rights_test

import (
	"fmt"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/rights"
)

type answers struct{}

func (answers) RoundTrip(*http.Request) (*http.Response, error) { return &http.Response{}, nil }

// TestUndeclared: the first request of each kind that is not declared is logged and found, of all
// clients together, and others are not.
func TestUndeclared(t *testing.T) {
	set := rights.Set{}
	set.Add(schema.GroupResource{Resource: "pods"}, "list", "watch", "patch")
	set.Add(schema.GroupResource{Resource: "pods/status"}, "update")
	set.Add(schema.GroupResource{Group: "runtime", Resource: "*"}, "create")
	set.Add(schema.GroupResource{Group: "*", Resource: "*"}, "deletecollection")
	var found []string
	wrap := set.Undeclared(func(verb, resource string) { found = append(found, verb+" "+resource) })
	clients := []http.RoundTripper{wrap(answers{}), wrap(answers{})}
	logs := testlog.New()
	send := func(method, path string) {
		req, err := http.NewRequestWithContext(logs.Context(t.Context()), method, "https://server"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range clients {
			if _, err := c.RoundTrip(req); err != nil {
				t.Error(err)
			}
		}
	}
	const pod = "/api/v1/namespaces/ns/pods/a"
	for _, declared := range [][2]string{{"GET", "/api/v1/pods"}, {"GET", "/api/v1/pods?watch=true"}, {"PATCH", pod}, {"PUT", pod + "/status"}, {"GET", "/version"}, {"GET", "/apis"}, {"POST", "/apis/runtime/v1/anythings"}, {"POST", "/apis/runtime/v1/anythings/a/sub"}, {"DELETE", "/apis/other/v1/others"}} {
		send(declared[0], declared[1])
	}
	if lines := logs.All(); len(lines) > 0 {
		t.Errorf("declared requests are logged: %v", lines)
	}
	send("PUT", pod)
	send("GET", pod)
	send("PUT", pod)
	send("PATCH", pod+"/status")
	send("PUT", "/apis/runtime/v1/anythings/a")
	var got []string
	for _, line := range logs.Find("A request is not declared, so the Role of Rules does not allow it: call Writes") {
		got = append(got, fmt.Sprint(line.Values["verb"], " ", line.Values["resource"]))
	}
	if want := "[update pods get pods patch pods/status update anythings.runtime]"; fmt.Sprint(got) != want {
		t.Errorf("logged %v, want %s", got, want)
	}
	if want := "[update pods get pods patch pods/status update anythings.runtime]"; fmt.Sprint(found) != want {
		t.Errorf("found %v, want %s", found, want)
	}
	for n := range 200 {
		send("DELETE", fmt.Sprintf("/apis/g/v1/kind%d/a", n))
	}
	if n := len(logs.All()); n != 100 {
		t.Errorf("%d lines about 204 kinds of requests, want 100", n)
	}
}
