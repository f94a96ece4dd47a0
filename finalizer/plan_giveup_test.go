package finalizer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/finalizer"
)

// TestPlanGivesUp proves F9.
func TestPlanGivesUp(t *testing.T) {
	tests := []struct {
		name     string
		age      time.Duration
		after    time.Duration
		step     func(context.Context, held) (progress, error)
		gaveUp   error
		wantGone bool
		wantTold int
		wantText string
		wantWait time.Duration // the longest After
	}{
		{name: "never by default", age: 1000 * time.Hour, step: says(progress{}, errBoom), wantText: "boom", wantWait: 72 * time.Second},
		{name: "not yet", age: 59 * time.Minute, after: time.Hour, step: says(progress{After: time.Hour, Message: "3 left"}, nil), wantText: "3 left", wantWait: time.Minute},
		{name: "failing", age: time.Hour, after: time.Hour, step: says(progress{}, errBoom), wantGone: true, wantTold: 1, wantText: "boom"},
		{name: "waiting", age: time.Hour, after: time.Hour, step: says(progress{Message: "3 left"}, nil), wantGone: true, wantTold: 1, wantText: "3 left"},
		{name: "done after all", age: time.Hour, after: time.Hour, step: says(done, nil), wantGone: true},
		{name: "nobody could be told", age: time.Hour, after: time.Hour, step: says(progress{Message: "3 left"}, nil), gaveUp: errors.New("no event"), wantTold: 1, wantText: "3 left; not given up: no event", wantWait: 72 * time.Second},
		{name: "nobody could be told and the step has time", age: time.Hour, after: time.Hour, step: says(progress{After: time.Hour, Message: "3 left"}, nil), gaveUp: errors.New("no event"), wantTold: 1, wantText: "3 left; not given up: no event", wantWait: 72 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{live: deleted(tt.age)}
				told, next := 0, false
				p := plan{
					Steps: []step{
						{Name: "dns", Run: tt.step, GiveUpAfter: tt.after},
						{Name: "next", Run: func(context.Context, held) (progress, error) {
							next = true
							return done, nil
						}},
					},
					GaveUp: func(_ context.Context, h held, step string, cause error) error {
						told++
						if h.Object().UID != "a" || step != "dns" || !strings.Contains(tt.wantText, cause.Error()) || !finalizer.Has(m.live, name) {
							t.Errorf("told about %s of %s: %v; stored finalizers %q", step, h.Object().UID, cause, stored(m))
						}
						return tt.gaveUp
					},
				}
				err := pass(t.Context(), p, m, m.live.DeepCopy())
				if told != tt.wantTold || (m.live == nil) != tt.wantGone || next != tt.wantGone || (err == nil) != tt.wantGone {
					t.Errorf("told %d times, gone %v, next step %v, error %v; want %d, gone: %v", told, m.live == nil, next, err, tt.wantTold, tt.wantGone)
				}
				if err != nil {
					b := blockedBy(t, err)
					if !strings.Contains(err.Error(), tt.wantText) || b.After > tt.wantWait || b.After <= 0 {
						t.Errorf("error %q after %v, want %q after at most %v", err, b.After, tt.wantText, tt.wantWait)
					}
					if s := b.Steps[0]; s.Err != nil && s.Message != "" {
						t.Errorf("Message %q next to the Err %q", s.Message, s.Err)
					}
				}
			})
		})
	}
	t.Run("not because of a stop", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := &model{live: deleted(2 * time.Hour)}
		p := plan{
			Steps: []step{{Name: "dns", GiveUpAfter: time.Hour, Run: func(ctx context.Context, _ held) (progress, error) {
				cancel()
				return progress{}, ctx.Err()
			}}},
			GaveUp: func(context.Context, held, string, error) error {
				t.Error("gave up a step that had no fair try")
				return nil
			},
		}
		if err := pass(ctx, p, m, m.live.DeepCopy()); err == nil || m.live == nil {
			t.Errorf("error = %v, gone: %v", err, m.live == nil)
		}
	})
}

// A step that hangs leaves time for the others, is given up, and does not let one be
// given up that had too little time because of it.
//
// Proves F9.
func TestPlanGivesUpInTime(t *testing.T) {
	hangs := func(ctx context.Context, _ held) (progress, error) {
		<-ctx.Done()
		return progress{}, ctx.Err()
	}
	synctest.Test(t, func(t *testing.T) {
		m := &model{live: deleted(2 * time.Hour)}
		obj := m.live.DeepCopy()
		var told []string
		healthy := 0
		p := plan{
			Steps: []step{
				{Name: "hangs", GiveUpAfter: time.Hour, Run: hangs},
				{Name: "hangs too", GiveUpAfter: time.Hour, AtOnce: true, Run: hangs},
				{Name: "healthy", AtOnce: true, Run: func(context.Context, held) (progress, error) {
					healthy++
					return done, nil
				}},
			},
			GaveUp: func(_ context.Context, _ held, step string, _ error) error {
				told = append(told, step)
				return nil
			},
		}
		// The context of a pass that package reconcile gives, with a Timeout of a minute.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b := blockedBy(t, pass(ctx, p, m, obj))
		if got := strings.Join(told, ", "); got != "hangs" || healthy != 1 || b.Steps[0].Name != "hangs too" || b.Condition(1).Reason != "StepTimedOut" {
			t.Errorf("given up: %s; %d calls of the step behind; error %v", got, healthy, b)
		}
		p.Steps[0].Timeout, p.Steps[1].Timeout = 20*time.Second, 20*time.Second
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := pass(ctx, p, m, obj); err != nil || m.live != nil {
			t.Errorf("with Timeouts that fit into the pass: error %v, gone %v", err, m.live == nil)
		}
	})
}

// A GaveUp that hangs is bounded too.
//
// Proves F9.
func TestPlanGaveUpHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{live: deleted(2 * time.Hour)}
		p := plan{
			Steps: []step{{Name: "dns", Run: says(progress{}, errBoom), GiveUpAfter: time.Hour, Timeout: 10 * time.Second}},
			GaveUp: func(ctx context.Context, _ held, _ string, _ error) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Hour):
					return nil
				}
			},
		}
		start := time.Now()
		err := pass(t.Context(), p, m, m.live.DeepCopy())
		blockedBy(t, err)
		if took := time.Since(start); took != 10*time.Second || !errors.Is(err, errBoom) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v after %v, want what the step said, and a deadline, after 10s", err, took)
		}
	})
}
