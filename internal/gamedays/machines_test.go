package gamedays

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// machineRows are about processes, machines, and rest.
func machineRows() []situation {
	return []situation{
		{
			name: "sigterm-call", title: "SIGTERM during a call of 14 s", bound: 5 * time.Second,
			do:     func(d *day) { d.stopDuringCall(5*time.Second, 9*time.Second, 14*time.Second, true) },
			onCall: "nothing", does: "The call finishes, the Lease is released after it, and the standby leads within a second.",
		},
		{
			name: "sigterm-timeout", title: "SIGTERM during a call that takes longer than its timeout", bound: 5 * time.Second,
			do:     func(d *day) { d.stopDuringCall(9*time.Second, 9*time.Second, 15*time.Second, false) },
			onCall: "a line `Reconcile failed` with the class timeout", does: "The call ends at its timeout of 15 s, then the Lease is released. The standby repeats the call.",
		},
		{
			name: "freeze-leader", title: "The node of the leader freezes for 20 s during a call", probes: dead, bound: 5 * time.Second,
			do:     func(d *day) { d.freezeLeader() },
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
	}
}

// since returns the requests that a replica has sent since a time, except reads and the reviews of the scraper's token.
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

// stopDuringCall stops the leader in a call of which the API server and the DNS service have parts.
func (d *day) stopDuringCall(server, service, want time.Duration, whole bool) {
	leader, standby := d.leader()
	answer, begun := first("/configmaps/shop", server)
	leader.gate.answerBy(answer)
	uid, _ := d.slowRecord("red", "shop", service)
	d.edit("red", "shop", `{"spec":{"host":"new.red.example.com"}}`)
	select {
	case <-begun:
	case <-time.After(limit):
		d.Fatal("the call does not begin")
	}
	asked := time.Now()
	d.deletePod(leader)
	d.ends()
	if took := d.over.Sub(asked); took < want-time.Second || took > want+1500*time.Millisecond {
		d.Errorf("the stop took %v, want %v", took, want)
	}
	var released, status time.Time
	for _, r := range writesOf(leader, asked) {
		switch {
		case ofLease(r):
			released = r.at
		case strings.HasSuffix(r.path, "/websites/shop/status") && r.status == http.StatusOK:
			status = r.at
		}
	}
	if whole == status.IsZero() {
		d.Errorf("the call has written the status: %v, want %v", !status.IsZero(), whole)
	}
	if status.After(released) {
		d.Errorf("the status was written at %v, after the release of the Lease at %v", status, released)
	}
	var took time.Time
	d.await(limit, func() error {
		for _, r := range writesOf(standby, asked) {
			if ofLease(r) && r.status == http.StatusOK {
				took = r.at
				return nil
			}
		}
		return errors.New("the standby has not taken the Lease")
	})
	if after := took.Sub(released); after < 0 || after > time.Second {
		d.Errorf("the standby took the Lease %v after its release, want at most 1s", after)
	}
	for _, r := range writesOf(standby, asked) {
		if r.at.Before(released) {
			d.Errorf("the standby wrote before the release: %+v", r)
		}
	}
	puts := 0
	for _, c := range d.service.since(asked) {
		if c.owner == uid && c.begin.Before(released) {
			puts++
			if whole != (c.status != 0) {
				d.Errorf("the call of the old leader: %+v", c)
			}
		}
	}
	if puts != 1 {
		d.Errorf("the old leader called the DNS service %d times, want 1", puts)
	}
	d.addPod(d.newPod("pod-c"))
	d.Logf("the stop took %.1fs, the standby took the Lease %dms after its release", d.over.Sub(asked).Seconds(), took.Sub(released).Milliseconds())
}

// freezeLeader freezes the leader while it waits for the DNS service.
func (d *day) freezeLeader() {
	leader, standby := d.leader()
	uid, begun := d.slowRecord("red", "shop", 2*time.Second)
	d.edit("red", "shop", `{"spec":{"host":"new.red.example.com"}}`)
	select {
	case <-begun:
	case <-time.After(limit):
		d.Fatal("the call does not begin")
	}
	frozen := time.Now()
	thawed := make(chan struct{})
	go func() { leader.freeze(20 * time.Second); close(thawed) }()
	after := d.await(19*time.Second, func() error {
		if now, _ := d.leader(); now != standby {
			return fmt.Errorf("%s leads", now.name)
		}
		return nil
	})
	d.edit("red", "blog", `{"spec":{"replicas":3}}`)
	<-thawed
	thaw := time.Now()
	d.ends()
	d.await(limit, func() error { return d.right(nil) })
	d.await(limit, d.allReady)
	for _, r := range writesOf(leader, thaw.Add(-time.Second)) {
		d.Errorf("the old leader wrote after the thaw: %+v", r)
	}
	calls := 0
	for _, c := range d.service.since(frozen) {
		if c.owner == uid && !c.begin.Before(frozen) {
			calls++
		}
	}
	d.Logf("the standby led %.1fs after the freeze; %d more calls for the record; old leader after the thaw: %d requests", after.Seconds(), calls, len(leader.gate.since(thaw.Add(-time.Second))))
}
