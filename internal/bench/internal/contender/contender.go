// Package contender contains the common code of the programs in bench/programs: the flags, the
// work of a reconcile, and the figures.
package contender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The values of the flag -kind.
const (
	ConfigMaps  = "configmaps"
	Deployments = "deployments"
	Gadgets     = "gadgets"
)

// Workers is the number of workers of each program.
const Workers = 8

// Figures are the costs of a program from its start until it has begun its reconciles.
type Figures struct {
	CPU       time.Duration `json:"cpu"`       // of the user and of the system
	PeakBytes int64         `json:"peakBytes"` // of the resident memory
	LiveBytes uint64        `json:"liveBytes"` // of the heap, after a garbage collection
	Allocs    uint64        `json:"allocs"`
}

// Process is one run of a program.
type Process struct {
	Config    *rest.Config
	Namespace string
	Trim      bool // remove managedFields from the cached objects
	Metadata  bool // hold only the metadata of the objects that are not Selected
	Kind      string
	Compact   bool // hold the objects as the API server encoded them

	objects  int64
	stay     bool
	call     time.Duration
	bytes    atomic.Int64
	left     atomic.Int64
	all      chan struct{}
	requests atomic.Int64
	cut      atomic.Int64
	sights   sights
}

// Selected reports whether a program with Metadata holds all of an object: one of ten.
func Selected(labels map[string]string) bool { return labels["tenth"] == "0" }

// Reconciled is the work of a reconcile that has read the object from the cache. With the flag
// -call it also waits. If ctx is done before the end of the wait, it returns the cause.
func (p *Process) Reconciled(ctx context.Context, obj metav1.Object) error {
	p.sights.add(obj)
	if cm, ok := obj.(*corev1.ConfigMap); ok {
		p.bytes.Add(int64(len(cm.Data["key"])))
	}
	if p.left.Add(-1) == 0 {
		close(p.all)
	}
	if p.call == 0 {
		return nil
	}
	timer := time.NewTimer(p.call)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		p.cut.Add(1)
		return context.Cause(ctx)
	}
}

// Main runs a controller. When as many reconciles have begun as the flag -objects requires, Main
// prints a line, and then the Figures. Without the flag -stay it then stops the controller. With
// it Main prints a Usage for each Command of the input. If the input ends or SIGTERM arrives, Main
// stops the controller and prints the End.
func Main(run func(ctx context.Context, p *Process) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
	flags.Int64Var(&p.objects, "objects", 1, "`number` of reconciles before the figures")
	flags.BoolVar(&p.Trim, "trim", false, "remove managedFields from the cached objects")
	flags.BoolVar(&p.Metadata, "metadata", false, "hold only the metadata of nine of ten objects")
	flags.StringVar(&p.Kind, "kind", ConfigMaps, "the objects' `kind`: "+strings.Join([]string{ConfigMaps, Deployments, Gadgets}, ", "))
	flags.BoolVar(&p.Compact, "compact", false, "hold the objects as the API server encoded them")
	flags.BoolVar(&p.stay, "stay", false, "run until the input ends or SIGTERM arrives")
	flags.DurationVar(&p.call, "call", 0, "`time` that each reconcile waits")
	_ = flags.Parse(os.Args[1:]) // it ends the process
	p.left.Store(p.objects)
	var err error
	if p.Config, err = clientcmd.BuildConfigFromFlags("", *kubeconfig); err != nil {
		return err
	}
	p.Config.QPS = -1
	p.Config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return Counter{RoundTripper: rt, N: &p.requests} })

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, p) }()
	select {
	case <-p.all:
	case err := <-ended:
		return errors.Join(errors.New("the controller ended"), err)
	}
	fmt.Println("reconciled")
	out := json.NewEncoder(os.Stdout)
	figures, err := measure()
	if err == nil {
		err = out.Encode(figures)
	}
	if err == nil && p.stay {
		err = p.serve(ctx, out)
	}
	cancel()
	err = errors.Join(err, <-ended)
	if err == nil && p.stay {
		err = out.Encode(End{Cut: p.cut.Load()})
	}
	return err
}

func measure() (Figures, error) {
	var m runtime.MemStats
	spent, err := cpu()
	if err != nil {
		return Figures{}, err
	}
	runtime.ReadMemStats(&m)
	f := Figures{CPU: spent, Allocs: m.Mallocs}
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
	runtime.GC() // the objects that the first one finalized
	runtime.ReadMemStats(&m)
	f.LiveBytes = m.HeapAlloc
	return f, nil
}

// Counter counts requests in the transport.
type Counter struct {
	http.RoundTripper
	N *atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (c Counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.N.Add(1)
	return c.RoundTripper.RoundTrip(r)
}
