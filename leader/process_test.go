package leader_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
)

// A childProcess is a running childReplica and what it has told so far.
type childProcess struct {
	childReplica
	cmd    *exec.Cmd
	stderr bytes.Buffer // complete once ended is closed
	ended  chan struct{}
	err    error // of cmd.Wait, once ended is closed

	mu      sync.Mutex // guards the fields below
	heard   []childArrival
	changed chan struct{} // closed when heard grows
	hold    string        // a message of this kind is not answered before release
	release chan struct{} // closed when it may be
}

// A childArrival is a message and when it came.
type childArrival struct {
	childMessage
	at time.Time
}

// startProcess starts c as a process, which is gone when the test ends.
func startProcess(t *testing.T, c childReplica) *childProcess {
	t.Helper()
	p := &childProcess{ended: make(chan struct{}), changed: make(chan struct{})}
	recorder := httptest.NewServer(http.HandlerFunc(p.record))
	t.Cleanup(recorder.Close)
	c.Recorder = recorder.URL
	c.Kubeconfig = testprocess.Kubeconfig(t, testserver.Config(t))
	p.childReplica = c
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(self, "-test.run=^TestChildProcess$", "-test.timeout=5m")
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(config))
	p.cmd.Stderr = &p.stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // it ends when this process does
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.letGo()
		_ = p.cmd.Process.Kill()
		<-p.ended
		if strings.Contains(p.stderr.String(), "DATA RACE") {
			t.Errorf("%s has a data race:\n%s", p.Identity, &p.stderr)
		}
	})
	return p
}

// record is the recorder's handler.
func (p *childProcess) record(_ http.ResponseWriter, r *http.Request) {
	now := time.Now()
	var m childMessage
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		m.Problem = err.Error()
	}
	p.mu.Lock()
	p.heard = append(p.heard, childArrival{m, now})
	close(p.changed)
	p.changed = make(chan struct{})
	var release chan struct{}
	if p.hold == m.What {
		release = p.release
	}
	p.mu.Unlock()
	if release != nil {
		<-release
	}
}

// holdNext makes the process wait for the answer to the next message of the given
// kind until letGo is called. It returns the number of messages before.
func (p *childProcess) holdNext(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold, p.release = what, make(chan struct{})
	return len(p.heard)
}

func (p *childProcess) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold != "" {
		close(p.release)
		p.hold = ""
	}
}

// said returns the messages so far, and a channel that is closed with the next.
func (p *childProcess) said() ([]childArrival, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard[:len(p.heard):len(p.heard)], p.changed
}

// await returns the first message of the given kind that comes at or after from,
// and how many messages there were up to it.
func (p *childProcess) await(t *testing.T, what string, from int) (childArrival, int) {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		heard, more := p.said()
		for ; from < len(heard); from++ {
			if heard[from].What == what {
				return heard[from], from + 1
			}
		}
		select {
		case <-more:
		case <-p.ended:
			t.Fatalf("%s ended with %v, want a message %q\n%s", p.Identity, p.err, what, &p.stderr)
		case <-timeout.C:
			t.Fatalf("%s does not say %q within %v, its last message was %+v", p.Identity, what, patience, heard[max(0, len(heard)-1):])
		}
	}
}

// successor starts an Elector of this process that takes over from p. began
// receives when its lead was called.
func (p *childProcess) successor(t *testing.T, identity string) (r *replica, began <-chan time.Time) {
	t.Helper()
	starts := make(chan time.Time, 100)
	e := &leader.Elector{
		Leases: newClient(t, testserver.Config(t)).CoordinationV1().Leases(p.Namespace), Namespace: p.Namespace, Name: leaseName, Identity: identity,
		LeaseDuration: p.LeaseDuration, RenewDeadline: p.RenewDeadline, RetryPeriod: p.RetryPeriod,
	}
	return start(t, e, func(ctx context.Context) error {
		starts <- time.Now()
		return untilDone(ctx)
	}), starts
}

func receiveWithin[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
	}
	panic("unreachable")
}

// TestServerFrozenProcess: a leader whose process stands still while another takes over
// acts no more once it goes on. It is stopped by SIGSTOP, in every other round between a
// Check and the effect that the Check allowed. That one effect nobody can hold back but its
// receiver, and it may be as late as the pause is long. It is the only one, and it is
// counted apart. The first Check after the pause fails, and so does every later one, lead's
// context ends, and the process campaigns again and leads in a later term.
//
// Proves L11.
func TestServerFrozenProcess(t *testing.T) {
	t.Parallel()
	const processes, rounds = 4, 4
	var mu sync.Mutex
	var late []time.Duration
	t.Cleanup(func() { // after the parallel subtests
		if t.Failed() {
			return
		}
		t.Logf("%d pauses, 0 effects allowed after them; %d that were allowed before landed this long after another had begun to lead: %v",
			processes*rounds, len(late), late)
	})
	for n := range processes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			p := startProcess(t, childReplica{
				Namespace: testserver.Namespace(t), Identity: "frozen",
				LeaseDuration: time.Second, RenewDeadline: 700 * time.Millisecond, RetryPeriod: 100 * time.Millisecond,
			})
			at := 0
			for round := range rounds {
				after, overlaps := p.freezeOnce(t, at, (n+round)%2 == 0)
				if t.Failed() {
					return
				}
				at = after
				mu.Lock()
				late = append(late, overlaps...)
				mu.Unlock()
			}
		})
	}
}

// freezeOnce waits for a term after message number from, freezes the process for
// as long as another needs to take over, and judges what it does afterwards. It
// returns the number of messages until the process knew, and how long after the
// other began to lead an effect landed whose Check was before the pause.
func (p *childProcess) freezeOnce(t *testing.T, from int, between bool) (at int, overlaps []time.Duration) {
	t.Helper()
	_, at = p.await(t, "leads", from)
	p.await(t, "effect", at)
	if between {
		p.await(t, "prepare", p.holdNext("prepare"))
	}
	if err := testprocess.Freeze(p.cmd.Process); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("a process cannot be stopped on this system")
	} else if err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	before, _ := p.said()
	term := before[len(before)-1].Number
	p.letGo()
	next, starts := p.successor(t, "next")
	took := receiveWithin(t, "successor", starts)

	thawed := time.Now()
	if err := testprocess.Thaw(p.cmd.Process); err != nil {
		t.Fatal(err)
	}
	stopped, at := p.await(t, "stopped", len(before)-1)
	if stopped.Number != term {
		t.Errorf("stopped in term %d, want %d", stopped.Number, term)
	}
	if err := next.stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	again, _ := p.await(t, "leads", at)
	if again.Number <= term+1 {
		t.Errorf("leads in term %d, want one after %d, which is the successor's", again.Number, term+1)
	}

	effects := 0
	all, _ := p.said()
	for _, m := range all[len(before):] {
		if m.Problem != "" {
			t.Errorf("%s: %s", m.What, m.Problem)
		}
		if m.What != "effect" || m.Number != term {
			continue
		}
		effects++
		if m.Before.After(frozen) {
			t.Errorf("an effect was allowed by a Check that began %v after the pause began", m.Before.Sub(frozen))
		}
		if overlap := m.at.Sub(took); overlap >= 0 {
			overlaps = append(overlaps, overlap.Round(time.Microsecond))
		}
	}
	if effects > 1 {
		t.Errorf("%d effects after the pause, want one at most: that of the last Check before it", effects)
	}
	if effects == 0 && between {
		t.Error("no effect after the pause, although the process was stopped right before one")
	}
	t.Logf("paused for %v; %v after it the work had stopped, with %d Checks refused and %d effects in flight",
		thawed.Sub(frozen).Round(time.Millisecond), stopped.at.Sub(thawed).Round(time.Microsecond), stopped.Refused, effects)
	return at, overlaps
}

// TestServerKilledProcess: after SIGKILL another leads as soon as the Lease has
// expired.
//
// Proves L9.
func TestServerKilledProcess(t *testing.T) {
	t.Parallel()
	const attempts = 8
	for n := range 4 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			for attempt := 1; ; attempt++ {
				took, bound, stall := killOnce(t)
				t.Logf("another leads %v after the kill, at most %v expected; the longest stall of this process or the server was %v", took, bound, stall)
				if took <= bound {
					return
				}
				// A machine or a server that is too busy proves no fault of the elector.
				if stall < 100*time.Millisecond || attempt == attempts {
					t.Fatalf("another leads %v after the kill, want at most %v", took, bound)
				}
			}
		})
	}
}

func killOnce(t *testing.T) (took, bound, stall time.Duration) {
	t.Helper()
	c := childReplica{
		Namespace: testserver.Namespace(t), Identity: "killed",
		LeaseDuration: 2 * time.Second, RenewDeadline: 1500 * time.Millisecond, RetryPeriod: 300 * time.Millisecond,
	}
	p := startProcess(t, c)
	_, at := p.await(t, "leads", 0)
	next, starts := p.successor(t, "next")
	p.await(t, "effect", at)
	versions := versionsOfLease(t, p.Namespace)
	for range 3 { // so that the successor has seen some renewals
		receiveWithin(t, "renewal", versions)
	}
	stalls := longestStall(t, p.Namespace)
	killed := time.Now()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	took = receiveWithin(t, "successor", starts).Sub(killed).Round(time.Millisecond)
	stall = stalls()
	<-p.ended
	if err := next.stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	return took, c.LeaseDuration + c.RetryPeriod*12/10 + 250*time.Millisecond, stall
}

// longestStall returns a function that ends the measurement and returns by how much a tick
// of 10ms was late at most. At each tick the API server reads the Lease from etcd.
func longestStall(t *testing.T, ns string) (end func() time.Duration) {
	leases := newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns)
	stop, worst := make(chan struct{}), make(chan time.Duration)
	go func() {
		const period = 10 * time.Millisecond
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		var most time.Duration
		for last := time.Now(); ; {
			select {
			case <-stop:
				worst <- max(most, time.Since(last)-period)
				return
			case <-ticker.C:
				if _, err := leases.Get(t.Context(), leaseName, metav1.GetOptions{}); err != nil {
					t.Error(err)
				}
				now := time.Now()
				most, last = max(most, now.Sub(last)-period), now
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-worst
	}
}

// versionsOfLease returns every version of the Lease from now on.
func versionsOfLease(t *testing.T, ns string) <-chan *coordinationv1.Lease {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	leases := newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns)
	w, err := leases.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, leaseName).String()})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	versions, done := make(chan *coordinationv1.Lease, 1000), make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if lease, ok := event.Object.(*coordinationv1.Lease); ok {
				versions <- lease
			}
		}
	}()
	t.Cleanup(func() {
		w.Stop()
		cancel()
		<-done
	})
	return versions
}

// TestServerPanic: a panic in lead ends the process, as it would anywhere else.
// The functions that lead deferred run, the panic is printed with lead's frame,
// and the Lease is not released: not while the stack unwinds, when what lead
// deferred may still act, nor while the runtime prints.
//
// Proves L8.
func TestServerPanic(t *testing.T) {
	t.Parallel()
	p := startProcess(t, childReplica{
		Namespace: testserver.Namespace(t), Identity: "panics", Panics: true,
		LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 100 * time.Millisecond,
	})
	p.holdNext("leads")
	_, at := p.await(t, "leads", 0)
	versions := versionsOfLease(t, p.Namespace)
	renewed := 0
	for _, stage := range []string{"deferred", "unwound"} {
		p.letGo()
		p.holdNext(stage)
		_, at = p.await(t, stage, at)
		// Two periods are enough to renew, and to release.
		for end := time.After(2 * p.RetryPeriod); end != nil; {
			select {
			case lease := <-versions:
				renewed++
				if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != p.Identity {
					t.Errorf("%s: the holder is %q, want %q", stage, holder, p.Identity)
				}
			case <-end:
				end = nil
			}
		}
	}
	if renewed == 0 {
		t.Error("the watch saw no renewal, so it would have seen no release")
	}
	p.letGo()
	receiveWithin(t, "end of the process", p.ended)

	var exit *exec.ExitError
	if !errors.As(p.err, &exit) || exit.ExitCode() == 0 {
		t.Errorf("the process ended with %v, want a status other than 0", p.err)
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		t.Errorf("the process ended with %v, want its own end", p.cmd.ProcessState)
	}
	for _, want := range []string{"panic: the work is broken", "childReplica.panics", "childReplica.panickingLead"} {
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("no %q on stderr:\n%s", want, &p.stderr)
		}
	}
	lease, err := newClient(t, testserver.Config(t)).CoordinationV1().Leases(p.Namespace).Get(t.Context(), leaseName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != p.Identity {
		t.Errorf("after the end of the process the holder is %q, want %q", holder, p.Identity)
	}
}
