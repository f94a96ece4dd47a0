package managertest_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/memcached/api/v1"
)

// TestServerEnvtest: the package envtest runs the programs that controlplane writes. As with envtest's own ones,
// no controller empties a deleted namespace or deletes the children of an object.
func TestServerEnvtest(t *testing.T) {
	t.Parallel()
	testserver.Needed(t)
	binary, err := testserver.Binary()
	must(t, err)
	folder := t.TempDir()
	out, err := exec.CommandContext(t.Context(), binary, "-assets", folder).Output()
	must(t, err)
	if got := strings.TrimSpace(string(out)); got != folder {
		t.Errorf("the output is %q, want the folder %q", got, folder)
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: folder, CRDDirectoryPaths: []string{"../examples/memcached/config"}, ErrorIfCRDPathMissing: true,
		UseExistingCluster: new(false), ControlPlaneStartTimeout: time.Minute, ControlPlaneStopTimeout: time.Minute,
	}
	config, err := env.Start()
	must(t, err)
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			if err := env.Stop(); err != nil {
				t.Errorf("Stop = %v", err)
			}
		}
	}
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	known := runtime.NewScheme() // the shared one is of the other tests, too
	must(t, errors.Join(scheme.AddToScheme(known), v1.AddToScheme(known)))
	c, err := client.New(config, client.Options{Scheme: known})
	must(t, err)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	must(t, c.Create(ctx, namespace))
	owner := &v1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}, Spec: v1.MemcachedSpec{Size: 1, Port: 1}}
	must(t, c.Create(ctx, owner))
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1.GroupVersion.WithKind("Memcached"))}}}
	must(t, c.Create(ctx, child))
	must(t, c.Delete(ctx, owner))
	must(t, c.Delete(ctx, namespace))
	must(t, c.Get(ctx, client.ObjectKeyFromObject(child), child))
	must(t, c.Get(ctx, client.ObjectKeyFromObject(namespace), namespace))
	if namespace.Status.Phase != corev1.NamespaceTerminating {
		t.Errorf("the deleted namespace is %s", namespace.Status.Phase)
	}
	stop()
	if err := c.Get(ctx, client.ObjectKeyFromObject(child), child); err == nil {
		t.Error("the server runs after Stop")
	}
}
