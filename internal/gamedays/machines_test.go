package gamedays

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// machineRows are about processes, machines, and rest.
func machineRows() []situation {
	rows := []situation{
		{
			name: "sigterm", sample: true, title: "SIGTERM during a call of 8 s", bound: 5 * time.Second,
			says: [][]string{{"Stopping controller", "received SIGTERM", `"running":1`}},
			do: func(d *day) {
				d.stopDuringCall(stopping{server: 3 * time.Second, service: 5 * time.Second, least: 7 * time.Second, most: 13 * time.Second, gap: time.Second, whole: true})
			},
			onCall: "nothing", does: "as in a call of 14 s",
		},
		{
			// The parts leave half a second for the rest of the call. It is not in the sample, because on a busy
			// machine the rest can take all that is left of the timeout of 15 s.
			name: "sigterm-call", title: "SIGTERM during a call of 14 s", bound: 5 * time.Second,
			says: [][]string{{"Stopping controller", "received SIGTERM", `"running":1`}},
			do: func(d *day) {
				d.stopDuringCall(stopping{server: 5 * time.Second, service: 8500 * time.Millisecond, least: 13 * time.Second, most: 15500 * time.Millisecond, gap: time.Second, whole: true})
			},
			onCall: "nothing", does: "The call finishes, the Lease is released after it, and the standby leads within a second.",
		},
		{
			name: "sigterm-timeout", title: "SIGTERM during a call that takes longer than its timeout", bound: 5 * time.Second,
			says: [][]string{{"Stopping controller", "received SIGTERM", `"running":1`}},
			do: func(d *day) {
				d.stopDuringCall(stopping{server: 9 * time.Second, service: 9 * time.Second, least: 14 * time.Second, most: 17 * time.Second, gap: time.Second})
			},
			onCall: "a line `Reconcile failed` with the class timeout", does: "The call ends at its timeout of 15 s, then the Lease is released. The standby repeats the call.",
		},
		{
			name: "freeze-leader", title: "The node of the leader freezes for 20 s during a call", probes: dead, bound: 5 * time.Second,
			do:     func(d *day) { d.freezeLeader(false, false) },
			onCall: "nothing", does: "The standby leads after 15 s. The old leader writes nothing after the thaw.",
		},
		{
			name: "freeze-standby", title: "The node of the standby freezes for 20 s", probes: dead,
			do: func(d *day) {
				leader, standby := d.leader()
				thawed := make(chan struct{})
				go func() { standby.freeze(20 * time.Second); close(thawed) }()
				d.edit("red", "shop", `{"spec":{"replicas":3}}`)
				d.await(5*time.Second, func() error { return d.right(nil) })
				<-thawed
				d.ends()
				if still, _ := d.leader(); still != leader {
					d.Errorf("%s leads, want %s", still.name, leader.name)
				}
			},
			onCall: "nothing", does: "The leader works on.",
		},
		{
			name: "versions", quiet: 60, title: "Two versions of the operator at once, as in a paused rollout",
			do:     func(d *day) { d.twoVersions() },
			onCall: "nothing", does: "The leader's version wins. A change of the leader writes each child once.", left: "End the rollout.",
		},
		{
			name: "log-full", title: "The disk of the log is full",
			do:     func(d *day) { d.fullLog() },
			onCall: "no log", does: "Lines are lost, and the work goes on.", left: "Free the disk.",
		},
		{
			name: "log-gone", title: "The reader of the log has gone", probes: dead, restarts: 2, bound: 40 * time.Second,
			do:     func(d *day) { d.goneLog() },
			onCall: "restarts", does: "Go ends the process at its next line. The kubelet starts it again, with a new log.",
		},
		{
			name: "prometheus-away", title: "Prometheus is away for 60 s",
			do: func(d *day) {
				d.prom.stop()
				d.edit("red", "shop", `{"spec":{"replicas":3}}`)
				d.await(5*time.Second, func() error { return d.right(nil) })
				time.Sleep(60 * time.Second)
				d.prom.start(d)
				d.ends()
				d.edit("red", "blog", `{"spec":{"replicas":3}}`)
			},
			onCall: "what watches Prometheus", does: "The work goes on. The counters keep their values.",
		},
		{
			name: "scraper-revoked", title: "The right of the scraper is revoked", bound: 75 * time.Second,
			do:     func(d *day) { d.revokeScraper() }, // the line is awaited there, because a decision is kept for a minute
			onCall: "`up` is 0 (alert on it), and a line with the missing right", does: "`/metrics` refuses with 403 within a minute. The work goes on.", left: "Restore the role.",
		},
		{
			name: "memory", title: "240 websites with little memory, then an OOM kill", setup: setup{env: []string{"GOMEMLIMIT=24MiB"}}, probes: dead, restarts: 1, bound: 90 * time.Second, quiet: 60,
			do:     func(d *day) { d.littleMemory() },
			onCall: "a restart", does: "It works on slower. After the kill the standby leads when the Lease has expired.", left: "Raise the limit.",
		},
		{
			name: "rest", title: "Nothing happens", sample: true, quiet: -1,
			do:     func(d *day) { d.rest(20 * time.Second) },
			spoil:  (*day).busy,
			onCall: "nothing", does: "nothing",
		},
		{
			name: "rest-long", title: "Nothing happens for five minutes", quiet: -1,
			do:     func(d *day) { d.rest(5 * time.Minute) },
			spoil:  (*day).busy,
			onCall: "nothing", does: "nothing",
		},
		{
			name: "long-standby", title: "A standby sees 5,000 names come and go, and then leads", soak: true, bound: 10 * time.Second,
			do:     func(d *day) { d.longStandby(5000) },
			onCall: "nothing", does: "Its memory stays bounded, and so does the take-over.",
			left: "the record of a website whose DELETE the API server began before the finalizer, and ended after it ([finalizers](finalizers.md)): one of 15,000 here",
		},
		{
			name: "zerolog", title: "Another logger: kill -9, an API server away for 5 s, and a rejected child", setup: setup{args: []string{"-log", "zerolog"}},
			probes: dead, restarts: 1, bound: 40 * time.Second,
			quiet: 110, // while the API server is away, each key logs each try: ten lines in 5 s
			says:  [][]string{{"Reconcile failed", "rejected", "theirs"}},
			skip:  func(o object) bool { return o.Metadata.Name == "theirs" },
			do: func(d *day) {
				d.create("red", "theirs")
				d.says(10*time.Second, "Reconcile failed", "rejected")
				leader, _ := d.leader()
				leader.kill()
				d.await(limit, func() error {
					if now, _ := d.leader(); now == leader {
						return errors.New("the Lease has not moved")
					}
					return nil
				})
				d.each(func(g *gate) { g.refuse() })
				time.Sleep(5 * time.Second)
				d.each(func(g *gate) { g.open(d) })
				d.ends()
				d.edit("red", "shop", `{"spec":{"replicas":3}}`)
			},
			onCall: "a restart, and the line `Reconcile failed`", does: "All lines are JSON.", left: "Rename the website.",
		},
		{
			name: "clock", title: "The clock jumps by ten minutes, forward on the leader and back on the standby", bound: 10 * time.Second,
			do:     func(d *day) { d.jumpClock() },
			onCall: "a line `Stopped leading`", does: "The jump forward ends the term of the leader. The same replica leads again, with a new number.",
		},
		{
			name: "shards", title: "Shards 1, then 4, then 2, under load", own: reshard,
			onCall: "nothing", does: "Replicas with another number wait until the others have ended.",
		},
	}
	return append(rows, again()...)
}

// again returns rows with the operators of the folders managed and plain.
func again() (rows []situation) {
	managed, plain := setup{program: "./managed"}, setup{program: "./plain"}
	rolling := func(d *day) {
		for _, old := range slices.Clone(d.pods) {
			d.addPod(d.newPod(old.name + "-new"))
			d.deletePod(old)
		}
		d.ends()
		d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	}
	kill := func(d *day) {
		leader, _ := d.leader()
		leader.kill()
		d.ends()
		d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	}
	away := func(d *day) {
		d.each(func(g *gate) { g.refuse() })
		time.Sleep(20 * time.Second)
		d.each(func(g *gate) { g.open(d) })
		d.ends()
		d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	}
	// The manager ends the endpoints before the process: a probe in that moment fails.
	return []situation{
		{name: "managed-rolling", as: "rolling", setup: managed, probes: dead, quiet: 80, do: rolling, does: "as without a manager"},
		{name: "plain-rolling", as: "rolling", setup: plain, probes: dead, quiet: 80, do: rolling, does: "A standby leads up to 2 s after the release, and then fills its caches."},
		{name: "managed-kill", as: "kill", setup: managed, probes: dead, restarts: 1, bound: 40 * time.Second, do: kill, does: "as without a manager"},
		{name: "plain-kill", as: "kill", setup: plain, probes: dead, restarts: 1, bound: 40 * time.Second, do: kill, does: "The standby fills its caches after it leads."},
		{
			name: "managed-sigterm-call", as: "sigterm-call", setup: managed, probes: dead, quiet: 80, bound: 5 * time.Second, does: "The call finishes. The metrics server ends before the release.",
			do: func(d *day) {
				d.stopDuringCall(stopping{server: 5 * time.Second, service: 8500 * time.Millisecond, most: 19 * time.Second, least: 13 * time.Second, gap: time.Second, whole: true})
			},
		},
		{
			name: "plain-sigterm-call", as: "sigterm-call", setup: plain, probes: dead, quiet: 80, bound: 10 * time.Second, does: "The call is cut at once, and its status is not written.",
			do: func(d *day) {
				d.stopDuringCall(stopping{server: 5 * time.Second, service: 8500 * time.Millisecond, most: 5 * time.Second, gap: 4 * time.Second, none: true})
			},
		},
		{
			name: "managed-freeze-leader", as: "freeze-leader", setup: managed, probes: dead, restarts: 1, bound: 5 * time.Second, quiet: 60,
			does: "The old leader writes nothing after the thaw, and its process is restarted.", do: func(d *day) { d.freezeLeader(true, false) },
		},
		{
			name: "plain-freeze-leader", as: "freeze-leader", setup: plain, probes: dead, restarts: 1, bound: 5 * time.Second, quiet: 60,
			does: "The old leader goes on for up to 10 s after the thaw, beside the new one. Then it is restarted.", do: func(d *day) { d.freezeLeader(true, true) },
		},
		{
			name: "managed-away", as: "away20s", setup: managed, probes: dead, restarts: 1, bound: 25 * time.Second, quiet: 80,
			does: "The old leader ends, and is restarted.", do: away,
		},
		{
			name: "plain-away", as: "away20s", setup: plain, probes: dead, restarts: 1, bound: 25 * time.Second, quiet: 80, may: []string{"ControllerNoLeader"},
			does: "The old leader ends, and is restarted. A standby that had not seen its last renewal waits for 15 s more, and it pages.", do: away,
		},
	}
}

// writesOf returns the requests that a replica has sent since a time, except reads and the reviews of the scraper's token.
func writesOf(p *pod, begin time.Time) []request {
	return slices.DeleteFunc(p.gate.since(begin), func(r request) bool {
		return r.method == http.MethodGet || strings.Contains(r.path, "reviews")
	})
}

func ofLease(r request) bool { return strings.Contains(r.path, "/leases") }

// first makes the first write of a path that ends so slow, and closes begun when the write begins.
func first(suffix string, delay time.Duration) (answer func(*http.Request) *reply, begun <-chan struct{}) {
	var once sync.Once
	began := make(chan struct{})
	return func(r *http.Request) (slow *reply) {
		if r.Method != http.MethodGet && strings.HasSuffix(r.URL.Path, suffix) {
			once.Do(func() { close(began); slow = &reply{delay: delay} })
		}
		return slow
	}, began
}

// slowRecord makes the next call for a website's record slow, and closes begun when the call begins.
func (d *day) slowRecord(namespace, site string, delay time.Duration) (uid string, begun <-chan struct{}) {
	d.Helper()
	w, err := d.sites(namespace).Get(d.Context(), site, metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	var once sync.Once
	began := make(chan struct{})
	uid = string(w.GetUID())
	d.service.answerBy(func(r *http.Request) (slow *answer) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, uid) {
			once.Do(func() { close(began); slow = &answer{delay: delay} })
		}
		return slow
	})
	return uid, began
}

// A stopping is a stop of the leader in a call of which the API server and the DNS service have parts.
type stopping struct {
	server, service time.Duration // the parts
	least, most     time.Duration // the stop
	gap             time.Duration // from the release of the Lease until another replica holds it, at most
	whole           bool          // the call finishes
	none            bool          // the call is cut before it reaches the service
}

// stopDuringCall stops the leader during a call.
func (d *day) stopDuringCall(s stopping) {
	leader, standby := d.leader()
	answer, begun := first("/configmaps/shop", s.server)
	leader.gate.answerBy(answer)
	uid, _ := d.slowRecord("red", "shop", s.service)
	d.edit("red", "shop", `{"spec":{"host":"new.red.example.com"}}`)
	select {
	case <-begun:
	case <-time.After(limit):
		d.Fatal("the call does not begin")
	}
	asked := time.Now()
	d.deletePod(leader)
	d.service.answerBy(nil)
	d.ends()
	took := d.over.Sub(asked)
	if !s.whole && !s.none { // later than the lines of says
		d.says(time.Second, "Reconcile failed", "put the DNS record", "timeout of 15s is over", `"class":"timeout"`)
	}
	if took < s.least || took > s.most {
		d.Errorf("the stop took %v, want %v to %v", took, s.least, s.most)
	}
	var released, status, led time.Time
	for _, r := range writesOf(leader, asked) {
		switch {
		case ofLease(r):
			released = r.at
		case strings.HasSuffix(r.path, "/websites/shop/status") && r.status == http.StatusOK:
			status = r.at
		}
	}
	if s.whole == status.IsZero() {
		d.Errorf("the call has written the status: %v, want %v", !status.IsZero(), s.whole)
	}
	if status.After(released) {
		d.Errorf("the status was written at %v, after the release of the Lease at %v", status, released)
	}
	d.await(limit, func() error {
		for _, r := range writesOf(standby, asked) {
			if ofLease(r) && r.status == http.StatusOK {
				led = r.at
				return nil
			}
		}
		return errors.New("the standby has not taken the Lease")
	})
	if after := led.Sub(released); after < 0 || after > s.gap {
		d.Errorf("the standby took the Lease %v after its release, want at most %v", after, s.gap)
	}
	for _, r := range writesOf(standby, asked) {
		if r.at.Before(released) && !ofLease(r) {
			d.Errorf("the standby wrote before the release: %+v", r)
		}
	}
	calls := 0
	for _, c := range d.service.since(asked) {
		if c.owner == uid && c.begin.Before(released) {
			calls++
			if s.whole != (c.status != 0) {
				d.Errorf("the call of the old leader: %+v", c)
			}
		}
	}
	if (calls == 0) != s.none || calls > 1 {
		d.Errorf("the old leader called the DNS service %d times", calls)
	}
	d.Logf("the stop took %.1fs, the standby took the Lease %dms after its release", took.Seconds(), led.Sub(released).Milliseconds())
}

// freezeLeader freezes the leader while it waits for the DNS service, and changes a website after the thaw. If
// restart is true, the old leader's process must end. If overlap is true, it may go on as if it led until then.
func (d *day) freezeLeader(restart, overlap bool) {
	leader, standby := d.leader()
	uid, begun := d.slowRecord("red", "shop", 2*time.Second)
	d.edit("red", "shop", `{"spec":{"host":"new.red.example.com"}}`)
	select {
	case <-begun:
	case <-time.After(limit):
		d.Fatal("the call does not begin")
	}
	long := 20 * time.Second
	if overlap {
		long += 5 * time.Second // a standby of client-go's elector needs up to 19 s
	}
	frozen := time.Now()
	thawed := make(chan struct{})
	go func() { leader.freeze(long); close(thawed) }()
	after := d.await(long-time.Second, func() error {
		if now, _ := d.leader(); now != standby {
			return fmt.Errorf("%s leads", now.name)
		}
		return nil
	})
	d.edit("red", "blog", `{"spec":{"replicas":3}}`)
	<-thawed
	thaw := time.Now()
	d.ends()
	d.edit("red", "shop", `{"spec":{"host":"thawed.red.example.com"}}`)
	d.await(limit, func() error { return d.right(nil) })
	right := time.Since(thaw)
	d.took = right
	ended := time.Duration(0)
	if restart {
		d.await(15*time.Second, func() error {
			if len(leader.restarted()) == 0 {
				return errors.New("the old leader still runs")
			}
			return nil
		})
		ended = time.Since(thaw)
	}
	d.await(limit, d.allReady)
	var sent []string
	for _, r := range writesOf(leader, frozen.Add(long-time.Second)) {
		if ofLease(r) && r.status != http.StatusOK || strings.HasSuffix(r.path, "/events") {
			continue // a try to get the Lease again, or an Event about a write before the freeze
		}
		sent = append(sent, fmt.Sprint(r.method, " ", path.Base(path.Dir(r.path)), "/", path.Base(r.path), ": ", r.status))
	}
	if len(sent) > 0 && !overlap {
		d.Errorf("the old leader wrote after the thaw: %q", sent)
	}
	calls := 0
	for _, c := range d.service.since(thaw) {
		if c.owner == uid {
			calls++
		}
	}
	d.Logf("the standby led %.1fs after the freeze; all was right %.1fs after the thaw; %d calls for the record since the thaw; writes of the old leader since the thaw: %q; it ended after %.1fs",
		after.Seconds(), right.Seconds(), calls, sent, ended.Seconds())
	if overlap {
		d.service.mu.Lock()
		d.Logf("the DNS service: %q", d.service.faults)
		d.service.faults = nil
		d.service.mu.Unlock()
	}
}

// twoVersions has a replica of each version, and counts the writes of the children while each leads.
func (d *day) twoVersions() {
	old, _ := d.leader()
	next := d.newPod("pod-new")
	next.args = append(next.args, "-label", "next")
	for _, p := range slices.Clone(d.pods) {
		if p != old {
			d.deletePod(p)
		}
	}
	d.addPod(next)
	labelled := func(want string) error {
		all, err := d.kube().CoreV1().ConfigMaps("").List(d.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=website"})
		if err != nil {
			return err
		}
		for _, m := range all.Items {
			if got := m.Labels["version"]; m.Name != "theirs" && got != want {
				return fmt.Errorf("%s/%s has the version %q, want %q", m.Namespace, m.Name, got, want)
			}
		}
		return nil
	}
	count := func(p *pod, begin time.Time) (n int) {
		for _, r := range writesOf(p, begin) {
			if strings.Contains(r.path, "/configmaps/") && !strings.Contains(r.path, "/extras-") { // the children of websites
				n++
			}
		}
		return n
	}
	begin := time.Now()
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	d.await(10*time.Second, func() error { return d.right(nil) })
	time.Sleep(5 * time.Second)
	if err := labelled(""); err != nil || count(next, begin) > 0 || count(old, begin) > 0 {
		d.Errorf("while the old version leads: %v, %d writes of the new, %d of the old", err, count(next, begin), count(old, begin))
	}
	// The old Pod is deleted, and its ReplicaSet makes another one of the old version.
	begin = time.Now()
	d.deletePod(old)
	again := d.newPod("pod-old")
	d.addPod(again)
	d.await(5*time.Second, func() error { return labelled("next") })
	time.Sleep(5 * time.Second)
	if n := count(next, begin); n != len(usual) || count(again, begin) > 0 {
		d.Errorf("the new version wrote %d ConfigMaps, and the old one %d, want %d and 0", n, count(again, begin), len(usual))
	}
	begin = time.Now()
	d.deletePod(next)
	d.ends()
	d.await(5*time.Second, func() error { return labelled("") })
	if n := count(again, begin); n != len(usual) {
		d.Errorf("the old version wrote %d ConfigMaps, want %d", n, len(usual))
	}
	d.addPod(d.newPod("pod-z"))
}

// roll replaces all replicas. change can change the new ones.
func (d *day) roll(change func(i int, p *pod)) {
	d.Helper()
	for i, old := range slices.Clone(d.pods) {
		p := d.newPod(fmt.Sprintf("pod-%d", i))
		change(i, p)
		d.addPod(p)
		d.deletePod(old)
	}
}

// fullLog has replicas whose stderr is a full disk, one for each logger.
func (d *day) fullLog() {
	d.roll(func(i int, p *pod) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			d.Fatal(err)
		}
		d.Cleanup(func() { full.Close() })
		p.stderr, p.args = full, append(p.args, "-log", []string{"slog", "zerolog"}[i])
	})
	d.starts()
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	d.await(5*time.Second, func() error { return d.right(nil) })
	leader, _ := d.leader()
	d.deletePod(leader) // the other logger leads, and logs that
	d.addPod(d.newPod("pod-z"))
	d.ends()
	d.edit("red", "shop", `{"spec":{"replicas":1}}`)
}

// goneLog has replicas whose stderr is a pipe without a reader, one for each logger.
func (d *day) goneLog() {
	var readers []*os.File
	d.roll(func(i int, p *pod) {
		r, w, err := os.Pipe()
		if err != nil {
			d.Fatal(err)
		}
		d.Cleanup(func() { r.Close(); w.Close() })
		readers = append(readers, r)
		p.stderr, p.args = w, append(p.args, "-log", []string{"slog", "zerolog"}[i])
	})
	d.starts()
	leader, _ := d.leader()
	d.readStart(readers[slices.Index(d.pods, leader)])
	for _, r := range readers {
		r.Close()
	}
	// Nothing is logged at rest, so the processes go on. The new leader logs that it leads.
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	d.await(5*time.Second, func() error { return d.right(nil) })
	leader, standby := d.leader()
	leader.kill()
	d.ends()
	d.await(limit, func() error {
		if len(standby.restarted()) == 0 {
			return errors.New("the standby did not end")
		}
		return nil
	})
	d.Logf("the leader ended: %q, the standby: %q", leader.restarted(), standby.restarted())
	if !strings.Contains(strings.Join(standby.restarted(), " "), "broken pipe") {
		d.Errorf("the standby ended: %q, want by a broken pipe", standby.restarted())
	}
}

// readStart reads a log until its process has started its two controllers, which is the last that a leader logs.
func (d *day) readStart(log *os.File) {
	d.Helper()
	if err := log.SetReadDeadline(time.Now().Add(limit)); err != nil {
		d.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	for started := 0; started < 2; {
		if !lines.Scan() {
			d.Fatalf("the log ended after the start of %d controllers: %v", started, lines.Err())
		}
		if strings.Contains(lines.Text(), "Starting controller") {
			started++
		}
	}
}

// up returns nil if the values of up are as wanted.
func (d *day) up(want float64) error {
	values, err := d.prom.query(`sum by (job) (up)`, "job")
	if err == nil && values[name] != want {
		err = fmt.Errorf("up is %v, want %v", values[name], want)
	}
	return err
}

// revokeScraper takes the right to read the metrics from Prometheus, and gives it back.
func (d *day) revokeScraper() {
	bindings := d.kube().RbacV1().ClusterRoleBindings()
	old, err := bindings.Get(d.Context(), "prometheus", metav1.GetOptions{})
	if err == nil {
		err = bindings.Delete(d.Context(), "prometheus", metav1.DeleteOptions{})
	}
	if err != nil {
		d.Fatal(err)
	}
	after := d.await(75*time.Second, func() error { return d.up(0) })
	d.says(5*time.Second, "Rejected a request", "lacks the right", "bind a ClusterRole", "/metrics")
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	d.await(5*time.Second, func() error { return d.right(nil) })
	time.Sleep(20 * time.Second)
	old.ResourceVersion, old.UID = "", ""
	if _, err := bindings.Create(d.Context(), old, metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
	d.ends()
	back := d.await(30*time.Second, func() error { return d.up(float64(len(d.pods))) })
	d.Logf("up was 0 after %.1fs, and back %.1fs after the right", after.Seconds(), back.Seconds())
}

// littleMemory makes many websites, and kills the leader in the middle of the work.
func (d *day) littleMemory() {
	make := func(from, to int) {
		var running sync.WaitGroup
		for w := range 4 {
			running.Go(func() {
				for i := from + w; i < to; i += 4 {
					if _, err := d.sites("blue").Create(d.Context(), d.site("blue", fmt.Sprint("s", i)), metav1.CreateOptions{}); err != nil {
						d.Error(err)
					}
				}
			})
		}
		running.Wait()
	}
	// The API server of the tests has addresses for 254 Services.
	make(0, 160)
	took := d.await(2*limit, func() error { return d.right(nil) })
	leader, standby := d.leader()
	d.Logf("160 websites were right %.1fs later; leader: %s, standby: %s", took.Seconds(), leader.usage(d), standby.usage(d))
	if rss := leader.usage(d).rss; rss > 110<<20 {
		d.Errorf("the leader has %d MiB, want at most 110", rss>>20)
	}
	make(160, 200)
	leader.kill()
	d.ends()
	make(200, 240)
}

// A usage is what a process has used.
type usage struct {
	rss int64 // bytes
	cpu time.Duration
}

func (u usage) String() string {
	return fmt.Sprintf("%d MiB, %.2fs of CPU", u.rss>>20, u.cpu.Seconds())
}

// usage reads what the process has used, from /proc.
func (p *pod) usage(d *day) (u usage) {
	d.Helper()
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		d.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest) // from the third on
	number := func(i int) int64 {
		n, err := strconv.ParseInt(fields[i-3], 10, 64)
		if err != nil {
			d.Fatal(err)
		}
		return n
	}
	const ticks = 100 // in a second, on Linux
	return usage{rss: number(24) * int64(os.Getpagesize()), cpu: time.Duration(number(14)+number(15)) * time.Second / ticks}
}

// rest lets nothing happen, with probes as seldom as the kubelet's.
func (d *day) rest(long time.Duration) {
	const (
		leaderRequests  = 33.0 // in a minute: a renewal each 2s, and few reviews of the scraper
		standbyRequests = 3.0
		cpu             = 0.6 // seconds in a minute, with a scrape each second
	)
	seldom := 5 * time.Second
	for _, p := range d.pods {
		p.between.Store(&seldom)
	}
	leader, _ := d.leader()
	time.Sleep(3 * time.Second) // the last probes of the quick kind
	d.starts()
	before := map[*pod]usage{}
	for _, p := range d.pods {
		before[p] = p.usage(d)
	}
	time.Sleep(long)
	for _, p := range d.pods {
		most := standbyRequests
		if p == leader {
			most = leaderRequests
		}
		all := p.gate.since(d.begin)
		kinds := map[string]int{}
		for _, r := range all {
			kinds[r.method+" "+path.Base(path.Dir(r.path))+"/"+path.Base(r.path)]++
		}
		used := p.usage(d)
		minutes := long.Minutes()
		spent := (used.cpu - before[p].cpu).Seconds()
		d.Logf("%s: %.1f requests a minute, %.2fs of CPU a minute, a day: %.0f requests and %.0fs; %v; %s", p.name, float64(len(all))/minutes, spent/minutes,
			float64(len(all))/minutes*1440, spent/minutes*1440, kinds, used)
		if got := float64(len(all)) / minutes; got > most+1/minutes {
			d.Errorf("%s sent %.1f requests a minute, want at most %.1f: %v", p.name, got, most, kinds)
		}
		if spent/minutes > cpu && !testprocess.Race() { // the detector multiplies it
			d.Errorf("%s used %.2fs of CPU a minute, want at most %.2fs", p.name, spent/minutes, cpu)
		}
	}
	if lines := d.lines(); len(lines) > 0 {
		d.Errorf("at rest the log has %d lines:\n%s", len(lines), summary(lines))
	}
	d.ends()
	usually := 250 * time.Millisecond
	for _, p := range d.pods {
		p.between.Store(&usually)
	}
}

// busy edits a website twice a second.
func (d *day) busy() {
	ctx := d.Context()
	sites := d.sites("red")
	var running sync.WaitGroup
	d.Cleanup(running.Wait)
	running.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			patch := fmt.Appendf(nil, `{"spec":{"image":"example.com/site:busy-%d"}}`, i)
			if _, err := sites.Patch(ctx, "shop", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && ctx.Err() == nil {
				d.Error(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
}

// longStandby creates and deletes websites while a standby waits, and then makes it lead.
func (d *day) longStandby(names int) {
	d.watchOverlooked("blue")
	leader, standby := d.leader()
	before := standby.usage(d)
	begin := time.Now()
	var running sync.WaitGroup
	for w := range 8 {
		running.Go(func() {
			for i := w; i < names; i += 8 {
				site := fmt.Sprint("day-", i)
				_, err := d.sites("blue").Create(d.Context(), d.site("blue", site), metav1.CreateOptions{})
				if err == nil {
					err = d.sites("blue").Delete(d.Context(), site, metav1.DeleteOptions{})
				}
				if err != nil {
					d.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	made := time.Since(begin)
	settled := d.await(2*limit, func() error { return d.right(nil) })
	after := standby.usage(d)
	d.Logf("%d names in %.0fs, right %.1fs later; standby before: %s, after: %s; leader: %s", names, made.Seconds(), settled.Seconds(), before, after, leader.usage(d))
	if grown := (after.rss - before.rss) >> 20; grown > 48 {
		d.Errorf("the standby has grown by %d MiB, want at most 48", grown)
	}
	d.deletePod(leader)
	d.ends()
	took := d.await(5*time.Second, func() error {
		for _, l := range standby.log.all() {
			if strings.Contains(l.text, "Starting controller") && l.at.After(d.over) {
				return nil
			}
		}
		return errors.New("the standby does not work")
	})
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	right := d.await(5*time.Second, func() error { return d.right(nil) })
	d.Logf("the standby worked %.2fs after the end of the leader, all was right %.2fs later; it has now: %s", took.Seconds(), right.Seconds(), standby.usage(d))
}

// watchOverlooked notes the websites that the API server removes although they have a finalizer and no deletion
// has begun: a DELETE overlooks a first finalizer that is added while it is in progress (kubernetes#77988, and
// docs/finalizers.md).
func (d *day) watchOverlooked(namespace string) {
	d.Helper()
	w, err := d.sites(namespace).Watch(d.Context(), metav1.ListOptions{})
	if err != nil {
		d.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			if o, err := meta.Accessor(e.Object); err == nil && e.Type == watch.Deleted && o.GetDeletionTimestamp() == nil && len(o.GetFinalizers()) > 0 {
				d.overlooked.Store(string(o.GetUID()), nil)
				d.Logf("the API server has removed the website %s although it had a finalizer", o.GetName())
			}
		}
	}()
	d.Cleanup(func() {
		w.Stop()
		<-ended
	})
}

// jumping builds the operator with a clock that jumps: time.Now adds seconds from a moment on. The monotonic
// clock goes on, as on a machine whose clock is set.
func jumping(d *day) string {
	d.Helper()
	out, err := exec.CommandContext(d.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		d.Fatal(err)
	}
	std, dir := filepath.Join(strings.TrimSpace(string(out)), "src", "time"), d.TempDir()
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	if err != nil {
		d.Fatal(err)
	}
	const reads = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if !strings.Contains(string(source), reads) {
		d.Fatal("time.Now of this version of Go is another one")
	}
	const added = `package time

import "syscall"

var jumpAt, jumpBy = jumps()

func jumps() (at, by int64) {
	number := func(key string) (n int64) {
		text, _ := syscall.Getenv(key)
		sign := int64(1)
		for _, c := range text {
			if c == '-' {
				sign = -1
				continue
			}
			n = n*10 + int64(c-'0')
		}
		return sign * n
	}
	return number("GAMEDAY_JUMP_AT"), number("GAMEDAY_JUMP_BY")
}
`
	changed := strings.Replace(string(source), reads, reads+"\tif jumpAt != 0 && sec >= jumpAt {\n\t\tsec += jumpBy\n\t}\n", 1)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(std, "time.go"): filepath.Join(dir, "time.go"), filepath.Join(std, "jump.go"): filepath.Join(dir, "jump.go")}})
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "time.go"), []byte(changed), 0o600), os.WriteFile(filepath.Join(dir, "jump.go"), []byte(added), 0o600),
		os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	if err != nil {
		d.Fatal(err)
	}
	bin := filepath.Join(dir, "operator")
	if text, err := exec.CommandContext(d.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", bin, "./operator").CombinedOutput(); err != nil {
		d.Fatalf("%v\n%s", err, text)
	}
	return bin
}

// jumpClock makes the clock of one replica jump forward, and that of the other one back.
func (d *day) jumpClock() {
	bin := jumping(d)
	at := time.Now().Add(30 * time.Second).Unix()
	d.roll(func(i int, p *pod) {
		p.bin = bin
		p.env = append(p.env, fmt.Sprint("GAMEDAY_JUMP_AT=", at), fmt.Sprint("GAMEDAY_JUMP_BY=", []int{600, -600}[i]))
	})
	if time.Now().Unix() >= at {
		d.Fatal("the replicas were ready after the jump")
	}
	leader, _ := d.leader()
	time.Sleep(time.Until(time.Unix(at, 0)))
	d.starts()
	time.Sleep(5 * time.Second)
	d.edit("red", "shop", `{"spec":{"replicas":3}}`)
	d.await(5*time.Second, func() error { return d.right(nil) })
	time.Sleep(75 * time.Second) // longer than the alert of a silent watch takes
	if now, _ := d.leader(); now != leader {
		d.Errorf("%s leads, want %s", now.name, leader.name)
	}
	d.ends()
	d.deletePod(leader)
	d.edit("red", "shop", `{"spec":{"replicas":1}}`)
}

// A published has what the checker of reshard reads of a publication.
type published struct {
	Object struct {
		Metadata struct{ UID string }
		Data     map[string]string
	}
	Replica string
	Shard   struct{ Term int64 }
	Sent    time.Time
}

// reshard runs examples/sharded, which has no metrics and no probes, with other numbers of shards one after
// another, while its objects change all the time.
func reshard(t *testing.T) time.Duration {
	const objects, namespace = 40, "sharded"
	watched := namespace
	bin := build(t, "github.com/controllerkit/controllerkit/examples/sharded")
	config := testserver.Own(t).Config()
	config.QPS = -1
	kube := kubernetes.NewForConfigOrDie(config)
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	last, first := map[string]published{}, map[string]time.Time{}
	versions := map[string]string{}
	var times []time.Time
	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var p published
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		id := p.Object.Metadata.UID
		before := last[id]
		times = append(times, time.Now())
		if p.Shard.Term == before.Shard.Term && p.Replica != before.Replica || p.Shard.Term < before.Shard.Term && p.Sent.After(first[id]) || p.Shard.Term > before.Shard.Term && p.Sent.Before(before.Sent) {
			t.Errorf("two owners of %s: %+v beside %+v", id, p, before)
		}
		if p.Shard.Term > before.Shard.Term {
			first[id] = p.Sent
		}
		if p.Shard.Term >= before.Shard.Term && p.Sent.After(before.Sent) {
			last[id], versions[id] = p, p.Object.Data["version"]
		}
	}))
	t.Cleanup(service.Close)
	maps := kube.CoreV1().ConfigMaps(namespace)
	ids := make([]string, objects)
	for i := range objects {
		m, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i), Labels: map[string]string{"publish": "yes"}}, Data: map[string]string{"version": "0"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = string(m.UID)
	}
	kubeconfig := testprocess.Kubeconfig(t, config)
	type process struct {
		cmd *exec.Cmd
		out *bytes.Buffer
	}
	start := func(shards int) (p process) {
		p = process{exec.Command(bin, "-url", service.URL, "-namespace", watched, "-shards", fmt.Sprint(shards)), &bytes.Buffer{}}
		p.cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
		p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.cmd.Process.Kill() })
		return p
	}
	stop := func(all []process) {
		for _, p := range all {
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
		for _, p := range all {
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("a replica ended: %v\n%s", err, p.out)
			}
		}
	}
	// A gap is the longest time without a publication, until all objects have the version or a later one.
	await := func(what string, since time.Time, version int) (gap time.Duration) {
		t.Helper()
		for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
			mu.Lock()
			done := true
			for _, id := range ids {
				n, err := strconv.Atoi(versions[id])
				done = done && err == nil && n >= version
			}
			if done {
				at := since
				for _, now := range append(slices.Clone(times), time.Now()) {
					if now.After(since) {
						gap, at = max(gap, now.Sub(at)), now
					}
				}
			}
			mu.Unlock()
			if done {
				t.Logf("%s: the longest gap is %.2fs, after %.1fs all objects were published", what, gap.Seconds(), time.Since(since).Seconds())
				return gap
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: not all objects have the version %d after %v: %v", what, version, limit, versions)
			}
		}
	}
	load, end := context.WithCancel(t.Context())
	var version atomic.Int64
	var running sync.WaitGroup
	running.Go(func() {
		for load.Err() == nil {
			n := version.Add(1)
			for i := range objects {
				if _, err := maps.Patch(t.Context(), fmt.Sprint("m", i), types.MergePatchType, fmt.Appendf(nil, `{"data":{"version":"%d"}}`, n), metav1.PatchOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	now := []process{start(1), start(1)}
	await("1 shard", time.Now(), 1)
	if *broken {
		t.Log(brokenFrom + "shards.")
		watched = "elsewhere"
	}
	var longest time.Duration
	for _, shards := range []int{4, 2} {
		next := []process{start(shards), start(shards)}
		time.Sleep(3 * time.Second) // both kinds run
		begin := time.Now()
		stop(now)
		longest = max(longest, await(fmt.Sprint(shards, " shards"), begin, int(version.Load())+1))
		now = next
	}
	end()
	running.Wait()
	await("at last", time.Now(), int(version.Load()))
	stop(now)
	if longest > 5*time.Second {
		t.Errorf("no object was published for %v, want at most 5s", longest)
	}
	return longest
}
