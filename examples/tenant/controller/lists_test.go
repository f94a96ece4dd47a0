package controller_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/controller"
	"github.com/controllerkit/controllerkit/operator"
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
		if discovery, ok := discovered()[r.URL.Path]; ok {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, discovery)
			return
		}
		if r.URL.Query().Get("watch") == "" {
			select {
			case lists <- list{r.URL.Path, r.URL.Query()}:
			case <-ctx.Done():
			}
		}
		http.Error(w, "neither streams nor lists are served, which ends the test", http.StatusUnprocessableEntity)
	}))
	defer server.Close()

	op, err := operator.New(&rest.Config{Host: server.URL}, operator.Options{Name: "tenant-controller"})
	if err != nil {
		t.Fatal(err)
	}
	if err := controller.Register(t.Context(), op, controller.Config{
		Billing:  &billing.Client{URL: "http://billing"},
		Selector: labels.SelectorFromSet(labels.Set{"shard": "a"}),
	}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- op.Run(ctx) }()

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

// group returns the entry of a group with one version in the discovery.
func group(groupVersion string) string {
	name, version, _ := strings.Cut(groupVersion, "/")
	v := fmt.Sprintf(`{"groupVersion":%q,"version":%q}`, groupVersion, version)
	return fmt.Sprintf(`{"name":%q,"versions":[%s],"preferredVersion":%[2]s}`, name, v)
}

// resources returns the discovery of a version. Each resource has its name and kind.
func resources(groupVersion string, all ...string) string {
	var list []string
	for _, r := range all {
		name, kind, _ := strings.Cut(r, " ")
		list = append(list, fmt.Sprintf(`{"name":%q,"kind":%q}`, name, kind))
	}
	return fmt.Sprintf(`{"kind":"APIResourceList","groupVersion":%q,"resources":[%s]}`, groupVersion, strings.Join(list, ","))
}

// discovered returns the discovery of a server, by path.
func discovered() map[string]string {
	return map[string]string{
		"/apis/tenancy.example.com":          group("tenancy.example.com/v1alpha1"),
		"/apis/rbac.authorization.k8s.io":    group("rbac.authorization.k8s.io/v1"),
		"/apis/networking.k8s.io":            group("networking.k8s.io/v1"),
		"/api/v1":                            resources("v1", "namespaces Namespace", "resourcequotas ResourceQuota"),
		"/apis/tenancy.example.com/v1alpha1": resources("tenancy.example.com/v1alpha1", "tenants Tenant", "tenants/status Tenant"),
		"/apis/rbac.authorization.k8s.io/v1": resources("rbac.authorization.k8s.io/v1", "rolebindings RoleBinding"),
		"/apis/networking.k8s.io/v1":         resources("networking.k8s.io/v1", "networkpolicies NetworkPolicy"),
	}
}
