package queue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/queue/internal/index"
)

// Exponential returns a limiter that doubles the delay of a key with each failure
// since Forget, from base up to limit. The actual delay is a random time in the upper
// half of it, so that keys that fail together do not come back together. The limiter
// stores only the keys that have failed since Forget. Most controllers need no other
// limiter.
//
// If base is not positive, it is 5ms. If limit is not positive, it is 5m. If base
// is above limit, it is limit.
func Exponential[K comparable](base, limit time.Duration) workqueue.TypedRateLimiter[K] {
	if base <= 0 {
		base = defaultBase
	}
	if limit <= 0 {
		limit = defaultLimit
	}
	return &exponential[K]{base: base, limit: limit}
}

type exponential[K comparable] struct {
	counter[K]
	base, limit time.Duration
}

func (r *exponential[K]) When(key K) time.Duration {
	// Unsigned: if the count overflows, the delay is the limit.
	n := uint(r.fail(key) - 1)
	delay := r.limit
	// A right shift of the limit cannot overflow, unlike a left shift of the base.
	if n < 63 && r.base <= r.limit>>n {
		delay = r.base << n
	}
	return jitter(delay)
}

// jitter returns a uniformly random time in [d/2, d].
func jitter(d time.Duration) time.Duration {
	return d - rand.N(d/2+1)
}

// TokenBucket returns a limiter for all keys together. It lets burst keys pass at once,
// and then perSecond keys a second. A key waits for its token, and then for a random part
// of the time until the next token. Keys that wait for a token keep their order. Use
// TokenBucket with [MaxOf] and [Exponential].
//
// No delay is above longest. If a key would have to wait longer for its token, it takes
// no token and waits for a random time in [longest/2, longest]. An overload therefore
// exceeds the rate, but does not delay later keys.
//
// If perSecond is not positive or NaN, no key passes after the burst. If it is +Inf, all
// keys pass. If burst is below 1, it is 1. If longest is not positive, it is 1m.
func TokenBucket[K comparable](perSecond float64, burst int, longest time.Duration) workqueue.TypedRateLimiter[K] {
	if longest <= 0 {
		longest = time.Minute
	}
	if math.IsNaN(perSecond) {
		perSecond = 0
	}
	return &tokenBucket[K]{
		tokens:  rate.NewLimiter(rate.Limit(max(perSecond, 0)), max(burst, 1)),
		longest: longest,
	}
}

type tokenBucket[K comparable] struct {
	mu      sync.Mutex // makes ReserveN and CancelAt one step
	tokens  *rate.Limiter
	longest time.Duration
}

func (r *tokenBucket[K]) When(K) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	token := r.tokens.ReserveN(now, 1)
	if !token.OK() {
		return jitter(r.longest)
	}
	delay := token.DelayFrom(now)
	switch {
	case delay > r.longest:
		token.CancelAt(now)
		return jitter(r.longest)
	case delay > 0:
		// Less than the time until the next token, which may not fit into a Duration.
		spread := min(float64(time.Second)/float64(r.tokens.Limit()), float64(r.longest-delay))
		delay += time.Duration(spread * rand.Float64())
	}
	return delay
}

// Forget and NumRequeues are no-ops, because a bucket stores no keys.

func (r *tokenBucket[K]) Forget(K)          {}
func (r *tokenBucket[K]) NumRequeues(K) int { return 0 }

// MaxOf returns a limiter with the longest delay and the highest NumRequeues of all given
// limiters. All of them begin at the failure: keys whose tokens of a TokenBucket are due before
// the delay of another limiter is over can run together after that delay. Without limiters the
// delay is 0. It panics if a limiter is nil.
func MaxOf[K comparable](limiters ...workqueue.TypedRateLimiter[K]) workqueue.TypedRateLimiter[K] {
	for i, limiter := range limiters {
		if kube.IsNil(limiter) {
			panic(fmt.Sprintf("queue: MaxOf: limiter %d of %d is nil", i+1, len(limiters)))
		}
	}
	return append(maxOf[K]{}, limiters...) // not nil, also without limiters
}

type maxOf[K comparable] []workqueue.TypedRateLimiter[K]

func (r maxOf[K]) When(key K) (delay time.Duration) {
	for _, limiter := range r {
		delay = max(delay, limiter.When(key))
	}
	return delay
}

func (r maxOf[K]) Forget(key K) {
	for _, limiter := range r {
		limiter.Forget(key)
	}
}

func (r maxOf[K]) NumRequeues(key K) (n int) {
	for _, limiter := range r {
		n = max(n, limiter.NumRequeues(key))
	}
	return n
}

// counter counts the failures of each key since Forget. It uses the index of the queue,
// which is faster than a map if many keys fail at once, and frees the memory of keys that
// do not fail any more.
type counter[K comparable] struct {
	mu       sync.Mutex           // guards failures
	failures *index.Index[K, int] // nil until the first failure
}

func (c *counter[K]) fail(key K) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures == nil {
		x := index.New[K, int]()
		c.failures = &x
	}
	hash := c.failures.Hash(key)
	k, at := c.failures.Find(key, hash)
	if k == 0 {
		k, _ = c.failures.Insert(key, hash, at)
	}
	n := c.failures.At(k)
	*n++
	return *n
}

func (c *counter[K]) Forget(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures == nil {
		return
	}
	if k, at := c.failures.Find(key, c.failures.Hash(key)); k != 0 {
		c.failures.Delete(k, at)
	}
}

func (c *counter[K]) NumRequeues(key K) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures == nil {
		return 0
	}
	k, _ := c.failures.Find(key, c.failures.Hash(key))
	return *c.failures.At(k) // the entry of 0 is 0
}
