package controller_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/examples/tenant/controller"
)

func TestRetriesOfOneTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, key := controller.Retries(), types.NamespacedName{Name: "blue"}
		for n := range 20 {
			delay := limiter.When(key)
			if n == 0 && delay > 100*time.Millisecond {
				t.Errorf("the first retry comes after %v, want at most 100ms", delay)
			}
			if n >= 9 && delay < 15*time.Second || delay > 30*time.Second {
				t.Errorf("retry %d comes after %v, want at most 30s, and at least half of it from the tenth", n+1, delay)
			}
			time.Sleep(delay)
		}
	})
}

// TestRetriesOfAllTenants: many tenants that fail at once retry 50 times a second.
func TestRetriesOfAllTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := controller.Retries()
		retries := map[int]int{} // by second
		for n := range 1000 {
			retries[int(limiter.When(types.NamespacedName{Name: fmt.Sprint(n)})/time.Second)]++
		}
		for second, n := range retries {
			if want := 51; n > want && !(second == 0 && n <= want+50) {
				t.Errorf("%d retries in second %d, want at most %d, and the burst of 50 in the first", n, second, want)
			}
		}
		if len(retries) > 20 {
			t.Errorf("the last retry comes after %ds, want all 1000 within 20s", len(retries))
		}
	})
}
