// Command sharded publishes the ConfigMaps with a label publish=yes to a service. Each of its
// replicas is active, and publishes the ConfigMaps of its shards.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
	"github.com/controllerkit/controllerkit/shutdown"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// A publication is the body of a request. For one object and Table, the service can reject a lower Term.
type publication struct {
	Object  *corev1.ConfigMap
	Replica string
	Shard   shard.Shard
	Sent    time.Time
}

func main() {
	url := flag.String("url", "", "`URL` of the service")
	group := shard.Group{Name: "sharded", Identity: fmt.Sprint("pid-", os.Getpid())}
	flag.StringVar(&group.Namespace, "namespace", "default", "`namespace` of the ConfigMaps and of the Leases")
	flag.IntVar(&group.Ranges.N, "shards", 32, "number of shards; replicas with another number wait until those that run have ended")
	flag.DurationVar(&group.LeaseDuration, "lease-duration", 15*time.Second, "time after which the shards of a crashed replica move")
	flag.Parse()
	group.RenewDeadline, group.RetryPeriod = group.LeaseDuration*2/3, group.LeaseDuration*2/15
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	ctx, _ := shutdown.Context(context.Background()) // until the process ends
	if err := run(ctx, config, &group, *url, http.DefaultTransport); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, config *rest.Config, group *shard.Group, url string, transport http.RoundTripper) error {
	config.QPS = -1 // the API server has priority and fairness
	config.Wrap(informer.ConsistentLists)
	kube := kubernetes.NewForConfigOrDie(config)
	group.Leases = kube.CoordinationV1().Leases(group.Namespace)
	maps := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) { // of the owned shards
		source, err := filter.Objects(cache.NewFilteredListWatchFromClient(kube.CoreV1().RESTClient(), "configmaps", p.Namespace, p.Options), p.ShardSelector)
		if err != nil {
			return nil, err
		}
		return cache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, cache.Indexers{}), nil
	})
	divided, err := newSplit(maps, group.Ranges)
	if err != nil {
		return err
	}
	lister := corelisters.NewConfigMapLister(maps.GetIndexer()).ConfigMaps(group.Namespace)
	view := &filter.View{Ranges: group.Ranges, Select: func(ctx context.Context, shards string) error {
		if shards == "" {
			return maps.Select(ctx, scope.Selection{}) // nothing
		}
		return maps.Select(ctx, scope.Selection{Namespaces: []string{group.Namespace}, LabelSelector: "publish=yes", ShardSelector: shards})
	}}
	publish := func(ctx context.Context, key types.NamespacedName) (result reconcile.Result, err error) {
		s, _ := shard.From(ctx)
		m, _ := lister.Get(key.Name)              // the only error of a cache is NotFound, with nil
		if m == nil || divided.of(m) != s.Index { // a new object of the name is of another shard, which publishes it
			return result, nil
		}
		body, _ := json.Marshal(publication{m, group.Identity, s, time.Now()})
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return result, err
		}
		response, err := shard.Guard(transport).RoundTrip(request) // sends while the shard is owned
		if err != nil {
			return result, err
		}
		if err = response.Body.Close(); response.StatusCode != http.StatusOK {
			err = fmt.Errorf("publish %s: %s", m.Name, response.Status)
		}
		return result, err
	}
	// A shard has its own queue, handler and workers. The handler goes before the objects, which would look deleted.
	work := func(ctx context.Context, s shard.Shard) error {
		if err := view.Add(ctx, s.Index); err != nil {
			return err
		}
		defer func() { _ = view.Remove(ctx, s.Index) }() // if ctx is done, the View removes it later
		q := queue.New(queue.Config[types.NamespacedName]{Name: "publish"})
		c := &reconcile.Controller[types.NamespacedName]{Name: "publish", Queue: q, Reconcile: publish, Workers: 4, Timeout: 15 * time.Second}
		own := part{divided, s.Index}
		if _, err := c.Handle(own, enqueue.Handler(c.Source("configmaps"), enqueue.KeyOf[*corev1.ConfigMap])); err != nil {
			return err
		}
		defer own.removeEventHandler()
		return c.Run(ctx)
	}
	parts := shutdown.Group{}
	parts.Add("configmaps", func(ctx context.Context) error { maps.RunWithContext(ctx); return nil })
	parts.Add("view", view.Run)
	parts.Add("shards", func(ctx context.Context) error { return group.Run(ctx, work) })
	return parts.Run(ctx)
}
