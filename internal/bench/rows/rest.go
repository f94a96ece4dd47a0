package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

// atRest is the time that rest/process measures.
const atRest = time.Minute

// collection is the processor time of one garbage collection at the end of rest/process.
const collection = "ns CPU, collection"

func init() {
	bench.Register(bench.Row{
		Name: "rest/process",
		Long: true,
		About: fmt.Sprintf("The processes of operator/process for %v after they have reconciled %d ConfigMaps, while no object changes: processor time and requests. The processes have no election. "+
			"Go forces a garbage collection every 2 minutes, with a cost that depends on the heap. The minute contains no such collection; a second figure measures one.", atRest, processObjects),
		Op:    "minute",
		Goals: []bench.Goal{{Figure: cpuTime, Rival: controllerRuntime, AtMost: 0.5}},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			p, err := newProcesses(ctx)
			if err != nil {
				return nil, nil, err
			}
			return p.beside("", p.rest), p.stop, nil
		},
	})
}

// rest returns the work of a contender.
func (p *processes) rest(program string) func(context.Context, *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (_ int, err error) {
		n, period := m.N(processObjects), atRest
		if m.Quick {
			period = 50 * time.Millisecond
		}
		if err := p.fillMaps(ctx, n); err != nil {
			return 0, err
		}
		l, err := p.launch(ctx, program, n, "-stay")
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, l.stop()) }()
		before, err := l.ask(contender.Command{})
		if err != nil {
			return 0, err
		}
		select {
		case <-time.After(period):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		after, err := l.ask(contender.Command{})
		if err != nil {
			return 0, err
		}
		if len(after.Sights) > 0 {
			return 0, fmt.Errorf("%s reconciled %s: an object changed", program, after.Sights[0].Name)
		}
		collected, err := l.ask(contender.Command{Collect: true})
		if err != nil {
			return 0, err
		}
		m.Count(cpuTime, float64(after.CPU-before.CPU))
		m.Count(restRequests, float64(after.Requests-before.Requests))
		m.Count(collection, float64(collected.CPU-after.CPU))
		return 1, nil
	}
}
