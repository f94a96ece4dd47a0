package queue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/queue/internal/index"
)

// Exponential doubles a key's delay with each failure since Forget, from base
// up to limit, and takes a random time in the upper half of it: keys that failed
// together do not come back together. It remembers the keys that are failing
// and no others. Most controllers want it and nothing else. A base that is not
// positive means 5 ms, such a limit 5 min; a base above limit means limit.
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
	// Unsigned: should the count ever run over, the delay is the limit.
	n := uint(r.fail(key) - 1)
	delay := r.limit
	// Shifting the limit down cannot overflow, as shifting base up could.
	if n < 63 && r.base <= r.limit>>n {
		delay = r.base << n
	}
	return jitter(delay)
}

// jitter returns a uniformly random time in [d/2, d].
func jitter(d time.Duration) time.Duration {
	return d - rand.N(d/2+1)
}

// TokenBucket lets perSecond keys a second pass, after a burst, whichever keys
// they are; longest is the longest delay it gives. Once keys come so fast that
// they would have to wait for longer they take no token and wait for a random
// time in [longest/2, longest]: under overload the rate is exceeded, but no debt
// is built that would delay keys long after. Use it with MaxOf beside
// Exponential. A perSecond of 0, below, or NaN means that no key passes after
// the burst, +Inf that every key passes; a burst below 1 means 1, a longest that
// is not positive 1 min.
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
	mu      sync.Mutex // makes reserve and cancel one step
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
	if delay > r.longest {
		token.CancelAt(now)
		return jitter(r.longest)
	}
	return delay
}

// Forget and NumRequeues do nothing: a bucket knows no keys.

func (r *tokenBucket[K]) Forget(K)          {}
func (r *tokenBucket[K]) NumRequeues(K) int { return 0 }

// FastSlow gives a key's first failures since Forget, as many as attempts, the
// delay fast, and all later ones slow. Delays that are not positive mean none.
func FastSlow[K comparable](fast, slow time.Duration, attempts int) workqueue.TypedRateLimiter[K] {
	return &fastSlow[K]{fast: max(fast, 0), slow: max(slow, 0), attempts: attempts}
}

type fastSlow[K comparable] struct {
	counter[K]
	fast, slow time.Duration
	attempts   int
}

func (r *fastSlow[K]) When(key K) time.Duration {
	if r.fail(key) <= r.attempts {
		return r.fast
	}
	return r.slow
}

// MaxOf asks every limiter and takes the longest delay; without any it gives
// none. NumRequeues is the highest of any. It panics if a limiter is nil: to
// leave one out must not go unnoticed.
func MaxOf[K comparable](limiters ...workqueue.TypedRateLimiter[K]) workqueue.TypedRateLimiter[K] {
	return combine("MaxOf", limiters, func(a, b time.Duration) time.Duration { return max(a, b) })
}

// MinOf asks every limiter and takes the shortest delay; without any it gives
// none. NumRequeues is the highest of any. It panics if a limiter is nil: to
// leave one out must not go unnoticed.
func MinOf[K comparable](limiters ...workqueue.TypedRateLimiter[K]) workqueue.TypedRateLimiter[K] {
	return combine("MinOf", limiters, func(a, b time.Duration) time.Duration { return min(a, b) })
}

func combine[K comparable](name string, limiters []workqueue.TypedRateLimiter[K], better func(a, b time.Duration) time.Duration) *combined[K] {
	for i, limiter := range limiters {
		if limiter == nil {
			panic(fmt.Sprintf("queue: %s: limiter %d of %d is nil", name, i+1, len(limiters)))
		}
	}
	return &combined[K]{limiters: slices.Clone(limiters), better: better}
}

type combined[K comparable] struct {
	limiters []workqueue.TypedRateLimiter[K]
	better   func(a, b time.Duration) time.Duration
}

func (r *combined[K]) When(key K) (delay time.Duration) {
	for i, limiter := range r.limiters {
		// A delay below 0 is none, and must not win over one of 0.
		if d := max(limiter.When(key), 0); i == 0 {
			delay = d
		} else {
			delay = r.better(delay, d)
		}
	}
	return delay
}

func (r *combined[K]) Forget(key K) {
	for _, limiter := range r.limiters {
		limiter.Forget(key)
	}
}

func (r *combined[K]) NumRequeues(key K) (n int) {
	for _, limiter := range r.limiters {
		n = max(n, limiter.NumRequeues(key))
	}
	return n
}

// counter counts the failures of each key since it was forgotten. It keeps them
// in the queue's own index, which is faster than a map when many keys fail at
// once, and gives back the room when they have recovered.
type counter[K comparable] struct {
	mu       sync.Mutex           // guards failures
	failures *index.Index[K, int] // how often each key failed since Forget; nil until the first
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
	return *c.failures.At(k) // 0 of none
}
