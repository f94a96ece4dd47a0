package external_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/fakeserver"
)

// quiet returns a service without trouble, and the settings with a size.
func quiet(s service) (*service, *fakeserver.Server) {
	s.do = func(call func() error) error { return call() }
	return &s, fakeserver.New(fakeserver.Settings(func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"size": "small"} }))
}

// ensure calls Ensure for the newest version until nothing is left to do.
func ensure(t *testing.T, m *fakeserver.Server, r external.Resource) external.Result {
	t.Helper()
	for range 50 {
		result, err := tryEnsure(t.Context(), m, m.Objects["settings"], r)
		if err != nil {
			t.Fatal(err)
		}
		if result.State != external.Busy {
			return result
		}
		time.Sleep(result.RequeueAfter)
	}
	t.Fatal("Ensure does not end")
	return external.Result{}
}

func annotate(m *fakeserver.Server, format string, args ...any) {
	obj := m.Objects["settings"].DeepCopy()
	metav1.SetMetaDataAnnotation(&obj.ObjectMeta, account, fmt.Sprintf(format, args...))
	m.Put(obj)
}

func deleting(m *fakeserver.Server) {
	obj := m.Objects["settings"].DeepCopy()
	obj.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	m.Put(obj)
}

// What Ensure and Delete do to a machine by its state and the policy.
//
// Proves EX3 and EX5.
func TestEnsureStates(t *testing.T) {
	t.Parallel()
	lists := service{finds: true}
	tests := []struct {
		name    string
		service service
		policy  external.Policy
		before  func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource)
		want    external.State
		sizes   string // of the machines that are there then
		writes  int    // to the object
		wantErr string
	}{
		{name: "none yet", service: lists, want: external.Current, sizes: "small", writes: 2},
		{name: "none yet, orphan", service: lists, policy: external.Orphan, want: external.Current, sizes: "small", writes: 2},
		{name: "none yet, observe only", service: lists, policy: external.ObserveOnly, want: external.Gone},
		{name: "observe only, made by another", service: lists, policy: external.ObserveOnly, want: external.Different, sizes: "big",
			before: func(_ *testing.T, s *service, m *fakeserver.Server, _ *external.Resource) {
				s.machines = []*machine{{id: "m", token: external.Token(m.Objects["settings"], account), size: "big"}}
			}},
		{name: "observe only, not managed any longer", service: lists, policy: external.ObserveOnly, want: external.Different, sizes: "big",
			before: func(_ *testing.T, s *service, m *fakeserver.Server, _ *external.Resource) {
				s.machines = []*machine{{id: "m", token: external.Token(m.Objects["settings"], account), size: "big"}}
				annotate(m, `{"token":%q,"id":"m"}`, external.Token(m.Objects["settings"], account))
			}},
		{name: "adopted", service: lists, want: external.Current, sizes: "small", writes: 2,
			before: func(_ *testing.T, s *service, m *fakeserver.Server, _ *external.Resource) {
				s.machines = []*machine{{id: "m", token: external.Token(m.Objects["settings"], account), size: "big"}}
			}},
		{name: "drift", service: lists, want: external.Current, sizes: "small",
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				s.machines[0].size = "big"
			}},
		{name: "drift without Update", service: lists, want: external.Different, sizes: "big",
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				s.machines[0].size, r.Update = "big", nil
			}},
		{name: "an Update without effect", service: lists, sizes: "big", wantErr: "is Different also after Update",
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				s.machines[0].size, r.Update = "big", func(context.Context, string) error { return nil }
			}},
		{name: "deleted by somebody", service: lists, want: external.Current, sizes: "small", writes: 2,
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				s.machines[0].deleted = true
			}},
		{name: "deleted by somebody, where ids are names", service: service{named: true}, want: external.Current, sizes: "small", writes: 2,
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				s.machines[0].deleted = true
			}},
		{name: "deleted by somebody, still listed", service: lists, want: external.Current, sizes: "small", writes: 2,
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				s.machines[0].deleted = true
				find, first := r.Find, s.machines[0].id
				r.Find = func(ctx context.Context, token string) (string, bool, error) {
					if id, found, err := find(ctx, token); found || err != nil {
						return id, found, err
					}
					return first, true, nil
				}
			}},
		{name: "a key that is remembered, with Replace", service: service{key: time.Hour, undead: true}, want: external.Current, sizes: "small", writes: 2,
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				s.machines[0].deleted = true
			}},
		{name: "a key that is remembered, without Replace", service: service{key: time.Hour, undead: true}, writes: 1, wantErr: "set Resource.Replace",
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				s.machines[0].deleted, r.Replace = true, nil
			}},
		{name: "an id that somebody edited, own machine there", service: lists, sizes: "small theirs", wantErr: "is machine-1, so theirs is not used",
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				s.machines = append(s.machines, &machine{id: "theirs", token: "their token", size: "theirs"})
				annotate(m, `{"token":%q,"id":"theirs"}`, external.Token(m.Objects["settings"], account))
			}},
		{name: "an id that somebody edited, no own machine", service: lists, sizes: "theirs", wantErr: "so theirs is not used",
			before: func(_ *testing.T, s *service, m *fakeserver.Server, _ *external.Resource) {
				s.machines = []*machine{{id: "theirs", token: "their token", size: "theirs"}}
				annotate(m, `{"token":%q,"id":"theirs"}`, external.Token(m.Objects["settings"], account))
			}},
		{name: "an intent that is too old", service: service{key: time.Hour}, wantErr: "the service may have forgotten its token",
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) {
				annotate(m, `{"token":%q,"since":"1999-12-31T23:14:59Z"}`, external.Token(m.Objects["settings"], account))
			}},
		{name: "an intent that is nearly too old", service: service{key: time.Hour}, want: external.Current, sizes: "small", writes: 1,
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) {
				annotate(m, `{"token":%q,"since":"1999-12-31T23:15:00Z"}`, external.Token(m.Objects["settings"], account))
			}},
		{name: "an intent whose first try is too old", service: service{key: time.Hour, visible: time.Minute}, wantErr: "the service may have forgotten its token",
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) {
				annotate(m, `{"token":%q,"since":"1999-12-31T23:59:00Z","first":"1999-12-31T23:14:59Z"}`, external.Token(m.Objects["settings"], account))
			}},
		{name: "an intent whose first try is nearly too old", service: service{key: time.Hour, visible: time.Minute}, want: external.Current, sizes: "small", writes: 2,
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) {
				annotate(m, `{"token":%q,"since":"1999-12-31T23:59:00Z","first":"1999-12-31T23:15:00Z"}`, external.Token(m.Objects["settings"], account))
			}},
		{name: "an intent that is young", service: service{key: time.Hour}, want: external.Current, sizes: "small", writes: 1,
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) {
				annotate(m, `{"token":%q,"since":"1999-12-31T23:45:00Z"}`, external.Token(m.Objects["settings"], account))
			}},
		{name: "unreadable, keys forgotten", service: service{key: time.Hour}, wantErr: "the service may have forgotten its token",
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) { annotate(m, "x") }},
		{name: "being deleted", service: lists, wantErr: "call Delete in the cleanup",
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) { deleting(m) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // where it is 2000-01-01
				s, m := quiet(tt.service)
				r := s.machine("small")
				r.Policy = tt.policy
				if tt.before != nil {
					tt.before(t, s, m, &r)
				}
				m.Writes = 0
				var got external.Result
				if tt.wantErr == "" {
					got = ensure(t, m, r)
				} else if _, err := tryEnsure(t.Context(), m, m.Objects["settings"], r); err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error = %v, want %q", err, tt.wantErr)
				}
				var sizes []string
				for _, m := range s.here() {
					sizes = append(sizes, m.size)
				}
				if got.State != tt.want || strings.Join(sizes, " ") != tt.sizes || m.Writes != tt.writes {
					t.Errorf("the state is %s, the machines are %s after %d writes; want %s, %s, %d", got.State, sizes, m.Writes, tt.want, tt.sizes, tt.writes)
				}
				if got.State != "" && (got.RequeueAfter < 9*time.Minute || got.RequeueAfter > 10*time.Minute) {
					t.Errorf("RequeueAfter = %v, want nine to ten minutes", got.RequeueAfter)
				}
			})
		})
	}
}

// If reads lag, Ensure sees late that a service returned the id of the thing that is gone: it has an
// error if that repeats, and goes on, because a thing of the same name may be gone again.
func TestEnsureSameID(t *testing.T) {
	t.Parallel()
	lag := service{lag: 5 * time.Second, visible: time.Minute}
	keys, names, forgetful := lag, lag, lag
	keys.finds, keys.key, keys.undead = true, time.Hour, true
	names.named = true
	forgetful.named, forgetful.key = true, time.Hour
	for _, tt := range []struct {
		name    string
		service service
		errors  []bool // whether there are any after each time that the machine is gone
		left    int    // machines
	}{
		{name: "a key that is remembered", service: keys, errors: []bool{true}},
		{name: "a name", service: names, errors: []bool{false, true, true}, left: 1},
		{name: "a name, no list", service: forgetful, errors: []bool{false, true, true}, left: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, m := quiet(tt.service)
				r := s.machine("new")
				r.Replace = nil
				ensure(t, m, r)
				for n, want := range tt.errors {
					s.machines[n].deleted = true
					fails := 0
					for begin := time.Now(); time.Since(begin) < 10*time.Minute; {
						result, err := tryEnsure(t.Context(), m, m.Objects["settings"], r)
						if err != nil && (isTerminal(err) || !strings.Contains(err.Error(), "set Resource.Replace")) {
							t.Fatal(err)
						} else if err != nil {
							fails++
						}
						time.Sleep(max(result.RequeueAfter, time.Second))
					}
					if fails > 0 != want || len(s.here()) != tt.left || tt.left > 0 && fails > 1 {
						t.Errorf("the machine is gone for the time %d: %d errors, and %d machines are left", n+1, fails, len(s.here()))
					}
				}
			})
		})
	}
}

// A stored id whose time is in the future, of a clock that was wrong, and whose thing reads do not show
// yet is no reason for a second thing, and Delete leaves no thing behind.
//
// Proves EX4.
func TestIDFromTheFuture(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, m := quiet(service{finds: true, lag: 30 * time.Second, visible: time.Minute})
			r := s.machine("small")
			for range 2 { // stores the intent, and waits; then creates
				if result, err := tryEnsure(t.Context(), m, m.Objects["settings"], r); err != nil {
					t.Fatal(err)
				} else if len(s.machines) == 0 {
					time.Sleep(result.RequeueAfter)
				}
			}
			annotate(m, `{"token":%q,"since":"2100-01-01T00:00:00Z","id":"machine-1"}`, external.Token(m.Objects["settings"], account))
			call := func() (time.Duration, error) {
				if gone {
					err := external.Delete(t.Context(), m, m.Objects["settings"], r)
					var waits controllerkit.WaitingError
					if errors.As(err, &waits) {
						return waits.Waits(), nil
					}
					return 0, err
				}
				result, err := tryEnsure(t.Context(), m, m.Objects["settings"], r)
				return result.RequeueAfter, err
			}
			for n := range 10 {
				wait, err := call()
				if err != nil {
					t.Fatal(err)
				}
				if n == 0 && wait != time.Minute {
					t.Errorf("the first wait is %v, want VisibleAfter", wait)
				}
				if wait == 0 {
					break
				}
				time.Sleep(wait)
			}
			if want := map[bool]int{false: 1, true: 0}[gone]; len(s.machines) != 1 || len(s.here()) != want {
				t.Errorf("delete %t: %d machines of %d are left, want %d of 1", gone, len(s.here()), len(s.machines), want)
			}
		})
	}
}

// A stale object updates and replaces nothing.
//
// Proves EX3.
func TestEnsureGuard(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, m := quiet(service{finds: true})
			ensure(t, m, s.machine("small"))
			old := m.Objects["settings"].DeepCopy()
			m.Put(old)
			s.machines[0].deleted = gone
			result, err := tryEnsure(t.Context(), m, old, s.machine("old size"))
			if !apierrors.IsConflict(err) || s.machines[0].size != "small" || len(s.machines) != 1 {
				t.Errorf("gone %t: Ensure() = %+v, %v with machines %+v, want a Conflict and no change", gone, result, err, s.machines)
			}
		})
	}
}

// What Delete does.
//
// Proves EX4 and EX5.
func TestDelete(t *testing.T) {
	t.Parallel()
	lists, keys := service{finds: true}, service{key: time.Hour}
	intent := func(since string) func(*testing.T, *service, *fakeserver.Server, *external.Resource) {
		return func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) {
			annotate(m, `{"token":%q,"since":%q}`, external.Token(m.Objects["settings"], account), since)
			deleting(m)
		}
	}
	made := func(t *testing.T, _ *service, m *fakeserver.Server, r *external.Resource) {
		ensure(t, m, *r)
		deleting(m)
	}
	again := func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
		id := ensure(t, m, *r).ID
		s.machines[0].deleted = true
		annotate(m, `{"token":%q,"since":%q,"gone":%q}`, external.Token(m.Objects["settings"], account), time.Now().Add(-r.VisibleAfter).UTC().Format(time.RFC3339Nano), id)
		deleting(m)
	}
	tests := []struct {
		name    string
		service service
		policy  external.Policy
		before  func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource)
		left    int // machines
		wait    time.Duration
		writes  int
		wantErr string
	}{
		{name: "nothing was made", service: lists},
		{name: "made", service: lists, before: made},
		{name: "made, orphan", service: lists, policy: external.Orphan, left: 1, before: made},
		{name: "made, observe only", service: lists, policy: external.ObserveOnly, left: 1,
			before: func(t *testing.T, _ *service, m *fakeserver.Server, r *external.Resource) {
				manage := *r
				manage.Policy = external.Manage
				ensure(t, m, manage)
				deleting(m)
			}},
		{name: "made, of an object that lives on", service: lists, writes: 1,
			before: func(t *testing.T, _ *service, m *fakeserver.Server, r *external.Resource) { ensure(t, m, *r) }},
		{name: "the id was not stored", service: lists,
			before: func(t *testing.T, _ *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				annotate(m, `{"token":%q}`, external.Token(m.Objects["settings"], account))
				deleting(m)
			}},
		{name: "the annotation was removed", service: lists,
			before: func(t *testing.T, _ *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				obj := m.Objects["settings"].DeepCopy()
				obj.Annotations = nil
				m.Put(obj)
				deleting(m)
			}},
		{name: "a slow deletion", service: service{finds: true, late: time.Minute}, left: 1, wait: 5 * time.Second, before: made},
		{name: "an intent that reads may not show yet", service: service{finds: true, visible: time.Minute}, wait: 40 * time.Second, before: intent("1999-12-31T23:59:40Z")},
		{name: "an intent of long ago", service: service{finds: true, visible: time.Minute}, before: intent("1999-12-31T23:59:00Z")},
		{name: "an intent from the future", service: service{finds: true, visible: time.Minute}, wait: time.Minute, writes: 1, before: intent("2100-01-01T00:00:00Z")},
		{name: "an id from the future", service: service{finds: true, visible: time.Minute}, wait: time.Minute, writes: 1,
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) {
				annotate(m, `{"token":%q,"since":"2100-01-01T00:00:00Z","id":"machine-1"}`, external.Token(m.Objects["settings"], account))
				deleting(m)
			}},
		{name: "unreadable", service: lists,
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) {
				annotate(m, "x")
				deleting(m)
			}},
		{name: "unreadable, keys forgotten", service: keys, wantErr: "may have forgotten",
			before: func(_ *testing.T, _ *service, m *fakeserver.Server, _ *external.Resource) {
				annotate(m, "x")
				deleting(m)
			}},
		{name: "no list, an intent", service: keys, left: 1, wait: time.Second, writes: 1, before: intent("1999-12-31T23:50:00Z")},
		{name: "no list, an intent of long ago", service: keys, wantErr: "may have forgotten", before: intent("1999-12-31T23:00:00Z")},
		{name: "no list, an intent after a machine of the same name", service: service{named: true, key: time.Hour}, left: 1, wait: time.Second, writes: 1, before: again},
		{name: "the same, late", service: service{named: true, key: time.Hour, lag: 5 * time.Second, visible: time.Minute}, left: 1, wait: time.Second, writes: 2, before: again},
		{name: "no list, an intent after a machine whose key is remembered", service: service{key: time.Hour, undead: true}, wait: time.Second, writes: 1,
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				again(t, s, m, r)
				r.Replace = nil
			}},
		{name: "an id that somebody edited", service: lists, left: 1, wantErr: "so theirs is not used",
			before: func(_ *testing.T, s *service, m *fakeserver.Server, _ *external.Resource) {
				s.machines = []*machine{{id: "theirs", token: "their token", size: "theirs"}}
				annotate(m, `{"token":%q,"id":"theirs"}`, external.Token(m.Objects["settings"], account))
				deleting(m)
			}},
		{name: "an id that is gone, own machine there", service: lists,
			before: func(t *testing.T, _ *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				annotate(m, `{"token":%q,"id":"machine-0"}`, external.Token(m.Objects["settings"], account))
				deleting(m)
			}},
		{name: "an id that is gone, own machine there, of an object that lives on", service: lists, writes: 1,
			before: func(t *testing.T, _ *service, m *fakeserver.Server, r *external.Resource) {
				ensure(t, m, *r)
				annotate(m, `{"token":%q,"id":"machine-0"}`, external.Token(m.Objects["settings"], account))
			}},
		{name: "gone, still listed", service: lists,
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				made(t, s, m, r)
				s.machines[0].deleted = true
				r.Find = func(context.Context, string) (string, bool, error) { return s.machines[0].id, true, nil }
			}},
		{name: "Delete fails", service: lists, left: 1, wantErr: "access denied",
			before: func(t *testing.T, s *service, m *fakeserver.Server, r *external.Resource) {
				made(t, s, m, r)
				r.Delete = func(context.Context, string) error { return errors.New("access denied") }
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, m := quiet(tt.service)
				r := s.machine("small")
				r.Policy = tt.policy
				if tt.before != nil {
					tt.before(t, s, m, &r)
				}
				m.Writes = 0
				wait, err := deleted(t.Context(), m, m.Objects["settings"], r)
				if wait != tt.wait || tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
					t.Errorf("Delete() = %v, %v; want %v, %q", wait, err, tt.wait, tt.wantErr)
				}
				if len(s.here()) != tt.left || m.Writes != tt.writes {
					t.Errorf("%d machines are left after %d writes, want %d and %d", len(s.here()), m.Writes, tt.left, tt.writes)
				}
				for range 50 {
					if wait == 0 || err != nil {
						break
					}
					time.Sleep(wait)
					wait, err = deleted(t.Context(), m, m.Objects["settings"], r)
				}
				if tt.wait > 0 && (wait > 0 || err != nil || len(s.here()) > 0) {
					t.Errorf("in the end Delete() = %v, %v, and %d machines are left", wait, err, len(s.here()))
				}
			})
		})
	}
}

// A service makes a machine, its response is lost, and it is unreachable until it has forgotten the
// key: however often Ensure or Delete tried, a human decides.
//
// Proves EX1 and EX4.
func TestKeysLast(t *testing.T) {
	t.Parallel()
	for _, visible := range []time.Duration{0, time.Minute, 29 * time.Minute} {
		for _, remove := range []bool{false, true} {
			t.Run(fmt.Sprint(visible, " ", remove), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s, m := quiet(service{key: time.Hour, visible: visible})
					r, start := s.machine("new"), time.Now()
					s.do = func(call func() error) error {
						switch {
						case s.creates == 0:
							return errors.Join(io.ErrUnexpectedEOF, call())
						case time.Since(start) <= s.key:
							return io.ErrUnexpectedEOF
						}
						return call()
					}
					m.Writes = 0
					var err error
					for ; time.Since(start) < 2*s.key; time.Sleep(time.Minute) {
						if remove && s.creates > 0 {
							_, err = deleted(t.Context(), m, m.Objects["settings"], r)
						} else if _, err = tryEnsure(t.Context(), m, m.Objects["settings"], r); remove {
							deleting(m)
						}
						if isTerminal(err) && time.Since(start) <= s.key*3/4 {
							t.Fatalf("after %v: %v", time.Since(start), err)
						}
					}
					if !isTerminal(err) || !strings.Contains(err.Error(), "may have forgotten") || s.creates != 1 {
						t.Errorf("%d machines were made, and the error is %v; want 1, and that the service may have forgotten", s.creates, err)
					}
					if visible == 0 && m.Writes != 1 {
						t.Errorf("%d writes, want only that of the intent: a write repeats Create without a backoff", m.Writes)
					}
				})
			})
		}
	}
}

// Delete of a stale object that lives on fails also if there is no machine: an Ensure of the newest
// version may be about to make one.
//
// Proves EX4.
func TestDeleteNothingGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // where it is 2000-01-01
		for _, kind := range []service{{finds: true}, {name: "lists the gone", finds: true}, {finds: true, visible: time.Minute}, {named: true}, {key: time.Hour}} {
			for _, value := range []string{"", `{"token":%q,"gone":"machine-0"}`, `{"token":%q,"since":"1999-12-31T23:50:00Z"}`} {
				s, m := quiet(kind)
				r := s.machine("new")
				if s.name != "" && value == "" {
					r.Find = func(context.Context, string) (string, bool, error) { return "machine-0", true, nil }
				}
				if value != "" {
					annotate(m, value, external.Token(m.Objects["settings"], account))
				}
				old := m.Objects["settings"].DeepCopy()
				m.Put(old)
				m.Writes = 0
				if wait, err := deleted(t.Context(), m, old, r); !apierrors.IsConflict(err) || m.Writes > 0 {
					t.Errorf("%+v, %q: Delete() of a stale object = %v, %v after %d writes, want a Conflict", kind, value, wait, err, m.Writes)
				}
				if wait, err := deleted(t.Context(), m, m.Objects["settings"], r); err != nil || wait == 0 && m.Writes > 0 {
					t.Errorf("%+v, %q: Delete() = %v, %v after %d writes, want nil and none", kind, value, wait, err, m.Writes)
				}
			}
		}
	})
}

// A stale object that no longer wants its machine does not delete the one that it wants again.
func TestDeleteGuard(t *testing.T) {
	t.Parallel()
	s, m := quiet(service{finds: true})
	ensure(t, m, s.machine("new"))
	old := m.Objects["settings"].DeepCopy()
	m.Put(old)
	if wait, err := deleted(t.Context(), m, old, s.machine("new")); !apierrors.IsConflict(err) || len(s.here()) != 1 {
		t.Errorf("Delete() = %v, %v, and %d machines are left; want a Conflict and 1", wait, err, len(s.here()))
	}
}

// In a preview, Ensure and Delete note what they would do.
func TestLifePreview(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, m := quiet(service{finds: true})
		var notes []string
		ctx := context.WithValue(t.Context(), calls.Preview{}, func(what string) { notes = append(notes, what) })
		do := func(size string) {
			if _, err := tryEnsure(ctx, m, m.Objects["settings"], s.machine(size)); err != nil {
				t.Error(err)
			}
		}
		do("small")
		ensure(t, m, s.machine("small"))
		do("small")
		do("big")
		for range 2 {
			if wait, err := deleted(ctx, m, m.Objects["settings"], s.machine("small")); wait != 0 || err != nil {
				t.Errorf("Delete() = %v, %v", wait, err)
			}
			s.machines[0].deleted = true
			notes = append(notes, "gone")
		}
		do("small")
		want := fmt.Sprint([]string{"create " + account, "update " + account, "delete " + account, "gone", "gone", "create " + account})
		if fmt.Sprint(notes) != want || s.creates != 1 || s.machines[0].size != "small" {
			t.Errorf("notes = %v after %d creates, want %v", notes, s.creates, want)
		}
	})
}

func TestLifeMisuse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		change func(*external.Resource)
		want   string
		delete bool // only Delete refuses it
	}{
		{change: func(r *external.Resource) { r.Observe = nil }, want: "Resource.Observe is nil"},
		{change: func(r *external.Resource) { r.Interval = -1 }, want: "Resource.Interval is -1ns"},
		{change: func(r *external.Resource) { r.Policy = 3 }, want: "Resource.Policy is 3"},
		{change: func(r *external.Resource) { r.Policy = -1 }, want: "Resource.Policy is -1"},
		{change: func(r *external.Resource) { r.KeysLast = -1 }, want: "Resource.KeysLast is -1ns"},
		{change: func(r *external.Resource) { r.KeysLast = time.Hour }, want: "Resource.KeysLast is for a service without Find"},
		{change: func(r *external.Resource) { r.Find = nil }, want: "Resource.Find is nil"},
		{change: func(r *external.Resource) { r.Find, r.KeysLast, r.VisibleAfter = nil, time.Hour, 30*time.Minute }, want: "Resource.KeysLast is 1h0m0s"},
		{change: func(r *external.Resource) { r.Annotation = "" }, want: "Resource.Annotation"},
		{change: func(r *external.Resource) {
			r.Observe = func(context.Context, string) (external.State, error) { return "", nil }
		}, want: `the state of Observe is ""`},
		{change: func(r *external.Resource) { r.Delete = nil }, want: "Resource.Delete is nil", delete: true},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			t.Parallel()
			s, m := quiet(service{finds: true})
			ensure(t, m, s.machine("new"))
			r := s.machine("new")
			tt.change(&r)
			if !tt.delete {
				if result, err := tryEnsure(t.Context(), m, m.Objects["settings"], r); !isTerminal(err) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Ensure() = %+v, %v; want a terminal error with %q", result, err, tt.want)
				}
			}
			if wait, err := deleted(t.Context(), m, m.Objects["settings"], r); wait != 0 || !isTerminal(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Delete() = %v, %v; want a terminal error with %q", wait, err, tt.want)
			}
		})
	}
}

// Look is not repeated for an object without Interval.
func TestNoInterval(t *testing.T) {
	t.Parallel()
	s, m := quiet(service{finds: true})
	r := s.machine("new")
	r.Interval = 0
	if result, err := tryEnsure(t.Context(), m, m.Objects["settings"], r); err != nil || result != (external.Result{ID: "machine-1", State: external.Current}) {
		t.Errorf("Ensure() = %+v, %v", result, err)
	}
}

// A name is free again after Delete: Once, which observes nothing, takes what it makes.
func TestOnceAfterDelete(t *testing.T) {
	t.Parallel()
	s, m := quiet(service{named: true})
	r := s.machine("new")
	first := ensure(t, m, r)
	if err := external.Delete(t.Context(), m, m.Objects["settings"], r); err != nil || len(s.here()) > 0 || external.ID(m.Objects["settings"], account) != "" {
		t.Fatalf("Delete() = %v, and %d machines are left", err, len(s.here()))
	}
	r.Observe = nil
	if id, wait, err := tryOnce(t.Context(), m, m.Objects["settings"], r); id != first.ID || wait != 0 || err != nil || len(s.here()) != 1 {
		t.Errorf("Once() = %q, %v, %v with %d machines; want %q and one", id, wait, err, len(s.here()), first.ID)
	}
}

// The error of each call to the service is that of Ensure and Delete.
func TestLifeErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, tt := range []struct {
		name   string
		policy external.Policy
		before func(s *service, m *fakeserver.Server)
		calls  int
		delete bool
	}{
		{name: "create", before: func(s *service, m *fakeserver.Server) { // before the first Ensure
			s.machines, m.Objects["settings"].Annotations = nil, nil
		}, calls: 3}, // find, create, observe
		{name: "observe", before: func(*service, *fakeserver.Server) {}, calls: 2}, // observe, find
		{name: "observe only", policy: external.ObserveOnly, before: func(*service, *fakeserver.Server) {}, calls: 2},
		{name: "update", before: func(s *service, _ *fakeserver.Server) { s.machines[0].size = "big" }, calls: 4},    // observe, find, update, observe
		{name: "replace", before: func(s *service, _ *fakeserver.Server) { s.machines[0].deleted = true }, calls: 3}, // observe, find, create
		{name: "watch", policy: external.ObserveOnly, before: func(_ *service, m *fakeserver.Server) { m.Objects["settings"].Annotations = nil }, calls: 2},
		{name: "delete", delete: true, before: func(_ *service, m *fakeserver.Server) { deleting(m) }, calls: 4}, // observe, find, delete, observe
		{name: "delete without an id", delete: true, before: func(_ *service, m *fakeserver.Server) { m.Objects["settings"].Annotations = nil; deleting(m) }, calls: 4},
		{name: "delete what is gone", delete: true, before: func(s *service, m *fakeserver.Server) { s.machines[0].deleted = true; deleting(m) }, calls: 2}, // observe, find
		{name: "delete, another id is stored", delete: true, before: func(_ *service, m *fakeserver.Server) {
			annotate(m, `{"token":%q,"id":"machine-0"}`, external.Token(m.Objects["settings"], account))
			deleting(m)
		}, calls: 5}, // observe, find, observe, delete, observe
		{name: "delete what has just gone", delete: true, before: func(s *service, m *fakeserver.Server) {
			deleting(m)
			s.finds = false
		}, calls: 3}, // observe, find, observe
	} {
		for fails := range tt.calls + 1 {
			s, m := quiet(service{finds: true})
			ensure(t, m, s.machine("new"))
			tt.before(s, m)
			r := s.machine("new")
			if !s.finds {
				r.KeysLast = 0
				r.Find = func(context.Context, string) (string, bool, error) {
					return "", false, s.do(func() error { return nil })
				}
			}
			r.Policy = tt.policy
			calls := 0
			s.do = func(call func() error) error {
				if calls++; calls == fails+1 {
					return broken
				}
				return call()
			}
			obj, err := m.Objects["settings"], error(nil)
			if tt.delete {
				err = external.Delete(t.Context(), m, obj, r)
			} else {
				_, err = tryEnsure(t.Context(), m, obj, r)
			}
			if fails < tt.calls && !errors.Is(err, broken) || calls != min(fails+1, tt.calls) {
				t.Errorf("%s, call %d fails: the error is %v after %d calls", tt.name, fails+1, err, calls)
			}
			if ok := err == nil || !s.finds; fails == tt.calls && !ok {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
	}
}

// The error of each request to the API server is that of Ensure and Delete.
func TestLifeStoreErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	synctest.Test(t, func(t *testing.T) { // where it is 2000-01-01
		for _, tt := range []struct {
			name    string
			service service
			before  func(s *service, m *fakeserver.Server)
			size    string
			writes  int
			delete  bool
		}{
			{name: "update", service: service{finds: true}, before: func(*service, *fakeserver.Server) {}, size: "big", writes: 1},
			{name: "replace", service: service{finds: true}, before: func(s *service, _ *fakeserver.Server) { s.machines[0].deleted = true }, size: "new", writes: 2},
			{name: "too old", service: service{key: time.Hour}, size: "new", writes: 1,
				before: func(_ *service, m *fakeserver.Server) {
					annotate(m, `{"token":%q}`, external.Token(m.Objects["settings"], account))
				}},
			{name: "delete of an object that lives on", service: service{finds: true}, before: func(*service, *fakeserver.Server) {}, size: "new", writes: 2, delete: true},
			{name: "delete, too old", service: service{key: time.Hour}, size: "new", writes: 1, delete: true,
				before: func(_ *service, m *fakeserver.Server) {
					annotate(m, `{"token":%q}`, external.Token(m.Objects["settings"], account))
				}},
			{name: "delete by another Create", service: service{key: time.Hour}, size: "new", writes: 2, delete: true,
				before: func(_ *service, m *fakeserver.Server) {
					annotate(m, `{"token":%q,"since":"1999-12-31T23:50:00Z"}`, external.Token(m.Objects["settings"], account))
				}},
			{name: "delete, from the future", service: service{finds: true, visible: time.Minute}, size: "new", writes: 1, delete: true,
				before: func(s *service, m *fakeserver.Server) {
					s.machines = nil
					annotate(m, `{"token":%q,"since":"2100-01-01T00:00:00Z"}`, external.Token(m.Objects["settings"], account))
				}},
		} {
			for fails := range tt.writes {
				s, m := quiet(tt.service)
				ensure(t, m, s.machine("new"))
				tt.before(s, m)
				calls, cached := 0, m.Objects["settings"].DeepCopy()
				m.Do = func(_ string, call func() error) error {
					if calls++; calls == fails+1 {
						return broken
					}
					return call()
				}
				var err error
				if tt.delete {
					err = external.Delete(t.Context(), m, cached, s.machine(tt.size))
				} else {
					_, err = tryEnsure(t.Context(), m, cached, s.machine(tt.size))
				}
				if !errors.Is(err, broken) || calls != fails+1 {
					t.Errorf("%s, request %d fails: the error is %v after %d requests", tt.name, fails+1, err, calls)
				}
			}
		}
	})
}
