package page

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
)

// podsOf returns an informer of the Pods whose controllers are in the shards, which do not change.
func podsOf(pods cache.ListerWatcher, ranges shard.Ranges, shards []int) (cache.SharedIndexInformer, error) {
	selector, err := ranges.Selector(shards)
	if err != nil {
		return nil, err
	}
	source, err := filter.Children(pods, selector)
	if err != nil {
		return nil, err
	}
	return cache.NewSharedIndexInformer(source, &corev1.Pod{}, 0, cache.Indexers{}), nil
}
// cut prints the Ranges that each replica gets as its configuration: N, ByNamespace and Starts.
func cut(objects map[string]int) error {
	ranges, err := shard.Ranges{N: 32}.Cut(objects)
	if err != nil {
		return err
	}
	_, err = fmt.Printf("%#v\n", ranges)
	return err
}
