package shard_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
)

// For a night: go test -run '^TestServerSchedules$' ./shard -schedules 300 -timeout 0
var (
	schedules    = flag.Int("schedules", 8, "how many random schedules TestServerSchedules runs on the API server")
	scheduleSeed = flag.Uint64("schedule-seed", 0, "the seed of the first of them; 0 means a random one")
)

const (
	schedulesAtOnce = 6
	horizon         = 5 * time.Second // of the faults of a schedule
	patience        = 2 * time.Minute // for what has an event; a slow machine needs it
)

// A fencedLog receives the effects of all owners of a group's shards. An effect is preceded
// by a successful Check. Two owners overlap if a Check of the earlier term began after the
// later term was seen to be valid. That does not depend on the speed of the machine.
type fencedLog struct {
	mu       sync.Mutex // guards the fields below
	shards   []shardLog
	overlaps []string
	effects  int
	terms    int
	longest  time.Duration // between the effects of two terms of a shard
	changed  chan struct{} // closed at the next change
}

type shardLog struct {
	terms map[int64]*termLog
	last  string // who had the last effect
	at    time.Time
}

type termLog struct {
	who       string
	valid     time.Time // its first Check has returned
	lastCheck time.Time // its last successful Check began
}

func newLog(shards int) *fencedLog {
	l := &fencedLog{shards: make([]shardLog, shards), changed: make(chan struct{})}
	for i := range l.shards {
		l.shards[i].terms = map[int64]*termLog{}
	}
	return l
}

// effect records an effect whose Check began at the given time.
func (l *fencedLog) effect(who string, s shard.Shard, began time.Time) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	log := &l.shards[s.Index]
	own := log.terms[s.Term]
	if own == nil {
		own = &termLog{who: who, valid: now}
		if log.last != "" {
			l.longest = max(l.longest, now.Sub(log.at))
		}
		log.terms[s.Term] = own
		l.terms++
	}
	own.lastCheck = began
	if own.who != who {
		l.overlaps = append(l.overlaps, fmt.Sprintf("shard %d, term %d: %s and %s", s.Index, s.Term, own.who, who))
	}
	for term, other := range log.terms {
		if term > s.Term && began.After(other.valid) || term < s.Term && other.lastCheck.After(own.valid) {
			l.overlaps = append(l.overlaps, fmt.Sprintf("shard %d: %s in term %d and %s in term %d", s.Index, who, s.Term, other.who, term))
		}
	}
	log.last, log.at = who, now
	l.effects++
	close(l.changed)
	l.changed = make(chan struct{})
}

// awaitOwners waits until each shard has had an effect after the given time, and the owners
// of the last ones are those that are asked for.
func (l *fencedLog) awaitOwners(after time.Time, by func(owners []string) bool) error {
	var owners []string
	if l.await(func() bool {
		l.mu.Lock()
		owners = nil
		for _, s := range l.shards {
			if s.at.After(after) {
				owners = append(owners, s.last)
			}
		}
		l.mu.Unlock()
		return len(owners) == len(l.shards) && by(owners)
	}) {
		return nil
	}
	return fmt.Errorf("after %v %d of %d shards had effects, the last ones of %v", patience, len(owners), len(l.shards), owners)
}

// await waits for a condition, which it evaluates after each effect. It reports whether it
// came true in time.
func (l *fencedLog) await(condition func() bool) bool {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		if condition() {
			return true
		}
		select {
		case <-changed:
		case <-timeout.C:
			return false
		}
	}
}

// work has effects until it is to stop, and some more while it drains.
func (l *fencedLog) work(who string, drain time.Duration, dead <-chan struct{}) func(context.Context, shard.Shard) error {
	return func(ctx context.Context, s shard.Shard) error {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		done, drained := ctx.Done(), (<-chan time.Time)(nil)
		for {
			select {
			case <-dead: // the process was killed
				return nil
			default:
			}
			began := time.Now()
			if err := s.Check(ctx); err != nil {
				return err
			}
			l.effect(who, s, began)
			select {
			case <-ticker.C:
			case <-dead:
				return nil
			case <-done:
				done = nil
				if errors.Is(context.Cause(ctx), shard.ErrLost) {
					return nil
				}
				drained = time.After(drain)
			case <-drained:
				return nil
			}
		}
	}
}

// A link is the network of one replica: a relay, and a transport that delays requests and
// loses responses.
type link struct {
	*relay
	next http.RoundTripper

	mu    sync.Mutex // guards the fields below
	rng   *rand.Rand
	delay time.Duration // of requests, at most
	loses float64       // share of responses that are lost
}

var errReset = errors.New("connection reset by peer")

func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	loses := l.rng.Float64() < l.loses
	var delay time.Duration
	if l.delay > 0 {
		delay = rand.N(l.delay)
	}
	l.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	response, err := l.next.RoundTrip(r)
	if err == nil && loses {
		_ = response.Body.Close()
		return nil, errReset
	}
	return response, err
}

func (l *link) weather(delay time.Duration, loses float64) {
	l.mu.Lock()
	l.delay, l.loses = delay, loses
	l.mu.Unlock()
}

// A life is a running replica of a schedule.
type life struct {
	name   string
	group  *shard.Group
	link   *link
	cancel context.CancelFunc
	dead   chan struct{} // closed when it is killed
	ended  chan struct{}
	err    error
}

// A schedule is one random schedule of a group.
type schedule struct {
	seed   uint64
	rng    *rand.Rand
	config *rest.Config
	ns     string
	shards int
	log    *fencedLog
	lives  []*life // that were not stopped and not killed
	past   []*life
	born   int
	story  strings.Builder
}

func (s *schedule) tell(begun time.Time, format string, args ...any) {
	fmt.Fprintf(&s.story, "  %v  %s\n", time.Since(begun).Round(time.Millisecond), fmt.Sprintf(format, args...))
}

// join starts a replica.
func (s *schedule) join() (*life, error) {
	s.born++
	l := &life{name: fmt.Sprintf("r%d", s.born), dead: make(chan struct{}), ended: make(chan struct{})}
	relay, config, err := newRelay(s.config)
	if err != nil {
		return nil, err
	}
	l.link = &link{relay: relay, rng: rand.New(rand.NewPCG(s.seed, uint64(s.born)))}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		l.link.next = next
		return l.link
	})
	client, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	l.group = &shard.Group{
		Leases: client.Leases(s.ns), Namespace: s.ns, Name: fmt.Sprintf("group-%d", s.seed), Identity: l.name, Ranges: shard.Ranges{N: s.shards},
		LeaseDuration: 2 * time.Second, RenewDeadline: 1400 * time.Millisecond, RetryPeriod: 300 * time.Millisecond, StartTimeout: patience,
		DrainTimeout: patience,
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	drain := time.Duration(s.rng.IntN(300)) * time.Millisecond
	go func() {
		defer close(l.ended)
		l.err = l.group.Run(ctx, s.log.work(l.name, drain, l.dead))
	}()
	s.lives = append(s.lives, l)
	return l, nil
}

func (s *schedule) take(i int) *life {
	l := s.lives[i]
	s.lives = append(s.lives[:i:i], s.lives[i+1:]...)
	s.past = append(s.past, l)
	return l
}

// run plays the schedule and returns what was wrong.
func (s *schedule) run() (problems []string) {
	begun := time.Now()
	defer func() {
		for _, l := range append(s.lives, s.past...) {
			l.cancel()
			l.link.cut(false)
			<-l.ended
			l.link.close()
		}
	}()
	for range 2 + s.rng.IntN(2) {
		if _, err := s.join(); err != nil {
			return []string{err.Error()}
		}
	}
	for time.Since(begun) < horizon {
		<-time.After(time.Duration(s.rng.IntN(700)) * time.Millisecond)
		i := s.rng.IntN(len(s.lives))
		l := s.lives[i]
		switch k := s.rng.IntN(10); {
		case len(s.lives) < 3 || k == 0 && len(s.lives) < 5:
			l, err := s.join()
			if err != nil {
				return []string{err.Error()}
			}
			s.tell(begun, "%s joins", l.name)
		case k == 1:
			s.tell(begun, "%s leaves", l.name)
			s.take(i).cancel()
		case k == 2:
			s.tell(begun, "%s is killed", l.name)
			close(s.take(i).dead)
			l.link.refuse(true)
			l.cancel()
		case k < 5:
			s.tell(begun, "%s is cut off", l.name)
			l.link.cut(true)
		case k == 5:
			s.tell(begun, "%s has a network", l.name)
			l.link.cut(false)
			l.link.weather(0, 0)
		case k == 6:
			down := s.rng.IntN(2) == 0
			s.tell(begun, "the API server is down: %t", down)
			for _, l := range s.lives {
				l.link.refuse(down)
			}
		default:
			delay, loses := time.Duration(s.rng.IntN(900))*time.Millisecond, s.rng.Float64()/2
			s.tell(begun, "%s has requests that take up to %v, and %.2f of the responses are lost", l.name, delay, loses)
			l.link.weather(delay, loses)
		}
	}
	for _, l := range s.lives {
		l.link.cut(false)
		l.link.refuse(false)
		l.link.weather(0, 0)
	}
	healed := time.Now()
	s.tell(begun, "no more faults")
	alive := map[string]bool{}
	for _, l := range s.lives {
		alive[l.name] = true
	}
	if err := s.log.awaitOwners(healed, func(owners []string) bool {
		return !slices.ContainsFunc(owners, func(who string) bool { return !alive[who] })
	}); err != nil {
		problems = append(problems, err.Error())
		for _, l := range s.lives {
			problems = append(problems, fmt.Sprintf("%s: %+v", l.name, l.group.Status()))
		}
	}
	for _, l := range s.lives {
		l.cancel()
		<-l.ended
		if l.err != nil {
			problems = append(problems, fmt.Sprintf("%s: Run() = %v", l.name, l.err))
		}
	}
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return append(problems, s.log.overlaps...)
}

// roleRules returns the rules of manifests/role.yaml.
func roleRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	file, err := os.Open("manifests/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var role rbacv1.Role
	if err := yaml.NewYAMLOrJSONDecoder(file, 4096).Decode(&role); err != nil {
		t.Fatal(err)
	}
	return role.Rules
}

// TestServerSchedules runs groups of replicas against the API server. They join, leave, are
// killed and cut off, their requests are slow, responses are lost, and the API server is
// gone for a while. A fenced log judges them: no two owners of a shard overlap, and after
// the last fault each shard has effects again. The replicas have the rights of
// manifests/role.yaml and no more.
//
// Proves SH1, SH2 and SH4.
func TestServerSchedules(t *testing.T) {
	t.Parallel()
	first := *scheduleSeed
	if first == 0 {
		first = rand.Uint64() >> 16
	}
	t.Logf("-schedule-seed %d -schedules %d", first, *schedules)
	ns := testserver.Namespace(t)
	config := testserver.Limited(t, ns, roleRules(t)...)
	var wg sync.WaitGroup
	var mu sync.Mutex
	effects, terms, shards, replicas, wrong := 0, 0, 0, 0, 0
	places := make(chan struct{}, schedulesAtOnce)
	begun := time.Now()
	for i := range *schedules {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			seed := first + uint64(i)
			rng := rand.New(rand.NewPCG(seed, 3))
			s := &schedule{seed: seed, rng: rng, config: config, ns: ns, shards: 4 + rng.IntN(5)}
			s.log = newLog(s.shards)
			problems := s.run()
			mu.Lock()
			defer mu.Unlock()
			effects, terms, shards, replicas = effects+s.log.effects, terms+s.log.terms, shards+s.shards, replicas+s.born
			for _, p := range problems {
				t.Errorf("seed %d: %s", seed, p)
			}
			if len(problems) > 0 {
				wrong++
				t.Logf("seed %d:\n%s", seed, &s.story)
			}
		})
	}
	wg.Wait()
	t.Logf("%d schedules, %d wrong; %d shards, %d replicas, %d terms, %d effects; took %v", *schedules, wrong, shards, replicas, terms, effects, time.Since(begun).Round(time.Second))
	if terms <= shards {
		t.Errorf("only %d terms of %d shards: they prove little", terms, shards)
	}
	leases, err := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoordinationV1().Leases(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d Leases are left", len(leases.Items))
}
