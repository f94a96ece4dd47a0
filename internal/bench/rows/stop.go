package rows

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

const (
	stopObjects = 5_000
	stopCall    = 500 * time.Millisecond
	cutCalls    = "calls cut"
)

func init() {
	bench.Register(bench.Row{
		Name: "stop/load",
		About: fmt.Sprintf("The time from SIGTERM to the end of the processes of operator/process, while %d workers call and about %d keys wait. A call waits for %v, as for a slow service. "+
			"If its context ends earlier, the call is cut and its work is lost.", contender.Workers, stopObjects, stopCall),
		Op: "stop",
		Goals: []bench.Goal{
			{Figure: cutCalls, Worst: true, AtMost: 0},
			{Figure: bench.Time, AtMost: float64(stopCall + 100*time.Millisecond)},
		},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			p, err := newProcesses(ctx)
			if err != nil {
				return nil, nil, err
			}
			return p.beside("", p.stopUnderLoad), p.stop, nil
		},
	})
}

// stopUnderLoad returns the work of a contender.
func (p *processes) stopUnderLoad(program string) func(context.Context, *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (int, error) {
		if err := p.fillMaps(ctx, m.N(stopObjects)); err != nil {
			return 0, err
		}
		call := time.Duration(m.N(int(stopCall)))
		l, err := p.launch(ctx, program, contender.Workers, "-stay", "-call", call.String())
		if err != nil {
			return 0, err
		}
		begin := time.Now()
		if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return 0, errors.Join(err, l.stop())
		}
		if err := l.wait(); err != nil {
			return 0, err
		}
		m.Count(bench.Time, float64(time.Since(begin)))
		m.Count(cutCalls, float64(l.end.Cut))
		return 1, nil
	}
}
