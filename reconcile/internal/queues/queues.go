// Package queues adds keys to a queue that may have the method AddWith.
package queues

import (
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
)

// Add adds keys, if there are any, to a queue, by adder, which is the queue or nil.
func Add[K comparable](queue workqueue.TypedRateLimitingInterface[K], adder controllerkit.OptionAdder[K], opts controllerkit.AddOptions, keys ...K) {
	if adder != nil && len(keys) > 0 {
		adder.AddWith(opts, keys...)
		return
	}
	for _, key := range keys {
		switch {
		case opts.RateLimited:
			queue.AddRateLimited(key)
		case opts.After > 0:
			queue.AddAfter(key, opts.After)
		default:
			queue.Add(key)
		}
	}
}
