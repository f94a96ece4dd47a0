package recipes_test

import (
	"context"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator"
)

// A singleton is a function that one replica runs, such as a server or a loop with a ticker.
type singleton func(ctx context.Context) error

func (run singleton) addTo(op *operator.Operator, config *rest.Config, namespace, name string) error {
	leases, err := leader.NewClient(config, namespace)
	if err != nil {
		return err
	}
	elector := &leader.Elector{Leases: leases, Namespace: namespace, Name: name, Metrics: op.Metrics}
	op.Group.Add(name, func(ctx context.Context) error {
		return elector.Run(ctx, func(ctx context.Context) error {
			err := run(ctx)
			if err == nil {
				<-ctx.Done() // keep the Lease: nobody else takes it, and without a holder an alert fires
			}
			return err
		})
	})
	op.Group.AddLive(name, func() error { return elector.Check(nil) })
	return nil
}

// TestServerSingleton: of two replicas one runs the function, and the other one after it has stopped.
func TestServerSingleton(t *testing.T) {
	t.Parallel()
	testserver.Needed(t)
	namespace := testserver.Namespace(t)
	type event struct {
		replica int
		running bool
	}
	events := make(chan event, 100)
	replica := func(i int) (stop func()) {
		t.Helper()
		config := testserver.Config(t)
		op, err := operator.New(config, operator.Options{Name: "singleton", LeaseNamespace: namespace, Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		registerNothing(op)
		report := singleton(func(ctx context.Context) error {
			events <- event{i, true}
			<-ctx.Done()
			events <- event{i, false}
			return nil
		})
		if err := report.addTo(op, config, namespace, "singleton-report"); err != nil {
			t.Fatal(err)
		}
		stop, _ = start(t, op)
		return stop
	}
	stops := []func(){replica(0), replica(1)}
	first := receive(t, events)
	stops[first.replica]()
	if got := receive(t, events); got != (event{first.replica, false}) {
		t.Errorf("the second event is %v, want the end of the first run", got)
	}
	if got := receive(t, events); got != (event{1 - first.replica, true}) {
		t.Errorf("the third event is %v, want the begin on the other replica", got)
	}
	stops[1-first.replica]()
	if got := receive(t, events); got != (event{1 - first.replica, false}) || len(events) > 0 {
		t.Errorf("the last event is %v, want the end of the second run", got)
	}
}
