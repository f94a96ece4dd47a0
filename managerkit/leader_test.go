package managerkit_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
)

// TestElectBadInput: each option that contradicts the Elector is one error that names it.
func TestElectBadInput(t *testing.T) {
	elector := func() *leader.Elector {
		return &leader.Elector{Namespace: "shop", Name: "shop-controller"}
	}
	for _, test := range []struct {
		name    string
		options *manager.Options
		elector *leader.Elector
		want    string
	}{
		{"nil options", nil, elector(), "options is nil"},
		{"nil elector", &manager.Options{}, nil, "the Elector is nil"},
		{"own lock", &manager.Options{LeaderElectionResourceLockInterface: &resourcelock.LeaseLock{}}, elector(), "LeaderElectionResourceLockInterface is set already"},
		{"other name", &manager.Options{LeaderElectionID: "other"}, elector(), `LeaderElectionID is "other": use the Elector's Name, "shop-controller"`},
		{"other namespace", &manager.Options{LeaderElectionNamespace: "other"}, elector(), `LeaderElectionNamespace is "other": use the Elector's Namespace, "shop"`},
		{"other kind", &manager.Options{LeaderElectionResourceLock: "configmapsleases"}, elector(), `LeaderElectionResourceLock is "configmapsleases"`},
		{"configuration", &manager.Options{LeaderElectionConfig: &rest.Config{}}, elector(), "LeaderElectionConfig is set"},
		{"labels", &manager.Options{LeaderElectionLabels: map[string]string{"a": "b"}}, elector(), "LeaderElectionLabels is set"},
		{"duration", &manager.Options{RetryPeriod: ptr.To(time.Second)}, elector(), "RetryPeriod of the options is set"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := managerkit.Elect(test.options, test.elector)
			if err == nil || !strings.HasPrefix(err.Error(), "managerkit: ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Elect() = %v, want an error with %q", err, test.want)
			}
			if test.options != nil && (test.options.LeaderElection || test.options.NewCache != nil) {
				t.Error("Elect has changed the options")
			}
		})
	}
}

// TestElectTypedNilLock: a typed nil is no lock.
func TestElectTypedNilLock(t *testing.T) {
	options := manager.Options{
		LeaderElectionResourceLockInterface: (*resourcelock.LeaseLock)(nil),
		LeaderElectionID:                    "shop-controller", LeaderElectionNamespace: "shop", LeaderElectionResourceLock: "leases",
	}
	if err := managerkit.Elect(&options, &leader.Elector{Namespace: "shop", Name: "shop-controller"}); err != nil {
		t.Errorf("Elect() = %v, want nil", err)
	}
	if !options.LeaderElection {
		t.Error("LeaderElection is off after Elect")
	}
}

// TestElectBuildsOneManager: the options of Elect have the state of one manager.
func TestElectBuildsOneManager(t *testing.T) {
	var options manager.Options
	if err := managerkit.Elect(&options, &leader.Elector{Namespace: "shop", Name: "shop-controller"}); err != nil {
		t.Fatal(err)
	}
	if err := managerkit.Elect(&options, &leader.Elector{Namespace: "shop", Name: "shop-controller"}); err == nil {
		t.Error("a second Elect returned no error")
	}
	if _, err := options.NewCache(&rest.Config{}, cache.Options{}); err != nil {
		t.Errorf("the first NewCache: %v", err)
	}
	if _, err := options.NewCache(&rest.Config{}, cache.Options{}); err == nil || !strings.Contains(err.Error(), "call Elect with new options") {
		t.Errorf("the second NewCache: %v, want an error", err)
	}
}

// TestRunBadInput: what Run can refuse before it campaigns.
func TestRunBadInput(t *testing.T) {
	build := func(manager.Options) (manager.Manager, error) { return nil, nil }
	for _, test := range []struct {
		name       string
		elector    *leader.Elector
		newManager func(manager.Options) (manager.Manager, error)
		want       string
	}{
		{"nil elector", nil, build, "managerkit: the Elector is nil"},
		{"nil function", &leader.Elector{}, nil, "managerkit: newManager is nil"},
		{"empty elector", &leader.Elector{}, build, "leader: Leases is nil"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := managerkit.Run(context.Background(), test.elector, test.newManager)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("Run() = %v, want an error that begins with %q", err, test.want)
			}
		})
	}
}

// TestShareBadInput: a typed nil is no cluster.
func TestShareBadInput(t *testing.T) {
	type fake struct{ cluster.Cluster }
	if err := managerkit.Share(nil, &fake{}); err == nil || !strings.Contains(err.Error(), "options is nil") {
		t.Errorf("Share(nil) = %v, want an error that names the options", err)
	}
	for _, c := range []cluster.Cluster{nil, (*fake)(nil)} {
		if err := managerkit.Share(&manager.Options{}, c); err == nil || !strings.Contains(err.Error(), "the cluster is nil") {
			t.Errorf("Share(%T) = %v, want an error that names the cluster", c, err)
		}
	}
}

// elsewhere is a cluster of another API server.
type elsewhere struct{ cluster.Cluster }

func (elsewhere) GetScheme() *runtime.Scheme     { return runtime.NewScheme() }
func (elsewhere) GetRESTMapper() meta.RESTMapper { return nil }
func (elsewhere) GetConfig() *rest.Config        { return &rest.Config{Host: "far.invalid"} }

// TestShareWrites: Writes would wait for informers that it never sees.
func TestShareWrites(t *testing.T) {
	var options manager.Options
	if err := managerkit.Share(&options, elsewhere{}); err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{Host: "far.invalid"}
	writes := managerkit.NewWrites(consistency.Config{})
	if err := writes.Install(config, &options); err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfig(config); err != nil { // as the manager does
		t.Fatal(err)
	}
	_, err := options.NewCache(config, cache.Options{Scheme: scheme.Scheme, Mapper: mapper()})
	if err == nil || !strings.HasPrefix(err.Error(), "managerkit: Share: the manager's options have a Cache.NewInformer, such as that of Writes.Install") {
		t.Errorf("NewCache() = %v, want an error that names Writes", err)
	}
}

// TestShareAfterElect: the errors of the election reach Start by Elect's NewCache.
func TestShareAfterElect(t *testing.T) {
	options := manager.Options{Scheme: scheme.Scheme}
	if err := managerkit.Elect(&options, &leader.Elector{Namespace: "shop", Name: "shop-controller"}); err != nil {
		t.Fatal(err)
	}
	if err := managerkit.Share(&options, elsewhere{}); err == nil || !strings.Contains(err.Error(), "Share was called after Elect") {
		t.Errorf("Share() = %v, want an error that says to call it first", err)
	}
}

// TestShareOtherCluster: a manager cannot use the cache of another API server than its own.
func TestShareOtherCluster(t *testing.T) {
	var options manager.Options
	if err := managerkit.Share(&options, elsewhere{}); err != nil {
		t.Fatal(err)
	}
	_, err := manager.New(&rest.Config{Host: "near.invalid"}, options)
	want := `managerkit: Share: the manager's Host is "near.invalid" and the cluster's is "far.invalid": use one rest.Config for both`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("New() = %v, want %s", err, want)
	}
}

// TestElectStarved: client-go's elector gives up a Lease that is held if the process gets no processor for
// RenewDeadline between two steps of a poll. On a busy machine that took 150ms.
func TestElectStarved(t *testing.T) {
	var options manager.Options
	if err := managerkit.Elect(&options, &leader.Elector{Namespace: "shop", Name: "shop-controller"}); err != nil {
		t.Fatal(err)
	}
	if *options.RenewDeadline < 2*time.Second || *options.LeaseDuration <= *options.RenewDeadline {
		t.Errorf("RenewDeadline is %v and LeaseDuration %v, want 2s at least, and more", *options.RenewDeadline, *options.LeaseDuration)
	}
}
