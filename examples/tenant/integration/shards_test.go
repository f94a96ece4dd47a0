package integration_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/config"
	"github.com/controllerkit/controllerkit/examples/tenant/internal/observer"
	"github.com/controllerkit/controllerkit/internal/lab"
)

// TestShards runs replicas with -shards 8 in place of -selector. Each writes for some tenants,
// and all tenants are reconciled. One is killed, another joins and is stopped: between two of
// these events the writer of a tenant changes at most once, so no two of them write by turns.
func TestShards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := lab.Install(t.Context(), w.admin, config.Files, "shards.yaml"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	writers := map[string][]string{} // by tenant: the replicas that wrote for it, one after another
	of := regexp.MustCompile(`/(?:tenants|namespaces)/(t[0-9]+)`)
	start := func(name string) *replica {
		t.Helper()
		r := w.observed(func(op lab.Op) bool {
			if m := of.FindStringSubmatch(op.Path); m != nil && op.Write {
				mu.Lock()
				if all := writers[m[1]]; len(all) == 0 || all[len(all)-1] != name {
					writers[m[1]] = append(all, name)
				}
				mu.Unlock()
			}
			return w.After(op)
		}, "-shards", "8", "-leader-election-namespace", observer.SystemNamespace)
		w.start(r)
		return r
	}
	// written waits until the tenants have a state, and the replicas wrote for some of them,
	// and no others did for the last time.
	written := func(what string, tenants []*v1alpha1.Tenant, want state, replicas ...string) {
		t.Helper()
		for _, tenant := range tenants {
			w.awaitState(tenant, want)
		}
		mu.Lock()
		defer mu.Unlock()
		last := map[string]int{}
		for _, tenant := range tenants {
			all := writers[tenant.Name]
			if len(all) > 2 {
				t.Errorf("%s: tenant %s was written by %v", what, tenant.Name, all)
			}
			last[all[len(all)-1]]++
			writers[tenant.Name] = all[len(all)-1:]
		}
		t.Logf("%s: %v", what, last)
		for name := range last {
			if !slices.Contains(replicas, name) {
				t.Errorf("%s: %s wrote, want %v", what, name, replicas)
			}
		}
		if len(last) < len(replicas) {
			t.Errorf("%s: only %v wrote, want %v", what, last, replicas)
		}
	}
	// shared waits until the replicas have all shards, each as many as the others.
	shared := func(replicas int) {
		t.Helper()
		w.await(func() error {
			lease, err := w.Leases.Get("tenant-shards")
			if err != nil {
				return err
			}
			var table struct{ Owners []int } // by shard: the number of the replica, -1 if it has none
			if err := json.Unmarshal([]byte(lease.Annotations["controllerkit.github.io/shard-table"]), &table); err != nil {
				return err
			}
			owned := map[int]int{}
			for _, owner := range table.Owners {
				owned[owner]++
			}
			for owner := range replicas {
				if owned[owner] != 8/replicas {
					return fmt.Errorf("the table has %s with the owners %v, want %d replicas with as many shards each", *lease.Spec.HolderIdentity, table.Owners, replicas)
				}
			}
			return nil
		})
	}
	pods := 10
	var tenants []*v1alpha1.Tenant
	// change changes all tenants.
	change := func() state {
		t.Helper()
		pods++
		for i, tenant := range tenants {
			var err error
			tenants[i], err = w.Tenants.TenancyV1alpha1().Tenants().Patch(t.Context(), tenant.Name, types.MergePatchType,
				fmt.Appendf(nil, `{"spec":{"quota":{"pods":"%d"}}}`, pods), metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		s := created()
		s.Quota["pods"] = fmt.Sprint(pods)
		return s
	}

	a, _ := start("a"), start("b")
	shared(2)
	for i := range 14 {
		tenants = append(tenants, w.create(tenant(fmt.Sprint("t", i))))
	}
	written("two replicas", tenants, created(), "a", "b")
	a.Kill()
	shared(1)
	written("one is killed", tenants, change(), "b")
	c := start("c")
	shared(2)
	written("one joins", tenants, change(), "b", "c")
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	shared(1)
	written("one is stopped", tenants, change(), "b")
}
