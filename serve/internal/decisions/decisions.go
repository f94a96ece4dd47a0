// Package decisions keeps what the API server decided about requests, and bounds how many
// requests it is asked about.
package decisions

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"
)

const (
	keepAllowed  = time.Minute
	keepRejected = 10 * time.Second
	keepFailure  = time.Second // so that an API server that fails at once gets few requests

	// keepUnreviewed is how long a request stays allowed while its reviews fail, because an
	// outage is when metrics are needed: the alerts about it need 15 minutes of them, and end with
	// them. Each review uses its time up if the API server does not respond, so they have an
	// interval of keepAllowed.
	keepUnreviewed = time.Hour

	maxEntries = 1024 // of each cache
	maxKnown   = 64   // running reviews of requests that were allowed before
	maxNew     = 32   // running reviews of others
)

// Cache has the decisions about requests. A request that was allowed before is known, also
// after its decision has become too old to be used. Other requests use neither the entries
// nor the reviews of known ones, so they cannot displace them.
type Cache struct {
	secret  [sha256.Size]byte              // of the keyed hash
	limit   flowcontrol.PassiveRateLimiter // of reviews of requests that are not known
	mu      sync.Mutex                     // guards the fields below
	allowed *lru.Cache                     // key to permission
	others  *lru.Cache                     // key to decision
	sources *lru.Cache                     // netip.Prefix to its flowcontrol.PassiveRateLimiter
	running map[key]*call
	known   int // running calls of known requests
}

// key is a keyed hash of a request.
type key [sha256.Size]byte

type decision struct {
	code int
	end  time.Time
}

// permission is the decision about a request that was allowed.
type permission struct {
	reviewed time.Time // when the API server allowed it
	end      time.Time // of the decision
}

// call is a running review. Equal requests wait for it.
type call struct {
	done  chan struct{}
	code  int         // set before done is closed
	known *permission // the last decision; nil if the request was not allowed before
}

// New returns an empty Cache.
func New() *Cache {
	c := &Cache{
		limit:   flowcontrol.NewTokenBucketPassiveRateLimiter(10, 20),
		allowed: lru.New(maxEntries), others: lru.New(maxEntries), sources: lru.New(maxEntries),
		running: map[key]*call{},
	}
	_, _ = rand.Read(c.secret[:]) // never fails
	return c
}

// Decide returns the status code for the request that the parts describe. Only the last part
// may have a line feed. If a decision is still valid, Decide returns its code. If an equal
// request is under review, Decide waits for its code until ctx is done. Otherwise it calls
// review, which returns 200, 503 after a failure, or another code after a rejection. After a
// failure, the code is 200 if the request was allowed in the last keepUnreviewed. If too many
// reviews run or have run lately, also reviews of addr, the code is 200 for such a request too, and
// 429 for others.
func (c *Cache) Decide(ctx context.Context, addr netip.Addr, review func() int, parts ...string) (code int) {
	k := c.key(parts)
	c.mu.Lock()
	now := time.Now()
	if d, ok := c.others.Get(k); ok && now.Before(d.(decision).end) {
		c.mu.Unlock()
		return d.(decision).code
	}
	var known *permission
	if value, ok := c.allowed.Get(k); ok {
		known = value.(*permission)
		if now.Before(known.end) {
			c.mu.Unlock()
			return http.StatusOK
		}
	}
	if other := c.running[k]; other != nil {
		c.mu.Unlock()
		select {
		case <-other.done:
			return other.code
		case <-ctx.Done():
			return http.StatusServiceUnavailable
		}
	}
	if !c.admitLocked(known != nil, addr) {
		c.mu.Unlock()
		if known != nil && now.Before(known.reviewed.Add(keepUnreviewed)) {
			return http.StatusOK // the API server is too slow to review it
		}
		return http.StatusTooManyRequests
	}
	own := &call{done: make(chan struct{}), code: http.StatusServiceUnavailable, known: known}
	c.running[k] = own
	if known != nil {
		c.known++
	}
	c.mu.Unlock()
	defer func() { code = c.end(k, own) }() // also if review panics
	own.code = review()
	return own.code
}

func (c *Cache) key(parts []string) (k key) {
	h := hmac.New(sha256.New, c.secret[:])
	_, _ = h.Write([]byte(strings.Join(parts, "\n")))
	h.Sum(k[:0])
	return k
}

// admitLocked reports whether a review may start.
func (c *Cache) admitLocked(known bool, addr netip.Addr) bool {
	if known {
		return c.known < maxKnown
	}
	if len(c.running)-c.known >= maxNew {
		return false
	}
	source := network(addr)
	limit, ok := c.sources.Get(source)
	if !ok {
		limit = flowcontrol.NewTokenBucketPassiveRateLimiter(2, 10)
		c.sources.Add(source, limit)
	}
	return limit.(flowcontrol.PassiveRateLimiter).TryAccept() && c.limit.TryAccept()
}

// end stores the result of a review, wakes the requests that wait for it and returns its code.
func (c *Cache) end(k key, own *call) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, k)
	if own.known != nil {
		c.known--
	}
	now := time.Now()
	switch {
	case own.code == http.StatusOK:
		c.allowed.Add(k, &permission{reviewed: now, end: now.Add(keepAllowed)})
	case own.code == http.StatusServiceUnavailable && own.known != nil && now.Before(own.known.reviewed.Add(keepUnreviewed)):
		own.code = http.StatusOK
		c.allowed.Add(k, &permission{reviewed: own.known.reviewed, end: now.Add(min(keepAllowed, keepUnreviewed-now.Sub(own.known.reviewed)))})
	case own.code == http.StatusServiceUnavailable: // it stays known
		c.others.Add(k, decision{own.code, now.Add(keepFailure)})
	default:
		c.allowed.Remove(k)
		c.others.Add(k, decision{own.code, now.Add(keepRejected)})
	}
	close(own.done)
	return own.code
}

// network returns the addresses that count as one client: an IPv4 address, or the /64 of
// an IPv6 address.
func network(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap()
	prefix, _ := addr.Prefix(min(addr.BitLen(), 64)) // all that are not valid count as one
	return prefix
}
