package fence_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/leader/fence"
	"github.com/controllerkit/controllerkit/leader/internal/shop"
)

// A message is a request below all clients of client-go.
type message struct {
	method, path string
	header       http.Header
	body         string
}

// The headers of a request that upgrades its connection.
var (
	webSocket = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Sec-Websocket-Protocol": {"v5.channel.k8s.io"},
	}
	spdy = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"v4.channel.k8s.io"},
	}
	asJSON  = http.Header{"Content-Type": {"application/json"}}
	asMerge = http.Header{"Content-Type": {"application/merge-patch+json"}}
	asApply = http.Header{"Content-Type": {"application/apply-patch+yaml"}}
)

// sender returns a client of a user with all rights: the user of the fence with terms, or
// an administrator if the first is "person". Upgrades need HTTP/1.1.
func (s *fencedShop) sender(t *testing.T, terms ...string) *rest.Config {
	t.Helper()
	config := testserver.Config(t)
	config.NextProtos = []string{"http/1.1"}
	if terms[0] != "person" {
		config.Impersonate.UserName = s.user
		config.Impersonate.Groups = []string{"system:masters"}
		if terms[0] != "" {
			config.Impersonate.Extra = map[string][]string{stampKey: terms}
		}
	}
	return config
}

// send sends a request and returns the body of its response, and the error that it is.
func send(ctx context.Context, t *testing.T, config *rest.Config, m message) ([]byte, error) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, m.method, config.Host+m.path, strings.NewReader(m.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = m.header.Clone()
	response, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil, nil
	}
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode < http.StatusBadRequest {
		return data, nil
	}
	var status metav1.Status
	if err := json.Unmarshal(data, &status); err == nil && status.Kind == "Status" {
		return nil, &apierrors.StatusError{ErrStatus: status}
	}
	return nil, fmt.Errorf("%s: %s", response.Status, bytes.TrimSpace(data))
}

// stock creates one object of each resource with a subresource of its own, and returns their
// paths by the resource.
func (s *fencedShop) stock(t *testing.T) map[string]string {
	t.Helper()
	paths := map[string]string{}
	add := func(resource, collection, body string) {
		name := s.ns + "-" + resource
		text := fmt.Sprintf(`{"metadata":{"name":%q}%s}`, name, body)
		if _, err := send(t.Context(), t, s.sender(t, "person"), message{http.MethodPost, collection, asJSON, text}); err != nil {
			t.Fatalf("create %s: %v", resource, err)
		}
		paths[resource] = collection + "/" + name
		if !strings.Contains(collection, "/namespaces/") {
			t.Cleanup(func() {
				if _, err := send(context.Background(), t, s.sender(t, "person"), message{http.MethodDelete, collection + "/" + name, nil, ""}); err != nil {
					t.Errorf("delete %s: %v", resource, err)
				}
			})
		}
	}
	in, apps := "/api/v1/namespaces/"+s.ns+"/", "/apis/apps/v1/namespaces/"+s.ns+"/"
	const pod = `"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"1"},"limits":{"cpu":"2"}}}]}`
	add("configmaps", in+"configmaps", "")
	if _, err := send(t.Context(), t, s.sender(t, "person"), message{http.MethodPost, in + "serviceaccounts", asJSON, `{"metadata":{"name":"default"}}`}); err != nil {
		t.Fatal(err)
	}
	add("serviceaccounts", in+"serviceaccounts", "")
	add("pods", in+"pods", ","+pod)
	add("services", in+"services", `,"spec":{"ports":[{"port":80}]}`)
	// Before Kubernetes 1.37, a connection to a Service without Endpoints fails with the 404 of Endpoints.
	if _, err := send(t.Context(), t, s.sender(t, "person"), message{http.MethodPost, in + "endpoints", asJSON, fmt.Sprintf(`{"metadata":{"name":%q}}`, s.ns+"-services")}); err != nil {
		t.Fatal(err)
	}
	add("nodes", "/api/v1/nodes", "")
	add("namespaces", "/api/v1/namespaces", "")
	add("deployments", apps+"deployments", `,"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},`+pod+`}}`)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	request, err := json.Marshal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	add("certificatesigningrequests", "/apis/certificates.k8s.io/v1/certificatesigningrequests",
		fmt.Sprintf(`,"spec":{"signerName":"test.controllerkit.github.io/x","usages":["client auth"],"request":%s}`, request))
	return paths
}

// stocked are the resources of stock.
var stocked = []schema.GroupResource{
	{Resource: "configmaps"}, {Resource: "serviceaccounts"}, {Resource: "pods"}, {Resource: "services"},
	{Resource: "nodes"}, {Resource: "namespaces"}, {Group: "apps", Resource: "deployments"},
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"},
}

func fenceStocked(f *fence.Fence) { f.Resources = stocked }

// connections are the requests that connect to a Pod, a Service or a Node, by the path of
// the object.
var connections = []struct {
	resource, sub string
	ways          []message // path is the end of the path
}{
	{"pods", "exec", []message{
		{http.MethodPost, "?command=ls&stdout=true", spdy, ""},
		{http.MethodGet, "?command=ls&stdout=true", webSocket, ""},
		{http.MethodGet, "?command=ls&stdout=true", spdy, ""},
	}},
	{"pods", "attach", []message{
		{http.MethodPost, "?stdout=true", spdy, ""},
		{http.MethodGet, "?stdout=true", webSocket, ""},
	}},
	{"pods", "portforward", []message{
		{http.MethodPost, "?ports=80", spdy, ""},
		{http.MethodGet, "?ports=80", webSocket, ""},
	}},
	{"pods", "proxy", proxied},
	{"services", "proxy", proxied},
	{"nodes", "proxy", proxied},
}

var proxied = []message{
	{http.MethodPost, "/x", asJSON, "{}"}, {http.MethodPut, "/x", asJSON, "{}"}, {http.MethodPatch, "/x", asMerge, "{}"},
	{http.MethodDelete, "/x", nil, ""}, {http.MethodDelete, "", nil, ""}, {http.MethodGet, "/x", webSocket, ""}, {http.MethodGet, "/x", nil, ""},
}

// TestServerFenceConnects: the fence refuses the connections of an earlier leader, and none
// of its successor, of the same user without a term and of a person. These fail later, because
// the Pod, the Service and the Node have no address.
//
// Proves L13.
func TestServerFenceConnects(t *testing.T) {
	t.Parallel()
	s := newShop(t, fenceConfigMaps, held(3))
	paths := s.stock(t)
	s.fence(t, fenceStocked)
	for _, c := range connections {
		for _, m := range c.ways {
			m.path = paths[c.resource] + "/" + c.sub + m.path
			for _, by := range []struct {
				name, term string
				refused    bool
			}{
				{"former leader", s.term(2), true},
				{"leader of another Lease", "c0ffee/3", true},
				{"rubbish", "rubbish", true},
				{"present leader", s.term(3), false},
				{"no term", "", false},
				{"person", "person", false},
			} {
				t.Run(fmt.Sprintf("%s/%s %s %s, %s", c.resource, c.sub, m.method, m.header.Get("Upgrade"), by.name), func(t *testing.T) {
					_, err := send(t.Context(), t, s.sender(t, by.term), m)
					if by.refused {
						s.judge(t, err, true)
						return
					}
					if err == nil || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
						t.Errorf("error = %v; want one of the connection itself", err)
					}
				})
			}
		}
	}
}

// TestServerGuardAsConnects: exec by WebSocket, which is a GET, carries the term of GuardAs.
//
// Proves L13.
func TestServerGuardAsConnects(t *testing.T) {
	t.Parallel()
	s := newShop(t, fenceConfigMaps, held(3))
	paths := s.stock(t)
	s.fence(t, fenceStocked)
	exec := message{http.MethodGet, paths["pods"] + "/exec?command=ls&stdout=true", webSocket, ""}
	config := s.sender(t, "person")
	config.Wrap(leader.GuardAs(s.user, "system:masters"))
	if _, err := send(t.Context(), t, config, exec); err == nil || !strings.Contains(err.Error(), "the context of a guarded write has no term") {
		t.Errorf("outside of lead: error = %v, want that of Guard", err)
	}
	// This Elector has a Lease of its own, so the fence knows its term as that of another.
	err := shop.Elector(s.leases, s.ns, "a").Run(t.Context(), func(ctx context.Context) error {
		_, err := send(ctx, t, config, exec)
		return err
	})
	s.judge(t, err, true)
}

// subresources are the writes of subresources that are no connections, by the path of the
// object. path is the end of the path, and the body "=" is the object as it is.
var subresources = []struct {
	resource string
	message
}{
	{"pods", message{http.MethodPut, "/status", asJSON, "="}},
	{"pods", message{http.MethodPatch, "/status", asMerge, `{"status":{"message":"x"}}`}},
	{"pods", message{http.MethodPatch, "/status?fieldManager=m&force=true", asApply, `{"apiVersion":"v1","kind":"Pod","status":{"message":"x"}}`}},
	{"pods", message{http.MethodPost, "/eviction", asJSON, `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"<name>"}}`}},
	{"pods", message{http.MethodPost, "/binding", asJSON, `{"metadata":{"name":"<name>"},"target":{"kind":"Node","name":"n"}}`}},
	{"pods", message{http.MethodPatch, "/ephemeralcontainers", asMerge, `{"spec":{"ephemeralContainers":[{"name":"e","image":"i","imagePullPolicy":"Always","terminationMessagePolicy":"File"}]}}`}},
	{"pods", message{http.MethodPatch, "/resize", asMerge, `{"metadata":{"labels":{"z":"1"}}}`}},
	{"services", message{http.MethodPatch, "/status", asMerge, `{"status":{"loadBalancer":{}}}`}},
	{"nodes", message{http.MethodPatch, "/status", asMerge, `{"status":{"phase":"Running"}}`}},
	{"namespaces", message{http.MethodPut, "/finalize", asJSON, "="}},
	{"namespaces", message{http.MethodPatch, "/status", asMerge, `{"status":{"conditions":[]}}`}},
	{"serviceaccounts", message{http.MethodPost, "/token", asJSON, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["a"]}}`}},
	{"deployments", message{http.MethodPatch, "/scale", asMerge, `{"spec":{"replicas":2}}`}},
	{"deployments", message{http.MethodPatch, "/status", asMerge, `{"status":{"observedGeneration":1}}`}},
	{"certificatesigningrequests", message{http.MethodPut, "/approval", asJSON, "="}},
	{"certificatesigningrequests", message{http.MethodPatch, "/status", asMerge, `{"metadata":{"labels":{"z":"1"}}}`}},
}

// TestServerFenceKnowsAllWrites: there is no subresource with a verb that writes, and no
// resource that writes to another, that the other tests of this file do not try. The fence
// refuses these writes of an earlier leader, and passes those of its successor.
//
// Proves L13.
func TestServerFenceKnowsAllWrites(t *testing.T) {
	t.Parallel()
	s := newShop(t, fenceConfigMaps, held(3))
	paths := s.stock(t)
	s.fence(t, fenceStocked)

	tried := sets.New[string]()
	for _, c := range connections {
		tried.Insert(c.sub)
	}
	dryRun := func(m message) message {
		m.path += map[bool]string{false: "?", true: "&"}[strings.Contains(m.path, "?")] + "dryRun=All"
		return m
	}
	try := func(name string, m message) {
		t.Run(name, func(t *testing.T) {
			for _, by := range []struct {
				term    string
				refused bool
			}{{s.term(2), true}, {s.term(3), false}} {
				_, err := send(t.Context(), t, s.sender(t, by.term), dryRun(m))
				s.judge(t, err, by.refused)
			}
		})
	}
	for _, w := range subresources {
		m, path := w.message, paths[w.resource]
		sub, _, _ := strings.Cut(strings.TrimPrefix(m.path, "/"), "?")
		tried.Insert(sub)
		if m.body == "=" {
			data, err := send(t.Context(), t, s.sender(t, "person"), message{http.MethodGet, path, nil, ""})
			if err != nil {
				t.Fatal(err)
			}
			m.body = string(data)
		}
		m.body = strings.ReplaceAll(m.body, "<name>", path[strings.LastIndex(path, "/")+1:])
		m.path = path + m.path
		try(w.resource+"/"+sub+" "+m.method+" "+m.header.Get("Content-Type"), m)
	}
	pods, _, _ := strings.Cut(paths["pods"], "/pods/")
	try("bindings", message{http.MethodPost, pods + "/bindings", asJSON, `{"metadata":{"name":"` + s.ns + `-pods"},"target":{"kind":"Node","name":"n"}}`})
	try("deletecollection", message{http.MethodDelete, pods + "/configmaps", nil, ""})

	// virtual are resources that are not stored.
	virtual := sets.New("bindings")
	client, err := discovery.NewDiscoveryClientForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	writes := []string{"create", "update", "patch", "delete", "deletecollection"}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.ContainsFunc(r.Verbs, func(verb string) bool { return slices.Contains(writes, verb) }) {
				continue
			}
			resource, sub, _ := strings.Cut(r.Name, "/")
			f := shopFence()
			f.Resources = []schema.GroupResource{{Group: gv.Group, Resource: resource}}
			_, _, err := f.Policy()
			exempt := err != nil
			switch {
			case sub != "" && !tried.Has(sub):
				t.Errorf("%s %s has verbs %v: no test shows that the fence covers this subresource", gv, r.Name, r.Verbs)
			case sub == "" && !slices.Contains(r.Verbs, "get") && !exempt && !virtual.Has(resource):
				t.Errorf("%s %s has verbs %v and is not stored: no test shows to what it writes", gv, r.Name, r.Verbs)
			case exempt && !strings.Contains(err.Error(), "exempts it"):
				t.Errorf("%s %s: %v", gv, r.Name, err)
			}
		}
	}
}

// TestServerFenceExempt: the API server evaluates no policy for the resources that Fence
// rejects, so a fence could not cover them.
func TestServerFenceExempt(t *testing.T) {
	t.Parallel()
	s := newShop(t, fenceConfigMaps, held(3))
	exempt := []struct{ group, version, resource, body string }{
		{"authorization.k8s.io", "v1", "selfsubjectaccessreviews", `"kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get"}}`},
		{"authorization.k8s.io", "v1", "subjectaccessreviews", `"kind":"SubjectAccessReview","spec":{"user":"a","resourceAttributes":{"verb":"get"}}`},
		{"authorization.k8s.io", "v1", "selfsubjectrulesreviews", `"kind":"SelfSubjectRulesReview","spec":{"namespace":"a"}`},
		{"authentication.k8s.io", "v1", "selfsubjectreviews", `"kind":"SelfSubjectReview"`},
		{"authentication.k8s.io", "v1", "tokenreviews", `"kind":"TokenReview","spec":{"token":"x"}`},
		{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", `"kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"a"},"spec":{"policyName":"a","validationActions":["Deny"]}`},
	}
	f := fence.Fence{Name: s.policy, LeaseNamespace: s.ns, LeaseName: "shop", Users: []string{s.user}, Resources: []schema.GroupResource{{Resource: "configmaps"}}}
	policy, binding, err := f.Policy()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range exempt {
		f.Resources = []schema.GroupResource{{Group: e.group, Resource: e.resource}}
		if _, _, err := f.Policy(); err == nil || !strings.Contains(err.Error(), "exempts it") {
			t.Errorf("Policy() error = %v for %s, want a rejection", err, e.resource)
		}
		rule := policy.Spec.MatchConstraints.ResourceRules[0]
		rule.APIGroups, rule.Resources = []string{e.group}, []string{e.resource}
		policy.Spec.MatchConstraints.ResourceRules = append(policy.Spec.MatchConstraints.ResourceRules, rule)
	}
	keep(t)
	for _, obj := range []any{policy, binding} {
		data, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		shop.Create(t, data)
	}
	s.awaitFence(t)
	for _, e := range exempt {
		gv := e.group + "/" + e.version
		m := message{http.MethodPost, "/apis/" + gv + "/" + e.resource + "?dryRun=All", asJSON, `{"apiVersion":"` + gv + `",` + e.body + `}`}
		if _, err := send(t.Context(), t, s.sender(t, s.term(2)), m); err != nil {
			t.Errorf("%s: %v, want that no policy is evaluated", e.resource, err)
		}
	}
}
