package external_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// If somebody edits the id, Ensure and Delete return an error that no retry cures, whatever the state of the other's
// machine. A machine that Find may not show yet is waited for, and so is a busy one.
//
// Proves EX6.
func TestEnsureEditedID(t *testing.T) {
	t.Parallel()
	const mine, none = "is machine-1, so theirs is not used", "no thing carries the token"
	for _, tt := range []struct {
		name    string
		policy  external.Policy
		alone   bool   // the object has no machine
		size    string // of the other's machine
		busy    bool   // it is
		update  bool   // there is an Update
		preview bool
		visible time.Duration
		since   string // in the annotation
		want    string // in the error
		wait    time.Duration
	}{
		{name: "current", size: "small", update: true, want: mine},
		{name: "current, no own machine", size: "small", update: true, alone: true, want: none},
		{name: "different, no Update", size: "big", want: mine},
		{name: "different, in a preview", size: "big", update: true, preview: true, want: mine},
		{name: "observe only", size: "small", policy: external.ObserveOnly, want: mine},
		{name: "observe only, no own machine", size: "big", policy: external.ObserveOnly, alone: true, want: none},
		{name: "orphan", size: "small", policy: external.Orphan, update: true, want: mine},
		{name: "busy", size: "small", busy: true, want: mine},
		{name: "busy, no own machine", size: "small", busy: true, alone: true, wait: 5 * time.Second},
		{name: "late reads", size: "small", visible: time.Minute, since: "1999-12-31T23:59:00Z", want: mine},
		{name: "late reads, not yet over", size: "small", visible: time.Minute, since: "1999-12-31T23:59:01Z", wait: time.Second},
		{name: "late reads, not yet over, Update", size: "big", update: true, visible: time.Minute, since: "1999-12-31T23:59:01Z", wait: time.Second},
		{name: "late reads, from the future", size: "small", visible: time.Minute, since: "2100-01-01T00:00:00Z", want: mine},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // where it is 2000-01-01
				s, m := quiet(service{finds: true, visible: tt.visible})
				token := external.Token(m.Objects["settings"], account)
				theirs := &machine{id: "theirs", token: "their token", size: tt.size}
				if tt.busy {
					theirs.busy = time.Now().Add(time.Hour)
				}
				s.machines = []*machine{theirs}
				if !tt.alone {
					s.machines = append(s.machines, &machine{id: "machine-1", token: token, size: "small"})
				}
				since := ""
				if tt.since != "" {
					since = `"since":"` + tt.since + `",`
				}
				annotate(m, `{"token":%q,`+since+`"id":"theirs"}`, token)
				r := s.machine("small")
				r.Policy = tt.policy
				if !tt.update {
					r.Update = nil
				}
				ctx := t.Context()
				if tt.preview {
					ctx = context.WithValue(ctx, calls.Preview{}, func(what string) { t.Errorf("the preview notes %q", what) })
				}
				check := func(what string, err error) {
					t.Helper()
					rejects := controllerkit.RejectedError(nil)
					if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, &rejects) || !rejects.Rejected()) {
						t.Errorf("%s: %v, want a rejected error with %q", what, err, tt.want)
					}
					if kube.Waits(err) != tt.wait {
						t.Errorf("%s: %v, which waits %v, want %v", what, err, kube.Waits(err), tt.wait)
					}
				}
				result, err := external.Ensure(ctx, m, m.Objects["settings"], r)
				check("Ensure", err)
				if tt.alone && tt.busy && tt.wait > 0 { // Find need not list a thing that is not ready
					if result.ID != "theirs" || result.State != external.Busy {
						t.Errorf("Ensure() = %+v, want the busy thing", result)
					}
				} else if result.ID != "" || tt.want != "" && result != (external.Result{}) || tt.wait > 0 && result.State != external.Busy {
					t.Errorf("Ensure() = %+v, %v", result, err)
				}
				if tt.policy == external.Manage && !tt.busy && !tt.preview {
					deleting(m)
					check("Delete", external.Delete(ctx, m, m.Objects["settings"], r))
				}
				if theirs.size != tt.size || theirs.gone() {
					t.Errorf("the other's machine is now %+v", theirs)
				}
			})
		})
	}
}

// In the calls of a reconcile.Controller, Ensure calls Find once an hour for a thing that is as the object wants it, and
// not at all for one that was just made. It finds an edited id at once. Other callers pay a Find for each call.
//
// Proves EX6.
func TestEnsureFinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, m := quiet(service{finds: true})
		r := s.machine("new")
		finds := 0
		find := r.Find
		r.Find = func(ctx context.Context, token string) (string, bool, error) {
			finds++
			return find(ctx, token)
		}
		q := queue.New(queue.Config[string]{})
		var result external.Result
		var err error
		c := reconcile.Controller[string]{Name: "machines", Queue: q, Workers: 1, GracePeriod: time.Second, Timeout: time.Second,
			Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
				result, err = external.Ensure(ctx, m, m.Objects["settings"], r)
				return reconcile.Result{}, nil
			}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		look := func(what string, want int) {
			t.Helper()
			finds = 0
			q.Add("settings")
			synctest.Wait()
			if err != nil || result.State != external.Current || result.ID != "machine-1" || finds != want {
				t.Errorf("%s: Ensure() = %+v, %v after %d calls of Find, want Current and %d", what, result, err, finds, want)
			}
		}
		look("made", 1) // which there was none for
		look("made before", 0)
		time.Sleep(time.Hour - time.Second)
		look("in the hour", 0)
		time.Sleep(time.Second)
		look("after an hour", 1)
		look("the same again", 0)
		s.machines = append(s.machines, &machine{id: "theirs", token: "their token", size: "new"})
		annotate(m, `{"token":%q,"id":"theirs"}`, external.Token(m.Objects["settings"], account))
		for range 2 {
			q.Add("settings")
			synctest.Wait()
			if err == nil || result != (external.Result{}) {
				t.Errorf("edited: Ensure() = %+v, %v, want an error", result, err)
			}
		}
		annotate(m, `{"token":%q,"id":"machine-1"}`, external.Token(m.Objects["settings"], account))
		look("as before", 0)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for range 2 {
			finds = 0
			if result := ensure(t, m, r); result.State != external.Current || finds != 1 {
				t.Errorf("no Controller: Ensure() = %+v after %d calls of Find, want Current and 1", result, finds)
			}
		}
	})
}
