package integration_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/crd"
	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

const (
	// limit bounds each wait. It is generous, because it only determines how long a
	// failing test runs.
	limit = 3 * time.Minute

	name            = "website-operator" // of the objects in config, and of the Lease
	systemNamespace = "website-system"
	namespace       = "default" // of the websites
)

var program struct {
	dir  string
	once sync.Once
	err  error
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "website-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program.dir = dir
	code := testserver.Run(m)
	os.RemoveAll(dir)
	os.Exit(code)
}

// websiteProgram builds the program.
func websiteProgram(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(program.dir, "website")
	program.once.Do(func() {
		program.err = testprocess.Build(context.Background(), bin, "..")
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return bin
}

// world is an API server with the example installed, the DNS service, and the proxies
// that record the requests of the operator's processes.
type world struct {
	lab.Signal // of each change in the cluster
	*lab.Wire
	t      *testing.T
	admin  *rest.Config
	kube   kubernetes.Interface
	sites  *crd.Client[*v1.Website]
	dns    *dns.Server
	dnsURL string
}

// newWorld starts a world with its own API server, so that tests can run in parallel. The API server gets the args.
func newWorld(t *testing.T, args ...string) *world {
	t.Helper()
	server := testserver.Own(t, args...)
	w := &world{Wire: lab.NewWire(t), t: t, admin: server.Config(), dns: new(dns.Server)}
	if err := lab.Install(t.Context(), w.admin, os.DirFS("../config"), "crd.yaml", "rbac.yaml"); err != nil {
		t.Fatal(err)
	}
	w.kube = kubernetes.NewForConfigOrDie(w.admin)
	sites, err := crd.New[*v1.Website](w.admin, v1.GroupVersion.WithKind("Website"), "websites")
	if err != nil {
		t.Fatal(err)
	}
	w.sites = sites.Namespace(namespace)

	// Conditions read the API server, and these informers say when to read again.
	factory := informers.NewSharedInformerFactory(w.kube, 0)
	source := w.sites.Informer(0, nil)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context())) // which ends before Cleanup
	for _, informer := range []cache.SharedIndexInformer{
		source.Informer(), factory.Apps().V1().Deployments().Informer(), factory.Core().V1().Services().Informer(),
		factory.Core().V1().ConfigMaps().Informer(), factory.Events().V1().Events().Informer(), factory.Coordination().V1().Leases().Informer(),
	} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { w.Notify() }, UpdateFunc: func(any, any) { w.Notify() }, DeleteFunc: func(any) { w.Notify() },
		}); err != nil {
			t.Fatal(err)
		}
	}
	var running sync.WaitGroup
	running.Go(func() { source.Informer().RunWithContext(ctx) })
	factory.StartWithContext(ctx)
	t.Cleanup(func() {
		stop()
		running.Wait()
		factory.Shutdown()
	})

	web := httptest.NewServer(w.dns)
	w.dnsURL = web.URL
	t.Cleanup(func() {
		web.CloseClientConnections() // a slow request would block Close
		web.Close()
	})
	return w
}

// replica is a process of the operator that uses its own proxy.
type replica struct {
	*lab.Process
	kubeconfig string
	args       []string
}

// replica prepares a replica; start starts it.
func (w *world) replica(args ...string) *replica {
	w.t.Helper()
	proxy, err := lab.Proxy(w.admin, w.Before, w.After)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(proxy.Close)
	kubeconfig, err := lab.LimitedKubeconfig(w.t.Context(), w.admin, systemNamespace, name, w.t.TempDir(), proxy)
	if err != nil {
		w.t.Fatal(err)
	}
	return &replica{kubeconfig: kubeconfig, args: append([]string{"-kubeconfig", kubeconfig, "-dns", w.dnsURL, "-listen", "127.0.0.1:0", "-lease-namespace", systemNamespace}, args...)}
}

func (w *world) start(r *replica) {
	w.t.Helper()
	var err error
	if r.Process, err = lab.StartProcess(websiteProgram(w.t), r.args...); err != nil {
		w.t.Fatal(err)
	}
	p := r.Process
	w.t.Cleanup(func() {
		w.AllowRefusals()
		if w.t.Failed() {
			w.t.Logf("the operator's last lines:\n%s", p.Tail(25))
		}
		p.Kill()
		if strings.Contains(p.Output(), "DATA RACE") {
			w.t.Errorf("the race detector found a race:\n%s", p.Output())
		}
	})
}

// run starts a replica and returns once it leads.
func (w *world) run() *replica {
	w.t.Helper()
	r := w.replica()
	w.start(r)
	w.leader("")
	return r
}

// runHere runs an operator in the process of the test, until the test ends.
func (w *world) runHere(op *operator.Operator) {
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

func (w *world) await(cond func() error) {
	w.t.Helper()
	if err := w.Await(w.t.Context(), limit, cond); err != nil {
		w.t.Fatal(err)
	}
}

// holder returns the holder of the Lease, "" if it has none.
func (w *world) holder() string {
	lease, err := w.kube.CoordinationV1().Leases(systemNamespace).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// leader waits until the Lease has a holder other than not, and returns it.
func (w *world) leader(not string) (holder string) {
	w.t.Helper()
	w.await(func() error {
		if holder = w.holder(); holder == "" || holder == not {
			return fmt.Errorf("the Lease is held by %q, want another holder", holder)
		}
		return nil
	})
	return holder
}

func (w *world) create(site string) *v1.Website {
	w.t.Helper()
	made, err := w.sites.Create(w.t.Context(), &v1.Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: site},
		Spec:       v1.WebsiteSpec{Image: "example.com/site:1", Host: site + ".example.com", Replicas: 2},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

// awaitReady does what the Deployment's controller does, and waits until the website is
// Ready and everything matches its spec.
func (w *world) awaitReady(site string) {
	w.t.Helper()
	deployments := w.kube.AppsV1().Deployments(namespace)
	w.await(func() error {
		d, err := deployments.Get(w.t.Context(), site, metav1.GetOptions{})
		if err == nil && (d.Status.ReadyReplicas != *d.Spec.Replicas || d.Status.ObservedGeneration != d.Generation) {
			n := *d.Spec.Replicas
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n,
				Conditions: []appsv1.DeploymentCondition{
					{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable"},
					{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
				},
			}
			_, err = deployments.UpdateStatus(w.t.Context(), d, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
		return w.matches(site)
	})
}

// matches returns nil if the website is Ready and everything matches its spec.
func (w *world) matches(site string) error {
	ctx := w.t.Context()
	got, err := w.sites.Get(ctx, site, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ready := meta.FindStatusCondition(got.Status.Conditions, "Ready")
	if ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != got.Generation || got.Status.ObservedGeneration != got.Generation {
		return fmt.Errorf("condition Ready of generation %d is %+v", got.Generation, ready)
	}
	if host := w.dns.Records()[string(got.UID)]; host != got.Spec.Host {
		return fmt.Errorf("the DNS record is %q, want %q", host, got.Spec.Host)
	}
	d, err := w.kube.AppsV1().Deployments(namespace).Get(ctx, site, metav1.GetOptions{})
	s, serviceErr := w.kube.CoreV1().Services(namespace).Get(ctx, site, metav1.GetOptions{})
	c, configMapErr := w.kube.CoreV1().ConfigMaps(namespace).Get(ctx, site, metav1.GetOptions{})
	if err := errors.Join(err, serviceErr, configMapErr); err != nil {
		return err
	}
	switch {
	case !metav1.IsControlledBy(d, got) || !metav1.IsControlledBy(s, got) || !metav1.IsControlledBy(c, got):
		return errors.New("a child does not belong to the website")
	case *d.Spec.Replicas != got.Spec.Replicas || d.Spec.Template.Spec.Containers[0].Image != got.Spec.Image || got.Status.ReadyReplicas != got.Spec.Replicas:
		return fmt.Errorf("deployment = %+v, want that of %+v", d.Spec, got.Spec)
	case c.Data["HOST"] != got.Spec.Host || s.Spec.Ports[0].Port != 80:
		return fmt.Errorf("config map = %v, service = %v", c.Data, s.Spec)
	}
	return nil
}

// delete deletes a website and waits until it is gone with its DNS record. One that is being deleted can be gone.
func (w *world) delete(site string) {
	w.t.Helper()
	if err := w.sites.Delete(w.t.Context(), site, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	w.await(func() error {
		got, err := w.sites.Get(w.t.Context(), site, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("website %s still exists: %v, %w", site, got, errors.Join(err))
		}
		return nil
	})
	if left := w.dns.Records(); len(left) > 0 {
		w.t.Errorf("DNS records after the deletion: %v, want none", left)
	}
}

// childrenGone waits until the garbage collector has removed the children of all websites.
func (w *world) childrenGone() {
	w.t.Helper()
	w.await(func() error {
		only := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=website"}
		deployments, err := w.kube.AppsV1().Deployments(namespace).List(w.t.Context(), only)
		services, serviceErr := w.kube.CoreV1().Services(namespace).List(w.t.Context(), only)
		configMaps, configMapErr := w.kube.CoreV1().ConfigMaps(namespace).List(w.t.Context(), only)
		if err := errors.Join(err, serviceErr, configMapErr); err != nil {
			return err
		}
		if n := len(deployments.Items) + len(services.Items) + len(configMaps.Items); n > 0 {
			return fmt.Errorf("%d children are left", n)
		}
		return nil
	})
}

// events returns the reasons of the Events about websites.
func (w *world) events() map[string]bool {
	w.t.Helper()
	list, err := w.kube.EventsV1().Events(namespace).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	reasons := map[string]bool{}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Website" && e.Type == corev1.EventTypeNormal {
			reasons[e.Reason] = true
		}
	}
	return reasons
}
