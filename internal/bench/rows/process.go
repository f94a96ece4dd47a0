package rows

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

// processObjects is the number of objects of operator/process.
const processObjects = 50_000

const (
	programOperator = "operator"
	programClientGo = "clientgo"
	programRuntime  = "runtime"
)

func init() {
	bench.Register(bench.Row{
		Name: "operator/process",
		About: fmt.Sprintf("A whole process on a real API server, from its start to the end of the first reconcile of each of %d ConfigMaps of 1 KiB with a field manager, by %d workers. "+
			"A reconcile reads the object from the cache. peak is the resident memory of the process until then, live the heap after a garbage collection. "+
			"Trim is informer.Trim, or the rival's own transform without managedFields. KeepMetadata holds the data of one object in ten, which the rivals cannot; they have their transform.", processObjects, contender.Workers),
		Op: "object",
		Goals: []bench.Goal{
			{Figure: bench.Time, Rival: controllerRuntime, AtMost: 0.65},
			{Figure: "B peak", Rival: controllerRuntime, AtMost: 0.5},
			{Figure: "B live", Rival: controllerRuntime, AtMost: 0.6},
			{Figure: bench.Time, Rival: clientGo, AtMost: 1},
			{Figure: "B peak", Rival: clientGo, AtMost: 0.75},
		},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			p, err := newProcesses(ctx)
			if err != nil {
				return nil, nil, err
			}
			return append(append(
				p.pairs("whole objects", contender.ConfigMaps, processObjects, nil, nil),
				p.pairs("Trim", contender.ConfigMaps, processObjects, []string{"-trim"}, []string{"-trim"})...),
				p.pairs("KeepMetadata", contender.ConfigMaps, processObjects, []string{"-metadata"}, []string{"-trim"})...), p.stop, nil
		},
	})
	bench.Register(bench.Row{
		Name:  "curves/process",
		Curve: "objects",
		Long:  true,
		About: "The work of operator/process with Trim, for 10,000 to 200,000 objects.",
		Op:    "object",
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			p, err := newProcesses(ctx)
			if err != nil {
				return nil, nil, err
			}
			return p.curve(contender.ConfigMaps, []string{"-trim"}, []string{"-trim"}), p.stop, nil
		},
	})
}

// processes runs the programs of operator/process.
type processes struct {
	*arena
	programs    string // their folder
	deployments int    // of fillDeployments
	gadgets     int    // of fillGadgets
}

// builtPrograms builds the programs once, and returns their folder.
var builtPrograms = sync.OnceValues(func() (string, error) {
	return buildPrograms(context.Background(), filepath.Join("internal", "bench"), "bench", []string{"./programs/" + programOperator, "./programs/" + programClientGo, "./programs/" + programRuntime})
})

func newProcesses(ctx context.Context) (*processes, error) {
	programs, err := builtPrograms()
	if err != nil {
		return nil, err
	}
	a, err := openArena(ctx)
	if err != nil {
		return nil, err
	}
	return &processes{arena: a, programs: programs}, nil
}

// curve returns the pairs for 10,000 to 200,000 objects.
func (p *processes) curve(kind string, ours, theirs []string) (pairs []bench.Pair) {
	for _, objects := range []int{10_000, 50_000, 200_000} {
		for _, pair := range p.pairs(fmt.Sprint(objects, " objects"), kind, objects, ours, theirs) {
			pair.X = float64(objects)
			pairs = append(pairs, pair)
		}
	}
	return pairs
}

// pairs returns the pairs of a case. The objects of the pairs that run before are at most as many.
func (p *processes) pairs(name, kind string, objects int, ours, theirs []string) []bench.Pair {
	return p.beside(name, func(program string) func(context.Context, *bench.Meter) (int, error) {
		if program == programOperator {
			return p.run(program, kind, objects, ours)
		}
		return p.run(program, kind, objects, theirs)
	})
}

// beside returns the pairs of a case with the work of each program.
func (p *processes) beside(name string, run func(program string) func(context.Context, *bench.Meter) (int, error)) []bench.Pair {
	ours := bench.Contender{Name: "operator", Run: run(programOperator)}
	return []bench.Pair{
		{Case: name, Ours: ours, Theirs: bench.Contender{Name: controllerRuntime, Module: controllerModule, Run: run(programRuntime)}},
		{Case: name, Ours: ours, Theirs: bench.Contender{Name: clientGo, Module: clientGoModule, Run: run(programClientGo)}},
	}
}

// run returns the work of a contender.
func (p *processes) run(name, kind string, objects int, args []string) func(ctx context.Context, m *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (int, error) {
		n := m.N(objects)
		if err := p.fillKind(ctx, kind, n); err != nil {
			return 0, err
		}
		l, err := p.launch(ctx, name, n, append([]string{"-kind", kind}, args...)...)
		if err != nil {
			return 0, err
		}
		m.Count(bench.Time, float64(l.took))
		m.Count(cpuTime, float64(l.figures.CPU))
		m.Count("B peak", float64(l.figures.PeakBytes))
		m.Count("B live", float64(l.figures.LiveBytes))
		m.Count(bench.Allocs, float64(l.figures.Allocs))
		return n, l.stop()
	}
}

// A launched program has printed its figures. With the argument -stay it still runs.
type launched struct {
	name    string
	took    time.Duration // until it had begun its reconciles
	figures contender.Figures
	end     contender.End // after stop

	cmd     *exec.Cmd
	stays   bool
	in      io.WriteCloser
	out     *json.Decoder
	failure strings.Builder
}

// launch starts a program, and waits until it has begun the given number of reconciles.
func (p *processes) launch(ctx context.Context, name string, reconciles int, args ...string) (*launched, error) {
	l := &launched{name: name, stays: slices.Contains(args, "-stay")}
	args = append([]string{"-kubeconfig", p.kubeconfig, "-namespace", p.namespace, "-objects", strconv.Itoa(reconciles)}, args...)
	l.cmd = exec.CommandContext(ctx, filepath.Join(p.programs, name), args...)
	l.cmd.Stderr = &l.failure
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	pipe, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	out := bufio.NewReader(pipe)
	_, err = out.ReadString('\n')
	l.took = time.Since(begin)
	l.out = json.NewDecoder(out)
	if err == nil {
		err = l.out.Decode(&l.figures)
	}
	if err != nil {
		_ = l.cmd.Process.Kill() // it may have ended
		return nil, errors.Join(fmt.Errorf("%s printed no figures: %w", name, err), l.wait())
	}
	return l, nil
}

// ask sends a Command.
func (l *launched) ask(c contender.Command) (u contender.Usage, err error) {
	if err = json.NewEncoder(l.in).Encode(c); err == nil {
		err = l.out.Decode(&u)
	}
	if err != nil {
		err = fmt.Errorf("%s printed no usage: %w", l.name, err)
	}
	return u, err
}

// stop ends the program's input, and waits for its end.
func (l *launched) stop() error { return errors.Join(l.in.Close(), l.wait()) }

// wait waits for the program's end.
func (l *launched) wait() error {
	var bad error
	if l.stays {
		bad = l.out.Decode(&l.end)
	}
	if err := l.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", l.name, err, l.failure.String())
	}
	if bad != nil {
		return fmt.Errorf("%s printed no end: %w", l.name, bad)
	}
	return nil
}

// fillMaps creates the ConfigMaps of 1 KiB that are missing.
func (a *arena) fillMaps(ctx context.Context, objects int) error {
	kube, err := kubernetes.NewForConfig(a.config)
	if err != nil {
		return err
	}
	return createMissing(ctx, &a.objects, objects, func(ctx context.Context, i int) error {
		_, err := kube.CoreV1().ConfigMaps(a.namespace).Create(ctx, processMap(i), metav1.CreateOptions{FieldManager: "bench"})
		return err
	})
}

// createMissing calls create for the numbers from existing+1 to objects, and sets existing.
func createMissing(ctx context.Context, existing *int, objects int, create func(ctx context.Context, i int) error) error {
	var next atomic.Int64
	next.Store(int64(*existing))
	*existing = objects
	return together(ctx, 16, func(ctx context.Context, _ int) error {
		for i := int(next.Add(1)); i <= objects; i = int(next.Add(1)) {
			if err := create(ctx, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// processMap returns the i-th ConfigMap of fillMaps.
func processMap(i int) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("process-", i), Labels: map[string]string{"tenth": strconv.Itoa(i % 10)}},
		Data:       map[string]string{"key": strings.Repeat("v", 1<<10)},
	}
}
