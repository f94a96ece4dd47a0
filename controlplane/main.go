package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/clientcmd"
)

// stopTimeout bounds the graceful stop of kube-apiserver, which open watches of clients
// would delay. etcd already has the data of each completed write.
const stopTimeout = 2 * time.Second

type options struct {
	kubeconfig    string
	readyFile     string
	data          string
	verbosity     int
	stdin         bool
	etcds         int
	servers       int
	commands      bool
	collect       bool   // run the garbage collector
	assets        string // write the programs for envtest to this folder, and exit
	apiserverArgs []string
}

func main() {
	runAs(strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"))
	if text, ok := os.LookupEnv(memberEnv); ok {
		if err := runMember(text); err != nil {
			fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
			os.Exit(1)
		}
		return
	}
	opts, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
		os.Exit(2)
	}
	if opts.assets != "" {
		folder, err := writeAssets(opts.assets)
		if err != nil {
			fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
			os.Exit(1)
		}
		fmt.Println(folder)
		return
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
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "write an administrator's kubeconfig to this `file`; empty means a file in a temporary folder")
	fs.StringVar(&o.readyFile, "ready-file", "", "create this `file` once the server is ready")
	fs.StringVar(&o.data, "data", "", "store etcd's data in this `folder` and start with the data in it; empty means a temporary folder")
	fs.IntVar(&o.verbosity, "v", 0, "verbosity of Kubernetes' log on stderr; 0 prints the end of the log only after a failure")
	fs.BoolVar(&o.stdin, "stdin", false, "stop when standard input is closed")
	fs.IntVar(&o.etcds, "etcds", 1, "number of etcds, an odd number; above 1, each is a process")
	fs.IntVar(&o.servers, "servers", 1, "number of kube-apiservers; above 1, each is a process")
	fs.BoolVar(&o.collect, "garbage-collector", true, "run the garbage collector")
	fs.StringVar(&o.assets, "assets", "", "write etcd and kube-apiserver for the package envtest into this `folder`, print its path, and exit")
	fs.BoolVar(&o.commands, "commands", false, "read commands for the processes from standard input, and stop when it is closed")
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
			return options{}, fmt.Errorf("unexpected argument %q: write flags of kube-apiserver after --", a)
		}
		name, _, _ := strings.Cut(strings.ReplaceAll(a, "_", "-"), "=") // kube-apiserver accepts both
		if name == "--secure-port" || name == "--bind-address" {
			return options{}, fmt.Errorf("%s cannot be set: the port is chosen: read it from the kubeconfig", name)
		}
	}
	if o.verbosity < 0 {
		return options{}, fmt.Errorf("-v %d is negative: use 0 or more", o.verbosity)
	}
	switch {
	case o.etcds < 1 || o.etcds > 9 || o.etcds%2 == 0:
		return options{}, fmt.Errorf("-etcds is %d: use an odd number up to 9, so that a majority can run without one of them", o.etcds)
	case o.servers < 1 || o.servers > 9:
		return options{}, fmt.Errorf("-servers is %d: use 1 to 9", o.servers)
	case o.commands && o.etcds == 1 && o.servers == 1:
		return options{}, errors.New("-commands is for several processes: set -etcds or -servers above 1")
	}
	return o, nil
}

// run starts the servers and blocks until they have stopped and the temporary folder is
// deleted.
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

	// A process that was killed has left its ready file.
	if err := os.Remove(opts.readyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}

	// Kubernetes' commands always log to os.Stderr. Without -v that log goes to a file,
	// whose end is printed only after a failure.
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

	if opts.etcds > 1 || opts.servers > 1 {
		return runCluster(opts, dir, stdout, stderr)
	}

	// kube-apiserver's command also handles these signals: the first starts its
	// graceful stop, the second exits the process.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	stop := make(chan struct{})
	if opts.stdin {
		go func() { // ends with the process, because a read of standard input cannot be interrupted
			_, _ = io.Copy(io.Discard, os.Stdin)
			close(stop)
		}()
	}

	creds, err := newCredentials(dir)
	if err != nil {
		return err
	}
	etcd, err := opts.awaitEtcd(dir, signals, stop)
	if errors.Is(err, errStop) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	// Close would wait for etcd's clients, which run in this process and do not stop.
	// HardStop returns when the data is closed.
	defer etcd.Server.HardStop()
	port, release, err := reservePort()
	if err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	defer release()
	server := startAPIServer(creds, port, []string{etcdEndpoint(dir)}, opts.verbosity, opts.apiserverArgs)

	defer opts.remove()
	kubeconfig, err := opts.publish(creds, dir, map[string]string{contextName: server.url})
	if err != nil {
		return err
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
			running.Go(func() { controllers <- runControllers(ctx, admin, opts.collect) })
			if err := opts.writeReady(); err != nil {
				return err
			}
			fmt.Fprintf(stdout, "controlplane: ready after %.1fs at %s\nexport KUBECONFIG=%s\n",
				time.Since(begin).Seconds(), server.url, kubeconfig)
		case err := <-server.done:
			return fmt.Errorf("kube-apiserver ended: %w", errOr(err, errors.New("it returned no error")))
		case err := <-controllers:
			return fmt.Errorf("the controllers ended: %w", errOr(err, errors.New("they returned no error")))
		case <-signals: // kube-apiserver receives them too
			cancel()
			return server.wait(stopTimeout)
		case <-stop:
			cancel()
			genericapiserver.RequestShutdown()
			return server.wait(stopTimeout)
		}
	}
}

// publish writes the kubeconfig and returns its absolute path, which is printed for shells in
// other folders.
func (o *options) publish(creds *credentials, dir string, urls map[string]string) (string, error) {
	file := cmp.Or(o.kubeconfig, filepath.Join(dir, "kubeconfig"))
	if absolute, err := filepath.Abs(file); err == nil {
		file = absolute
	}
	return file, creds.writeKubeconfig(file, urls)
}

// writeReady creates the ready file.
func (o *options) writeReady() error {
	if o.readyFile == "" {
		return nil
	}
	return os.WriteFile(o.readyFile, nil, 0o600)
}

// remove removes what publish and writeReady wrote outside the temporary folder.
func (o *options) remove() {
	for _, file := range []string{o.kubeconfig, o.readyFile} {
		if file != "" {
			os.Remove(file)
		}
	}
}

func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// printEnd prints the end of Kubernetes' log.
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
