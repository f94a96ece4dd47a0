package queue

import (
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"
)

// Exponential doubles a key's delay with each failure since Forget, from base
// up to limit, and takes a random time in the upper half of it: keys that failed
// together do not come back together. It remembers the keys that are failing
// and no others. Most controllers want it and nothing else. base 0 means 5 ms,
// limit 0 means 5 min.
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
	n := r.fail(key) - 1
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
// Exponential. perSecond 0 means that no key passes after the burst, burst 0
// means 1, longest 0 means 1 min.
func TokenBucket[K comparable](perSecond float64, burst int, longest time.Duration) workqueue.TypedRateLimiter[K] {
	if longest <= 0 {
		longest = time.Minute
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

func (r *tokenBucket[K]) Forget(K)          {}
func (r *tokenBucket[K]) NumRequeues(K) int { return 0 }

// FastSlow gives a key's first failures since Forget, as many as attempts, the
// delay fast, and all later ones slow. Delays that are not positive mean none.
func FastSlow[K comparable](fast, slow time.Duration, attempts int) workqueue.TypedRateLimiter[K] {
	return &fastSlow[K]{fast: fast, slow: slow, attempts: attempts}
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
// none. NumRequeues is the highest of any.
func MaxOf[K comparable](limiters ...workqueue.TypedRateLimiter[K]) workqueue.TypedRateLimiter[K] {
	return &combined[K]{limiters: limiters, better: func(a, b time.Duration) bool { return a > b }}
}

// MinOf asks every limiter and takes the shortest delay; without any it gives
// none. NumRequeues is the highest of any.
func MinOf[K comparable](limiters ...workqueue.TypedRateLimiter[K]) workqueue.TypedRateLimiter[K] {
	return &combined[K]{limiters: limiters, better: func(a, b time.Duration) bool { return a < b }}
}

type combined[K comparable] struct {
	limiters []workqueue.TypedRateLimiter[K]
	better   func(a, b time.Duration) bool
}

func (r *combined[K]) When(key K) (delay time.Duration) {
	for i, limiter := range r.limiters {
		if d := limiter.When(key); i == 0 || r.better(d, delay) {
			delay = d
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

// counter counts the failures of each key since it was forgotten.
type counter[K comparable] struct {
	mu       sync.Mutex // guards failures
	failures map[K]int  // only keys that failed since Forget; nil until the first
}

func (c *counter[K]) fail(key K) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures == nil {
		c.failures = map[K]int{}
	}
	c.failures[key]++
	return c.failures[key]
}

func (c *counter[K]) Forget(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, key)
}

func (c *counter[K]) NumRequeues(key K) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures[key]
}
