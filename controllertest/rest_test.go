package controllertest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// TestQuiet holds what rest is: nothing for Options.Quiet, and nothing under way.
func TestQuiet(t *testing.T) {
	tests := []struct {
		name  string
		with  func(r *run)
		every time.Duration // between events; 0 means that there are none
		seen  time.Duration // when the observer sees version 7 of the object a; 0 means never
		quiet bool
		after time.Duration
	}{
		{name: "nothing happens", quiet: true, after: time.Second},
		{name: "something happens all the time", every: 700 * time.Millisecond, after: 10 * time.Second},
		{name: "something happens now and then", every: 1500 * time.Millisecond, quiet: true, after: time.Second},
		{name: "a write is under way", with: func(r *run) { r.underway = 1 }, after: 10 * time.Second},
		{name: "the observer is late by less than the time left", with: func(r *run) { r.late.answered("a", 7, time.Now()) }, every: 700 * time.Millisecond, seen: 4 * time.Second, after: 14 * time.Second},
		{name: "the observer never sees it", with: func(r *run) { r.late.answered("a", 7, time.Now()) }, every: 700 * time.Millisecond, after: 60 * time.Second},
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
				if test.seen > 0 {
					time.AfterFunc(test.seen, func() {
						r.mu.Lock()
						defer r.mu.Unlock()
						r.late.observed("a", 7, watch.Modified, time.Now())
					})
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

// TestLateness holds what counts as a late observer.
func TestLateness(t *testing.T) {
	begin := time.Now()
	l := newLateness()
	answered := func(at time.Duration, uid types.UID, version uint64) { l.answered(uid, version, begin.Add(at)) }
	observed := func(at time.Duration, uid types.UID, version uint64, kind watch.EventType) {
		l.observed(uid, version, kind, begin.Add(at))
	}
	want := func(at, want time.Duration) {
		t.Helper()
		if got := l.sum(begin.Add(at)); got != want {
			t.Errorf("after %v it was late for %v, want %v", at, got, want)
		}
	}
	answered(1, "a", 5)
	observed(3, "a", 5, watch.Added) // 2
	want(4, 2)
	observed(5, "b", 6, watch.Added)
	answered(6, "b", 6) // seen before it was answered
	answered(6, "b", 6) // nothing was changed by it
	want(7, 2)
	answered(10, "a", 8)
	answered(11, "b", 9)
	observed(12, "a", 7, watch.Modified) // that of somebody else
	observed(13, "a", 9, watch.Modified) // a later one: 8 was left out, as in a list
	want(14, 6)                          // b is awaited
	observed(15, "b", 9, watch.Modified)
	want(20, 7)
	answered(20, "b", 9) // its last finalizer is removed: no event has the version
	answered(21, "a", 12)
	observed(23, "a", 14, watch.Deleted)
	answered(24, "a", 15)
	want(30, 9)
	answered(30, "c", 20)
	l.reset(begin.Add(40))
	want(45, 5)
	answered(45, "", 21)
	observed(50, "c", 20, watch.Added)
	want(60, 10)
}
