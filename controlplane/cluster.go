package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// awaitTimeout bounds the wait for a process of a cluster to become ready.
const awaitTimeout = 2 * time.Minute

// States of a process.
const (
	running = "running"
	paused  = "paused"
	stopped = "stopped"
)

// A child is a member of a cluster as the process that starts it sees it.
type child struct {
	member
	cmd     *exec.Cmd
	stdin   io.Closer
	log     *os.File
	ready   chan struct{} // closed when the process has printed that it is ready
	ended   chan struct{} // closed after the process has ended
	relays  []*relay      // of a kube-apiserver, to the etcds
	release func()        // of the Port, which is reserved

	mu    sync.Mutex
	state string
	cut   bool
}

// A death is the end of a process of a child, which may have been started again since.
type death struct {
	*child
	of *exec.Cmd
}

// A cluster is several etcds and kube-apiservers, each a process. Its methods are for one
// goroutine.
type cluster struct {
	verbosity int
	processes []*child // the etcds first
	balancer  *relay   // before the kube-apiservers
	died      chan death
	relaying  sync.WaitGroup
}

// newCluster makes the addresses and relays of a cluster, and starts no process.
func newCluster(dir string, opts options) (_ *cluster, err error) {
	c := &cluster{verbosity: opts.verbosity, died: make(chan death, opts.etcds+opts.servers)}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	data := dir
	if opts.data != "" {
		if data, err = filepath.Abs(opts.data); err != nil {
			return nil, err
		}
	}
	var peers []string
	for n := range opts.etcds {
		name := fmt.Sprintf("etcd-%d", n)
		peers = append(peers, name+"="+peerURL(name))
	}
	for n := range opts.etcds {
		name := fmt.Sprintf("etcd-%d", n)
		c.processes = append(c.processes, &child{state: stopped, member: member{
			Name: name, Dir: dir, Data: filepath.Join(data, name), Peers: strings.Join(peers, ","), Verbosity: opts.verbosity,
		}})
	}
	for n := range opts.servers {
		p := &child{state: stopped, member: member{Name: fmt.Sprintf("server-%d", n), Dir: dir, Verbosity: opts.verbosity, Args: opts.apiserverArgs}}
		c.processes = append(c.processes, p)
		if p.Port, p.release, err = reservePort(); err != nil {
			return nil, err
		}
		for e := range opts.etcds {
			socket := filepath.Join(dir, fmt.Sprintf("%d-%d.sock", n, e))
			r, err := newRelay("unix", socket, func() []string { return []string{clientSocket(dir, c.processes[e].Name)} })
			if err != nil {
				return nil, err
			}
			p.relays = append(p.relays, r)
			c.relaying.Go(r.run)
			p.Etcds = append(p.Etcds, "unix://"+socket)
		}
	}
	var next atomic.Int64
	balancer, err := newRelay("tcp", "127.0.0.1:0", func() []string {
		first := int(next.Add(1))
		var addresses []string
		for n := range opts.servers {
			p := c.processes[opts.etcds+(n+first)%opts.servers]
			p.mu.Lock()
			if p.state == running && !p.cut {
				addresses = append(addresses, p.address())
			}
			p.mu.Unlock()
		}
		return addresses
	})
	if err != nil {
		return nil, err
	}
	c.balancer = balancer
	c.relaying.Go(balancer.run)
	return c, nil
}

// urls returns the URLs by context of the kubeconfig.
func (c *cluster) urls() map[string]string {
	urls := map[string]string{contextName: "https://" + c.balancer.listener.Addr().String()}
	for _, p := range c.processes {
		if !p.isEtcd() {
			urls[p.Name] = "https://" + p.address()
		}
	}
	return urls
}

// start starts the process. On Linux a child is killed when the thread that has started it
// ends, so the caller's goroutine is locked to its thread.
func (c *cluster) start(p *child) error {
	text, err := json.Marshal(p.member)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if p.log != nil {
		p.log.Close()
	}
	if p.log, err = os.OpenFile(filepath.Join(p.Dir, p.Name+".log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Dir = p.Dir // of the peers' sockets
	cmd.Env = append(os.Environ(), memberEnv+"="+string(text))
	cmd.SysProcAttr = childAttributes()
	cmd.Stderr = p.log
	if c.verbosity > 0 {
		cmd.Stderr = os.Stderr
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.ready, p.ended = cmd, make(chan struct{}), make(chan struct{})
	p.set(running)
	ready, ended := p.ready, p.ended
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if lines.Text() == readyLine {
				close(ready)
			}
		}
		_ = cmd.Wait() // its end matters, not how
		close(ended)
		c.died <- death{p, cmd}
	}()
	return nil
}

func (p *child) address() string { return "127.0.0.1:" + strconv.Itoa(p.Port) }

func (p *child) set(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
}

// isolate cuts the process off from the etcds, or ends that.
func (p *child) isolate(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	for _, r := range p.relays {
		r.hold(cut)
	}
}

// delay holds what the etcds answer about a resource, or delivers it if the resource is empty.
func (p *child) delay(resource string) {
	text := ""
	if resource != "" {
		text = "/" + resource + "/"
	}
	for _, r := range p.relays {
		r.delay(text)
	}
}

// await waits until the process is ready. Its error is the cause of ctx if that ends first.
func (p *child) await(ctx context.Context) error {
	timer := time.NewTimer(awaitTimeout)
	defer timer.Stop()
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		return fmt.Errorf("%s ended before it was ready", p.Name)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("%s is not ready after %v", p.Name, awaitTimeout)
	}
}

// kill ends the process without a graceful stop.
func (p *child) kill() {
	p.set(stopped)
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// do runs a command.
func (c *cluster) do(ctx context.Context, command string) error {
	verb, name, _ := strings.Cut(strings.TrimSpace(command), " ")
	name, resource, _ := strings.Cut(name, " ")
	i := slices.IndexFunc(c.processes, func(p *child) bool { return p.Name == name })
	if i < 0 {
		var names []string
		for _, p := range c.processes {
			names = append(names, p.Name)
		}
		return fmt.Errorf("no process %q: write a command and one of %s", name, strings.Join(names, ", "))
	}
	p := c.processes[i]
	if (verb == "delay") != (resource != "") {
		return fmt.Errorf("%q: write a resource after the name for delay, and for no other command", command)
	}
	requires := map[string]string{"start": stopped, "await": running, "stop": running, "pause": running, "resume": paused}
	if state, ok := requires[verb]; ok && p.state != state {
		return fmt.Errorf("%s is %s: %q is for a process that is %s", name, p.state, verb, state)
	}
	switch verb {
	case "start":
		return c.start(p)
	case "await":
		return p.await(ctx)
	case "stop":
		p.set(stopped)
		_ = p.stdin.Close()
		<-p.ended
		return nil
	case "kill":
		if p.state == stopped {
			return fmt.Errorf("%s is stopped", name)
		}
		p.kill()
		return nil
	case "pause":
		p.set(paused)
		return suspend(p.cmd.Process)
	case "resume":
		p.set(running)
		return resume(p.cmd.Process)
	case "cut", "join", "delay":
		if p.isEtcd() {
			return fmt.Errorf("%s is an etcd: %q is for a kube-apiserver", name, verb)
		}
		if verb != "cut" {
			p.delay(resource)
		}
		if verb != "delay" {
			p.isolate(verb == "cut")
		}
		return nil
	}
	return fmt.Errorf("unknown command %q: write one of start, await, stop, kill, pause, resume, cut, delay, join, and a name", verb)
}

// close kills all processes and ends the relays.
func (c *cluster) close() {
	for _, p := range slices.Backward(c.processes) {
		if p.state != stopped {
			p.kill()
		}
		if p.log != nil {
			p.log.Close()
		}
		for _, r := range p.relays {
			r.close()
		}
		if p.release != nil {
			p.release()
		}
	}
	if c.balancer != nil {
		c.balancer.close()
	}
	c.relaying.Wait()
}

// errStop is the cause of the end by a signal or by standard input.
var errStop = errors.New("stopped")

// runCluster starts the processes of a cluster and runs commands until standard input or a
// signal ends it.
func runCluster(opts options, dir string, stdout, stderr io.Writer) (err error) {
	begin := time.Now()
	runtime.LockOSThread() // see start
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		select {
		case <-signals:
			signal.Stop(signals) // a second one kills this process
			stop(errStop)
		case <-ctx.Done():
		}
	}()
	commands := make(chan string)
	if opts.stdin || opts.commands {
		go func() { // ends with the process, because a read of standard input cannot be interrupted
			for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
				if opts.commands {
					select {
					case commands <- lines.Text():
					case <-ctx.Done():
					}
				}
			}
			stop(errStop)
		}()
	}
	creds, err := newCredentials(dir)
	if err != nil {
		return err
	}
	c, err := newCluster(dir, opts)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.startAll(ctx, stderr); err != nil {
		if errors.Is(err, errStop) {
			return nil
		}
		return err
	}
	defer opts.remove()
	urls := c.urls()
	kubeconfig, err := opts.publish(creds, dir, urls)
	if err != nil {
		return err
	}
	admin, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	var controlling sync.WaitGroup
	defer controlling.Wait()
	controllersCtx, cancel := context.WithCancel(context.Background())
	defer cancel()
	controllers := make(chan error, 1)
	controlling.Go(func() { controllers <- runControllers(controllersCtx, admin, opts.collect) })
	if err := opts.writeReady(); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "controlplane: ready after %.1fs at %s\nexport KUBECONFIG=%s\ncontexts: %s\n",
		time.Since(begin).Seconds(), urls[contextName], kubeconfig, strings.Join(slices.Sorted(maps.Keys(urls)), " "))
	for {
		select {
		case d := <-c.died:
			if d.state != stopped && d.of == d.cmd {
				printEnd(stderr, d.log)
				return fmt.Errorf("%s ended without a command", d.Name)
			}
		case err := <-controllers:
			return fmt.Errorf("the controllers ended: %w", errOr(err, errors.New("they returned no error")))
		case <-ctx.Done():
			return nil
		case command := <-commands:
			switch err := c.do(ctx, command); {
			case errors.Is(err, errStop):
				return nil
			case err != nil:
				fmt.Fprintf(stdout, "error: %v\n", err)
			default:
				fmt.Fprintf(stdout, "ok: %s\n", strings.TrimSpace(command))
			}
		}
	}
}

// startAll starts all processes: the kube-apiservers once the etcds are ready. All etcds
// start before one is awaited, because a majority must run before any is ready.
func (c *cluster) startAll(ctx context.Context, stderr io.Writer) error {
	servers := slices.IndexFunc(c.processes, func(p *child) bool { return !p.isEtcd() })
	for _, group := range [][]*child{c.processes[:servers], c.processes[servers:]} {
		for _, p := range group {
			if err := c.start(p); err != nil {
				return fmt.Errorf("start %s: %w", p.Name, err)
			}
		}
		for _, p := range group {
			if err := p.await(ctx); err != nil {
				if ctx.Err() == nil {
					printEnd(stderr, p.log)
				}
				return err
			}
		}
	}
	return nil
}
