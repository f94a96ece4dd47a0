package filter_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
)

var (
	seenObjects = flag.Int("objects", 120, "number of `objects` that the replicas of TestServerSees share")
	seenMoves   = flag.Int("moves", 3, "number of `moves` of shards between two replicas in TestServerSees")
)

// TestServerSees: on an API server with and one without the feature gate, replicas see
// exactly the objects of their shards.
//
// Proves SE1, SE2 and SE3.
func TestServerSees(t *testing.T) {
	t.Parallel()
	sharded := func(t testing.TB) *rest.Config {
		testserver.Since(t, "1.36", "kube-apiserver has no feature gate ShardedListAndWatch and ignores shard selectors")
		return testserver.Own(t, "--", "--feature-gates=ShardedListAndWatch=true").Config()
	}
	for _, server := range []struct {
		name    string
		config  func(testing.TB) *rest.Config
		feature bool
	}{{"feature", sharded, true}, {"none", testserver.Config, false}} {
		t.Run(server.name, func(t *testing.T) {
			config := server.config(t)
			client := seesClient(t, config)
			namespaces := make([]string, 5)
			for i := range namespaces {
				ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "sees-"}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				namespaces[i] = ns.Name
				t.Cleanup(func() {
					if err := client.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				})
			}
			each(t, *seenObjects, func(i int) error {
				_, err := client.CoreV1().ConfigMaps(namespaces[i%5]).Create(t.Context(), configMap(fmt.Sprintf("o-%d", i), namespaces[0]), metav1.CreateOptions{})
				return err
			})
			honored := serverHonors(t, client)
			if os.Getenv("USE_EXISTING_CLUSTER") != "true" && honored != server.feature || server.feature && !honored {
				t.Fatalf("the server honors selectors: %t, want %t", honored, server.feature)
			}
			label := "sees=" + namespaces[0]
			if honored {
				serverHash(t, client, label, namespaces)
			}
			serverBytes(t, config, client, label, honored)
			serverMoves(t, config, client, label, namespaces)
			serverChildren(t, config, client, namespaces[0])
		})
	}
}

// serverHonors returns whether the server honors selectors: then a list of one of two shards has
// no foreign object.
func serverHonors(t *testing.T, client kubernetes.Interface) bool {
	t.Helper()
	s := source(t, filter.Objects, cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "", func(*metav1.ListOptions) {}), selectorOf(t, two, 0))
	if _, err := s.ListWithContext(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	support := s.Support()
	if !support.Sent || support.Kept == 0 {
		t.Fatalf("Support is %+v", support)
	}
	return support.Foreign == 0
}

// serverHash: the server's lists of each shard have its objects, and each object is in one.
func serverHash(t *testing.T, client kubernetes.Interface, label string, namespaces []string) {
	t.Helper()
	observed := map[string]int{}
	for _, n := range namespaces {
		observed[n] = 1
	}
	cut, err := shard.Ranges{N: 4}.Cut(observed)
	if err != nil {
		t.Fatal(err)
	}
	list := func(text string) []corev1.ConfigMap {
		l, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{LabelSelector: label, ShardSelector: text})
		if err != nil {
			t.Fatal(err)
		}
		return l.Items
	}
	for _, r := range []shard.Ranges{{N: 1}, {N: 7}, {N: 16}, cut} {
		seen := map[types.UID]bool{}
		for s := range r.N {
			for _, o := range list(selectorOf(t, r, s)) {
				if in, err := r.Of(&o); err != nil || in != s || seen[o.UID] {
					t.Errorf("%s/%s is in shard %d, %v, and the server has it in %d", o.Namespace, o.Name, in, err, s)
				}
				seen[o.UID] = true
			}
		}
		if len(seen) != *seenObjects {
			t.Errorf("N %d: the server has %d objects in all shards, want %d", r.N, len(seen), *seenObjects)
		}
	}
	// The longest selector.
	r, want := shard.Ranges{N: 1024}, 0
	var even []int
	for s := 0; s < r.N; s += 2 {
		even = append(even, s)
	}
	for _, o := range list("") {
		if in, err := r.Of(&o); err == nil && in%2 == 0 {
			want++
		}
	}
	if got := len(list(selectorOf(t, r, even...))); got != want {
		t.Errorf("the server has %d objects in 512 shards, want %d", got, want)
	}
}

// serverBytes: a replica with a quarter of the shards reads a quarter of the bytes, and drops
// the objects that another API server sends.
func serverBytes(t *testing.T, config *rest.Config, client kubernetes.Interface, label string, honored bool) {
	t.Helper()
	ranges := shard.Ranges{N: 32}
	wake := make(chan struct{}, 1)
	all := newSeer(t, config, label, shard.Ranges{N: 1}, wake, filter.Objects)
	all.own(t, 0)
	var replicas []*seer
	for i := range 4 {
		replicas = append(replicas, newSeer(t, config, label, ranges, wake, filter.Objects))
		var shards []int
		for s := i; s < ranges.N; s += 4 {
			shards = append(shards, s)
		}
		replicas[i].own(t, shards...)
	}
	patch := func(objects []*corev1.ConfigMap, value string) {
		t.Helper()
		each(t, len(objects), func(i int) error {
			_, err := client.CoreV1().ConfigMaps(objects[i].Namespace).Patch(t.Context(), objects[i].Name, types.MergePatchType, fmt.Appendf(nil, `{"data":{"updated":%q}}`, value), metav1.PatchOptions{})
			return err
		})
	}
	patch(all.listed(), "once")
	settleAll(t, client, label, all)
	settleAll(t, client, label, replicas...)
	whole := float64(all.reads.bytes.Load())
	for i, r := range replicas {
		share := float64(len(r.listed())) / float64(*seenObjects)
		part := float64(r.reads.bytes.Load()) / whole
		support := r.source().Support()
		t.Logf("replica %d has %.3f of the objects and reads %.3f of the bytes in %d requests (%+v)", i, share, part, r.reads.requests.Load(), support)
		// The uids are random. A second request is of a watch that the server has ended.
		limit := (share + 0.05) * float64(r.reads.requests.Load())
		if *seenObjects >= 5000 {
			limit = 0.30
		}
		if honored && (part > limit || support.Foreign > 0) {
			t.Errorf("replica %d has %.3f of the objects and reads %.3f of the bytes, want at most %.3f; %d foreign ones", i, share, part, limit, support.Foreign)
		}
		if !honored && support.Foreign == 0 {
			t.Errorf("replica %d has dropped no object of a server that sends all: %+v", i, support)
		}
	}
	if !honored {
		return
	}
	// A watch connects to another API server, which sends all objects.
	replicas[0].reads.reconnect()
	patch(replicas[1].listed(), "twice")
	patch(replicas[0].listed(), "twice") // the events of the others come before
	settleAll(t, client, label, replicas...)
	if support := replicas[0].source().Support(); support.Foreign == 0 {
		t.Errorf("after the watch has reconnected, no object was dropped: %+v", support)
	}
}
