package metrics_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/crd"
	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/operator"
)

// patience bounds each wait. A test that passes needs much less.
const patience = 2 * time.Minute

// TestServerPrometheus: a Prometheus scrapes the website example, which works on a real API
// server, and a Metrics that has every family. It loads the rules, knows each family by its
// type, and answers each query of the rules and of the dashboard.
func TestServerPrometheus(t *testing.T) {
	t.Parallel()
	path := program(t, "prometheus")
	complete := everything(t)
	m, _, _ := website(t, new(dns.Server))
	example := serve(t, m)
	p := startPrometheus(t, path, map[string]string{"example": example, "all": complete})

	// Rates need two scrapes. The website's controller has run then.
	p.await(t, `rate(controller_reconcile_total{job="example", controller="websites", result="success"}[1m]) > 0`)
	p.await(t, `rate(controller_reconcile_total{job="all", controller="c", result="success"}[1m]) >= 0`)

	var metadata map[string][]struct{ Type string }
	p.get(t, "/api/v1/metadata", nil, &metadata)
	for name, kind := range familyTypes(t) {
		if m := metadata[name]; len(m) != 1 || m[0].Type != kind {
			t.Errorf("Prometheus has %s as %v, want one %s", name, m, kind)
		}
	}
	var groups struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	loaded := 0
	p.get(t, "/api/v1/rules", nil, &groups)
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if loaded++; r.LastError != "" {
				t.Errorf("rule %s: %s", r.Name, r.LastError)
			}
		}
	}
	if want := len(alerts()) + len(recordings()); loaded != want {
		t.Errorf("Prometheus has %d rules, want %d", loaded, want)
	}

	// Without its comparisons, an alert has a value whenever its families have series.
	for _, a := range alerts() {
		p.query(t, a.expr)
		for _, name := range slices.Compact(slices.Sorted(slices.Values(identifier.FindAllString(a.expr, -1)))) {
			if !strings.Contains(name, ":") {
				p.await(t, name+`{job="all"}`) // a scrape that takes over 1s leaves a gap
			}
		}
	}
	for _, r := range recordings() {
		p.await(t, r.expr)
	}
	// The example has no finalizer.Plan and no shards, does not stop, and its
	// keys need not wait: these panels can be empty for it.
	unused := []string{"Owned shards", "Imbalance", "Shards without an owner, and surplus", "Time without an owner", "Moves", "Waits for caches", "Latency of client-go's caches", "Watches and lists", "Blocked objects", "Oldest blocked object", "Calls of steps", "Stops"}
	for _, r := range rows() {
		for _, panel := range r.panels {
			for _, q := range panel.queries {
				all := strings.NewReplacer(`controller="$controller"`, `controller="c"`, `name="$controller"`, `name="q"`, "$job", "all", "$__rate_interval", "1m").Replace(q[0])
				p.await(t, all)
				if !slices.Contains(unused, panel.title) {
					p.await(t, strings.NewReplacer("$job", "example", "$controller", "websites", "$__rate_interval", "1m").Replace(q[0]))
				}
			}
		}
	}
	// The variables of the dashboard are the values of these labels.
	var values []string
	p.get(t, "/api/v1/label/controller/values", url.Values{"match[]": {`controller_workers{job="example"}`}}, &values)
	if !slices.Equal(values, []string{"websites"}) {
		t.Errorf("controllers of the example: %q", values)
	}
}

// website runs the example, with the records at zone, in a namespace of its own, with one website.
// It returns its metrics and the client of its websites.
func website(t *testing.T, zone http.Handler) (*metrics.Metrics, prometheus.Gatherer, *crd.Client[*v1.Website]) {
	t.Helper()
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	data, err := os.ReadFile("../examples/website/config/crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition map[string]any
	if err := yaml.Unmarshal(data, &definition); err != nil {
		t.Fatal(err)
	}
	testserver.InstallCRD(t, definition)
	server := httptest.NewServer(zone)
	t.Cleanup(server.Close)
	records, err := dns.NewClient(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	m, reg := newMetrics(t)
	op, err := controller.New(config, operator.Options{Name: "website-operator", LeaseNamespace: namespace, Namespace: namespace, Metrics: m}, records)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // until the cleanups
	ended := make(chan error, 1)
	go func() { ended <- op.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the example: %v", err)
			}
		case <-time.After(patience):
			t.Error("the example does not stop")
		}
	})
	sites, err := crd.New[*v1.Website](config, v1.GroupVersion.WithKind("Website"), "websites")
	if err != nil {
		t.Fatal(err)
	}
	site := createWebsite(t, sites.Namespace(namespace), "blog")
	// Work goes on, so that rates are not 0: a write that the controller sees.
	maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(namespace)
	working := make(chan struct{})
	go func() {
		defer close(working)
		for ticker := time.NewTicker(500 * time.Millisecond); ctx.Err() == nil; {
			_ = maps.Delete(ctx, "blog", metav1.DeleteOptions{}) // the controller makes it again
			select {
			case <-ticker.C:
			case <-ctx.Done():
				ticker.Stop()
			}
		}
	}()
	t.Cleanup(func() {
		// Before the operator stops, which removes the finalizer: a website that remains would
		// keep the namespace and the CustomResourceDefinition.
		deleteWebsite(t, sites.Namespace(namespace), site.Name)
		cancel()
		<-working
	})
	return m, reg, sites.Namespace(namespace)
}

func createWebsite(t *testing.T, sites *crd.Client[*v1.Website], name string) *v1.Website {
	t.Helper()
	site := &v1.Website{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.WebsiteSpec{Image: "blog:1", Host: name + ".example.com", Replicas: 1}}
	if _, err := sites.Create(t.Context(), site, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return site
}

// deleteWebsite deletes the website, and returns when it is gone.
func deleteWebsite(t *testing.T, sites *crd.Client[*v1.Website], name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w, err := sites.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Errorf("the watch of the website: %v", err)
		return
	}
	defer w.Stop()
	if err := sites.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("the deletion of the website: %v", err)
		return
	}
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			return
		}
	}
	t.Errorf("the website was not gone after %v", patience)
}

// everything returns the address of a Metrics with all families.
func everything(t *testing.T) string {
	t.Helper()
	m, _ := newMetrics(t)
	use(t, m)
	m.ConsistencyWaited(time.Second, true)
	return serve(t, m)
}

func serve(t *testing.T, m *metrics.Metrics) (address string) {
	t.Helper()
	server := httptest.NewServer(m.Handler())
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// prom is a running Prometheus.
type prom struct{ url string }

// startPrometheus starts a Prometheus that scrapes the targets, by job, each second.
func startPrometheus(t *testing.T, path string, targets map[string]string) prom {
	t.Helper()
	dir := t.TempDir()
	rulesFile, err := filepath.Abs("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n", rulesFile)
	for job, address := range targets {
		config += fmt.Sprintf("  - {job_name: %s, static_configs: [{targets: [%q]}]}\n", job, address)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	for range 5 { // somebody else may take the free port
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		l.Close()
		output.Reset()
		cmd := exec.Command(path, "--config.file", file, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", address, "--log.level", "warn")
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = cmd.Wait() }()
		p := prom{url: "http://" + address}
		if p.ready(ended) {
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				<-ended
			})
			return p
		}
		_ = cmd.Process.Kill()
		<-ended
	}
	t.Fatalf("Prometheus does not start:\n%s", output.String())
	return prom{}
}

// ready waits until the server responds, or the process has ended.
func (p prom) ready(ended <-chan struct{}) bool {
	for begin := time.Now(); time.Since(begin) < patience; {
		if r, err := http.Get(p.url + "/-/ready"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-ended:
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	return false
}

// fetch decodes the data of a response.
func (p prom) fetch(path string, values url.Values, into any) error {
	r, err := http.Get(p.url + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer r.Body.Close()
	var response struct {
		Error string
		Data  json.RawMessage
	}
	if err := json.NewDecoder(r.Body).Decode(&response); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return errors.New(cmp.Or(response.Error, r.Status))
	}
	return json.Unmarshal(response.Data, into)
}

func (p prom) get(t *testing.T, path string, values url.Values, into any) {
	t.Helper()
	if err := p.fetch(path, values, into); err != nil {
		t.Errorf("%s %v: %v", path, values, err)
	}
}

// query returns the elements of the result now.
func (p prom) query(t *testing.T, query string) []json.RawMessage {
	t.Helper()
	var data struct{ Result []json.RawMessage }
	p.get(t, "/api/v1/query", url.Values{"query": {query}}, &data)
	return data.Result
}

// await waits until the query has a result.
func (p prom) await(t *testing.T, query string) {
	t.Helper()
	for begin := time.Now(); len(p.query(t, query)) == 0; time.Sleep(200 * time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatalf("no result of %s after %v", query, patience)
		}
	}
}
