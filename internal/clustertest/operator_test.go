package clustertest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/crd"
	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

var churn = flag.Duration("churn", 6*time.Second, "how long the operator runs under faults")

// A registrar is the DNS service of the websites. Like a request over a network, a call whose
// context is done has no effect.
type registrar struct {
	changed func()

	mu      sync.Mutex
	records map[string]string
}

func (r *registrar) Put(ctx context.Context, owner, host string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	defer r.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records[owner] = host
	return nil
}

func (r *registrar) Delete(ctx context.Context, owner string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	defer r.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.records, owner)
	return nil
}

func (r *registrar) all() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.records)
}

// operatorUnderFaults runs two replicas of an operator, one with a kube-apiserver of its own
// and one with the load balancer, while processes of the cluster are paused, killed and cut off, and users create, edit and
// delete websites. When the faults have ended, each website has its child, its DNS record and
// the status of its generation, and nothing is left in the DNS of those that are gone.
func operatorUnderFaults(t *testing.T, cluster *testserver.Cluster) {
	text, err := os.ReadFile("../../examples/website/config/crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition map[string]any
	if err := yaml.Unmarshal(text, &definition); err != nil {
		t.Fatal(err)
	}
	steady := cluster.ServerConfig(t, 0)
	testserver.InstallCRDAt(t, steady, definition)
	first := *seed
	if first == 0 {
		first = rand.Uint64() >> 16
	}
	t.Logf("-seed %d -churn %v", first, *churn)

	changes := make(chan struct{}, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
	records := &registrar{changed: changed, records: map[string]string{}}
	ctx, stop := context.WithCancel(t.Context())
	var replicas sync.WaitGroup
	for n, config := range []*rest.Config{cluster.ServerConfig(t, 1), cluster.Config()} {
		replicas.Go(func() {
			for ctx.Err() == nil { // an operator that loses its Lease ends, and its Pod starts again
				op, err := controller.New(config, operator.Options{Name: "website", LeaseNamespace: "default", Namespace: "default", StartTimeout: time.Minute}, records)
				if err != nil {
					t.Error(err)
					return
				}
				if err := op.Run(ctx); err != nil {
					t.Logf("replica %d: %v", n, err)
				}
			}
		})
	}
	defer replicas.Wait()
	defer stop()

	sites, err := crd.New[*v1.Website](steady, v1.GroupVersion.WithKind("Website"), "websites")
	if err != nil {
		t.Fatal(err)
	}
	users, end := context.WithTimeout(t.Context(), *churn)
	defer end()
	var acting sync.WaitGroup
	for n := range 8 {
		acting.Go(func() { use(users, t, sites.Namespace("default"), n, rand.New(rand.NewPCG(first, uint64(n)))) })
	}
	t.Logf("faults: %v", disturb(users, t, cluster, rand.New(rand.NewPCG(first, 100)), min(max(*churn/4, 4*time.Second), 20*time.Second)))
	acting.Wait()

	factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(steady), 0, informers.WithNamespace("default"))
	children := factory.Core().V1().ConfigMaps()
	objects := sites.Namespace("default").Informer(0, nil)
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() }}
	for _, i := range []cache.SharedIndexInformer{children.Informer(), objects.Informer()} {
		if _, err := i.AddEventHandler(handler); err != nil {
			t.Fatal(err)
		}
	}
	watching, unwatch := context.WithCancel(t.Context())
	var informing sync.WaitGroup
	informing.Go(func() { objects.Informer().RunWithContext(watching) })
	factory.StartWithContext(watching)
	defer func() {
		unwatch()
		factory.Shutdown()
		informing.Wait()
	}()
	if !cache.WaitFor(t.Context(), "", objects.Informer().HasSyncedChecker(), children.Informer().HasSyncedChecker()) {
		t.Fatal("the informers did not sync")
	}
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	for {
		err := settled(objects.Informer().GetStore(), children.Informer().GetStore(), records.all())
		if err == nil {
			break
		}
		select {
		case <-changes:
		case <-limit.C:
			t.Fatalf("2 minutes after the last fault: %v", err)
		}
	}
	if len(objects.Informer().GetStore().ListKeys()) == 0 {
		t.Error("no website is left: this test proves little")
	}
}

// use creates, edits and deletes one website until ctx is done. It deletes all but the first.
func use(ctx context.Context, t *testing.T, sites *crd.Client[*v1.Website], n int, rng *rand.Rand) {
	name := fmt.Sprintf("site-%d", n)
	for version := 0; ctx.Err() == nil; version++ {
		// With the finalizer, as by the policy of docs/finalizers.md: a DELETE in progress ignores
		// one that is added after its read, and a paused etcd makes that time seconds long.
		w := &v1.Website{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{controller.Finalizer}}, Spec: v1.WebsiteSpec{Image: "site:1", Host: fmt.Sprintf("h%d.example.com", version)}}
		request, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		var err error
		switch _, getErr := sites.Get(request, name, metav1.GetOptions{}); {
		case apierrors.IsNotFound(getErr):
			_, err = sites.Create(request, w, metav1.CreateOptions{})
		case getErr != nil:
			err = getErr
		case n > 0 && rng.IntN(4) == 0:
			err = sites.Delete(request, name, metav1.DeleteOptions{})
		default:
			_, err = sites.Patch(request, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"host":"h%d.example.com"}}`, version), metav1.PatchOptions{})
		}
		cancel()
		if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			t.Logf("a user of %s: %v", name, err) // the etcds have no leader at the moment
		}
		timer := time.NewTimer(time.Duration(rng.Int64N(int64(time.Second))))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// settled returns nil if each website has what it wants, and there is no other DNS record.
func settled(sites, children cache.Store, records map[string]string) error {
	for _, obj := range sites.List() {
		w := obj.(*v1.Website)
		if w.DeletionTimestamp != nil {
			return fmt.Errorf("%s is being deleted", w.Name)
		}
		child, exists, err := children.GetByKey(w.Namespace + "/" + w.Name)
		if err != nil {
			return err
		}
		if !exists || !metav1.IsControlledBy(child.(*corev1.ConfigMap), w) || child.(*corev1.ConfigMap).Data["HOST"] != w.Spec.Host {
			return fmt.Errorf("%s with the host %s has the child %v", w.Name, w.Spec.Host, child)
		}
		if host := records[string(w.UID)]; host != w.Spec.Host {
			return fmt.Errorf("the DNS record of %s is %q, want %q", w.Name, host, w.Spec.Host)
		}
		if ready := meta.FindStatusCondition(w.Status.Conditions, "Ready"); ready == nil || ready.ObservedGeneration != w.Generation || w.Status.ObservedGeneration != w.Generation {
			return fmt.Errorf("the status of %s, generation %d, is %+v", w.Name, w.Generation, w.Status)
		}
		delete(records, string(w.UID))
	}
	if len(records) > 0 {
		return errors.New(fmt.Sprint("DNS records of websites that are gone: ", records))
	}
	return nil
}
