package controller_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/controller"
)

// TestLists checks the initial lists of the informers on a server that does not
// stream them. Each list is consistent: it never has resourceVersion "0". The list
// of tenants has the label selector. The other lists include every object that can
// block a tenant.
func TestLists(t *testing.T) {
	type list struct {
		path  string
		query url.Values
	}
	lists := make(chan list)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	defer cancel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			select {
			case lists <- list{r.URL.Path, r.URL.Query()}:
			case <-ctx.Done():
			}
		}
		http.Error(w, "neither streams nor lists are served, which ends the test", http.StatusUnprocessableEntity)
	}))
	defer server.Close()

	c, err := controller.New(controller.Config{
		REST:     &rest.Config{Host: server.URL, QPS: -1},
		Billing:  &billing.Client{URL: "http://billing"},
		Selector: labels.SelectorFromSet(labels.Set{"shard": "a"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.RunInformers(ctx) }()

	want := map[string]string{ // path → selector
		"/apis/tenancy.example.com/v1alpha1/tenants":      "labelSelector=shard%3Da",
		"/api/v1/namespaces":                              "",
		"/api/v1/resourcequotas":                          "fieldSelector=metadata.name%3Dtenant",
		"/apis/rbac.authorization.k8s.io/v1/rolebindings": "fieldSelector=metadata.name%3Dtenant",
		"/apis/networking.k8s.io/v1/networkpolicies":      "fieldSelector=metadata.name%3Dtenant",
	}
	for len(want) > 0 {
		select {
		case l := <-lists:
			selected, expected := want[l.path]
			if !expected {
				continue // a retry
			}
			delete(want, l.path)
			if l.query.Has("resourceVersion") {
				t.Errorf("the list of %s has resourceVersion=%q, want none", l.path, l.query.Get("resourceVersion"))
			}
			l.query.Del("limit")
			if got := l.query.Encode(); got != selected && !l.query.Has("resourceVersion") {
				t.Errorf("%s is listed with %q, want %q", l.path, got, selected)
			}
		case err := <-ended:
			t.Fatalf("the informers ended without a list of %v: %v", want, err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
