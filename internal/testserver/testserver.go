// Package testserver gives tests a real kube-apiserver: the controlplane of
// this repository, started on first use and shared by the tests of one binary.
//
// With USE_EXISTING_CLUSTER=true the shared server is the cluster of KUBECONFIG instead.
// The tests may fill and break it. KUBECONFIG alone does not select it, because many
// shells have it set to a valuable cluster.
//
// With CONTROLPLANE the server is that program, such as bin/controlplane-1.34, the API server of
// Kubernetes 1.34: see make versions.
package testserver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/localserver"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Main calls [Run] and exits. It is what TestMain calls.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run runs the tests of a binary with a strict logger, stops the server if one was started,
// fails on goroutines that are left, and returns the exit code.
func Run(m *testing.M) int {
	testlog.Install(testlog.Text(os.Stderr, 0))
	runMore()
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "testserver: %v\n", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		ignored := []goleak.Option{
			goleak.IgnoreAnyFunction("testing.(*F).Fuzz.func1"),
			// controller-runtime starts it for a cache of namespaces, which a test need not run.
			goleak.IgnoreAnyFunction("sigs.k8s.io/controller-runtime/pkg/cache.newMultiNamespaceInformer.func1"),
		}
		if shared.server != nil && !shared.server.IsOwn() {
			// client-go keeps connections, which end only with a server that stops.
			for _, f := range []string{
				"golang.org/x/net/http2.(*ClientConn).readLoop",
				"net/http.(*http2ClientConn).readLoop",
				"net/http.(*persistConn).readLoop",
				"net/http.(*persistConn).writeLoop",
			} {
				ignored = append(ignored, goleak.IgnoreAnyFunction(f))
			}
		}
		if err := Leak(ignored...); err != nil {
			fmt.Fprintf(os.Stderr, "testserver: goroutines left at the end of the tests: %v\n", err)
			code = 1
		}
	}
	return code
}

// runMore lets more parallel tests run at once than cores exist, because most of them wait for the
// server or for a clock. With -parallel, or when fuzzing, it does nothing.
func runMore() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) {
		given = given || f.Name == "test.parallel" || f.Name == "test.fuzz"
	})
	if given {
		return
	}
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err) // testing has another flag today
	}
}

// Leak returns the error of goleak.Find if goroutines are left after 10s. goleak waits for
// half a second, and on a busy machine some goroutines end later.
func Leak(options ...goleak.Option) (err error) {
	for begin := time.Now(); time.Since(begin) < 10*time.Second; {
		if err = goleak.Find(options...); err == nil {
			return nil
		}
	}
	return err
}

// Config returns an administrator's configuration for the server, without
// client-side throttling. Each call returns a copy of its own.
func Config(t testing.TB) *rest.Config {
	t.Helper()
	Needed(t)
	shared.once.Do(func() { shared.server, shared.err = existingOrOwn() })
	if shared.err != nil {
		t.Fatalf("testserver: %v", shared.err)
	}
	return shared.server.Config()
}

// Needed skips a test that needs a server if the tests run with -short.
func Needed(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it needs an API server, which -short leaves out")
	}
}

// Since skips a test that needs a version of Kubernetes, such as "1.36", if the shared server is
// older. Its line in the summary of the run says what an older server lacks.
func Since(t testing.TB, needed, lacks string) {
	t.Helper()
	info, err := discovery.NewDiscoveryClientForConfigOrDie(Config(t)).ServerVersion()
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	has, err := version.ParseGeneric(info.Major + "." + strings.TrimSuffix(info.Minor, "+"))
	if err != nil {
		t.Fatalf("testserver: the server's version: %v", err)
	}
	if has.LessThan(version.MustParseGeneric(needed)) {
		t.Skipf("it needs Kubernetes %s, and the server is %s: %s", needed, has, lacks)
	}
}

// SkipExamples is Needed for the examples of a package, which have no testing.TB. TestMain calls it.
func SkipExamples() {
	flag.Parse()
	if skip := flag.Lookup("test.skip"); testing.Short() && skip.Value.String() == "" {
		if err := skip.Value.Set("^Example"); err != nil {
			panic(err) // testing has another flag today
		}
	}
}

// Own starts a server for one test, which ends when the test does. args are those of the command
// controlplane.
func Own(t testing.TB, args ...string) *Server {
	t.Helper()
	Needed(t)
	server, err := Start(args...)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("testserver: %v", err)
		}
	})
	return server
}

// Counted returns a configuration like Config's, and the number of requests that
// clients made with it have sent: counted at the transport, below every client.
func Counted(t testing.TB) (*rest.Config, *atomic.Int64) {
	t.Helper()
	n := new(atomic.Int64)
	config := Config(t)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return counter{RoundTripper: rt, n: n} })
	return config, n
}

type counter struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

// Namespace creates a namespace that is deleted when the test ends. Its
// contents go with it some time later.
func Namespace(t testing.TB) string {
	t.Helper()
	cfg := Config(t)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("testserver: create a namespace: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own has ended
		defer cancel()
		if err := client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("testserver: delete namespace %s: %v", ns.Name, err)
		}
	})
	return ns.Name
}

// InstallCRD creates a CustomResourceDefinition and returns once it is served and
// discovery lists it. It is deleted when the test ends.
func InstallCRD(t testing.TB, definition map[string]any) {
	t.Helper()
	InstallCRDAt(t, Config(t), definition)
}

// InstallCRDAt is InstallCRD for the server of the configuration.
func InstallCRDAt(t testing.TB, config *rest.Config, definition map[string]any) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	created, err := definitions.Create(t.Context(), &unstructured.Unstructured{Object: definition}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("testserver: create a CustomResourceDefinition: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own has ended
		defer cancel()
		if err := definitions.Delete(ctx, created.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Errorf("testserver: delete %s: %v", created.GetName(), err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w, err := definitions.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, created.GetName()).String(),
		ResourceVersion: created.GetResourceVersion(),
	})
	if err != nil {
		t.Fatalf("testserver: watch %s: %v", created.GetName(), err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		obj, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			break
		}
		conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				awaitDiscovery(ctx, t, config, created)
				return
			}
		}
	}
	t.Fatalf("testserver: %s was not established: %v", created.GetName(), ctx.Err())
}

// awaitDiscovery polls until discovery lists the served versions of an established
// definition, because no event marks that moment.
func awaitDiscovery(ctx context.Context, t testing.TB, config *rest.Config, definition *unstructured.Unstructured) {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	unlisted := map[string]bool{}
	for _, v := range versions {
		if v, ok := v.(map[string]any); ok && v["served"] == true {
			unlisted[fmt.Sprintf("%s/%s", group, v["name"])] = true
		}
	}
	for {
		// The document of all groups, which mappers read, is the last one to change. The error
		// can be about other groups.
		_, lists, err := client.ServerGroupsAndResources()
		for _, list := range lists {
			for _, resource := range list.APIResources {
				if resource.Name == plural {
					delete(unlisted, list.GroupVersion)
				}
			}
		}
		if len(unlisted) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("testserver: discovery does not list %s: %v", definition.GetName(), errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A Server is one running controlplane, or a cluster that was there before.
type Server = localserver.Server

func existingOrOwn() (*Server, error) {
	if s, err := localserver.Existing(); s != nil || err != nil {
		return s, err
	}
	return Start()
}

// Start starts a new server in any environment, and returns once it is ready.
func Start(args ...string) (*Server, error) {
	bin, err := Binary()
	if err != nil {
		return nil, err
	}
	return localserver.Start(context.Background(), bin, args...)
}

// Binary returns the path of the controlplane: that of CONTROLPLANE, or the one that make
// builds. If that is missing, as in a plain go test, it is built first.
func Binary() (string, error) {
	if os.Getenv(localserver.Variable) != "" {
		return localserver.Find(context.Background())
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, "bin", "controlplane")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		return "", err
	}
	fmt.Fprintln(os.Stderr, "testserver: building controlplane, which takes minutes the first time; \"make bin/controlplane\" does it beforehand")
	// Several test binaries may build at once; each renames a whole file.
	tmp := fmt.Sprintf("%s.%d", bin, os.Getpid())
	defer os.Remove(tmp)
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", tmp, ".")
	build.Dir = filepath.Join(root, "controlplane")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build controlplane: %w\n%s", err, out)
	}
	return bin, os.Rename(tmp, bin)
}

// Root returns the folder of this repository's root module, found upwards from
// the working directory, which go test sets to the package's.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module github.com/controllerkit/controllerkit\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the working directory is not inside the repository")
		}
		dir = parent
	}
}
