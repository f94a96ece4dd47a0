package shard_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/shard"
)

// run runs a Group with the work, and returns its cancel function and its result.
func run(t *testing.T, g *shard.Group, work func(context.Context, shard.Shard) error) (context.CancelFunc, <-chan error) {
	t.Helper()
	g.Namespace, g.Name = namespace, groupName
	ctx, cancel := context.WithCancel(t.Context())
	ended, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		ended <- g.Run(ctx, work)
	}()
	t.Cleanup(func() { // it can take a RenewDeadline to end the Lease
		cancel()
		<-done
	})
	return cancel, ended
}

// TestDrain: a shard that moves stays with its owner until its work has returned, and the
// next owner begins at once.
//
// Proves SH2.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		const drain = 7 * time.Second
		first := j.start(t, s.group("a", 2), drain)
		settle()
		second := j.start(t, s.group("b", 2), drain)
		time.Sleep(retryPeriod + drain - time.Second)
		synctest.Wait()
		if counts := j.counts(); counts["a"] != 2 {
			t.Errorf("during the drain the owners are %v, want a alone", counts)
		}
		if s := first.Status(); s.Draining != 1 || len(s.Owned) != 2 || s.Replicas != 2 || s.Ownerless != 0 {
			t.Errorf("Status() = %+v, want one shard that drains", s)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		j.expect(t, 2, 2)
		if j.longest > time.Millisecond {
			t.Errorf("the shard had no owner for %v", j.longest)
		}
		// The Lease is renewed while the work drains, and ended after it.
		if err := first.stop(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if counts := j.counts(); counts["b"] != 2 {
			t.Errorf("the owners are %v, want b alone", counts)
		}
		_ = second
	})
}

// TestMaxShards: a replica takes at most MaxShards, and shards stay free if all have their
// maximum.
//
// Proves SH5.
func TestMaxShards(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		for i, most := range []int{3, 5} {
			g := s.group(fmt.Sprint(i), 20)
			g.MaxShards = most
			j.start(t, g, 0)
		}
		settle()
		if counts := j.counts(); counts["0"] != 3 || counts["1"] != 5 {
			t.Errorf("the owners are %v, want 3 and 5 shards", counts)
		}
		r := j.start(t, s.group("2", 20), 0)
		settle()
		if counts := j.counts(); counts["0"] != 3 || counts["1"] != 5 || counts["2"] != 12 {
			t.Errorf("the owners are %v, want 3, 5 and 12 shards", counts)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		settle()
		if n := j.expectOwners(); n != 8 {
			t.Errorf("%d shards have owners, want 8", n)
		}
	})
}

// TestWorkReturns: if work returns although its context is not done, Run hands over the
// other shards and returns its error.
func TestWorkReturns(t *testing.T) {
	for _, want := range []error{nil, errors.New("broken")} {
		bubble(t, func(t *testing.T, s *store, _ *judge) {
			_, ended := run(t, s.group("a", 4), func(ctx context.Context, sh shard.Shard) error {
				if sh.Index == 2 {
					time.Sleep(time.Minute)
					return want
				}
				<-ctx.Done()
				return errors.New("not this one")
			})
			if err := <-ended; !errors.Is(err, want) {
				t.Errorf("Run() = %v, want %v", err, want)
			}
			if s.Len() != 1 {
				t.Errorf("%d Leases are left, want the table alone", s.Len())
			}
		})
	}
}

// TestDrainTimeout: work that does not return in time gets ErrLost. If it returns then,
// Run returns an error, and otherwise an error with its stack and the shards in the order of their
// numbers. Its Lease expires.
func TestDrainTimeout(t *testing.T) {
	for _, tt := range []struct {
		obeys bool
		want  string
	}{{true, "work did not return within DrainTimeout (22s): raise it"}, {false, "shards 2 10; the stacks of work:"}} {
		bubble(t, func(t *testing.T, s *store, _ *judge) {
			release := make(chan struct{})
			g := s.group("a", 11)
			cancel, ended := run(t, g, func(ctx context.Context, sh shard.Shard) error {
				<-ctx.Done()
				if sh.Index != 2 && sh.Index != 10 {
					return nil
				}
				if tt.obeys {
					<-validity(ctx).Done()
				} else {
					<-release
				}
				if err := sh.Check(ctx); !errors.Is(err, shard.ErrLost) {
					t.Errorf("Check() = %v, want ErrLost", err)
				}
				return nil
			})
			settle()
			cancel()
			err := <-ended
			close(release)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Run() = %v, want %q", err, tt.want)
			}
			if s.Len() != 2 {
				t.Errorf("%d Leases are left, want that of the replica too", s.Len())
			}
			if !tt.obeys {
				if err := g.Run(t.Context(), untilDone); err == nil || !strings.Contains(err.Error(), "restart the process") {
					t.Errorf("Run() = %v, want a refusal", err)
				}
			}
		})
	}
}

// TestContext: the context of work carries the shard, a second context that ends with the
// ownership, and is checked by Guard.
func TestContext(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, _ *judge) {
		sent := 0
		transport := shard.Guard(roundTripper(func(*http.Request) (*http.Response, error) {
			sent++
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}))
		do := func(ctx context.Context, method string) error {
			response, err := transport.RoundTrip(httptest.NewRequest(method, "http://localhost/", strings.NewReader("{}")).WithContext(ctx))
			if err == nil {
				err = response.Body.Close()
			}
			return err
		}
		contexts := make(chan context.Context, 1)
		cancel, ended := run(t, s.group("a", 1), func(ctx context.Context, sh shard.Shard) error {
			if got, ok := shard.From(ctx); !ok || got != sh || sh.Term == 0 || sh.Table == "" {
				t.Errorf("From() = %v, %t, want %v", got, ok, sh)
			}
			want := s.get(groupName).ResourceVersion
			if got, _ := calls.Since(ctx); got != want {
				t.Errorf("the version that shows all earlier writes is %q, want %q, which made this owner", got, want)
			}
			if err := do(ctx, http.MethodPut); err != nil {
				t.Errorf("a write of the owner: %v", err)
			}
			contexts <- ctx
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), shard.ErrLost) || validity(ctx).Err() != nil {
				t.Errorf("the cause is %v, want a requested stop", context.Cause(ctx))
			}
			if err := sh.Check(ctx); err != nil {
				t.Errorf("Check() = %v during the drain, want nil", err)
			}
			if err := do(context.WithoutCancel(ctx), http.MethodPut); err != nil {
				t.Errorf("a write during the drain: %v", err)
			}
			return nil
		})
		ctx := <-contexts
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		sh, _ := shard.From(ctx)
		if err := sh.Check(ctx); !errors.Is(err, shard.ErrLost) {
			t.Errorf("Check() = %v after the end, want ErrLost", err)
		}
		if err := sh.Check(t.Context()); err == nil || errors.Is(err, shard.ErrLost) {
			t.Errorf("Check() = %v with another context, want an error", err)
		}
		if err := do(ctx, http.MethodDelete); !errors.Is(err, shard.ErrLost) {
			t.Errorf("a write after the end: %v, want ErrLost", err)
		}
		if err := do(t.Context(), http.MethodPost); err == nil || errors.Is(err, shard.ErrLost) {
			t.Errorf("a write with another context: %v, want an error", err)
		}
		for _, ctx := range []context.Context{ctx, t.Context()} {
			var refused controllerkit.UnsentError
			if err := do(ctx, http.MethodPost); !errors.As(err, &refused) || !refused.NotSent() {
				t.Errorf("a refused write: %v, want NotSent() true", err)
			}
		}
		if err := do(t.Context(), http.MethodGet); err != nil {
			t.Errorf("a read: %v", err)
		}
		exec := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
		exec.Header.Set("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
		if response, err := transport.RoundTrip(exec.WithContext(ctx)); !errors.Is(err, shard.ErrLost) {
			t.Errorf("exec by WebSocket after the end: %v, %v, want ErrLost", response, err)
		}
		if sent != 3 {
			t.Errorf("%d requests were sent, want 3", sent)
		}
	})
}

// TestCheckAfterReturn: the context of work that has returned has no shard, although its
// replica still owns others and the next owner writes.
func TestCheckAfterReturn(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		var mu sync.Mutex
		contexts := map[int]context.Context{}
		run(t, s.group("a", 2), func(ctx context.Context, sh shard.Shard) error {
			mu.Lock()
			contexts[sh.Index] = ctx
			mu.Unlock()
			<-ctx.Done()
			return nil
		})
		settle()
		j.start(t, s.group("b", 2), 0)
		settle()
		if counts := j.counts(); counts["b"] != 1 {
			t.Fatalf("the owners are %v, want one shard of b", counts)
		}
		for index, ctx := range contexts {
			sh, _ := shard.From(ctx)
			if err := sh.Check(context.WithoutCancel(ctx)); errors.Is(err, shard.ErrLost) != (ctx.Err() != nil) {
				t.Errorf("Check() = %v for shard %d, whose context has the error %v", err, index, ctx.Err())
			}
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestOutage: an outage that is shorter than RenewDeadline - RetryPeriod costs nothing. In
// a longer one the work ends with ErrLost, RenewDeadline after the last renewal was sent.
//
// Proves SH1.
func TestOutage(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, _ *judge) {
		g := s.group("a", 3)
		causes := make(chan error, 3)
		_, _ = run(t, g, func(ctx context.Context, _ shard.Shard) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil
		})
		settle()
		c := g.Leases.(*client)
		c.Partition(true)
		time.Sleep(renewDeadline - 2*retryPeriod - renewDeadline/2)
		c.Partition(false)
		settle()
		if n := len(g.Owned()); n != 3 {
			t.Fatalf("%d shards are owned after a short outage, want 3", n)
		}
		c.Partition(true)
		began := time.Now()
		for range 3 {
			if cause := <-causes; !errors.Is(cause, shard.ErrLost) {
				t.Errorf("the cause is %v, want ErrLost", cause)
			}
		}
		if took := time.Since(began); took > renewDeadline {
			t.Errorf("the work ended %v after the outage began, want at most %v", took, renewDeadline)
		}
		if owned := g.Owned(); len(owned) != 0 {
			t.Errorf("Owned() = %v, want none", owned)
		}
		c.Partition(false)
		settle()
		if n := len(g.Owned()); n != 3 {
			t.Errorf("%d shards are owned after the outage, want 3", n)
		}
	})
}

// TestFields: Run rejects a field that is not valid, and names it.
func TestFields(t *testing.T) {
	for want, change := range map[string]func(*shard.Group){
		"Leases is nil":       func(g *shard.Group) { g.Leases = nil },
		`Namespace is ""`:     func(g *shard.Group) { g.Namespace = "" },
		`Name is ""`:          func(g *shard.Group) { g.Name = "" },
		`Name is "A"`:         func(g *shard.Group) { g.Name = "A" },
		"Ranges.N is 0":       func(g *shard.Group) { g.Ranges.N = 0 },
		"Ranges.N is 1025":    func(g *shard.Group) { g.Ranges.N = 1025 },
		"MaxShards is -1":     func(g *shard.Group) { g.MaxShards = -1 },
		"LeaseDuration is -1": func(g *shard.Group) { g.LeaseDuration = -1 * time.Second },
		"RenewDeadline is 2s": func(g *shard.Group) { g.RenewDeadline = 2 * time.Second },
		"LeaseDuration is 10": func(g *shard.Group) { g.LeaseDuration = 10 * time.Second },
		"RetryPeriod is -1ns": func(g *shard.Group) { g.RetryPeriod = -1 },
		"StartTimeout is -1s": func(g *shard.Group) { g.StartTimeout = -time.Second },
		"DrainTimeout is -1s": func(g *shard.Group) { g.DrainTimeout = -time.Second },
		"MaxDrift is 1":       func(g *shard.Group) { g.MaxDrift = 1 },
	} {
		g := newStore().group("a", 4)
		g.Namespace, g.Name = namespace, groupName
		change(g)
		if err := g.Run(t.Context(), func(context.Context, shard.Shard) error { return nil }); err == nil || !strings.HasPrefix(err.Error(), "shard: "+want) {
			t.Errorf("Run() = %v, want an error about %q", err, want)
		}
	}
	g := newStore().group("a", 4)
	if err := g.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "work is nil") {
		t.Errorf("Run() = %v, want an error about work", err)
	}
	if s := g.Status(); s.Replicas != 0 || g.Owned() != nil {
		t.Errorf("Status() = %+v before Run", s)
	}
}

// TestSlowResponses: ownership counts from when a renewal was sent, and not from its
// response.
//
// Proves SH1.
func TestSlowResponses(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, _ *judge) {
		const slow = 4 * time.Second
		g := s.group("a", 1)
		ends := make(chan time.Time, 1)
		_, _ = run(t, g, func(ctx context.Context, _ shard.Shard) error {
			<-ctx.Done()
			ends <- time.Now()
			return nil
		})
		settle()
		c := g.Leases.(*client)
		sent := make(chan time.Time, 10)
		c.On(func(verb, _ string) (f fault) {
			if verb == "update" {
				sent <- time.Now()
				f.After = slow
			}
			return f
		})
		last := <-sent                      // and the next one is sent at its response
		time.Sleep(slow + time.Millisecond) // its response has arrived
		c.Partition(true)
		end := <-ends
		for len(sent) > 0 {
			last = <-sent
		}
		if took := end.Sub(last); took > renewDeadline+time.Millisecond {
			t.Errorf("the work ended %v after the last renewal was sent, want at most %v", took, renewDeadline)
		}
	})
}

// TestUnsureOffer: a replica has offered a shard, on which it does not work, to another one,
// without a response. If it should own the shard again, it does not begin in the same term,
// because the write may still be stored.
//
// Proves SH1.
func TestUnsureOffer(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		replicas := startAll(t, s, j, 2, 2, 0)
		a := replicas[0]
		var offered time.Time
		a.client.On(func(verb, name string) (f fault) {
			if verb == "update" && name == groupName && offered.IsZero() {
				offered = time.Now()
				f.Before = renewDeadline/2 + time.Second // it is stored after its sender gave up
			}
			return f
		})
		// Another user gives both shards to a, which offers one to c.
		uid := string(s.get(s.of(t, "r00")).UID)
		s.Edit(t, groupName, func(l *coordinationv1.Lease) {
			*l.Spec.LeaseTransitions++
			l.Annotations["controllerkit.github.io/shard-table"] = fmt.Sprintf(
				`{"shards":2,"field":"object.metadata.uid","holders":[{"name":"r00","uid":%q}],"owners":[0,0],"terms":[%d,%[2]d]}`, uid, *l.Spec.LeaseTransitions)
			j.mu.Lock()
			clear(j.owners) // the edit overlaps
			j.mu.Unlock()
		})
		time.Sleep(renewDeadline/2 + 100*time.Millisecond)
		synctest.Wait()
		if offered.IsZero() || j.counts()["r00"] != 1 {
			t.Fatalf("the owners are %v, and a has offered a shard: %t", j.counts(), !offered.IsZero())
		}
		// c seems to want no shard, until its next renewal.
		s.Edit(t, s.of(t, "r01"), func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{"controllerkit.github.io/shard-max": "0"}
		})
		synctest.Wait()
		a.client.Partition(true) // so that it does not see the write
		time.Sleep(2 * leaseDuration)
		synctest.Wait()
		j.expect(t, 1, 2)
	})
}

// TestLeaveIsAnnounced: a replica that leaves hands nothing over before others can know that
// it leaves. Otherwise they give shards back.
//
// Proves SH5.
func TestLeaveIsAnnounced(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		replicas := startAll(t, s, j, 4, 32, 0)
		j.moves()
		name := s.of(t, "r02")
		replicas[2].client.On(func(_, n string) (f fault) {
			if n == name {
				f.Before = retryPeriod / 2
			}
			return f
		})
		if err := replicas[2].stop(); err != nil {
			t.Error(err)
		}
		settle()
		j.expect(t, 3, 32)
		if moves := j.moves(); moves != 8 {
			t.Errorf("%d shards moved, want 8", moves)
		}
	})
}

// TestSuspended: if the wall clock shows that the machine was suspended for RenewDeadline,
// the shards are lost at once, although the monotonic clock stood still.
//
// Proves SH1.
func TestSuspended(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, _ *judge) {
		var suspended atomic.Int64
		g := s.group("a", 1)
		g.SetWall(func(now time.Time) time.Time { return now.Round(0).Add(time.Duration(suspended.Load())) })
		contexts := make(chan context.Context, 2)
		_, _ = run(t, g, func(ctx context.Context, _ shard.Shard) error {
			contexts <- ctx
			<-ctx.Done()
			return nil
		})
		ctx := <-contexts
		sh, _ := shard.From(ctx)
		if err := sh.Check(ctx); err != nil {
			t.Errorf("Check() = %v, want nil", err)
		}
		suspended.Store(int64(renewDeadline))
		if err := sh.Check(ctx); !errors.Is(err, shard.ErrLost) || !errors.Is(context.Cause(ctx), shard.ErrLost) {
			t.Errorf("Check() = %v, and the cause is %v, want ErrLost", err, context.Cause(ctx))
		}
		settle()
		if later, _ := shard.From(<-contexts); later.Term <= sh.Term {
			t.Errorf("the shard is owned again in term %d, want one after %d", later.Term, sh.Term)
		}
	})
}

func untilDone(ctx context.Context, _ shard.Shard) error {
	<-ctx.Done()
	return nil
}
