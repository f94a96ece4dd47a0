// Package contender is what the programs of the row operator/process share: the flags, the work
// of a reconcile, and the figures.
package contender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Workers is the number of workers of each program.
const Workers = 8

// Figures are what a program has used when every object was reconciled.
type Figures struct {
	PeakBytes int64  `json:"peakBytes"` // of the resident memory
	LiveBytes uint64 `json:"liveBytes"` // of the heap, after a garbage collection
	Allocs    uint64 `json:"allocs"`
}

// Process is one run of a program.
type Process struct {
	Config    *rest.Config
	Namespace string
	Trim      bool // remove managedFields from the cached objects
	Metadata  bool // hold only the metadata of the objects that are not Selected

	objects int64
	bytes   atomic.Int64
	left    atomic.Int64
	all     chan struct{}
}

// Selected reports whether a program with Metadata holds all of an object: one of ten.
func Selected(labels map[string]string) bool { return labels["tenth"] == "0" }

// Reconciled is the work of a reconcile: it reads the object.
func (p *Process) Reconciled(obj *corev1.ConfigMap) {
	p.bytes.Add(int64(len(obj.Data["key"])))
	if p.left.Add(-1) == 0 {
		close(p.all)
	}
}

// Main runs a controller until it has reconciled each object once. It prints a line at that
// moment, and then a line with the Figures.
func Main(run func(ctx context.Context, p *Process) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := work(ctx, run); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func work(ctx context.Context, run func(ctx context.Context, p *Process) error) error {
	p := &Process{all: make(chan struct{})}
	flags := flag.NewFlagSet(os.Args[0], flag.ExitOnError) // controller-runtime has -kubeconfig
	kubeconfig := flags.String("kubeconfig", "", "`file` with the API server's address")
	flags.StringVar(&p.Namespace, "namespace", "default", "the objects' `name`space")
	flags.Int64Var(&p.objects, "objects", 1, "`number` of ConfigMaps in the namespace")
	flags.BoolVar(&p.Trim, "trim", false, "remove managedFields from the cached objects")
	flags.BoolVar(&p.Metadata, "metadata", false, "hold only the metadata of nine of ten objects")
	_ = flags.Parse(os.Args[1:]) // it ends the process
	p.left.Store(p.objects)
	var err error
	if p.Config, err = clientcmd.BuildConfigFromFlags("", *kubeconfig); err != nil {
		return err
	}
	p.Config.QPS = -1

	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, p) }()
	select {
	case <-p.all:
	case err := <-ended:
		cancel()
		return errors.Join(errors.New("the controller ended"), err)
	}
	fmt.Println("reconciled")
	figures, err := measure()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(figures)
	}
	cancel()
	return errors.Join(err, <-ended)
}

func measure() (Figures, error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f := Figures{Allocs: m.Mallocs}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return f, err
	}
	_, after, _ := bytes.Cut(status, []byte("VmHWM:"))
	text, _, _ := bytes.Cut(after, []byte("kB"))
	kib, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil {
		return f, fmt.Errorf("/proc/self/status: VmHWM: %w", err)
	}
	f.PeakBytes = kib << 10
	runtime.GC()
	runtime.GC() // what the first one finalized
	runtime.ReadMemStats(&m)
	f.LiveBytes = m.HeapAlloc
	return f, nil
}
