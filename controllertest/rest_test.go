package controllertest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestQuiet holds what rest is: nothing for Options.Quiet, and nothing under way.
func TestQuiet(t *testing.T) {
	tests := []struct {
		name  string
		with  func(r *run)
		every time.Duration // between events; 0 means that there are none
		quiet bool
		after time.Duration
	}{
		{name: "nothing happens", quiet: true, after: time.Second},
		{name: "something happens all the time", every: 700 * time.Millisecond, after: 10 * time.Second},
		{name: "something happens now and then", every: 1500 * time.Millisecond, quiet: true, after: time.Second},
		{name: "a write is under way", with: func(r *run) { r.underway = 1 }, after: 10 * time.Second},
		{name: "there is no process", with: func(r *run) { r.life = nil }, after: 10 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := quietRun(Scenario{}, "ns")
				r.x.options = Options{Quiet: time.Second, Settle: 10 * time.Second}
				r.life = []*incarnation{{}}
				began := time.Now()
				r.lastEvent, r.lastFault = began, began
				if test.with != nil {
					test.with(r)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if test.every > 0 {
					go func() {
						for sleep(ctx, nil, test.every) == nil {
							r.mu.Lock()
							r.touchLocked()
							r.mu.Unlock()
						}
					}()
				}
				quiet, err := r.quiet(t.Context())
				if took := time.Since(began); err != nil || quiet != test.quiet || took != test.after {
					t.Errorf("quiet %t, %v after %v; want %t after %v", quiet, err, took, test.quiet, test.after)
				}
				cancel()
			})
		})
	}
}
