package shard_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/shard"
)

// exclusive calls Exclusive with a function that takes some time, seen by the judge.
func (j *judge) exclusive(ctx context.Context, r *replica, takes time.Duration) error {
	return r.Exclusive(ctx, func(ctx context.Context, s shard.Shard) error {
		j.beginAll(ctx, r.Identity, s)
		defer j.endAll()
		if err := s.Check(ctx); err != nil {
			j.t.Errorf("%s has all shards, and Check() = %v", r.Identity, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(takes):
			return s.Check(ctx)
		}
	})
}

// TestExclusive: the function runs after all work has returned, and before other work
// begins. Replicas that join meanwhile get no shard before, and two calls do not overlap.
//
// Proves SH12.
func TestExclusive(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		replicas := startAll(t, s, j, 3, 12, 3*time.Second)
		limited := s.group("limited", 12)
		limited.MaxShards = 1
		replicas = append(replicas, j.start(t, limited, 0))
		settle()
		began := time.Now()
		var calls sync.WaitGroup
		for _, r := range replicas[1:] {
			calls.Go(func() {
				if err := j.exclusive(t.Context(), r, 2*leaseDuration); err != nil {
					t.Errorf("%s: Exclusive() = %v", r.Identity, err)
				}
			})
		}
		time.Sleep(leaseDuration)
		synctest.Wait()
		if counts := j.counts(); j.all == "" || len(counts) > 0 {
			t.Errorf("%q has all shards after LeaseDuration, and these have some: %v", j.all, counts)
		}
		for _, r := range replicas {
			if status := r.Status(); len(status.Owned)+len(r.Owned()) > 0 || status.Ownerless > 0 || status.Imbalance != 4 || status.Surplus != 0 {
				t.Errorf("%s has all shards: Status() of %s = %+v", j.all, r.Identity, status)
			}
		}
		replicas = append(replicas, j.start(t, s.group("new", 12), 0))
		calls.Wait()
		if took := time.Since(began); took < 6*leaseDuration || took > 6*leaseDuration+10*time.Second {
			t.Errorf("3 calls took %v, want 6 times LeaseDuration and a few seconds", took)
		}
		settle()
		if owners, one := j.expectOwners(), j.counts()["limited"]; owners != 12 || one != 1 {
			t.Errorf("after the calls %d shards have owners, want 12; the limited replica has %d, want 1", owners, one)
		}
		j.moves()
		time.Sleep(time.Minute)
		if moves := j.moves(); moves > 0 {
			t.Errorf("%d shards move after the calls", moves)
		}
		for _, r := range replicas {
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestExclusiveEnds: the end of each context ends the call, and the shards go back.
func TestExclusiveEnds(t *testing.T) {
	cause := errors.New("enough")
	start := func(t *testing.T, s *store, j *judge) (a, b *replica, result chan error, cancel func()) {
		replicas := startAll(t, s, j, 2, 8, 5*time.Second)
		ctx, end := context.WithCancelCause(t.Context())
		result = make(chan error, 1)
		go func() { result <- j.exclusive(ctx, replicas[0], time.Hour) }()
		return replicas[0], replicas[1], result, func() { end(cause) }
	}
	balanced := func(t *testing.T, j *judge, n int) {
		t.Helper()
		settle()
		j.expect(t, n, 8)
	}
	t.Run("of the call, before", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store, j *judge) {
			_, _, result, cancel := start(t, s, j)
			time.Sleep(time.Second)
			cancel()
			if err := <-result; !errors.Is(err, cause) {
				t.Errorf("Exclusive() = %v, want %v", err, cause)
			}
			balanced(t, j, 2)
		})
	})
	t.Run("of the call, in it", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store, j *judge) {
			_, _, result, cancel := start(t, s, j)
			settle()
			cancel()
			if err := <-result; !errors.Is(err, cause) || j.all != "" {
				t.Errorf("Exclusive() = %v, want %v after its function has returned", err, cause)
			}
			balanced(t, j, 2)
		})
	})
	t.Run("of Run, before", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store, j *judge) {
			a, _, result, _ := start(t, s, j)
			time.Sleep(time.Second)
			if err := a.stop(); err != nil {
				t.Error(err)
			}
			if err := <-result; err == nil || !strings.HasPrefix(err.Error(), "shard: Exclusive needs a Group that runs") {
				t.Errorf("Exclusive() = %v", err)
			}
			balanced(t, j, 1)
		})
	})
	t.Run("of Run, in it", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store, j *judge) {
			a, _, result, _ := start(t, s, j)
			settle()
			if err := a.stop(); err != nil {
				t.Error(err)
			}
			if err := <-result; err == nil || errors.Is(err, shard.ErrLost) {
				t.Errorf("Exclusive() = %v, want that the shards move", err)
			}
			balanced(t, j, 1)
		})
	})
	t.Run("of the ownership", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store, j *judge) {
			a, _, result, _ := start(t, s, j)
			settle()
			a.client.Partition(true)
			if err := <-result; !errors.Is(err, shard.ErrLost) {
				t.Errorf("Exclusive() = %v, want %v", err, shard.ErrLost)
			}
			time.Sleep(leaseDuration)
			balanced(t, j, 1)
			a.client.Partition(false)
			balanced(t, j, 2)
		})
	})
}

// TestExclusiveMisuse: a call that could not run is an error at once.
func TestExclusiveMisuse(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, _ *judge) {
		g := s.group("a", 1)
		g.Namespace, g.Name = namespace, groupName
		none := func(context.Context, shard.Shard) error { return nil }
		want := func(err error, text string) {
			t.Helper()
			if err == nil || !strings.HasPrefix(err.Error(), text) {
				t.Errorf("Exclusive() = %v, want %q", err, text)
			}
		}
		want(g.Exclusive(t.Context(), none), "shard: Exclusive needs a Group that runs")
		ctx, cancel := context.WithCancel(t.Context())
		err := g.Run(ctx, func(ctx context.Context, _ shard.Shard) error {
			want(g.Exclusive(ctx, none), "shard: Exclusive got the context of work")
			want(g.Exclusive(t.Context(), nil), "shard: the function of Exclusive is nil")
			cancel()
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		want(g.Exclusive(t.Context(), none), "shard: Exclusive needs a Group that runs")
	})
}
