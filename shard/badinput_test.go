package shard_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/shard"
)

// TestOtherRanges: a replica with other Ranges waits, with an error in Status that has
// both. It never works, and does not disturb the others.
//
// Proves SH1.
func TestOtherRanges(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		startAll(t, s, j, 2, 8, 0)
		j.moves()
		for _, tt := range []struct {
			ranges shard.Ranges
			want   string
		}{
			{shard.Ranges{N: 16}, "N 16, object.metadata.uid, equal ranges"},
			{shard.Ranges{N: 8, ByNamespace: true}, "N 8, object.metadata.namespace, equal ranges"},
			{shard.Ranges{N: 8, Starts: []uint64{1, 2, 3, 4, 5, 6, 7}}, "N 8, object.metadata.uid, Starts with the checksum 374b1d25"},
		} {
			g := s.group("other", 1)
			g.Ranges = tt.ranges
			before := *s.get(groupName).Spec.LeaseTransitions
			r := j.start(t, g, 0)
			time.Sleep(2 * leaseDuration)
			synctest.Wait()
			const but = "shard: the Ranges are (%s), but Lease ns/group has the Ranges (N 8, object.metadata.uid, equal ranges): " + waits
			if err, want := g.Status().Err, fmt.Sprintf(but, tt.want); err == nil || err.Error() != want {
				t.Errorf("Status().Err = %v, want %q", err, want)
			}
			if err := r.stop(); err != nil {
				t.Errorf("Run() = %v", err)
			}
			if writes := *s.get(groupName).Spec.LeaseTransitions - before; writes > 0 {
				t.Errorf("%d versions of the table were written", writes)
			}
		}
		if moves := j.moves(); moves != 0 {
			t.Errorf("%d shards moved", moves)
		}
	})
}

// tables are texts that are no table of eight shards.
var tables = map[string]string{
	"empty":          "",
	"garbage":        "{\"shards\":",
	"no shards":      `{"shards":0,"field":"object.metadata.uid","holders":[],"owners":[],"terms":[]}`,
	"many shards":    `{"shards":1000000000,"field":"object.metadata.uid","holders":[],"owners":[],"terms":[]}`,
	"few owners":     `{"shards":2,"field":"object.metadata.uid","holders":[],"owners":[-1],"terms":[0,0]}`,
	"unknown holder": `{"shards":1,"field":"object.metadata.uid","holders":[],"owners":[0],"terms":[0]}`,
	"unknown field":  `{"shards":1,"field":"uid","holders":[],"owners":[-1],"terms":[0]}`,
	"equal starts":   `{"shards":3,"field":"object.metadata.uid","starts":[5,5],"holders":[],"owners":[-1,-1,-1],"terms":[0,0,0]}`,
	"no uid":         `{"shards":1,"field":"object.metadata.uid","holders":[{"name":"a"}],"owners":[0],"terms":[0]}`,
	"negative owner": `{"shards":1,"field":"object.metadata.uid","holders":[],"owners":[-2],"terms":[0]}`,
	"negative term":  `{"shards":1,"field":"object.metadata.uid","holders":[],"owners":[-1],"terms":[-1]}`,
	"late term":      `{"shards":1,"field":"object.metadata.uid","holders":[],"owners":[-1],"terms":[99999]}`,
	"1 MiB":          strings.Repeat("[", 1<<20),
}

// TestGarbage: if another user replaces the table by garbage, the replicas keep their
// shards and report it, and nothing moves until it is repaired. A new replica gets an
// error with the cure.
//
// Proves SH6 and SH7.
func TestGarbage(t *testing.T) {
	for name, text := range tables {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, j *judge) {
				replicas := startAll(t, s, j, 2, 8, 0)
				before := s.get(groupName)
				s.Edit(t, groupName, func(l *coordinationv1.Lease) { l.Annotations["controllerkit.github.io/shard-table"] = text })
				j.moves()
				time.Sleep(leaseDuration)
				synctest.Wait()
				j.expect(t, 2, 8)
				const want = "shard: annotation controllerkit.github.io/shard-table of Lease ns/group is not a table: use another Name, or stop all replicas and delete the Lease: "
				for _, r := range replicas {
					if err := r.Status().Err; err == nil || !strings.HasPrefix(err.Error(), want) || len(err.Error()) > 8<<10 {
						t.Errorf("Status().Err = %.300v, want %q", err, want)
					}
				}
				r := j.start(t, s.group("new", 8), 0)
				<-r.ended
				if r.err == nil || !strings.HasPrefix(r.err.Error(), want) {
					t.Errorf("Run() = %.300v, want %q", r.err, want)
				}
				s.Edit(t, groupName, func(l *coordinationv1.Lease) { l.Annotations = before.Annotations })
				if err := replicas[0].stop(); err != nil {
					t.Error(err)
				}
				settle()
				j.expect(t, 1, 8)
			})
		})
	}
}

// TestForeignLease: a Lease of another purpose under the group's name is not touched, and
// Run returns an error that names the cure.
//
// Proves SH6.
func TestForeignLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("a leader")}}
		lease.Namespace, lease.Name = namespace, groupName
		if _, err := s.Create(lease); err != nil {
			t.Fatal(err)
		}
		before := s.get(groupName).ResourceVersion
		r := j.start(t, s.group("a", 4), 0)
		<-r.ended
		if r.err == nil || !strings.Contains(r.err.Error(), "use another Name") {
			t.Errorf("Run() = %v, want the cure", r.err)
		}
		if after := s.get(groupName).ResourceVersion; after != before || s.Len() != 1 {
			t.Errorf("the Lease has version %s, want %s; %d Leases", after, before, s.Len())
		}
		if moves := j.moves(); moves != 0 {
			t.Errorf("%d calls of work", moves)
		}
	})
}

// TestUnauthorized: a replica whose token has expired and is replaced joins again. If its token
// was never accepted, Run returns an error after StartTimeout.
func TestUnauthorized(t *testing.T) {
	unauthorized := func(string, string) fault { return fault{Err: apierrors.NewUnauthorized("Unauthorized")} }
	bubble(t, func(t *testing.T, s *store, j *judge) {
		replicas := startAll(t, s, j, 2, 8, 0)
		replicas[0].client.On(unauthorized)
		time.Sleep(10 * time.Minute)
		if err := replicas[0].Status().Err; !apierrors.IsUnauthorized(err) {
			t.Errorf("Status().Err = %v, want Unauthorized", err)
		}
		replicas[0].client.On(nil)
		settle()
		j.expect(t, 2, 8)
	})
	bubble(t, func(t *testing.T, s *store, j *judge) {
		g := s.group("a", 4)
		g.Leases.(*client).On(unauthorized)
		r := j.start(t, g, 0)
		began := time.Now()
		<-r.ended
		if took := time.Since(began); !apierrors.IsUnauthorized(r.err) || took < 20*time.Second || took > 30*time.Second {
			t.Errorf("Run() = %v after %v, want Unauthorized after StartTimeout", r.err, took)
		}
	})
}

// TestForbidden: if the API server rejects one kind of request, Run returns an error after
// StartTimeout, or keeps the shards and reports it.
//
// Proves SH7.
func TestForbidden(t *testing.T) {
	forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), "", errors.New("a policy denies it"))
	for _, verb := range []string{"list", "create"} {
		t.Run("start "+verb, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, j *judge) {
				g := s.group("a", 4)
				g.Leases.(*client).On(func(v, _ string) (f fault) {
					if v == verb {
						f.Err = forbidden
					}
					return f
				})
				r := j.start(t, g, 0)
				began := time.Now()
				<-r.ended
				if r.err == nil || !strings.Contains(r.err.Error(), "a policy denies it") {
					t.Errorf("Run() = %v, want the reason", r.err)
				}
				if took := time.Since(began); took < 20*time.Second || took > 30*time.Second {
					t.Errorf("Run returned after %v, want StartTimeout", took)
				}
			})
		})
	}
	t.Run("the table", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store, j *judge) {
			replicas := startAll(t, s, j, 2, 8, 0)
			deny := func(verb, name string) (f fault) {
				if verb == "update" && name == groupName {
					f.Err = forbidden
				}
				return f
			}
			for _, r := range replicas {
				r.client.On(deny)
			}
			j.moves()
			third := s.group("third", 8)
			third.Leases.(*client).On(deny)
			j.start(t, third, 0)
			time.Sleep(time.Minute)
			synctest.Wait()
			for _, r := range replicas {
				if err := r.Status().Err; err == nil || !strings.Contains(err.Error(), "a policy denies it") {
					t.Errorf("Status().Err = %v, want the reason", err)
				}
				r.client.Requests()
			}
			time.Sleep(time.Minute)
			for _, r := range replicas {
				if n := r.client.Requests()["update"]; n > 100 {
					t.Errorf("%d updates in a minute", n)
				}
			}
			for _, r := range replicas {
				r.client.On(nil)
			}
			third.Leases.(*client).On(nil)
			settle()
			j.expect(t, 3, 8)
			for _, r := range replicas {
				if err := r.Status().Err; err != nil {
					t.Errorf("Status().Err = %v, want nil", err)
				}
			}
		})
	})
	t.Run("a replica's Lease", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store, j *judge) {
			replicas := startAll(t, s, j, 2, 8, 0)
			name := s.of(t, "r00")
			replicas[0].client.On(func(_, n string) (f fault) {
				if n == name {
					f.Err = forbidden
				}
				return f
			})
			<-replicas[0].ended
			if err := replicas[0].err; err == nil || !strings.Contains(err.Error(), "a policy denies it") {
				t.Errorf("Run() = %v, want the reason", err)
			}
			settle()
			j.expect(t, 1, 8)
		})
	})
}

// TestForbiddenLists: a member that may neither list nor watch any more says so until it may.
func TestForbiddenLists(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		replicas := startAll(t, s, j, 2, 8, 0)
		replicas[0].client.On(func(verb, _ string) (f fault) {
			if verb == "list" || verb == "watch" {
				f.Err = apierrors.NewForbidden(coordinationv1.Resource("leases"), "", errors.New("a policy denies it"))
			}
			return f
		})
		for _, w := range s.Watches() {
			w.Stop()
		}
		time.Sleep(time.Minute)
		if err := replicas[0].Status().Err; err == nil || !strings.Contains(err.Error(), "a policy denies it") {
			t.Errorf("Status().Err = %v, want the reason", err)
		}
		replicas[0].client.On(nil)
		settle()
		if err := replicas[0].Status().Err; err != nil {
			t.Errorf("Status().Err = %v, want nil", err)
		}
		j.expect(t, 2, 8)
	})
}

// TestShortened: an admission plugin stores so short a duration that an epoch would end before its renewal.
// A new replica gives up, one that runs waits for the plugin to be changed, and both write seldom.
func TestShortened(t *testing.T) {
	for _, seconds := range []int32{0, 5, 7} {
		t.Run(fmt.Sprintf("to %ds", seconds), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, j *judge) {
				old := startAll(t, s, j, 1, 8, 0)[0]
				s.Admit = func(lease *coordinationv1.Lease) {
					if lease.Name != groupName {
						lease.Spec.LeaseDurationSeconds = &seconds
					}
				}
				g := s.group("new", 8)
				began := time.Now()
				r := j.start(t, g, 0)
				<-r.ended
				if r.err == nil || !strings.Contains(r.err.Error(), "leaseDurationSeconds") || !strings.Contains(r.err.Error(), "StartTimeout") {
					t.Errorf("Run() = %v, want an error that says who shortened what", r.err)
				}
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("Run returned after %v, want StartTimeout", took)
				}
				old.client.Requests()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				for _, c := range []*client{old.client, g.Leases.(*client)} {
					if n := c.Requests(); n["create"]+n["update"]+n["delete"] > 60 {
						t.Errorf("the requests are %v", n)
					}
				}
			})
		})
	}
}

// TestDeleted: if another user deletes a Lease of the group, no shard has two owners, and
// all have one again.
//
// Proves SH3.
func TestDeleted(t *testing.T) {
	for _, who := range []string{"table", "replica"} {
		for _, watches := range []bool{true, false} {
			t.Run(who, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *store, j *judge) {
					replicas := startAll(t, s, j, 3, 8, 0)
					if !watches {
						for _, r := range replicas {
							r.client.On(func(verb, _ string) (f fault) {
								if verb == "watch" {
									f.Err = errors.New("no watch")
								}
								return f
							})
						}
						time.Sleep(11 * time.Minute) // the first watches end
					}
					name := groupName
					if who == "replica" {
						name = s.of(t, "r01")
					}
					if err := s.Delete(name, nil); err != nil {
						t.Fatal(err)
					}
					time.Sleep(leaseDuration + 10*retryPeriod)
					synctest.Wait()
					j.expect(t, 3, 8)
				})
			})
		}
	}
}

// TestDeletedOfOthers: if the table is deleted while a replica that owns its shards for longer is
// cut off, the others wait as long as the Lease of that replica says.
//
// Proves SH3.
func TestDeletedOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		g := s.group("long", 4)
		g.LeaseDuration, g.RenewDeadline = 137*time.Second, 90*time.Second
		long := j.start(t, g, 0)
		settle()
		j.expect(t, 1, 4)
		j.start(t, s.group("short", 4), 0)
		settle()
		j.expect(t, 2, 4)
		long.client.Partition(true)
		if err := s.Delete(groupName, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(137*time.Second + 2*retryPeriod)
		synctest.Wait()
		if got := j.counts(); got["short"] != 4 {
			t.Errorf("the shards have the owners %v after the LeaseDuration of the replica that is cut off", got)
		}
	})
}

// TestEdited: if another user gives a shard to another replica, its work ends with ErrLost
// at the event.
func TestEdited(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		causes := make(chan error, 10)
		g := s.group("a", 1)
		g.Namespace, g.Name = namespace, groupName
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- g.Run(ctx, func(ctx context.Context, sh shard.Shard) error {
				<-ctx.Done()
				cause := context.Cause(ctx)
				time.Sleep(time.Nanosecond) // the context ends before Check fails
				if err := sh.Check(ctx); errors.Is(cause, shard.ErrLost) && !errors.Is(err, shard.ErrLost) {
					t.Errorf("Check() = %v, want ErrLost", err)
				}
				causes <- cause
				return nil
			})
		}()
		settle()
		s.Edit(t, groupName, func(l *coordinationv1.Lease) {
			text := l.Annotations["controllerkit.github.io/shard-table"]
			l.Annotations["controllerkit.github.io/shard-table"] = strings.Replace(text, `"uid":"uid-`, `"uid":"edited-`, 1)
		})
		synctest.Wait()
		if cause := <-causes; !errors.Is(cause, shard.ErrLost) {
			t.Errorf("the cause is %v, want ErrLost", cause)
		}
		// Nobody has the Lease of the edited owner.
		time.Sleep(leaseDuration + retryPeriod)
		synctest.Wait()
		if owned := g.Owned(); len(owned) != 1 {
			t.Errorf("Owned() = %v, want the shard again", owned)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestRestored: after etcd was restored to an earlier state, the replicas join again and all
// shards have owners. The versions go on from the backup's or, with etcdutl's flag
// --bump-revision, from a later one.
func TestRestored(t *testing.T) {
	version := func(s *store) int {
		events := s.Events()
		n, err := strconv.Atoi(events[len(events)-1].Lease().ResourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for name, raised := range map[string]func(lost int) int{
		"from the backup's":              func(int) int { return 0 },
		"from those after the last list": func(lost int) int { return lost - 8 },
		"from the last one":              func(lost int) int { return lost },
		"from a much later one":          func(int) int { return 1e9 },
	} {
		for when, joined := range map[string]bool{"of the replicas": true, "of the table alone": false} {
			t.Run(name+", a backup "+when, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *store, j *judge) {
					var replicas []*replica
					if joined {
						replicas = startAll(t, s, j, 3, 8, 0)
					} else if err := startAll(t, s, j, 1, 8, 0)[0].stop(); err != nil {
						t.Error(err)
					}
					restore, backup := s.Backup(), version(s)
					if !joined {
						replicas = startAll(t, s, j, 3, 8, 0)
					}
					replicas = append(replicas, j.start(t, s.group("r03", 8), 0))
					time.Sleep(4 * time.Minute)
					j.mu.Lock()
					j.lenient = true // owners can overlap, and terms repeat
					j.mu.Unlock()
					restore(raised(version(s) - backup))
					time.Sleep(leaseDuration + 10*retryPeriod)
					synctest.Wait()
					j.mu.Lock()
					j.lenient = false
					j.mu.Unlock()
					j.expect(t, 4, 8)
					for _, r := range replicas {
						if err := r.stop(); err != nil {
							t.Error(err)
						}
					}
				})
			})
		}
	}
}
