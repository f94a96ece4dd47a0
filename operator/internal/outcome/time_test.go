package outcome_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/operator/internal/outcome"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Failures last when those of one object have lasted for 10s: those of an earlier object of the same
// name do not count.
func TestFailuresOfAnEarlierObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failing outcome.Failing
		key := types.NamespacedName{Namespace: "a", Name: "one"}
		fails := func(uid types.UID, attempt int) bool {
			c := outcome.Call{Err: errors.New("broken")}
			failing.Judge(context.WithValue(t.Context(), calls.Attempt{}, attempt), key, uid, new(reconcile.Controller[types.NamespacedName]), &c)
			return c.Lasting
		}
		if fails("old", 1) {
			t.Error("a first failure lasts")
		}
		time.Sleep(10 * time.Second)
		if !fails("old", 19) {
			t.Error("failures of 10s do not last")
		}
		if fails("new", 20) {
			t.Error("the first failure of a new object lasts")
		}
		time.Sleep(10 * time.Second)
		if !fails("new", 21) {
			t.Error("failures of the new object do not last")
		}
	})
}
