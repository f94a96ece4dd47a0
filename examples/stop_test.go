package examples_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// runConfig is the main function of a page whose function run takes the configuration.
const runConfig = `package main

import (
	"log"
	"os"

	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err == nil {
		err = run(config)
	}
	if err != nil {
		log.Fatal(err)
	}
}
`

// runPieces connects the functions of docs/from-client-go.md.
const runPieces = `package main

import (
	"cmp"
	"log"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/queue"
)

var listen = cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:0")

func main() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	check(err)
	m, err := collectors(config, prometheus.NewRegistry())
	check(err)
	c, loop, err := readYourWrites(config, newQueue(m))
	check(err)
	check(c.watchPods(c.queue.(*queue.Queue[types.NamespacedName])))
	set := &informer.Set{}
	set.Add("pods", c.informer)
	leases, err := leader.NewClient(config, "widgets-system")
	check(err)
	elector := &leader.Elector{Leases: leases, Namespace: "widgets-system", Name: "widgets-controller"}
	check(runAll(m.Handler(), set, elector, loop))
}
`

// TestServerStop runs the program that README.md shows and the programs of docs with their real
// times, and sends SIGTERM during a call that takes 12s: the call ends, then the Lease is
// released, and the exit code is 0. Each example and package operator has such a test of
// its own.
//
// The name of a subtest is the page. Its code is built from the page's blocks, so a failure to
// build is a fault of the page. The last lines of the program show how far the stop came: read them
// from "Stopping controller" on.
func TestServerStop(t *testing.T) {
	server := testserver.Own(t)
	admin := server.Config()
	kube := kubernetes.NewForConfigOrDie(admin)
	objects, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stop", "copies", "example-system", "widgets-system"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	testserver.InstallCRDAt(t, admin, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "websites.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "websites", "singular": "website", "kind": "Website", "listKind": "WebsiteList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	})
	account := user(t, kube)
	configMaps, websites := corev1.SchemeGroupVersion.WithResource("configmaps"), schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "websites"}

	for _, tc := range []struct {
		page    string
		main    string            // "" for a page with a main function
		replace map[string]string // in the code of the page
		create  string            // a manifest that queues the key
		of      schema.GroupVersionResource
		slow    string // in the path of the write that takes 12s
		last    string // an object with the last write of the call, as namespace/name
		lease   string // as namespace/name; "" means no election
	}{
		{
			page: "examples/minimal/main.go", create: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","name":"source"}}`, of: configMaps,
			slow: "/namespaces/copies/configmaps/source", last: "copies/source",
		},
		{
			page:   "docs/crd.md",
			create: `{"apiVersion":"example.com/v1","kind":"Website","metadata":{"namespace":"stop","name":"site"},"spec":{"host":"example.com"}}`, of: websites,
			slow: "/websites/site/status", last: "stop/site",
		},
		{
			page: "docs/from-controller-runtime.md", main: runConfig, replace: map[string]string{`":8080"`: `"127.0.0.1:0"`},
			create: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"stop","name":"sized"},"data":{"size":"1"}}`, of: configMaps,
			slow: "/namespaces/stop/configmaps/sized", last: "stop/sized-child", lease: "example-system/80807133.example.com",
		},
		{
			page: "docs/from-client-go.md", main: runPieces, replace: map[string]string{
				`":8080"`: `listen`,
				"key types.NamespacedName) error { return nil }": `key types.NamespacedName) error {
					_, err := c.client.CoreV1().ConfigMaps(key.Namespace).Apply(ctx, applycorev1.ConfigMap(key.Name, key.Namespace), metav1.ApplyOptions{FieldManager: "x"})
					return err
				}`,
			},
			create: `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"stop","name":"pod"},"spec":{"automountServiceAccountToken":false,"containers":[{"name":"x","image":"x"}]}}`,
			of:     corev1.SchemeGroupVersion.WithResource("pods"),
			slow:   "/namespaces/stop/configmaps/pod", last: "stop/pod", lease: "widgets-system/widgets-controller",
		},
	} {
		bin := program(t, tc.page, tc.main, tc.replace) // before the calls, which have 3s to spare
		if tc.main == runPieces {
			t.Run("forbidden", func(t *testing.T) { forbidden(t, bin) })
		}
		t.Run(filepath.Base(tc.page), func(t *testing.T) {
			t.Parallel()
			if tc.lease == "" && tc.of == configMaps {
				label := []byte(`{"metadata":{"labels":{"copy-from":"source"}}}`)
				if _, err := kube.CoreV1().Namespaces().Patch(t.Context(), "copies", "application/merge-patch+json", label, metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			var held atomic.Bool
			begun := make(chan time.Time, 1)
			proxy, err := lab.Proxy(admin, func(op lab.Op) bool {
				if op.Write && strings.Contains(op.Path, tc.slow) && held.CompareAndSwap(false, true) {
					begun <- time.Now()
					<-time.After(12 * time.Second) // the slow call
				}
				return true
			}, func(lab.Op) bool { return true })
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(proxy.Close)
			kubeconfig, err := lab.LimitedKubeconfig(t.Context(), admin, "default", account, t.TempDir(), proxy)
			if err != nil {
				t.Fatal(err)
			}
			p, err := lab.StartProcess("/usr/bin/env", "KUBECONFIG="+kubeconfig, bin)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Kill)

			var obj unstructured.Unstructured
			if err := obj.UnmarshalJSON([]byte(tc.create)); err != nil {
				t.Fatal(err)
			}
			if _, err := objects.Resource(tc.of).Namespace(obj.GetNamespace()).Create(t.Context(), &obj, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			var call time.Time
			select {
			case call = <-begun:
			case <-p.Ended():
				t.Fatalf("the program ended:\n%s", p.Tail(20))
			case <-time.After(time.Minute):
				t.Fatalf("no call after a minute:\n%s", p.Tail(20))
			}
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(call); took < 12*time.Second {
				t.Errorf("the program stopped after %v, before the end of the call", took)
			}
			if err := written(t.Context(), objects, tc.of, tc.last); err != nil {
				t.Errorf("the call did not end: %v\n%s", err, p.Tail(20))
			}
			if tc.lease == "" {
				return
			}
			namespace, name, _ := strings.Cut(tc.lease, "/")
			lease, err := kube.CoordinationV1().Leases(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
				t.Errorf("the Lease is held by %q, want it released\n%s", *holder, p.Tail(20))
			}
		})
	}
}

// forbidden runs the program of docs/from-client-go.md without the right to list pods: it is not ready, and asks for
// no Lease. Its metrics have the start of the process, which the alert about restarts needs.
func forbidden(t *testing.T, bin string) {
	var leases atomic.Int32
	lists := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","code":403}`))
		switch {
		case strings.Contains(r.URL.Path, "/leases"):
			leases.Add(1)
		case strings.HasSuffix(r.URL.Path, "/pods"):
			lists <- struct{}{}
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{"clusters":[{"name":"a","cluster":{"server":%q}}],"contexts":[{"name":"a","context":{"cluster":"a"}}],"current-context":"a"}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := port.Addr().String()
	if err := port.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := lab.StartProcess("/usr/bin/env", "KUBECONFIG="+kubeconfig, "LISTEN="+address, bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	for range 3 { // a watch, a list, and one after a delay: the parts run
		select {
		case <-lists:
		case <-p.Ended():
			t.Fatalf("the program ended:\n%s", p.Tail(20))
		case <-time.After(time.Minute):
			t.Fatalf("no list after a minute:\n%s", p.Tail(20))
		}
	}
	for path, want := range map[string]string{"/readyz": "informers", "/metrics": "process_start_time_seconds"} {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatalf("%v\n%s", err, p.Tail(20))
		}
		text, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if path == "/readyz" && resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), want) {
			t.Errorf("%s is %s without %q:\n%s", path, resp.Status, want, text)
		}
	}
	if n := leases.Load(); n > 0 {
		t.Errorf("%d requests about the Lease, want none", n)
	}
}

// written returns nil if the last write of a call is on the server: a ConfigMap, or the
// status of a website.
func written(ctx context.Context, objects dynamic.Interface, of schema.GroupVersionResource, last string) error {
	if of.Resource != "websites" {
		of = corev1.SchemeGroupVersion.WithResource("configmaps")
	}
	namespace, name, _ := strings.Cut(last, "/")
	got, err := objects.Resource(of).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if _, ok := got.Object["status"]; of.Resource == "websites" && !ok {
		return fmt.Errorf("%s has no status", last)
	}
	return nil
}

// user creates a service account that may do everything, and returns its name.
func user(t *testing.T, kube kubernetes.Interface) string {
	t.Helper()
	const name = "stop"
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// program builds a Go file, or the Go code of a page with a main function. The code is in this module,
// so that it uses this checkout, and invisible to ./... by the name of its folder.
func program(t *testing.T, page, mainFunction string, replace map[string]string) (bin string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", page))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(".", "_stop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var code strings.Builder
	if filepath.Ext(page) == ".go" {
		code.Write(text)
	}
	for _, m := range goBlock.FindAllSubmatch(text, -1) {
		code.Write(m[1])
	}
	source := code.String()
	if !strings.Contains(source, "\npackage main\n") {
		source = "package main\n\n" + source
	}
	for before, after := range replace {
		if !strings.Contains(source, before) {
			t.Fatalf("%s has no %s", page, before)
		}
		source = strings.Replace(source, before, after, 1)
	}
	files := map[string]string{"page.go": source}
	if mainFunction != "" {
		files["main.go"] = mainFunction
	}
	generated, err := filepath.Glob(filepath.Join("..", "docs", "testdata", strings.TrimSuffix(filepath.Base(page), ".md"), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range generated {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(name)] = strings.Replace(string(text), "package page\n", "package main\n", 1)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bin = filepath.Join(t.TempDir(), "program")
	if err := testprocess.Build(t.Context(), bin, "./"+dir); err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	return bin
}
