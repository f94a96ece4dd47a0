package rows

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/bench"
)

const (
	kubectl = "kubectl apply --applyset"
	flux    = "Flux's ssa"
)

func init() {
	bench.Register(bench.Row{
		Name: "applyset/beside",
		Long: true, // it compiles kubectl and Flux; make kubectl runs it
		About: "The calls of applyset/set beside kubectl's code, with its inventory, and beside Flux's ssa manager, without one. Each rival is a process of its own, and measures itself after its start. " +
			"No tool creates 200 objects with fewer than 200 requests, so half of kubectl's is out of reach there.",
		Op: "object",
		Goals: []bench.Goal{
			{Figure: setRequests, Rival: kubectl, AtMost: 0.5},
			{Figure: setRequests, Rival: flux, AtMost: 0.5},
		},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			dir, err := buildPrograms(ctx, "internal/kubectltest", "kubectltest", []string{"./rival"})
			if err != nil {
				return nil, nil, err
			}
			path := filepath.Join(dir, "rival")
			w, err := openSets(ctx)
			if err != nil {
				return nil, nil, err
			}
			info, err := buildinfo.ReadFile(path)
			if err != nil {
				return nil, w.stop, err
			}
			var pairs []bench.Pair
			for _, rival := range []string{kubectl, flux} {
				module := map[string]string{kubectl: "k8s.io/kubectl", flux: "github.com/fluxcd/pkg/ssa"}[rival]
				for _, dep := range info.Deps {
					if dep.Path == module {
						module += " " + dep.Version
					}
				}
				pairs = append(pairs, w.pairs(rival, module, func(ctx context.Context, m *bench.Meter, work setWork) (int, error) {
					return w.rival(ctx, m, work, path, rival == kubectl)
				})...)
			}
			return pairs, w.stop, nil
		},
	})
}

// rival does the work in a process.
func (w *sets) rival(ctx context.Context, m *bench.Meter, work setWork, path string, parent bool) (n int, err error) {
	n = m.N(200)
	run := w.runs.Add(1)
	var steps [][]*unstructured.Unstructured
	if work.before {
		steps = append(steps, setWork{}.wanted(w.namespace, run, n))
	}
	in, err := json.Marshal(append(steps, work.wanted(w.namespace, run, n)))
	if err != nil {
		return 0, err
	}
	args := []string{"-kubeconfig", w.kubeconfig, "-namespace", w.namespace}
	if parent {
		args = append(args, "-parent", fmt.Sprint("secrets/parent-", run))
	}
	defer func() {
		for _, resource := range []string{"configmaps", "secrets"} {
			all := w.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(w.namespace)
			err = errors.Join(err, all.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		}
	}()
	var failure strings.Builder
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &failure
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, failure.String())
	}
	var figures map[string]float64
	if err := json.Unmarshal(out, &figures); err != nil {
		return 0, fmt.Errorf("the program printed no figures: %w", err)
	}
	for figure, total := range figures {
		m.Count(figure, total)
	}
	return n, nil
}
