package integration_test

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
)

var previewed = flag.Int("previewed", 20, "`number` of websites of TestServerPreview")

// TestServerPreview asks the operator what it would change: first nothing, and then, after the users have changed the
// images of two websites, deleted one and made one, exactly that. It changes nothing itself.
func TestServerPreview(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--", "--service-cluster-ip-range=10.0.0.0/16") // the default has 254 addresses
	leader := w.run()
	for n := range *previewed {
		w.create(fmt.Sprint("site-", n))
	}
	for n := range *previewed {
		w.awaitReady(fmt.Sprint("site-", n))
	}
	if err := leader.Stop(); err != nil {
		t.Fatal(err)
	}
	run := func(wantCode int) string {
		t.Helper()
		config, err := clientcmd.BuildConfigFromFlags("", w.replica().kubeconfig) // with the Role in config/rbac.yaml
		if err != nil {
			t.Fatal(err)
		}
		records, err := dns.NewClient(w.dnsURL)
		if err != nil {
			t.Fatal(err)
		}
		p := &preview.Preview{}
		op, err := controller.New(config, operator.Options{Name: name, LeaseNamespace: systemNamespace, Preview: p}, records)
		if err != nil {
			t.Fatal(err)
		}
		before, hosts := testserver.Stored(t, w.admin, ""), w.dns.Records()
		if err := op.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := p.Report().WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if code := p.Report().ExitCode(); code != wantCode {
			t.Errorf("the exit code is %d, want %d:\n%s", code, wantCode, text.String())
		}
		if diff := cmp.Diff(before, testserver.Stored(t, w.admin, "")); diff != "" {
			t.Errorf("the preview has changed the cluster: (-before +after)\n%s", diff)
		}
		if diff := cmp.Diff(hosts, w.dns.Records()); diff != "" {
			t.Errorf("the preview has changed DNS records: (-before +after)\n%s", diff)
		}
		return text.String()
	}
	if text := run(0); !strings.Contains(text, fmt.Sprintf("%d keys ran. 0 objects would be created, 0 changed, 0 deleted. %d effects outside", *previewed, *previewed)) {
		t.Errorf("the preview of no change:\n%s", text)
	}

	for _, site := range []string{"site-1", "site-2"} {
		if _, err := w.sites.Patch(t.Context(), site, types.MergePatchType, []byte(`{"spec":{"image":"example.com/site:2"}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.sites.Delete(t.Context(), "site-3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create("new")
	text := run(2)
	for _, want := range []string{
		`websites default/new\n  change websites\.web\.example\.com default/new\n    \.metadata\.finalizers: \(absent\) -> \["web\.example\.com/dns"\]\n  create configmaps default/new\n  create services default/new\n  create deployments\.apps default/new\n  change websites\.web\.example\.com/status default/new\n`,
		`websites default/site-1\n  change deployments\.apps default/site-1: restarts Pods\n    \.spec\.template\.spec\.containers\[name=website\]\.image: "example\.com/site:1" -> "example\.com/site:2"\n  change websites\.web\.example\.com/status default/site-1\n`,
		`websites default/site-2\n  change deployments\.apps default/site-2: restarts Pods\n`,
		`websites default/site-3\n  skipped: run the cleanup of the finalizer web\.example\.com/dns, and remove it\n`,
		fmt.Sprintf(`%d keys ran\. 3 objects would be created, 5 changed, 0 deleted\. Pods are restarted by 2 changes\. %d effects outside`, *previewed+1, *previewed+1),
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the report lacks\n%s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
