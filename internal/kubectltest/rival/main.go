// Command rival is a rival of the row applyset/beside of bench. It reads a JSON list of
// lists of objects, applies one list after the other, and prints the figures of the last one.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/internal/kubectltest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	flags := flag.NewFlagSet(os.Args[0], flag.ExitOnError) // controller-runtime has -kubeconfig
	kubeconfig := flags.String("kubeconfig", "", "`file` with the API server's address")
	namespace := flags.String("namespace", "default", "the `name`space of the objects")
	parent := flags.String("parent", "", "the set's parent for kubectl, as `RESOURCE/NAME`; empty means Flux")
	_ = flags.Parse(os.Args[1:]) // it ends the process
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	var requests atomic.Int64
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return counter{rt, &requests} })

	var steps [][]*unstructured.Unstructured
	if err := json.NewDecoder(os.Stdin).Decode(&steps); err != nil {
		return err
	}
	apply, err := kubectltest.Flux(config)
	if err != nil {
		return err
	}
	if *parent != "" {
		apply = func(ctx context.Context, objects ...*unstructured.Unstructured) error {
			return kubectltest.Kubectl(ctx, config, *namespace, *parent, objects...)
		}
	}
	var figures map[string]float64
	for _, objects := range steps {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		sent, start := requests.Load(), time.Now()
		if err := apply(ctx, objects...); err != nil {
			return err
		}
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		figures = map[string]float64{
			"ns": float64(took), "requests": float64(requests.Load() - sent),
			"allocs": float64(after.Mallocs - before.Mallocs), "B": float64(after.TotalAlloc - before.TotalAlloc),
		}
	}
	return json.NewEncoder(os.Stdout).Encode(figures)
}

// counter counts requests in the transport.
type counter struct {
	http.RoundTripper
	requests *atomic.Int64
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return c.RoundTripper.RoundTrip(r)
}
