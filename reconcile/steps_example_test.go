package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/controllerkit/controllerkit/reconcile"
)

// A database is a volume, a server on it, and an entry in DNS, in this order.
func ExampleSteps_Run() {
	volumeReady, quota := false, errors.New("quota exceeded")
	steps := reconcile.Steps[string]{
		{Name: "volume", Run: func(_ context.Context, key string) (*reconcile.Result, error) {
			if !volumeReady {
				fmt.Println("the volume of", key, "is not ready")
				return &reconcile.Result{RequeueAfter: 5 * time.Second}, nil
			}
			return nil, nil
		}},
		{Name: "server", Run: func(_ context.Context, key string) (*reconcile.Result, error) {
			return nil, quota
		}},
		{Name: "dns", Run: func(_ context.Context, key string) (*reconcile.Result, error) {
			fmt.Println("not reached")
			return nil, nil
		}},
	}
	var fn reconcile.Func[string] = steps.Run // what a Controller takes

	ctx := context.Background()
	fmt.Println(fn(ctx, "orders"))
	volumeReady = true
	_, err := fn(ctx, "orders")
	fmt.Println(err, errors.Is(err, quota))
	// Output:
	// the volume of orders is not ready
	// {5s <nil>} <nil>
	// step server: quota exceeded true
}
