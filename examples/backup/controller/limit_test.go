package controller_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/examples/backup/controller"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestLimit changes the limit while a loop runs. No key is lost, also not at the stop, and the wait is no
// part of the timeout of a call.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := &controller.Limit{}
		limit.Set(1)
		queue := controller.Limited(limit)
		begun, proceed := make(chan types.NamespacedName, 100), make(chan struct{})
		c := &reconcile.Controller[types.NamespacedName]{
			Name: "limited", Queue: queue, Workers: 8, Timeout: 10 * time.Second,
			Reconcile: func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
				begun <- key
				<-proceed
				if ctx.Err() != nil {
					t.Errorf("%v: %v", key, ctx.Err())
				}
				return reconcile.Result{}, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		const keys = 20
		for n := range keys {
			queue.Add(types.NamespacedName{Name: strconv.Itoa(n)})
		}
		want := func(calls int) {
			t.Helper()
			if synctest.Wait(); len(begun) != calls {
				t.Fatalf("%d calls have begun, want %d", len(begun), calls)
			}
		}
		want(1)
		if n := queue.Len(); n != keys-1 {
			t.Errorf("%d keys are in the queue, want the %d that do not run", n, keys-1)
		}
		for n := range 3 { // each call takes a part of the timeout, all calls together more than that
			time.Sleep(5 * time.Second)
			proceed <- struct{}{}
			want(n + 2)
		}
		limit.Set(3)
		want(6)
		limit.Set(2)
		proceed <- struct{}{}
		want(6) // two of three run
		proceed <- struct{}{}
		want(7)

		cancel()
		synctest.Wait()
		close(proceed)
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
		called := len(begun)
		if left := queue.Len(); called != 7 || left != keys-7 {
			t.Errorf("%d calls, %d keys are left of %d", called, left, keys)
		}

		// The keys that are left run later, and all places are free again.
		limit.Set(8)
		ctx, cancel = context.WithCancel(t.Context())
		go func() { ended <- c.Run(ctx) }()
		want(keys)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

// TestLimitLowered: workers that wait for a key have a place each. With a lower limit they give it
// back, and no key is lost.
func TestLimitLowered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := &controller.Limit{}
		limit.Set(8)
		queue := controller.Limited(limit)
		begun, proceed := make(chan string, 100), make(chan struct{})
		c := &reconcile.Controller[types.NamespacedName]{
			Name: "limited", Queue: queue, Workers: 8,
			Reconcile: func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
				begun <- key.Name
				<-proceed
				return reconcile.Result{}, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		limit.Set(1)
		const keys = 20
		names := map[string]bool{}
		for n := range keys {
			queue.Add(types.NamespacedName{Name: strconv.Itoa(n)})
		}
		for n := range keys {
			if synctest.Wait(); len(begun) != 1 {
				t.Fatalf("after %d calls %d run, want 1", n, len(begun))
			}
			names[<-begun] = true
			proceed <- struct{}{}
		}
		synctest.Wait()
		if len(names) != keys || queue.Len() != 0 || len(begun) != 0 {
			t.Errorf("%d of %d keys have run, %d are in the queue", len(names), keys, queue.Len())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}
