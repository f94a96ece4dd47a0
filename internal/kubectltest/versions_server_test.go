package kubectltest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/cmd"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/crd/migrate"
	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/config"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator"

	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

type m = map[string]any

// asKubectl is a variable of the environment with which the program of the tests is kubectl.
const asKubectl = "TEST_AS_KUBECTL"

func TestMain(m *testing.M) {
	if os.Getenv(asKubectl) != "" {
		if cmd.NewDefaultKubectlCommand().Execute() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	testserver.Main(m)
}

var websites = v1.GroupVersion.WithResource("websites")

// A way is that of docs/crd-versions.md, for the websites of the example.
type way struct {
	t         *testing.T
	config    *rest.Config
	client    dynamic.Interface
	namespace string
	commands  []string // of the page
	env       []string
}

// asKubectl makes the program of the tests the kubectl of the shell.
func (w *way) asKubectl() {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	bin := w.t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec %q \"$@\"\n", asKubectl, self)
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(script), 0o700); err != nil {
		w.t.Fatal(err)
	}
	w.env = []string{"PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"), "KUBECONFIG=" + testprocess.Kubeconfig(w.t, w.config), "HOME=" + w.t.TempDir()}
}

// run runs the next block of commands of the page in a shell, and returns what they print.
func (w *way) run() string {
	w.t.Helper()
	script := "set -e\n" + w.commands[0]
	w.commands = w.commands[1:]
	command := exec.CommandContext(w.t.Context(), "sh", "-c", script)
	command.Env = append(os.Environ(), w.env...)
	out, err := command.CombinedOutput()
	w.t.Logf("%s\n%s", script, out)
	if err != nil {
		w.t.Fatalf("the commands of the page: %v", err)
	}
	return string(out)
}

// edit changes the versions of the definition, as a person does.
func (w *way) edit(change func(versions []m) []m) {
	w.t.Helper()
	definitions := w.client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	d, err := definitions.Get(w.t.Context(), websites.GroupResource().String(), metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
	var versions []m
	for _, v := range list {
		versions = append(versions, v.(m))
	}
	patch, err := json.Marshal(m{"spec": m{"versions": change(versions)}})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := definitions.Patch(w.t.Context(), d.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// apply applies a website as a pipeline does, without force.
func (w *way) apply(version, name, host string) {
	w.t.Helper()
	obj := &unstructured.Unstructured{Object: m{
		"apiVersion": websites.Group + "/" + version, "kind": "Website", "metadata": m{"name": name}, "spec": m{"host": host, "image": "web:1"},
	}}
	_, err := w.client.Resource(websites.GroupResource().WithVersion(version)).Namespace(w.namespace).Apply(w.t.Context(), name, obj, metav1.ApplyOptions{FieldManager: "pipeline"})
	if err != nil {
		w.t.Fatal(err)
	}
}

// addMigration is that of the page.
func addMigration(ctx context.Context, op *operator.Operator, config *rest.Config, namespace string) error {
	config = rest.CopyConfig(config)
	config.QPS = -1 // Migrator.Rate is the limit, not client-go's 5 a second
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := migrate.Require(ctx, client, websites); err != nil {
		return err
	}
	leases, err := leader.NewClient(config, namespace)
	if err != nil {
		return err
	}
	elector := &leader.Elector{Leases: leases, Namespace: namespace, Name: "websites-migration", Metrics: op.Metrics}
	m := &migrate.Migrator{Client: client, Definition: websites.GroupResource().String(), Metrics: op.Metrics, Settle: 2 * time.Second}
	op.Group.Add("migration", func(ctx context.Context) error { return elector.Run(ctx, m.Run) })
	return nil
}

// replica runs the operator until the test ends.
func (w *way) replica(records dns.Service) {
	w.t.Helper()
	op, err := controller.New(w.config, operator.Options{Name: "website-operator", LeaseNamespace: w.namespace, Namespace: w.namespace}, records)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := addMigration(w.t.Context(), op, w.config, w.namespace); err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- op.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.t.Errorf("Run() = %v", err)
		}
	})
}

// The way of docs/crd-versions.md, with the commands of the page in kubectl and two replicas of the website operator,
// which migrate the websites.
func TestServerSecondVersion(t *testing.T) {
	page, err := os.ReadFile("../../docs/crd-versions.md")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{t: t, config: testserver.Config(t), namespace: testserver.Namespace(t)}
	w.client = dynamic.NewForConfigOrDie(w.config)
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(page, -1) {
		w.commands = append(w.commands, string(block[1]))
	}
	if len(w.commands) != 3 {
		t.Fatalf("the page has %d blocks of commands, want 3", len(w.commands))
	}
	w.asKubectl()

	data, err := config.Files.ReadFile("crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition m
	if err := yaml.Unmarshal(data, &definition); err != nil {
		t.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(definition, "spec", "versions")
	versions[0].(m)["name"] = "v1alpha1"
	definition["spec"].(m)["versions"] = versions
	testserver.InstallCRD(t, definition)
	const sites = 20
	name := func(n int) string { return fmt.Sprintf("site-%02d", n) }
	for n := range sites {
		w.apply("v1alpha1", name(n), "a.example.com")
	}
	if err := migrate.Require(t.Context(), w.client, websites); err == nil || !strings.Contains(err.Error(), "v1alpha1") {
		t.Errorf("the operator starts without its version: %v", err)
	}

	// 1. Serve v1.
	w.edit(func(versions []m) []m {
		v1 := maps.Clone(versions[0])
		v1["name"], v1["storage"] = "v1", false
		return append(versions, v1)
	})
	for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // no event shows that a version is served
		err := migrate.Require(t.Context(), w.client, websites)
		if err == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
	service := &dns.Server{}
	web := httptest.NewServer(service)
	t.Cleanup(web.Close)
	records, err := dns.NewClient(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.replica(records)
	}

	// 2. Store v1.
	w.edit(func(versions []m) []m {
		versions[0]["storage"], versions[1]["storage"] = false, true
		return versions
	})
	out := w.run()
	if !strings.HasSuffix(out, "All objects are stored in v1. Managers own fields in the served version v1alpha1: [\"pipeline\"].") {
		t.Errorf("step 2 prints\n%s", out)
	}

	// 3. Stop serving v1alpha1.
	lines := strings.Split(strings.TrimSpace(w.run()), "\n")
	if want := w.namespace + "/site-00 pipeline 20"; len(lines) != sites || !strings.HasPrefix(lines[0], want) {
		t.Errorf("step 3 names %d writers, want %d such as %s", len(lines), sites, want)
	}
	w.edit(func(versions []m) []m {
		versions[0]["served"] = false
		return versions
	})

	// 4. Remove v1alpha1.
	if out := w.run(); !strings.HasSuffix(out, "All objects are stored in v1.") {
		t.Errorf("step 4 prints\n%s", out)
	}
	w.edit(func(versions []m) []m { return versions[1:] })
	for n := range sites {
		w.apply("v1", name(n), "b.example.com")
	}
	for limit := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		moved := 0
		for _, host := range service.Records() {
			if host == "b.example.com" {
				moved++
			}
		}
		if moved == sites {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("the operators have moved %d of %d records", moved, sites)
		}
	}
	list, err := w.client.Resource(websites).Namespace(w.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != sites {
		t.Fatalf("%d websites, want %d: %v", len(list.Items), sites, err)
	}
	for _, site := range list.Items {
		for _, entry := range site.GetManagedFields() {
			if entry.APIVersion != websites.GroupVersion().String() {
				t.Errorf("%s: %s owns fields in %s", site.GetName(), entry.Manager, entry.APIVersion)
			}
		}
		if err := w.client.Resource(websites).Namespace(w.namespace).Delete(t.Context(), site.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	for limit := time.Now().Add(time.Minute); len(service.Records()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d records are left", len(service.Records()))
		}
	}
}
