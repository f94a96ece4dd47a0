package rows

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

const (
	churnObjects = 5_000
	churnRate    = 1_000  // updates a second
	churnUpdates = 10_000 // of a run
)

func init() {
	bench.Register(bench.Row{
		Name: "compact/churn",
		About: fmt.Sprintf("The processor time of the processes of compact/process for %d updates of %d Deployments, which another process sends at up to %d a second. "+
			"A reconcile of each update reads the object. ns is the time between two updates.", churnUpdates, churnObjects, churnRate),
		Op:    "update",
		Goals: []bench.Goal{{Figure: cpuTime, Rival: controllerRuntime, AtMost: 0.8}},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			p, err := newProcesses(ctx)
			if err != nil {
				return nil, nil, err
			}
			return p.beside("", func(program string) func(context.Context, *bench.Meter) (int, error) {
				if program == programOperator {
					return p.churn(program, "-compact")
				}
				return p.churn(program, "-trim")
			})[:1], p.stop, nil // without client-go, which saves three minutes
		},
	})
}

// churn returns the work of a contender.
func (p *processes) churn(program, arg string) func(context.Context, *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (_ int, err error) {
		n, objects := m.N(churnUpdates), m.N(churnObjects)
		if err := p.fillDeployments(ctx, objects); err != nil {
			return 0, err
		}
		kube, err := kubernetes.NewForConfig(p.config)
		if err != nil {
			return 0, err
		}
		client := kube.AppsV1().Deployments(p.namespace)
		w := &writer{objects: objects, put: func(ctx context.Context, i int, text string) (metav1.Object, error) {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"update":%q}}}`, text)
			return client.Patch(ctx, processDeployment(i).Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "bench"})
		}}
		l, err := p.launch(ctx, program, objects, "-stay", "-kind", contender.Deployments, arg)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, l.stop()) }()
		if _, err := l.ask(contender.Command{}); err != nil { // it begins to record sights
			return 0, err
		}
		if _, _, err := w.write(ctx, n/10, churnRate); err != nil { // opens the connections
			return 0, err
		}
		before, err := w.usage(ctx, l)
		if err != nil {
			return 0, err
		}
		updates, took, err := w.write(ctx, n, churnRate)
		if err != nil {
			return 0, err
		}
		after, _, err := w.seen(ctx, l, updates)
		if err != nil {
			return 0, err
		}
		m.Count(bench.Time, float64(took))
		m.Count(cpuTime, float64(after.CPU-before.CPU))
		return n, nil
	}
}
