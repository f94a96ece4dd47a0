package gamedays

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A pod is a replica, and does what the kubelet does: it starts the process again when it has ended, and
// restarts one whose /livez has failed for 30s.
type pod struct {
	name  string
	bin   string
	args  []string
	env   []string
	addr  string // of the endpoints
	debug string // the address of the debug page; "" means none
	gate  *gate
	dir   string // with kubeconfig, token and ca.crt
	log   *journal

	stderr  *os.File                      // takes the place of log for the next process
	between atomic.Pointer[time.Duration] // the time from one probe to the next, nil means 250ms

	mu       sync.Mutex
	cmd      *exec.Cmd
	ended    chan struct{} // of the process
	stopping bool          // the pod is being deleted: no restart
	frozen   bool
	restarts []string // how the processes ended
	probes   []probe
	wake     chan struct{} // closed when the pod is being deleted
	running  sync.WaitGroup
}

// A probe is an answer, as the kubelet sees it. Only changes are kept.
type probe struct {
	at          time.Time
	live, ready bool
}

const livezLimit = 30 * time.Second // 3 failures at a period of 10s

func (p *pod) start(t testing.TB) {
	p.wake = make(chan struct{})
	started := make(chan error, 1)
	p.running.Go(func() {
		first := true
		for {
			err := p.run()
			if first {
				started <- err
				first = false
			}
			if err != nil {
				return
			}
			p.mu.Lock()
			ended := p.ended
			p.mu.Unlock()
			<-ended
			p.mu.Lock()
			stopping := p.stopping
			if !stopping {
				p.restarts = append(p.restarts, p.cmd.ProcessState.String())
			}
			n := len(p.restarts)
			p.mu.Unlock()
			if stopping {
				return
			}
			// The kubelet restarts at once, then after 10s, 20s and so on.
			select {
			case <-time.After(time.Duration(min(n-1, 3)) * 5 * time.Second):
			case <-p.wake:
				return
			}
		}
	})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	p.running.Go(p.probe)
}

// run starts the process.
func (p *pod) run() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = exec.Command(p.bin, p.args...)
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if p.stderr != nil {
		p.cmd.Stderr, p.stderr = p.stderr, nil
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(p.cmd, p.ended)
	return nil
}

// signal sends a signal to the process.
func (p *pod) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(s)
}

// kill ends the process as the OOM killer does. The kubelet starts it again.
func (p *pod) kill() { p.signal(syscall.SIGKILL) }

// freeze stops the process as a node that hangs does, for a time. The kubelet hangs too.
func (p *pod) freeze(d time.Duration) {
	p.mu.Lock()
	p.frozen = true
	p.mu.Unlock()
	p.signal(syscall.SIGSTOP)
	time.Sleep(d)
	p.signal(syscall.SIGCONT)
	p.mu.Lock()
	p.frozen = false
	p.mu.Unlock()
}

// stop deletes the pod: SIGTERM, and SIGKILL after 30s. It returns how the process ended, and how long it took.
func (p *pod) stop() (code int, took time.Duration) {
	p.mu.Lock()
	ended, again := p.ended, p.stopping
	if !p.stopping {
		p.stopping = true
		close(p.wake)
	}
	p.mu.Unlock()
	if again {
		p.running.Wait()
		return 0, 0
	}
	begin := time.Now()
	p.signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		p.signal(syscall.SIGKILL)
		<-ended
	}
	took = time.Since(begin)
	p.running.Wait()
	return p.cmd.ProcessState.ExitCode(), took
}

// probe asks the endpoints until the pod is being deleted. Its requests have more time than the kubelet's second,
// because other rows use the machine at the same time.
func (p *pod) probe() {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} // as the kubelet does
	ask := func(path string) bool {
		for range 3 { // as the kubelet's failureThreshold, so that a busy machine is no failure
			resp, err := client.Get("https://" + p.addr + path)
			if err == nil {
				resp.Body.Close()
				return resp.StatusCode == http.StatusOK
			}
			if !os.IsTimeout(err) {
				break
			}
		}
		return false
	}
	lived := time.Now()
	for {
		seen := probe{at: time.Now(), live: ask("/livez"), ready: ask("/readyz")}
		p.mu.Lock()
		if p.stopping {
			p.mu.Unlock()
			return // the answers may be of a process that stops
		}
		if n := len(p.probes); n == 0 || p.probes[n-1].live != seen.live || p.probes[n-1].ready != seen.ready {
			p.probes = append(p.probes, seen)
		}
		frozen := p.frozen
		p.mu.Unlock()
		if seen.live || frozen {
			lived = time.Now()
		} else if time.Since(lived) > livezLimit {
			p.signal(syscall.SIGKILL) // the example's grace period would only delay it
			lived = time.Now()
		}
		wait := 250 * time.Millisecond
		if between := p.between.Load(); between != nil {
			wait = *between
		}
		select {
		case <-time.After(wait):
		case <-p.wake:
			return
		}
	}
}

// seen returns the probes since a time, and the one before.
func (p *pod) seen(begin time.Time) []probe {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.probes, func(s probe) bool { return s.at.After(begin) })
	if i < 0 {
		i = len(p.probes)
	}
	return slices.Clone(p.probes[max(0, i-1):])
}

func (p *pod) isReady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.probes) > 0 && p.probes[len(p.probes)-1].ready
}

// restarted returns how the processes of the pod ended that were started again.
func (p *pod) restarted() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.restarts)
}

// probesText says what the probes said since a time.
func (p *pod) probesText(begin time.Time) string {
	var b strings.Builder
	for _, s := range p.seen(begin) {
		fmt.Fprintf(&b, " %.1fs:live=%v,ready=%v", max(0, s.at.Sub(begin).Seconds()), s.live, s.ready)
	}
	return p.name + b.String()
}
