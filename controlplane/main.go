package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/clientcmd"
)

// stopTimeout is how long requests in flight may take to end once the stop has
// begun. Clients' open watches hold kube-apiserver for longer, and there is
// nothing to lose: the data goes too.
const stopTimeout = 2 * time.Second

type options struct {
	kubeconfig    string
	readyFile     string
	data          string
	verbosity     int
	stdin         bool
	apiserverArgs []string
}

func main() {
	opts, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
		os.Exit(2)
	}
	if err := run(opts, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("controlplane", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "write an administrator's kubeconfig to this `file`; empty means one in the data folder")
	fs.StringVar(&o.readyFile, "ready-file", "", "create this `file` once the server is ready")
	fs.StringVar(&o.data, "data", "", "keep etcd's data in this `folder` and start with what it holds; empty means a temporary one")
	fs.IntVar(&o.verbosity, "v", 0, "verbosity of Kubernetes' own log on stderr; 0 means none unless something fails")
	fs.BoolVar(&o.stdin, "stdin", false, "stop when standard input is closed")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Println("usage: controlplane [flags] [-- kube-apiserver flags]")
			fs.SetOutput(os.Stdout)
			fs.PrintDefaults()
		}
		return options{}, err
	}
	o.apiserverArgs = fs.Args()
	for _, a := range o.apiserverArgs {
		if len(a) == 0 || a[0] != '-' {
			return options{}, fmt.Errorf("unexpected argument %q: kube-apiserver's flags come after --", a)
		}
	}
	if o.verbosity < 0 {
		return options{}, fmt.Errorf("-v %d: must not be negative", o.verbosity)
	}
	return o, nil
}

// run starts the servers and blocks until it is told to stop and everything
// has been removed again.
func run(opts options, stdout, stderr *os.File) (err error) {
	begin := time.Now()
	dir, err := os.MkdirTemp("", "controlplane-") // mode 0700
	if err != nil {
		return err
	}
	defer func() {
		if rmErr := os.RemoveAll(dir); err == nil {
			err = rmErr
		}
	}()

	// The commands of Kubernetes log to os.Stderr and offer no writer. What
	// they say is of interest to the reader who asked for it, and when a start
	// fails.
	if opts.verbosity == 0 {
		log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		os.Stderr = log
		defer func() {
			os.Stderr = stderr
			if err != nil {
				printEnd(stderr, log)
			}
			log.Close()
		}()
	}

	// kube-apiserver's command installs its own handler for the same signals,
	// which starts its graceful stop, and exits the process at the second one.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	stop := make(chan struct{})
	if opts.stdin {
		go func() { // ends with the process: a read of standard input cannot be interrupted
			_, _ = io.Copy(io.Discard, os.Stdin)
			close(stop)
		}()
	}

	creds, err := newCredentials(dir)
	if err != nil {
		return err
	}
	data := opts.data
	if data == "" {
		data = filepath.Join(dir, "etcd")
	}
	etcd, err := startEtcd(dir, data, opts.verbosity)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	// Close would wait for its clients, which are in this process and have no
	// end of their own. HardStop returns when the data is closed.
	defer etcd.Server.HardStop()
	server, err := startAPIServer(dir, creds, opts.verbosity, opts.apiserverArgs)
	if err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}

	kubeconfig := opts.kubeconfig
	if kubeconfig == "" {
		kubeconfig = filepath.Join(dir, "kubeconfig")
	}
	if err := creds.writeKubeconfig(kubeconfig, server.url); err != nil {
		return err
	}
	if opts.kubeconfig != "" {
		defer os.Remove(opts.kubeconfig)
	}

	admin, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	ready, controllers := make(chan error, 1), make(chan error, 1)
	running.Go(func() { ready <- server.waitReady(ctx, creds) })
	for {
		select {
		case err := <-ready:
			if err != nil {
				return err
			}
			ready = nil
			running.Go(func() { controllers <- runControllers(ctx, admin) })
			if opts.readyFile != "" {
				if err := os.WriteFile(opts.readyFile, nil, 0o600); err != nil {
					return err
				}
				defer os.Remove(opts.readyFile)
			}
			fmt.Fprintf(stdout, "controlplane: ready after %.1fs at %s\nexport KUBECONFIG=%s\n",
				time.Since(begin).Seconds(), server.url, kubeconfig)
		case err := <-server.done:
			return fmt.Errorf("kube-apiserver ended: %w", errOr(err, errors.New("without an error")))
		case err := <-controllers:
			return fmt.Errorf("the controllers ended: %w", errOr(err, errors.New("without an error")))
		case <-signals: // seen by kube-apiserver too
			cancel()
			return server.wait(stopTimeout)
		case <-stop:
			cancel()
			genericapiserver.RequestShutdown()
			return server.wait(stopTimeout)
		}
	}
}

func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// printEnd shows the last lines of Kubernetes' log.
func printEnd(w io.Writer, log *os.File) {
	const most = 8 << 10
	size, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return
	}
	if _, err := log.Seek(max(0, size-most), io.SeekStart); err != nil {
		return
	}
	_, _ = io.Copy(w, log)
}
